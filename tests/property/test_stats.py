from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nearmetal.stats.compare import estimate_ratio
from nearmetal.stats.equivalence import Better, Finding
from nearmetal.stats.order import (
    ecdf,
    median_absolute_deviation,
    order,
    quantile_ranks,
    quantile_value,
    tail_curve,
    tally,
)
from nearmetal.stats.paired import holm, wilcoxon_signed_rank
from nearmetal.stats.stopping import StoppingPlan, look
from nearmetal.stats.summary import summarize
from nearmetal.stats.widen import BlockFigures

samples = arrays(np.int64, st.integers(1, 300), elements=st.integers(0, 2**50))
figures = arrays(np.float64, 8, elements=st.floats(1.0, 1e9))
p_values = st.lists(st.floats(0.0, 1.0), max_size=30)
logs = arrays(np.float64, st.integers(5, 15), elements=st.floats(-1.0, 1.0).map(lambda x: round(x, 6)))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@settings(deadline=None)
@given(samples)
def test_summary_matches_numpy(ns: np.ndarray) -> None:
    found = summarize(ns)
    median = np.quantile(ns, 0.5)
    assert found.median_ns == pytest.approx(median, rel=1e-12)
    assert found.mad_ns == pytest.approx(np.median(np.abs(2 * ns - int(2 * median))) / 2, rel=1e-12, abs=0.5)
    assert found.min_ns <= found.median_ns <= found.max_ns
    assert found.min_ns - 1e-3 <= found.mean_ns <= found.max_ns + 1e-3


@settings(deadline=None)
@given(arrays(np.int64, st.integers(1, 200), elements=st.integers(0, 2**20)))
def test_mad_is_exact(ns: np.ndarray) -> None:
    assert median_absolute_deviation(order(ns)) == np.median(np.abs(ns - np.median(ns)))


@settings(deadline=None)
@given(samples, st.randoms(use_true_random=False))
def test_order_statistics_do_not_depend_on_the_order_of_samples(ns: np.ndarray, random) -> None:
    shuffled = ns.tolist()
    random.shuffle(shuffled)
    first, second = summarize(ns), summarize(np.array(shuffled, dtype=np.int64))
    assert (first.median_ns, first.mad_ns, first.percentiles) == (second.median_ns, second.mad_ns, second.percentiles)


@settings(deadline=None)
@given(arrays(np.int64, st.integers(36, 300), elements=st.integers(0, 2**30)), st.integers(2, 1000))
def test_summary_scales_with_its_unit(ns: np.ndarray, factor: int) -> None:
    one, scaled = summarize(ns), summarize(ns * factor)
    assert scaled.median_ns == pytest.approx(factor * one.median_ns)
    assert scaled.mad_ns == pytest.approx(factor * one.mad_ns)
    assert scaled.mean_ns == pytest.approx(factor * one.mean_ns)
    if one.lag1_autocorrelation is not None:
        assert scaled.lag1_autocorrelation == pytest.approx(one.lag1_autocorrelation, abs=1e-9)


@settings(deadline=None)
@given(samples, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_quantiles_do_not_cross(ns: np.ndarray, p: float, q: float) -> None:
    ordered = order(ns)
    assert quantile_value(ordered, min(p, q)) <= quantile_value(ordered, max(p, q))
    assert quantile_value(ordered, p) == pytest.approx(np.quantile(ns, p), rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 5000), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_interval_ranks_stay_within_the_samples(n: int, probability: float) -> None:
    ranks = quantile_ranks(n, probability)
    if ranks is not None:
        assert 1 <= ranks[0] <= ranks[1] <= n


@settings(deadline=None)
@given(st.lists(samples, min_size=1, max_size=4))
def test_a_tally_matches_sorting(parts: list[np.ndarray]) -> None:
    distinct, often = np.unique(np.concatenate(parts), return_counts=True)
    found = tally(parts)
    assert found.ns.tolist() == distinct.tolist()
    assert found.upto.tolist() == np.cumsum(often).tolist()


@settings(deadline=None)
@given(samples)
def test_curves_rise_to_the_maximum(ns: np.ndarray) -> None:
    for curve in (ecdf(tally([ns])), tail_curve(tally([ns]))):
        assert np.all(np.diff(curve.ns) > 0)
        assert np.all(np.diff(curve.fraction) > 0)
        assert (curve.ns[0], curve.ns[-1], curve.fraction[-1]) == (ns.min(), ns.max(), 1.0)


@settings(max_examples=40, deadline=None)
@given(figures, figures, st.floats(1e-3, 1e3))
def test_a_ratio_does_not_depend_on_the_unit(path: np.ndarray, baseline: np.ndarray, factor: float) -> None:
    one = estimate_ratio(BlockFigures(path, baseline), rng=rng())
    other = estimate_ratio(BlockFigures(path * factor, baseline * factor), rng=rng())
    assert one.ratio == pytest.approx(other.ratio, rel=1e-9)
    assert one.interval is not None
    assert other.interval is not None
    assert one.interval.low == pytest.approx(other.interval.low, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(figures, figures)
def test_swapping_the_sides_inverts_the_comparison(path: np.ndarray, baseline: np.ndarray) -> None:
    opposite = {Finding.SLOWER: Finding.FASTER, Finding.FASTER: Finding.SLOWER}
    one = estimate_ratio(BlockFigures(path, baseline), rng=rng())
    other = estimate_ratio(BlockFigures(baseline, path), rng=rng())
    rate = estimate_ratio(BlockFigures(path, baseline), rng=rng(), better=Better.LARGER)
    assert one.ratio * other.ratio == pytest.approx(1.0)
    assert other.finding is opposite.get(one.finding, one.finding)
    assert rate.finding is opposite.get(one.finding, one.finding)
    assert one.interval is not None
    assert one.interval.low <= one.ratio * (1 + 1e-9)
    assert one.ratio <= one.interval.high * (1 + 1e-9)


@settings(deadline=None)
@given(p_values)
def test_holm_never_lowers_a_p_and_keeps_their_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert np.all(adjusted >= p)
    assert np.all(adjusted <= 1.0)
    assert np.all(adjusted <= np.minimum(1.0, np.array(p) * max(1, len(p))) + 1e-15)
    by_p = np.argsort(p, kind="stable")
    assert np.all(np.diff(adjusted[by_p]) >= 0)


@settings(deadline=None)
@given(logs)
def test_wilcoxon_is_symmetric_and_a_probability(differences: np.ndarray) -> None:
    one, other = wilcoxon_signed_rank(differences), wilcoxon_signed_rank(-differences)
    assert (one.statistic, one.n) == (other.statistic, other.n)
    assert one.p == pytest.approx(other.p)
    assert 0.0 < one.p <= 1.0


@settings(max_examples=60, deadline=None)
@given(logs)
def test_a_verdict_never_contradicts_its_interval(log_ratios: np.ndarray) -> None:
    found = look(log_ratios, StoppingPlan(15))
    assert found.interval is not None
    if found.finding is Finding.SLOWER:
        assert found.interval.low >= 1.05
    if found.finding is Finding.FASTER:
        assert found.interval.high <= 1 / 1.05
    if found.finding is Finding.WITHIN:
        assert found.ratio is not None
        assert 1 / 1.05 < found.ratio < 1.05
    assert found == look(log_ratios, StoppingPlan(15))


@settings(max_examples=40, deadline=None)
@given(logs)
def test_interim_looks_widen_the_interval(log_ratios: np.ndarray) -> None:
    many = look(log_ratios, StoppingPlan(15))
    once = look(log_ratios, StoppingPlan(log_ratios.size, min_blocks=log_ratios.size))
    assert many.interval is not None
    assert once.interval is not None
    assert many.interval.high >= once.interval.high - 1e-12
    assert many.interval.low <= once.interval.low + 1e-12
