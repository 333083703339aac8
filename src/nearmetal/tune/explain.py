"""Which knob matters, by how much, and for which cells: an analysis of variance of what the model believes.

The model's means cover every setting, so effects are plain averages over the others (functional analysis of variance:
Hutter, Hoos and Leyton-Brown (2014), "An efficient approach for assessing hyperparameter importance", ICML 31). These
figures come from the search; they explain a choice, they do not prove it.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nearmetal.stats.interval import FloatArray
from nearmetal.stats.summary import HEADLINE
from nearmetal.tune.model import Model
from nearmetal.tune.objective import Objective
from nearmetal.tune.search import TrialNote
from nearmetal.tune.space import Point, Space


@dataclass(frozen=True, slots=True)
class KnobShare:
    """The share of the variance on one cell that a knob explains, or two together and neither alone.

    `by_value` is, of one knob, the mean log cost of each value against the first.
    """

    cell: str
    knobs: tuple[str, ...]
    share: float
    by_value: dict[str, float] = field(default_factory=dict)


def explain(space: Space, notes: Sequence[TrialNote], objective: Objective) -> tuple[list[KnobShare], list[KnobShare]]:
    """Return the effects and interactions of knobs on cells that the objective weighs or limits, the largest first."""
    whole = [note for note in notes if note.cost is not None and not note.cut]
    cells = [cell for cell in dict.fromkeys(cell for note in whole for cell in note.log_costs) if objective.minds(cell)]
    effects: list[KnobShare] = []
    interactions: list[KnobShare] = []
    for cell in cells:
        observed = [(note.block, note.point, note.log_costs[cell]) for note in whole if cell in note.log_costs]
        own, pairs = _decompose(space, cell, Model(space).posterior(observed).mean)
        effects += own
        interactions += pairs
    return sorted(effects, key=lambda effect: -effect.share), sorted(interactions, key=lambda pair: -pair.share)


def _decompose(space: Space, cell: str, mean: FloatArray) -> tuple[list[KnobShare], list[KnobShare]]:
    points = np.array(space.points)
    centred = mean - mean.mean()
    total = float(np.mean(centred**2)) or 1.0
    alone = [_means(points[:, axis], centred) for axis in range(points.shape[1])]
    effects = []
    for axis, (of, level) in enumerate(zip(space.axes, alone, strict=True)):
        first = level[0]
        values = {value: float(level[i] - first) for i, value in enumerate(of.values) if i in set(points[:, axis])}
        effects.append(KnobShare(cell, (of.knob,), float(np.mean(level[points[:, axis]] ** 2)) / total, values))
    pairs = []
    for one, two in itertools.combinations(range(points.shape[1]), 2):
        joint = points[:, one] * (points[:, two].max() + 1) + points[:, two]
        rest = _means(joint, centred)[joint] - alone[one][points[:, one]] - alone[two][points[:, two]]
        knobs = (space.axes[one].knob, space.axes[two].knob)
        pairs.append(KnobShare(cell, knobs, float(np.mean(rest**2)) / total))
    return effects, pairs


def _means(groups: np.ndarray, values: FloatArray) -> FloatArray:
    """Return the mean of each group, by group number; 0 for numbers that do not occur."""
    counts = np.bincount(groups)
    return np.asarray(np.bincount(groups, weights=values) / np.maximum(counts, 1))


# ---- where objectives disagree
# The settings of which none is better in everything.
#
# Each workload is a separate objective, and so are the interrupts and the CPU that all of them cost; a setting is on
# the front when no other measured setting is as good in all and better in one (Pareto). Costs are the means that the
# model of the race believes, so that a lucky trial puts no setting on the front. They come from the search: they show
# what there is to choose from, they prove nothing.


EXPENSES = ("interrupts-per-s", "cpu-share")
_LATENESS = str(HEADLINE)
_WORTH = 0.01
"""A log cost: 1 % better in one objective alone is not a reason to be on the front."""


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Log costs relative to present: `settings` maps the points of the front to one cost an objective, `every` all."""

    objectives: tuple[str, ...]
    settings: dict[Point, tuple[float, ...]]
    every: dict[Point, tuple[float, ...]]

    @property
    def disagree(self) -> bool:
        """Return whether there is anything to choose."""
        return len(self.settings) > 1 and len(self.objectives) > 1


def front(space: Space, notes: Sequence[TrialNote]) -> ParetoFront:
    """Return the front of the settings that were measured whole, the present one among them."""
    whole = [note for note in notes if note.cost is not None and not note.cut]
    names = list(dict.fromkeys(name for note in whole for name in _by_objective(note.log_costs)))
    measured = [space.present, *dict.fromkeys(note.point for note in whole)]
    index = {point: number for number, point in enumerate(space.points)}
    rows = [index[point] for point in measured]
    columns = []
    for name in names:
        known = ((note, _by_objective(note.log_costs)) for note in whole)
        observed = [(note.block, note.point, costs[name]) for note, costs in known if name in costs]
        columns.append(Model(space).posterior(observed).mean[rows])
    costs = {point: tuple(float(column[i]) for column in columns) for i, point in enumerate(measured)}
    return ParetoFront(tuple(names), {point: costs[point] for point in pareto_front(costs, worth=_WORTH)}, costs)


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
