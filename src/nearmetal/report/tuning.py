"""What a search found, on a terminal: the proof first, then what explains it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table

from nearmetal.tune.explain import explain
from nearmetal.tune.front import front

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from nearmetal.tune.objective import Objective
    from nearmetal.tune.search import Confirmation, Found, Ratio
    from nearmetal.tune.space import Space

_SHOWN_EFFECTS = 8
_SHOWN_FRONT = 6
_LEAST_SHARE = 0.01
_PRESENT = "present setting"


def render(console: Console, space: Space, objective: Objective, found: Found, proof: Confirmation) -> None:
    """Print the answer, its evidence, the front where objectives disagree, and what mattered."""
    console.print(proof.reason, style="bold")
    for knob, value in space.setting(found.winner).items():
        console.print(f"  {knob} = {value}")
    if proof.ratio is not None and proof.interval is not None:
        console.print(
            f"cost against present: {proof.ratio:.3f} ({proof.interval.low:.3f} to {proof.interval.high:.3f}, "
            f"{proof.interval.level:.0%}), {proof.blocks} fresh blocks"
        )
    if proof.to_native:
        before, after = proof.to_native
        console.print(f"ratio to native: {_words(before)} before, {_words(after)} after")
    if proof.cells:
        console.print(_cells(proof.cells))
    _front(console, space, found)
    _explain(console, space, objective, found)


def _words(ratio: Ratio) -> str:
    if ratio.interval is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.interval.low:.3f} to {ratio.interval.high:.3f})"


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cells(cells: Mapping[str, Ratio]) -> Table:
    table = _table("", "cell")
    for column in ("ratio", "low", "high"):
        table.add_column(column, justify="right")
    for cell, one in cells.items():
        low, high = (f"{one.interval.low:.3f}", f"{one.interval.high:.3f}") if one.interval else ("-", "-")
        table.add_row(cell, f"{one.value:.3f}", low, high)
    return table


def _front(console: Console, space: Space, found: Found) -> None:
    made = front(space, found.notes)
    if not made.disagree:
        return
    table = _table("where objectives disagree: none of these is beaten in all (search figures)", "setting")
    for name in made.objectives:
        table.add_column(name, justify="right")
    ranked = sorted(made.settings.items(), key=lambda one: sum(one[1]))
    for point, costs in ranked[:_SHOWN_FRONT]:
        setting = ", ".join(f"{knob}={value}" for knob, value in space.setting(point).items())
        table.add_row(setting or _PRESENT, *(f"{math.expm1(cost):+.1%}" for cost in costs))
    console.print(table)
    if len(ranked) > _SHOWN_FRONT:
        console.print(f"and {len(ranked) - _SHOWN_FRONT} more")


def _explain(console: Console, space: Space, objective: Objective, found: Found) -> None:
    made = explain(space, found.notes, objective)
    shown = [effect for effect in made.effects if effect.share >= _LEAST_SHARE][:_SHOWN_EFFECTS]
    if not shown:
        return
    table = _table("what mattered in the search", "knob", "cell", "share", "against its first value")
    for effect in shown:
        first, *others = effect.by_value
        values = ", ".join(f"{value}: {math.expm1(effect.by_value[value]):+.1%}" for value in others)
        table.add_row(f"{effect.knob} ({first})", effect.cell, f"{effect.share:.0%}", values)
    pairs = [pair for pair in made.interactions if pair.share >= _LEAST_SHARE]
    for pair in pairs[: _SHOWN_EFFECTS // 2]:
        table.add_row(" x ".join(pair.knobs), pair.cell, f"{pair.share:.0%}", "together, beyond each alone")
    console.print(table)
