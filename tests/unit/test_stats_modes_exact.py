"""The parts of the search for modes, each checked against figures worked out by hand or by the definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nearmetal.stats.modes import Mode, Modes, _cuts, _modes, _points, excess_mass, find_modes, order_of, split

Groups = tuple[tuple[float, float, int], ...]


def spaced(*groups: tuple[float, float, int]) -> np.ndarray:
    """Return groups of evenly spaced points: (first, last, count) each."""
    return np.concatenate([np.linspace(*group) for group in groups])


def by_definition(x: np.ndarray) -> float:
    """Return the largest E_2 - E_1 over the same densities, from every interval and every pair of disjoint ones."""
    scaled = (x - x[0]) / (x[-1] - x[0])
    gains = []
    for density in np.geomspace(0.2, 400.0, 96):
        mass = {
            (i, j): (j - i + 1) / x.size - density * (scaled[j] - scaled[i])
            for i, j in itertools.combinations_with_replacement(range(x.size), 2)
        }
        pairs = itertools.combinations(mass, 2)
        two = max(mass[one] + mass[other] for one, other in pairs if one[1] < other[0])
        gains.append(two - max(mass.values()))
    return float(max(gains))


@pytest.mark.parametrize(
    "groups",
    [
        ((0.0, 3.0, 5), (10.0, 11.0, 7)),
        ((0.0, 0.004, 4), (0.009, 0.012, 4), (9.0, 9.0, 1)),  # two modes that only the greatest density separates
        ((0.0, 1.0, 2), (9.0, 10.0, 11)),  # a rare one, which the least density shows best
        ((0.0, 1.0, 12),),
    ],
)
def test_excess_mass_matches_its_definition(groups: Groups) -> None:
    x = spaced(*groups)
    assert excess_mass(x)[0] == pytest.approx(by_definition(x), rel=1e-9)


def test_the_cut_is_at_the_widest_of_equally_good_gaps() -> None:
    assert excess_mass(spaced((0.0, 0.1, 30), (0.4, 0.4, 1), (0.9, 1.0, 30)))[1] == 31
    assert excess_mass(spaced((0.0, 0.1, 30), (0.6, 0.6, 1), (0.9, 1.0, 30)))[1] == 30


def test_a_far_sample_does_not_attract_the_cut() -> None:
    assert excess_mass(spaced((0.0, 0.1, 30), (0.5, 0.6, 30), (5.0, 5.0, 1)))[1] == 30


def test_excess_mass_is_invariant_to_an_offset() -> None:
    x = spaced((0.0, 3.0, 5), (10.0, 11.0, 7))
    assert excess_mass(x + 5.0)[0] == pytest.approx(excess_mass(x)[0], rel=1e-9)


def test_a_launch_is_reduced_to_four_hundred_quantiles() -> None:
    points = _points(np.arange(1, 1001))
    assert points.size == 400
    assert points[[0, 1, 2, 3, -1]].tolist() == [2, 4, 7, 9, 999]


def test_ties_are_spread_over_one_clock_tick() -> None:
    third = 10 / 3
    expected = [7.5, 12.5, 20 - third, 20, 20 + third, 30]
    assert _points(np.array([10, 10, 20, 20, 20, 30])) == pytest.approx(expected)
    assert _points(np.full(5, 7)).tolist() == [7] * 5


def test_every_part_is_split_only_once_more() -> None:
    sizes = (100, 140, 60)
    three = spaced(*((10.0 * i, 10.0 * i + 1.0, size) for i, size in enumerate(sizes)))
    assert _cuts(three) == [100, 240]
    eight = spaced(*((at, at + 0.1, 50) for at in (0, 1, 10, 11, 100, 101, 110, 111)))
    assert _cuts(eight) == [100, 200, 300]


def test_one_mode_is_rejected_only_beyond_the_critical_value() -> None:
    close, apart = (spaced((0.0, 1.0, 50), (1.0 + gap, 2.0 + gap, 50)) for gap in (0.390, 0.395))
    statistics = [excess_mass(x)[0] * 10.0 for x in (close, apart)]
    assert 1.37 < statistics[0] < 1.38 < statistics[1] < 1.40
    assert split(close) is None
    assert split(apart) == 50


def test_a_part_of_less_than_twenty_points_is_not_split() -> None:
    assert split(spaced((0.0, 0.1, 10), (1.0, 1.1, 9))) is None
    assert split(spaced((0.0, 0.1, 10), (1.0, 1.1, 10))) == 10
    assert split(np.full(40, 3.0)) is None


def grouped(*groups: tuple[int, int]) -> np.ndarray:
    """Return ascending samples: (ns, count) each."""
    return np.repeat(*np.array(groups).T)


@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        (((1000, 95), (2000, 5)), [0.95, 0.05]),
        (((1000, 96), (2000, 4)), [1.0]),
        (((1000, 5), (2000, 95)), [0.05, 0.95]),
        (((1000, 4), (2000, 96)), [1.0]),
        (((1000, 50), (1050, 50)), [0.5, 0.5]),
        (((1000, 50), (1049, 50)), [1.0]),
        (((1000, 50), (1040, 10), (1090, 40)), [0.6, 0.4]),
        (((1000, 40), (3000, 4), (9000, 56)), [0.44, 0.56]),
    ],
)
def test_rare_and_close_groups_are_merged_with_the_one_below(
    groups: tuple[tuple[int, int], ...], shares: list[float]
) -> None:
    edges = [(a + b) / 2 for (a, _), (b, _) in itertools.pairwise(groups)]
    assert [one.share for one in _modes(grouped(*groups), edges)] == shares


def test_a_mode_has_its_share_its_median_and_its_ends() -> None:
    ordered = np.array([10, 12, 13, 20, 40, 42, 48, 50, 52, 60])
    assert _modes(ordered, [30.0]) == [Mode(0.4, 12.5, 10.0, 20.0), Mode(0.6, 49.0, 40.0, 60.0)]
    assert _modes(ordered, [30.0, 30.0]) == _modes(ordered, [30.0]), "a repeated edge counts once"


def test_a_gap_is_between_modes_not_inside_them() -> None:
    modes = Modes((Mode(0.4, 15.0, 10.0, 20.0), Mode(0.3, 45.0, 40.0, 50.0), Mode(0.3, 75.0, 70.0, 80.0)), "bursts")
    assert modes.distance == 5.0
    inside = [ns for ns in range(5, 90) if modes.gap_at(ns)]
    assert inside == [*range(21, 40), *range(51, 70)]


def labels(n: int, ones: int, runs: int) -> np.ndarray:
    """Return labels with so many 0 and so many runs: runs of one label each, except that the last two take the rest."""
    zeros = [1] * (-(-runs // 2) - 1)
    others = [1] * (runs // 2 - 1)
    zeros.append(ones - len(zeros))
    others.append(n - ones - len(others))
    lengths = [length for pair in itertools.zip_longest(zeros, others) for length in pair if length]
    return np.repeat(np.arange(runs) % 2, lengths)


@pytest.mark.parametrize(
    ("ones", "runs", "message"),
    [
        # 50 of 100: 51 runs are expected, with a standard deviation of 4.975; 3.29 of those are 16.37.
        (50, 67, "at random"),
        (50, 68, "alternating"),
        (50, 35, "at random"),
        (50, 34, "bursts"),
        # 20 of 100: 33 and 3.165, so 10.41.
        (20, 23, "at random"),
        (20, 22, "bursts"),
    ],
)
def test_an_order_within_the_spread_of_chance_is_random(ones: int, runs: int, message: str) -> None:
    one = labels(100, ones, runs)
    assert (one == 0).sum() == ones
    assert 1 + np.count_nonzero(np.diff(one)) == runs
    assert order_of(one) == message


def test_few_iterations_use_the_exact_spread() -> None:
    """7 of 14: 8 runs are expected, with a standard deviation of 1.797; 3.29 of those are 5.913."""
    assert order_of(labels(14, 7, 13)) == "at random"
    assert order_of(labels(14, 7, 14)) == "alternating"


@pytest.mark.parametrize(("late", "message"), [(5, "one switch"), (6, "bursts")])
def test_one_switch_must_explain_ninety_five_percent(late: int, message: str) -> None:
    """A switch after 40, and later `late` more of the first mode, as a burst of their own."""
    one = np.concatenate((np.zeros(40), np.ones(60 - late - 20), np.zeros(late), np.ones(20))).astype(np.int64)
    for way in (one, 1 - one, one[::-1], 1 - one[::-1]):
        assert order_of(way) == message


def test_samples_of_zero_duration_are_not_searched_for_modes() -> None:
    ns = np.where(np.arange(100) % 2, 97_000, 35_000)
    assert find_modes(ns, np.sort(ns)) is not None
    ns[0] = 1
    assert find_modes(ns, np.sort(ns)) is not None
    ns[0] = 0
    assert find_modes(ns, np.sort(ns)) is None
