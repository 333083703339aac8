"""One figure a trial and cell: what statistics over blocks are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.store.rundir import RunDir, TrialRecord

CellKey = tuple[str, int]
"""Operation and message size in bytes."""


def trial_medians(run: RunDir, records: Iterable[TrialRecord]) -> dict[CellKey, dict[int, float]]:
    """Return the median (ns) of every cell of the valid trials: cell -> block -> median.

    The records must be of one combination; a second attempt stands for its block like a first.
    """
    medians: dict[CellKey, dict[int, float]] = {}
    for record in records:
        if not record.valid:
            continue
        for cell in record.cells:
            values = run.values(record, cell)
            if values.size:
                key = (cell.operation, cell.message_bytes)
                medians.setdefault(key, {})[record.order.block] = float(np.median(values))
    return medians
