"""The launches of a run by cell and block: what every figure over blocks is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.stats.summary import Summary
    from nearmetal.store.rundir import RunDir, TrialRecord

CellKey = tuple[str, int]
"""Operation and message size in bytes."""


def launches(run: RunDir, records: Iterable[TrialRecord]) -> dict[CellKey, dict[int, Summary]]:
    """Return the summary of every cell of the valid trials: cell -> block -> summary.

    The records must be of one combination; a second attempt stands for its block like a first.
    """
    found: dict[CellKey, dict[int, Summary]] = {}
    for record in records:
        if record.valid:
            for cell in record.cells:
                key = (cell.operation, cell.message_bytes)
                found.setdefault(key, {})[record.order.block] = run.summary(record, cell)
    return found
