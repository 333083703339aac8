"""The report as CSV: one row a path and cell, figures unrounded, for a spreadsheet or a plotting program."""

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict

from nearmetal.errors import visible
from nearmetal.results.records import Cell, PathCell, View
from nearmetal.stats.compare import RatioEstimate
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import Metric

Entry = str | int | float | None


def render(view: View) -> str:
    """Return the table with a header line; lines end in a line feed."""
    rows = [_row(cell, one, view.host_label) for cell in view.cells for one in cell.paths]
    return table(rows[0] if rows else (), (row.values() for row in rows))


def table(columns: Iterable[str], rows: Iterable[Iterable[Entry]]) -> str:
    """Return rows below a header; no text in them commands a spreadsheet or a terminal."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(one) if isinstance(one, str) else one for one in row] for row in rows)
    return text.getvalue()


def _row(cell: Cell, one: PathCell, host_label: str) -> dict[str, Entry]:
    """Return one line by the names of its columns; later versions only add columns at the end.

    `ratio` is the headline's: the mean's. Intervals are at 95 %; an empty entry is a figure that does not exist or was
    refused because n cannot support it. `figures_from` says in each line what kind of machine measured it.
    """
    comparison = one.comparison
    headline = comparison.headline if comparison else None
    estimates = comparison.estimates if comparison else {}
    return {
        **asdict(cell.group),
        "message_bytes": cell.message_bytes,
        "path": one.path,
        "unit": cell.shown.unit,
        "better": str(cell.shown.better),
        "trials": len(one.trials),
        "iterations": one.iterations,
        **_level(one, Metric.MEDIAN),
        **_level(one, Metric.P99),
        "blocks_compared": headline.blocks if headline else None,
        **_ratio("ratio", headline),
        **_ratio("p99_ratio", estimates.get(Metric.P99)),
        "p_difference_holm": headline.judgement.p_difference if headline else None,
        "p_equivalence_holm": headline.judgement.p_equivalence if headline else None,
        "verdict": str(comparison.verdict) if comparison else None,
        "noise_floor": cell.noise.floor if cell.noise else None,
        **_level(one, Metric.MEAN),
        **_ratio("median_ratio", estimates.get(Metric.MEDIAN)),
        "occasions_compared": headline.occasions if headline else None,
        "figures_from": host_label,
    }


def _plain(text: str) -> str:
    """Return text that no spreadsheet takes for a formula (OWASP, CSV Injection), and no terminal for a command."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown


def _level(one: PathCell, metric: Metric) -> dict[str, Entry]:
    level = one.levels[metric]
    return _figure(str(metric), level.value, level.interval)


def _ratio(name: str, estimate: RatioEstimate | None) -> dict[str, Entry]:
    return _figure(name, estimate.ratio, estimate.interval) if estimate else _figure(name, None, None)


def _figure(name: str, value: float | None, interval: Interval | None) -> dict[str, Entry]:
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
