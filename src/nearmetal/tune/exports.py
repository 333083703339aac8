"""A profile in the words of other tools: what all exports share, the tools one by one, and their table."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.knobs import interrupts, mpi, nic
from nearmetal.knobs.knob import Scope, Step, Target, canon
from nearmetal.knobs.table import find
from nearmetal.knobs.undo import VALUE_OF_FUNCTION
from nearmetal.tune.profile import Profile


@dataclass(frozen=True, slots=True)
class Exported:
    """Files by name, where each belongs, and the knobs that this tool cannot express, with the reason."""

    files: dict[str, str]
    where: str
    left_out: dict[str, str]


def banner(profile: Profile, comment: str = "#") -> str:
    """Return the head of a file: what it is, and the evidence."""
    lines = [f"Made by nearmetal from the profile {profile.name} ({profile.workload_class})."]
    if evidence := profile.evidence:
        lines.append(
            f"Measured on fresh trials: {evidence.ratio:.3f} of the cost before"
            f" ({evidence.low:.3f} to {evidence.high:.3f} at {evidence.level:.0%})."
        )
        if evidence.label:
            lines.append(f"Measured on: {evidence.label}.")
    # Printable text is one line everywhere, but for a backslash before its end, after which Tcl goes on.
    return "".join(f"{comment} {line.replace(chr(92), '/')}\n" for line in lines)


def left_out(profile: Profile, expressed: Mapping[str, object], reason: str) -> dict[str, str]:
    """Return the knobs of a profile that are not among those expressed."""
    return {knob: reason for knob in profile.setting if knob not in expressed}


def steps(profile: Profile) -> tuple[list[tuple[str, str, Step]], dict[str, str]]:
    """Return (knob, interface, write) of everything that is written in the same place on every machine.

    The second part names the knobs whose places must be looked up on the machine, such as one file a queue, and
    those of MPI launches.
    """
    found: list[tuple[str, str, Step]] = []
    missed: dict[str, str] = {}
    for name, value in _in_stage_order(profile):
        knob = find(name)
        interfaces = profile.interfaces if knob.scope is Scope.INTERFACE else ("",)
        try:
            for interface in interfaces:
                target = Target("", interface)
                found += [(name, interface, step) for step in knob.steps(_NOWHERE, target, canon(knob, value))]
        except UnavailableError:
            missed[name] = "its files differ between machines; `nearmetal apply` finds them"
    missed |= {name: "it belongs to a launch, see the module export" for name in profile.setting if _of_mpi(name)}
    return found, missed


def _in_stage_order(profile: Profile) -> Iterator[tuple[str, str]]:
    pairs = [(name, value) for name, value in profile.setting.items() if not _of_mpi(name)]
    return iter(sorted(pairs, key=lambda pair: find(pair[0]).stage))


def _of_mpi(name: str) -> bool:
    return name.startswith(mpi.PREFIX)


class _Nowhere:
    """A shell on no machine: a knob that must look at the machine to find its places is refused."""

    def __getattr__(self, name: str) -> object:
        raise UnavailableError(f"there is no machine to {name} on")


_NOWHERE = cast("Shell", _Nowhere())


# ---- A NetworkManager keyfile (nm-settings-keyfile(5))
# One connection an interface.


_BOTH = ("usecs", "frames", "usecs-irq", "frames-irq", "usecs-low", "frames-low", "usecs-high", "frames-high")
_KEYFILE_COALESCE = ("adaptive-rx", "adaptive-tx", "pkt-rate-low", "pkt-rate-high", "sample-interval")
_AS_NAMED = ("ring-rx", "ring-tx", "channels-rx", "channels-tx", "channels-combined")
_PAUSE = ("pause-autoneg", "pause-rx", "pause-tx")
_KEYFILE_FEATURES = {"rx-checksum": "rx", "tx-checksum": "tx"}
_NAMESPACE = uuid.UUID("6f1a2f3e-6a54-5be1-9a75-1d6f43f4b2a1")

KEYFILE_KEYS: dict[str, str] = {
    **{f"nic.{way}-{part}": f"coalesce-{way}-{part}" for way in ("rx", "tx") for part in _BOTH},
    **{f"nic.{name}": f"coalesce-{name}" for name in _KEYFILE_COALESCE},
    **{f"nic.{name}": name for name in (*_AS_NAMED, *_PAUSE)},
    **{knob.name: f"feature-{_KEYFILE_FEATURES.get(knob.name[4:], knob.name[4:])}" for knob in nic.OFFLOADS},
}


def networkmanager(profile: Profile) -> Exported:
    """Return `nearmetal-INTERFACE.nmconnection` for every interface."""
    lines = [
        f"{KEYFILE_KEYS[knob]}={_keyfile_value(knob, value)}"
        for knob, value in profile.setting.items()
        if knob in KEYFILE_KEYS
    ]
    mtu = profile.setting.get("nic.mtu")
    files = {}
    for interface in profile.interfaces if lines or mtu else ():
        identity = uuid.uuid5(_NAMESPACE, f"{profile.name}/{interface}")
        ethernet = f"\n[ethernet]\nmtu={mtu}\n" if mtu else ""
        ethtool = "\n[ethtool]\n" + "\n".join(lines) + "\n" if lines else ""
        files[f"nearmetal-{interface}.nmconnection"] = (
            f"{banner(profile)}[connection]\nid=nearmetal-{interface}\nuuid={identity}\ntype=ethernet\n"
            f"interface-name={interface}\n{ethernet}{ethtool}"
        )
    where = (
        "/etc/NetworkManager/system-connections, mode 600; where an interface has a connection already, copy the"
        " [ethtool] and [ethernet] parts into that one"
    )
    return Exported(
        files, where, left_out(profile, {**KEYFILE_KEYS, "nic.mtu": ""}, "NetworkManager has no setting for it")
    )


def _keyfile_value(knob: str, value: str) -> str:
    """Return a switch in the form of its setting: features and pause are booleans, coalescing takes numbers."""
    if knob.startswith("nic.adaptive-"):
        return {"on": "1", "off": "0"}[value]
    return {"on": "true", "off": "false"}.get(value, value)


# ---- systemd.link(5), systemd 250 or later
# One file an interface, applied by udev when the interface appears.


def _names() -> Iterator[tuple[str, str, str]]:
    """Yield (knob, key, suffix of the value)."""
    for short, long in (("rx", "Rx"), ("tx", "Tx")):
        yield f"adaptive-{short}", f"UseAdaptive{long}Coalesce", ""
        for knob, part in (("", ""), ("-irq", "Irq"), ("-low", "Low"), ("-high", "High")):
            yield f"{short}-usecs{knob}", f"{long}Coalesce{part}Sec", "us"
            yield f"{short}-frames{knob}", f"{long}MaxCoalesced{part}Frames", ""
        yield f"ring-{short}", f"{long}BufferSize", ""
        yield f"channels-{short}", f"{long}Channels", ""
        yield f"pause-{short}", f"{long}FlowControl", ""
    yield "pkt-rate-low", "CoalescePacketRateLow", ""
    yield "pkt-rate-high", "CoalescePacketRateHigh", ""
    yield "sample-interval", "CoalescePacketRateSampleIntervalSec", "s"
    yield "channels-combined", "CombinedChannels", ""
    yield "pause-autoneg", "AutoNegotiationFlowControl", ""
    yield "mtu", "MTUBytes", ""
    yield "txqueuelen", "TransmitQueueLength", ""
    yield "rx-checksum", "ReceiveChecksumOffload", ""
    yield "tx-checksum", "TransmitChecksumOffload", ""
    yield "tso", "TCPSegmentationOffload", ""
    yield "gso", "GenericSegmentationOffload", ""
    yield "gro", "GenericReceiveOffload", ""
    yield "rx-gro-hw", "GenericReceiveOffloadHardware", ""
    yield "lro", "LargeReceiveOffload", ""


KEYS = {f"nic.{knob}": (key, suffix) for knob, key, suffix in _names()}

# A file that matches replaces the distribution's default, so what that one says about names must be said again.
_KEEP = "NamePolicy=keep kernel database onboard slot path\nAlternativeNamesPolicy=database onboard slot path\n"


def systemd_link(profile: Profile) -> Exported:
    """Return `10-nearmetal-INTERFACE.link` for every interface."""
    lines = "".join(
        f"{KEYS[knob][0]}={_value(value)}{KEYS[knob][1]}\n" for knob, value in profile.setting.items() if knob in KEYS
    )
    head = banner(profile)
    files = {
        f"10-nearmetal-{interface}.link": f"{head}[Match]\nOriginalName={interface}\n\n[Link]\n{_KEEP}{lines}"
        for interface in profile.interfaces
        if lines
    }
    where = "/etc/systemd/network; then `udevadm control --reload` and `udevadm trigger --action=move` or a reboot"
    return Exported(files, where, left_out(profile, KEYS, "systemd.link has no key for it"))


def _value(value: str) -> str:
    return {"on": "yes", "off": "no"}.get(value, value)


# ---- A profile of tuned
# A directory with `tuned.conf`.


_TUNED_COALESCE = {knob.name for knob in interrupts.COALESCING}
_TUNED_FEATURES = {
    knob.name: {"rx-checksum": "rx", "tx-checksum": "tx"}.get(knob.name[4:], knob.name[4:]) for knob in nic.OFFLOADS
}
_LISTS = {
    "coalesce": {name: name.removeprefix("nic.") for name in _TUNED_COALESCE},
    "features": _TUNED_FEATURES,
    "ring": {"nic.ring-rx": "rx", "nic.ring-tx": "tx"},
    "channels": {"nic.channels-rx": "rx", "nic.channels-tx": "tx", "nic.channels-combined": "combined"},
    "pause": {"nic.pause-autoneg": "autoneg", "nic.pause-rx": "rx", "nic.pause-tx": "tx"},
}
_SINGLE = {"nic.mtu": "mtu", "nic.txqueuelen": "txqueuelen"}
_PROC_SYS = "/proc/sys/"


def tuned(profile: Profile) -> Exported:
    """Return `nearmetal-NAME/tuned.conf`."""
    found, missed = steps(profile)
    net = [
        f"{option}={' '.join(pairs)}"
        for option, names in _LISTS.items()
        if (pairs := [f"{names[k]} {v}" for k, v in profile.setting.items() if k in names])
    ]
    net += [f"{option}={profile.setting[knob]}" for knob, option in _SINGLE.items() if knob in profile.setting]
    sections = [f"[main]\nsummary=nearmetal {profile.name}, for {profile.workload_class} workloads\n"]
    if net and profile.interfaces:
        sections.append(f"[net]\ndevices={','.join(profile.interfaces)}\n" + "\n".join(net) + "\n")
    files = {step.access.path: step.value for _, _, step in found if step.access.path}
    sysctls = [f"{path.removeprefix(_PROC_SYS).replace('/', '.')}={v}" for path, v in files.items() if _is_sysctl(path)]
    if sysctls:
        sections.append("[sysctl]\n" + "\n".join(sysctls) + "\n")
    if others := [f"{path}={value}" for path, value in files.items() if not _is_sysctl(path)]:
        sections.append("[sysfs]\n" + "\n".join(others) + "\n")
    governor = profile.setting.get("host.cpu-governor")
    if governor:
        sections.append(f"[cpu]\ngovernor={governor}\n")
        missed.pop("host.cpu-governor", None)
    where = "/etc/tuned (or /etc/tuned/profiles); then `tuned-adm profile nearmetal-" + profile.name + "`"
    text = banner(profile) + "\n".join(sections)
    expressed = {k for names in _LISTS.values() for k in names} | _SINGLE.keys()
    commands = {name for name, _, step in found if not step.access.path} - expressed
    missed |= dict.fromkeys(sorted(commands), "tuned has no option for it")
    return Exported({f"nearmetal-{profile.name}/tuned.conf": text} if len(sections) > 1 else {}, where, missed)


def _is_sysctl(path: str) -> bool:
    return path.startswith(_PROC_SYS)


# ---- the writes of a profile as what carries them out
# Scripts, Slurm's prolog and epilog, a udev rule, an Ansible play.
#
# The play has builtin modules only: no collection has to be installed.


def ethtool_script(profile: Profile) -> Exported:
    """Return `nearmetal-NAME.sh`: sets everything, stops at the first refusal."""
    found, missed = steps(profile)
    lines = "".join(f"{_set(step, shlex.quote(step.value))}\n" for _, _, step in found)
    text = f"#!/bin/sh\n{banner(profile)}set -e\n{lines}"
    return Exported({f"nearmetal-{profile.name}.sh": text} if found else {}, "anywhere; run it as root", missed)


def slurm(profile: Profile) -> Exported:
    """Return a prolog that saves the present values and sets the profile, and an epilog that puts them back.

    The values of a job are kept in /run/nearmetal, one file a value, written before the first change; a node that
    crashes loses both the files and the settings. Both scripts end with status 0: Slurm drains a node whose prolog
    fails.
    """
    found, missed = steps(profile)
    numbered = list(enumerate(found))
    save = "".join(f'{_value_of(step)} > "$kept.new/{i}"\n' for i, (_, _, step) in numbered)
    change = "".join(
        f"{_set(step, shlex.quote(step.value))} || say 'could not set {name}'\n" for _, (name, _, step) in numbered
    )
    # Backward, then forward: modes reset values, and some modes forbid writing values. The second pass judges.
    back = "".join(f"{_from_file(i, step)}\n" for i, (_, _, step) in reversed(numbered))
    forward = "".join(
        f'[ "$({_value_of(step)})" = "$(cat "$kept/{i}")" ] || {_from_file(i, step)} || failed="$failed {name}"\n'
        for i, (name, _, step) in numbered
    )
    head = f"#!/bin/sh\n{banner(profile)}{_SLURM_HEAD}"
    prolog = f'{head}{VALUE_OF_FUNCTION}[ -d "$kept" ] && exit 0\nmkdir -p "$kept.new" || exit 0\n'
    prolog += save + f'sync\nmv "$kept.new" "$kept" || exit 0\n{change}exit 0\n'
    epilog = f'{head}{VALUE_OF_FUNCTION}[ -d "$kept" ] || exit 0\nfailed=\n{back}{forward}'
    epilog += 'if [ "$failed" ]; then say "could not put back:$failed"; else rm -r "$kept"; fi\nexit 0\n'
    files = {f"prolog-nearmetal-{profile.name}.sh": prolog, f"epilog-nearmetal-{profile.name}.sh": epilog}
    where = "the directories that Prolog= and Epilog= of slurm.conf name; nodes must be exclusive to one job"
    return Exported(files if found else {}, where, missed)


_OLD = '"$old"'
_SLURM_HEAD = """kept=/run/nearmetal/${SLURM_JOB_ID:?}
say() { logger -t nearmetal -- "$1" 2>/dev/null || echo "print $1"; }
"""


def _value_of(step: Step) -> str:
    return f"value_of {shlex.quote(step.access.pick.sed())} {shlex.join(step.access.show)}"


def _from_file(number: int, step: Step) -> str:
    return f'{{ old=$(cat "$kept/{number}"); [ -z "$old" ] || {_set(step, _OLD)}; }}'


def _set(step: Step, value: str) -> str:
    if step.access.path:
        return f"printf '%s\\n' {value} > {shlex.quote(step.access.path)}"
    return " ".join(value if word == "{}" else shlex.quote(word) for word in step.access.change)


# ---- a udev rule: ethtool is run and files are written when an interface appears

_PROGRAMS = {"ethtool": "/usr/sbin/ethtool", "ip": "/usr/sbin/ip"}


def udev(profile: Profile) -> Exported:
    """Return `90-nearmetal-NAME.rules`."""
    found, missed = steps(profile)
    rules = []
    for name, interface, step in found:
        if not interface:
            missed[name] = "it does not belong to an interface; use the tuned or ansible export"
            continue
        match = f'ACTION=="add|move", SUBSYSTEM=="net", KERNEL=="{interface}"'
        rules.append(f"{match}, {_deed(step, interface)}\n")
    where = (
        "/etc/udev/rules.d; then `udevadm control --reload` and `udevadm trigger --subsystem-match=net --action=move`"
    )
    return Exported(
        {f"90-nearmetal-{profile.name}.rules": banner(profile) + "".join(rules)} if rules else {}, where, missed
    )


def _deed(step: Step, interface: str) -> str:
    prefix = f"/sys/class/net/{interface}/"
    if step.access.path.startswith(prefix):
        return f'ATTR{{{step.access.path.removeprefix(prefix)}}}="{step.value}"'
    argv = step.access.change_argv(step.value)
    return f'RUN+="{" ".join((_PROGRAMS.get(argv[0], argv[0]), *argv[1:]))}"'


# ---- an Ansible play

# Writes only when the value differs, and says so, so that the play is idempotent and honest about changes.
_IF_IT_DIFFERS = '[ "$(cat "$1")" = "$2" ] || { printf "%s\\\\n" "$2" > "$1" && echo changed; }'


def ansible(profile: Profile) -> Exported:
    """Return `nearmetal-NAME.yml`."""
    found, missed = steps(profile)
    tasks = "".join(_task(name, interface, step) for name, interface, step in found)
    head = "  hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n"
    text = f"{banner(profile)}- name: nearmetal profile {profile.name}\n{head}{tasks}"
    where = f"anywhere; then `ansible-playbook nearmetal-{profile.name}.yml`"
    return Exported({f"nearmetal-{profile.name}.yml": text} if tasks else {}, where, missed)


def _task(name: str, interface: str, step: Step) -> str:
    title = " ".join(part for part in (name, interface, "to", step.value) if part)
    if step.access.path:
        argv = ["sh", "-c", _IF_IT_DIFFERS.replace("\\\\", "\\"), "set", step.access.path, step.value]
        changed = "result.stdout == 'changed'"
        ok = "result.rc != 0"
    else:
        argv = list(step.access.change_argv(step.value))
        changed = "result.rc == 0"
        # Older versions of ethtool end with status 80 when there was nothing to change.
        ok = "result.rc not in [0, 80]"
    # JSON strings are YAML strings.
    return (
        f"    - name: {json.dumps(title)}\n      ansible.builtin.command:\n        argv: {json.dumps(argv)}\n"
        f"      register: result\n      changed_when: {json.dumps(changed)}\n      failed_when: {json.dumps(ok)}\n"
    )


# ---- environment modules (Tcl, also read by Lmod) for the MPI knobs of a profile


def module(profile: Profile) -> Exported:
    """Return the module file `nearmetal/NAME`."""
    settings = {knob: value for knob, value in profile.setting.items() if knob.startswith(mpi.PREFIX)}
    given = mpi.mpi_environment(settings, profile.mpi_flavour)
    lines = "".join(f"setenv {name} {{{value}}}\n" for name, value in sorted(given.env.items()))
    if given.argv:
        lines += f"setenv NEARMETAL_MPIRUN_ARGS {{{' '.join(given.argv)}}}\n"
    text = (
        f"#%Module1.0\n{banner(profile)}module-whatis {{nearmetal {profile.name}: {profile.mpi_flavour} for"
        f" {profile.workload_class} workloads}}\n{lines}"
    )
    where = "a directory of MODULEPATH; then `module load nearmetal/" + profile.name + "`"
    if given.argv:
        where += " and `mpirun $NEARMETAL_MPIRUN_ARGS ...`"
    missed = left_out(profile, settings, "a module only sets the environment of MPI")
    return Exported({f"nearmetal/{profile.name}": text} if settings else {}, where, missed)


# ---- the table


EXPORTS: dict[str, Callable[[Profile], Exported]] = {
    "systemd-link": systemd_link,
    "networkmanager": networkmanager,
    "tuned": tuned,
    "udev": udev,
    "ansible": ansible,
    "ethtool": ethtool_script,
    "module": module,
    "slurm": slurm,
}


def export(profile: Profile, to: str) -> Exported:
    """Return a profile in the words of one tool; raise BadInputError when that tool can express none of it."""
    made = EXPORTS[to](profile)
    if not made.files:
        reasons = "; ".join(f"{knob}: {reason}" for knob, reason in made.left_out.items())
        raise BadInputError(f"{to} can express nothing of the profile {profile.name}: {reasons or 'it sets nothing'}")
    return made
