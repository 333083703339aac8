"""Which knob matters, by how much, and for which cells: an analysis of variance of what the model believes.

The model's means cover every setting, so effects are plain averages over the others (functional analysis of variance:
Hutter, Hoos and Leyton-Brown (2014), "An efficient approach for assessing hyperparameter importance", ICML 31). These
figures come from the search; they explain a choice, they do not prove it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.tune.model import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.stats.interval import FloatArray
    from nearmetal.tune.objective import Objective
    from nearmetal.tune.search import TrialNote
    from nearmetal.tune.space import Space


@dataclass(frozen=True, slots=True)
class KnobShare:
    """One knob on one cell: its share of the variance, and the mean log cost of each value against the first."""

    cell: str
    knob: str
    share: float
    by_value: dict[str, float]


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two knobs on one cell: the share of the variance that neither explains alone."""

    cell: str
    knobs: tuple[str, str]
    share: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Effects and interactions, the largest first."""

    effects: tuple[KnobShare, ...]
    interactions: tuple[Interaction, ...]


def explain(space: Space, notes: Sequence[TrialNote], objective: Objective) -> Explanation:
    """Return the effects of every knob on every cell that the objective weighs or limits."""
    whole = [note for note in notes if note.cost is not None and not note.cut]
    cells = [cell for cell in dict.fromkeys(cell for note in whole for cell in note.log_costs) if objective.minds(cell)]
    effects: list[KnobShare] = []
    interactions: list[Interaction] = []
    for cell in cells:
        observed = [(note.block, note.point, note.log_costs[cell]) for note in whole if cell in note.log_costs]
        own, pairs = _decompose(space, cell, Model(space).belief(observed).mean)
        effects += own
        interactions += pairs
    return Explanation(
        tuple(sorted(effects, key=lambda effect: -effect.share)),
        tuple(sorted(interactions, key=lambda pair: -pair.share)),
    )


def _decompose(space: Space, cell: str, mean: FloatArray) -> tuple[list[KnobShare], list[Interaction]]:
    points = np.array(space.points)
    centred = mean - mean.mean()
    total = float(np.mean(centred**2)) or 1.0
    alone = [_means(points[:, axis], centred) for axis in range(points.shape[1])]
    effects = []
    for axis, (of, level) in enumerate(zip(space.axes, alone, strict=True)):
        first = level[0]
        values = {value: float(level[i] - first) for i, value in enumerate(of.values) if i in set(points[:, axis])}
        effects.append(KnobShare(cell, of.knob, float(np.mean(level[points[:, axis]] ** 2)) / total, values))
    pairs = []
    for one, two in itertools.combinations(range(points.shape[1]), 2):
        joint = points[:, one] * (points[:, two].max() + 1) + points[:, two]
        rest = _means(joint, centred)[joint] - alone[one][points[:, one]] - alone[two][points[:, two]]
        knobs = (space.axes[one].knob, space.axes[two].knob)
        pairs.append(Interaction(cell, knobs, float(np.mean(rest**2)) / total))
    return effects, pairs


def _means(groups: np.ndarray, values: FloatArray) -> FloatArray:
    """Return the mean of each group, by group number; 0 for numbers that do not occur."""
    counts = np.bincount(groups)
    return np.asarray(np.bincount(groups, weights=values) / np.maximum(counts, 1))
