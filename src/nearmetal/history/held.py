"""Runs in memory as a history: what `serve` shows of a directory, without a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.history.records import EntryCell, KeptRun, RunEntry
    from nearmetal.stats.summary import Metric


class RunsAtHand:
    """Answers what `Database` answers; of copies of one run the one with the most trials counts."""

    def __init__(self, path: str, kept: Iterable[KeptRun]) -> None:
        self.path = path
        fullest: dict[str, KeptRun] = {}
        for one in kept:
            known = fullest.setdefault(one.entry.run_id, one)
            if one.entry.trials > known.entry.trials:
                fullest[one.entry.run_id] = one
        self._kept = sorted(fullest.values(), key=lambda one: (one.entry.created_utc, one.entry.run_id))

    def runs(self) -> list[RunEntry]:
        """Return the runs by date, then by identity."""
        return [one.entry for one in self._kept]

    def facts(self) -> dict[str, dict[str, str]]:
        """Return each run's facts by its identity."""
        return {one.entry.run_id: dict(one.facts) for one in self._kept}

    def cells(self, metric: Metric) -> list[tuple[str, EntryCell]]:
        """Return every cell under one metric with the identity of its run."""
        return [(one.entry.run_id, cell) for one in self._kept for cell in one.cells if cell.metric is metric]
