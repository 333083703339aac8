"""A search as an HTML page: the answer, the race as it went, what there is to choose from, and the proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from nearmetal.report import charts, words
from nearmetal.report.as_html import table_region
from nearmetal.report.axes import PlotArea, joined, linear, placed, x_axis, y_axis
from nearmetal.report.markup import Markup, PageFrame, element, header, listed, page, scrolling, section, together
from nearmetal.report.tuning import named, tables
from nearmetal.tune.explain import front
from nearmetal.tune.search import TrialNote
from nearmetal.tune.space import Point, Space
from nearmetal.units import as_percent, by_key, counted

if TYPE_CHECKING:
    from nearmetal.tune.recall import RecalledClass, RecalledSearch

MAX_LANES = 20
"""How many settings the race shows, those that stood longest first."""
_LANE = 22.0
_RACE_NOTE = (
    "A lane is a setting, a dot a trial of it; its figure is the cost against the present setting of the same block, "
    "mean over the search. Figures of a search flatter its winner: only fresh blocks are proof."
)
_FRAME = PlotArea(70.0, 34.0, 452.0, 288.0)
_MOST_CHOICES = 3


def as_html(of: RecalledSearch, frame: PageFrame | None = None) -> str:
    """Return the page as text; write it as UTF-8."""
    meta = f"Study {of.info.study_name}, {words.moment(of.info.created_utc)}: path {of.path}, method {of.method}, "
    meta += f"{of.launches} {'launch' if of.launches == 1 else 'launches'} so far."
    head = header("nearmetal tune", of.name, meta=meta, labels=[of.info.host_label])
    sections = [_section(of, one, number) for number, one in enumerate(of.classes)]
    if not sections:
        sections = [element("p", "So far only the start of the search is on disk.", class_="lead")]
    left_out = listed(of.made.left_out if of.made else (), element("h2", "Left out before the search"))
    main = element("main", *sections, left_out, id="answer")
    return page(f"Search {of.name}", charts.shapes(), head, main, frame=frame, skip="answer")


def _section(of: RecalledSearch, one: RecalledClass, number: int) -> Markup:
    assert of.made is not None
    space = of.made.space
    shown = tables(space, one.objective, one.found, one.proof) if one.found and one.proof else []
    return section(
        f"Class {one.name}",
        element("p", _answer(space, one), class_="lead"),
        element("figure", scrolling(_race(space, one), f"The race of {one.name}")) if one.steps else together(),
        element("p", _RACE_NOTE, class_="note"),
        _choice(space, one) if one.found else together(),
        *map(table_region, shown),
        id=f"class-{number}",
    )


def _answer(space: Space, one: RecalledClass) -> str:
    """Return the answer in a sentence, or how far the search got."""
    if one.found is None:
        leader = named(space, one.steps[-1].leader) if one.steps else "nothing"
        return f"Not ended: after {counted(len(one.steps), 'block')} {leader} leads."
    if one.proof is None:
        return f"Not proven yet: the search chose {named(space, one.found.winner)}."
    reason = f"{one.proof.reason[:1].upper()}{one.proof.reason[1:]}"
    if not any(one.found.winner) or one.proof.interval is None or one.proof.ratio is None:
        return f"{reason}."
    span = f"{words.figure(one.proof.ratio)} [{words.span(one.proof.interval.low, one.proof.interval.high)}]"
    return f"{reason}: {named(space, one.found.winner)} costs {span} times the present setting."


# ---- the race


def _race(space: Space, one: RecalledClass) -> Markup:
    """Return a lane a setting over the blocks: where it was measured, and where it left."""
    by_point = by_key((note.point, note) for step in one.steps for note in step.notes)
    # The last block after which a setting was still in, 0 where it left with its first.
    last = {p: max((n for n, step in enumerate(one.steps, 1) if p in step.standing), default=0) for p in by_point}
    winner = one.found.winner if one.found else one.steps[-1].leader
    order = sorted(by_point, key=lambda point: (point != winner, -last[point], _mean(by_point[point])))
    shown = order[:MAX_LANES]
    blocks = len(one.steps)
    frame = PlotArea(330.0, 24.0, 900.0, 30.0 + _LANE * len(shown))
    xs, step = charts.columns(blocks, frame)
    parts = [x_axis(frame, placed((x, str(block)) for block, x in enumerate(xs, 1)), "block of the search")]
    for number, point in enumerate(shown):
        y = frame.top + 12 + _LANE * number
        ending = "chosen" if point == winner else _ending(by_point[point], last[point], blocks)
        parts += _lane(by_point[point], (frame, step, y), last[point], look="base" if point == winner else "c0")
        name = words.short(named(space, point), 44)
        parts.append(element("text", element("title", named(space, point)), name, class_="name figures",
                             x=frame.left - 8, y=y + 4, text_anchor="end"))  # fmt: skip
        text = f"{_percent(_mean(by_point[point]))}, {ending}"
        parts.append(element("text", text, class_="name figures", x=frame.right + 8, y=y + 4))
    more = len(order) - len(shown)
    if more:
        text = f"and {counted(more, 'setting')} that left before or cost more"
        parts.append(element("text", text, class_="axis", x=frame.left, y=frame.bottom + 54))
    label = f"{len(by_point)} settings over {blocks} blocks"
    return charts.chart(label, *parts, width=1150.0, height=frame.bottom + (64.0 if more else 44.0))


def _mean(notes: Sequence[TrialNote]) -> float:
    costs = [note.cost for note in notes if note.cost is not None]
    return fmean(costs) if costs else math.inf


def _percent(cost: float) -> str:
    return as_percent(math.expm1(cost), 1, "+") if math.isfinite(cost) else "failed"


def _ending(notes: Sequence[TrialNote], last: int, blocks: int) -> str:
    """Return what became of a setting that was not chosen."""
    reason = next((note.reason.splitlines()[0] for note in notes if note.cost is None), "")
    if reason:
        return words.short(f"failed: {reason}", 30)
    return "in to the end" if last == blocks else f"dropped after block {max(last, notes[0].block) + 1}"


def _lane(notes: Sequence[TrialNote], at: tuple[PlotArea, float, float], last: int, look: str) -> list[Markup]:
    frame, step, y = at
    start = frame.left + step * notes[0].block
    stop = min(frame.right, frame.left + step * max(last + 1, notes[-1].block + 1))  # what a block tells ends a lane
    drawn = [element("path", class_=f"series {look} thin", d=joined([(start, y), (stop, y)]))]
    for note in notes:
        if note.cost is None:
            text = f"block {note.block + 1}: {note.reason.splitlines()[0] if note.reason else 'failed'}"
        else:
            text = f"block {note.block + 1}: {'at least ' if note.cut else ''}{_percent(note.cost)}"
        hollow = " hollow" if note.cost is None or note.cut else ""
        x = frame.left + step * (note.block + 0.5)
        drawn.append(element("circle", element("title", text), class_=f"series {look} mark{hollow}", cx=x, cy=y, r=4.3))
    return drawn


# ---- what there is to choose from


def _choice(space: Space, one: RecalledClass) -> Markup:
    """Return every measured setting by two objectives each, those that none beats in all joined."""
    assert one.found is not None
    made = front(space, one.found.notes)
    if len(made.objectives) < 2 or len(made.every) < 2:
        return together()
    figures = []
    for other in range(1, min(len(made.objectives), _MOST_CHOICES + 1)):
        costs = {point: (own[0], own[other]) for point, own in made.every.items()}
        caption = f"{made.objectives[0]} against {made.objectives[other]}"
        picture = _scatter(
            space, costs, (made.objectives[0], made.objectives[other]), (made.settings, one.found.winner)
        )
        figures.append(element("figure", element("figcaption", caption), picture))
    note = "Left and below is better. Filled: none is better in all objectives. Figures of the search's model."
    return together(
        element("h3", "What there is to choose from"),
        element("div", *figures, class_="pair"),
        element("p", note, class_="note"),
    )


def _scatter(
    space: Space,
    costs: dict[Point, tuple[float, float]],
    names: tuple[str, str],
    marked: tuple[dict[Point, tuple[float, ...]], Point],
) -> Markup:
    settings, winner = marked
    percents = {point: tuple(100 * math.expm1(cost) for cost in own) for point, own in costs.items()}
    x = linear(*_reach([one[0] for one in percents.values()]), _FRAME.left, _FRAME.right)
    y = linear(*_reach([one[1] for one in percents.values()]), _FRAME.bottom, _FRAME.top)
    parts = [x_axis(_FRAME, x, f"{names[0]}, % against present"), y_axis(_FRAME, y, f"{names[1]}, % against present")]
    for point, (across, up) in percents.items():
        tip = element("title", f"{named(space, point)}: {across:+z.1f} %, {up:+z.1f} %")
        look = "base" if point == winner else "c0" if point in settings else "again"
        hollow = "" if point in settings or point == winner else " hollow"
        parts.append(element("circle", tip, class_=f"series {look} mark{hollow}", cx=x(across), cy=y(up), r=4.6))
    for point, text in ((winner, "chosen"), (space.present, "present")):
        if point in percents and (text == "chosen" or point != winner):
            at = percents[point]
            parts.append(element("text", text, class_="name", x=x(at[0]) + 8, y=y(at[1]) + 4))
    return charts.chart(f"{len(costs)} settings by {names[0]} and {names[1]}", *parts)


def _reach(values: Sequence[float]) -> tuple[float, float]:
    """Return the span of an axis, the present setting's 0 and a per cent to each side in it."""
    return min(-1.0, *values), max(1.0, *values)
