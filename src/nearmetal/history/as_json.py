"""A history as JSON; docs/reference/gate.md describes it."""

from dataclasses import dataclass
from typing import Literal

from nearmetal.history.records import History, Point, RunEntry, Series
from nearmetal.report import schema
from nearmetal.report.schema import made
from nearmetal.results.series import CellId
from nearmetal.typed import JsonFloat

HISTORY_JSON_FORMAT: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRunJson(RunEntry):
    """A run, its number, and which facts differ from the run before it of the same study and host."""

    run: int
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPointJson:
    """One run in one series, over its blocks, or its occasions if several; no ends where its level has no interval."""

    run: int
    level: float
    low: JsonFloat | None
    high: JsonFloat | None
    blocks: int
    occasions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryChangeJson:
    """A change of level: the first run after it, the ratio of levels, and how rarely chance does as much."""

    run: int
    ratio: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeriesJson(CellId):
    """One cell over the runs that measured it."""

    study: str
    host_kind: str
    figure: str
    unit: str
    better: str
    points: list[HistoryPointJson]
    changes: list[HistoryChangeJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryJson:
    """Runs, and each cell over them; `left_out` has a line for all that is not among them."""

    history_format: Literal[1]
    metric: str
    alpha: float
    further: dict[str, int]
    runs: list[HistoryRunJson]
    series: list[HistorySeriesJson]
    left_out: tuple[str, ...]


def render(history: History) -> str:
    """Return one JSON object."""
    return schema.as_json(
        HistoryJson(
            history_format=HISTORY_JSON_FORMAT,
            metric=str(history.metric),
            alpha=history.alpha,
            further={str(metric): count for metric, count in history.further},
            runs=[made(HistoryRunJson, run, run.entry, run=run.number) for run in history.runs],
            series=[_series(one) for one in history.series],
            left_out=history.left_out,
        )
    )


def _series(one: Series) -> HistorySeriesJson:
    return made(
        HistorySeriesJson,
        one,
        one.origin,
        one.cell,
        **one.shown.labels,
        study=one.origin.study_name,
        points=[_point(point) for point in one.points],
        changes=[
            HistoryChangeJson(run=one.points[change.index].run, ratio=change.ratio, p=change.p_value)
            for change in one.changes
        ],
    )


def _point(point: Point) -> HistoryPointJson:
    interval = point.level.interval
    low, high = (interval.low, interval.high) if interval else (None, None)
    return made(HistoryPointJson, point, level=point.level.value, low=low, high=high)
