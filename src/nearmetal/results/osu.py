"""The figures of a run as the OSU micro-benchmarks 7 compute them, for scripts that read those.

A bandwidth is all bytes over all time, and the time of several pairs is that of rank 0; a collective is the mean over
ranks of each rank's mean, with the least and the greatest rank's mean. Percentiles are of iterations; where
too few support one, it is nan. So is all but the mean of a program whose launches hold one mean each. Workloads with a
random pace are left out: OMB sends back to back. So are commands, whatever their names are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nearmetal.errors import BadInputError
from nearmetal.results.shown import DEFAULT_WINDOW_MESSAGES
from nearmetal.stats.interval import IntArray
from nearmetal.stats.order import order, quantile_ranks
from nearmetal.store.query import refuse_fabric, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.study.facts import IMPORTED_WINDOW
from nearmetal.study.order import PACE
from nearmetal.workloads.figures import IMPORTED, SUITES, WITH_OPERATIONS
from nearmetal.workloads.operations import OPERATIONS, Operation, Shape

_PERCENTILES = (0.5, 0.9, 0.99)
_TITLES = {
    "latency": "Latency",
    "multi_latency": "Multi Latency",
    "bw": "Bandwidth",
    "bibw": "Bi-Directional Bandwidth",
    "message_rate": "Multiple Bandwidth / Message Rate",
    "barrier": "Barrier Latency",
    "bcast": "Broadcast Latency",
    "reduce": "Reduce Latency",
    "allreduce": "Allreduce Latency",
    "allgather": "Allgather Latency",
    "alltoall": "All-to-All Personalized Exchange Latency",
    "gather": "Gather Latency",
    "scatter": "Scatter Latency",
}
_Group = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class OsuTable:
    """One path, workload and setting: by size one figure per column; `has_size` says whether there are sizes.

    `pairs` is 0 where the benchmark has none, and `window`, its messages, empty; those of a file may not be known.
    """

    path: str
    workload: str
    setting: str
    title: str
    trials: int
    columns: tuple[str, ...]
    rows: dict[int, tuple[float, ...]]
    has_size: bool
    pairs: int = 0
    window: str = ""


def osu_tables(run: RunDir) -> list[OsuTable]:
    """Return every table of a run, the baseline's of both its names; raise BadInputError for no operation of OMB."""
    refuse_fabric(run)
    groups: dict[_Group, list[TrialRecord]] = {}
    for record in valid(run.trials()):
        wanted = record.order
        if PACE in wanted.workload.options or wanted.workload.kind not in (*WITH_OPERATIONS, IMPORTED):
            continue
        for operation in dict.fromkeys(cell.operation for cell in record.cells):
            if operation in _TITLES:
                key = (wanted.path.name, wanted.workload.label, wanted.setting, operation)
                groups.setdefault(key, []).append(record)
    if not groups:
        text = f"{run.root} has no valid trial of an operation that the OSU micro-benchmarks have, back to back"
        raise BadInputError(text, hint=f"they are: {', '.join(_TITLES)}")
    return [_table(run, group, records) for group, records in sorted(groups.items())]


def _table(run: RunDir, group: _Group, records: Sequence[TrialRecord]) -> OsuTable:
    row = OPERATIONS[group[3]]
    workload = records[0].order.workload
    window = int(str(workload.options.get("window", DEFAULT_WINDOW_MESSAGES)))
    pairs = max(1, len(workload.placement) // 2)
    sizes = sorted({cell.message_bytes for record in records for cell in record.cells if cell.operation == row.name})
    return OsuTable(
        *group[:3],
        title=_TITLES[row.name],
        trials=len(records),
        columns=tuple(_columns(row)),
        rows={size: tuple(_figures(run, records, row, Shape(size, window, pairs))) for size in sizes},
        has_size=row.has_size,
        pairs=pairs if row.name == "message_rate" else 0,
        window=_window(records[0], window) if row.name == "message_rate" else "",
    )


def _window(record: TrialRecord, window: int) -> str:
    """Return the messages of a window; imported figures are stored as those of a window that was not theirs."""
    if record.order.workload.kind != IMPORTED:
        return str(window)
    return str(record.outcome.facts.get(IMPORTED_WINDOW, "unknown"))


def _columns(row: Operation) -> list[str]:
    tails = [f"P{round(100 * p)} Tail Lat(us)" for p in _PERCENTILES]
    if row.name == "message_rate":
        return ["MB/s", "Messages/s"]
    if row.kind == "window":
        return ["Bandwidth (MB/s)"]
    if row.kind == "collective":
        return ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations", *tails]
    return ["Avg Latency(us)", *tails]


def _figures(run: RunDir, records: Sequence[TrialRecord], row: Operation, shape: Shape) -> list[float]:
    """Return one row's figures over all trials, in the order of `_columns`."""
    cells = [
        (record, cell)
        for record in records
        for cell in record.cells
        if (cell.operation, cell.message_bytes) == (row.name, shape.message_bytes)
    ]
    if row.kind != "collective":
        cells = [(record, replace(cell, value_ranks=(0,))) for record, cell in cells]
    values = np.concatenate([run.values(record, cell) for record, cell in cells])
    if not values.any():  # no iteration, or none that took time: there is no rate
        return [float("nan")] * len(_columns(row))
    mean = row.shown(float(values.mean()), shape)
    if row.name == "message_rate":
        return [mean * shape.message_bytes / 1e6, mean]
    if row.kind == "window":
        return [mean]
    if records[0].order.workload.kind in (*SUITES, IMPORTED):  # their values are means of launches
        return [mean, *[float("nan")] * (len(_columns(row)) - 1)]
    tails = [_percentile(order(values), p, row, shape) for p in _PERCENTILES]
    if row.kind == "collective":
        means = np.mean([rank_means(run, record, cell) for record, cell in cells], axis=0) / 1e3
        return [float(means.mean()), float(means.min()), float(means.max()), values.size, *tails]
    return [mean, *tails]


def _percentile(ordered: IntArray, p: float, row: Operation, shape: Shape) -> float:
    """Return the percentile (the smallest value that at least that share does not exceed), nan where n is too small."""
    if quantile_ranks(ordered.size, p) is None:
        return float("nan")
    at = int(np.ceil(p * ordered.size)) - 1
    return row.shown(float(ordered[at]), shape)


def rank_means(run: RunDir, record: TrialRecord, cell: StoredCell) -> list[float]:
    """Return the own mean (ns) of each rank whose durations count, all of them of a collective."""
    return [float(run.values(record, replace(cell, value_ranks=(rank,))).mean()) for rank in cell.value_ranks]
