"""The wording of a history: the same rows and sentences on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from nearmetal.history.records import History, Origin, Series
from nearmetal.report import as_table, words
from nearmetal.report.tables import Table
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.changes import least_runs
from nearmetal.stats.summary import Metric
from nearmetal.units import by_key, counted

if TYPE_CHECKING:
    from nearmetal.report.terminal import Console

_BARS = "▁▂▃▄▅▆▇█"
_WIDEST = 24
_CHANGE, _MACHINE = "│", "╎"
_LEAST_SPAN = 1.1
"""A sparkline spans at least this ratio, so that noise of a per cent does not look like a mountain range."""
_LATEST = 12


def direction(shown: DisplayScale, ratio: float) -> str:
    """Return whether a ratio of levels is a gain."""
    return "worse" if (ratio > 1.0) is not shown.rate else "better"


def shift(ratio: float) -> str:
    """Return a change of level as a signed percentage."""
    return f"{'+' if ratio >= 1 else '-'}{words.percent(abs(ratio - 1.0))}"


def sparkline(history: History, one: Series) -> str:
    """Return the levels as bars; a line before a run where the level changed, a broken one where facts did.

    Of a long series each bar stands for neighbouring runs by their median.
    """
    count = len(one.points)
    bars = min(count, _WIDEST)
    edges = [number * count // bars for number in range(bars + 1)]
    values = [median(point.level.value for point in one.points[a:b]) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    missing = max(1.0, _LEAST_SPAN / (high / low)) ** 0.5
    low, high = low / missing, high * missing
    changed = {change.index for change in one.changes}
    others = {number for number in range(1, count) if history.changed(one, number)}
    drawn = []
    for value, (a, b) in zip(values, pairwise(edges), strict=True):
        inside = set(range(a, b))
        drawn.append(_CHANGE if inside & changed else _MACHINE if inside & others else "")
        drawn.append(_BARS[min(7, int(8 * (value - low) / (high - low)))])
    return "".join(drawn)


def overviews(history: History) -> list[Table]:
    """Return a table a study and host: the picture of every series, and its latest level."""
    grouped = by_key((one.origin, one) for one in history.series)
    return [_overview(history, origin, series) for origin, series in grouped.items()]


def _overview(history: History, origin: Origin, series: Sequence[Series]) -> Table:
    rows = []
    latest = max(run.number for run in history.runs if run.entry.origin == origin)
    for one in series:
        run, last = one.points[-1].run, one.points[-1].level
        span = words.span(last.interval.low, last.interval.high) if last.interval else words.NOTHING
        level = words.figure(last.value) + (f" (run {run})" if run < latest else "")  # the later ones have no figure
        rows.append((one.name, sparkline(history, one), level, span, one.shown.unit))
    return Table(
        f"{origin}: {history.metric} of each run",
        ("cell", "over the runs", "latest", "95 % interval", "unit"),
        tuple(rows),
        f"{_CHANGE} the level changed here; {_MACHINE} kernel, driver, code or study changed here.",
        left=2,
    )


def changes(history: History) -> Table:
    """Return every change found, series by series."""
    rows = []
    for one in history.marked:
        for change in one.changes:
            run = history.runs[one.points[change.index].run - 1]
            moved = f"{shift(change.ratio)} {direction(one.shown, change.ratio)}"
            why = "; ".join(history.changed(one, change.index)) or "no fact changed with it"
            rows.append((history.title(one), f"{run.number}", run.entry.created_utc[:10], moved, why))
    return Table(
        "Changes of level", ("cell", "run", "since", "level", "what changed with that run"), tuple(rows), left=5
    )


def runs(history: History) -> Table:
    """Return the runs, with what each was measured with that its predecessor was not."""
    rows = [
        (
            f"{run.number}",
            run.entry.created_utc[:16].replace("T", " "),
            run.entry.study_name,
            run.entry.host_kind,
            f"{run.entry.blocks}",
            "\n".join(run.changed) or words.NOTHING,
        )
        for run in history.runs
    ]
    return Table(
        "Runs", ("run", "date", "study", "host", "blocks", "changed since the one before"), tuple(rows), left=6
    )


def found(history: History) -> str:
    """Return how many series changed, and what that rests on."""
    marked = len(history.marked)
    text = f"{marked} of {len(history.series)} series {_show(marked)} a change of level in the {history.metric}."
    text += "".join(
        f" {count} more {_show(count)} one in the {metric}: `--metric {metric}`." for metric, count in history.further
    )
    least = min((len(one.points) for one in history.series), default=0)
    needed = least_runs(len(history.series), history.alpha)
    few = f" The shortest series has {counted(least, 'run')}: fewer than {needed} cannot show a change"
    few = f"{few}{' of one series alone' * (len(history.series) > 1)}." if least < needed else ""
    share = words.percent(history.alpha)
    false = f"; of those marked, at most {share} are expected to be false" if history.marked else ""
    rates = history.metric is Metric.P99 and any(one.shown.rate for one in history.series)
    durations = " The p99 of a rate is that of the durations: the rate of the slowest hundredth." if rates else ""
    return f"{text} Changes are sought by ranks and permutations{false}.{few}{durations}"


def _show(count: int) -> str:
    return "shows" if count == 1 else "show"


# ---- A history on a terminal, in 80 columns


def as_text(history: History, console: Console) -> None:
    """Print each study's series, the changes, and the latest runs."""
    for label in dict.fromkeys(run.entry.host_label for run in history.runs):
        console.print(f"Figures from {label}.")
    as_table.draw(console, [*overviews(history), changes(history)])
    listed = runs(history)
    if len(listed.rows) > _LATEST:
        heading = f"The latest {_LATEST} of {len(listed.rows)} runs"
        listed = replace(listed, title=heading, rows=listed.rows[-_LATEST:])
    as_table.draw(console, [listed])
    console.print()
    console.print(found(history))
    for line in history.left_out:
        console.print(f"Left out: {line}.")
