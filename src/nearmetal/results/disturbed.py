"""Launches that other programs or other guests of the hypervisor took processors from, told from their counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.study.facts import OTHERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.store.rundir import TrialRecord

_CPU, _STEAL = "cpu.", "cpu.steal"
BUSY_SHARE = 0.10
"""Share of a trial's machines that other programs may use."""
STOLEN_SHARE = 0.02
"""Share that the hypervisor may give to others."""
_FEWEST_TICKS = 40
"""Shorter launches are not judged: a tick of 10 ms would be too much of them."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Shares of the processors' time during a launch, from 0 to 1; `names` are the other programs, the busiest first.

    `others` is a lower bound: processes that came or went during the launch are not in it.
    """

    others: float
    stolen: float
    names: tuple[str, ...]

    @property
    def why(self) -> str:
        """Return what took the processors; empty where it is within the limits."""
        found = []
        if self.others > BUSY_SHARE:
            found.append(f"{', '.join(self.names)} used {self.others:.0%} of the processors")
        if self.stolen > STOLEN_SHARE:
            found.append(f"the hypervisor gave {self.stolen:.0%} of the processors' time to others")
        return " and ".join(found)


def disturbed(counters: Mapping[str, int]) -> Disturbed:
    """Return what a trial's counters say; zeros where they say nothing, or the launch was too short to tell."""
    total = sum(count for name, count in counters.items() if name.startswith(_CPU))
    others = {name.removeprefix(OTHERS): ticks for name, ticks in counters.items() if name.startswith(OTHERS)}
    if total < _FEWEST_TICKS:
        return Disturbed(0.0, 0.0, ())
    names = tuple(sorted(others, key=lambda name: (-others[name], name)))
    return Disturbed(min(1.0, sum(others.values()) / total), counters.get(_STEAL, 0) / total, names)


def disturbed_launches(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return a sentence on how many of a run's launches were disturbed, and how the worst was; none where none was."""
    found = [disturbed(record.outcome.counters) for record in records]
    busy = [one for one in found if one.why]
    if not busy:
        return ()
    worst = max(busy, key=lambda one: one.others + one.stolen)
    return (f"{len(busy)} of {len(found)} launches ran on a busy machine; in the worst of them {worst.why}",)
