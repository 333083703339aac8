"""The charts of a report as inline SVG: no script, so they print, scale, follow the theme and need no network.

A path keeps its colour, dash and mark in every chart (`path_class`, `mark`); colours come from the style sheet.
Tables hold the same figures, so to a screen reader a chart is its label, and the links to the cells that it shows.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from nearmetal.report import words
from nearmetal.report.axes import (
    PlotArea,
    Scale,
    joined,
    linear,
    logarithmic,
    placed,
    plain,
    spread_apart,
    x_axis,
    y_axis,
)
from nearmetal.report.markup import Markup, element, pixels, together
from nearmetal.results.records import Cell, PathCell, PathEntry, View
from nearmetal.stats.interval import Interval
from nearmetal.stats.order import TOLD, Curve, quantile_ranks
from nearmetal.units import as_percent, counted

WIDTH, HEIGHT = 560.0, 340.0
ROOM_FOR_NAMES = 108.0
FRAME = PlotArea(left=58.0, top=34.0, right=WIDTH - ROOM_FOR_NAMES, bottom=288.0)
COLOURS = 8
CURVE_BYTES = 400_000
"""How many bytes of a report curves may take, so that a large study stays below a megabyte."""


def path_class(entry: PathEntry) -> str:
    """Return the classes that give a path its colour and dash: the baseline is ink, others a colour each."""
    if entry.again:
        return "series again"
    return "series base" if entry.baseline else f"series c{entry.number % COLOURS} d{entry.number // COLOURS % 3}"


def mark(entry: PathEntry, x: float, y: float, *, small: bool = False, hollow: bool = False, title: str = "") -> Markup:
    """Return a path's mark: its shape distinguishes paths where colour does not. `title` is shown on hover."""
    tip = [element("title", title)] if title else []
    kind = f"{path_class(entry)} mark{' hollow' if hollow else ''}"
    shape = 0 if entry.baseline or entry.again else entry.number % len(_SHAPES)
    return element("use", *tip, class_=kind, href=f"#{'s' if small else 'm'}{shape}", x=x, y=y)


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


def chart(
    label: str, *parts: Markup, width: float = WIDTH, height: float = HEIGHT, zones: Sequence[Markup] = ()
) -> Markup:
    """Return parts as one image that a screen reader reads by its label; `zones` of `readout` lie over it."""
    box = f"0 0 {pixels(width)} {pixels(height)}"
    kind = "chart" if width <= WIDTH else "chart wide"
    if not zones:
        return element("svg", *parts, class_=kind, viewbox=box, role="img", aria_label=label)
    drawn = element("g", *parts, aria_hidden="true")
    return element("svg", drawn, *zones, class_=kind, viewbox=box, role="group", aria_label=label)


def readout(
    frame: PlotArea, column: tuple[float, float], title: str, lines: Sequence[tuple[PathEntry, str]], href: str | None
) -> Markup:
    """Return a column that shows its figures when it is pointed at or has the focus, and leads to `href`.

    `column` is its middle and its width; `lines` are what it shows, a path each.
    """
    x, width = column
    wide = 7.0 * max(len(title), *(len(text) + 3 for _, text in lines)) + 12 if lines else 7.0 * len(title) + 12
    left = x + width / 2 + 4 if x < (frame.left + frame.right) / 2 else x - width / 2 - 4 - wide
    left = max(0.0, min(left, frame.right + ROOM_FOR_NAMES - wide))
    rows = [element("text", title, class_="name strong", x=left + 8, y=frame.top + 18)]
    for number, (entry, text) in enumerate(lines):
        at = frame.top + 36 + 17.0 * number
        rows.append(mark(entry, left + 13, at - 4, hollow=entry.again))
        rows.append(element("text", text, class_="name", x=left + 22, y=at))
    box = element("rect", x=left, y=frame.top + 1, width=wide, height=26 + 17.0 * len(lines), rx=5, class_="tip-box")
    area = {"x": x - width / 2, "y": frame.top, "width": width, "height": frame.bottom - frame.top + 20}
    zone = element("rect", class_="zone", **area)
    tip = element("g", box, *rows, class_="tip")
    if href is None:
        return element("g", zone, tip, class_="reads")
    return element("a", zone, tip, class_="reads", href=href)


def columns(count: int, frame: PlotArea) -> tuple[list[float], float]:
    """Return the middles of so many even columns, and how far they are apart."""
    step = (frame.right - frame.left) / max(1, count)
    return [frame.left + step * (number + 0.5) for number in range(count)], step


def whisker(entry: PathEntry, x: float, y1: float, y2: float, kind: str = "whisker") -> Markup:
    """Return the vertical line of an interval."""
    return element("line", class_=f"{path_class(entry)} {kind}", x1=x, x2=x, y1=y1, y2=y2)


def labels_at_right(ends: Sequence[tuple[PathEntry, float]], frame: PlotArea) -> Markup:
    """Return the names of lines next to their ends, moved apart where they would touch."""
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


# ---- distributions


def _span_of(cell: Cell) -> tuple[str, Callable[[float], float]]:
    """Return how durations are shown in distributions: as the cell's figure, or as durations where that is a rate."""
    if cell.shown.rate:
        return f"duration of {cell.shown.amount}, us", lambda ns: ns / 1000.0
    return f"{cell.shown.name}, {cell.shown.unit}", cell.shown.value


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
    most = max(show(max(1.0, _at(curve, 0.95))) for _, _, curve in curves)
    x = logarithmic(least, most, FRAME.left, FRAME.right)
    y = linear(0.0, 1.0, FRAME.bottom, FRAME.top, as_percent)
    parts = [x_axis(FRAME, x, f"{title} (log scale)"), y_axis(FRAME, y, "share of iterations at or below")]
    for entry, one, curve in curves:
        inside = [
            (show(float(ns)), f) for ns, f in zip(curve.ns, curve.fraction, strict=True) if show(float(ns)) <= x.high
        ]
        points = _thinned([(x(v), y(float(f))) for v, f in inside], _budget(view))
        if not points:
            continue
        steps = "".join(f"H{pixels(px)}V{pixels(py)}" for px, py in points)
        parts.append(
            element(
                "path",
                element("title", _quantiles(one, show)),
                class_=f"{path_class(entry)} line",
                d=f"M{pixels(points[0][0])} {pixels(FRAME.bottom)}{steps}",
            )
        )
    return chart(
        f"cumulative distribution, {words.cell_title(view, cell)}", *parts, _labels_on_median(curves, show, x, y)
    )


def _quantiles(one: PathCell, show: Callable[[float], float]) -> str:
    """Return the percentiles that so many iterations support, in words."""
    known = ((name, p) for name, p in TOLD.items() if quantile_ranks(one.drawn, p) is not None)
    told = ", ".join(f"{name} {words.figure(show(_at(one.ecdf, p)))}" for name, p in known)
    return f"{one.path}: {told or counted(one.drawn, 'iteration')}"


def _at(curve: Curve, fraction: float) -> float:
    return float(curve.ns[min(int(curve.fraction.searchsorted(fraction)), curve.ns.size - 1)])


def _labels_on_median(
    curves: Sequence[tuple[PathEntry, PathCell, Curve]], show: Callable[[float], float], x: Scale, y: Scale
) -> Markup:
    """Return a legend at the right whose marks also lie on the curves at their medians."""
    parts = []
    for entry, one, curve in curves:
        parts.append(mark(entry, x(show(_at(curve, 0.5))), y(0.5), title=_quantiles(one, show)))
    return together(*parts, _legend([entry for entry, *_ in curves], FRAME))


def tail_chart(view: View, cell: Cell) -> Markup:
    """Return the percentile curves on a log tail; dashed where the iterations no longer support a percentile."""
    title, show = _span_of(cell)
    curves = _curves(view, cell, lambda one: one.tail)
    most = max(one.drawn for _, one, _ in curves)
    x = _tail_scale(most)
    reach = [show(max(1.0, float(end))) for _, _, curve in curves for end in (curve.ns[0], curve.ns[-1])]
    y = logarithmic(min(reach), max(reach), FRAME.bottom, FRAME.top)
    parts = [x_axis(FRAME, x, "percentile of iterations (log tail)"), y_axis(FRAME, y, f"{title} (log scale)")]
    ends = []
    for entry, one, curve in curves:
        points = [
            (float(f), x(min(float(f), 1.0 - 0.5 / one.drawn)), y(show(max(1.0, float(ns)))))
            for ns, f in zip(curve.ns, curve.fraction, strict=True)
        ]
        supported = _supported(one.drawn)
        firm = [(px, py) for f, px, py in points if f <= supported]
        loose = firm[-1:] + [(px, py) for f, px, py in points if f > supported]
        for run, kind in ((firm, "line"), (loose, "line loose")):
            if len(run) > 1:
                drawn = joined(_thinned(run, _budget(view)))
                parts.append(element("path", class_=f"{path_class(entry)} {kind}", d=drawn))
        ends.append((entry, points[-1][2]))
    return chart(f"percentiles, {words.cell_title(view, cell)}", *parts, labels_at_right(ends, FRAME))


def _supported(n: int) -> float:
    """Return the largest of 0.5, 0.9, 0.95, 0.99, 0.995 ... 0.99999995 that n samples support, 0 when none."""
    ladder = [0.5, 0.9, 0.95] + [1 - step * 10.0**-k for k in range(2, 8) for step in (1.0, 0.5)]
    return max((p for p in ladder if quantile_ranks(n, p) is not None), default=0.0)


def _tail_scale(n: int) -> Scale:
    nines = [0.5, *(1.0 - 10.0**-k for k in range(1, 9))]
    last = 1.0 - 0.5 / n
    ticks = tuple((p, words.percentile_name(p)) for p in nines if p <= last)
    return Scale(0.0, last, FRAME.left, FRAME.right, lambda p: -math.log10(1.0 - min(p, 1.0 - 1e-12)), ticks)


# ---- drift


def drift_chart(view: View, cell: Cell) -> Markup:
    """Return each trial's mean against its path's mean over blocks: a slope or a jump is drift."""
    series = [
        (entry, _drift(cell, one, own))
        for entry in view.paths
        if (one := cell.of(entry.label)) and one.trials and (own := _own(view, cell, entry))
    ]
    everything = [value for _, points in series for _, low, value, high in points for value in (low, value, high)]
    frame = PlotArea(FRAME.left, FRAME.top, FRAME.right, 238.0)
    y = linear(
        min([*everything, -1.0]),
        max([*everything, 1.0]),
        frame.bottom,
        frame.top,
        lambda v: f"{'+' if v > 0 else ''}{plain(v)} %",
    )
    blocks = sorted({block for _, points in series for block, *_ in points})
    xs, step = columns(len(blocks), frame)
    middle = dict(zip(blocks, xs, strict=True))
    ticks = tuple((middle[block], str(block + 1)) for block in blocks)
    parts = [
        x_axis(frame, placed(ticks), "block, in the order measured"),
        y_axis(frame, y, f"trial mean relative to the path's own mean, {cell.shown.name}"),
        element("line", class_="one", x1=frame.left, x2=frame.right, y1=y(0), y2=y(0)),
    ]
    gap = min(9.0, step / (len(series) + 1))
    for number, (entry, points) in enumerate(series):
        shift = gap * (number - (len(series) - 1) / 2)
        at = {block: middle[block] + shift for block, *_ in points}
        whiskers = "".join(f"M{pixels(at[block])} {pixels(y(low))}V{pixels(y(high))}" for block, low, _, high in points)
        parts.append(element("path", class_=f"{path_class(entry)} whisker", d=whiskers))
        for block, _, value, _ in points:
            tip = f"{entry.label}, block {block + 1}: {value:+z,.1f} %"
            parts.append(mark(entry, at[block], y(value), hollow=entry.again, title=tip))
    legend = _legend([entry for entry, _ in series], frame)
    return chart(f"drift over blocks, {words.cell_title(view, cell)}", *parts, legend, height=290.0)


def _own(view: View, cell: Cell, entry: PathEntry) -> float | None:
    """Return the level that an entry's trials are drawn against: that of the baseline under both its names."""
    one = cell.of(view.baseline if entry.again else entry.label)
    return one.headline.value if one else None


def _drift(cell: Cell, one: PathCell, own: float) -> list[tuple[int, float, float, float]]:
    """Return block, and low, value and high of the trial's mean as percent off the path's own; ends at two errors."""
    points = []
    for trial in one.trials:
        summary = trial.summary
        at_ns = summary.trimmed_mean_ns
        reach_ns = 2.0 * (summary.sd_ns or 0.0) / math.sqrt(summary.effective_n or summary.n)
        reach_ns = min(reach_ns, 0.9 * at_ns)  # the rate of no time at all would be infinite
        value = cell.shown.value(at_ns)
        low, high = cell.shown.ends(Interval(at_ns - reach_ns, at_ns + reach_ns, 0.95))
        off_low, off, off_high = (100.0 * (figure / own - 1.0) for figure in (low, value, high))
        points.append((trial.block, off_low, off, off_high))
    return points


def _legend(entries: Sequence[PathEntry], frame: PlotArea) -> Markup:
    """Return marks and names one below the other, right of the frame."""
    parts = []
    for number, entry in enumerate(entries):
        y = frame.top + 8 + 17.0 * number
        parts.append(mark(entry, frame.right + 20, y, hollow=entry.again))
        parts.append(element("text", words.short(entry.label), class_="name", x=frame.right + 29, y=y + 4))
    return together(*parts)


# ---- a square matrix


MAP = PlotArea(90.0, 56.0, 650.0, 616.0)
"""Where a matrix lies; its picture has room for names above and to the left, and for a line of words below."""
_MOST_NAMES = 16


def heat_map(
    label: str, names: Sequence[str], squares: Iterable[tuple[int, int, float, str]], colour: str, *below: Markup
) -> Markup:
    """Return a matrix as squares of one colour, each with its row, column, opacity and what pointing at it shows.

    `names` are those of rows and columns; `below` is drawn in the room under it.
    """
    step = (MAP.right - MAP.left) / len(names)
    drawn = [
        element(
            "rect",
            element("title", tip),
            x=MAP.left + column * step,
            y=MAP.top + row * step,
            width=step,
            height=step,
            fill=colour,
            fill_opacity=f"{opacity:.2f}",
        )
        for row, column, opacity, tip in squares
    ]
    for position in range(0, len(names), -(-len(names) // _MOST_NAMES)):
        across, down = (start + (position + 0.5) * step for start in (MAP.left, MAP.top))
        turned = f"rotate(-40 {across:.1f} {MAP.top - 6:.1f})"
        drawn.append(
            element("text", names[position][:12], class_="tick", x=MAP.left - 6, y=down + 4, text_anchor="end")
        )
        drawn.append(element("text", names[position][:10], class_="tick", x=across, y=MAP.top - 6, transform=turned))
    side = MAP.right - MAP.left
    frame = element("rect", x=MAP.left, y=MAP.top, width=side, height=side, fill="none", stroke="var(--line)")
    box = f"0 0 {MAP.right + 4:.0f} {MAP.bottom + 48:.0f}"
    return element("svg", frame, *drawn, *below, class_="chart", viewbox=box, role="img", aria_label=label)
