"""The charts of a report as inline SVG: no script, so they print, scale, follow the theme and need no network.

A path keeps its colour, dash and mark in every chart (`path_class`, `mark`); colours come from the style sheet.
Tables hold the same figures, so each chart is one image with a label to a screen reader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.report import words
from nearmetal.report.axes import Frame, Scale, linear, logarithmic, ratios, spread_apart, x_axis, y_axis
from nearmetal.report.markup import Markup, element, pixels, together
from nearmetal.stats.equivalence import Verdict
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nearmetal.report.records import Cell, GroupId, PathCell, PathEntry, View
    from nearmetal.stats.compare import RatioEstimate
    from nearmetal.stats.tails import Curve

WIDTH, HEIGHT = 560.0, 340.0
FRAME = Frame(left=58.0, top=34.0, right=452.0, bottom=288.0)
COLOURS = 8
CURVE_BYTES = 400_000
"""How many bytes of a report curves may take, so that a large study stays below a megabyte."""


def path_class(entry: PathEntry) -> str:
    """Return the classes that give a path its colour and dash: the baseline is ink, others a colour each."""
    if entry.again:
        return "series again"
    return "series base" if entry.baseline else f"series c{entry.number % COLOURS} d{entry.number // COLOURS % 3}"


def mark(entry: PathEntry, x: float, y: float, *, small: bool = False, hollow: bool = False, title: str = "") -> Markup:
    """Return a path's mark: its shape tells paths apart where colour does not. `title` shows when it is pointed at."""
    tip = [element("title", title)] if title else []
    kind = f"{path_class(entry)} mark{' hollow' if hollow else ''}"
    return element("use", *tip, class_=kind, href=_shape_id(entry, small=small), x=x, y=y)


def marks(entry: PathEntry, points: Sequence[tuple[float, float]], *, hollow: bool = False) -> Markup:
    """Return many marks of one path, briefly."""
    shape = _shape_id(entry, small=False)
    placed = [element("use", href=shape, x=x, y=y) for x, y in points]
    return element("g", *placed, class_=f"{path_class(entry)} mark{' hollow' if hollow else ''}")


def _shape_id(entry: PathEntry, *, small: bool) -> str:
    shape = 0 if entry.baseline or entry.again else entry.number % len(_SHAPES)
    return f"#{'s' if small else 'm'}{shape}"


_SHAPES: tuple[tuple[tuple[float, float], ...], ...] = (
    (),
    ((0, -1.25), (1.15, 0.85), (-1.15, 0.85)),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((-1.15, -0.85), (1.15, -0.85), (0, 1.25)),
)


def shapes() -> Markup:
    """Return the marks that charts use, large and small; once a page."""
    drawn = []
    for number, corners in enumerate(_SHAPES):
        for letter, size in (("m", 4.3), ("s", 2.2)):
            points = " ".join(f"{pixels(x * size)},{pixels(y * size)}" for x, y in corners)
            name = f"{letter}{number}"
            drawn.append(element("polygon", id=name, points=points) if points else element("circle", id=name, r=size))
    return element("svg", element("defs", *drawn), class_="defs", aria_hidden="true")


def swatch(entry: PathEntry) -> Markup:
    """Return a path's mark on its line, to stand before its name in text."""
    line = element("line", class_=path_class(entry), x1=0, x2=22, y1=7, y2=7)
    return element("svg", line, mark(entry, 11, 7), class_="swatch", viewbox="0 0 22 14", aria_hidden="true")


def chart(label: str, *parts: Markup, width: float = WIDTH, height: float = HEIGHT) -> Markup:
    """Return parts as one image that a screen reader reads by its label."""
    return element(
        "svg", *parts, class_="chart", viewbox=f"0 0 {pixels(width)} {pixels(height)}", role="img", aria_label=label
    )


def _figure_label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.6g}"


def _whisker(entry: PathEntry, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return element("line", class_=f"{path_class(entry)} whisker", x1=x1, x2=x2, y1=y1, y2=y2)


def _labels_at_right(ends: Sequence[tuple[PathEntry, float]], frame: Frame) -> Markup:
    """Return the names of lines beside their ends, moved apart where they would touch."""
    placed = spread_apart([y for _, y in ends], 15.0, frame.top + 4, frame.bottom)
    parts = []
    for (entry, wanted), y in zip(ends, placed, strict=True):
        start = frame.right + 5
        parts.append(
            element("path", class_="leader", d=f"M{pixels(start)} {pixels(wanted)}L{pixels(start + 9)} {pixels(y)}")
        )
        parts.append(mark(entry, start + 15, y))
        parts.append(element("text", words.short(entry.label), class_="name", x=start + 24, y=y + 4))
    return together(*parts)


# ---- figures by size


def levels(view: View, group: GroupId) -> Markup:
    """Return the means by size with their intervals; one row a path where there is a single size."""
    cells = view.cells_of(group)
    return _levels_in_rows(view, cells[0]) if len(cells) == 1 else _levels_by_size(view, cells)


def _axis_title(cell: Cell) -> str:
    return f"{cell.shown.name}, {cell.shown.unit}"


def _reach(cells: Iterable[Cell]) -> tuple[float, float]:
    ends = []
    for cell in cells:
        for one in cell.paths:
            if one.headline.value is not None:
                ends += [one.headline.value, *((i.low, i.high) if (i := one.headline.interval) else ())]
    finite = [value for value in ends if math.isfinite(value) and value > 0]
    return (min(finite), max(finite)) if finite else (1.0, 10.0)


def _levels_by_size(view: View, cells: Sequence[Cell]) -> Markup:
    xs = _size_positions(cells)
    y = logarithmic(*_reach(cells), FRAME.bottom, FRAME.top, _figure_label)
    parts = [_size_axis(cells, xs), y_axis(FRAME, y, f"{_axis_title(cells[0])} (log scale)")]
    ends = []
    for entry in view.shown_paths:
        points = [
            (x, one) for cell, x in zip(cells, xs, strict=True) if (one := cell.of(entry.label)) and one.headline.value
        ]
        if not points:
            continue
        line = "M" + "L".join(f"{pixels(x)} {pixels(y(one.headline.value or 0))}" for x, one in points)
        parts.append(element("path", class_=f"{path_class(entry)} line", d=line))
        parts += [_level_mark(entry, one, x, y) for x, one in points]
        ends.append((entry, y(points[-1][1].headline.value or 0)))
    return chart(f"{_axis_title(cells[0])} by message size, one line a path", *parts, _labels_at_right(ends, FRAME))


def _size_positions(cells: Sequence[Cell]) -> list[float]:
    """Return where sizes lie: evenly in log2, a size of 0 one step before the least."""
    logs = [math.log2(cell.message_bytes) if cell.message_bytes else -1.0 for cell in cells]
    inner = (FRAME.left + 18, FRAME.right - 14)
    return [inner[0] + (inner[1] - inner[0]) * (at - logs[0]) / ((logs[-1] - logs[0]) or 1.0) for at in logs]


def _size_axis(cells: Sequence[Cell], xs: Sequence[float]) -> Markup:
    ticks = tuple((x, words.size(cell)) for cell, x in zip(cells, xs, strict=True))
    return x_axis(FRAME, Scale(0.0, 1000.0, 0.0, 1000.0, float, ticks), "message size (log scale)")


def _level_mark(entry: PathEntry, one: PathCell, x: float, y: Scale) -> Markup:
    value = one.headline.value or 0.0
    title = (
        f"{entry.label}: {words.level(one.headline)} [{words.level_span(one.headline)}], {one.headline.blocks} blocks"
    )
    interval = one.headline.interval
    whisker = [_whisker(entry, x, y(interval.low), x, y(interval.high))] if interval else []
    return together(*whisker, mark(entry, x, y(value), title=title))


def _levels_in_rows(view: View, cell: Cell) -> Markup:
    rows = [(entry, one) for entry in view.shown_paths if (one := cell.of(entry.label)) and one.headline.value]
    frame = Frame(110.0, 12.0, WIDTH - 110.0, 26.0 + 30.0 * len(rows))
    x = logarithmic(*_reach([cell]), frame.left, frame.right, _figure_label)
    parts = [x_axis(frame, x, f"{_axis_title(cell)} (log scale)")]
    for number, (entry, one) in enumerate(rows):
        y, value = frame.top + 22 + 30.0 * number, one.headline.value or 0.0
        if one.headline.interval:
            parts.append(_whisker(entry, x(one.headline.interval.low), y, x(one.headline.interval.high), y))
        parts.append(mark(entry, x(value), y, title=f"{entry.label}: {words.level(one.headline)}"))
        parts.append(element("text", words.short(entry.label), class_="name", x=0, y=y + 4))
        parts.append(element("text", words.level(one.headline), class_="name", x=frame.right + 12, y=y + 4))
    return chart(f"{_axis_title(cell)}, one row a path", *parts, height=frame.bottom + 44)


# ---- ratios


@dataclass(frozen=True, slots=True)
class _RatioRow:
    name: str
    entry: PathEntry
    mean: RatioEstimate
    p99: RatioEstimate | None
    verdict: Verdict | None


def ratio_chart(view: View, group: GroupId) -> Markup:
    """Return every ratio to the baseline with its interval, over the margin and beside the A/A pair."""
    rows = [row for entry in view.paths if not entry.baseline for row in _ratio_rows(view, group, entry)]
    if not rows:
        return element("p", "Nothing could be compared here.", class_="note")
    paths = list(dict.fromkeys(row.entry.label for row in rows))
    height = 20.0 + 20.0 * len(rows) + 24.0 * len(paths)
    frame = Frame(74.0, 24.0, 372.0, 24.0 + height)
    low, high = _ratio_reach(rows)
    x = ratios(low, high, view.criteria.margin, frame.left, frame.right)
    edge = 1.0 + view.criteria.margin
    band = element("rect", class_="margin", x=x(1 / edge), width=x(edge) - x(1 / edge), y=frame.top, height=height)
    parts = [band, x_axis(frame, x, f"ratio to {view.baseline} (log scale, stretched within the margin)")]
    parts.append(element("line", class_="one", x1=x(1), x2=x(1), y1=frame.top, y2=frame.bottom))
    parts.append(
        element(
            "text",
            f"margin {words.percent(view.criteria.margin)}: {1 / edge:.3g}..{edge:.3g}",
            class_="tick",
            x=x(1),
            y=14,
            text_anchor="middle",
        )
    )
    y = frame.top + 4.0
    for label in paths:
        own = [row for row in rows if row.entry.label == label]
        y += 20.0
        parts.append(mark(own[0].entry, 6, y - 4))
        title = f"{label} (A/A: {view.baseline} against itself)" if own[0].entry.again else label
        parts.append(element("text", title, class_="name strong", x=16, y=y))
        for row in own:
            y += 20.0
            parts.append(_ratio_row(row, x, y - 4, frame))
        y += 4.0
    return chart(f"ratios to {view.baseline} with 95 % intervals", *parts, height=frame.bottom + 44)


def _ratio_rows(view: View, group: GroupId, entry: PathEntry) -> list[_RatioRow]:
    rows = []
    for cell in view.cells_of(group):
        if entry.again and cell.noise:
            rows.append(_RatioRow(words.size(cell), entry, cell.noise.estimate, None, None))
        elif (one := cell.of(entry.label)) and one.comparison:
            found = one.comparison
            rows.append(
                _RatioRow(words.size(cell), entry, found.headline, found.estimates.get(Metric.P99), found.verdict)
            )
    return rows


def _ratio_reach(rows: Sequence[_RatioRow]) -> tuple[float, float]:
    estimates = [estimate for row in rows for estimate in (row.mean, row.p99) if estimate]
    ends = [estimate.ratio for estimate in estimates]
    ends += [end for e in estimates if e.interval for end in (e.interval.low, e.interval.high)]
    usable = [end for end in ends if 1e-4 < end < 1e4]
    return min(usable, default=1.0) / 1.2, max(usable, default=1.0) * 1.2


def _ratio_row(row: _RatioRow, x: Scale, y: float, frame: Frame) -> Markup:
    parts = [element("text", row.name, class_="tick", x=frame.left - 8, y=y + 4, text_anchor="end")]
    if row.p99:
        tip = f"p99: {words.ratio(row.p99.ratio)} [{words.ratio_span(row.p99.interval)}]"
        if row.p99.interval:
            ends = (x(row.p99.interval.low), x(row.p99.interval.high))
            parts.append(
                element("line", class_=f"{path_class(row.entry)} thin", x1=ends[0], x2=ends[1], y1=y + 6, y2=y + 6)
            )
        parts.append(mark(row.entry, x(row.p99.ratio), y + 6, small=True, hollow=True, title=tip))
    if row.mean.interval:
        parts.append(_whisker(row.entry, x(row.mean.interval.low), y, x(row.mean.interval.high), y))
    undecided = row.verdict in {None, Verdict.UNDECIDED}
    span = words.ratio_span(row.mean.interval)
    tip = f"mean: {words.ratio(row.mean.ratio)} [{span}], n = {row.mean.n} blocks"
    parts.append(mark(row.entry, x(row.mean.ratio), y, hollow=undecided, title=tip))
    says = f"{words.ratio(row.mean.ratio)}  [{span}]"
    parts.append(element("text", says, class_="name figures", x=frame.right + 10, y=y + 4))
    return together(*parts)


# ---- distributions


def _span_of(cell: Cell) -> tuple[str, Callable[[float], float]]:
    """Return how durations are shown in distributions: as the cell's figure, or as durations where that is a rate."""
    if cell.shown.rate:
        return "duration of an iteration, us", lambda ns: ns / 1000.0
    return _axis_title(cell), cell.shown.value


def _curves(view: View, cell: Cell, take: Callable[[PathCell], Curve]) -> list[tuple[PathEntry, PathCell, Curve]]:
    return [(entry, one, take(one)) for entry in view.shown_paths if (one := cell.of(entry.label))]


def _budget(view: View) -> int:
    """Return how many points a curve may have."""
    curves = 2 * sum(len(cell.paths) for cell in view.cells)
    return max(24, min(200, CURVE_BYTES // (11 * max(1, curves))))


def _thinned(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most about `most` of the points, both ends kept, without those that move less than half a pixel."""
    kept = points[:1]
    for point in points[1:-1]:
        if abs(point[0] - kept[-1][0]) + abs(point[1] - kept[-1][1]) >= 0.7:
            kept.append(point)
    stride = max(1, math.ceil(len(kept) / most))
    return kept[::stride] + points[-1:] if len(points) > 1 else kept


def ecdf_chart(view: View, cell: Cell) -> Markup:
    """Return the cumulative distribution of every path, up to the p95 of the slowest; the tail has its own chart."""
    title, show = _span_of(cell)
    curves = _curves(view, cell, lambda one: one.ecdf)
    least = min(show(max(1.0, float(curve.ns[0]))) for _, _, curve in curves)
    most = max(show(_at(curve, 0.95)) for _, _, curve in curves)
    x = logarithmic(least, most, FRAME.left, FRAME.right, _figure_label)
    y = linear(0.0, 1.0, FRAME.bottom, FRAME.top, lambda v: f"{v:.0%}".replace("%", " %"))
    parts = [x_axis(FRAME, x, f"{title} (log scale)"), y_axis(FRAME, y, "share of iterations at or below")]
    for entry, _, curve in curves:
        inside = [
            (show(float(ns)), f) for ns, f in zip(curve.ns, curve.fraction, strict=True) if show(float(ns)) <= x.high
        ]
        points = _thinned([(x(v), y(float(f))) for v, f in inside], _budget(view))
        if not points:
            continue
        steps = "".join(f"H{pixels(px)}V{pixels(py)}" for px, py in points)
        parts.append(
            element(
                "path", class_=f"{path_class(entry)} line", d=f"M{pixels(points[0][0])} {pixels(FRAME.bottom)}{steps}"
            )
        )
    return chart(
        f"cumulative distribution, {words.cell_title(view, cell)}", *parts, _labels_on_median(curves, show, x, y)
    )


def _at(curve: Curve, fraction: float) -> float:
    return float(curve.ns[min(int(curve.fraction.searchsorted(fraction)), curve.ns.size - 1)])


def _labels_on_median(
    curves: Sequence[tuple[PathEntry, PathCell, Curve]], show: Callable[[float], float], x: Scale, y: Scale
) -> Markup:
    """Return a legend at the right whose marks also lie on the curves at their medians."""
    parts = []
    for number, (entry, _, curve) in enumerate(curves):
        median = show(_at(curve, 0.5))
        parts.append(mark(entry, x(median), y(0.5), title=f"{entry.label}: median {words.figure(median)}"))
        at = FRAME.top + 8 + 17.0 * number
        parts.append(mark(entry, FRAME.right + 20, at))
        parts.append(element("text", words.short(entry.label), class_="name", x=FRAME.right + 29, y=at + 4))
    return together(*parts)


def tail_chart(view: View, cell: Cell) -> Markup:
    """Return the percentile curves on a log tail; dashed where the iterations no longer support a percentile."""
    title, show = _span_of(cell)
    curves = _curves(view, cell, lambda one: one.tail)
    most = max(one.iterations for _, one, _ in curves)
    x = _tail_scale(most)
    reach = [show(max(1.0, float(end))) for _, _, curve in curves for end in (curve.ns[0], curve.ns[-1])]
    y = logarithmic(min(reach), max(reach), FRAME.bottom, FRAME.top, _figure_label)
    parts = [x_axis(FRAME, x, "percentile of iterations (log tail)"), y_axis(FRAME, y, f"{title} (log scale)")]
    ends = []
    for entry, one, curve in curves:
        points = [
            (float(f), x(min(float(f), 1.0 - 0.5 / one.iterations)), y(show(max(1.0, float(ns)))))
            for ns, f in zip(curve.ns, curve.fraction, strict=True)
        ]
        firm = [(px, py) for f, px, py in points if f <= one.supported]
        loose = firm[-1:] + [(px, py) for f, px, py in points if f > one.supported]
        for run, kind in ((firm, "line"), (loose, "line loose")):
            if len(run) > 1:
                drawn = "L".join(f"{pixels(px)} {pixels(py)}" for px, py in _thinned(run, _budget(view)))
                parts.append(element("path", class_=f"{path_class(entry)} {kind}", d=f"M{drawn}"))
        ends.append((entry, points[-1][2]))
    return chart(f"percentiles, {words.cell_title(view, cell)}", *parts, _labels_at_right(ends, FRAME))


def _tail_scale(n: int) -> Scale:
    nines = [0.5, *(1.0 - 10.0**-k for k in range(1, 9))]
    last = 1.0 - 0.5 / n
    ticks = tuple((p, words.percentile_name(p)) for p in nines if p <= last)
    return Scale(0.0, last, FRAME.left, FRAME.right, lambda p: -math.log10(1.0 - min(p, 1.0 - 1e-12)), ticks)


# ---- drift


def drift_chart(view: View, cell: Cell) -> Markup:
    """Return each trial's mean against its path's mean over blocks: a slope or a jump is drift."""
    series = [
        (entry, _drift(cell, one)) for entry in view.paths if (one := cell.of(entry.label)) and one.headline.value
    ]
    everything = [value for _, points in series for _, low, value, high in points for value in (low, value, high)]
    frame = Frame(FRAME.left, FRAME.top, FRAME.right, 238.0)
    y = linear(min([*everything, -1.0]), max([*everything, 1.0]), frame.bottom, frame.top, lambda v: f"{v:+.3g} %")
    blocks = sorted({block for _, points in series for block, *_ in points})
    step = (frame.right - frame.left) / max(1, len(blocks))
    middle = {block: frame.left + step * (number + 0.5) for number, block in enumerate(blocks)}
    ticks = tuple((middle[block], str(block + 1)) for block in blocks)
    parts = [
        x_axis(frame, Scale(0.0, 1000.0, 0.0, 1000.0, float, ticks), "block, in the order measured"),
        y_axis(frame, y, f"trial mean against the path's own mean, {cell.shown.name}"),
        element("line", class_="one", x1=frame.left, x2=frame.right, y1=y(0), y2=y(0)),
    ]
    ends = []
    gap = min(9.0, step / (len(series) + 1))
    for number, (entry, points) in enumerate(series):
        shift = gap * (number - (len(series) - 1) / 2)
        at = {block: middle[block] + shift for block, *_ in points}
        whiskers = "".join(f"M{pixels(at[block])} {pixels(y(low))}V{pixels(y(high))}" for block, low, _, high in points)
        parts.append(element("path", class_=f"{path_class(entry)} whisker", d=whiskers))
        parts.append(marks(entry, [(at[block], y(value)) for block, _, value, _ in points], hollow=entry.again))
        ends.append((entry, frame.top + 8 + 17.0 * number))
    return chart(
        f"drift over blocks, {words.cell_title(view, cell)}", *parts, _labels_at_right_plain(ends, frame), height=290.0
    )


def _drift(cell: Cell, one: PathCell) -> list[tuple[int, float, float, float]]:
    """Return block, and low, value and high of the trial's mean as percent off the path's own; ends at two errors."""
    own = one.headline.value or 1.0
    points = []
    for trial in one.trials:
        summary = trial.summary
        at_ns = summary.trimmed_mean_ns
        reach_ns = min(at_ns, 2.0 * (summary.sd_ns or 0.0) / math.sqrt(summary.effective_n or summary.n))
        value = cell.shown.value(at_ns)
        low, high = cell.shown.ends(Interval(at_ns - reach_ns, at_ns + reach_ns, 0.95))
        off_low, off, off_high = (100.0 * (figure / own - 1.0) for figure in (low, value, high))
        points.append((trial.block, off_low, off, off_high))
    return points


def _labels_at_right_plain(ends: Sequence[tuple[PathEntry, float]], frame: Frame) -> Markup:
    parts = []
    for entry, y in ends:
        parts.append(mark(entry, frame.right + 20, y, hollow=entry.again))
        parts.append(element("text", words.short(entry.label), class_="name", x=frame.right + 29, y=y + 4))
    return together(*parts)
