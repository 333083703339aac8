"""From the runs of a history to what is shown: series, their changes, and which runs stand on another machine."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nearmetal.history.records import History, KeptRun, ListedRun, Origin, Point, Series
from nearmetal.results.series import CellId, CellSeries, sized
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.changes import find_changes
from nearmetal.stats.compare import LevelEstimate, estimate_level
from nearmetal.stats.equivalence import ALPHA
from nearmetal.stats.summary import Metric
from nearmetal.units import by_key

MAX_RUNS = 300
"""How many of the latest runs changes are sought in: what came before them has been seen."""


_Key = tuple[Origin, CellId, tuple[str, str]]
"""Study and host, the cell, and its figure: an edited study may have another one under one name."""
_Members = list[tuple[ListedRun, CellSeries]]


def build_history(
    source: str,
    kept: Sequence[KeptRun],
    metric: Metric,
    *,
    path: str = "",
    workload: str = "",
    every_interval: bool = True,
) -> History:
    """Return the history of runs, given by date; `path` and `workload` leave the others out.

    Changes are sought in what is shown. Without `every_interval` only the latest level of each series has one:
    thousands of bootstraps take seconds. Series that change by another figure alone are counted.
    """
    runs = _runs(kept)
    by_metric: dict[Metric, dict[_Key, _Members]] = {}
    for one in Metric:
        cells = [(run, cell) for run, kept_run in zip(runs, kept, strict=True) for cell in kept_run.cells[one]]
        wanted = [pair for pair in cells if path in {"", pair[1].cell.path}]
        by_metric[one] = _grouped(pair for pair in wanted if workload in {"", pair[1].cell.workload})
    cut = sum(len(members) > MAX_RUNS for members in by_metric[metric].values())
    by_metric = {one: {key: of[-MAX_RUNS:] for key, of in found.items()} for one, found in by_metric.items()}
    of, figures = _sized(by_metric[metric]), Counter(key[:2] for key in by_metric[metric])
    plain = [
        replace(_series(key, members, every_interval=every_interval), sized=key in of, edited=figures[key[:2]] > 1)
        for key, members in sorted(by_metric[metric].items())
    ]
    changes = find_changes([np.array([point.level.value for point in one.points]) for one in plain])
    series = tuple(replace(one, changes=found) for one, found in zip(plain, changes, strict=True))
    known = {(one.origin, one.cell, _figure(one.shown)) for one in series if one.changes}
    further = ((one, len(_changed_keys(by_metric[one]) - known)) for one in Metric if one is not metric)
    too_many = (f"the oldest runs of {cut} series, which show the latest {MAX_RUNS}",) if cut else ()
    return History(source, metric, tuple(runs), series, ALPHA, tuple(pair for pair in further if pair[1]), too_many)


def _grouped(cells: Iterable[tuple[ListedRun, CellSeries]]) -> dict[_Key, _Members]:
    """Return the runs of each cell that has figures, in their order."""
    return by_key(((run.entry.origin, cell.cell, _figure(cell.shown)), (run, cell)) for run, cell in cells if cell.ns)


def _figure(shown: DisplayScale) -> tuple[str, str]:
    """Return a figure's name, and the unit of a rate, whose durations are those of some amount of it."""
    return shown.name, shown.unit if shown.rate else ""


def _changed_keys(grouped: Mapping[_Key, _Members]) -> set[_Key]:
    levels = [
        np.array([_level(cell, members[-1][1].shown, interval=False).value for _, cell in members])
        for members in grouped.values()
    ]
    return {key for key, found in zip(grouped, find_changes(levels), strict=True) if found}


def _runs(kept: Sequence[KeptRun]) -> list[ListedRun]:
    """Return the runs, numbered by date, with what each was measured with that its predecessor was not."""
    found: list[ListedRun] = []
    last: dict[Origin, KeptRun] = {}
    for number, one in enumerate(kept, 1):
        before = last.get(one.entry.origin)
        found.append(ListedRun(number, one.entry, _changed(before, one) if before else ()))
        last[one.entry.origin] = one
    return found


def _changed(before: KeptRun, after: KeptRun) -> tuple[str, ...]:
    old, new = ({**one.facts, "nearmetal": one.entry.nearmetal_version} for one in (before, after))
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    of_files = after.entry.host_kind == "import"  # its study only says which files there are
    edited = ["study: edited"] if before.entry.study_sha256 != after.entry.study_sha256 and not of_files else []
    others = [f"{name}: {old.get(name, 'not recorded')} -> {new.get(name, 'not recorded')}" for name in names]
    return tuple(edited + others)


def _sized(keys: Collection[_Key]) -> frozenset[_Key]:
    """Return the cells whose operation has messages of some size, within their study and host."""
    known = by_key((origin, cell) for origin, cell, _ in keys)
    operations = {origin: sized(cells) for origin, cells in known.items()}
    return frozenset(key for key in keys if key[1].what in operations[key[0]])


def _series(key: _Key, members: _Members, *, every_interval: bool) -> Series:
    """Return one series in the order of the runs, in the unit of the latest of them."""
    shown = members[-1][1].shown
    points = tuple(
        Point(
            run.number,
            _level(cell, shown, interval=every_interval or run is members[-1][0]),
            cell.blocks,
            cell.occasions,
        )
        for run, cell in members
    )
    return Series(*key[:2], shown, points, (), sized=False)


def _level(cell: CellSeries, shown: DisplayScale, *, interval: bool) -> LevelEstimate:
    """Return the level as the run's own report has it."""
    values = cell.values(shown)
    if interval:
        return estimate_level(values, context=cell.context)
    return LevelEstimate(values.size, math.exp(float(np.log(values).mean())), None, IntervalMethod.NONE)
