"""The residual of one way, from round trips: what a message takes longer, or shorter, than its size's median."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nearmetal.predict.models import PS_PER_NS, Distribution
from nearmetal.stats.interval import FloatArray

_PROBABILITIES = (*(k / 40 for k in range(36)), *(1 - 10 ** -(1 + k / 10) for k in range(41)))
_NEAR = 0.01
_DRAWS, _DRAWS_A_SAMPLE, _ITERATIONS, _DAMPING, _SPARSE = 1 << 13, 4, 16, 0.5, 20


def _supported(samples: int) -> FloatArray:
    """Return the probabilities that this many round trips say something about: one slow way in 2 n ways."""
    last = 1 - 1 / (2 * samples)
    return np.array([p for p in _PROBABILITIES if p < last] + [last])


def one_way_quantiles(round_trip_ns: NDArray[np.int64], probabilities: FloatArray) -> FloatArray:
    """Return quantiles (ns) of one way's deviation from half the median round trip.

    Two independent draws add up to the round trip: the deconvolution of its distribution, by fixed-point iteration.
    It starts from the larger of two ways, F_sum(x) = F(x)^2, which is exact for rare delays, and moves each quantile by
    what the sum of two draws misses at the probability p^2. No way is shorter than half the shortest trip.
    """
    centre = float(np.median(round_trip_ns))
    squared = probabilities**2
    target = np.quantile(round_trip_ns, squared) - centre
    floor = (float(round_trip_ns.min()) - centre) / 2
    one_way = np.maximum(target, floor)
    points = _points_of_square(min(_DRAWS, _DRAWS_A_SAMPLE * round_trip_ns.size))
    known = squared < 1 - _SPARSE / points.shape[1]  # beyond, the points of the sum are too few: the start is kept
    for _ in range(_ITERATIONS):
        first, second = np.interp(points, probabilities, one_way)
        total: FloatArray = first + second
        missing = np.where(known, target - np.quantile(total, squared), 0.0)
        one_way = np.maximum.accumulate(np.maximum(one_way + _DAMPING * missing, floor))
    return one_way


@cache
def _points_of_square(points: int) -> FloatArray:
    """Return quasi-random points of the unit square (R2 sequence, Roberts 2018), shape (2, points)."""
    return np.outer((0.7548776662466927, 0.5698402909980532), np.arange(1, points + 1)) % 1


def _no_longer_than(round_trip_ns: NDArray[np.int64], quantiles: FloatArray, probabilities: FloatArray) -> FloatArray:
    """Return quantiles of one way with a mean at most _NEAR that of round trips: what is above 0 shrinks.

    Two independent ways cannot add up to every distribution, such as one of two modes. Matched quantile by quantile
    they then come out too long, and a program that sends one message after another takes the mean of each. Nearer, it
    is the noise of few samples, and what is above 0 is of the right length.
    """

    def mean(values: FloatArray) -> float:
        return float(np.trapezoid(values, probabilities) + values[-1] * (1 - probabilities[-1]))

    early, late = np.minimum(quantiles, 0), np.maximum(quantiles, 0)
    middle, average = float(np.median(round_trip_ns)), float(np.mean(round_trip_ns))
    wanted_ns = (average * (1 + _NEAR) - middle) / 2 - mean(early)
    return early + late * max(0.0, wanted_ns / max(wanted_ns, mean(late), 1e-9))


def residual_of(samples: Sequence[NDArray[np.int64]]) -> Distribution:
    """Return the residual of one way: the mean of the quantile functions of several sizes, or that of one."""
    probabilities = _supported(min(ns.size for ns in samples))
    ways = [_no_longer_than(ns, one_way_quantiles(ns, probabilities), probabilities) for ns in samples]
    quantiles = np.mean(ways, axis=0)
    values = np.maximum.accumulate(np.round(quantiles * PS_PER_NS).astype(np.int64))
    return Distribution(tuple(map(float, probabilities)), tuple(map(int, values)))


def times_of(ns: NDArray[np.int64]) -> Distribution:
    """Return the distribution of durations (ns), as far as so many samples show it."""
    probabilities = _supported(ns.size)
    values = np.round(np.quantile(ns, probabilities) * PS_PER_NS).astype(np.int64)
    return Distribution(tuple(map(float, probabilities)), tuple(map(int, values)))
