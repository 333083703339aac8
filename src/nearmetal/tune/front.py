"""Where objectives disagree: the settings of which none is better in everything.

Each workload is an objective of its own, and so are the interrupts and the CPU that all of them cost; a setting is on
the front when no other measured setting is as good in all and better in one (Pareto). Costs are the means that the
model of the race believes, so that a lucky trial puts no setting on the front. They come from the search: they show
what there is to choose from, they prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.stats.summary import HEADLINE
from nearmetal.tune.model import Model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.tune.search import TrialNote
    from nearmetal.tune.space import Point, Space

EXPENSES = ("interrupts-per-s", "cpu-share")
_LATENESS = str(HEADLINE)
_WORTH = 0.01
"""A log cost: 1 % better in one objective alone is not a reason to be on the front."""


@dataclass(frozen=True, slots=True)
class Front:
    """Log costs relative to present: `settings` maps the points of the front to one cost an objective, `every` all."""

    objectives: tuple[str, ...]
    settings: dict[Point, tuple[float, ...]]
    every: dict[Point, tuple[float, ...]]

    @property
    def disagree(self) -> bool:
        """Return whether there is anything to choose."""
        return len(self.settings) > 1 and len(self.objectives) > 1


def front(space: Space, notes: Sequence[TrialNote]) -> Front:
    """Return the front of the settings that were measured whole, the present one among them."""
    whole = [note for note in notes if note.cost is not None and not note.cut]
    names = list(dict.fromkeys(name for note in whole for name in _by_objective(note.log_costs)))
    measured = [space.present, *dict.fromkeys(note.point for note in whole)]
    index = {point: number for number, point in enumerate(space.points)}
    rows = [index[point] for point in measured]
    columns = []
    for name in names:
        observed = [(note.block, note.point, _by_objective(note.log_costs)[name]) for note in whole]
        columns.append(Model(space).belief(observed).mean[rows])
    costs = {point: tuple(float(column[i]) for column in columns) for i, point in enumerate(measured)}
    return Front(tuple(names), {point: costs[point] for point in pareto_front(costs, worth=_WORTH)}, costs)


def pareto_front(costs: Mapping[Point, tuple[float, ...]], *, worth: float = 0.0) -> tuple[Point, ...]:
    """Return the points that no other dominates, in the order given; smaller is better.

    Costs count in whole steps of `worth`; of points that are alike in all steps the first stays.
    """
    steps = {point: tuple(round(cost / worth) if worth else cost for cost in own) for point, own in costs.items()}
    firsts = {own: point for point, own in reversed(steps.items())}
    return tuple(
        point
        for point, own in steps.items()
        if firsts[own] == point
        and not any(one != own and all(a <= b for a, b in zip(one, own, strict=True)) for one in firsts)
    )


def _by_objective(log_costs: Mapping[str, float]) -> dict[str, float]:
    """Return the mean log cost of each workload's means, and of each expense over the workloads."""
    groups: dict[str, list[float]] = {}
    for cell, cost in log_costs.items():
        workload, statistic = cell.partition("/")[0], cell.rpartition("/")[2]
        if statistic == _LATENESS:
            groups.setdefault(workload, []).append(cost)
        elif statistic in EXPENSES:
            groups.setdefault(statistic, []).append(cost)
    return {name: float(np.mean(values)) for name, values in groups.items()}
