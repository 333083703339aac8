"""What a search found: the proof first, then what explains it; the same tables on a terminal and on a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nearmetal.errors import listed
from nearmetal.report import as_table, words
from nearmetal.report.tables import Table
from nearmetal.stats.interval import Interval
from nearmetal.tune.explain import explain, front
from nearmetal.tune.objective import Objective
from nearmetal.tune.search import Confirmation, Ratio, SearchResult, first_line
from nearmetal.tune.space import Point, Space
from nearmetal.units import as_percent

if TYPE_CHECKING:
    from nearmetal.report.terminal import Console

_SHOWN_EFFECTS = 8
_SHOWN_FRONT = 6
_LEAST_SHARE = 0.01
PRESENT = "present setting"


def render(console: Console, space: Space, objective: Objective, found: SearchResult, proof: Confirmation) -> None:
    """Print the answer, its evidence, the front where objectives disagree, and what mattered."""
    first, *others = sentences(space, found, proof)
    console.print(first, style="bold")
    for line in others:
        console.print(line)
    as_table.draw(console, tables(space, objective, found, proof))


def sentences(space: Space, found: SearchResult, proof: Confirmation) -> list[str]:
    """Return the answer, the winner's knobs and the proof, a line each."""
    lines = [proof.reason, *(f"  {knob} = {value}" for knob, value in space.setting(found.winner).items())]
    if proof.ratio is not None and proof.interval is not None:
        lines.append(
            f"cost against present: {words.ratio(proof.ratio)} ({' to '.join(_ends(proof.interval))}, "
            f"{as_percent(proof.interval.level)}), {proof.blocks} fresh blocks"
        )
    if proof.to_native:
        before, after = proof.to_native
        lines.append(f"ratio to the baseline: {_words(before)} before, {_words(after)} after")
    lines += [proof.native_failed] if proof.native_failed else []
    failed = {note.point: note.reason for note in found.notes if note.cost is None}
    left = [f"{named(space, point)} left the search: {first_line(reason)}" for point, reason in failed.items()]
    return lines + listed(left)


def tables(space: Space, objective: Objective, found: SearchResult, proof: Confirmation) -> list[Table]:
    """Return the tables behind the answer; those without rows say nothing."""
    return [cells(proof), alternatives(space, found), *mattered(space, objective, found)]


def named(space: Space, point: Point) -> str:
    """Return a setting by the knobs that differ from the present one."""
    return ", ".join(f"{knob}={value}" for knob, value in space.setting(point).items()) or PRESENT


def _words(ratio: Ratio) -> str:
    return words.ratio(ratio.value) + (f" ({' to '.join(_ends(ratio.interval))})" if ratio.interval else "")


def _ends(interval: Interval) -> tuple[str, str]:
    """Return the ends of the interval of a ratio."""
    return words.ratio(interval.low), words.ratio(interval.high) if math.isfinite(interval.high) else words.UNBOUNDED


def cells(proof: Confirmation) -> Table:
    """Return the winner against the present setting, cell by cell, on fresh blocks."""
    rows = []
    for cell, one in proof.cells.items():
        low, high = _ends(one.interval) if one.interval else ("-", "-")
        rows.append((cell, words.ratio(one.value), low, high))
    note = "Costs: below 1 the winner is better, for rates too."
    return Table("winner against present, by cell, on fresh blocks", ("cell", "cost", "low", "high"), tuple(rows), note)


def alternatives(space: Space, found: SearchResult) -> Table:
    """Return the settings of which none is better in everything, where objectives disagree."""
    made = front(space, found.notes)
    ranked = sorted(made.settings.items(), key=lambda one: sum(one[1])) if made.disagree else []
    rows = [
        (named(space, point), *(as_percent(math.expm1(cost), 1, "+") for cost in costs))
        for point, costs in ranked[:_SHOWN_FRONT]
    ]
    title = "where objectives disagree: none of these is beaten in all (search figures)"
    more = f"and {len(ranked) - _SHOWN_FRONT} more. " if len(ranked) > _SHOWN_FRONT else ""
    note = f"{more}Costs against the present setting: below 0 % is better, for rates too."
    return Table(title, ("setting", *made.objectives), tuple(rows), note)


def mattered(space: Space, objective: Objective, found: SearchResult) -> list[Table]:
    """Return which knobs and pairs of knobs mattered in the search, for which cells."""
    effects, interactions = explain(space, found.notes, objective)
    rows = []
    for effect in [effect for effect in effects if effect.share >= _LEAST_SHARE][:_SHOWN_EFFECTS]:
        first, *others = effect.by_value
        values = ", ".join(f"{value}: {as_percent(math.expm1(effect.by_value[value]), 1, '+')}" for value in others)
        rows.append((f"{effect.knobs[0]} ({first})", effect.cell, as_percent(effect.share), values or words.NOTHING))
    pairs = [pair for pair in interactions if pair.share >= _LEAST_SHARE] if rows else []
    rows += [
        (" x ".join(pair.knobs), pair.cell, as_percent(pair.share), "together, beyond each alone")
        for pair in pairs[: _SHOWN_EFFECTS // 2]
    ]
    head = ("knob", "cell", "share", "cost against its first value")
    note = "Costs below 0 % are better, for rates too."
    return [Table("what mattered in the search", head, tuple(rows), note, left=2)]
