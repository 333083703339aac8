from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as reference

from nearmetal.errors import BadInputError
from nearmetal.stats.bootstrap import IntervalMethod, wild_bootstrap_t
from nearmetal.stats.compare import compare, correct_family, estimate_level, estimate_ratio, noise_floor, pair_launches
from nearmetal.stats.conclude import Criteria, conclude, rarest_excluded
from nearmetal.stats.equivalence import Better, Evidence, Finding, Verdict, beyond_p, judge, margin_log, tost_p
from nearmetal.stats.interval import Interval
from nearmetal.stats.paired import (
    ROUNDING,
    benjamini_hochberg,
    hedges_gz,
    holm,
    moments,
    paired_t_test,
    rank_biserial,
    two_sided_p,
    wilcoxon_signed_rank,
)
from nearmetal.stats.summary import Metric, Summary, over_names, summarize
from nearmetal.stats.widen import OCCASIONS, BlockContext, BlockFigures

# Student (1908): extra hours of sleep of ten patients under two drugs. The paired t-test gives t = -4.0621 on 9
# degrees of freedom, p = 0.002833 (as in every textbook and in R's `sleep`).
SLEEP_1 = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SLEEP_2 = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def blocks(n: int, ratio: float, sd: float, seed: int) -> BlockFigures:
    rng = np.random.default_rng(seed)
    drift = 8_000.0 * rng.lognormal(0.0, 0.2, n)
    return BlockFigures(ratio * drift * rng.lognormal(0.0, sd, n), drift * rng.lognormal(0.0, sd, n))


def rng() -> np.random.Generator:
    return np.random.default_rng(2026)


def test_student_sleep_data() -> None:
    found = paired_t_test(SLEEP_1, SLEEP_2)
    assert found.statistic == pytest.approx(-4.0621, abs=5e-5)
    assert found.p == pytest.approx(0.002833, abs=5e-7)


def test_wilcoxon_is_exact_with_ties_and_zeros() -> None:
    # Ten pairs, one zero, tied sizes: all 2^9 signs, enumerated.
    differences = np.round(SLEEP_1 - SLEEP_2, 10)
    kept = differences[differences != 0]
    ranks = reference.rankdata(np.abs(kept))
    signs = np.array(np.meshgrid(*[[0, 1]] * kept.size)).reshape(kept.size, -1).T
    statistic = min(ranks[kept > 0].sum(), ranks[kept < 0].sum())
    expected = min(1.0, 2.0 * np.mean(signs @ ranks <= statistic))
    found = wilcoxon_signed_rank(differences)
    assert (found.statistic, found.n) == (statistic, 9)
    assert found.p == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 12, 40])
def test_wilcoxon_agrees_with_scipy_without_ties(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.3, 1.0, n)
    expected = reference.wilcoxon(differences, method="exact")
    found = wilcoxon_signed_rank(differences)
    assert found.statistic == expected.statistic
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)


def test_wilcoxon_of_many_pairs_agrees_with_the_exact_one() -> None:
    differences = np.random.default_rng(8).normal(0.15, 1.0, 150)
    expected = reference.wilcoxon(differences, method="exact")
    assert wilcoxon_signed_rank(differences).p == pytest.approx(expected.pvalue, rel=0.02)


def test_effect_sizes() -> None:
    differences = SLEEP_1 - SLEEP_2
    of = moments(differences)
    # d_z = -1.58 / 1.229995 and J(9) = 0.9139 (exact gamma form).
    assert of.mean / of.sd == pytest.approx(-1.284558, abs=1e-6)
    assert hedges_gz(of) == pytest.approx(-1.284558 * 0.913877, abs=2e-4)
    assert rank_biserial(differences) == -1.0
    assert rank_biserial(np.array([1.0, 2.0, -3.0])) == 0.0
    assert rank_biserial(np.zeros(4)) is None


def test_benjamini_hochberg_known_example() -> None:
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert benjamini_hochberg([0.6, 0.9]) == pytest.approx([0.9, 0.9])


def test_holm_known_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]).size == 0
    with pytest.raises(ValueError, match="p-values"):
        holm([0.5, 1.5])


def test_tost_agrees_with_two_one_sided_tests_of_scipy() -> None:
    values = np.random.default_rng(5).normal(0.01, 0.03, 12)
    bound = margin_log(0.05)
    expected = max(
        reference.ttest_1samp(values, -bound, alternative="greater").pvalue,
        reference.ttest_1samp(values, bound, alternative="less").pvalue,
    )
    of = moments(values)
    assert tost_p(of.mean, of.standard_error, of.df, bound) == pytest.approx(expected, rel=1e-9)


def evidence(
    low: float, high: float, p_difference: float = 0.001, p_equivalence: float = 0.001, p_beyond: float = 0.001
) -> Evidence:
    shrink = 0.1 * (high - low)
    equivalence = Interval(low + shrink, high - shrink, 0.9)
    return Evidence(Interval(low, high, 0.95), equivalence, p_difference, p_equivalence, p_beyond, margin_log(0.05))


@pytest.mark.parametrize(
    ("low", "high", "p_difference", "p_equivalence", "p_beyond", "finding", "message"),
    [
        (-0.02, 0.02, 0.9, 0.001, 1.0, Finding.WITHIN, "the interval lies within"),
        (-0.02, 0.02, 0.9, 0.05, 1.0, Finding.WITHIN, "the interval lies within"),
        (
            0.01,
            0.03,
            0.001,
            0.001,
            1.0,
            Finding.WITHIN,
            "the interval lies within",
        ),  # real but smaller than the margin
        (0.02, 0.08, 0.05, 0.3, 0.5, Finding.DIFFERS, "not on which side"),
        (0.10, 0.20, 0.001, 1.0, 0.05, Finding.SLOWER, "beyond the margin"),
        (-0.20, -0.10, 0.001, 1.0, 0.001, Finding.FASTER, "beyond the margin"),
        (0.10, 0.20, 0.001, 1.0, 0.2, Finding.DIFFERS, "not on which side"),  # beyond lost to the correction
        (-0.08, -0.02, 0.001, 0.3, 0.5, Finding.DIFFERS, "not on which side"),
        (-0.08, 0.08, 0.9, 0.3, 1.0, Finding.UNDECIDED, "contains both equality and"),  # p > 0.05 is not equality
        (0.02, 0.08, 0.2, 0.3, 0.5, Finding.UNDECIDED, "excludes equality by itself, but not after"),
        (0.01, 0.03, 0.001, 0.2, 1.0, Finding.UNDECIDED, "within the margin by itself, but not after"),
    ],
)
def test_each_figure_is_decided_by_one_boundary(
    low, high, p_difference, p_equivalence, p_beyond, finding, message
) -> None:
    judged = judge(evidence(low, high, p_difference, p_equivalence, p_beyond))
    assert judged.finding is finding
    assert message in judged.reason


def test_without_spread_the_difference_alone_decides() -> None:
    assert [tost_p(gap, 0.0, 4, 0.05) for gap in (0.04, -0.04, 0.05, -0.06)] == [0.0, 0.0, 1.0, 1.0]
    assert [beyond_p(gap, 0.0, 4, 0.05) for gap in (0.04, 0.05, 0.06, -0.06)] == [1.0, 1.0, 0.0, 0.0]


MEAN, MEDIAN, P99 = Metric
WITHIN, SLOWER, FASTER, DIFFERS, OPEN = Finding


@pytest.mark.parametrize(
    ("mean", "median", "p99", "verdict", "message"),
    [
        (WITHIN, WITHIN, WITHIN, Verdict.NEAR_METAL, "all figures"),
        (WITHIN, WITHIN, FASTER, Verdict.NEAR_METAL, "all figures"),
        (WITHIN, WITHIN, SLOWER, Verdict.SLOWER_TAIL, "near-metal in the body, slower in the tail"),
        (WITHIN, WITHIN, DIFFERS, Verdict.UNDECIDED, "the tail is undecided"),
        (WITHIN, WITHIN, OPEN, Verdict.UNDECIDED, "the tail is undecided"),
        (WITHIN, SLOWER, WITHIN, Verdict.DIFFERS, "the median is slower"),
        (WITHIN, OPEN, WITHIN, Verdict.UNDECIDED, "the median is undecided"),
        (SLOWER, WITHIN, WITHIN, Verdict.SLOWER, "median within"),
        (FASTER, FASTER, SLOWER, Verdict.FASTER, "p99 slower"),
        (DIFFERS, WITHIN, WITHIN, Verdict.DIFFERS, "within the margin"),
        (OPEN, WITHIN, WITHIN, Verdict.UNDECIDED, "the mean is undecided"),
    ],
)
def test_near_metal_needs_mean_median_and_p99(mean, median, p99, verdict, message) -> None:
    found = conclude({MEAN: mean, MEDIAN: median, P99: p99}, {}, 14, Criteria())
    assert found.verdict is verdict
    assert message in found.reason


def test_near_metal_needs_enough_launches_to_have_seen_a_rare_mode() -> None:
    within = {MEAN: WITHIN, MEDIAN: WITHIN, P99: WITHIN}
    five = conclude(within, {}, 5, Criteria())
    assert (five.verdict, five.needs, five.settled) == (Verdict.UNDECIDED, 9, False)
    assert "5 launches, which cannot exclude a mode rarer than 45 %" in five.reason
    assert conclude(within, {}, 13, Criteria()).needs == 1
    assert conclude(within, {}, 5, Criteria(rarest_mode=0.5)).verdict is Verdict.NEAR_METAL
    assert conclude(within, {}, 4, Criteria(rarest_mode=0.5)).verdict is Verdict.UNDECIDED
    assert (
        conclude(within | {MEAN: SLOWER}, {}, 5, Criteria()).verdict is Verdict.SLOWER
    )  # seen: no more launches needed


@pytest.mark.parametrize(("launches", "says"), [(0, "1 block is"), (3, "1 occasion is")])
def test_what_is_too_little_for_an_interval_is_counted_as_what_it_is(launches: int, says: str) -> None:
    alone = BlockFigures(np.array([2.0]), np.array([1.0]), launches=launches)
    found = estimate_ratio(alone, rng=np.random.default_rng(1))
    assert found.judgement.reason == f"{says} not enough for an interval"
    assert (found.interval, found.blocks) == (None, launches or 1)


def test_few_blocks_cannot_tell_a_difference_from_a_drift() -> None:
    few = conclude({MEAN: DIFFERS}, {}, 9, Criteria())
    assert (few.verdict, few.needs, few.settled) == (Verdict.UNDECIDED, 1, False)
    assert few.reason == "the mean differs, but 9 blocks cannot tell that from a drift"
    assert conclude({MEAN: DIFFERS}, {}, 10, Criteria()).verdict is Verdict.DIFFERS


def test_blocks_from_frozen_boots_do_not_drift() -> None:
    pairs = blocks(6, 1.05, 0.003, 1)
    frozen = replace(pairs, context=BlockContext(variants=(0, 1, 2, 0, 1, 2)))
    assert compare(by_mean(pairs), rng=rng()).verdict is Verdict.UNDECIDED
    assert compare(by_mean(frozen), rng=rng()).verdict is Verdict.DIFFERS
    assert compare(by_mean(pairs), rng=rng()).headline.ratio == compare(by_mean(frozen), rng=rng()).headline.ratio


def test_a_slow_launch_calls_for_more_launches() -> None:
    within = {MEAN: WITHIN, MEDIAN: WITHIN, P99: WITHIN}
    one = conclude(within, {}, 14, Criteria(), slow=1)
    assert (one.verdict, one.needs, one.settled) == (Verdict.UNDECIDED, 8, False)
    assert "14 launches, 1 of them slower than the rest by more than the margin, which cannot exclude" in one.reason
    assert "rarer than 30 %" in one.reason
    assert conclude(within, {}, 22, Criteria(), slow=1).verdict is Verdict.NEAR_METAL
    assert conclude(within, {}, 21, Criteria(), slow=1).verdict is Verdict.UNDECIDED
    for slow, launches in ((0, 14), (1, 22), (2, 30)):
        assert reference.binom.cdf(slow, launches, 0.2) <= 0.05 < reference.binom.cdf(slow, launches - 1, 0.2)
        assert Criteria().least_with(slow) == launches
        assert reference.binom.cdf(slow, launches, rarest_excluded(launches, slow)) == pytest.approx(0.05)
    assert rarest_excluded(5, slow=5) == 1.0, "if all were slow, nothing is excluded"


def test_outlying_launches_are_counted() -> None:
    pairs = blocks(16, 1.0, 0.005, 1)
    late = BlockFigures(pairs.path * np.where(np.arange(16) == 7, 1.08, 1.0), pairs.baseline)
    found = compare(by_mean(late), rng=rng())
    assert (found.slow, found.headline.finding, found.verdict) == (1, WITHIN, Verdict.UNDECIDED)
    assert found.conclusion.needs == 6
    assert compare(by_mean(pairs), rng=rng()).verdict is Verdict.NEAR_METAL
    quick = BlockFigures(late.baseline, late.path)
    assert compare(by_mean(quick), rng=rng()).slow == 0  # faster, or the baseline slower
    assert compare(by_mean(quick), rng=rng(), better=Better.LARGER).slow == 1
    assert compare(by_mean(blocks(16, 1.0, 0.05, 1)), rng=rng()).slow == 0  # nothing to be apart from


def test_a_refused_figure_prevents_near_metal_but_an_inapplicable_one_does_not() -> None:
    assert conclude({MEAN: WITHIN}, {}, 14, Criteria()).verdict is Verdict.NEAR_METAL
    no_tail = conclude({MEAN: WITHIN, MEDIAN: WITHIN}, {P99: "n = 100 cannot support it"}, 14, Criteria())
    assert (no_tail.verdict, no_tail.settled) == (Verdict.UNDECIDED, True)
    assert no_tail.reason == "near-metal in the body; no p99: n = 100 cannot support it"
    no_median = conclude({MEAN: WITHIN, P99: WITHIN}, {MEDIAN: "between two modes"}, 5, Criteria())
    assert (no_median.verdict, no_median.settled) == (Verdict.UNDECIDED, False)


def by_mean(figures: BlockFigures) -> dict[Metric, BlockFigures]:
    return {Metric.MEAN: figures}


def test_clear_cases_get_the_clear_verdict() -> None:
    assert compare(by_mean(blocks(14, 1.30, 0.01, 1)), rng=rng()).verdict is Verdict.SLOWER
    assert compare(by_mean(blocks(14, 0.80, 0.01, 1)), rng=rng()).verdict is Verdict.FASTER
    assert compare(by_mean(blocks(14, 1.00, 0.01, 1)), rng=rng()).verdict is Verdict.NEAR_METAL
    assert compare(by_mean(blocks(14, 1.00, 0.30, 1)), rng=rng()).verdict is Verdict.UNDECIDED


def test_larger_bandwidth_is_better() -> None:
    slower = estimate_ratio(blocks(10, 0.70, 0.01, 1), rng=rng(), better=Better.LARGER)
    assert slower.finding is Finding.SLOWER
    assert slower.ratio == pytest.approx(0.70, rel=0.02)
    assert slower.interval is not None
    assert slower.interval.contains(0.70)


def test_a_slow_tail_is_not_near_metal() -> None:
    found = compare({MEAN: blocks(14, 1.0, 0.01, 1), P99: blocks(14, 1.5, 0.02, 2)}, rng=rng())
    assert found.verdict is Verdict.SLOWER_TAIL
    assert [found.estimates[metric].finding for metric in (MEAN, P99)] == [WITHIN, SLOWER]


def test_the_tail_has_a_margin_of_its_own() -> None:
    tail = {MEAN: blocks(14, 1.0, 0.002, 1), P99: blocks(14, 1.07, 0.002, 2)}
    assert compare(tail, rng=rng()).verdict is Verdict.NEAR_METAL
    assert compare(tail, rng=rng(), criteria=Criteria(tail_margin=0.05)).verdict is Verdict.SLOWER_TAIL


def test_drift_shared_by_both_sides_cancels() -> None:
    pairs = blocks(10, 1.10, 0.005, 4)
    drifting = BlockFigures(pairs.path * np.arange(1, 11), pairs.baseline * np.arange(1, 11))
    assert estimate_ratio(drifting, rng=rng()).ratio == pytest.approx(estimate_ratio(pairs, rng=rng()).ratio)


def test_too_few_blocks_are_reported() -> None:
    one = estimate_ratio(blocks(1, 2.0, 0.01, 1), rng=rng())
    assert (one.interval, one.finding, one.method) == (None, Finding.UNDECIDED, IntervalMethod.NONE)
    assert "1 block is not enough" in one.judgement.reason
    three = estimate_ratio(blocks(3, 2.0, 0.01, 1), rng=rng())
    assert three.method is IntervalMethod.STUDENT_T
    expected = reference.ttest_1samp(blocks(3, 2.0, 0.01, 1).log_ratios, 0.0).confidence_interval(0.95)
    assert three.interval is not None
    assert np.log([three.interval.low, three.interval.high]) == pytest.approx([expected.low, expected.high])


def test_exact_answers_without_any_noise() -> None:
    same = BlockFigures(np.full(6, 1_500.0), np.full(6, 1_500.0))
    found = estimate_ratio(same, rng=rng())
    assert (found.ratio, found.finding) == (1.0, Finding.WITHIN)
    assert found.interval == Interval(1.0, 1.0, 0.95)
    assert found.cohens_dz is None
    twice = estimate_ratio(BlockFigures(np.full(6, 3_000.0), np.full(6, 1_500.0)), rng=rng())
    assert twice.finding is Finding.SLOWER
    assert twice.ratio == pytest.approx(2.0)


def test_one_hiccup_block_does_not_blow_up_the_interval() -> None:
    path = np.array([1_000.0, 1_001.0, 999.0, 1_000.0, 1_900.0])
    found = estimate_ratio(BlockFigures(path, np.full(5, 1_000.0)), rng=rng())
    assert found.interval is not None
    assert found.interval.high < 3.0
    assert found.finding is Finding.UNDECIDED


def test_the_same_seed_gives_the_same_interval() -> None:
    pairs = blocks(8, 1.1, 0.05, 9)
    assert estimate_ratio(pairs, rng=rng()) == estimate_ratio(pairs, rng=rng())


@pytest.mark.parametrize(
    ("path", "baseline"),
    [([], []), ([1.0, 2.0], [1.0]), ([0.0], [1.0]), ([np.nan], [1.0]), ([1.0], [-1.0]), ([np.inf], [1.0])],
)
def test_bad_figures_are_refused(path, baseline) -> None:
    with pytest.raises(BadInputError):
        BlockFigures(np.array(path), np.array(baseline))


def test_level_of_one_path() -> None:
    pairs = blocks(9, 1.2, 0.05, 3)
    level = estimate_level(pairs.path)
    assert level.value == pytest.approx(reference.gmean(pairs.path))
    assert level.interval is not None
    assert level.interval.low < level.value < level.interval.high
    baseline = estimate_level(pairs.baseline)
    assert level.value / baseline.value == pytest.approx(estimate_ratio(pairs, rng=rng()).ratio)
    assert estimate_level([7.0]).interval is None
    constant = estimate_level([7.0, 7.0, 7.0]).interval
    assert constant is not None
    assert (constant.low, constant.high) == pytest.approx((7.0, 7.0))
    with pytest.raises(BadInputError):
        estimate_level([])


def test_family_correction_can_only_withdraw_claims() -> None:
    family = [compare(by_mean(blocks(6, 1.0 + 0.01 * k, 0.02, k)), rng=rng()) for k in range(12)]
    corrected = correct_family(family)
    assert [c.headline.interval for c in corrected] == [c.headline.interval for c in family]
    weaker = {SLOWER: {DIFFERS, OPEN}, FASTER: {DIFFERS, OPEN}, WITHIN: {OPEN}, DIFFERS: {OPEN}}
    changed = 0
    for before, after in zip(family, corrected, strict=True):
        if after.headline.finding is not before.headline.finding:
            changed += 1
            assert after.headline.finding in weaker[before.headline.finding]
    assert changed > 0
    assert correct_family([]) == ()


def test_family_correction_keeps_the_places_of_missing_tails() -> None:
    with_tail = compare({MEAN: blocks(6, 1.0, 0.01, 1), P99: blocks(6, 1.5, 0.01, 2)}, rng=rng())
    without = compare(by_mean(blocks(6, 1.0, 0.01, 1)), rng=rng())
    found = correct_family([without, with_tail, without])
    assert [c.estimates.keys() for c in found] == [{MEAN}, {MEAN, P99}, {MEAN}]
    assert found[1].estimates[P99].ratio == with_tail.estimates[P99].ratio


@pytest.mark.parametrize(("level", "place"), [(0.9, 89), (0.95, 94), (0.99, 98), (0.999, 98)])
def test_a_bootstrapped_interval_ends_at_one_of_its_replicates(level: float, place: int) -> None:
    """Of 99 replicates the 90th is exactly that of 90 %; rounding does not select another."""
    values = np.array([0.1, 0.4, -0.2, 0.3, 0.05, 0.7])
    weights = np.sqrt([0.5, 1.0, 1.5, 0.5, 1.0, 1.5]) * [-1, -1, -1, 1, 1, 1]
    drawn = rng().choice(weights, size=(99, 6)) * (values - values.mean())
    reached = np.sort(np.abs(reference.ttest_1samp(drawn, 0.0, axis=1).statistic))[place]
    (found,) = wild_bootstrap_t(values, (level,), rng(), replicates=99)
    assert found.high - found.low == pytest.approx(2 * reached * values.std(ddof=1) / math.sqrt(6))


def test_a_spread_below_the_rounding_of_doubles_does_not_count() -> None:
    assert moments(ROUNDING * np.array([-1.0, 1.0])).sd == pytest.approx(ROUNDING * math.sqrt(2))
    assert moments(ROUNDING * np.array([-0.7, 0.7])).sd == 0.0
    assert moments(1000 + ROUNDING * np.array([-700.0, 700.0])).sd == 0.0


def test_differences_without_spread_are_chance_only_if_zero() -> None:
    assert two_sided_p(moments(np.zeros(3))) == 1.0
    assert two_sided_p(moments(np.ones(3))) == 0.0


def test_an_end_on_a_bound_is_not_inside_it() -> None:
    one = Interval(1.0, 2.0, 0.95)
    assert one.inside(0.9, 2.1)
    assert not one.inside(1.0, 2.1)
    assert not one.inside(0.9, 2.0)


def test_noise_floor_of_a_quiet_and_a_loud_machine() -> None:
    quiet = noise_floor(blocks(10, 1.0, 0.005, 3), rng=rng())
    loud = noise_floor(blocks(10, 1.0, 0.20, 3), rng=rng())
    assert quiet.floor is not None
    assert loud.floor is not None
    assert quiet.floor < 0.02
    assert loud.floor > 0.05
    assert (quiet.hides_margin, loud.hides_margin) == (False, True)
    assert not quiet.false_alarm
    assert quiet.block_spread == pytest.approx(0.005 * 2**0.5, rel=0.6)


def test_figures_that_differ_by_rounding_alone_are_no_noise() -> None:
    rounded = BlockFigures(np.full(6, 10.0), np.full(6, math.exp(math.log(10.0))))
    assert rounded.log_ratios.any()
    assert noise_floor(rounded, rng=rng()).floor == 0.0


def test_noise_floor_detects_an_order_effect() -> None:
    assert noise_floor(blocks(10, 1.03, 0.005, 3), rng=rng()).false_alarm
    alone = noise_floor(blocks(1, 1.0, 0.005, 3), rng=rng())
    assert (alone.floor, alone.hides_margin) == (None, True)


def test_an_interval_over_occasions_covers_the_next_one_and_one_over_blocks_does_not() -> None:
    """Occasions differ by 3 %, the blocks of one by 1 %; a fourth occasion varies like the others."""
    rng = np.random.default_rng(5)
    occasions, blocks, studies = 3, 8, 1500
    covered = {"occasions": 0, "levels": 0, "blocks": 0}
    for _ in range(studies):
        shift = rng.normal(0, 0.03, occasions + 1)
        *logs, fourth = shift[:, None] + rng.normal(0, 0.01, (occasions + 1, blocks))
        path = np.exp(np.concatenate(logs))
        means = np.exp(np.mean(logs, axis=1))
        compared = BlockFigures(means, np.ones(occasions), context=OCCASIONS)
        found = {
            "occasions": estimate_ratio(compared, rng=rng).interval,
            "levels": estimate_level(means, context=OCCASIONS).interval,
            "blocks": _student(BlockFigures(path, np.ones(path.size))),
        }
        for name, interval in found.items():
            assert interval is not None
            covered[name] += interval.contains(math.exp(fourth.mean()))
    assert covered["occasions"] / studies == pytest.approx(0.95, abs=0.015)
    assert covered["levels"] == covered["occasions"]
    assert covered["blocks"] / studies < 0.5


def _student(figures: BlockFigures) -> Interval:
    log_ratios = figures.log_ratios
    reach = float(reference.t.ppf(0.975, log_ratios.size - 1)) * log_ratios.std(ddof=1) / np.sqrt(log_ratios.size)
    return Interval(float(np.exp(log_ratios.mean() - reach)), float(np.exp(log_ratios.mean() + reach)), 0.95)


def test_occasions_are_judged_by_the_interval_for_another_one() -> None:
    """The mean of 3, 4 and 5 % slower is shown to differ from 1; another occasion may fall on either side of 1."""
    costs = np.exp([0.03, 0.04, 0.05])
    mean = estimate_ratio(BlockFigures(costs, np.ones(3)), rng=rng())
    another = estimate_ratio(BlockFigures(costs, np.ones(3), context=OCCASIONS, launches=3), rng=rng())
    reach = float(reference.t.ppf(0.975, 2)) * 0.01
    assert another.interval is not None
    assert np.log([another.interval.low, another.interval.high]) == pytest.approx(
        [0.04 - reach * math.sqrt(4 / 3), 0.04 + reach * math.sqrt(4 / 3)]
    )
    assert mean.interval is not None
    assert np.log([mean.interval.low, mean.interval.high]) == pytest.approx(
        [0.04 - reach / math.sqrt(3), 0.04 + reach / math.sqrt(3)]
    )
    assert mean.evidence is not None
    assert another.evidence is not None
    assert mean.evidence.p_difference < 0.05 < another.evidence.p_difference


def test_occasions_pair_by_block_and_average_in_the_logarithm() -> None:
    """Block 3 has no baseline: occasion 0 has blocks 0 and 1, occasion 1 only block 2."""
    path, base = ({n: summarize(np.array([ns])) for n, ns in enumerate(side)} for side in ((1, 4, 9, 8), (1, 1, 3)))
    figures, _ = pair_launches([path], [base], occasion=lambda block: block // 2)
    assert figures[MEAN].path.tolist() == pytest.approx([2.0, 9.0])
    assert figures[MEAN].baseline.tolist() == pytest.approx([1.0, 3.0])
    assert figures[MEAN].launches == 3
    assert figures[MEAN].context.occasions


def test_both_launches_of_the_baseline_count_for_a_block() -> None:
    def launch(ns: int) -> Summary:
        return summarize(np.array([ns]))

    figures, refused = pair_launches(
        [{0: launch(300), 1: launch(300)}], [{0: launch(100), 1: launch(50)}, {0: launch(400)}]
    )
    assert refused == {}
    assert figures[MEAN].baseline == pytest.approx([200.0, 50.0])  # geometric mean, or the only one if the other failed


def test_a_figure_that_one_name_lacks_is_refused_to_both() -> None:
    """The level stood there, and the ratio beside it was refused."""
    rng = np.random.default_rng(2)
    one = {block: summarize(rng.integers(1_000, 1_010, 500)) for block in range(4)}
    two = {block: summarize(np.where(rng.random(500) < 0.5, 1_000, 9_000)) for block in range(4)}
    assert over_names([one], Metric.MEDIAN)[1] == ""
    found, refused = over_names([one, two], Metric.MEDIAN)
    assert found == {}
    assert refused == over_names([two], Metric.MEDIAN)[1] != ""
    assert over_names([one, two], MEAN)[0] == pytest.approx(
        {block: math.sqrt(one[block].trimmed_mean_ns * two[block].trimmed_mean_ns) for block in one}
    )


@pytest.mark.parametrize("few", ["path", "baseline", "a part of the path"])
def test_a_metric_on_only_one_side_is_refused(few: str) -> None:
    """One mean per launch beside thousands of samples per launch: one side's tail is unknown, not inapplicable."""
    many = {block: summarize(np.arange(1_000_000, 1_001_000)) for block in range(14)}
    one = {block: summarize(np.array([1_000_500])) for block in range(14)}
    path = {"path": one, "baseline": many, "a part of the path": {**many, **{b: one[b] for b in range(2)}}}[few]
    figures, refused = pair_launches([path], [one if few == "baseline" else many])
    assert set(figures) == {MEAN}
    assert "n = 1, where other launches have 6 or more" in refused[Metric.MEDIAN]
    assert set(refused) == {Metric.MEDIAN, Metric.P99}
    verdict = compare(figures, refused=refused, rng=np.random.default_rng(1)).conclusion
    assert verdict.verdict is Verdict.UNDECIDED
    assert "no median" in verdict.reason


def test_launches_of_a_few_samples_on_both_sides_have_only_a_mean() -> None:
    one = {block: summarize(np.array([1_000_500])) for block in range(14)}
    figures, refused = pair_launches([one], [one])
    assert (set(figures), refused) == ({MEAN}, {})
