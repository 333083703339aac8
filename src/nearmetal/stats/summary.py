"""What one trial says by itself: location, spread, percentiles, and how dependent its samples are."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from nearmetal.errors import BadInputError
from nearmetal.stats.equivalence import MARGIN
from nearmetal.stats.interval import FloatArray, IntArray, Interval
from nearmetal.stats.modes import Modes, find_modes
from nearmetal.stats.order import Quantile, median_absolute_deviation, order, quantile, quantile_value
from nearmetal.units import by_key

PERCENTILES = (0.90, 0.95, 0.99, 0.999)
MIN_BATCHES = 10
TRIM = 0.01
"""The share of samples that the trimmed mean leaves out at each end."""
REFUSED_SHARE = 0.1
LEAST_SPREAD = 6
"""Below so many samples a launch has no distribution to speak of: its mean is all that it says."""


P99 = 0.99
TOO_FAST = "0 ns: faster than the clock can tell"


class Metric(StrEnum):
    """Which figure of a launch stands for its block; the first is the headline."""

    MEAN = "mean"
    MEDIAN = "median"
    P99 = "p99"


HEADLINE = Metric.MEAN


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """One trial's samples of one workload cell (operation and size) in single figures, durations in nanoseconds.

    `trimmed_mean_ns` leaves 1 % of the samples out at each end; it is the headline figure of a launch. `sd_ns` is None
    for n = 1. `median_interval_ns` is None below 6 samples. `lag1_autocorrelation` is None when n < 3 or nothing
    varies. `effective_n` is the number of independent samples that would be worth as much; None when n is too small to
    say.
    """

    n: int
    mean_ns: float
    trimmed_mean_ns: float
    sd_ns: float | None
    median_ns: float
    median_interval_ns: Interval | None
    mad_ns: float
    min_ns: int
    max_ns: int
    lag1_autocorrelation: float | None
    effective_n: float | None


@dataclass(frozen=True, slots=True)
class Summary(SampleFigures):
    """All that one trial's samples of a cell say by themselves.

    `percentiles` holds p90, p95, p99 and p99.9 (or those asked for), each refused where n cannot support it. `modes` is
    None where the samples form one group.
    """

    percentiles: tuple[Quantile, ...]
    modes: Modes | None

    def figure(self, metric: Metric, margin: float = MARGIN, *, spread: bool = False) -> tuple[float | None, str]:
        """Return one figure of the launch (ns), or None and why there is none: the only place that defines them.

        The reason is empty where the metric does not apply: a launch of a few samples has a mean alone, unless `spread`
        says that launches it is compared with have more. A median that the launch cannot hold is refused: one in the
        gap between two modes, or known less well than `margin` says.
        """
        if metric is Metric.MEAN:
            return (self.trimmed_mean_ns, "") if self.trimmed_mean_ns > 0.0 else (None, TOO_FAST)
        if self.n < LEAST_SPREAD:
            return None, f"n = {self.n}, where other launches have {LEAST_SPREAD} or more" if spread else ""
        if metric is Metric.MEDIAN:
            why = TOO_FAST if self.median_ns <= 0.0 else self._why_no_median(margin)
            return (None, why) if why else (self.median_ns, "")
        tail = self.percentile(P99)
        return (tail.value_ns, tail.reason) if tail.value_ns != 0.0 else (None, TOO_FAST)

    def _why_no_median(self, margin: float) -> str:
        if self.modes and self.modes.gap_at(self.median_ns):
            return f"the median lies in the gap between {self.modes}"
        interval = self.median_interval_ns
        if interval is not None and interval.high > interval.low * (1.0 + margin):
            return f"the median's 95 % interval is wider than {100 * margin:.3g} % of it" + (
                f": {self.modes}" if self.modes else ""
            )
        return ""

    def percentile(self, probability: float) -> Quantile:
        """Return the percentile that was computed at `probability`; raise BadInputError when it was not asked for."""
        for one in self.percentiles:
            if math.isclose(one.probability, probability, rel_tol=0.0, abs_tol=1e-12):
                return one
        have = ", ".join(f"{one.probability:g}" for one in self.percentiles)
        raise BadInputError(f"no percentile at {probability:g} in this summary; it has {have}")


def has_spread(launches: Mapping[int, Summary]) -> bool:
    """Return whether a launch has samples enough for a distribution."""
    return any(one.n >= LEAST_SPREAD for one in launches.values())


def over_blocks(
    launches: Mapping[int, Summary], metric: Metric, margin: float = MARGIN, *, spread: bool = False
) -> tuple[dict[int, float], str]:
    """Return one figure a block (ns), and why the metric is refused: one definition for reports, gates and stopping.

    `launches`: the summary of each block's launch. A figure that more than a tenth of the launches refuse is refused
    altogether; below that the blocks that lack it are left out. Both are empty where the metric does not apply: to no
    launch, and, as `spread` says, to none that these are compared with.
    """
    spread = spread or has_spread(launches)
    taken = {block: launches[block].figure(metric, margin, spread=spread) for block in sorted(launches)}
    refusals = [why for _, why in taken.values() if why]
    if len(refusals) > REFUSED_SHARE * len(taken):
        count = "" if len(refusals) == len(taken) else f" ({len(refusals)} of {len(taken)} launches)"
        return {}, f"{refusals[0]}{count}"
    return {block: value for block, (value, _) in taken.items() if value is not None}, ""


def over_names(
    names: Sequence[Mapping[int, Summary]], metric: Metric, margin: float = MARGIN, *, spread: bool = False
) -> tuple[dict[int, float], str]:
    """Return as `over_blocks` the figures of a path that a block launches once under each of several names.

    A block's figure is the geometric mean of those that it has; one name to which the metric is refused refuses it.
    """
    spread = spread or any(map(has_spread, names))
    found = [over_blocks(one, metric, margin, spread=spread) for one in names]
    refused = next((why for _, why in found if why), "")
    return {} if refused else block_means([ns for ns, _ in found]), refused


def block_means(names: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return one figure a block, the geometric mean of those that it has under each name; `names`: block -> figure."""
    blocks = sorted(set().union(*names))
    return _geometric((block, one[block]) for block in blocks for one in names if block in one)


def by_occasion(values: Mapping[int, float], occasion: Callable[[int], int]) -> dict[int, float]:
    """Return one figure an occasion, the geometric mean of its blocks; `values`: block -> positive figure.

    The inverse of a figure, such as the rate of a duration, has the inverse mean.
    """
    return _geometric((occasion(block), values[block]) for block in sorted(values))


def _geometric(figures: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the geometric mean of the positive figures of each number."""
    return {
        of: math.exp(math.fsum(map(math.log, found)) / len(found)) if len(found) > 1 else found[0]
        for of, found in by_key(figures).items()
    }


def summarize(ns: IntArray) -> Summary:
    """Summarize one trial's samples; 2.5 million cost about one integer sort.

    `ns`: shape (n,), n >= 1, integer nanoseconds in the order they were measured, warm-up left out. Raises
    BadInputError on empty, negative or non-integer samples.

    mean = sum x / n; trimmed mean: that of the ordered samples without the floor(n / 100) at each end (Tukey and
    McLaughlin (1963), Sankhya A 25); sd = sqrt(sum (x - mean)^2 / (n - 1)); median and percentiles:
    `order.quantile_value`; intervals and the rule of refusal: `order.quantile`; MAD: `order.median_absolute_deviation`.
    """
    ordered = order(ns)
    mean = int(ns.sum(dtype=np.int64)) / ns.size
    centred = np.subtract(ns, mean, dtype=np.float64)
    squares = _dot(centred, centred)
    return Summary(
        n=ns.size,
        mean_ns=mean,
        trimmed_mean_ns=trimmed_mean(ordered),
        sd_ns=math.sqrt(squares / (ns.size - 1)) if ns.size > 1 else None,
        median_ns=quantile_value(ordered, 0.5),
        median_interval_ns=quantile(ordered, 0.5).interval_ns,
        mad_ns=median_absolute_deviation(ordered),
        percentiles=tuple(quantile(ordered, p) for p in PERCENTILES),
        min_ns=int(ordered[0]),
        max_ns=int(ordered[-1]),
        lag1_autocorrelation=_lag1(centred, squares),
        effective_n=_effective_n(centred, squares),
        modes=find_modes(ns, ordered),
    )


def trimmed_mean(ordered: IntArray) -> float:
    """Return the mean of ascending samples (ns), shape (n,), without the floor(n `TRIM`) at each end."""
    cut = math.floor(ordered.size * TRIM)
    kept = ordered[cut : ordered.size - cut]
    return int(kept.sum(dtype=np.int64)) / kept.size


def _dot(a: FloatArray, b: FloatArray) -> float:
    """Return sum a_i b_i in this thread: BLAS would start its own, which fight over cores with those that summarize."""
    return float(np.einsum("i,i->", a, b))


def _lag1(centred: FloatArray, squares: float) -> float | None:
    """Return r1 = sum (x_i - m)(x_{i+1} - m) / sum (x_i - m)^2, None when n < 3 or nothing varies.

    Box, Jenkins and Reinsel, Time Series Analysis, section 2.1.
    """
    if centred.size < 3 or squares == 0.0:
        return None
    return _dot(centred[:-1], centred[1:]) / squares


def _effective_n(centred: FloatArray, squares: float) -> float | None:
    """Return n s^2 / (b v) by batch means, at most n; None below 100 samples or when nothing varies.

    The samples are cut into a = floor(n / b) batches of b = floor(sqrt n) neighbours; b v, with v the mean square of
    the batch means about the mean, estimates the variance constant of the mean under dependence (Flegal and Jones
    (2010), "Batch means and spectral variance estimators in MCMC", Ann. Stat. 38(2)). That is the spectrum at frequency
    0 alone: samples that alternate would count as more than n. So the same is done with every second sign turned, which
    is the spectrum at frequency 1/2, and the larger counts: n samples that alternate exactly are worth about sqrt n.
    """
    n = centred.size
    length = math.isqrt(n)
    batches = n // max(length, 1)
    if batches < MIN_BATCHES or squares == 0.0:
        return None
    whole = centred[: batches * length].reshape(batches, length)
    signs = np.where(np.arange(length) % 2, -1.0, 1.0)
    # BLAS would start its own threads here too; einsum stays in this one.
    turned = np.einsum("ij,j->i", whole, signs) / length
    means = np.einsum("ij->i", whole) / length
    long_run_variance = length * max(_dot(means, means) / (batches - 1), _dot(turned, turned) / batches)
    if long_run_variance == 0.0:
        return float(n)
    return min(float(n), n * (squares / (n - 1)) / long_run_variance)
