"""The report as CSV: one row a path and cell, figures unrounded, for a spreadsheet or a plotting program."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from nearmetal.errors import visible

if TYPE_CHECKING:
    from nearmetal.report.records import Cell, Level, PathCell, View
    from nearmetal.stats.compare import RatioEstimate
    from nearmetal.stats.interval import Interval

COLUMNS = (
    "workload",
    "operation",
    "setting",
    "message_bytes",
    "path",
    "unit",
    "better",
    "trials",
    "iterations",
    "median",
    "median_low",
    "median_high",
    "p99",
    "p99_low",
    "p99_high",
    "blocks_compared",
    "ratio",
    "ratio_low",
    "ratio_high",
    "p99_ratio",
    "p99_ratio_low",
    "p99_ratio_high",
    "p_difference_holm",
    "p_equivalence_holm",
    "verdict",
    "noise_floor",
)
"""The columns, in this order; later versions only add columns at the end. Intervals are at 95 %; an empty entry is a
figure that does not exist or was refused because n cannot support it."""

_Entry = str | int | float | None


def render(view: View) -> str:
    """Return the table with a header line; lines end in a line feed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in view.cells:
        for one in cell.paths:
            writer.writerow(_row(cell, one))
    return text.getvalue()


def _row(cell: Cell, one: PathCell) -> tuple[_Entry, ...]:
    comparison = one.comparison
    median = comparison.median if comparison else None
    group = cell.group
    return (
        plain(group.workload),
        plain(group.operation),
        plain(group.setting),
        cell.message_bytes,
        plain(one.path),
        cell.shown.unit,
        str(cell.shown.better),
        len(one.trials),
        one.iterations,
        *_level(one.median),
        *_level(one.p99),
        median.n if median else None,
        *_ratio(median),
        *_ratio(comparison.p99 if comparison else None),
        median.judgement.p_difference if median else None,
        median.judgement.p_equivalence if median else None,
        str(comparison.verdict) if comparison else None,
        cell.noise.floor if cell.noise else None,
    )


def plain(text: str) -> str:
    """Return text that no spreadsheet takes for a formula (OWASP, CSV Injection), and no terminal for a command."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown


def _level(level: Level) -> tuple[_Entry, ...]:
    return (level.value, *_ends(level.interval))


def _ratio(estimate: RatioEstimate | None) -> tuple[_Entry, ...]:
    return (estimate.ratio, *_ends(estimate.interval)) if estimate else (None, None, None)


def _ends(interval: Interval | None) -> tuple[_Entry, _Entry]:
    return (interval.low, interval.high) if interval else (None, None)
