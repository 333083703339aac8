"""The statistics tested as statistics: false alarms and coverage on simulated launches, with fixed seeds.

bench/aa_calibration.py does the same at full size. Bounds are about four standard errors wide, so that only a broken
method fails: a percentile bootstrap over 6 blocks, pooling of iterations, or peeking without a plan all do.
"""

from __future__ import annotations

import numpy as np
import pytest

from nearmetal.stats.compare import estimate_ratio
from nearmetal.stats.equivalence import Finding
from nearmetal.stats.paired import paired_t_test
from nearmetal.stats.stopping import StoppingPlan, look
from nearmetal.stats.widen import BlockFigures

COMPARISONS = 300


def launch_medians(rng: np.random.Generator, kind: str, blocks: int) -> np.ndarray:
    """Medians of launches: a launch effect times a little sampling noise."""
    sampling = rng.lognormal(0.0, 0.01, blocks)
    if kind == "bimodal":
        return 8_000 * sampling * np.where(rng.random(blocks) < 0.5, 1.0, 1.15)
    if kind == "heavy-tailed":
        return 8_000 * sampling * np.exp(0.05 * rng.standard_t(3, blocks))
    return 8_000 * sampling * rng.lognormal(0.0, 0.05, blocks)


def pairs(rng: np.random.Generator, kind: str, blocks: int, ratio: float = 1.0) -> BlockFigures:
    return BlockFigures(ratio * launch_medians(rng, kind, blocks), launch_medians(rng, kind, blocks))


KINDS = ("log-normal", "bimodal", "heavy-tailed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [6, 12])
def test_fixed_number_of_blocks(kind: str, blocks: int) -> None:
    rng = np.random.default_rng([1, blocks, KINDS.index(kind)])
    found = [estimate_ratio(pairs(rng, kind, blocks), rng=rng) for _ in range(COMPARISONS)]
    alarms = np.mean([f.finding in {Finding.SLOWER, Finding.FASTER, Finding.DIFFERS} for f in found])
    coverage = np.mean([f.interval is not None and f.interval.contains(1.0) for f in found])
    assert alarms <= 0.10
    assert 0.90 <= coverage <= 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_sequential_stopping(kind: str) -> None:
    rng = np.random.default_rng([2, KINDS.index(kind)])
    plan = StoppingPlan(15)
    alarms = covered = 0
    for _ in range(COMPARISONS):
        log_ratios = pairs(rng, kind, 15).log_ratios
        found = next(x for n in plan.looks if (x := look(log_ratios[:n], plan)).stop)
        alarms += found.finding in {Finding.SLOWER, Finding.FASTER, Finding.DIFFERS}
        covered += found.interval is not None and found.interval.contains(1.0)
    assert alarms / COMPARISONS <= 0.10
    assert covered / COMPARISONS >= 0.90


def test_a_real_gap_is_found() -> None:
    rng = np.random.default_rng(3)
    found = [estimate_ratio(pairs(rng, "log-normal", 10, 1.3), rng=rng).finding for _ in range(100)]
    assert found.count(Finding.SLOWER) >= 95


def test_equality_is_not_claimed_for_a_gap_as_large_as_the_margin() -> None:
    rng = np.random.default_rng(4)
    found = [estimate_ratio(pairs(rng, "log-normal", 10, 1.05), rng=rng).finding for _ in range(COMPARISONS)]
    assert found.count(Finding.WITHIN) / COMPARISONS <= 0.09


def test_pooling_iterations_would_raise_false_alarms() -> None:
    """Why blocks: the same launches, judged by their pooled iterations, differ nearly always."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(50):
        launches = launch_medians(rng, "log-normal", 10)
        iterations = launches[:, None] * rng.lognormal(0.0, 0.02, (10, 200))
        alarms += paired_t_test(iterations[:5].ravel(), iterations[5:].ravel()).p < 0.05
    assert alarms / 50 > 0.5
