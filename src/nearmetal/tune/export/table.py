"""The table of exports: the word on the command line, and what makes the files."""

from collections.abc import Callable
from dataclasses import replace

from nearmetal.errors import BadInputError
from nearmetal.tune.export import module, networkmanager, scripts, systemd_link, tuned
from nearmetal.tune.export.common import Exported
from nearmetal.tune.profile import Profile

EXPORTS: dict[str, Callable[[Profile], Exported]] = {
    "systemd-link": systemd_link.export,
    "networkmanager": networkmanager.export,
    "tuned": tuned.export,
    "udev": scripts.udev,
    "ansible": scripts.ansible,
    "ethtool": scripts.ethtool_script,
    "module": module.export,
    "slurm": scripts.slurm,
}


def export(profile: Profile, to: str) -> Exported:
    """Return a profile in the words of one tool; raise BadInputError when that tool can express none of it."""
    made = EXPORTS[to](profile)
    if not profile.interfaces:
        nowhere = {knob: "the profile names no interface" for knob in profile.setting if knob.startswith("nic.")}
        made = replace(made, left_out=nowhere | made.left_out)
    if not made.files:
        reasons = "; ".join(f"{knob}: {reason}" for knob, reason in made.left_out.items())
        raise BadInputError(
            f"{to} cannot express anything in the profile {profile.name}: {reasons or 'it sets nothing'}"
        )
    return made
