"""Change points: false alarms on quiet series, steps located, single outliers ignored, any data accepted."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nearmetal.stats.changes import LEAST_SEGMENT, best_split, find_changes, least_runs, split_p_value
from nearmetal.stats.paired import benjamini_hochberg

levels = arrays(np.float64, st.integers(0, 30), elements=st.floats(0.1, 1e9))
p_values = st.lists(st.floats(0.0, 1.0), max_size=30)


def quiet(n: int, sd: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(3.0, sd, n)


@settings(deadline=None, max_examples=60)
@given(st.lists(levels, max_size=4))
def test_changes_are_ordered_and_apart_at_any_level(series: list[np.ndarray]) -> None:
    for values, changes in zip(series, find_changes(series), strict=True):
        edges = [0, *(change.index for change in changes), values.size]
        if changes:
            assert min(np.diff(edges)) >= LEAST_SEGMENT
        for change in changes:
            assert 0.0 < change.p_value <= 0.05
            assert change.ratio > 0.0


@settings(deadline=None, max_examples=60)
@given(levels, st.floats(0.01, 100.0))
def test_neither_the_unit_nor_the_direction_matters(values: np.ndarray, factor: float) -> None:
    here = best_split(np.log(values))
    for other in (np.log(values * factor), -np.log(values)):
        there = best_split(np.round(other, 9)) if here is None else best_split(other)
        if here is None:
            assert there is None or there[1] > 0.05 or np.ptp(values) > 0
        elif len(set(np.round(np.log(values), 9))) == values.size:
            assert there is not None
            assert there[1] == pytest.approx(here[1])


@settings(deadline=None, max_examples=30)
@given(st.integers(8, 16), st.integers(8, 16), st.sampled_from([0.8, 0.9, 1.1, 1.5]), st.integers(0, 10**6))
def test_a_clear_step_is_found_at_its_place(before: int, after: int, ratio: float, seed: int) -> None:
    values = quiet(before + after, 0.005, seed)
    values[before:] *= ratio
    (found,) = find_changes([values])
    # Both sides are searched further at 2.5 %, so occasionally one of them has a false alarm of its own.
    (step,) = [change for change in found if change.index == before]
    assert step.ratio == pytest.approx(ratio, rel=0.02)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 19), st.floats(0.01, 100.0), st.integers(0, 10**6))
def test_an_outlier_is_not_a_change(at: int, size: float, seed: int) -> None:
    """However extreme a single bad run is, it counts no more than the largest value of a quiet series."""
    values = quiet(20, 0.01, seed)
    calm = best_split(np.log(values))
    values[at] = size * values.max() if size >= 1.0 else size * values.min()
    largest = values.copy()
    largest[at] = values.max() * 1e6 if size >= 1.0 else values.min() * 1e-6
    once, far = best_split(np.log(values)), best_split(np.log(largest))
    assert calm is not None
    assert once is not None
    assert far is not None
    assert far[1] == once[1]


def test_an_outlier_does_not_hide_a_step() -> None:
    values = quiet(24, 0.01, 5)
    values[12:] *= 1.1
    values[4] *= 30.0
    values[20] /= 30.0
    (found,) = find_changes([values])
    assert [change.index for change in found] == [12]
    assert found[0].ratio == pytest.approx(1.1, rel=0.02)


def test_false_alarms_on_quiet_series_stay_at_the_nominal_rate() -> None:
    """For one series and for a whole page of series, for any distribution. Bounds: four standard errors."""
    rng = np.random.default_rng(20)
    trials = 600
    for draw in (rng.standard_normal, lambda n: rng.standard_t(1.5, n), lambda n: rng.integers(0, 3, n).astype(float)):
        alarms = sum((p := split_p_value(draw(18))) is not None and p <= 0.05 for _ in range(trials))
        assert alarms / trials <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)
    pages = 60
    marked = sum(any(find_changes([rng.lognormal(0, 0.1, 18) for _ in range(25)])) for _ in range(pages))
    assert marked / pages <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / pages)


def test_two_steps_are_two_changes() -> None:
    values = quiet(36, 0.01, 9)
    values[12:] *= 1.2
    values[24:] *= 0.7
    (found,) = find_changes([values])
    assert [change.index for change in found] == [12, 24]
    assert [change.ratio for change in found] == pytest.approx([1.2, 0.7], rel=0.02)


def test_few_runs_never_show_a_change() -> None:
    assert find_changes([np.array([1.0, 1.1, 1.2, 9.0, 9.1, 9.2, 9.3])]) == ((),)
    assert find_changes([np.ones(40)]) == ((),)
    assert find_changes([]) == ()


@given(p_values)
def test_benjamini_hochberg_is_monotone_and_never_below(p: list[float]) -> None:
    adjusted = benjamini_hochberg(p)
    assert bool(np.all(adjusted >= np.asarray(p)))
    assert bool(np.all(adjusted <= 1.0))
    for i in range(len(p)):
        for j in range(len(p)):
            assert p[i] >= p[j] or adjusted[i] <= adjusted[j]


def test_benjamini_hochberg_as_published() -> None:
    # Benjamini and Hochberg (1995), section 3.2: 15 p-values of a trial; the four smallest are claimed at 5 %.
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
         0.7590, 1.0000]  # fmt: skip
    assert (benjamini_hochberg(p) <= 0.05).tolist() == [True] * 4 + [False] * 11


@pytest.mark.parametrize("high", [1, 2, 5])
def test_the_p_value_of_tied_levels_is_that_of_all_their_orders(high: int) -> None:
    """Levels of a coarse clock take a few values: the orders of runs that all differ made p too small for them."""
    orders = [np.array([float(i in ones) for i in range(10)]) for ones in combinations(range(10), high)]
    largest = [
        max(abs(order[:k].mean() - order[k:].mean()) * (k * (10 - k)) ** 0.5 for k in range(3, 8)) for order in orders
    ]
    exact = [float(np.mean(np.array(largest) >= one - 1e-9)) for one in largest]
    shown = [found[1] for order in orders if (found := best_split(order))]
    assert shown == pytest.approx(exact, abs=0.015)


@pytest.mark.parametrize("series", [1, 2, 20])
def test_so_many_runs_show_a_step_of_one_series_alone_and_one_fewer_does_not(series: int) -> None:
    for runs, found in ((least_runs(series), True), (least_runs(series) - 1, False)):
        calm = [np.array([1.0, 1.1] * runs)[:runs] for _ in range(series - 1)]
        step = np.array([1.0 + 0.001 * n + 0.5 * (n >= runs // 2) for n in range(runs)])
        assert bool(find_changes([*calm, step])[-1]) is found
