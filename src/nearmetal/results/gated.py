"""What a gate found, as plain records: built once, written by every `as_*` module."""

from dataclasses import dataclass
from enum import IntEnum

from nearmetal.errors import ExitCode
from nearmetal.results.series import CellId
from nearmetal.results.shown import DisplayScale
from nearmetal.results.stopping import Unfinished
from nearmetal.stats.between import Difference, Standing
from nearmetal.stats.summary import Metric
from nearmetal.store.rundir import RunInfo


class GateExit(IntEnum):
    """Exit codes of `nearmetal gate`: verdicts first, so that no error can be taken for one."""

    WITHIN = 0
    WORSE = 1
    UNDECIDED = 2
    UNAVAILABLE = ExitCode.UNAVAILABLE
    USAGE = 64
    FAILED = 70
    INTERRUPTED = ExitCode.INTERRUPTED


@dataclass(frozen=True, slots=True)
class GatedRun(RunInfo):
    """One of the two runs: what it is and where it is; `unfinished` says what it lacks, None where nothing is.

    `cautions` are sentences on figures that are a timer's, on packets that may not be its own, and on busy machines.
    """

    root: str
    blocks: int
    occasions: int
    unfinished: Unfinished | None
    cautions: tuple[str, ...]


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

    `first` is the finding of the recorded blocks where fresh ones decided. `control` marks a cell that the change
    cannot have touched: it states a floor for the others and is not judged. `part` marks a part of a program, or a
    single stream of several, whose whole is another cell: it is only named, for a user waits for the whole. `sized`
    says that its operation is of messages of some size, of which 0 B is one.
    """

    cell: CellId
    metric: Metric
    shown: DisplayScale
    base_level: float | None
    run_level: float | None
    found: Difference | None
    first: Difference | None
    standing: Standing
    reason: str
    control: bool
    part: bool
    sized: bool

    @property
    def name(self) -> str:
        """Return the name of its cell."""
        return self.cell.name(sized=self.sized)


@dataclass(frozen=True, slots=True)
class Remeasured:
    """What came of the fresh blocks: the run directory that holds them, or why there are none; `cautions` as above."""

    root: str
    blocks: int
    cells: tuple[CellId, ...]
    why_not: str
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gate:
    """The whole finding; `changes` lists what differs between the runs besides their figures.

    `cells` are judged by `metric`, the headline; `others`, by a further figure each, count only where they are worse.
    `not_in_base` are cells that the run alone has a figure of: they are only named.
    """

    run: GatedRun
    base: GatedRun
    metric: Metric
    margin: float
    tail_margin: float
    cells: tuple[GateCell, ...]
    others: tuple[GateCell, ...]
    not_in_base: tuple[CellId, ...]
    changes: tuple[ConditionChange, ...]
    mixed: tuple[str, ...]
    remeasured: Remeasured | None

    @property
    def judged(self) -> tuple[GateCell, ...]:
        """Return the cells that the verdict rests on."""
        return tuple(one for one in self.cells if not (one.control or one.part))

    @property
    def parts(self) -> tuple[GateCell, ...]:
        """Return parts of programs and sums, by the headline: named behind the verdict, which does not count them."""
        return tuple(one for one in self.cells if one.part and not one.control)

    @property
    def against(self) -> tuple[GateCell, ...]:
        """Return the cells that a figure other than the headline shows to be worse, and the headline does not."""
        known = {one.cell for one in self.judged if one.standing is Standing.WORSE}
        worse = (one for one in self.others if one.standing is Standing.WORSE and not one.part)
        return tuple(one for one in worse if one.cell not in known)

    @property
    def cut_short(self) -> bool:
        """Return whether one of the runs lacks trials that its study asks for at least: it passes nothing."""
        return any(side.unfinished is not None and side.unfinished.short for side in (self.run, self.base))

    @property
    def verdict(self) -> Standing:
        """Return `worse` when a cell is by any figure, `within` when every cell is by the headline, or `undecided`.

        Nothing is within where a run was cut short.
        """
        found = {one.standing for one in (*self.judged, *self.against)}
        if Standing.WORSE in found:
            return Standing.WORSE
        passes = found and all(one.passes for one in found) and not self.cut_short
        return Standing.WITHIN if passes else Standing.UNDECIDED

    @property
    def exit_code(self) -> GateExit:
        """Return the exit code that says the verdict."""
        return {Standing.WITHIN: GateExit.WITHIN, Standing.WORSE: GateExit.WORSE}.get(self.verdict, GateExit.UNDECIDED)

    def title(self, one: GateCell) -> str:
        """Return the name of a cell, with its figure where that is not the headline."""
        return one.name if one.metric is self.metric else f"{one.name}, {one.metric}"

    def count(self, standing: Standing, metric: Metric | None = None) -> int:
        """Return how many judged cells stand so by a figure, the headline if left out."""
        others = tuple(one for one in self.others if not one.part)
        of = others if metric not in {None, self.metric} else self.judged
        return sum(one.standing is standing and one.metric is (metric or self.metric) for one in of)

    @property
    def floor(self) -> float | None:
        """Return the largest difference seen between runs of one state, None where none was measured."""
        known = [one.found.floor for one in self.judged if one.found and one.found.floor is not None]
        return max(known, default=None)
