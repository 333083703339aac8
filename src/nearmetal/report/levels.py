"""The charts of one group: a figure of every path by message size, with intervals, and two modes drawn as two."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from nearmetal.report import words
from nearmetal.report.axes import PlotArea, Scale, joined, logarithmic, placed, x_axis, y_axis
from nearmetal.report.charts import FRAME, WIDTH, chart, labels_at_right, mark, path_class, readout, whisker
from nearmetal.report.markup import Markup, element, together
from nearmetal.results.records import Cell, GroupId, Level, PathCell, PathEntry, View
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.units import as_percent

_FARTHEST = 1000.0


def levels(view: View, group: GroupId, metric: Metric, href: Callable[[Cell], str | None] | None) -> Markup | None:
    """Return a figure by size, one row a path where there is a single size; None where no launch supports it."""
    cells = view.cells_of(group)
    if not any(one.levels[metric].value for cell in cells for one in cell.paths):
        return None
    return _in_rows(view, cells[0], metric) if len(cells) == 1 else _by_size(view, cells, metric, href)


def _title(cell: Cell, metric: Metric) -> str:
    of = "of durations as" if metric is Metric.P99 and cell.shown.rate else "of"
    return f"{metric} {of} {cell.shown.name}, {cell.shown.unit} (log scale)"


def _points(view: View, cell: Cell, metric: Metric) -> list[tuple[PathEntry, PathCell, Level, float]]:
    """Return entry, cell, level and its value of every path that has one."""
    found = [(entry, one) for entry in view.shown_paths if (one := cell.of(entry.label))]
    return [(entry, one, level, level.value) for entry, one in found if (level := one.levels[metric]).value]


def mode_centres(one: PathCell, cell: Cell, metric: Metric) -> list[tuple[float, float]]:
    """Return figure and share of each mode of the typical launch; none where most launches have a single one."""
    if not one.multimodal or metric is not HEADLINE:
        return []
    typical = one.multimodal[len(one.multimodal) // 2]
    return [(cell.shown.value(mode.centre_ns), mode.share) for mode in typical.modes]


def _reach(view: View, cells: Iterable[Cell], metric: Metric) -> tuple[float, float]:
    """Return the ends of the axis; of an interval that bounds nothing only what leaves the levels to be seen."""
    ends = []
    for cell in cells:
        for _, one, level, value in _points(view, cell, metric):
            ends += [value, *(centre for centre, _ in mode_centres(one, cell, metric))]
            if level.interval:
                ends += [max(level.interval.low, value / _FARTHEST), min(level.interval.high, value * _FARTHEST)]
    finite = [value for value in ends if math.isfinite(value) and value > 0]
    return min(finite), max(finite)


def _by_size(view: View, cells: Sequence[Cell], metric: Metric, href: Callable[[Cell], str | None] | None) -> Markup:
    xs = _size_positions(cells)
    y = logarithmic(*_reach(view, cells, metric), FRAME.bottom, FRAME.top)
    ticks = tuple((x, words.size(cell)) for cell, x in zip(cells, xs, strict=True))
    parts = [x_axis(FRAME, placed(ticks), "message size (log scale)"), y_axis(FRAME, y, _title(cells[0], metric))]
    lines: dict[str, list[tuple[float, float]]] = {}
    zones = []
    width = min((b - a for a, b in pairwise(xs)), default=40.0)
    for cell, x in zip(cells, xs, strict=True):
        points = _points(view, cell, metric)
        for entry, one, level, value in points:
            lines.setdefault(entry.label, []).append((x, y(value)))
            if level.interval:
                parts.append(whisker(entry, x, y(level.interval.low), y(level.interval.high)))
            parts.append(_dot(entry, mode_centres(one, cell, metric) or [(value, 1.0)], x, y))
        reading = [(entry, _reading(one, level, cell, metric)) for entry, one, level, _ in points]
        if href:
            zones.append(readout(FRAME, (x, width), words.cell_title(view, cell), reading, href(cell)))
    entries = [entry for entry in view.shown_paths if entry.label in lines]
    for entry in entries:
        parts.insert(2, element("path", class_=f"{path_class(entry)} line", d=joined(lines[entry.label])))
    ends = [(entry, lines[entry.label][-1][1]) for entry in entries]
    label = f"{_title(cells[0], metric)} by message size, one line per path"
    return chart(label, *parts, labels_at_right(ends, FRAME), zones=zones)


def _size_positions(cells: Sequence[Cell]) -> list[float]:
    """Return where sizes lie: evenly in log2, a size of 0 one step before the least."""
    logs = [math.log2(cell.message_bytes) if cell.message_bytes else -1.0 for cell in cells]
    inner = (FRAME.left + 18, FRAME.right - 14)
    return [inner[0] + (inner[1] - inner[0]) * (at - logs[0]) / ((logs[-1] - logs[0]) or 1.0) for at in logs]


def _dot(entry: PathEntry, centres: Sequence[tuple[float, float]], x: float, y: Scale) -> Markup:
    """Return the mark of a level; modes as a hollow mark each, the rarer ones small."""
    if len(centres) == 1:
        return mark(entry, x, y(centres[0][0]))
    most = max(share for _, share in centres)
    apart = whisker(entry, x, y(centres[0][0]), y(centres[-1][0]), "whisker loose")
    return together(apart, *(mark(entry, x, y(at), small=share < most, hollow=True) for at, share in centres))


def _reading(one: PathCell, level: Level, cell: Cell, metric: Metric) -> str:
    span = f" [{words.level_span(level)}]" if level.interval else ""
    centres = mode_centres(one, cell, metric)
    modes = " and ".join(f"{words.figure(at)} ({as_percent(share)})" for at, share in centres)
    text = f", modes {modes}" if modes else ""
    return f"{words.short(one.path)} {words.level(level)}{span}{text}"


def _in_rows(view: View, cell: Cell, metric: Metric) -> Markup:
    points = _points(view, cell, metric)
    frame = PlotArea(110.0, 12.0, WIDTH - 110.0, 26.0 + 30.0 * len(points))
    x = logarithmic(*_reach(view, [cell], metric), frame.left, frame.right)
    parts = [x_axis(frame, x, _title(cell, metric))]
    for number, (entry, one, level, value) in enumerate(points):
        y = frame.top + 22 + 30.0 * number
        if level.interval:
            ends = {"x1": x(level.interval.low), "x2": x(level.interval.high), "y1": y, "y2": y}
            parts.append(element("line", class_=f"{path_class(entry)} whisker", **ends))
        centres = mode_centres(one, cell, metric)
        tip = f"{_reading(one, level, cell, metric)}, {words.counts(level.blocks, level.occasions)}"
        parts += [mark(entry, x(at), y, hollow=bool(centres), title=tip) for at, _ in centres or [(value, 1.0)]]
        parts.append(element("text", words.short(entry.label), class_="name", x=0, y=y + 4))
        parts.append(element("text", words.level(level), class_="name", x=frame.right + 12, y=y + 4))
    return chart(f"{_title(cell, metric)}, one row per path", *parts, height=frame.bottom + 44)
