"""What all exports share: what an export is, and a profile as writes on a machine that is not here."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from nearmetal.errors import UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.knobs import drivers, mpi
from nearmetal.knobs.access import Access
from nearmetal.knobs.knob import Step, Target, canon
from nearmetal.knobs.table import find
from nearmetal.tune.profile import Profile
from nearmetal.units import as_percent


@dataclass(frozen=True, slots=True)
class Exported:
    """Files by name, where each belongs, and the knobs that this tool cannot express, with the reason."""

    files: dict[str, str]
    where: str
    left_out: dict[str, str]


def banner(profile: Profile) -> str:
    """Return the head of a file: what it is, and the evidence."""
    lines = [f"Made by nearmetal from the profile {profile.name} ({profile.workload_class})."]
    if evidence := profile.evidence:
        lines.append(
            f"Measured on fresh trials: {evidence.ratio:.3f} of the cost before"
            f" ({evidence.low:.3f} to {evidence.high:.3f} at {as_percent(evidence.level)})."
        )
        if evidence.label:
            lines.append(f"Measured on: {evidence.label}.")
    # Printable text is one line everywhere, but for a backslash before its end, after which Tcl continues.
    return "".join(f"# {line.replace(chr(92), '/')}\n" for line in lines)


def caution(profile: Profile) -> str:
    """Return comment lines about what drivers reset besides the profile and this tool does not write again, or ''."""
    lines = []
    for name in profile.setting:
        drivers_of = [driver for driver in drivers.RESETS if drivers.resets(driver, name)]
        reset = {other for driver in drivers_of for other in drivers.resets(driver, name)} - profile.setting.keys()
        if reset:
            lines.append(
                f"# With {name}, {' and '.join(drivers_of)} set to their own defaults: {', '.join(sorted(reset))}.\n"
                "# Trials and `nearmetal apply` write these again as they were; what reads this file does not.\n"
            )
    return "".join(lines)


def resets(knob: str) -> tuple[str, ...]:
    """Return the knobs that some driver resets when this one is written."""
    return tuple(dict.fromkeys(other for driver in drivers.RESETS for other in drivers.resets(driver, knob)))


def access_of(knob: str, interface: str) -> Access:
    """Return how a knob with one place, the same on every machine, is reached on an interface."""
    (access,) = find(knob).accesses(_NOWHERE, Target("", interface))
    return access


def disturbed_knobs(profile: Profile) -> list[str]:
    """Return the knobs that some driver changes with the writes although the profile does not name them."""
    named = [find(name) for name in dict.fromkeys(name for name, _, _ in steps(profile)[0])]
    others = [other for knob in named for other in knob.disturbs]
    others += [other for knob in named for other in resets(knob.name)]
    others += [
        other for knob in named for of_driver in drivers.DISTURBS.values() for other in of_driver.get(knob.name, ())
    ]
    return [name for name in dict.fromkeys(others) if name not in profile.setting]


def disturbed(profile: Profile) -> list[Access]:
    """Return their values, as far as these have the same places on every machine."""
    found: list[Access] = []
    for knob in map(find, disturbed_knobs(profile)):
        with suppress(UnavailableError):
            for interface in profile.interfaces if knob.scope == "interface" else ("",):
                found += knob.accesses(_NOWHERE, Target("", interface))
    return found


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
        interfaces = profile.interfaces if knob.scope == "interface" else ("",)
        try:
            for interface in interfaces:
                target = Target("", interface)
                found += [(name, interface, step) for step in knob.steps(_NOWHERE, target, canon(knob, value))]
        except UnavailableError:
            missed[name] = "its files differ between machines; `nearmetal apply` finds them"
    missed |= {name: "it belongs to a launch, see the module export" for name in profile.setting if _of_mpi(name)}
    return found, missed


def _in_stage_order(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the knobs as `apply` orders them, as far as that can be told without the machine.

    What some driver resets comes after what resets it, what is said of one queue after what is said of all, and zeros
    last among these: usecs 0 is refused while frames is 0.
    """
    pairs = [(name, value) for name, value in profile.setting.items() if not _of_mpi(name)]
    return iter(sorted(pairs, key=lambda pair: (_stage(pair[0]), drivers.queue_of(pair[0]), pair[1] == "0")))


def _stage(name: str) -> int:
    return -1 if any(name in resets for resets in drivers.RESETS.values()) else find(name).stage


def _of_mpi(name: str) -> bool:
    return name.startswith(mpi.PREFIX)


class _NoMachineShell:
    """A shell on no machine: a knob that must look at the machine to find its places is refused."""

    def __getattr__(self, name: str) -> object:
        raise UnavailableError(f"there is no machine to {name} on")


_NOWHERE = cast("Shell", _NoMachineShell())
