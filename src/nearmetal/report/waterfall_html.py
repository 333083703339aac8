"""The section of an HTML report that holds waterfalls: a picture and the same figures as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.report import waterfall_text
from nearmetal.report.markup import Markup, element
from nearmetal.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.report.waterfalls import Waterfall

_WIDTH, _LEFT, _ROW = 560.0, 150.0, 20.0
_COLOUR = "var(--accent)"


def section(found: Sequence[Waterfall], table: Callable[[Table], Markup]) -> Markup:
    """Return the section, nothing when no trial was traced; `table` draws a table as the report does."""
    if not found:
        return Markup("")
    blocks: list[Markup] = []
    for one in found:
        said = [element("p", f"{text[:1].upper()}{text[1:]}.", class_="note") for text in waterfall_text.sentences(one)]
        title = waterfall_text.title(one)
        figures = Table("Times of the parts", waterfall_text.COLUMNS, tuple(waterfall_text.rows(one)))
        blocks += [element("h3", title), *said, element("figure", picture(one)), table(figures)]
    return element("section", element("h2", "Where a message's time went"), *blocks, id="waterfalls")


def picture(one: Waterfall) -> Markup:
    """Return the mean message as a waterfall in SVG, one row a part."""
    steps = waterfall_text.steps(one)
    room = _WIDTH - _LEFT
    drawn = []
    for number, (part, begin, end) in enumerate(steps):
        y = number * _ROW
        drawn.append(
            element("text", part, x=_LEFT - 8, y=y + 0.7 * _ROW, text_anchor="end", font_size=12.0, fill="currentColor")
        )
        bar = {"x": _LEFT + begin * room, "y": y + 3, "width": max(1.0, (end - begin) * room), "height": _ROW - 6}
        drawn.append(element("rect", element("title", f"{part}: {end - begin:.0%}"), fill=_COLOUR, **bar))
    viewbox = f"0 0 {_WIDTH:.0f} {len(steps) * _ROW:.0f}"
    return element("svg", *drawn, viewbox=viewbox, role="img", aria_label=waterfall_text.title(one))
