"""What a history keeps of a run, and what it shows of many, as plain records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nearmetal.results.series import CellId, CellSeries
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.changes import Change
from nearmetal.stats.compare import LevelEstimate
from nearmetal.stats.summary import Metric
from nearmetal.store.rundir import RunInfo


class Origin(NamedTuple):
    """What runs have in common that are shown one after another."""

    study_name: str
    host_kind: str

    def __str__(self) -> str:
        return f"{self.study_name} on {self.host_kind}"


@dataclass(frozen=True, slots=True)
class RunEntry(RunInfo):
    """One run: `run_id` is the same for the same run wherever its directory lies and however far it got.

    It is another one after the first trial was lost and measured again.
    """

    run_id: str
    root: str
    trials: int
    blocks: int

    @property
    def origin(self) -> Origin:
        """Return its study and kind of host."""
        return Origin(self.study_name, self.host_kind)


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run with all that is kept of it; `facts` are what must agree for its levels to be compared with others'."""

    entry: RunEntry
    facts: Mapping[str, str]
    cells: Mapping[Metric, tuple[CellSeries, ...]]


@dataclass(frozen=True, slots=True)
class Point:
    """One run in one series: `run` is its number in the history, from 1 in order of date; `level` with interval.

    The level is over `blocks`, or over `occasions` where there are several.
    """

    run: int
    level: LevelEstimate
    blocks: int
    occasions: int


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of a cell over the runs that measured it; an index in `changes` counts in `points`.

    `sized` says that its operation is of messages of some size, of which 0 B is one, `edited` that an edited study has
    another figure under its name.
    """

    origin: Origin
    cell: CellId
    shown: DisplayScale
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    sized: bool
    edited: bool = False

    @property
    def name(self) -> str:
        """Return the name of its cell, with the figure where it has several."""
        return self.cell.name(sized=self.sized) + f" ({self.shown.name})" * self.edited


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list: `changed` says which facts differ from the run before it of the same study and host."""

    number: int
    entry: RunEntry
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is shown; `further` counts the series that change by another figure alone.

    `left_out` has a line for each run that could not be read, and for runs that are too many.
    """

    source: str
    metric: Metric
    runs: tuple[ListedRun, ...]
    series: tuple[Series, ...]
    alpha: float
    further: tuple[tuple[Metric, int], ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def marked(self) -> tuple[Series, ...]:
        """Return the series in which a change was found."""
        return tuple(one for one in self.series if one.changes)

    def title(self, one: Series) -> str:
        """Return the name of a series, with its study and host where there are several."""
        several = any(other.origin != one.origin for other in self.series)
        return f"{one.origin}: {one.name}" if several else one.name

    def changed(self, one: Series, index: int) -> tuple[str, ...]:
        """Return which facts changed with a point of a series: since its point before, in runs without it, too."""
        run = one.points[index].run
        first = one.points[index - 1].run + 1 if index else run
        passed = (run for run in self.runs[first - 1 : run] if run.entry.origin == one.origin)
        return tuple(dict.fromkeys(change for run in passed for change in run.changed))
