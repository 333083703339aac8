"""A history as one HTML page: no script, no request, a chart for each series, those that changed first."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from nearmetal.history import words as history_words
from nearmetal.history.records import History, Point, Series
from nearmetal.report import charts, words
from nearmetal.report.as_html import table_region
from nearmetal.report.axes import PlotArea, Scale, joined, linear, placed, ratios, x_axis, y_axis
from nearmetal.report.markup import (
    Markup,
    PageFrame,
    element,
    header,
    listed,
    page,
    pixels,
    scrolling,
    section,
    together,
)
from nearmetal.units import counted

MAX_CHARTS = 120
"""Beyond this many, series without a change are left to the table, so that the page stays small."""
_FRAME = PlotArea(58.0, 34.0, 540.0, 220.0)
_HEIGHT = 270.0
_WIDE = PlotArea(58.0, 34.0, 900.0, 260.0)
_LINES = 120
LEAST_SHOWN = 0.02
"""The scale of ratios is linear within this: noise of a per cent is no mountain range."""
_NAMED = 12


def render(history: History, frame: PageFrame | None = None) -> str:
    """Return the page as text; write it as UTF-8."""
    calm = [one for one in history.series if not one.changes][: max(0, MAX_CHARTS - len(history.marked))]
    left_out = len(history.series) - len(history.marked) - len(calm)
    verb = "is" if left_out == 1 else "are"
    more = [element("p", f"{left_out} more {verb} in the table below.", class_="note")] if left_out else []
    every = "" if left_out else "Every series shows a change of level."
    return page(
        "History",
        header(
            "nearmetal history",
            Path(history.source).name,
            meta=f"{history.source}: {counted(len(history.runs), 'run')}; {history.metric} of each.",
            labels=dict.fromkeys(run.entry.host_label for run in history.runs),
        ),
        element(
            "main",
            section(
                "Changes of level",
                element("p", history_words.found(history), class_="lead"),
                *([element("figure", scrolling(together_chart(history), "All series"))] if history.series else []),
                table_region(history_words.changes(history)),
                _charts(history, history.marked, "No series shows a change of level."),
                id="verdicts",
            ),
            section("Series that show no change", _charts(history, calm, every), *more),
            element(
                "div",
                section("All series", *map(table_region, history_words.overviews(history))),
                section(
                    "Runs",
                    table_region(history_words.runs(history)),
                    listed(history.left_out, element("h3", "Left out")),
                ),
                class_="pair",
            ),
        ),
        frame=frame,
    )


def together_chart(history: History) -> Markup:
    """Return all series on one scale, each against its own median: those that changed in colour, with their cell."""
    calm = [one for one in history.series if not one.changes]
    room = max(0, _LINES - len(history.marked))
    shown: list[tuple[Series, int | None]] = [(one, None) for one in calm[:room]]
    shown += [(one, number) for number, one in enumerate(history.marked[:_LINES])]
    lines = [(one, number, _relative(one)) for one, number in shown]
    every = [value for *_, values in lines for value in values]
    y = ratios(min(every), max(every), LEAST_SHOWN, _WIDE.bottom, _WIDE.top)
    step = (_WIDE.right - _WIDE.left) / max(1, len(history.runs))
    ticks = tuple((_WIDE.left + step * (run.number - 0.5), str(run.number)) for run in history.runs)
    x = {run.number: at for run, (at, _) in zip(history.runs, ticks, strict=True)}
    parts = [
        x_axis(_WIDE, placed(ticks), "run"),
        y_axis(_WIDE, y, f"{history.metric} of a run against the median of its series"),
    ]
    for one, number, values in lines:
        points = [(x[point.run], y(value)) for point, value in zip(one.points, values, strict=True)]
        parts.append(_line(history, one, number, points))
    named = [(_look(number), words.short(history.title(one), 26)) for number, one in enumerate(history.marked[:_NAMED])]
    named += [(_look(None), f"{len(calm[:room])} that show no change")] if calm[:room] else []
    for row, (look, name) in enumerate(named):
        at = _WIDE.top + 8 + 17.0 * row
        parts.append(element("path", class_=f"series {look} line", d=f"M{pixels(_WIDE.right + 8)} {pixels(at)}h20"))
        parts.append(element("text", name, class_="name", x=_WIDE.right + 34, y=at + 4))
    label = (
        f"{len(history.series)} series over {counted(len(history.runs), 'run')}; {len(history.marked)} show a change"
    )
    return charts.chart(label, *parts, width=1150.0, height=310.0)


def _relative(one: Series) -> list[float]:
    values = [point.level.value for point in one.points]
    middle = median(values)
    return [value / middle if middle > 0 else 1.0 for value in values]


def _look(number: int | None) -> str:
    """Return the classes of a line: beyond eight series dashes tell apart those of one colour."""
    return "again thin" if number is None else f"c{number % charts.COLOURS} d{number // charts.COLOURS % 3}"


def _line(history: History, one: Series, number: int | None, points: Sequence[tuple[float, float]]) -> Markup:
    look = _look(number)
    tip = element("title", _caption(history, one))
    if len(points) == 1:
        return element("circle", tip, class_=f"series {look} mark", cx=points[0][0], cy=points[0][1], r=3.6)
    return element("path", tip, class_=f"series {look} line", d=joined(points))


def _charts(history: History, series: Sequence[Series], none: str) -> Markup:
    """Return a chart a series; the sentence `none`, which may be empty, where there is nothing to draw."""
    figures = [element("figure", element("figcaption", _caption(history, one)), chart(history, one)) for one in series]
    if figures:
        return element("div", *figures, class_="pair")
    return element("p", none, class_="note") if none else together()


def _caption(history: History, one: Series) -> str:
    moved = [
        f"{history_words.shift(change.ratio)} ({history_words.direction(one.shown, change.ratio)})"
        for change in one.changes
    ]
    return f"{history.title(one)}{': ' + ', then '.join(moved) if moved else ''}"


def chart(history: History, one: Series) -> Markup:
    """Return a series as an image: levels with intervals, medians between changes, and where facts changed."""
    points = one.points
    y = linear(*_reach(points), _FRAME.bottom, _FRAME.top)
    at, step = charts.columns(len(points), _FRAME)
    ticks = tuple((x, str(point.run)) for x, point in zip(at, points, strict=True))
    parts = [
        x_axis(_FRAME, placed(ticks), "run"),
        y_axis(_FRAME, y, f"{one.shown.name}, {one.shown.unit}"),
        *_machines(history, one, at, step),
        *_segments(one, at, step, y),
    ]
    for index, (x, point) in enumerate(zip(at, points, strict=True)):
        tip = _tip(history, one, index)
        if point.level.interval:
            ends = (y(point.level.interval.low), y(min(point.level.interval.high, y.high)))
            parts.append(element("line", class_="series c0 whisker", x1=x, x2=x, y1=ends[0], y2=ends[1]))
        dot = element("circle", element("title", tip), class_="series c0 mark", cx=x, cy=y(point.level.value), r=3.6)
        parts.append(dot)
    return charts.chart(f"{history.title(one)} over {counted(len(points), 'run')}", *parts, height=_HEIGHT)


def _reach(points: Sequence[Point]) -> tuple[float, float]:
    """Return the span of the axis: all levels, intervals as far as three times the span of the levels."""
    values = [point.level.value for point in points]
    low, high = min(values), max(values)
    room = max(high - low, 0.05 * high)
    ends = [end for p in points if (i := p.level.interval) for end in (i.low, i.high) if math.isfinite(end)]
    return max(min([low, *ends]), low - room, 0.0), min(max([high, *ends]), high + room)


def _machines(history: History, one: Series, at: Sequence[float], step: float) -> list[Markup]:
    """Return a broken line before each run that was measured with something else than the one before it."""
    lines = []
    for index, point in enumerate(one.points[1:], 1):
        changed = history.changed(one, index)
        if changed:
            tip = element("title", f"run {point.run}: {'; '.join(changed)}")
            where = at[index] - step / 2
            lines.append(element("line", tip, class_="machine", x1=where, x2=where, y1=_FRAME.top, y2=_FRAME.bottom))
    return lines


def _segments(one: Series, at: Sequence[float], step: float, y: Scale) -> list[Markup]:
    """Return the median of each stretch between changes, and a line at each change."""
    edges = [0, *(change.index for change in one.changes), len(one.points)]
    drawn = []
    for first, last in pairwise(edges):
        middle = median(point.level.value for point in one.points[first:last])
        start, end = at[first] - step / 2, at[last - 1] + step / 2
        drawn.append(element("path", class_="level", d=f"M{pixels(start)} {pixels(y(middle))}H{pixels(end)}"))
        if first:
            drawn.append(element("line", class_="change", x1=start, x2=start, y1=_FRAME.top, y2=_FRAME.bottom))
    return drawn


def _tip(history: History, one: Series, index: int) -> str:
    point = one.points[index]
    run = history.runs[point.run - 1]
    interval = point.level.interval
    span = f" [{words.span(interval.low, interval.high)}]" if interval else ""
    facts = "".join(f"\n{change}" for change in history.changed(one, index))
    return (
        f"run {run.number}, {run.entry.created_utc}: {words.figure(point.level.value)}{span} {one.shown.unit}, "
        f"n = {words.counts(point.blocks, point.occasions)}{facts}"
    )
