"""A run in the columns of the OSU micro-benchmarks 7, for scripts that read those.

The means are computed as OMB does: a bandwidth from all bytes over all time, a collective as the mean over ranks of
each rank's mean, with the least and the greatest rank's mean beside it. The percentiles are of iterations, as the
columns of `-z` are for latencies; where too few iterations support one, `nan` stands in its place. Workloads with a
random pace are left out: OMB sends back to back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import nearmetal
from nearmetal.errors import BadInputError
from nearmetal.stats.order import order, quantile_ranks
from nearmetal.store.query import refuse_fabric, valid
from nearmetal.study.spec import AGAIN
from nearmetal.workloads.operations import OPERATIONS, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.stats.interval import IntArray
    from nearmetal.store.rundir import RunDir, TrialRecord
    from nearmetal.store.samples import StoredCell
    from nearmetal.workloads.operations import Operation

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
_DEFAULT_WINDOW_MESSAGES = 64
PACE = "pace_us"
"""The option of a workload whose iterations do not follow each other back to back."""


@dataclass(frozen=True, slots=True)
class _Group:
    """What becomes one table: the trials of one path, workload and setting."""

    path: str
    workload: str
    setting: str
    operation: str


def render(run: RunDir) -> str:
    """Return every table of a run; raise BadInputError when no operation of it is one that OMB has."""
    refuse_fabric(run)
    groups: dict[_Group, list[TrialRecord]] = {}
    for record in valid(run.trials()):
        wanted = record.order
        if PACE in wanted.workload.options:
            continue
        for operation in dict.fromkeys(cell.operation for cell in record.cells):
            if operation in _TITLES and not wanted.path.label.endswith(AGAIN):
                key = _Group(wanted.path.label, wanted.workload.label, wanted.setting, operation)
                groups.setdefault(key, []).append(record)
    if not groups:
        raise BadInputError(
            f"{run.root} has no valid trial of an operation that the OSU micro-benchmarks have, back to back",
            hint=f"those are: {', '.join(_TITLES)}",
        )
    return "\n".join(_table(run, group, records) for group, records in sorted(groups.items(), key=lambda g: str(g[0])))


def _table(run: RunDir, group: _Group, records: Sequence[TrialRecord]) -> str:
    row = OPERATIONS[group.operation]
    order_ = records[0].order
    window = int(str(order_.workload.options.get("window", _DEFAULT_WINDOW_MESSAGES)))
    pairs = max(1, len(order_.workload.placement) // 2)
    lines = [
        f"# nearmetal {nearmetal.__version__}: path {group.path}, workload {group.workload}, setting {group.setting}, "
        f"{len(records)} trials; {run.info.host_label}",
        f"# OSU MPI {_TITLES[group.operation]} Test",
    ]
    if group.operation == "message_rate":
        lines.append(f"# [ pairs: {pairs} ] [ window size: {window} ]")
    names = _columns(row)
    lines.append(("# Size    " if row.has_size else "# ") + "".join(f"{name:>20}" for name in names))
    sizes = sorted({cell.message_bytes for record in records for cell in record.cells if cell.operation == row.name})
    for size in sizes:
        figures = _figures(run, records, row, Shape(size, window, pairs))
        lines.append(
            (f"{size:<10}" if row.has_size else "  ")
            + "".join(f"{_text(name, figure):>20}" for name, figure in zip(names, figures, strict=True))
        )
    return "\n".join(lines) + "\n"


def _text(name: str, figure: float) -> str:
    return f"{figure:.0f}" if name == "Iterations" else f"{figure:.2f}"


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
    values = np.concatenate([run.values(record, cell) for record, cell in cells])
    if values.size == 0:
        return [float("nan")] * len(_columns(row))
    mean = float(row.shown(np.array([values.mean()]), shape)[0])
    if row.name == "message_rate":
        return [mean * shape.message_bytes / 1e6, mean]
    if row.kind == "window":
        return [mean]
    tails = [_percentile(order(values), p, row, shape) for p in _PERCENTILES]
    if row.kind == "collective":
        means = np.mean([rank_means(run, record, cell) for record, cell in cells], axis=0) / 1e3
        iterations = sum(cell.iterations - cell.warmup for _, cell in cells)
        return [float(means.mean()), float(means.min()), float(means.max()), iterations, *tails]
    return [mean, *tails]


def _percentile(ordered: IntArray, p: float, row: Operation, shape: Shape) -> float:
    """Return the percentile (the smallest value that at least that share does not exceed), nan where n is too small."""
    if quantile_ranks(ordered.size, p) is None:
        return float("nan")
    at = int(np.ceil(p * ordered.size)) - 1
    return float(row.shown(ordered[at : at + 1].astype(np.float64), shape)[0])


def rank_means(run: RunDir, record: TrialRecord, cell: StoredCell) -> list[float]:
    """Return the own mean (ns) of each rank whose durations count, all of them of a collective."""
    return [float(run.values(record, replace(cell, value_ranks=(rank,))).mean()) for rank in cell.value_ranks]
