"""A udev rule: ethtool is run and files are written when an interface appears."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.tune.export.common import Exported, banner, steps

if TYPE_CHECKING:
    from nearmetal.knobs.knob import Step
    from nearmetal.tune.profile import Profile

_PROGRAMS = {"ethtool": "/usr/sbin/ethtool", "ip": "/usr/sbin/ip"}


def export(profile: Profile) -> Exported:
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
