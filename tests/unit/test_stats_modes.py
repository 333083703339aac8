"""Modes of one launch: found where they exist and nowhere else, and in their order in time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from nearmetal.stats.modes import Modes, apart, excess_mass, find_modes, order_of, slow_launches
from nearmetal.stats.order import order
from nearmetal.stats.summary import Metric, summarize

EVEN = np.arange(400) % 2


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def found(ns: np.ndarray) -> Modes | None:
    whole = ns.astype(np.int64)
    return find_modes(whole, order(whole))


def test_two_atoms_have_the_largest_possible_dip_and_even_spacing_the_smallest() -> None:
    # The dip of two equal atoms is 1/4 and that of n evenly spaced points 1/(2n): Hartigan and Hartigan (1985).
    two = np.sort(np.concatenate((np.linspace(0.0, 1e-9, 200), np.linspace(1.0, 1.0 + 1e-9, 200))))
    statistic, cut = excess_mass(two)
    assert statistic / 2 == pytest.approx(0.25, abs=0.01)
    assert cut == 200
    assert excess_mass(np.linspace(0.0, 1.0, 400))[0] / 2 == pytest.approx(1 / 800, rel=0.6)


def test_alternating_modes_are_found_with_share_distance_and_order() -> None:
    modes = found(np.where(EVEN, 97_000, 35_000) + rng().normal(0, 500, 400))
    assert modes is not None
    assert [one.share for one in modes.modes] == pytest.approx([0.5, 0.5])
    assert modes.distance == pytest.approx(97 / 35, rel=0.01)
    assert modes.order == "alternating"
    assert str(modes) == f"2 modes {modes.distance:.2f} times apart (50 %, 50 %; alternating)"


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (EVEN, "alternating"),
        (np.repeat(EVEN[:20], 20), "bursts"),
        (np.arange(400) >= 150, "one switch"),
        (np.arange(400) < 150, "one switch"),
        (np.random.default_rng(3).random(400) < 0.4, "at random"),
        (np.zeros(400), "at random"),
    ],
)
def test_the_order_of_modes_in_time(labels: np.ndarray, order: str) -> None:
    assert order_of(labels.astype(np.int64)) == order


def test_three_modes_are_found() -> None:
    modes = found(rng().choice([10_000, 20_000, 40_000], 1000) * rng().lognormal(0, 0.03, 1000))
    assert modes is not None
    assert [round(one.centre_ns, -4) for one in modes.modes] == [10_000, 20_000, 40_000]


def test_more_levels_than_reported_modes_lose_no_sample() -> None:
    modes = found(rng().choice([1_000, 3_000, 9_000, 27_000, 81_000, 243_000], 3000) * rng().lognormal(0, 0.02, 3000))
    assert modes is not None
    assert len(modes.modes) == 4
    assert sum(one.share for one in modes.modes) == pytest.approx(1.0)
    assert all(a.high_ns < b.low_ns for a, b in itertools.pairwise(modes.modes))


def test_fewer_than_forty_samples_are_not_searched_for_modes() -> None:
    assert found(np.where(EVEN[:39], 97_000, 35_000)) is None
    assert found(np.where(EVEN[:40], 97_000, 35_000)) is not None


def test_launches_can_be_outliers_on_either_side() -> None:
    logs = np.log(np.array([443.0, 206.0, 442.0, 443.5, 442.5, 610.0, 443.0]))
    assert np.flatnonzero(apart(logs, math.log(1.05))).tolist() == [1, 5]
    assert slow_launches(logs, math.log(1.05)) == 1
    assert not apart(np.zeros(5), 0.0).any()


@pytest.mark.parametrize(("slow", "count"), [(1.10, 1), (1.049, 0)])
def test_an_outlying_launch_exceeds_the_bound_and_six_spreads(slow: float, count: int) -> None:
    costs = np.log(np.array([1.0, 1.001, 0.999, 1.002, 0.998, 1.0, slow]))
    assert slow_launches(costs, math.log(1.05)) == count
    assert slow_launches(10 * costs, math.log(1.05)) == (1 if slow > 1.0 + 6 * 0.002 else 0)
    wide = np.array([-0.02, -0.01, 0.0, 0.01, 0.02, 0.0, 6 * 1.4826 * 0.01])
    assert [slow_launches(np.append(wide[:-1], wide[-1] + more), 0.05) for more in (-1e-9, 1e-9)] == [0, 1]


@pytest.mark.parametrize(
    "ns",
    [
        rng().lognormal(9, 0.8, 1000),
        8_000 * (1 + 0.1 * rng().pareto(1.5, 1000)),
        rng().normal(8_000, 800, 1000),
        rng().normal(8_000, 800, 1000).round(-3),  # a clock that ticks in microseconds
        np.full(400, 7_000.0),
        rng().uniform(1_000, 9_000, 1000),
        np.where(EVEN, 10_000, 10_200) + rng().normal(0, 5, 400),  # closer than matters to any verdict
    ],
    ids=["log-normal", "Pareto", "normal", "coarse clock", "constant", "uniform", "2 % apart"],
)
def test_one_group_has_no_modes(ns: np.ndarray) -> None:
    assert found(ns) is None


def test_a_median_in_a_gap_is_refused_but_the_mean_is_kept() -> None:
    alternating = (np.where(EVEN, 97_000, 35_000) + rng().normal(0, 500, 400)).astype(np.int64)
    summary = summarize(alternating)
    assert summary.figure(Metric.MEDIAN) == (None, f"the median lies in the gap between {summary.modes}")
    one_less = summarize(alternating[1:])  # now the median is in one mode, and its interval covers both
    assert one_less.figure(Metric.MEDIAN)[0] is None
    assert "interval is wider than 5 % of it" in one_less.figure(Metric.MEDIAN)[1]
    means = [one.figure(Metric.MEAN)[0] for one in (summary, one_less)]
    assert means[0] == pytest.approx(means[1], rel=0.005)


def test_a_median_that_few_samples_cannot_support_is_refused_by_the_margin() -> None:
    summary = summarize(rng().lognormal(9, 0.2, 100).astype(np.int64))
    assert summary.figure(Metric.MEDIAN, 0.05)[0] is None
    assert summary.figure(Metric.MEDIAN, 0.30) == (summary.median_ns, "")


def test_the_mean_leaves_one_percent_out_at_each_end() -> None:
    ns = np.full(200, 1_000)
    ns[[3, 77]] = 10**9
    ns[[8, 90]] = 1
    assert summarize(ns).figure(Metric.MEAN) == (1_000.0, "")
    ns[9] = 1
    assert summarize(ns).figure(Metric.MEAN)[0] == pytest.approx((195 * 1_000 + 1) / 196)


def test_alternating_samples_have_a_smaller_effective_size() -> None:
    noise = rng().normal(0, 1, 10_000)
    alternating = summarize((1_000 + 100 * (np.arange(10_000) % 2)).astype(np.int64)).effective_n
    assert alternating == pytest.approx(100, rel=0.02)
    antithetic = np.empty(10_000)
    antithetic[0] = noise[0]
    for i in range(1, noise.size):  # AR(1) with -0.9: the mirror of +0.9, worth (1 - 0.9) / (1 + 0.9) of n
        antithetic[i] = -0.9 * antithetic[i - 1] + (1 - 0.81) ** 0.5 * noise[i]
    assert summarize((10_000 + 500 * antithetic).astype(np.int64)).effective_n == pytest.approx(526, rel=0.4)
    assert summarize((10_000 + 500 * noise).astype(np.int64)).effective_n > 7_000
