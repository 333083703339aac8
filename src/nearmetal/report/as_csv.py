"""The report as CSV: one row a path and cell, figures unrounded, for a spreadsheet or a plotting program."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from nearmetal.errors import visible
from nearmetal.results.records import Cell, Level, PathCell, View
from nearmetal.stats.compare import RatioEstimate
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import Metric

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
    "mean",
    "mean_low",
    "mean_high",
    "median_ratio",
    "median_ratio_low",
    "median_ratio_high",
)
"""The columns, in this order; later versions only add columns at the end. `ratio` is the headline's: the mean's.
Intervals are at 95 %; an empty entry is a figure that does not exist or was refused because n cannot support it."""

Entry = str | int | float | None


def render(view: View) -> str:
    """Return the table with a header line; lines end in a line feed."""
    return table(COLUMNS, (_row(cell, one) for cell in view.cells for one in cell.paths))


def table(columns: Iterable[str], rows: Iterable[Iterable[Entry]]) -> str:
    """Return rows below a header; no text in them commands a spreadsheet or a terminal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(one) if isinstance(one, str) else one for one in row] for row in rows)
    return text.getvalue()


def _row(cell: Cell, one: PathCell) -> tuple[Entry, ...]:
    comparison = one.comparison
    headline = comparison.headline if comparison else None
    estimates = comparison.estimates if comparison else {}
    group = cell.group
    return (
        group.workload,
        group.operation,
        group.setting,
        cell.message_bytes,
        one.path,
        cell.shown.unit,
        str(cell.shown.better),
        len(one.trials),
        one.iterations,
        *_level(one.levels[Metric.MEDIAN]),
        *_level(one.levels[Metric.P99]),
        headline.n if headline else None,
        *_ratio(headline),
        *_ratio(estimates.get(Metric.P99)),
        headline.judgement.p_difference if headline else None,
        headline.judgement.p_equivalence if headline else None,
        str(comparison.verdict) if comparison else None,
        cell.noise.floor if cell.noise else None,
        *_level(one.levels[Metric.MEAN]),
        *_ratio(estimates.get(Metric.MEDIAN)),
    )


def _plain(text: str) -> str:
    """Return text that no spreadsheet takes for a formula (OWASP, CSV Injection), and no terminal for a command."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown


def _level(level: Level) -> tuple[Entry, ...]:
    return (level.value, *_ends(level.interval))


def _ratio(estimate: RatioEstimate | None) -> tuple[Entry, ...]:
    return (estimate.ratio, *_ends(estimate.interval)) if estimate else (None, None, None)


def _ends(interval: Interval | None) -> tuple[Entry, Entry]:
    return (interval.low, interval.high) if interval else (None, None)
