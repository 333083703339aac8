"""Order statistics: one sort gives every percentile, its interval and the MAD.

Sorting is the whole cost of a summary, so it is done once, in the narrowest integer type that holds the values
(half the memory traffic, twice the SIMD lanes), and everything else reads the sorted array.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from scipy import special

from nearmetal.errors import BadInputError
from nearmetal.stats.interval import FloatArray, IntArray, Interval
from nearmetal.units import as_percent

INTERVAL_LEVEL = 0.95
_HALF = (1.0 - INTERVAL_LEVEL) / 2.0
CURVE_POINTS = 200
TOLD = {"p5": 0.05, "median": 0.5, "p95": 0.95, "p99": 0.99}
"""What is said of a distribution besides its curve, and so must be one of its points."""
_COUNTED = 1 << 18
"""Most samples lie within 0.26 ms of the shortest: those are counted, in a third of the time and memory of sorting."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """One percentile of one trial: a value with its interval, or the reason why there is none.

    `probability` is in (0, 1). `value_ns` and `interval_ns` are both given or both None; `reason` says why they are
    None and is empty otherwise.
    """

    probability: float
    value_ns: float | None
    interval_ns: Interval | None
    reason: str = ""


def order(ns: IntArray) -> IntArray:
    """Return the samples in ascending order, as int32 when they all fit, else as int64.

    `ns`: shape (n,), n >= 1, integer nanoseconds, none negative. Raises BadInputError otherwise.
    """
    check_samples(ns)
    fits = int(ns.max()) <= np.iinfo(np.int32).max
    narrow: IntArray = ns.astype(np.int32) if fits else ns.astype(np.int64)
    narrow.sort()
    return narrow


def check_samples(ns: IntArray) -> None:
    """Raise BadInputError unless `ns` is a non-empty 1-D integer array without negative durations."""
    if ns.ndim != 1 or ns.size == 0:
        text = f"samples have shape {ns.shape}, expected a non-empty row"
        raise BadInputError(text, hint="the trial recorded nothing after its warm-up; give it more iterations")
    if not np.issubdtype(ns.dtype, np.integer):
        raise BadInputError(f"samples have type {ns.dtype}, expected integer nanoseconds")
    if int(ns.min()) < 0:
        text = f"smallest sample is {int(ns.min())} ns"
        raise BadInputError(text, hint="a duration cannot be negative: the clock stepped or the file is damaged")


def quantile_value(ordered: IntArray, probability: float) -> float:
    """Return the sample quantile by linear interpolation between order statistics.

    Definition 7 of Hyndman and Fan (1996), "Sample quantiles in statistical packages", Am. Stat. 50(4): with
    h = (n - 1) p, x[floor h] + (h - floor h)(x[floor h + 1] - x[floor h]); the default of numpy.
    """
    position = (ordered.size - 1) * probability
    below = math.floor(position)
    low = int(ordered[below])
    high = int(ordered[min(below + 1, ordered.size - 1)])
    return low + (position - below) * (high - low)


@lru_cache(maxsize=4096)
def quantile_ranks(n: int, probability: float) -> tuple[int, int] | None:
    """Return the ranks (l, u), 1-based, whose order statistics enclose the quantile; None when n is too small.

    The number of samples below the quantile is Binomial(n, p), so [x_(l), x_(u)] covers it with probability
    P(l <= B <= u - 1). l is the largest rank with P(B < l) <= a/2 and u the smallest with P(B >= u) <= a/2, where
    a = 1 - level (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; Hahn and Meeker, Statistical
    Intervals, section 5.2). Both must exist within 1..n: (1 - p)^n <= a/2 and p^n <= a/2. At 95 % that asks for
    6 samples for the median, 36 for p90, 72 for p95, 368 for p99 and 3,688 for p99.9. It holds for exchangeable
    samples; autocorrelation makes the true interval wider, which is why comparisons never use it.
    """
    if (1.0 - probability) ** n > _HALF or probability**n > _HALF:
        return None
    # P(B < l) = cdf(l - 1): the largest l that keeps it within half; u likewise from the upper tail.
    low = _first(lambda k: float(special.bdtr(k, n, probability)) > _HALF, 0, n)
    high = _first(lambda k: float(special.bdtrc(k, n, probability)) <= _HALF, 0, n) + 1
    return low, high


def support(probability: float) -> int:
    """Return the smallest n for which `quantile_ranks` gives an interval."""
    estimate = math.ceil(math.log(_HALF) / math.log(max(probability, 1.0 - probability)))
    n = max(1, estimate - 1)
    while quantile_ranks(n, probability) is None:
        n += 1
    return n


def quantile(ordered: IntArray, probability: float) -> Quantile:
    """Return one percentile with its order-statistic interval, or a refusal when n cannot support it.

    The rule of refusal: a percentile is given only when a 95 % interval for it exists within the order statistics
    (see `quantile_ranks`). `ordered` is ascending, as `order` returns it.
    """
    ranks = quantile_ranks(ordered.size, probability)
    if ranks is None:
        needed = support(probability)
        reason = f"n = {ordered.size} cannot support it; a {as_percent(INTERVAL_LEVEL)} interval needs n >= {needed}"
        return Quantile(probability, None, None, reason)
    low, high = ranks
    ends = Interval(float(ordered[low - 1]), float(ordered[high - 1]), INTERVAL_LEVEL)
    return Quantile(probability, quantile_value(ordered, probability), ends)


def median_absolute_deviation(ordered: IntArray) -> float:
    """Return the median of |x - median(x)|, unscaled (times 1.4826 it estimates a normal's sd), in O(log n).

    The k nearest samples to the median follow each other, so the k-th smallest deviation is that of the farther end of
    the closest k neighbours. Twice the median is an integer, so it is exact.
    Hampel (1974), "The influence curve and its role in robust estimation", JASA 69.
    """
    n = ordered.size
    twice_median = int(ordered[(n - 1) // 2]) + int(ordered[n // 2])
    lower = _deviation(ordered, twice_median, (n - 1) // 2 + 1)
    upper = lower if n % 2 else _deviation(ordered, twice_median, n // 2 + 1)
    return (lower + upper) / 4.0


def _deviation(ordered: IntArray, twice_median: int, rank: int) -> int:
    """Return the `rank`-th smallest |2x - twice_median|."""

    def ends(first: int) -> tuple[int, int]:
        return twice_median - 2 * int(ordered[first]), 2 * int(ordered[first + rank - 1]) - twice_median

    last = ordered.size - rank
    first = _first(lambda one: one == last or ends(one)[0] <= ends(one)[1], 0, last)
    return min(max(ends(first)), max(ends(max(first - 1, 0))))


def _first(predicate: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least integer in [low, high] for which a monotone predicate holds; `high` is known to hold."""
    while low < high:
        middle = (low + high) // 2
        if predicate(middle):
            high = middle
        else:
            low = middle + 1
    return low


# ---- curves for drawing: at most a few hundred points, exact at both ends


@dataclass(frozen=True, slots=True, eq=False)
class CountedSamples:
    """What samples are, regardless of their order: distinct values, ascending, and how many lie at or below each.

    Both int64 of shape (k,), k >= 1; `ns` in nanoseconds.
    """

    ns: IntArray
    upto: IntArray


def tally(parts: Iterable[IntArray]) -> CountedSamples:
    """Return the samples of one part or more as a tally; each is as `order` takes it, and refused alike."""
    several = iter(parts)
    first = next(several)
    check_samples(first)
    width = min(_COUNTED, 4 * first.size)
    low = max(0, int(first.min()) - width // 8)
    counts, others = np.zeros(width + 1, np.int64), []
    for ns in chain([first], several):
        check_samples(ns)
        # What lies below the range wraps around to far above it.
        at = np.minimum((ns.astype(np.int64, copy=False) - low).view(np.uint64), width).view(np.int64)
        counts += np.bincount(at, minlength=width + 1)
        others.append(ns[at == width])
    counts[width] = 0
    rest, often = np.unique(np.concatenate(others), return_counts=True)
    seen = np.flatnonzero(counts)
    ns = np.concatenate((rest[rest < low], seen + low, rest[rest >= low]))
    return CountedSamples(ns, np.cumsum(np.concatenate((often[rest < low], counts[seen], often[rest >= low]))))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points of an empirical distribution: `ns[i]` is the sample at or below which `fraction[i]` of all samples lie.

    Both have shape (k,), ascending; `ns` is int64 nanoseconds, `fraction` is in (0, 1]. The first point is the
    minimum and the last the maximum.
    """

    ns: IntArray
    fraction: FloatArray


def ecdf(of: CountedSamples) -> Curve:
    """Return the empirical distribution F(x) = #{x_i <= x} / n at ranks evenly spread over 1..n, and at `TOLD`.

    Every point is an observed sample; ties keep the highest rank.
    """
    n = int(of.upto[-1])
    told = [math.ceil(round(n * p, 6)) for p in TOLD.values()]
    spread = np.linspace(1, n, min(CURVE_POINTS - len(told), n)).round()
    return _curve(of, np.concatenate((spread, told)).astype(np.int64))


def tail_curve(of: CountedSamples) -> Curve:
    """Return the percentile curve for a log-tail axis: ranks evenly spread in -log10(1 - rank / n).

    That is the axis of HdrHistogram plots: 90 %, 99 %, 99.9 % at equal distances, out to the maximum.
    """
    n = int(of.upto[-1])
    beyond = np.logspace(np.log10(n), 0.0, min(CURVE_POINTS, n) - 1) if n > 2 else np.ones(n - 1)
    return _curve(of, np.concatenate(([1], np.round(n - beyond + 1.0), [n])).astype(np.int64).clip(1, n))


def _curve(of: CountedSamples, ranks: IntArray) -> Curve:
    """Return the points at `ranks` (1-based), one for each distinct value."""
    at = np.unique(np.searchsorted(of.upto, ranks))
    return Curve(of.ns[at], of.upto[at] / of.upto[-1])
