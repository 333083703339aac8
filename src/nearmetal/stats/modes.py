"""Modes: whether one launch's iterations fall into several groups, where those lie, and in which order they come.

Tested by excess mass (Mueller and Sawitzki (1991), "Excess mass estimates and tests for multimodality", JASA 86): with
E_m(l) the largest sum of P(I) - l |I| over m disjoint intervals, the statistic is the largest E_2(l) - E_1(l), which is
twice the dip of Hartigan and Hartigan (1985), "The dip test of unimodality", Ann. Stat. 13(1). The two intervals that
attain it are the modes. Critical values are those of the uniform distribution, the least favourable unimodal one.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from nearmetal.stats.interval import BoolArray, FloatArray, IntArray
from nearmetal.units import as_percent

POINTS = 400
"""So many quantiles stand for a launch; the test counts them as samples, which makes it careful with longer ones."""
LEAST_SAMPLES = 40
LEAST_SHARE = 0.05
LEAST_DISTANCE = 1.05
"""Modes closer than this ratio, or rarer than that share, are not told apart: no verdict turns on them."""
_CRITICAL = 1.38
"""The 99.9 % quantile of sqrt(n) times the statistic for n uniform samples (simulated, n = 40 to 400)."""
_DENSITIES = np.geomspace(0.2, 400.0, 96)
_Z_CHANCE = 3.29
"""Of the count of runs: beyond it an order is not one of chance (two-sided 0.1 %)."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One group of iterations: its share of them, its median, and where it begins and ends (ns)."""

    share: float
    centre_ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class Modes:
    """Two groups or more, ascending; `order` says how they follow each other: see `order_of`."""

    modes: tuple[Mode, ...]
    order: str

    @property
    def distance(self) -> float:
        """Return the ratio of the slowest mode's centre to the fastest's."""
        return self.modes[-1].centre_ns / self.modes[0].centre_ns

    def gap_at(self, ns: float) -> bool:
        """Return whether a duration lies in the gap between two modes."""
        return any(a.high_ns < ns < b.low_ns for a, b in zip(self.modes, self.modes[1:], strict=False))

    def __str__(self) -> str:
        shares = ", ".join(as_percent(one.share) for one in self.modes)
        return f"{len(self.modes)} modes {self.distance:.2f} times apart ({shares}; {self.order})"


def find_modes(ns: IntArray, ordered: IntArray) -> Modes | None:
    """Return the modes of one launch's samples, None where one is enough.

    `ns`: the samples in the order measured, shape (n,), positive; `ordered`: the same, ascending.
    """
    if ordered.size < LEAST_SAMPLES or ordered[0] <= 0:
        return None
    points = _points(ordered)
    cuts = _cuts(np.log(points))
    edges = [float((points[cut - 1] * points[cut]) ** 0.5) for cut in cuts]
    modes = _modes(ordered, edges)
    if len(modes) < 2:
        return None
    between = [(a.high_ns * b.low_ns) ** 0.5 for a, b in itertools.pairwise(modes)]
    return Modes(tuple(modes), order_of(np.searchsorted(between, ns)))


def _points(ordered: IntArray) -> FloatArray:
    """Return at most `POINTS` quantiles, ties spread over the clock's step so that a coarse clock makes no modes."""
    count = min(POINTS, ordered.size)
    picked = ordered[((np.arange(count) + 0.5) * ordered.size / count).astype(np.int64)]
    step = int(np.gcd.reduce(picked))
    values, first, counts = np.unique(picked, return_index=True, return_counts=True)
    place = (np.arange(count) - np.repeat(first, counts) + 0.5) / np.repeat(counts, counts) - 0.5
    if values.size == 1:  # the clock's step is not known
        step = 0
    return np.asarray(np.repeat(values, counts) + place * step, dtype=np.float64)


def _cuts(x: FloatArray) -> list[int]:
    """Return the indices of points before which a mode ends, ascending, three at most: split, and both parts again."""
    middle = split(x)
    if middle is None:
        return []
    below, above = split(x[:middle]), split(x[middle:])
    return [*([below] if below else []), middle, *([middle + above] if above else [])]


def split(x: FloatArray) -> int | None:
    """Return the index at which ascending points x, shape (n,), part into two modes, None where one is not refuted."""
    if x.size < LEAST_SAMPLES // 2 or x[-1] <= x[0]:
        return None
    statistic, cut = excess_mass(x)
    return cut if statistic * math.sqrt(x.size) > _CRITICAL else None


def excess_mass(x: FloatArray) -> tuple[float, int]:
    """Return the statistic max over l of E_2(l) - E_1(l), and the index that begins the second of the two intervals.

    With s_i = i / n - l x_i an interval from the i-th to the j-th point has excess mass s_j - s_i + 1 / n, so the best
    one that ends at j takes the least s before it, and the best pair is the best of a beginning and of a rest.
    """
    n = x.size
    scaled = (x - x[0]) / (x[-1] - x[0])
    s = np.arange(n) / n - _DENSITIES[:, None] * scaled
    ends_at = s - np.minimum.accumulate(s, axis=1)
    starts_at = np.maximum.accumulate(s[:, ::-1], axis=1)[:, ::-1] - s
    before = np.maximum.accumulate(ends_at, axis=1)
    after = np.maximum.accumulate(starts_at[:, ::-1], axis=1)[:, ::-1]
    two = before[:, :-1] + after[:, 1:] + 1.0 / n
    gain = two.max(axis=1) - before[:, -1]
    best = int(gain.argmax())
    cuts = np.flatnonzero(two[best] >= two[best].max() - 1e-12)
    # Between the two intervals any cut is as good: the widest step is where a reader would draw it.
    steps = np.diff(x)[cuts]
    return float(gain[best]), int(cuts[steps.argmax()]) + 1


def _modes(ordered: IntArray, edges: list[float]) -> list[Mode]:
    """Return the groups between edges; one that is too rare, or too close to the one below, joins its neighbour."""
    bounds = [0, *np.searchsorted(ordered, edges).tolist(), ordered.size]
    kept: list[tuple[int, int]] = []
    for low, high in itertools.pairwise(bounds):
        if high <= low:
            continue
        rare = (high - low) < LEAST_SHARE * ordered.size
        close = bool(kept) and _centre(ordered, low, high) < LEAST_DISTANCE * _centre(ordered, *kept[-1])
        below_is_rare = bool(kept) and kept[-1][1] < LEAST_SHARE * ordered.size  # the lowest: others would have joined
        if kept and (rare or close or below_is_rare):
            kept[-1] = (kept[-1][0], high)
        else:
            kept.append((low, high))
    n = ordered.size
    return [
        Mode((high - low) / n, _centre(ordered, low, high), float(ordered[low]), float(ordered[high - 1]))
        for low, high in kept
    ]


def _centre(ordered: IntArray, low: int, high: int) -> float:
    return float(np.median(ordered[low:high]))


def apart(logs: FloatArray, bound: float) -> BoolArray:
    """Return which launches stand apart from the median one: by more than `bound` and six robust sd.

    `logs`: the logarithm of one figure a launch, shape (n,); the robust sd is 1.4826 times the median absolute
    deviation (Hampel (1974), JASA 69). Few launches cannot be tested for modes as iterations are.
    """
    off = np.abs(logs - np.median(logs))
    return np.asarray(off > max(bound, 6.0 * 1.4826 * float(np.median(off))))


def slow_launches(log_costs: FloatArray, bound: float) -> int:
    """Return how many launches stand apart as slower, of one log cost ratio a block, shape (n,)."""
    return int(np.count_nonzero(apart(log_costs, bound) & (log_costs > np.median(log_costs))))


def order_of(labels: IntArray) -> str:
    """Return how modes follow each other in time: `alternating`, `bursts`, `one switch` or `at random`.

    `labels`: the mode of each iteration, shape (n,). By the number of runs of the first mode and of the others: Wald
    and Wolfowitz (1940), "On a test whether two samples are from the same population", Ann. Math. Stat. 11(2). Too
    many runs are alternating, too few are bursts, and a single change that explains 95 % of the labels is one switch.
    """
    first = labels == 0
    ones = int(first.sum())
    others = first.size - ones
    expected = 1.0 + 2.0 * ones * others / first.size
    spread = math.sqrt(max(0.0, (expected - 1.0) * (expected - 2.0) / (first.size - 1)))
    runs = 1 + int(np.count_nonzero(first[1:] != first[:-1]))
    if spread == 0.0 or abs(runs - expected) <= _Z_CHANCE * spread:
        return "at random"
    if runs > expected:
        return "alternating"
    up_to = np.cumsum(first)
    explained = up_to + (others - (np.arange(1, first.size + 1) - up_to))
    best = max(int(explained.max()), first.size - int(explained.min()))
    return "one switch" if best >= 0.95 * first.size else "bursts"
