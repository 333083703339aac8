"""Racing: learn from a few blocks which settings may be best, then race those with a sequential test.

Screening: each block measures the setting that seems best and some that may be better, drawn from what the model
believes (Thompson (1933), Biometrika 25; batches as in Kandasamy and others (2018), AISTATS). It ends when the model
expects no further gain worth having (expected improvement: Jones, Schonlau and Welch (1998), J. Global Optim. 13).

Values that no setting on a level with the best still needs are left behind on the way: a knob's value goes when the
best setting with it is as good as the leader in fewer than `_DOUBT` of the draws. Trials of settings with such a value
count no longer either, so that what a disastrous value does in company does not blur the small differences left.

Race: the contenders are measured in the same blocks and each is compared with the leader, paired by block. A contender
leaves when the repeated confidence interval of its difference excludes zero or lies within the tolerance; the chance
that the best contender is ever dropped for a worse leader is at most `ERROR`, split over the contenders (Maron and
Moore (1997), "The racing algorithm"; Birattari and others (2002), "A racing algorithm for configuring
metaheuristics"; intervals from `nearmetal.stats.stopping`). Blocks so few cannot tell whether contenders wander from
block to block, so the intervals always allow for it (`nearmetal.stats.widen`).
"""

import math
from collections.abc import Iterable

import numpy as np
from scipy import linalg, special

from nearmetal.stats.interval import BoolArray, FloatArray
from nearmetal.stats.stopping import FIRST_LOOK_BLOCKS, StoppingPlan, sequential_evidence
from nearmetal.stats.widen import LEAST_BLOCKS, WANDERING
from nearmetal.tune.method import Costs, Method
from nearmetal.tune.model import Model
from nearmetal.tune.space import Point, Space

_JITTER = 1e-6
"""A posterior after many observations is nearly singular; this much variance (0.1 % of cost) is of no account."""
_BLOCKS_BEFORE_NARROWING = 3
"""Fewer say too little of a value to leave it behind."""
_NARROWING_DRAWS = 400
"""Draws that a value is judged by: one that fewer than `_DOUBT` of them need is left behind."""
_SHARE_OF_GRID = 0.15
"""Of the trials that a full grid takes: what a race may."""
_WIDTH = 8
"""Settings that a block of the screening measures, besides the present one."""
_LEAST_SCREEN_BLOCKS = 4
_SCREEN_BLOCKS, _MOST_SCREEN_BLOCKS = 16, 40
"""After how many screening ends, in a small space and in any: the model's work grows with the cube of what it saw."""
CONTENDERS, RACE_BLOCKS = 4, 8
"""How many race, for how many blocks, at most."""
_DOUBT = 0.01
"""A value is left behind when the chance that it is needed is smaller."""
TOLERANCE = 0.01
"""A log ratio (0.01 is 1 %): contenders so close are alike."""
_WORTH_A_LOOK = TOLERANCE / 20
"""Expected gain below which screening ends: the gain of one more look is small long before that of many."""
ERROR = 0.05
"""The chance of dropping the best contender wrongly, at most."""


def screen_blocks(points: int) -> int:
    """Return after how many blocks screening ends: later in a large space, as far as the race stays within its share.

    The share is that of a full grid over as many blocks as a comparison has before its first look.
    """
    racing = RACE_BLOCKS * (CONTENDERS + 1)
    blocks = (int(_SHARE_OF_GRID * FIRST_LOOK_BLOCKS * points) - racing) // (_WIDTH + 1)
    return min(_MOST_SCREEN_BLOCKS, max(_SCREEN_BLOCKS, blocks))


class Race(Method):
    """The method; see the module."""

    name = "race"

    def __init__(self, space: Space, *, seed: int) -> None:
        super().__init__(space)
        self._rng = np.random.default_rng(seed)
        self._model = Model(space)
        self._observed: list[tuple[int, Point, float]] = []
        self._posterior = self._model.posterior([])
        self._blocks = 0
        self._places = np.array(space.points)
        self._open = np.ones(len(space.points), dtype=bool)
        self._works = self._open.copy()
        self._racing: dict[Point, list[float]] | None = None
        self._raced = 0

    def ask(self) -> tuple[Point, ...]:
        """Return the next block's settings."""
        if self._racing is None and self._screened():
            self._racing = {point: [] for point in self._contenders()}
        if self._racing is None:
            return self._draw()
        over = len(self._racing) < 2 or self._raced >= RACE_BLOCKS
        return () if over else tuple(point for point in self._racing if point != self._space.present)

    def tell(self, costs: Costs) -> None:
        """Take the costs of a block."""
        failed = len(self._failed)
        super().tell(costs)
        if len(self._failed) > failed:  # what was left behind may have been so for a setting that is now out
            self._open[:] = True
            self._works = np.array([point not in self._failed for point in self._space.points])
        self._observed += [(self._blocks, point, cost) for point, cost in costs.items() if cost is not None]
        self._blocks += 1
        still = dict(zip(self._space.points, self._open.tolist(), strict=True))
        counting = [one for one in self._observed if still[one[1]]]
        self._posterior = self._model.posterior(counting if len(counting) >= _WIDTH else self._observed)
        if self._racing is not None:
            self._eliminate(costs)
        elif self._blocks >= _BLOCKS_BEFORE_NARROWING:
            self._narrow()

    def recommend(self) -> Point:
        """Return the leader: of the race by its blocks and the model together, else of the model."""
        return self._leader(self._racing or self._space.points)

    def hopeless_above(self) -> float:
        """Return the cost above which no noise of this size hides a winner."""
        return float(self._posterior.mean[self._works].min()) + 6.0 * self._posterior.noise_sd * math.sqrt(2.0)

    def standing(self) -> frozenset[Point]:
        """Return the contenders once they race, before that the settings of which no value was left behind."""
        if self._racing is not None:
            return frozenset(self._racing)
        still = zip(self._space.points, self._kept.tolist(), strict=True)
        return frozenset(point for point, kept in still if kept)

    @property
    def _kept(self) -> BoolArray:
        """Which settings work and have no value that was left behind."""
        return self._open & self._works

    def _leader(self, pool: Iterable[Point]) -> Point:
        mean = dict(zip(self._space.points, self._posterior.mean.tolist(), strict=True))
        still = dict(zip(self._space.points, self._kept.tolist(), strict=True))
        # The present setting wins ties: nothing is recommended without a reason.
        return min([self._space.present, *(one for one in pool if still[one])], key=lambda point: mean[point])

    def _narrow(self) -> None:
        """Leave the values behind that no good setting needs; a setting that failed is none."""
        draws = self._draws(_NARROWING_DRAWS)
        draws[:, ~self._kept] = np.inf
        level = draws.min(axis=1) + TOLERANCE / 2
        for axis, of in enumerate(self._space.axes):
            for value in range(len(of.values)):
                still = self._kept
                having = (self._places[:, axis] == value) & still
                if not having.any() or having.sum() == still.sum():
                    continue
                if float((draws[:, having].min(axis=1) <= level).mean()) < _DOUBT:
                    self._open &= self._places[:, axis] != value

    def _draws(self, count: int) -> FloatArray:
        """Return costs of all points drawn from the posterior, shape (count, points)."""
        covariance = self._posterior.covariance + _JITTER * np.eye(len(self._posterior.mean))
        root = linalg.cholesky(covariance, lower=True)
        return np.asarray(self._posterior.mean + self._rng.standard_normal((count, len(self._posterior.mean))) @ root.T)

    def _draw(self) -> tuple[Point, ...]:
        """Return the leader and points that are best in draws from the posterior."""
        still = self._kept.tolist()
        allowed = [i for i, point in enumerate(self._space.points) if still[i] and point != self._space.present]
        if not allowed:
            return ()
        chosen = [min(allowed, key=lambda i: self._posterior.mean[i])] if self._blocks else []
        chosen += [allowed[int(best)] for best in self._draws(4 * _WIDTH)[:, allowed].argmin(axis=1)]
        return tuple(self._space.points[i] for i in list(dict.fromkeys(chosen))[:_WIDTH])

    def _screened(self) -> bool:
        if self._blocks < _LEAST_SCREEN_BLOCKS:
            return False
        if self._blocks >= screen_blocks(len(self._space.points)):
            return True
        return float(self._expected_gain().max()) < _WORTH_A_LOOK

    def _expected_gain(self) -> FloatArray:
        """Return each point's expected improvement over the leader."""
        lead = self._space.points.index(self._leader(self._space.points))
        covariance = self._posterior.covariance
        spread = np.diag(covariance) + covariance[lead, lead] - 2.0 * covariance[lead]
        sd = np.sqrt(np.maximum(spread, 1e-18))
        gap = self._posterior.mean[lead] - self._posterior.mean
        z = gap / sd
        density = np.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
        return np.where(self._kept, gap * special.ndtr(z) + sd * density, 0.0)

    def _contenders(self) -> list[Point]:
        gain = self._expected_gain()
        leader = self._leader(self._space.points)
        ranked = sorted(range(len(self._space.points)), key=lambda i: -gain[i])
        worth = [self._space.points[i] for i in ranked if gain[i] > _WORTH_A_LOOK]
        pool = [point for point in worth if point != leader]
        return [leader, *pool[: CONTENDERS - 1]]

    def _eliminate(self, costs: Costs) -> None:
        """Drop the contenders that are worse than the leader, or as good to within the tolerance."""
        assert self._racing is not None
        self._raced += 1
        for point in list(self._racing):
            cost = 0.0 if point == self._space.present else costs.get(point)
            if cost is None:
                del self._racing[point]
            else:
                self._racing[point].append(cost)
        if self._racing:
            stay = survivors(np.array(list(self._racing.values())))
            self._racing = {point: own for (point, own), kept in zip(self._racing.items(), stay, strict=True) if kept}


def survivors(costs: FloatArray) -> list[bool]:
    """Tell which contenders stay in the race: the leader, and those not shown to be worse than it or alike.

    `costs`: the log cost of each contender in each block raced so far, shape (contenders, blocks). Over all looks of a
    race the best contender is dropped for one that is worse in at most `ERROR` of races.
    """
    leader = int(costs.sum(axis=1).argmin())
    rivals = max(1, len(costs) - 1)
    return [n == leader or _undecided(behind, rivals) for n, behind in enumerate(costs - costs[leader])]


def _undecided(differences: FloatArray, rivals: int) -> bool:
    looks = StoppingPlan(
        max_blocks=RACE_BLOCKS, min_blocks=LEAST_BLOCKS, alpha=min(0.4, ERROR / rivals), margin=math.expm1(TOLERANCE)
    )
    found = sequential_evidence(differences, looks, WANDERING)
    if found is None:
        return True
    interval = found[1].difference
    return not (interval.low > 0.0 or interval.inside(-TOLERANCE, TOLERANCE))
