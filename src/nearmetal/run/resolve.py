"""What a study can resolve, stated before it runs: differences, percentiles, and the rarest mode that must show.

- Modes are those that so many launches cannot exclude by `stats.conclude`.
- The ratio of a path's launch and the two of the baseline differs from block to block by sqrt(1.5) times the sd of a
  launch. A true difference is found with the power of the paired t-test, from the noncentral t distribution, at the
  level that Holm's correction leaves to the hardest of a path's comparisons.
- A percentile of one launch is stated where enough iterations enclose it by order statistics (`stats.order`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from nearmetal.results.stopping import criteria_of, stopping_plan
from nearmetal.stats.conclude import rarest_excluded
from nearmetal.stats.equivalence import ALPHA
from nearmetal.stats.order import quantile_ranks, support
from nearmetal.stats.summary import P99
from nearmetal.study.spec import Study

POWER = 0.8
USUAL_SD = 0.03
LAUNCH_SDS = (0.01, USUAL_SD, 0.10)
"""By how much launches differ (sd of their logarithm): on a quiet machine, a usual one, a shared one."""
_PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_MOST_BLOCKS = 1000


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the cap of blocks can resolve.

    `differences` has (sd of launches, smallest difference found with `POWER`, blocks that the margin would need, None
    beyond 1,000). `percentile` is the highest that the engine's workload with the fewest `iterations`
    supports, 0 for none; `next_percentile` and `next_iterations` are the one above it and what it needs. `rarest_mode`
    is the share below which a mode may stay unseen, `blocks_for_mode` what `near-metal` needs in this study.
    `proposed_blocks` are enough for that and, on a usual machine, for a gap as large as the margin;
    `proposed_iterations` for a p99, 0 where the engine measures nothing.
    """

    blocks: int
    comparisons: int
    rarest_mode: float
    blocks_for_mode: int
    differences: tuple[tuple[float, float, int | None], ...]
    iterations: int
    percentile: float
    next_percentile: float
    next_iterations: int
    proposed_blocks: int
    proposed_iterations: int


def resolution(study: Study) -> Resolution:
    """Return what a study can resolve with the most blocks that it may run."""
    plan = stopping_plan(study)
    level = ALPHA / plan.comparisons
    iterations = min((one.iterations for one in study.workload if one.kind == "engine"), default=0)
    held = [p for p in _PERCENTILES if iterations and quantile_ranks(iterations, p) is not None]
    beyond = next((p for p in _PERCENTILES if iterations and p not in held), 0.0)
    return Resolution(
        blocks=plan.max_blocks,
        comparisons=plan.comparisons,
        rarest_mode=rarest_excluded(plan.max_blocks),
        blocks_for_mode=criteria_of(study).least_launches,
        differences=tuple(
            (sd, smallest_difference(plan.max_blocks, sd, level), blocks_for(study.margin, sd, level))
            for sd in LAUNCH_SDS
        ),
        iterations=iterations,
        percentile=max(held, default=0.0),
        next_percentile=beyond,
        next_iterations=support(beyond) if beyond else 0,
        proposed_blocks=max(criteria_of(study).least_launches, blocks_for(study.margin, USUAL_SD, level) or 0),
        proposed_iterations=support(P99) if iterations else 0,
    )


def power(blocks: int, difference: float, launch_sd: float, level: float) -> float:
    """Return how often a true difference (0.1: 10 %) is found by so many blocks, two-sided at `level`."""
    critical = float(special.stdtrit(blocks - 1, 1 - level / 2))
    shift = math.log1p(difference) * math.sqrt(blocks) / (math.sqrt(1.5) * launch_sd)
    missed = float(special.nctdtr(blocks - 1, shift, critical))
    return 1.0 if math.isnan(missed) else 1.0 - missed  # SciPy returns NaN where this probability underflows


def smallest_difference(blocks: int, launch_sd: float, level: float) -> float:
    """Return the smallest difference that is found with `POWER`."""
    low, high = 0.0, 1.0
    while power(blocks, high, launch_sd, level) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power(blocks, middle, launch_sd, level) >= POWER else (middle, high)
    return high


def blocks_for(difference: float, launch_sd: float, level: float) -> int | None:
    """Return the fewest blocks that find a difference with `POWER`, None beyond 1,000."""
    enough = (n for n in range(3, _MOST_BLOCKS + 1) if power(n, difference, launch_sd, level) >= POWER)
    return next(enough, None)
