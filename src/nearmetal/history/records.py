"""What a history keeps of a run, and what it shows of many, as plain records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError
from nearmetal.reading import parse_json, read_text
from nearmetal.results.series import RunSeries, read_series
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.store.rundir import RunDir, RunInfo, TrialRecord, trial_name
from nearmetal.study.facts import FactScope, scope_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.results.series import CellId
    from nearmetal.results.shown import DisplayScale
    from nearmetal.stats.changes import Change
    from nearmetal.stats.compare import LevelEstimate


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run: `run_id` is the same for the same run wherever its directory lies and however far it got."""

    run_id: str
    study_name: str
    study_sha256: str
    host_kind: str
    host_label: str
    nearmetal_version: str
    created_utc: str
    root: str
    trials: int
    blocks: int


@dataclass(frozen=True, slots=True)
class EntryCell:
    """One cell of a run under one metric: block -> ns, and how that is shown."""

    cell: CellId
    metric: Metric
    shown: DisplayScale
    ns: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run with all that is kept of it; `facts` are what must agree for its levels to be compared with others'."""

    entry: RunEntry
    facts: Mapping[str, str]
    cells: tuple[EntryCell, ...]

    @property
    def metrics(self) -> set[str]:
        """Return which figures the cells hold."""
        return {str(one.metric) for one in self.cells}


@dataclass(frozen=True, slots=True)
class Point:
    """One run in one series: `run` is its number in the history, from 1 in order of date; `level` with interval."""

    run: int
    level: LevelEstimate


@dataclass(frozen=True, slots=True)
class Series:
    """One cell over the runs that measured it; an index in `changes` counts in `points`."""

    study_name: str
    host_kind: str
    cell: CellId
    shown: DisplayScale
    points: tuple[Point, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list: `changed` says which facts differ from the run before it of the same study and host."""

    number: int
    entry: RunEntry
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is shown; `further` counts the series that change by another figure alone."""

    source: str
    metric: Metric
    runs: tuple[ListedRun, ...]
    series: tuple[Series, ...]
    alpha: float
    further: tuple[tuple[Metric, int], ...] = ()

    @property
    def marked(self) -> tuple[Series, ...]:
        """Return the series in which a change was found."""
        return tuple(one for one in self.series if one.changes)


# ---- from a run directory to what a history keeps of it


def collect(root: Path, *, allow_mixed: bool = False) -> KeptRun:
    """Read a run; raise BadInputError when it has no valid trial, or trials of mixed provenance."""
    run = RunDir.open(root)
    by_metric = {metric: read_series(run, metric, allow_mixed=allow_mixed) for metric in Metric}
    headline = by_metric[HEADLINE]
    if not headline.cells:
        raise BadInputError(f"{root} has no valid trial", hint=f"nearmetal show {root}")
    entry = RunEntry(
        run_id=_identity(run, headline),
        **asdict(run.info),
        root=str(root.absolute()),
        trials=len(headline.records),
        blocks=len({record.order.block for record in headline.records}),
    )
    cells = tuple(
        EntryCell(cell, metric, one.shown, one.ns)
        for metric, series in by_metric.items()
        for cell, one in series.cells.items()
        if one.ns
    )
    return KeptRun(entry, _facts(headline.records), cells)


def _identity(run: RunDir, series: RunSeries) -> str:
    """Return the SHA-256 of what a run is and of its first trial: both are written once and never changed."""
    first = min(series.run.trials(), key=lambda record: (record.order.block, record.order.trial, record.attempt))
    record = run.root / "trials" / f"{trial_name(first.order.trial, first.attempt)}.json"
    raw = parse_json(read_text(run.root / run.MARKER))
    what = json.dumps({one.name: raw[one.name] for one in fields(RunInfo)}, sort_keys=True).encode()
    return hashlib.sha256(what + b"\0" + record.read_bytes()).hexdigest()


def _facts(records: tuple[TrialRecord, ...]) -> dict[str, str]:
    """Return the facts that decide what may be compared, over all trials; several values stand side by side.

    An interface's facts carry its path, because the same node and interface name stand for different devices on
    different paths.
    """
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in record.outcome.facts.items():
            name = _kept_name(key, record.order.path.label)
            if name:
                found.setdefault(name, {})[str(value)] = None
    return {name: " | ".join(values) for name, values in sorted(found.items())}


def _kept_name(key: str, path: str) -> str:
    scope = scope_of(key.removeprefix("guest."))  # of a guest are kept the same kinds of facts
    if scope is FactScope.INTERFACE:
        return f"{path}: {key}"
    return "" if scope is FactScope.FREE else key
