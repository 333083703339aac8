"""The chart that a report begins with: every path, setting and size on one scale of cost, over margin and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from nearmetal.report import words
from nearmetal.report.axes import PlotArea, Scale, placed, ratios, x_axis, y_axis
from nearmetal.report.charts import (
    FRAME,
    ROOM_FOR_NAMES,
    WIDTH,
    chart,
    columns,
    labels_at_right,
    mark,
    readout,
    whisker,
)
from nearmetal.report.markup import Markup, element, together
from nearmetal.results.records import Cell, PathCell, PathEntry, View
from nearmetal.stats.compare import CellComparison, RatioEstimate
from nearmetal.stats.equivalence import Verdict
from nearmetal.stats.summary import Metric
from nearmetal.units import by_key

if TYPE_CHECKING:
    from nearmetal.results.gated import Gate, GateCell

NOTE = (
    "Large marks: means with 95 % intervals, hollow where undecided. Small marks at their right, where there is room: "
    "p99. Green: what the margin counts as equal. Grey bars: the baseline against itself, the noise floor. Point at a "
    "size to read it, follow it to its distributions."
)
_MOST_COLUMNS = 14
_MOST_NAMED = 6
_LONGEST_NAME = 16
WIDE = 900.0
LEAST_GAP = 9.0
"""Closer than so many pixels, marks are small, and p99 is left to the readout."""
_BETWEEN = (
    "Marks: cost with its 95 % interval, hollow where undecided or not judged. Green: what the margin counts as equal. "
    "Point at a mark to read it."
)


def panels(view: View) -> list[tuple[str, tuple[Cell, ...]]]:
    """Return title and cells of each chart: one per group of sizes; groups of one size share one per setting.

    Where an operation has several settings and few sizes, one chart holds them all, side by side.
    """
    found: list[tuple[str, tuple[Cell, ...]]] = []
    by_group = [(group, view.cells_of(group)) for group in view.groups]
    what = {(group.workload, group.operation) for group in view.groups}
    if len(what) == 1 and len(by_group) > 1 and sum(len(cells) for _, cells in by_group) <= _MOST_COLUMNS:
        return [(f"{view.groups[0].workload}, every setting", tuple(cell for _, cells in by_group for cell in cells))]
    for (lone, setting), groups in groupby(by_group, lambda one: (len(one[1]) == 1, one[0].setting)):
        held = list(groups)
        if lone and len(held) > 1:
            of_all = tuple(cell for _, cells in held for cell in cells)
            several = len({group.setting for group in view.groups}) > 1
            title = _named(of_all) + (f", setting {setting}" if several else "")
            found.append((title, of_all))
        else:
            found += [(words.group_title(view, group), cells) for group, cells in held]
    return found


def _named(cells: Sequence[Cell]) -> str:
    names = _columns_of(cells)
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])


def _columns_of(cells: Sequence[Cell]) -> list[str]:
    """Return the names of columns that are of several operations: each workload's, its operation's where it has more.

    No two operations share a name.
    """
    what = dict.fromkeys((cell.group.workload, cell.group.operation) for cell in cells)
    workloads, operations = ([one[part] for one in what] for part in (0, 1))

    def name(workload: str, operation: str) -> str:
        if workloads.count(workload) == 1:
            return workload
        bare = operation.partition(" [")[0]  # without an imported figure's unit
        return bare if operations.count(operation) == 1 else words.measured(workload, bare, "")

    return [name(cell.group.workload, cell.group.operation) for cell in cells]


def cost(comparison_ratio: float, cell: Cell) -> float:
    """Return a ratio as a cost: above 1 is worse, for rates as for times."""
    return comparison_ratio if cell.shown.better.sign > 0 or not comparison_ratio else 1.0 / comparison_ratio


def scale_of(view: View, low_pixel: float, high_pixel: float) -> Scale:
    """Return the one scale of every panel of a view: of all estimates, and of intervals that bound something."""
    every = [ends(cell, estimate) for cell in view.cells for estimate in _estimates(cell)]
    usable = [at for at, *_ in every if 0.0 < at < math.inf]
    usable += [end for _, *span in every for end in span if 1e-4 < end < 1e4]
    low, high = min(usable, default=1.0), max(usable, default=1.0)
    return ratios(low / 1.05, high * 1.05, view.criteria.margin, low_pixel, high_pixel)


def _estimates(cell: Cell) -> Iterator[RatioEstimate]:
    for one in cell.paths:
        if one.comparison:
            yield from (
                found for metric in (Metric.MEAN, Metric.P99) if (found := one.comparison.estimates.get(metric))
            )
    if cell.noise:
        yield cell.noise.estimate


def ends(cell: Cell, estimate: RatioEstimate) -> list[float]:
    """Return an estimate's cost and, where it has one, those of its interval's ends."""
    interval = estimate.interval
    return [cost(one, cell) for one in (estimate.ratio, *((interval.low, interval.high) if interval else ()))]


def picture(
    view: View, title: str, cells: Sequence[Cell], href: Callable[[Cell], str | None] | None, width: float = WIDTH
) -> Markup:
    """Return one panel; `href` says where a cell's own panel is, None that nothing can be pointed at."""
    frame = replace(FRAME, right=width - ROOM_FOR_NAMES)
    y = scale_of(view, frame.bottom, frame.top)
    settings = [cell.group.setting for cell in cells]
    several = len({(cell.group.workload, cell.group.operation) for cell in cells}) > 1
    names = [words.short(one, _LONGEST_NAME) for one in _columns_of(cells)] if several else [*map(words.size, cells)]
    xs, step = columns(len(cells), frame)
    paths = [entry for entry in view.shown_paths if not entry.baseline]
    gap = min(26.0, 0.85 * step / max(1, len(paths)))
    title_below = "message size" if len(set(settings)) == 1 else ""
    parts = [
        _background(frame, y, view.criteria.margin, view.baseline),
        _slanted(names, xs, frame) if several else x_axis(frame, placed(zip(xs, names, strict=True)), title_below),
        *(_beside(settings, xs, frame) if len(set(settings)) > 1 else []),
    ]
    last: dict[str, tuple[PathEntry, float]] = {}
    for cell, x in zip(cells, xs, strict=True):
        parts.append(_noise(cell, x, 0.4 * step, y))
        for number, entry in enumerate(paths):
            one = cell.of(entry.label)
            if one and one.comparison:
                at = x + gap * (number - (len(paths) - 1) / 2)
                parts += _marks(entry, one.comparison, cell, (at, gap), y)
                last[entry.label] = (entry, y(cost(one.comparison.headline.ratio, cell)))
    zones = [
        readout(frame, (x, step), words.cell_title(view, cell), _reading(view, cell), href(cell))
        for cell, x in zip(cells, xs, strict=True)
        if href
    ]
    label = f"{title}: cost against {view.baseline} with 95 % intervals"
    return chart(label, *parts, labels_at_right(list(last.values()), frame), zones=zones, width=width)


def _background(frame: PlotArea, y: Scale, margin: float, base: str) -> Markup:
    """Return what marks of cost stand on: the margin as a band, the axis, and the line of equality."""
    edge = 1.0 + margin
    band = {"y": y(edge), "height": y(1 / edge) - y(edge), "x": frame.left, "width": frame.right - frame.left}
    return together(
        element("rect", class_="margin", **band),
        y_axis(frame, y, f"cost, times {words.short(base, 20)} (log scale, stretched within the margin)"),
        element("line", class_="one", x1=frame.left, x2=frame.right, y1=y(1), y2=y(1)),
    )


def _beside(settings: Sequence[str], xs: Sequence[float], frame: PlotArea) -> Iterator[Markup]:
    """Yield the name of each setting under its columns, and a line between one and the next."""
    start = 0
    for setting, held in groupby(settings):
        end = start + len(list(held))
        if start:
            between = (xs[start - 1] + xs[start]) / 2
            yield element("line", class_="one", x1=between, x2=between, y1=frame.top, y2=frame.bottom + 40)
        title = f"message size, setting {setting}"
        yield element("text", title, class_="axis", x=(xs[start] + xs[end - 1]) / 2, y=frame.bottom + 36,
                      text_anchor="middle")  # fmt: skip
        start = end


def _slanted(names: Sequence[str], xs: Sequence[float], frame: PlotArea) -> Markup:
    """Return the names of columns that need not be as narrow as the columns."""
    at = frame.bottom + 16
    return together(
        *(
            element(
                "text", name, class_="tick", x=x, y=at, text_anchor="end", transform=f"rotate(-30 {x:.1f} {at:.1f})"
            )
            for name, x in zip(names, xs, strict=True)
        )
    )


def _noise(cell: Cell, x: float, reach: float, y: Scale) -> Markup:
    """Return the interval of the baseline against itself as a bar as wide as the column."""
    interval = cell.noise.estimate.interval if cell.noise else None
    if interval is None:
        return Markup("")
    top, bottom = sorted((y(cost(interval.low, cell)), y(cost(interval.high, cell))))
    return element("rect", class_="noise", x=x - reach, width=2 * reach, y=top, height=max(1.0, bottom - top))


def _marks(
    entry: PathEntry, found: CellComparison, cell: Cell, place: tuple[float, float], y: Scale
) -> Iterator[Markup]:
    """Yield mean and p99 with their intervals; `place` is where, and how much room there is."""
    x, gap = place
    for metric, at, kind in ((Metric.P99, x + min(8.0, 0.45 * gap), "whisker thin"), (Metric.MEAN, x, "whisker")):
        estimate = found.estimates.get(metric)
        if estimate is None or (metric is Metric.P99 and gap < LEAST_GAP):
            continue
        if estimate.interval:
            low, high = (y(cost(end, cell)) for end in (estimate.interval.low, estimate.interval.high))
            yield whisker(entry, at, low, high, kind)
        small = metric is Metric.P99
        hollow = small or found.verdict is Verdict.UNDECIDED
        yield mark(entry, at, y(cost(estimate.ratio, cell)), small=small or gap < LEAST_GAP, hollow=hollow)


def _reading(view: View, cell: Cell) -> list[tuple[PathEntry, str]]:
    """Return what a column says in words: a line a path, and the noise; costs, as the axis has them."""
    lines = [
        (entry, _line(cell, one, one.comparison))
        for entry in view.shown_paths
        if (one := cell.of(entry.label)) and one.comparison
    ]
    again = [entry for entry in view.paths if entry.again]
    if cell.noise and cell.noise.estimate.interval:
        lines += [(entry, f"noise {_cost_in_words(cell, cell.noise.estimate)}") for entry in again]
    return lines


def _line(cell: Cell, one: PathCell, found: CellComparison) -> str:
    p99 = found.estimates.get(Metric.P99)
    tail = f", p99 {words.ratio(cost(p99.ratio, cell))}" if p99 and math.isfinite(p99.ratio) else ""
    return f"{words.short(one.path)} {_cost_in_words(cell, found.headline)}{tail}: {found.verdict}"


def _cost_in_words(cell: Cell, estimate: RatioEstimate) -> str:
    at, *span = ends(cell, estimate)
    return f"{words.ratio(at)} [{words.ratio_ends(*sorted(span)) if span else words.NOTHING}]"


def sections(view: View, href: Callable[[Cell], str | None]) -> Markup:
    """Return every panel with its title, and how to read them."""
    shown = [one for one in panels(view) if any(path.comparison for cell in one[1] for path in cell.paths)]
    width = WIDE if len(shown) == 1 else WIDTH
    figures = [
        element("figure", element("figcaption", title), picture(view, title, cells, href, width))
        for title, cells in shown
    ]
    note = [element("p", NOTE, class_="note")] if figures else []
    return together(element("div", *figures, class_="pair"), *note)


# ---- two runs


def between_runs(gate: Gate, base: str) -> Markup:
    """Return a chart a workload, operation and setting: what the run costs, times the base, by path and size."""
    found = [one for one in gate.cells if one.found]
    every = [end for one in found for end in _spread(one)]
    several = len({one.cell.setting for one in found}) > 1
    groups = by_key(
        ((one.cell.workload, one.cell.operation, one.cell.setting if several else ""), one) for one in found
    )
    labels = dict.fromkeys(one.cell.path for one in found)
    entries = {label: PathEntry(label, "", n, baseline=n == 0, again=False) for n, label in enumerate(labels)}
    width = WIDE if len(groups) == 1 else WIDTH
    frame = replace(FRAME, right=width - ROOM_FOR_NAMES)
    y = ratios(min(every, default=1.0) / 1.05, max(every, default=1.0) * 1.05, gate.margin, frame.bottom, frame.top)
    figures = [
        element(
            "figure",
            element("figcaption", words.measured(*group)),
            chart(
                f"{words.measured(*group)}: cost against {base} with 95 % intervals",
                _background(frame, y, gate.margin, base),
                *_paths_by_size(cells, entries, frame, y),
                width=width,
            ),
            tabindex=0 if width > WIDTH else None,  # on a narrow screen a wide chart scrolls, also by keyboard
        )
        for group, cells in groups.items()
    ]
    note = element("p", _BETWEEN, class_="note")
    return together(element("div", *figures, class_="pair"), note) if figures else Markup("")


def _spread(one: GateCell) -> tuple[float, float]:
    assert one.found
    return math.exp(one.found.log_cost.low), math.exp(one.found.log_cost.high)


def _paths_by_size(
    cells: Sequence[GateCell], entries: Mapping[str, PathEntry], frame: PlotArea, y: Scale
) -> Iterator[Markup]:
    from nearmetal.stats.between import Standing  # noqa: PLC0415 (a report, which shares the rest, does not load it)

    sizes = sorted({one.cell.message_bytes for one in cells})
    xs, step = columns(len(sizes), frame)
    gap = min(26.0, 0.85 * step / len(entries))
    names = [words.size_of(size, sized=any(sizes)) for size in sizes]
    yield x_axis(frame, placed(zip(xs, names, strict=True)), "message size")
    last: dict[str, tuple[PathEntry, float]] = {}
    for one in cells:
        assert one.found
        entry = entries[one.cell.path]
        x = xs[sizes.index(one.cell.message_bytes)] + gap * (entry.number - (len(entries) - 1) / 2)
        low, high = _spread(one)
        at = 1.0 / one.found.ratio if one.shown.rate else one.found.ratio
        middle = y(at)
        text = f"{one.name}: {words.ratio(at)} [{words.ratio_ends(low, high)}], {one.standing}"
        yield whisker(entry, x, y(low), y(high))
        yield mark(entry, x, middle, hollow=one.control or one.standing is Standing.UNDECIDED, title=text)
        last[entry.label] = (entry, middle)
    yield labels_at_right(list(last.values()), frame)
