"""What the race believes about settings that it has not measured: a Gaussian process over the space.

The covariance of two settings is that of an analysis of variance: a share for every knob on which they agree, a
share for every pair of knobs on which they agree, and a share of its own for each setting (Duvenaud, Nickisch and
Rasmussen (2011), "Additive Gaussian processes", NIPS 24; Rasmussen and Williams, Gaussian Processes for Machine
Learning, chapters 2 and 5). On a knob of three or more numbers, neighbouring values count as agreeing partly.

Observations are costs relative to the present setting of the same block, so those of one block share the error of
that block's present trial; the covariance says so. Outliers, which launches have, are given less weight
(Huber (1964), "Robust estimation of a location parameter").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg, optimize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.stats.interval import FloatArray
    from nearmetal.tune.space import Point, Space

_HUBER = 2.0
_JITTER = 1e-9
_REWEIGHTINGS = 3
# Logarithms of variances: of one knob, of a pair, of a setting, of a trial. Start and bounds of the fit.
_START = np.log([0.02, 0.005, 0.001, 0.0009])
_BOUNDS = [(math.log(1e-6), math.log(1.0))] * 3 + [(math.log(1e-7), math.log(0.1))]


@dataclass(frozen=True, slots=True)
class Belief:
    """Mean and covariance of the costs of all points, in the order of the space; the present one's cost is 0."""

    mean: FloatArray
    covariance: FloatArray
    noise_sd: float

    def sd(self) -> FloatArray:
        """Return the standard deviation of each point's cost."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))


class Model:
    """The covariances of one space, computed once, and the belief after observations."""

    def __init__(self, space: Space) -> None:
        self._index = {point: i for i, point in enumerate(space.points)}
        agreements = [_agreement(space, axis) for axis in range(len(space.axes))]
        n = len(space.points)
        one = np.zeros((n, n))
        two = np.zeros((n, n))
        for number, agreement in enumerate(agreements):
            one += agreement
            for other in agreements[:number]:
                two += agreement * other
        self._parts = tuple(self._relative(part, space.present) for part in (one, two, np.eye(n)))
        self._fitted = _START.copy()

    def belief(self, observed: Sequence[tuple[int, Point, float]], *, fit: bool = True) -> Belief:
        """Return the belief after observations of (block, point, cost); `fit` also fits the variances to them."""
        if not observed:
            prior = self._prior(self._fitted)
            return Belief(np.zeros(len(prior)), prior, math.exp(self._fitted[3] / 2))
        rows = np.array([self._index[point] for _, point, _ in observed])
        blocks = np.array([block for block, _, _ in observed])
        costs = np.array([cost for _, _, cost in observed])
        inflation = np.ones(len(rows))
        for _ in range(_REWEIGHTINGS):
            if fit:
                self._fit(rows, blocks, costs, inflation)
            prior = self._prior(self._fitted)
            factor = linalg.cho_factor(self._observed(self._fitted, rows, blocks, inflation), lower=True)
            weights = linalg.cho_solve(factor, costs)
            residuals = costs - prior[rows][:, rows] @ weights
            scale = math.exp(self._fitted[3] / 2) * math.sqrt(2.0)
            inflation = np.maximum(1.0, np.abs(residuals) / (_HUBER * scale)) ** 2
        across = prior[:, rows]
        covariance = prior - across @ linalg.cho_solve(factor, across.T)
        return Belief(across @ weights, covariance, math.exp(self._fitted[3] / 2))

    def _relative(self, part: FloatArray, present: Point) -> FloatArray:
        """Return the covariance of differences from the present point."""
        p = self._index[present]
        return np.asarray(part - part[:, [p]] - part[[p], :] + part[p, p])

    def _prior(self, theta: FloatArray) -> FloatArray:
        variances = np.exp(theta[:3])
        return np.asarray(sum(v * part for v, part in zip(variances, self._parts, strict=True)))

    def _observed(self, theta: FloatArray, rows: np.ndarray, blocks: np.ndarray, inflation: FloatArray) -> FloatArray:
        variances, noise = np.exp(theta[:3]), math.exp(theta[3])
        signal = sum(v * part[np.ix_(rows, rows)] for v, part in zip(variances, self._parts, strict=True))
        # The trial's own error, and the error of the block's present trial, which the block's costs share.
        shared = noise * (blocks[:, None] == blocks[None, :])
        return np.asarray(signal + shared + np.diag(noise * inflation + _JITTER))

    def _fit(self, rows: np.ndarray, blocks: np.ndarray, costs: FloatArray, inflation: FloatArray) -> None:
        """Set the variances to those under which the observations are most likely, weakly tied to the start."""

        def surprise(theta: FloatArray) -> float:
            try:
                factor = linalg.cho_factor(self._observed(theta, rows, blocks, inflation), lower=True)
            except linalg.LinAlgError:
                return 1e10
            fit = 0.5 * float(costs @ linalg.cho_solve(factor, costs)) + float(np.log(np.diag(factor[0])).sum())
            return fit + 0.5 * float((((theta - _START) / 2.0) ** 2).sum())

        found = optimize.minimize(surprise, self._fitted, method="L-BFGS-B", bounds=_BOUNDS, options={"maxiter": 15})
        self._fitted = np.asarray(found.x)


def _agreement(space: Space, axis: int) -> FloatArray:
    """Return how far each pair of points agrees on one knob: 1 for the same value, 0 for unrelated ones."""
    values = space.axes[axis]
    ranks = np.array([values.ranks[point[axis]] for point in space.points], dtype=np.float64)
    apart = np.abs(ranks[:, None] - ranks[None, :])
    return np.asarray(np.exp(-apart) if values.ordered else (apart == 0.0).astype(np.float64))
