from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as reference

from nearmetal.errors import BadInputError
from nearmetal.stats.interval import Interval
from nearmetal.stats.order import (
    ecdf,
    median_absolute_deviation,
    order,
    quantile,
    quantile_ranks,
    support,
    tail_curve,
    tally,
)
from nearmetal.stats.summary import summarize


def latencies_ns(n: int, seed: int = 7) -> np.ndarray:
    return (8_000 * np.random.default_rng(seed).lognormal(0.0, 0.4, n)).astype(np.int64)


def test_summary_agrees_with_numpy_and_scipy() -> None:
    ns = latencies_ns(20_001)
    found = summarize(ns)
    assert found.n == 20_001
    assert found.mean_ns == pytest.approx(ns.mean(), rel=1e-12)
    assert found.sd_ns == pytest.approx(ns.std(ddof=1), rel=1e-12)
    assert found.median_ns == np.median(ns)
    assert found.mad_ns == reference.median_abs_deviation(ns)
    assert (found.min_ns, found.max_ns) == (ns.min(), ns.max())
    for one in found.percentiles:
        assert one.value_ns == pytest.approx(np.quantile(ns, one.probability), rel=1e-12)
    assert found.lag1_autocorrelation == pytest.approx(
        np.corrcoef(ns[:-1], ns[1:])[0, 1],
        abs=1e-3,  # Pearson centres the two halves apart
    )


def test_durations_beyond_32_bits_are_exact() -> None:
    ns = np.array([5, 2**40 + 1, 2**40 + 3, 7, 9], dtype=np.int64)
    found = summarize(ns)
    assert (found.min_ns, found.max_ns, found.median_ns) == (5, 2**40 + 3, 9.0)
    assert found.mad_ns == 4.0
    assert order(ns).dtype == np.int64
    assert order(ns[:1]).dtype == np.int32


def test_the_input_is_not_modified() -> None:
    ns = latencies_ns(1_000)
    before = ns.copy()
    summarize(ns)
    assert np.array_equal(ns, before)


# Conover's table A3: for n = 20 and the median, ranks 6 and 15 hold at 95.86 %; for n = 10, ranks 2 and 9 at 97.85 %.
@pytest.mark.parametrize(("n", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15))])
def test_median_ranks_match_the_published_ones(n: int, ranks: tuple[int, int]) -> None:
    assert quantile_ranks(n, 0.5) == ranks


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("n", [40, 400, 4_000, 100_000])
def test_ranks_are_the_tightest_with_coverage(n: int, probability: float) -> None:
    ranks = quantile_ranks(n, probability)
    if ranks is None:
        assert n < support(probability)
        return
    low, high = ranks
    below = reference.binom(n, probability)
    assert below.cdf(low - 1) <= 0.025 < below.cdf(low)
    assert below.sf(high - 1) <= 0.025 < below.sf(high - 2)


@pytest.mark.parametrize(("probability", "needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3_688)])
def test_a_percentile_needs_its_minimum_of_samples(probability: float, needed: int) -> None:
    ordered = order(latencies_ns(needed))
    refused = quantile(ordered[:-1], probability)
    assert refused.value_ns is None
    assert refused.interval_ns is None
    assert f"n >= {needed}" in refused.reason
    given = quantile(ordered, probability)
    assert given.value_ns is not None
    assert given.reason == ""


def test_percentile_intervals_cover_the_true_percentile() -> None:
    rng = np.random.default_rng(11)
    true_p99 = 1e6 * reference.expon.ppf(0.99)
    trials = [quantile(order((1e6 * rng.exponential(size=1_000)).astype(np.int64)), 0.99) for _ in range(400)]
    covered = np.mean([t.interval_ns is not None and t.interval_ns.contains(true_p99) for t in trials])
    assert 0.93 <= covered <= 0.99


def test_percentile_that_was_not_computed_is_an_error() -> None:
    with pytest.raises(BadInputError, match=r"no percentile at 0\.42"):
        summarize(latencies_ns(100)).percentile(0.42)


@pytest.mark.parametrize(
    "bad",
    [np.array([], dtype=np.int64), np.array([[1, 2]]), np.array([1.5]), np.array([3, -1])],
    ids=["empty", "two-dimensional", "float", "negative"],
)
def test_bad_samples_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(BadInputError):
        summarize(bad)


def test_one_sample_has_no_spread() -> None:
    found = summarize(np.array([1_234]))
    assert (found.mean_ns, found.median_ns, found.mad_ns, found.sd_ns) == (1_234, 1_234, 0, None)
    assert found.lag1_autocorrelation is None
    assert found.effective_n is None
    assert found.median_interval_ns is None


def autoregressive(n: int, rho: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=n)
    values = np.empty(n)
    values[0] = noise[0] / math.sqrt(1 - rho**2)
    for i in range(1, n):
        values[i] = rho * values[i - 1] + noise[i]
    return (1e6 + 1e4 * values).astype(np.int64)


def test_a_percentile_is_between_the_samples_of_its_ranks() -> None:
    """Of the samples 1 to 100 each is its own rank; 95 % of the median are between the 40th and the 61st."""
    found = quantile(np.arange(1, 101), 0.5)
    assert found.value_ns == 50.5
    assert found.interval_ns == Interval(40.0, 61.0, 0.95)


def test_constant_batches_count_as_one_sample_each() -> None:
    """Twenty batches of 20, alternately 90 and 110: s^2 = 40,000 / 399; their means have the variance 2,000 / 19."""
    ns = np.repeat(np.tile([90, 110], 10), 20).astype(np.int64)
    assert summarize(ns).effective_n == pytest.approx(400 * (40_000 / 399) / (20 * 2_000 / 19), rel=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_dependence_of_an_ar1_process(rho: float) -> None:
    n = 200_000
    ns = autoregressive(n, rho, seed=3)
    assert summarize(ns).lag1_autocorrelation == pytest.approx(rho, abs=0.01)
    # For AR(1) the effective size is n (1 - rho) / (1 + rho); batch means of 447 batches estimate it to about 7 %.
    assert summarize(ns).effective_n == pytest.approx(n * (1 - rho) / (1 + rho), rel=0.25)


def test_mad_of_every_few_samples_is_exact() -> None:
    """The nearest neighbours of the median may be the lowest, the highest or between."""
    for n in range(1, 6):
        for few in itertools.combinations_with_replacement((0, 1, 2, 5, 9, 14), n):
            assert median_absolute_deviation(np.array(few)) == reference.median_abs_deviation(few), few


@pytest.mark.parametrize("curve_of", [ecdf, tail_curve])
@pytest.mark.parametrize("n", [1, 2, 3, 50, 100_000])
def test_curves_are_exact_at_both_ends_and_small(curve_of, n: int) -> None:
    ns = latencies_ns(n)
    curve = curve_of(tally([ns]))
    assert curve.ns[0] == ns.min()
    assert curve.ns[-1] == ns.max()
    assert curve.fraction[-1] == 1.0
    assert len(curve.ns) <= 201
    for i in range(0, len(curve.ns), 20):
        assert np.mean(ns <= curve.ns[i]) == pytest.approx(curve.fraction[i])


def test_tail_curve_reaches_every_decade() -> None:
    curve = tail_curve(tally([latencies_ns(1_000_000)]))
    for decade in (0.9, 0.99, 0.999, 0.9999, 0.99999):
        assert np.abs(curve.fraction - decade).min() < 0.05 * (1 - decade)
