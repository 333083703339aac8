"""From the file of a history to what is shown: series, their changes, and which runs stand on another machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nearmetal.history.records import History, ListedRun, Point, Series
from nearmetal.results.series import CellId
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.changes import ALPHA, find_changes
from nearmetal.stats.compare import LevelEstimate, estimate_level

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.history.records import EntryCell, RunEntry
    from nearmetal.results.shown import Shown
    from nearmetal.stats.summary import Metric

MAX_RUNS = 300
"""How many of the latest runs changes are sought in: what came before them has been seen."""


class Source(Protocol):
    """Where runs are kept: a file, or memory."""

    @property
    def path(self) -> Path | str:
        """Return what pages call it."""
        ...

    def runs(self) -> list[RunEntry]:
        """Return the runs by date, then by identity."""
        ...

    def facts(self) -> dict[str, dict[str, str]]:
        """Return each run's facts by its identity."""
        ...

    def cells(self, metric: Metric) -> list[tuple[str, EntryCell]]:
        """Return every cell under one metric with the identity of its run."""
        ...


_Key = tuple[str, str, CellId]


def build_history(
    source: Source, metric: Metric, *, path: str = "", workload: str = "", every_interval: bool = True
) -> History:
    """Read a history; `path` and `workload` leave the others out. Changes are sought in what is shown.

    Without `every_interval` only the latest level of each series has one: thousands of bootstraps take seconds.
    """
    runs = _runs(source.runs(), source.facts())
    numbers = {run.entry.run_id: run for run in runs}
    grouped: dict[_Key, list[tuple[ListedRun, EntryCell]]] = {}
    for run_id, cell in source.cells(metric):
        run = numbers.get(run_id)
        wanted = path in {"", cell.cell.path} and workload in {"", cell.cell.workload}
        if run is not None and cell.ns and wanted:
            grouped.setdefault((run.entry.study_name, run.entry.host_kind, cell.cell), []).append((run, cell))
    plain = [_series(key, grouped[key], every_interval=every_interval) for key in sorted(grouped)]
    changes = find_changes([np.array([point.level.value for point in one.points]) for one in plain], alpha=ALPHA)
    series = tuple(
        Series(one.study_name, one.host_kind, one.cell, one.shown, one.points, found)
        for one, found in zip(plain, changes, strict=True)
    )
    return History(str(source.path), metric, tuple(runs), series, ALPHA)


def _runs(entries: list[RunEntry], facts: dict[str, dict[str, str]]) -> list[ListedRun]:
    """Return the runs, numbered by date, with what each was measured with that its predecessor was not."""
    found: list[ListedRun] = []
    last: dict[tuple[str, str], RunEntry] = {}
    for number, entry in enumerate(entries, 1):
        before = last.get((entry.study_name, entry.host_kind))
        changed = _changed(before, entry, facts) if before else ()
        found.append(ListedRun(number, entry, changed))
        last[entry.study_name, entry.host_kind] = entry
    return found


def _changed(before: RunEntry, after: RunEntry, facts: dict[str, dict[str, str]]) -> tuple[str, ...]:
    old, new = (_described(entry, facts) for entry in (before, after))
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return tuple(f"{name}: {old.get(name, 'not recorded')} -> {new.get(name, 'not recorded')}" for name in names)


def _described(entry: RunEntry, facts: dict[str, dict[str, str]]) -> dict[str, str]:
    own = {"study": entry.study_sha256[:12], "nearmetal": entry.nearmetal_version}
    return facts.get(entry.run_id, {}) | own


def _series(key: _Key, members: list[tuple[ListedRun, EntryCell]], *, every_interval: bool) -> Series:
    """Return one series in the order of the runs, in the unit of the latest of them."""
    members = sorted(members, key=lambda pair: pair[0].number)[-MAX_RUNS:]
    shown = members[-1][1].shown
    points = tuple(
        Point(run.number, _level(cell, shown, interval=every_interval or run is members[-1][0]))
        for run, cell in members
    )
    return Series(*key, shown, points, ())


def _level(cell: EntryCell, shown: Shown, *, interval: bool) -> LevelEstimate:
    values = [shown.value(ns) for ns in cell.ns.values()]
    if interval:
        return estimate_level(values)
    return LevelEstimate(len(values), math.exp(float(np.log(values).mean())), None, IntervalMethod.NONE)
