"""The JSON that leaves nearmetal, as types: what writes it is checked against them, and `openapi.json` is made of them.

docs/reference/report-json.md, fabric-json.md and gate.md say what each key means. A key may come within a format; the
number of the format is raised when one goes or changes its meaning. What does not exist, was refused or is infinite is
null.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from nearmetal.results.gated import ConditionChange, GatedRun, Remeasured
from nearmetal.results.records import AttemptId, Failure, GroupId, Level
from nearmetal.results.series import CellId
from nearmetal.results.stopping import Unfinished
from nearmetal.stats.between import Standing
from nearmetal.stats.interval import Interval
from nearmetal.stats.modes import Mode
from nearmetal.stats.paired import Significance
from nearmetal.stats.summary import SampleFigures
from nearmetal.study.order import Scalar
from nearmetal.typed import JsonFloat, adapter

_T = TypeVar("_T")


def as_json(one: object, indent: int | None = 1) -> str:
    """Return a record as one JSON object, on one line without `indent`."""
    kind: Any = type(one)
    return json.dumps(adapter(kind).dump_python(one, mode="json"), indent=indent, allow_nan=False)


def made(kind: type[_T], /, *sources: object, **given: Any) -> _T:
    """Return a record of `kind`: what is given, and each other field from the first source that has one of its name.

    Raises AttributeError for a field that nothing has.
    """
    names = [field.name for field in fields(kind) if field.name not in given]  # type: ignore[arg-type]
    return kind(**given, **{name: _taken(sources, name) for name in names})


def _taken(sources: tuple[object, ...], name: str) -> object:
    return getattr(next((one for one in sources if hasattr(one, name)), sources[0]), name)


# ---- one launch


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileJson:
    """One percentile of a launch, or why there is none."""

    probability: float
    value_ns: float | None
    interval_ns: Interval | None
    refused: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModesJson:
    """Groups of iterations, ascending, and how they follow each other."""

    order: str
    list: tuple[Mode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryJson(SampleFigures):
    """What the samples of one cell of a launch say by themselves."""

    modes: ModesJson | None
    percentiles: list[PercentileJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJson(SummaryJson):
    """One launch's part of a cell."""

    trial: int
    attempt: int
    block: int
    started_utc: str


# ---- a report


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateJson:
    """One figure compared."""

    blocks: int
    occasions: int
    ratio: float
    interval: Interval | None
    equivalence_interval: Interval | None
    method: str
    finding: str
    reason: str
    p_difference_holm: float | None
    p_equivalence_holm: float | None
    p_beyond_holm: float | None
    paired_t_test: Significance | None
    wilcoxon_signed_rank: Significance | None
    cohens_dz: float | None
    hedges_gz: float | None
    rank_biserial: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonJson:
    """A path against its baseline in one cell."""

    verdict: str
    reason: str
    mean: EstimateJson | None
    median: EstimateJson | None
    p99: EstimateJson | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastJson(ComparisonJson):
    """A setting against the study's first."""

    path: str
    setting: str
    reference: str
    workload: str
    operation: str
    message_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCellJson:
    """One path's part of a cell."""

    path: str
    iterations: int
    mean: Level
    median: Level
    p99: Level
    comparison: ComparisonJson | None
    next_step: str
    uncompared: str
    trials: list[TrialJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseJson:
    """What the baseline differs from itself by."""

    floor: float | None
    block_spread: float | None
    false_alarm: bool
    hides_margin: bool
    estimate: EstimateJson


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJson(GroupId):
    """One operation at one size under one setting, over all paths."""

    message_bytes: int
    figure: str
    unit: str
    better: str
    noise: NoiseJson | None
    paths: list[PathCellJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJson:
    """The study of a run."""

    name: str
    title: str
    sha256: str
    seed: int
    baseline: str
    margin: float
    tail_margin: float
    rarest_mode: float
    alpha: float
    mpi: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJson:
    """Where it was measured; show the label wherever you show figures."""

    kind: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathJson:
    """One path; `again` is the baseline's second name."""

    path: str
    recipe: str
    baseline: bool
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictJson:
    """The verdict on a path under a setting."""

    path: str
    setting: str
    verdict: str
    cells: int
    counts: dict[str, int]
    ratio_best: float | None
    ratio_worst: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowJson:
    """A fact or counter by path."""

    name: str
    unit: str
    by_path: dict[str, str | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportJson:
    """A run's report as `nearmetal compare --format json` prints it: docs/reference/report-json.md."""

    report_format: Literal[2]
    study: StudyJson
    host: HostJson
    created_utc: str
    nearmetal_version: str
    blocks: int
    occasions: int
    valid_trials: int
    unfinished: Unfinished | None
    paths: list[PathJson]
    verdicts: list[VerdictJson]
    noise_floor: float | None
    cells: list[CellJson]
    settings: list[ContrastJson]
    provenance: dict[str, Scalar]
    mixed_provenance: tuple[str, ...]
    cautions: tuple[str, ...]
    facts_that_differ: list[RowJson]
    counters: list[RowJson]
    causes_of_modes: tuple[str, ...]
    failures: tuple[Failure, ...]


# ---- a run in progress, and the list of runs


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptJson(AttemptId):
    """One attempt at one trial, and what came of it."""

    status: Literal["valid", "failed"]
    reason: str
    elapsed_ns: int
    started_utc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTextJson:
    """What was seen, and the next step; it may be empty."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorJson:
    """Why a request was refused."""

    error: ErrorTextJson


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJson:
    """One run of the directory; where `problem` says why it cannot be read, most else is null."""

    name: str
    study: str | None
    host_kind: str | None
    host_label: str | None
    created_utc: str | None
    nearmetal_version: str | None
    trials: int
    changed_ns: int
    running: bool
    of_fabric: bool
    paths: tuple[str, ...]
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsJson:
    """The list of runs."""

    runs: list[RunJson]


# ---- one run against another


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceJson:
    """How the runs differ in a cell; `ratio` is run / base.

    `run_boots` is how many boots of the machine a run's error rests on, 0 where it rests on blocks; `run_wider` says
    why its share of the interval is wider than Student's.
    """

    ratio: float
    interval: Interval | None
    run_blocks: int
    base_blocks: int
    run_occasions: int
    base_occasions: int
    run_boots: int
    base_boots: int
    run_wider: str
    base_wider: str
    p_worse: float
    resolution: JsonFloat
    floor: float | None
    stands: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCellJson(CellId):
    """One cell of a gate: one path in one operation, at one size, under one setting, by one figure."""

    metric: str
    stands: str
    reason: str
    control: bool
    part: bool
    figure: str
    unit: str
    better: str
    base: float | None
    run: float | None
    difference: DifferenceJson | None
    at_first: DifferenceJson | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJson:
    """One run against another as `nearmetal gate --format json` prints it: docs/reference/gate.md."""

    gate_format: Literal[2]
    verdict: Standing
    exit_code: int
    says: str
    metric: str
    margin: float
    tail_margin: float
    alpha: float
    noise_floor_between_runs: float | None
    run: GatedRun
    base: GatedRun
    changes: tuple[ConditionChange, ...]
    mixed: tuple[str, ...]
    remeasured: Remeasured | None
    cells: list[GateCellJson]
    others: list[GateCellJson]
    not_in_base: tuple[CellId, ...]
