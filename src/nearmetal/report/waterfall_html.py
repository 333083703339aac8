"""The section of an HTML report that holds waterfalls: all paths and settings on one axis, the figures folded."""

from collections.abc import Callable, Sequence

from nearmetal.facts.waterfall import PARTS
from nearmetal.report import markup
from nearmetal.report.bars import Bar, Part, stacked
from nearmetal.report.markup import Markup, element, fold
from nearmetal.report.tables import Table
from nearmetal.report.waterfall import Lane, by_size, sentences, table, us
from nearmetal.results.waterfalls import Waterfall
from nearmetal.units import NS_PER_US, as_percent


def section(found: Sequence[Waterfall], baseline: str, drawn: Callable[[Table], Markup]) -> Markup:
    """Return the section; `drawn` draws a table as the report does."""
    blocks: list[Markup] = []
    for of, lanes in by_size(found, baseline):
        blocks.append(element("h3", f"One message of {of}"))
        first, *more = sentences(lanes)
        blocks += [element("p", first, class_="lead"), *(element("p", text) for text in more)]
        blocks.append(element("figure", picture(of, lanes)))
        blocks.append(fold("The figures as a table", drawn(table(lanes)), class_="prints"))
    return markup.section("Where a message's time went", *blocks, id="waterfalls")


def picture(of: str, lanes: Sequence[Lane]) -> Markup:
    """Return a bar a lane, its parts one after another; a part that adds most to the baseline has a frame."""
    bars = [Bar(lane.name, tuple(_part(lane, *one) for one in lane.of.parts_ns.items()), us(lane.of.mean_ns))
            for lane in lanes]  # fmt: skip
    legend = [(_colour(part), part) for part in PARTS if any(part in lane.of.parts_ns for lane in lanes)]
    label = f"Where one message of {of} spends its time, one bar per path"
    return stacked(label, "mean of one message, traced, us", bars, legend)


def _part(lane: Lane, part: str, ns: float) -> Part:
    more = f" ({lane.added_ns(part) / NS_PER_US:+z.2f} us against {lane.base.path})" if lane.base else ""
    tip = f"{part}: {us(ns)} us, {as_percent(ns / lane.of.mean_ns)}{more}; {PARTS[part]}"
    return Part(ns / NS_PER_US, f"{_colour(part)}{' most' if part == lane.most_added else ''}", tip)


def _colour(part: str) -> str:
    number = list(PARTS).index(part)
    return f"c{number % 8}{' pale' if number >= 8 else ''}"
