from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import fft
from scipy import stats as reference

from nearmetal.stats.compare import RatioEstimate, compare, estimate_ratio, is_quiet, noise_floor, pair_launches
from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.stats.paired import PairedMoments, moments
from nearmetal.stats.stopping import StoppingPlan, look
from nearmetal.stats.summary import Metric, summarize
from nearmetal.stats.widen import (
    BlockContext,
    BlockFigures,
    between_variants,
    evidence_of,
    for_skewness,
    low_frequency,
    offset_of,
    third_cumulant,
    widened,
)

BOOTS = tuple(block % 3 for block in range(12))
PLANS = pytest.mark.parametrize("plan", [None, StoppingPlan(12)])
SIDES = ((-0.05, "greater"), (0.05, "less"))
NOISE = np.random.default_rng(4).normal(0.0, 0.01, 12)


def test_only_blocks_that_drift_widen_the_interval() -> None:
    drifting = np.linspace(-0.05, 0.05, 12) + NOISE
    for values in (drifting, -drifting):
        of, why = widened(moments(values), values)
        assert of.reach(0.95) > 2.0 * moments(values).reach(0.95)
        assert why.startswith("its blocks drift or are correlated, which makes its interval ")
    for steady in (0.01 * (-1.0) ** np.arange(12), np.zeros(12), drifting[:4]):
        assert widened(moments(steady), steady) == (moments(steady), "")


@pytest.mark.parametrize(("n", "q"), [(5, 2), (10, 2), (11, 2), (12, 3), (16, 3), (30, 4)])
def test_drift_is_measured_by_the_first_cosines(n: int, q: int) -> None:
    values = np.linspace(0.0, 1.0, n) ** 2
    waves = [np.cos(math.pi * j * (np.arange(n) + 0.5) / n) * math.sqrt(2 / n) for j in range(1, q + 1)]
    found = low_frequency(moments(values), values)
    assert found is not None
    assert found.df == q
    assert found.standard_error == pytest.approx(math.sqrt(sum((wave @ values) ** 2 for wave in waves) / q / n))


def test_differences_between_boots_are_a_random_effect() -> None:
    values = np.array([0.0, 0.1, 0.2] * 4) + NOISE
    found = between_variants(moments(values), values, BOOTS)
    assert found is not None
    means = values.reshape(4, 3).mean(axis=0)
    assert found.df == 2
    assert found.standard_error == pytest.approx(means.std(ddof=1) / math.sqrt(3))
    assert between_variants(moments(NOISE), NOISE, ()) is None
    alike = NOISE - NOISE.reshape(4, 3).mean(axis=0)[list(BOOTS)]
    assert between_variants(moments(alike), alike, BOOTS) is None


def test_blocks_and_boots_widen_if_an_analysis_of_variance_finds_an_effect() -> None:
    """Against scipy: one-way over boots at 0.25; slow cosines against the others, as a regression, at 0.1."""
    rng = np.random.default_rng(21)
    decided = set()
    for _ in range(200):
        values = rng.normal(0.0, 0.01, 3)[list(BOOTS)] * rng.uniform(0.0, 1.5) + rng.normal(0.0, 0.01, 12)
        p_boots = reference.f_oneway(*(values[boot::3] for boot in range(3))).pvalue
        assert (between_variants(moments(values), values, BOOTS) is None) is bool(p_boots > 0.25)
        power = fft.dct(values, norm="ortho")[1:] ** 2
        p_drift = reference.f.sf(power[:3].mean() / power[3:].mean(), 3, 8)
        assert (low_frequency(moments(values), values) is None) is bool(p_drift > 0.1)
        assert low_frequency(moments(values), values, sure=True) is not None
        decided.add((bool(p_boots > 0.25), bool(p_drift > 0.1)))
    assert len(decided) == 4


def skewed(plain: Interval, values: FloatArray) -> Interval:
    of = moments(values)
    return for_skewness(plain, third_cumulant(of, values), of.standard_error**2, of.df)


def test_skewness_widens_the_side_of_the_tail_by_johnsons_t() -> None:
    """Johnson (1978), "Modified t tests and confidence intervals for asymmetrical populations", JASA 73(363)."""
    values = np.array([0.0, 0.01, 0.02, 0.02, 0.03, 0.11])
    of, plain = moments(values), Interval(-0.02, 0.08, 0.95)
    t = reference.t.ppf(0.975, 5)
    more = of.sd / 6 * abs(reference.skew(values, bias=False)) * (2 * t**2 + 1) / 6
    right, left = skewed(plain, values), skewed(plain, -values)
    assert (right.low, right.high) == (plain.low, pytest.approx(plain.high + more))
    assert (left.low, left.high) == (pytest.approx(plain.low - more), plain.high)
    assert skewed(plain, values[:4]) == plain


def test_intervals_over_boots_cover_another_set_of_boots() -> None:
    rng = np.random.default_rng(9)
    held = {"boots": 0, "blocks": 0}
    for _ in range(1000):
        values = rng.normal(0.0, 0.01, 3)[list(BOOTS)] + rng.normal(0.0, 0.005, 12)
        for name, boots in (("boots", BOOTS), ("blocks", ())):
            found = look(values, StoppingPlan(12, min_blocks=12), context=BlockContext(variants=boots))
            held[name] += found.interval is not None and found.interval.contains(1.0)
    assert held["boots"] >= 920
    assert held["blocks"] < 750


@PLANS
def test_a_baseline_that_differs_from_itself_widens_by_that_difference(plan: StoppingPlan | None) -> None:
    def found(twins: FloatArray) -> RatioEstimate:
        path = BlockFigures(np.exp(NOISE + 0.2), np.ones(12), context=BlockContext(twins=twins))
        return estimate_ratio(path, rng=np.random.default_rng(2), plan=plan)

    alone, biased = found(np.empty(0)), found(0.03 + NOISE[::-1])
    assert alone.evidence is not None
    assert biased.evidence is not None
    offset = float((0.03 + NOISE).mean())
    assert biased.evidence.difference.low == pytest.approx(alone.evidence.difference.low - offset)
    assert biased.evidence.difference.high == pytest.approx(alone.evidence.difference.high + offset)
    assert biased.evidence.p_beyond > alone.evidence.p_beyond
    assert biased.evidence.wider.endswith("the baseline differs from itself by 3 %")
    assert found(NOISE - NOISE.mean()).interval == alone.interval
    assert found(np.append(np.full(8, math.nan), NOISE[:4] + 0.03)).interval == alone.interval  # too few to tell


def test_equality_cannot_be_shown_within_the_baselines_difference_from_itself() -> None:
    path = BlockFigures(np.exp(NOISE), np.ones(12), context=BlockContext(twins=0.06 + NOISE))
    found = compare({Metric.MEAN: path}, rng=np.random.default_rng(1)).headline
    assert found.judgement.p_equivalence is not None
    assert found.judgement.p_equivalence >= 0.5
    assert found.finding == "undecided"


def test_a_small_difference_is_not_claimed_if_the_baseline_differs_from_itself() -> None:
    def finding(gap: float, twins: FloatArray) -> tuple[str, str]:
        path = BlockFigures(np.exp(NOISE - NOISE.mean() + gap), np.ones(12), context=BlockContext(twins=twins))
        judged = compare({Metric.MEAN: path}, rng=np.random.default_rng(1)).headline.judgement
        return judged.finding, judged.reason

    assert finding(0.048, np.empty(0))[0] == "differs"
    assert finding(0.048, 0.01 + NOISE / 9) == (
        "undecided",
        "a difference is shown, but the baseline also differs from itself",
    )
    assert finding(0.2, 0.01 + NOISE / 9)[0] == "slower"
    assert finding(0.0, 0.01 + NOISE / 9)[0] == "within"


def test_an_offset_is_computed_from_the_known_blocks() -> None:
    assert offset_of(BlockContext(np.array([0.02, 0.021, math.nan, 0.019, 0.02, 0.02]))) == pytest.approx(0.02)
    assert offset_of(BlockContext(NOISE)) == 0.0


def test_an_offset_is_significant_at_alpha_but_not_above() -> None:
    twins = np.array([0.02, 0.03, 0.01, 0.02, 0.025])
    assert offset_of(BlockContext(twins), 0.05, lambda _: 0.05) == pytest.approx(0.021)
    assert offset_of(BlockContext(twins), 0.05, lambda _: 0.0501) == 0.0


def test_blocks_from_frozen_boots_do_not_follow_each_other() -> None:
    """A trend over machines restored from a snapshot is chance; the same values on a running machine are drift."""
    values = np.linspace(-0.05, 0.05, 9) + np.tile([0.001, -0.001, 0.0], 3)
    of, why = widened(moments(values), values)
    assert of.standard_error > 1.5 * moments(values).standard_error
    assert "drift" in why
    assert widened(moments(values), values, BlockContext(variants=(0, 1, 2) * 3)) == (moments(values), "")


def test_twins_from_frozen_boots_are_tested_only_for_boots() -> None:
    twins = np.array([0.0, math.nan, 0.01, 0.03, 0.07, 0.09, 0.05])
    boots = (0, 0, 1, 2, 0, 1, 2)
    assert offset_of(BlockContext(twins)) == 0.0
    assert offset_of(BlockContext(twins, boots)) == pytest.approx(np.nanmean(twins))


def test_boots_of_the_baseline_against_itself_differ_only_by_chance() -> None:
    """Both names are restored from one frozen machine: apparent differences of its boots are noise of blocks."""
    apart = np.exp(np.array([0.0, 0.012, -0.006] * 4) + NOISE / 10.0)
    booted = BlockFigures(apart, np.ones(12), context=BlockContext(variants=BOOTS))
    steady = BlockFigures(apart, np.ones(12), context=BlockContext(variants=(0,) * 12))
    plan = StoppingPlan(12)
    floors = [noise_floor(one, rng=np.random.default_rng(1), plan=plan).floor for one in (booted, steady)]
    assert floors[0] == floors[1]
    assert floors[0] is not None
    assert [is_quiet(booted, floor, plan) for floor in (0.99 * floors[0], floors[0])] == [False, True]
    path = estimate_ratio(booted, rng=np.random.default_rng(1), plan=plan).evidence
    assert path is not None
    assert math.expm1(path.difference.high) > 1.5 * floors[0]  # boots of another path may differ
    assert "boots of the machine differ" in path.wider
    twins = np.array([0.02, 0.032, 0.014] * 4) + NOISE / 10.0
    assert offset_of(BlockContext(twins, BOOTS)) == pytest.approx(np.mean(twins))


def test_boots_without_spread_inside_differ_by_the_whole_spread() -> None:
    values = np.array([0.0, 0.1, 0.3] * 2)
    found = between_variants(moments(values), values, (0, 1, 2, 0, 1, 2))
    assert found is not None
    assert (found.df, found.standard_error) == (2, pytest.approx(np.std([0.0, 0.1, 0.3], ddof=1) / math.sqrt(3)))


def test_no_look_counts_equality_as_less_likely_than_even() -> None:
    """A one-sided p-value above 0.5 is itself at every look, whatever the alpha spending gives."""
    asked: list[float] = []

    def overall(p: float) -> float:
        asked.append(p)
        return p

    values = 1.0 + NOISE

    def plain(of: PairedMoments, alpha: float) -> Interval:
        return of.interval(1.0 - alpha)

    found = evidence_of(values, BlockContext(), bound=0.05, alpha=0.05, interval=plain, overall=overall)
    tost = max(reference.ttest_1samp(values, bound, alternative=side).pvalue for bound, side in SIDES)
    assert found.p_equivalence == pytest.approx(tost)
    assert tost > 0.99
    assert max(asked) <= 1.0


def test_twins_and_boots_are_taken_from_launches() -> None:
    def launches(*means: int) -> dict[int, object]:
        return {block: summarize(np.full(10, mean)) for block, mean in enumerate(means) if mean}

    sides = [launches(100, 110, 0), launches(100, 121, 130)]
    figures, _ = pair_launches([launches(200, 200, 200)], sides, variants={0: 0, 1: 1, 2: 0})  # type: ignore[arg-type]
    context = figures[Metric.MEAN].context
    np.testing.assert_allclose(context.twins, [0.0, math.log(1.1), math.nan])
    assert context.variants == (0, 1, 0)
    assert context.first(2).variants == (0, 1)
    np.testing.assert_allclose(figures[Metric.MEAN].baseline, [100.0, math.sqrt(110 * 121), 130.0])


def test_only_the_end_on_the_long_tail_moves() -> None:
    values = np.array([0.0, 0.0, 0.01, 0.0, 0.01, 0.2])
    plain = Interval(-0.05, 0.12, 0.95)
    right = skewed(plain, values)
    assert right.low == plain.low
    assert right.high > plain.high + 0.01
    left = skewed(plain, -values)
    assert left.high == plain.high
    assert left.low == pytest.approx(plain.low - (right.high - plain.high))


@PLANS
def test_both_ways_of_stopping_widen_for_drift(plan: StoppingPlan | None) -> None:
    logs = 0.1 + np.linspace(-0.05, 0.05, 12)
    mixed = logs[np.array([0, 11, 6, 5, 10, 1, 4, 7, 2, 9, 8, 3])]
    widths = []
    for one in (logs, mixed):
        found = estimate_ratio(BlockFigures(np.exp(one), np.ones(12)), rng=np.random.default_rng(2), plan=plan)
        assert found.interval is not None
        assert found.evidence is not None
        widths.append((math.log(found.interval.high / found.interval.low), found.evidence.p_beyond))
    assert widths[0][0] > 2.0 * widths[1][0]
    assert widths[0][1] > widths[1][1]


@pytest.mark.parametrize("blocks", [5, 8, 12])
def test_skewed_ratios_are_covered(blocks: int) -> None:
    rng = np.random.default_rng([7, blocks])
    plan = StoppingPlan(blocks, min_blocks=blocks)
    held = 0
    for _ in range(1500):
        found = look(0.03 * (rng.exponential(1.0, blocks) - 1.0), plan)
        held += found.interval is not None and found.interval.contains(1.0)
    assert held / 1500 >= 0.91
