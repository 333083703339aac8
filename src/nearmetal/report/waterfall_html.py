"""The section of an HTML report that holds waterfalls: all paths and settings on one axis, the figures folded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.facts.waterfall import PARTS
from nearmetal.report import waterfall_text, words
from nearmetal.report.axes import PlotArea, linear, x_axis
from nearmetal.report.charts import chart
from nearmetal.report.markup import Markup, element
from nearmetal.report.waterfall_text import Lane, us
from nearmetal.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.report.tables import Table
    from nearmetal.results.waterfalls import Waterfall

_WIDTH, _ROW = 900.0, 34.0


def section(found: Sequence[Waterfall], baseline: str, table: Callable[[Table], Markup]) -> Markup:
    """Return the section; `table` draws a table as the report does."""
    blocks: list[Markup] = []
    for of, lanes in waterfall_text.by_size(found, baseline):
        blocks.append(element("h3", f"One message of {of}"))
        blocks += [element("p", text) for text in waterfall_text.sentences(lanes)]
        blocks.append(element("figure", picture(of, lanes)))
        figures = element("summary", "The figures as a table")
        blocks.append(element("details", figures, table(waterfall_text.table(lanes)), class_="prints"))
    return element("section", element("h2", "Where a message's time went"), *blocks, id="waterfalls")


def picture(of: str, lanes: Sequence[Lane]) -> Markup:
    """Return a bar a lane, its parts one after another; a part that adds most to the baseline has a frame."""
    frame = PlotArea(150.0, 8.0, _WIDTH - 80.0, 14.0 + _ROW * len(lanes))
    x = linear(0.0, max(lane.of.mean_ns for lane in lanes) / NS_PER_US, frame.left, frame.right)
    drawn = [x_axis(frame, x, "mean of one message, traced, us")]
    for number, lane in enumerate(lanes):
        y = frame.top + 6 + _ROW * number
        drawn.append(
            element("text", words.short(lane.name, 22), class_="name", x=frame.left - 8, y=y + 16, text_anchor="end")
        )
        at_ns = 0.0
        for part, ns in lane.of.parts_ns.items():
            left, right = x(at_ns / NS_PER_US), x((at_ns + ns) / NS_PER_US)
            at_ns += ns
            kind = f"part {_colour(part)}{' most' if part == lane.most_added else ''}"
            box = {"x": left, "width": max(0.5, right - left), "y": y, "height": _ROW - 12}
            drawn.append(element("rect", element("title", _tip(lane, part, ns)), class_=kind, **box))
        drawn.append(element("text", us(lane.of.mean_ns), class_="name", x=x(at_ns / NS_PER_US) + 6, y=y + 16))
    return chart(f"Where one message of {of} spends its time, a bar a path", *drawn, *_legend(lanes, frame),
                 width=_WIDTH, height=frame.bottom + 102)  # fmt: skip


def _colour(part: str) -> str:
    number = list(PARTS).index(part)
    return f"c{number % 8}{' pale' if number >= 8 else ''}"


def _tip(lane: Lane, part: str, ns: float) -> str:
    more = f" ({lane.added_ns(part) / NS_PER_US:+.2f} us against {lane.base.path})" if lane.base else ""
    return f"{part}: {us(ns)} us, {ns / lane.of.mean_ns:.0%}{more}; {PARTS[part]}"


def _legend(lanes: Sequence[Lane], frame: PlotArea) -> list[Markup]:
    parts = [part for part in PARTS if any(part in lane.of.parts_ns for lane in lanes)]
    drawn = []
    for number, part in enumerate(parts):
        x, y = frame.left + 165.0 * (number % 4), frame.bottom + 56 + 18.0 * (number // 4)
        drawn.append(element("rect", class_=f"part {_colour(part)}", x=x, y=y - 10, width=12, height=12))
        drawn.append(element("text", part, class_="name", x=x + 18, y=y))
    return drawn
