"""What a gate found, as plain records: built once, written by every `as_*` module."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from nearmetal.results.series import CellId  # noqa: TC001 (pydantic reads it, in the schema)
from nearmetal.stats.between import Standing

if TYPE_CHECKING:
    from nearmetal.results.shown import Shown
    from nearmetal.stats.between import Difference
    from nearmetal.stats.summary import Metric


class GateExit(IntEnum):
    """Exit codes of `nearmetal gate`: verdicts first, so that no error can be taken for one."""

    WITHIN = 0
    WORSE = 1
    UNDECIDED = 2
    UNAVAILABLE = 3
    USAGE = 64
    FAILED = 70
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: where it is and what it is."""

    root: str
    study_name: str
    study_sha256: str
    host_kind: str
    host_label: str
    created_utc: str
    blocks: int
    occasions: int


@dataclass(frozen=True, slots=True)
class ConditionChange:
    """A fact, or a line of the study, that differs between the runs; `within` names the path, '' for the machine."""

    fact: str
    within: str
    base: str
    run: str

    def __str__(self) -> str:
        place = f" ({self.within})" if self.within else ""
        return f"{self.fact}{place}: {self.base} -> {self.run}"


@dataclass(frozen=True, slots=True)
class GateCell:
    """One cell: levels in the shown unit (None without figures), how they differ, and where that leaves the run.

    `first` is what the recorded blocks said where fresh ones decided. `control` marks a cell that the change cannot
    have touched: it states a floor for the others and is not judged. `counted` says of how many figures each side is.
    """

    cell: CellId
    shown: Shown
    base_level: float | None
    run_level: float | None
    found: Difference | None
    first: Difference | None
    counted: str
    standing: Standing
    reason: str
    control: bool


@dataclass(frozen=True, slots=True)
class Remeasured:
    """What came of the fresh blocks: the run directory that holds them, or why there are none."""

    root: str
    blocks: int
    cells: tuple[CellId, ...]
    why_not: str


@dataclass(frozen=True, slots=True)
class Gate:
    """The whole finding; `changes` lists what differs between the runs besides their figures."""

    run: Side
    base: Side
    metric: Metric
    margin: float
    alpha: float
    cells: tuple[GateCell, ...]
    changes: tuple[ConditionChange, ...]
    mixed: tuple[str, ...]
    remeasured: Remeasured | None

    @property
    def judged(self) -> tuple[GateCell, ...]:
        """Return the cells that the verdict rests on."""
        return tuple(one for one in self.cells if not one.control)

    @property
    def verdict(self) -> Standing:
        """Return `worse` when one cell is, `within` when every cell is shown to be, else `undecided`."""
        found = {one.standing for one in self.judged}
        if Standing.WORSE in found:
            return Standing.WORSE
        return Standing.WITHIN if found and all(one.passes for one in found) else Standing.UNDECIDED

    @property
    def exit_code(self) -> GateExit:
        """Return the exit code that says the verdict."""
        return {Standing.WITHIN: GateExit.WITHIN, Standing.WORSE: GateExit.WORSE}.get(self.verdict, GateExit.UNDECIDED)

    def count(self, standing: Standing) -> int:
        """Return how many judged cells stand so."""
        return sum(one.standing is standing for one in self.judged)

    @property
    def floor(self) -> float | None:
        """Return the largest difference seen between runs of one state, None where none was measured."""
        known = [one.found.floor for one in self.judged if one.found and one.found.floor is not None]
        return max(known, default=None)
