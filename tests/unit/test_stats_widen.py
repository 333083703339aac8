from __future__ import annotations

import numpy as np
import pytest

from nearmetal.stats import BlockFigures, StoppingPlan, estimate_ratio, look
from nearmetal.stats.interval import Interval
from nearmetal.stats.paired import moments
from nearmetal.stats.widen import dependence, for_skewness


def test_blocks_that_drift_widen_and_others_do_not() -> None:
    drifting = np.linspace(-0.05, 0.05, 12)
    assert dependence(drifting) > 2.0
    assert dependence(-drifting) == pytest.approx(dependence(drifting))
    assert dependence(0.01 * (-1.0) ** np.arange(12)) == 1.0  # alternating: wide by itself
    assert dependence(np.zeros(12)) == 1.0
    assert dependence(drifting[:4]) == 1.0  # too few to tell


def test_dependence_is_that_of_the_equivalent_sample_size() -> None:
    values = np.array([0.0, 1.0, 2.0, -1.0, 0.0, -1.0, -2.0, -1.0, 1.0, 1.0])
    centred = values - values.mean()
    r1 = (centred[:-1] @ centred[1:]) / (centred @ centred)
    r = r1 + (1 + 4 * r1) / 10
    assert dependence(values) == pytest.approx(((1 + r) / (1 - r)) ** 0.5)


def test_the_long_tail_alone_moves_its_end() -> None:
    values = np.array([0.0, 0.0, 0.01, 0.0, 0.01, 0.2])
    plain = Interval(-0.05, 0.12, 0.95)
    right = for_skewness(plain, moments(values), values)
    assert right.low == plain.low
    assert right.high > plain.high + 0.01
    left = for_skewness(plain, moments(-values), -values)
    assert left.high == plain.high
    assert left.low == pytest.approx(plain.low - (right.high - plain.high))


@pytest.mark.parametrize("plan", [None, StoppingPlan(12)])
def test_both_ways_of_stopping_widen_for_drift(plan: StoppingPlan | None) -> None:
    logs = 0.1 + np.linspace(-0.05, 0.05, 12)
    shuffled = np.random.default_rng(1).permutation(logs)[np.array([0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11])]
    widths = []
    for one in (logs, shuffled):
        found = estimate_ratio(BlockFigures(np.exp(one), np.ones(12)), rng=np.random.default_rng(2), plan=plan)
        assert found.interval is not None
        assert found.evidence is not None
        widths.append((found.interval.high / found.interval.low, found.evidence.p_beyond))
    assert widths[0][0] > widths[1][0] ** 1.5 or dependence(shuffled) > 1.0
    assert widths[0][1] >= widths[1][1]


@pytest.mark.parametrize("blocks", [5, 8, 12])
def test_skewed_ratios_are_covered(blocks: int) -> None:
    rng = np.random.default_rng([7, blocks])
    plan = StoppingPlan(blocks, min_blocks=blocks)
    held = 0
    for _ in range(1500):
        found = look(0.03 * (rng.exponential(1.0, blocks) - 1.0), plan)
        held += found.interval is not None and found.interval.contains(1.0)
    assert held / 1500 >= 0.91
