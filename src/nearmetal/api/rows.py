"""Records and samples as rows of tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nearmetal.report.as_json import attempt
from nearmetal.stats.summary import PERCENTILES, SampleFigures, Summary
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import StoredCell

if TYPE_CHECKING:
    from nearmetal.fabric.survey import Survey


TRIAL_COLUMNS: dict[str, pa.DataType] = {
    "trial": pa.int64(),
    "attempt": pa.int64(),
    "block": pa.int64(),
    "path": pa.string(),
    "workload": pa.string(),
    "setting": pa.string(),
    "status": pa.string(),
    "reason": pa.string(),
    "started_utc": pa.string(),
    "elapsed_ns": pa.int64(),
}


def trial_row(record: TrialRecord) -> dict[str, object]:
    """Return a trial as a row of `TRIAL_COLUMNS`."""
    return asdict(attempt(record))


@dataclass(frozen=True, slots=True)
class CellQuery:
    """Which cells of which trials: what is None may be anything."""

    path: str | None = None
    workload: str | None = None
    operation: str | None = None
    message_bytes: int | None = None
    setting: str | None = None
    trial: int | None = None

    def holds(self, record: TrialRecord, cell: StoredCell) -> bool:
        """Return whether a cell of a trial is wanted."""
        found = keys(record, cell)
        return all(value is None or found[name] == value for name, value in self._asked())

    def __str__(self) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in self._asked() if value is not None) or "samples"

    def _asked(self) -> list[tuple[str, object]]:
        return [(one.name, getattr(self, one.name)) for one in fields(self)]


def keys(record: TrialRecord, cell: StoredCell) -> dict[str, int | str]:
    """Return what says where a figure is from."""
    return {**record.keys, "operation": cell.operation, "message_bytes": cell.message_bytes}


def summary_columns(summary: Summary) -> dict[str, float | int | None]:
    """Return a trial's summary as columns."""
    names = [one.name for one in fields(SampleFigures) if one.name != "median_interval_ns"]
    percentiles = {f"p{p * 100:.10g}_ns".replace(".", "_"): summary.percentile(p).value_ns for p in PERCENTILES}
    return {name: getattr(summary, name) for name in names} | percentiles


def sample_rows(run: RunDir, record: TrialRecord, cell: StoredCell, *, everything: bool) -> pa.Table:
    """Return one cell's samples of a trial, all ranks; without `everything` only good ones after warm-up."""
    rows = run.rows(record, cell).drop_columns("cell")
    if not everything:
        good = np.asarray(rows.column("iteration")) >= cell.warmup
        good &= np.asarray(rows.column("flags")) == 0
        rows = rows.filter(pa.array(good))
    return with_trial(record, cell, rows)


def with_trial(record: TrialRecord, cell: StoredCell, rows: pa.Table) -> pa.Table:
    """Return rows with the columns of their trial and cell before them; text is kept once, however many rows."""
    columns = {name: _constant(value, rows.num_rows) for name, value in keys(record, cell).items()}
    return pa.table({**columns, **{name: rows.column(name) for name in rows.column_names}})


def _constant(value: int | str, length: int) -> pa.ChunkedArray[Any]:
    """Return one value as a column; text as a dictionary of one entry."""
    if isinstance(value, int):
        return pa.chunked_array([pa.array(np.full(length, value, np.int64))])
    return pa.chunked_array([pa.DictionaryArray.from_arrays(np.zeros(length, np.int32), [value])])


def pair_table(of: Survey) -> pa.Table:
    """Return every ordered pair of a fabric's nodes with its figures."""
    nodes = len(of.names)
    node, partner = (axis.ravel() for axis in np.indices((nodes, nodes)))
    kept = node != partner
    rate = np.full((nodes, nodes), np.nan) if of.rate is None else of.rate
    names = pa.array(of.names)
    return pa.table(
        {
            "node": names.take(pa.array(node[kept])),
            "partner": names.take(pa.array(partner[kept])),
            "latency_us": pa.array(of.latency_us.ravel()[kept], from_pandas=True),
            "bandwidth_mb_per_s": pa.array(rate.ravel()[kept], from_pandas=True),
        }
    )
