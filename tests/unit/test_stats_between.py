"""Two runs: Welch against a published example, the one-boundary rule, and the family."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats as reference

from nearmetal.errors import BadInputError
from nearmetal.results.between import Question, suspects
from nearmetal.stats.between import Standing, difference, floor_between, judge_family
from nearmetal.stats.equivalence import Better
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.stats.widen import BlockContext

rows = arrays(np.float64, st.integers(2, 12), elements=st.floats(1.0, 1e6))


def run(level: float, sd: float = 0.01, n: int = 8, seed: int = 0) -> np.ndarray:
    return level * np.random.default_rng(seed).lognormal(0.0, sd, n)


few = arrays(np.float64, st.integers(2, 4), elements=st.floats(1.0, 1e6))


@settings(deadline=None, max_examples=50)
@given(few, few)
def test_the_interval_of_few_blocks_is_that_of_welch(a: np.ndarray, b: np.ndarray) -> None:
    found = difference(a, b)
    assert found is not None
    if np.ptp(np.log(a)) < 1e-6 or np.ptp(np.log(b)) < 1e-6:
        return
    theirs = reference.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    assert found.log_cost.low == pytest.approx(theirs.low, abs=1e-9)
    assert found.log_cost.high == pytest.approx(theirs.high, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(rows, rows)
def test_no_interval_is_much_narrower_than_that_of_welch(a: np.ndarray, b: np.ndarray) -> None:
    """It can be slightly narrower: the side with the larger error may have more weight and degrees of freedom."""
    found = difference(a, b)
    assert found is not None
    if np.ptp(np.log(a)) < 1e-6 or np.ptp(np.log(b)) < 1e-6:
        return
    theirs = reference.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    assert found.log_cost.high - found.log_cost.low >= 0.5 * (theirs.high - theirs.low)


THREE_BOOTS = BlockContext(variants=tuple(block % 3 for block in range(12)))


def booted(rng: np.random.Generator, level: float) -> np.ndarray:
    """Twelve blocks with a spread of 1 %, on a machine whose three boots have one of 2 %."""
    return level * np.exp(rng.normal(0.0, 0.02, 3)[np.arange(12) % 3] + rng.normal(0.0, 0.01, 12))


def test_boots_that_differ_are_not_a_change() -> None:
    """Without a change the interval covers 1; exactly on the margin neither claim is made in more than alpha / 2."""
    rng = np.random.default_rng(20)
    gates = 2_000
    equal = [difference(booted(rng, 1.0), booted(rng, 1.0), contexts=(THREE_BOOTS,) * 2) for _ in range(gates)]
    edge = [difference(booted(rng, 1.05), booted(rng, 1.0), contexts=(THREE_BOOTS,) * 2) for _ in range(gates)]
    held = sum(one is not None and one.log_cost.contains(0.0) for one in equal) / gates
    found = {
        standing: sum(one is not None and one.standing is standing for one in edge) / gates for standing in Standing
    }
    assert held >= 0.94
    assert found[Standing.WORSE] <= 0.03
    assert found[Standing.WITHIN] <= 0.03


def test_the_cause_of_a_wider_interval_is_reported() -> None:
    boots = np.array([1.0, 1.04, 1.09])[np.arange(12) % 3] * run(1.0, 0.002, 12)
    found = difference(1.03 * boots, run(1.0, 0.002, 12, seed=3), contexts=(THREE_BOOTS, THREE_BOOTS))
    assert found is not None
    assert found.run.boots == 3
    assert found.base.boots == 0
    assert "more boots of the machine would narrow it" in found.reason
    assert "of the run, boots of the machine differ, which makes its interval" in found.reason


@settings(deadline=None, max_examples=50)
@given(rows, rows)
def test_rates_are_inverted_times(a: np.ndarray, b: np.ndarray) -> None:
    times, rates = difference(a, b), difference(1 / a, 1 / b, better=Better.LARGER)
    assert times is not None
    assert rates is not None
    assert rates.standing is times.standing
    assert rates.ratio == pytest.approx(1 / times.ratio)
    assert rates.log_cost.low == pytest.approx(times.log_cost.low, abs=1e-9)


@pytest.mark.parametrize(
    ("level", "sd", "standing"),
    [
        (1.00, 0.01, Standing.WITHIN),
        (1.02, 0.01, Standing.WITHIN),
        (0.90, 0.01, Standing.BETTER),
        (1.10, 0.01, Standing.WORSE),
        (1.05, 0.01, Standing.UNDECIDED),
        (1.10, 0.20, Standing.UNDECIDED),
        (1.00, 0.20, Standing.UNDECIDED),
    ],
)
def test_the_standing_follows_from_interval_and_margin(level: float, sd: float, standing: Standing) -> None:
    found = difference(run(level, sd, seed=1), run(1.0, sd, seed=2))
    assert found is not None
    assert found.standing is standing, found


def test_without_spread_the_estimate_decides() -> None:
    flat = np.full(4, 100.0)
    for level, standing in ((1.0, Standing.WITHIN), (1.2, Standing.WORSE), (0.8, Standing.BETTER)):
        found = difference(level * flat, flat)
        assert found is not None
        assert found.standing is standing
        assert math.isclose(found.interval.low, found.interval.high)


@settings(deadline=None, max_examples=50)
@given(rows)
def test_a_run_is_never_worse_than_itself(a: np.ndarray) -> None:
    found = difference(a, a)
    assert found is not None
    assert found.standing in {Standing.WITHIN, Standing.UNDECIDED}
    assert found.ratio == pytest.approx(1.0)


def test_too_few_blocks_give_no_difference() -> None:
    assert difference(np.ones(1), np.ones(9)) is None
    with pytest.raises(BadInputError):
        difference(np.ones(3), np.ones(3), margin=0.0)


def test_a_floor_forbids_smaller_claims_and_nothing_else() -> None:
    ours, base = run(1.10, seed=1), run(1.0, seed=2)
    assert difference(ours, base, floor=0.02).standing is Standing.WORSE  # type: ignore[union-attr]
    held = difference(ours, base, floor=0.30)
    assert held is not None
    assert held.standing is Standing.UNDECIDED
    assert "runs of one state" in held.reason
    assert difference(ours, base, floor=50.0) is not None, "a floor, unlike a margin, may be of any size"
    assert difference(run(1.0, seed=1), base, floor=0.30).standing is Standing.WITHIN  # type: ignore[union-attr]


def test_the_family_withdraws_claims_of_worse_and_leaves_within_alone() -> None:
    doubtful = difference(run(1.09, 0.02, seed=3), run(1.0, 0.02, seed=4))
    assert doubtful is not None
    assert doubtful.standing is Standing.WORSE
    calm = difference(run(1.0, seed=1), run(1.0, seed=2))
    judged = judge_family([doubtful, *[calm] * 40, None])
    assert judged[0] is not None
    assert judged[0].standing is Standing.UNDECIDED
    assert "after correction" in judged[0].reason
    assert all(one is not None and one.standing is Standing.WITHIN for one in judged[1:-1])
    assert judged[-1] is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(rows, rows), max_size=6))
def test_the_family_only_withdraws(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    alone = [difference(a, b) for a, b in pairs]
    for before, after in zip(alone, judge_family(alone), strict=True):
        assert before is not None
        assert after is not None
        assert after.standing in {before.standing, Standing.UNDECIDED}
        assert after.p_worse >= before.p_worse


def test_identical_runs_are_rarely_worse_and_a_doubled_margin_is_mostly_found() -> None:
    """A small version of bench/gate_power.py."""
    rng = np.random.default_rng(7)
    blocks, sd, trials = 8, 0.02, 300

    def worse(level: float) -> float:
        found = [difference(level * rng.lognormal(0, sd, blocks), rng.lognormal(0, sd, blocks)) for _ in range(trials)]
        return sum(one is not None and one.standing is Standing.WORSE for one in found) / trials

    assert worse(1.0) <= 0.01
    assert worse(1.05) <= 0.05, "exactly on the margin: at most alpha / 2, within sampling error"
    assert worse(1.10) >= 0.8


def test_the_floor_is_the_largest_difference_of_levels() -> None:
    assert floor_between([np.full(3, 100.0)]) is None
    assert floor_between([np.full(3, 100.0), np.array([])]) is None
    assert floor_between([np.full(3, 100.0), np.full(5, 110.0), np.full(2, 105.0)]) == pytest.approx(0.10)


def spread(level: float, n: int) -> np.ndarray:
    """Blocks in random order whose logarithms have exactly this mean and a standard deviation of 0.2."""
    drawn = np.random.default_rng(5).permutation(reference.norm.ppf((np.arange(n) + 0.5) / n))
    return level * np.exp(0.2 * drawn / drawn.std(ddof=1))


@pytest.mark.parametrize(("level", "settled"), [(1.10, Standing.WORSE), (1.0, Standing.WITHIN)])
def test_the_reported_number_of_blocks_settles_it(level: float, settled: Standing) -> None:
    found = difference(spread(level, 8), spread(1.0, 8))
    assert found is not None
    match = re.search(r"the interval contains the margin; about (\d+) blocks in each run would settle it", found.reason)
    assert match
    for blocks, standing in ((int(match[1]), settled), (int(match[1]) * 8 // 10, Standing.UNDECIDED)):
        more = difference(spread(level, blocks), spread(1.0, blocks))
        assert more is not None
        assert more.standing is standing


def test_no_number_of_blocks_settles_an_estimate_on_the_margin() -> None:
    found = difference(spread(1.05, 8), spread(1.0, 8))
    assert found is not None
    assert found.reason == "the interval contains the margin; it lies on the margin itself"


def test_a_run_passes_where_it_is_shown_to_cost_no_more() -> None:
    assert [one for one in Standing if one.passes] == [Standing.WITHIN, Standing.BETTER]


def test_a_wide_interval_is_not_reported_as_on_the_margin() -> None:
    found = difference(np.array([1.0, 50.0]), np.array([1.0, 40.0]))
    assert found is not None
    assert found.reason.endswith("more than 1000 blocks in each run would be needed to settle it")


def test_what_looks_worse_is_measured_again_each_cell_once() -> None:
    def judged(cell: str, standing: Standing, beyond: bool | None) -> SimpleNamespace:
        found = None if beyond is None else SimpleNamespace(beyond=beyond)
        return SimpleNamespace(cell=cell, standing=standing, found=found)

    cells = [
        judged("worse", Standing.WORSE, True),
        judged("looks worse", Standing.UNDECIDED, True),
        judged("open", Standing.UNDECIDED, False),
        judged("unmeasured", Standing.UNDECIDED, None),
        judged("within", Standing.WITHIN, False),
    ]
    against = [judged("worse", Standing.WORSE, True), judged("worse tail", Standing.WORSE, True)]
    gate = SimpleNamespace(judged=cells, against=against)
    assert suspects(gate) == ("worse", "looks worse", "worse tail")  # type: ignore[arg-type]


@pytest.mark.parametrize("margins", [(0.0, 0.2), (0.05, 0.0), (0.05, -0.2), (10.0, 0.2), (0.05, 10.0)])
def test_a_margin_that_is_none_is_refused_before_anything_is_read(margins: tuple[float, float]) -> None:
    with pytest.raises(BadInputError, match="is not between 0 and 10"):
        Question(margins[0], tail_margin=margins[1])


def test_the_tail_has_its_own_margin_but_never_a_smaller_one() -> None:
    wide, narrow = (Question(margin, tail_margin=0.2).figures for margin in (0.3, 0.1))
    assert (wide[HEADLINE], wide[Metric.P99], narrow[HEADLINE], narrow[Metric.P99]) == (0.3, 0.3, 0.1, 0.2)
    assert Question(0.1, Metric.P99, tail_margin=0.2).figures == {Metric.P99: 0.1}
