"""What a report shows, as plain records: built once by `paths.build_view`, drawn by every `as_*` module.

Nothing here is formatted and nothing is computed when it is drawn, so that table, CSV, JSON and HTML cannot differ.
Figures are in the unit of their cell's `DisplayScale`; raw durations keep `_ns` in their names.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.results.series import CellId, is_part
from nearmetal.results.shown import DisplayScale
from nearmetal.results.stopping import Unfinished
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.compare import CellComparison, NoiseFloor
from nearmetal.stats.conclude import Criteria
from nearmetal.stats.equivalence import Verdict
from nearmetal.stats.interval import Interval
from nearmetal.stats.modes import Modes
from nearmetal.stats.order import Curve
from nearmetal.stats.stopping import StoppingPlan
from nearmetal.stats.summary import HEADLINE, Metric, Summary
from nearmetal.study.order import Scalar, name_of


@dataclass(frozen=True, slots=True, order=True)
class GroupId:
    """What belongs in one table: a workload's operation under one setting."""

    workload: str
    operation: str
    setting: str


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """One valid trial of one path in one cell."""

    trial: int
    attempt: int
    block: int
    started_utc: str
    summary: Summary


@dataclass(frozen=True, slots=True)
class Level:
    """One figure of one path over its blocks: the geometric mean of one figure a block, in the shown unit.

    Where there are several `occasions`, it is that of one figure an occasion.
    `interval` is None, and `method` says why, when there are too few blocks. A `Level` without a value carries the
    reason for which it is refused, none where the figure does not apply.
    """

    blocks: int
    occasions: int
    value: float | None
    interval: Interval | None
    method: IntervalMethod
    refused: str


@dataclass(frozen=True, slots=True)
class PathCell:
    """One path in one cell: its trials, its levels, its distribution, and how it compares.

    `comparison` is None for the reference itself and where no block holds both sides; `uncompared` then says why.
    `trials` and `iterations` are of one name. The baseline's levels are of both its names, so it may have levels and no
    trial; so are `ecdf` and `tail`, which hold the iterations of all launches together, `drawn` of them: they are for
    looking, no test uses them.
    """

    path: str
    trials: tuple[TrialSummary, ...]
    levels: Mapping[Metric, Level]
    comparison: CellComparison | None
    uncompared: str
    iterations: int
    ecdf: Curve
    tail: Curve
    drawn: int

    @property
    def launches(self) -> dict[int, Summary]:
        """Return block -> summary of its launch."""
        return {one.block: one.summary for one in self.trials}

    @property
    def multimodal(self) -> tuple[Modes, ...]:
        """Return the modes of the launches that have some, the closest first; none where most launches have one."""
        found = [trial.summary.modes for trial in self.trials if trial.summary.modes]
        return tuple(sorted(found, key=lambda modes: modes.distance)) if 2 * len(found) >= len(self.trials) else ()

    @property
    def headline(self) -> Level:
        """Return the level that charts draw and tables begin with: that of the mean."""
        return self.levels[HEADLINE]


@dataclass(frozen=True, slots=True)
class Cell:
    """One operation at one size under one setting, over all paths.

    `may_pause` says that its workload takes `pace = "random"`, and has none yet, `sized` that it is of messages of some
    size: 0 bytes stand for no size where an operation has no other.
    """

    group: GroupId
    message_bytes: int
    shown: DisplayScale
    paths: tuple[PathCell, ...]
    noise: NoiseFloor | None
    may_pause: bool
    sized: bool = True

    def of(self, path: str) -> PathCell | None:
        """Return one path's part, None when it has no valid trial here, the baseline under neither of its names."""
        return next((one for one in self.paths if one.path == path), None)

    def named(self, path: str) -> list[PathCell]:
        """Return a path's parts under all its names: a baseline has two."""
        return [one for one in self.paths if name_of(one.path) == path]


@dataclass(frozen=True, slots=True)
class SettingContrast(CellId):
    """One path under one setting against the same path under the study's first setting, the `reference`."""

    reference: str
    comparison: CellComparison
    sized: bool = True


@dataclass(frozen=True, slots=True)
class PathVerdict:
    """What the study says of one path under one setting; `counts` is how many of its cells have which verdict.

    `worst` and `best` are the cells with the largest and the smallest cost against the baseline, of those that are
    decided where some are: the estimate of an undecided cell may be anything. `both_kinds` tells
    that its cells are of both kinds, times and rates, whose ratios point in opposite directions.
    """

    path: str
    setting: str
    verdict: Verdict
    counts: tuple[tuple[Verdict, int], ...]
    cells: int
    worst: tuple[Cell, CellComparison] | None
    best: tuple[Cell, CellComparison] | None
    both_kinds: bool
    reason: str

    @property
    def ends(self) -> tuple[float, ...]:
        """Return the ratios of `best` and `worst`; of both kinds their costs, in which a ratio of rates is inverted."""
        found = [one[1] for one in (self.best, self.worst) if one is not None]
        return tuple(one.cost(HEADLINE) if self.both_kinds else one.headline.ratio for one in found)


@dataclass(frozen=True, slots=True)
class FactRow:
    """One fact or counter over the paths: `values[i]` belongs to `View.shown_paths[i]`, None where not known."""

    name: str
    unit: str
    values: tuple[Scalar | None, ...]


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One attempt at one trial, by what `TrialRecord.keys` says of it."""

    trial: int
    attempt: int
    block: int
    path: str
    workload: str
    setting: str


@dataclass(frozen=True, slots=True)
class Failure(AttemptId):
    """A trial that failed; `mended` says that its second attempt was valid."""

    reason: str
    hint: str
    mended: bool

    @property
    def kind(self) -> str:
        """Return what reasons of one kind have in common: the first line, whatever its figures are."""
        return re.sub(r"\d+(\.\d+)?", "#", self.reason.partition("\n")[0].rstrip(": "))


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One path of the study: `number` decides its colour and mark everywhere."""

    label: str
    recipe: str
    number: int
    baseline: bool
    again: bool


@dataclass(frozen=True, slots=True)
class HowToRepeat:
    """How to do it again: the study to the byte, its digest and seed, and one launch line a combination.

    `hosts_text` is the study's hosts file, empty where it has none.
    """

    study_text: str
    hosts_text: str
    study_sha256: str
    seed: int
    launches: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a report shows of one run.

    `block_ns` is what a block takes on the clock of who waits, 0 where the run does not show it.
    `traced` tells whether trials were traced, and so whether the run has waterfalls (`results.waterfalls`).
    `cautions` are sentences on figures that are a timer's, on busy machines and on torn blocks, `causes` on why
    launches fall into modes. `busy` tells whether other programs disturbed most launches. `plan` is that of the looks,
    None when the number of blocks was fixed beforehand; `variants` gives the boot that a block ran in, where there were
    several. `unfinished` says what the run lacks, None where nothing is. An occasion is planned
    to take from the first to the second of `planned_blocks`, and has `block_numbers` numbers of blocks.
    """

    name: str
    title: str
    baseline: str
    criteria: Criteria
    host_kind: str
    host_label: str
    mpi: str | None
    created_utc: str
    nearmetal_version: str
    blocks: int
    planned_blocks: tuple[int, int]
    block_numbers: int
    occasions: int
    plan: StoppingPlan | None
    variants: Mapping[int, int]
    valid_trials: int
    block_ns: float
    paths: tuple[PathEntry, ...]
    cells: tuple[Cell, ...]
    verdicts: tuple[PathVerdict, ...]
    settings: tuple[SettingContrast, ...]
    provenance: tuple[tuple[str, Scalar], ...]
    mixed: tuple[str, ...]
    cautions: tuple[str, ...]
    busy: bool
    causes: tuple[str, ...]
    facts: tuple[FactRow, ...]
    counters: tuple[FactRow, ...]
    failures: tuple[Failure, ...]
    unfinished: Unfinished | None
    traced: bool
    repeat: HowToRepeat

    @property
    def shown_paths(self) -> tuple[PathEntry, ...]:
        """Return the paths without the baseline's second name."""
        return tuple(path for path in self.paths if not path.again)

    @property
    def groups(self) -> tuple[GroupId, ...]:
        """Return what stands in one table each, in the order of the study."""
        return tuple(dict.fromkeys(cell.group for cell in self.cells))

    def cells_of(self, group: GroupId) -> tuple[Cell, ...]:
        """Return a group's cells by size."""
        return tuple(cell for cell in self.cells if cell.group == group)

    def compared(self) -> Iterator[tuple[Cell, PathCell, CellComparison]]:
        """Yield every comparison of a path with the baseline."""
        for cell in self.cells:
            for one in cell.paths:
                if one.comparison is not None:
                    yield cell, one, one.comparison

    @property
    def noise_floor(self) -> float | None:
        """Return the largest noise floor of any cell but parts of programs, None when none could be stated."""
        return _largest_floor(self.wholes)

    @property
    def noise_of_parts(self) -> float | None:
        """Return the largest noise floor of parts of programs, such as their communication."""
        return _largest_floor(wholes_and_parts(self.cells)[1])

    @property
    def wholes(self) -> tuple[Cell, ...]:
        """Return the cells that are not a part of a program whose whole is another cell."""
        return wholes_and_parts(self.cells)[0]

    @property
    def gains(self) -> tuple[SettingContrast, ...]:
        """Return the comparisons of settings but of parts of programs: a user does not wait for its parts alone."""
        wholes = {(cell.group, cell.message_bytes) for cell in self.wholes}
        return tuple(
            one
            for one in self.settings
            if (GroupId(one.workload, one.operation, one.setting), one.message_bytes) in wholes
        )


def wholes_and_parts(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Return the cells, apart from those that are a part of a program, or of streams, whose whole is another cell."""
    measured = {(cell.group.workload, cell.group.operation) for cell in cells}
    parts = {cell.group for cell in cells if is_part(cell.group.workload, cell.group.operation, measured)}
    return tuple(cell for cell in cells if cell.group not in parts), tuple(
        cell for cell in cells if cell.group in parts
    )


def _largest_floor(cells: Iterable[Cell]) -> float | None:
    return max((cell.noise.floor for cell in cells if cell.noise and cell.noise.floor is not None), default=None)
