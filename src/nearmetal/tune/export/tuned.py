"""A profile of tuned: a directory with `tuned.conf`."""

from nearmetal.knobs import coalesce, nic
from nearmetal.knobs.knob import Step
from nearmetal.tune.export.common import Exported, banner, caution, steps
from nearmetal.tune.profile import Profile

# One parameter that tuned does not know makes it refuse the whole list (plugin_net.py: _check_parameters).
_COALESCE = {knob.name for knob in coalesce.KNOBS if not knob.name.startswith("nic.cqe-mode-")}
_FEATURES = {
    knob.name: {"rx-checksum": "rx", "tx-checksum": "tx"}.get(knob.name[4:], knob.name[4:]) for knob in nic.OFFLOADS
}
_LISTS = {
    "coalesce": {name: name.removeprefix("nic.") for name in _COALESCE},
    "features": _FEATURES,
    "ring": {"nic.ring-rx": "rx", "nic.ring-tx": "tx"},
    "channels": {"nic.channels-rx": "rx", "nic.channels-tx": "tx", "nic.channels-combined": "combined"},
    "pause": {"nic.pause-autoneg": "autoneg", "nic.pause-rx": "rx", "nic.pause-tx": "tx"},
}
_SINGLE = {"nic.mtu": "mtu", "nic.txqueuelen": "txqueuelen"}
_PROC_SYS = "/proc/sys/"


def export(profile: Profile) -> Exported:
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
    dotted = {name: f"tuned takes the dot of {one} for a slash" for name, one, step in found if _has_dot(step)}
    files = {
        step.access.path: step.value
        for name, _, step in found
        if step.access.path and name not in _SINGLE and not _has_dot(step)
    }
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
    text = banner(profile) + caution(profile) + "\n".join(sections)
    expressed = {k for names in _LISTS.values() for k in names} | _SINGLE.keys()
    commands = {name for name, _, step in found if not step.access.path} - expressed
    missed |= dict.fromkeys(sorted(commands), "tuned has no option for it") | dotted
    return Exported({f"nearmetal-{profile.name}/tuned.conf": text} if len(sections) > 1 else {}, where, missed)


def _has_dot(step: Step) -> bool:
    """Return whether tuned would look for a setting elsewhere (plugin_sysctl.py, _get_sysctl_path)."""
    return _is_sysctl(step.access.path) and "." in step.access.path


def _is_sysctl(path: str) -> bool:
    return path.startswith(_PROC_SYS)
