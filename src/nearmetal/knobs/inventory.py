"""Every knob of a host: its value, its range, and why it is not there where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.knobs import drivers, mpi
from nearmetal.knobs.guards import identify
from nearmetal.knobs.knob import Target, targets_of
from nearmetal.knobs.table import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.access import Reading
    from nearmetal.knobs.knob import Knob


@dataclass(frozen=True, slots=True)
class Row:
    """One knob on one target; `value` is None where `reason` says why, `doubt` warns of empty read-backs."""

    family: str
    knob: str
    target: str
    value: str | None
    takes: str
    reason: str
    doubt: str
    about: str


def rows(shell: Shell, interfaces: Sequence[Target]) -> Iterator[Row]:
    """Yield every knob on every target, in the order of the table; MPI knobs last, without a target."""
    driver = {target: identify(shell, target).driver for target in interfaces}
    for family, knobs in FAMILIES.items():
        for knob in knobs:
            for target in targets_of(knob, [*interfaces, Target("")]):
                reading = knob.read(shell, target)
                own = driver.get(target, "")
                takes = _takes(knob, reading, own)
                doubt = drivers.lie(own, knob.name) if reading.value is not None else ""
                yield Row(family, knob.name, str(target), reading.value, takes, reading.reason, doubt, knob.about)
    for one in mpi.KNOBS:
        offered = ", ".join(one.renders)
        yield Row(
            "MPI", one.name, "launch", None, one.kind.about(), f"set for each launch; in {offered}", "", one.about
        )


def _takes(knob: Knob, reading: Reading, driver: str) -> str:
    """Return what the machine takes, else the driver, else what the knob takes anywhere."""
    if reading.choices:
        return " | ".join(reading.choices)
    if reading.highest is not None:
        return f"{reading.lowest or 0} to {reading.highest}"
    return drivers.range_about(driver, knob.name) or knob.kind.about()
