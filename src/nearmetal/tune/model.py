"""What the race believes about settings that it has not measured: a Gaussian process over the space.

The covariance of two settings is that of an analysis of variance: a share of its own for every knob on which they
agree, a share for every pair of knobs on which they agree, and one for each setting by itself (Duvenaud, Nickisch and
Rasmussen (2011), "Additive Gaussian processes", NIPS 24; Rasmussen and Williams, Gaussian Processes for Machine
Learning, chapters 2 and 5). On a knob of three or more numbers, neighbouring values count as agreeing partly.

Observations are costs relative to the present setting of the same block, so those of one block share the error of
that block's present trial; the covariance says so. Outliers, which launches have, are given less weight, those of the
present setting too: each trial's variance grows with the error that the posterior ascribes to it
(Huber (1964), "Robust estimation of a location parameter").
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from nearmetal.stats.interval import FloatArray
from nearmetal.tune.space import Point, Space

_HUBER = 2.0
_JITTER = 1e-9
_REWEIGHTINGS = 3
# Variances before anything is known: of a knob, of a pair of knobs, of a setting by itself, and of a trial.
_KNOB, _PAIR, _OWN, _NOISE = 0.01, 0.001, 0.0003, 0.001
_LOWEST, _HIGHEST = math.log(1e-7), math.log(4.0)
_TIE = 2.0
"""Standard deviation of the logarithm of a variance around its start."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and covariance of the costs of all points, in the order of the space; the present one's cost is 0."""

    mean: FloatArray
    covariance: FloatArray
    noise_sd: float


class Model:
    """The covariances of one space, computed once, and the posterior after observations."""

    def __init__(self, space: Space) -> None:
        self._index = {point: i for i, point in enumerate(space.points)}
        knobs = [_agreement(space, axis) for axis in range(len(space.axes))]
        pairs = sum((one * two for one, two in itertools.combinations(knobs, 2)), np.zeros_like(knobs[0]))
        parts = [*knobs, pairs, np.eye(len(space.points))]
        self._parts = np.stack([self._relative(part, space.present) for part in parts])
        self._start = np.log([*[_KNOB] * len(knobs), _PAIR, _OWN, _NOISE])
        self._fitted = self._start.copy()

    def posterior(self, observed: Sequence[tuple[int, Point, float]]) -> Posterior:
        """Return the posterior after observations of (block, point, cost), the variances fitted to them."""
        if not observed:
            prior = self._prior(self._fitted)
            return Posterior(np.zeros(len(prior)), prior, math.exp(self._fitted[-1] / 2))
        rows = np.array([self._index[point] for _, point, _ in observed])
        blocks = np.array([block for block, _, _ in observed])
        costs = np.array([cost for _, _, cost in observed])
        signal = self._parts[:, rows][:, :, rows]
        # The error of the block's present trial, which the block's costs share.
        shared = (blocks[:, None] == blocks[None, :]).astype(np.float64)
        own, present = np.ones(len(rows)), np.ones(len(rows))
        for _ in range(_REWEIGHTINGS):
            noise = shared * present + np.diag(own)
            self._fit(np.concatenate((signal, noise[None])), costs)
            prior = self._prior(self._fitted)
            variances = np.exp(self._fitted)
            total = np.tensordot(variances[:-1], signal, 1) + variances[-1] * noise
            factor = linalg.cho_factor(total + _JITTER * np.eye(len(rows)), lower=True)
            weights = linalg.cho_solve(factor, costs)
            # The expected errors of the trials and of their blocks' present trials, in standard deviations.
            sd = math.sqrt(variances[-1])
            own = np.maximum(1.0, np.abs(sd * own * weights) / _HUBER) ** 2
            present = np.maximum(1.0, np.abs(sd * present * (shared @ weights)) / _HUBER) ** 2
        across = prior[:, rows]
        covariance = prior - across @ linalg.cho_solve(factor, across.T)
        return Posterior(across @ weights, covariance, math.exp(self._fitted[-1] / 2))

    def _relative(self, part: FloatArray, present: Point) -> FloatArray:
        """Return the covariance of differences from the present point."""
        p = self._index[present]
        return np.asarray(part - part[:, [p]] - part[[p], :] + part[p, p])

    def _prior(self, theta: FloatArray) -> FloatArray:
        return np.asarray(np.tensordot(np.exp(theta[:-1]), self._parts, 1))

    def _fit(self, parts: FloatArray, costs: FloatArray) -> None:
        """Set the variances to those under which the costs are most likely, weakly tied to the start.

        The gradient is that of Rasmussen and Williams, equation 5.9; the covariance is linear in the variances.
        """
        from scipy.optimize import minimize  # noqa: PLC0415 (a tenth of a second, for fits alone: `serve` makes none)

        shape, rows = parts.shape[1:], parts.reshape(len(parts), -1)
        jitter = _JITTER * np.eye(len(costs))

        def surprise(theta: FloatArray) -> tuple[float, FloatArray]:
            variances = np.exp(theta)
            factor = linalg.cholesky((variances @ rows).reshape(shape) + jitter, lower=True)
            lower = np.tril(linalg.lapack.dpotri(factor, lower=1)[0])
            inverse = lower + np.tril(lower, -1).T
            weights = inverse @ costs
            away = (theta - self._start) / _TIE
            value = 0.5 * float(costs @ weights) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(away @ away)
            inner = inverse - np.outer(weights, weights)
            return value, 0.5 * variances * (rows @ inner.ravel()) + away / _TIE

        bounds = [(_LOWEST, _HIGHEST)] * len(self._start)
        found = minimize(surprise, self._fitted, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 20})
        self._fitted = np.asarray(found.x)


def _agreement(space: Space, axis: int) -> FloatArray:
    """Return how far each pair of points agrees on one knob: 1 for the same value, 0 for unrelated ones."""
    values = space.axes[axis]
    ranks = np.array([values.ranks[point[axis]] for point in space.points], dtype=np.float64)
    apart = np.abs(ranks[:, None] - ranks[None, :])
    return np.asarray(np.exp(-apart) if values.ordered else (apart == 0.0).astype(np.float64))
