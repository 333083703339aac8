"""The writes of a profile as what carries them out: scripts, Slurm's prolog and epilog, a udev rule, an Ansible play.

The play has builtin modules only: no collection has to be installed.
"""

import json
import shlex
from collections.abc import Iterable
from dataclasses import replace

from nearmetal.knobs.access import NOT_LISTED, Access
from nearmetal.knobs.coalesce import OF_A_QUEUE
from nearmetal.knobs.cpu import MIN_FREE
from nearmetal.knobs.knob import Step
from nearmetal.knobs.lasting import script_of_losses
from nearmetal.knobs.nic import MTU, OFFLOADS, PARTS
from nearmetal.knobs.undo import VALUE_OF_FUNCTION
from nearmetal.tune.export.common import Exported, access_of, banner, caution, disturbed, disturbed_knobs, resets, steps
from nearmetal.tune.profile import Profile


def ethtool_script(profile: Profile) -> Exported:
    """Return `nearmetal-NAME.sh`: sets everything, stops at the first refusal."""
    found, missed = steps(profile)
    lines = "".join(f"{step.access.script_sets(shlex.quote(step.value))}\n" for _, _, step in found)
    save, keep = _kept(profile, profile.setting, profile.interfaces)
    text = f"#!/bin/sh\n{banner(profile)}set -e\n{VALUE_OF_FUNCTION if save else ''}{save}{lines}{keep}"
    return Exported({f"nearmetal-{profile.name}.sh": text} if found else {}, "anywhere; run it as root", missed)


def slurm(profile: Profile) -> Exported:
    """Return a prolog that saves the present values and sets the profile, and an epilog that puts them back.

    The values of a job are kept in /run/nearmetal, one file a value, written before the first change; a node that
    crashes loses both the files and the settings. Both scripts end with status 0: Slurm drains a node whose prolog
    fails.
    """
    found, missed = steps(profile)
    # What the writes change besides is saved and put back, too, after what changes it.
    numbered = list(enumerate([*found, *((access.key, "", Step(access, "")) for access in disturbed(profile))]))
    save = "".join(f'{step.access.script_reads()} > "$kept.new/{i}"\n' for i, (_, _, step) in numbered)
    save += "".join(
        f'{replace(step.access, pick=step.access.default).script_reads()} > "$kept.new/{i}.default"\n'
        for i, (_, _, step) in numbered
        if step.access.default
    )
    change = "".join(f"{_unless_lost(*one)} || say 'could not set {one[0]}'\n" for one in found)
    # Backward, then forward: modes reset values, and some modes forbid writing values. The second pass judges.
    # But what is kept free follows the use of large pages until it is written, as in a roll-back.
    waits = access_of(MIN_FREE, "").key
    back = "".join(f"{_from_file(i, step)}\n" for i, (name, _, step) in reversed(numbered) if name != waits)
    forward = "".join(
        f'[ "$({step.access.script_reads()})" = "$(cat "$kept/{i}")" ] || {_from_file(i, step)} '
        f'|| failed="$failed {name}"\n'
        for i, (name, _, step) in numbered
    )
    found_before, keep = _kept(profile, profile.setting, profile.interfaces)
    head = f"#!/bin/sh\n{banner(profile)}{_SLURM_HEAD}"
    prolog = f'{head}{VALUE_OF_FUNCTION}[ -d "$kept" ] && exit 0\nmkdir -p "$kept.new" || exit 0\n'
    parts = [_largest_frames(profile), _single_queues(profile), _steering(profile)]
    prolog += save + "".join(saves for saves, _ in parts)
    prolog += f'sync\nmv "$kept.new" "$kept" || exit 0\n{found_before}{change}{keep}exit 0\n'
    epilog = f'{head}{VALUE_OF_FUNCTION}[ -d "$kept" ] || exit 0\nfailed=\n{back}{forward}'
    epilog += "".join(puts_back for _, puts_back in parts)
    epilog += 'if [ "$failed" ]; then say "could not put back:$failed"; else rm -r "$kept"; fi\nexit 0\n'
    files = {f"prolog-nearmetal-{profile.name}.sh": prolog, f"epilog-nearmetal-{profile.name}.sh": epilog}
    where = "the directories that Prolog= and Epilog= of slurm.conf name; nodes must be exclusive to one job"
    return Exported(files if found else {}, where, missed)


def _unless_lost(name: str, interface: str, step: Step) -> str:
    """Return what sets a value, unless an epilog could not restore what else that would change."""
    sets = step.access.script_sets(shlex.quote(step.value))
    if not (losses := script_of_losses(interface, name, step.value)):
        return sets
    spared = f'say "{name} {step.value} on {interface} was not set, it would take for good: $(echo $lost)"'
    return f'if lost=$({losses}); [ "$lost" ]; then {spared}; else {sets}; fi'


# With a port's largest frame the kernel lowers that of what is built on it, and leaves it so. That of a bond becomes
# that of its ports. To each it sets the largest packet of IPv6, whatever that was.
_SAVE_FRAMES = """for link in {0} /sys/class/net/{0}/upper_* /sys/class/net/{0}/upper_*/upper_* \\
    /sys/class/net/{0}/lower_*; do
    name=${{link##*/upper_}} name=${{name##*/lower_}}
    frames=/sys/class/net/$name/mtu packets=/proc/sys/net/ipv6/conf/$name/mtu
    [ ! -e "$frames" ] || cat "$frames" > "$kept.new/frames.$name"
    [ ! -e "$packets" ] || cat "$packets" > "$kept.new/packets.$name"
done
"""
_PUT_FRAMES_BACK = """for saved in "$kept"/frames.* "$kept"/packets.*; do
    case $saved in
    "$kept"/frames.*) name=${saved#"$kept"/frames.} what=nic.mtu file=/sys/class/net/$name/mtu ;;
    *) name=${saved#"$kept"/packets.} what=nic.ipv6-mtu file=/proc/sys/net/ipv6/conf/$name/mtu ;;
    esac
    [ ! -e "$saved" ] || [ ! -e "$file" ] || [ "$(cat "$file")" = "$(cat "$saved")" ] || cat "$saved" > "$file" ||
        failed="$failed $what of $name"
done
"""


def _largest_frames(profile: Profile) -> tuple[str, str]:
    """Return the lines that save the largest frames and packets of the interfaces and of what is built on them.

    The second part restores them.
    """
    if MTU not in profile.setting:
        return "", ""
    return "".join(_SAVE_FRAMES.format(shlex.quote(one)) for one in profile.interfaces), _PUT_FRAMES_BACK


# A driver may give what is written for the whole device to every queue. One line is one value of one queue: its mask,
# the parameter, the value; not what a queue adapts by itself.
_QUEUES_OF = r"""queues_of() {
    ethtool -Q "$1" --show-coalesce 2> /dev/null | awk '
        function tell(name, value) { if (value != "n/a") print mask, name, value }
        /^Queue: / { mask = sprintf("0x%x", 2 ^ ($2 % 4)); for (i = 4; i <= $2; i += 4) mask = mask "0" }
        mask && /^Adaptive RX:/ { on["rx"] = $3; on["tx"] = $5; tell("adaptive-rx", $3); tell("adaptive-tx", $5) }
        mask && /^[rt]x-(usecs|frames):/ { sub(":", "", $1); if (on[substr($1, 1, 2)] != "on") tell($1, $2) }'
}
"""
_SAVE_QUEUES = 'queues_of {0} > "$kept.new/queues."{0}\n'
_PUT_QUEUES_BACK = """for pass in 1 2; do
    queues_of {0} | grep -vxF -f - -- "$kept/queues."{0} | while read -r mask name value; do
        ethtool -Q {0} queue_mask "$mask" --coalesce "$name" "$value" < /dev/null 2> /dev/null
    done
done
[ "$(queues_of {0})" = "$(cat "$kept/queues."{0})" ] || failed="$failed single queues of {0}"
"""


def _single_queues(profile: Profile) -> tuple[str, str]:
    """Return the lines that save what single queues have of moderation, and those that restore it."""
    whole = {f"nic.{parameter}" for parameter in OF_A_QUEUE}
    changed = {*profile.setting, *(name for knob in profile.setting for name in resets(knob))}
    names = [shlex.quote(one) for one in profile.interfaces] if whole & changed else []
    save, back = ("".join(text.format(name) for name in names) for text in (_SAVE_QUEUES, _PUT_QUEUES_BACK))
    return (_QUEUES_OF + save, _QUEUES_OF + back) if names else ("", "")


# What belongs to a queue goes with it. One line is a file and what it held.
_SAVE_STEERING = """for irq in /sys/class/net/{0}/device/msi_irqs/* /sys/class/net/{0}/device/../msi_irqs/*; do
    grep -sH '' "/proc/irq/${{irq##*/}}/smp_affinity_list"
done > "$kept.new/steering."{0}
grep -sH '' /sys/class/net/{0}/queues/*/[rx]ps_* >> "$kept.new/steering."{0}
"""
_PUT_STEERING_BACK = """while IFS=: read -r file value; do
    [ ! -e "$file" ] || [ "$(cat "$file")" = "$value" ] || echo "$value" > "$file" || failed="$failed $file"
done < "$kept/steering."{0}
"""


def _steering(profile: Profile) -> tuple[str, str]:
    """Return the lines that save which processors queues and interrupts are led to, and those that restore it."""
    led = {"nic.rps-cpus", "nic.xps-cpus", "nic.irq-affinity"} & {*disturbed_knobs(profile)}
    names = [shlex.quote(one) for one in profile.interfaces] if led else []
    save, back = ("".join(text.format(name) for name in names) for text in (_SAVE_STEERING, _PUT_STEERING_BACK))
    return save, back


def _kept(profile: Profile, knobs: Iterable[str], interfaces: Iterable[str]) -> tuple[str, str]:
    """Return the lines that save what some driver resets with knobs, and those that write it again, as `apply` does.

    Not what the profile names, nor usecs of a direction that was adaptive: they were the driver's.
    """
    save, again = [], []
    names = list(dict.fromkeys(name for knob in knobs for name in resets(knob)))
    for number, (interface, name) in enumerate((one, name) for one in interfaces for name in names):
        access, was = access_of(name, interface), f"was_{number}"
        save.append(f"{was}=$({access.script_reads()})\n")
        if name in profile.setting:
            continue
        driven = f"nic.adaptive-{name[4:6]}" if name.endswith("-usecs") else ""
        mode = f"was_{number - names.index(name) + names.index(driven)}" if driven in names else ""
        unless = f'[ "${mode}" = on ] || ' if mode else ""
        put = access.script_sets(f'"${was}"')
        again.append(
            f'{unless}case "${was}" in "" | {NOT_LISTED} | "$({access.script_reads()})") ;; *) {put} ;; esac\n'
        )
    return "".join(save), "".join(again)


_OLD = '"$old"'
_SLURM_HEAD = """kept=/run/nearmetal/${SLURM_JOB_ID:?}
say() { logger -t nearmetal -- "$1" 2>/dev/null || echo "print $1"; }
"""


def _from_file(number: int, step: Step) -> str:
    sets = step.access.script_puts_back(_OLD, f'[ -s "$kept/{number}.default" ]')
    put_back = f'case $old in "" | {NOT_LISTED}) ;; *) {sets} ;; esac'
    return f'{{ old=$(cat "$kept/{number}"); {put_back}; }}'


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
        rules.append(f"{match}, {_assignment(step, interface)}\n")
    where = (
        "/etc/udev/rules.d; then `udevadm control --reload` and `udevadm trigger --subsystem-match=net --action=move`"
    )
    return Exported(
        {f"90-nearmetal-{profile.name}.rules": banner(profile) + caution(profile) + "".join(rules)} if rules else {},
        where,
        missed,
    )


def _assignment(step: Step, interface: str) -> str:
    prefix = f"/sys/class/net/{interface}/"
    if step.access.path.startswith(prefix):
        return f'ATTR{{{step.access.path.removeprefix(prefix)}}}="{step.value}"'
    if step.access.path:  # after the programs above it, as an assignment of SYSCTL would not be
        return f"RUN+=\"/bin/sh -c 'echo {step.value} > {step.access.path}'\""
    argv = step.access.change_argv(step.value)
    return f'RUN+="{" ".join((_PROGRAMS.get(argv[0], argv[0]), *argv[1:]))}"'


# ---- an Ansible play

# Writes only when the value differs, and reports whether that changed it, so that the play is idempotent and honest
# about changes. Older versions of ethtool end with status 80 when there was nothing to change.
_IF_IT_DIFFERS = """{value_of}was=$({now})
[ "$was" = {value} ] || {{ {change} || [ $? -eq 80 ]; }} >&2 || exit 1
[ "$was" = "$({now})" ] || echo changed
"""


def ansible(profile: Profile) -> Exported:
    """Return `nearmetal-NAME.yml`."""
    found, missed = steps(profile)
    tasks = "".join(_task(profile, name, interface, step) for name, interface, step in found)
    head = "  hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n"
    text = f"{banner(profile)}- name: nearmetal profile {profile.name}\n{head}{tasks}"
    where = f"anywhere; then `ansible-playbook nearmetal-{profile.name}.yml`"
    return Exported({f"nearmetal-{profile.name}.yml": text} if tasks else {}, where, missed)


def _task(profile: Profile, name: str, interface: str, step: Step) -> str:
    title = " ".join(part for part in (name, interface, "to", step.value) if part)
    value, now = shlex.quote(step.value), _shown_by(name, interface, step).script_reads()
    change = step.access.script_sets(value)
    save, keep = _kept(profile, [name], [interface])
    script = _IF_IT_DIFFERS.format(value_of=VALUE_OF_FUNCTION + save, now=now, value=value, change=change) + keep
    # JSON strings are YAML strings.
    return (
        f"    - name: {json.dumps(title)}\n      ansible.builtin.command:\n"
        f"        argv: {json.dumps(['sh', '-c', script])}\n"
        "      register: result\n      changed_when: \"result.stdout == 'changed'\"\n"
    )


def _shown_by(name: str, interface: str, step: Step) -> Access:
    """Return what shows all that a write sets: of a word for features, which reads on with some of them, each."""
    parts = f"{name}{PARTS}"
    return access_of(parts, interface) if parts in {knob.name for knob in OFFLOADS} else step.access
