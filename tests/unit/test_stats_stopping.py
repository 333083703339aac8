from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri, stdtrit

from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.boundaries import levels_at, nominal_levels, repeated_p
from nearmetal.stats.compare import compare
from nearmetal.stats.equivalence import Finding
from nearmetal.stats.stopping import StoppingPlan, look, sequential_evidence
from nearmetal.stats.summary import Metric
from nearmetal.stats.widen import BlockFigures


def critical_values(looks: tuple[int, ...], spent: list[float]) -> list[float]:
    return [-float(ndtri(level / 2)) for level in nominal_levels(looks, tuple(spent))]


def test_obrien_fleming_type_boundaries_of_lan_and_demets() -> None:
    spent = [4 * (1 - float(ndtr(-ndtri(0.0125) / t**0.5))) for t in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert critical_values((1, 2, 3, 4, 5), spent) == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=2e-3)


def test_pocock_type_boundaries_of_lan_and_demets() -> None:
    spent = [0.05 * float(np.log1p((np.e - 1) * t)) for t in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert critical_values((1, 2, 3, 4, 5), spent) == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=2e-3)


def test_one_look_is_the_plain_t_test() -> None:
    assert levels_at((10,), 0.7, 0.05) == pytest.approx((0.05,))


@pytest.mark.parametrize("plan", [StoppingPlan(15), StoppingPlan(30)])
def test_error_under_all_looks_is_nominal_for_student_t(plan: StoppingPlan) -> None:
    rng = np.random.default_rng(17)
    values = rng.normal(size=(40_000, plan.max_blocks))
    levels = levels_at(plan.looks, plan.first_share, plan.alpha)
    crossed = np.zeros(len(values), dtype=bool)
    for n, level in zip(plan.looks, levels, strict=True):
        t = values[:, :n].mean(axis=1) / (values[:, :n].std(axis=1, ddof=1) / n**0.5)
        crossed |= np.abs(t) >= -stdtrit(n - 1, level / 2)
    assert 0.047 <= crossed.mean() <= 0.056


def test_looking_after_each_block_without_a_plan_inflates_errors() -> None:
    rng = np.random.default_rng(17)
    values = rng.normal(size=(10_000, 15))
    crossed = np.zeros(len(values), dtype=bool)
    for n in range(5, 16):
        t = values[:, :n].mean(axis=1) / (values[:, :n].std(axis=1, ddof=1) / n**0.5)
        crossed |= np.abs(t) >= -stdtrit(n - 1, 0.025)
    assert crossed.mean() > 0.10


def test_repeated_p_agrees_with_the_interval_at_its_level() -> None:
    looks = StoppingPlan(15).looks
    for index, level in enumerate(levels_at(looks, 0.7, 0.05)):
        assert repeated_p(looks, 0.7, index, level, (0.05, 0.10)) == pytest.approx(0.05, rel=1e-9)
        assert repeated_p(looks, 0.7, index, level / 2, (0.05, 0.10)) < 0.05
        assert repeated_p(looks, 0.7, index, 1.0, (0.05, 0.10)) == 1.0
        assert 0.0 < repeated_p(looks, 0.7, index, 1e-300, (0.05, 0.10)) < 1e-200


def test_looks_are_planned_up_to_the_cap() -> None:
    assert StoppingPlan(8, min_blocks=5).looks == (5, 6, 7, 8)
    assert StoppingPlan(5).looks == (5,)


def noise(n: int, sd: float, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, sd, n)


def test_before_the_first_look_nothing_is_decided() -> None:
    found = look(noise(4, 0.01), StoppingPlan(15))
    assert (found.stop, found.interval, found.finding, found.blocks) == (False, None, Finding.UNDECIDED, 0)


def test_clear_comparisons_stop_at_the_first_look() -> None:
    assert look(noise(5, 0.005), StoppingPlan(15)).finding is Finding.WITHIN
    slower = look(noise(5, 0.005) + 0.3, StoppingPlan(15))
    assert (slower.stop, slower.finding, slower.blocks) == (True, Finding.SLOWER, 5)
    assert look(noise(5, 0.005) - 0.3, StoppingPlan(15)).finding is Finding.FASTER


def test_noisy_comparisons_continue_to_the_cap() -> None:
    loud = noise(20, 0.3)
    between, cap = look(loud[:7], StoppingPlan(15)), look(loud[:15], StoppingPlan(15))
    assert (between.stop, between.finding, between.blocks) == (False, Finding.UNDECIDED, 7)
    assert (cap.stop, cap.finding, cap.blocks) == (True, Finding.UNDECIDED, 15)
    assert look(loud, StoppingPlan(15)) == look(loud[:15], StoppingPlan(15))


def test_a_precise_interval_stops_though_undecided() -> None:
    plan = StoppingPlan(15, margin=0.01, precision=0.10)
    found = look(noise(6, 0.02), plan)
    assert (found.stop, found.finding, found.precise) == (True, Finding.UNDECIDED, True)


def test_many_comparisons_need_more_evidence() -> None:
    values = noise(5, 0.05) + 0.2
    assert look(values, StoppingPlan(15)).stop
    assert not look(values, StoppingPlan(15, comparisons=100)).stop


def test_a_comparison_after_adaptive_stopping_reports_the_sequential_interval() -> None:
    plan = StoppingPlan(15)
    log_ratios = noise(7, 0.02) + 0.02
    figures = BlockFigures(1_000 * np.exp(log_ratios), np.full(7, 1_000.0))
    found = compare({Metric.MEAN: figures}, rng=np.random.default_rng(0), plan=plan)
    seen = look(figures.log_ratios, plan)
    assert found.headline.method is IntervalMethod.REPEATED
    assert found.headline.interval == seen.interval
    assert found.headline.finding is seen.finding
    fixed = compare({Metric.MEAN: figures}, rng=np.random.default_rng(0))
    assert seen.interval is not None
    assert fixed.headline.interval is not None
    assert seen.interval.high - seen.interval.low > fixed.headline.interval.high - fixed.headline.interval.low


def test_interval_and_p_value_agree_on_the_difference() -> None:
    plan = StoppingPlan(15)
    for shift in np.linspace(0.0, 0.2, 41):
        found = sequential_evidence(noise(8, 0.1) + shift, plan)
        assert found is not None
        _, evidence = found
        # Skewness moves one end of the interval outwards, so it may cover values that the p-value rejects, never fewer.
        assert evidence.p_difference <= plan.alpha or evidence.difference.contains(0.0)
