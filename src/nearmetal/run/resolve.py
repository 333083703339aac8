"""What a study can resolve, stated before it runs: differences, percentiles, and the rarest mode that must show.

- Modes are those that so many launches cannot exclude by `stats.conclude`.
- The ratio of a path's launch and the two of the baseline differs from block to block by sqrt(1.5) times the sd of a
  launch. A true difference is found with the power of the paired t-test, from the noncentral t distribution, at the
  level that Holm's correction leaves to the hardest of a path's comparisons at the last look. Blocks too few for
  *differs* find only what lies beyond the margin.
- A percentile of one launch is stated where enough iterations enclose it by order statistics (`stats.order`).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from scipy import special

from nearmetal.results.stopping import criteria_of, stopping_plan
from nearmetal.stats.boundaries import levels_at
from nearmetal.stats.conclude import LEAST_FOR_DIFFERENCE, rarest_excluded
from nearmetal.stats.equivalence import ALPHA
from nearmetal.stats.order import quantile_ranks, support
from nearmetal.stats.stopping import StoppingPlan
from nearmetal.stats.summary import P99
from nearmetal.stats.widen import LEAST_BLOCKS
from nearmetal.study.spec import Study, WorkloadSpec
from nearmetal.workloads.engine import of_size

POWER = 0.9
"""Of the t-test: what drift, skewness and boots add to intervals leaves about 80 % of the studies."""
_OF_FEW_BLOCKS = {5: 0.98, 6: 0.97, 7: 0.95}
"""The same of so few blocks, which estimate how skewed they are; fewer still are not asked."""
_OF_BOOTS = 0.98
"""The same of 5 blocks or more that are asked whether their boots differ."""
USUAL_SD = 0.03
LAUNCH_SDS = (0.01, USUAL_SD, 0.10)
"""By how much launches differ (sd of their logarithm): on a quiet machine, a usual one, a shared one."""
_PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_MOST_BLOCKS = 1000
_FEW_BLOCKS = 16
_MOST_LOOKS = 100
"""Further ones hardly lower the level of the last, and take seconds to work out."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the cap of blocks can resolve.

    `differences` has (sd of launches, smallest difference found in about 80 % of studies, blocks that the margin would
    need, None beyond 1,000). `percentile` is the highest that the engine's workload with the fewest `iterations`
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
    proposed_blocks: int | None
    proposed_iterations: int
    iterations_by: dict[str, int]


def resolution(study: Study) -> Resolution:
    """Return what a study can resolve with the most blocks that it may run."""
    plan = stopping_plan(study)
    lab = study.host.kind == "lab"
    sure_from = 3 if lab else LEAST_FOR_DIFFERENCE  # blocks of the lab cannot drift
    asked = partial(asked_power, boots=lab)
    power_asked = asked(plan.max_blocks)
    beyond_margin = 1.0 if plan.max_blocks >= sure_from else 1.0 + study.margin
    level = last_level(plan, plan.max_blocks)
    enough = {
        sd: blocks_for(study.margin, sd, lambda blocks: last_level(plan, blocks), sure_from, asked) for sd in LAUNCH_SDS
    }
    usual, for_mode = enough[USUAL_SD], criteria_of(study).least_launches
    by = iterations_by(study.workload)
    iterations = min(by.values(), default=0)
    held = [p for p in _PERCENTILES if iterations and quantile_ranks(iterations, p) is not None]
    beyond = next((p for p in _PERCENTILES if iterations and p not in held), 0.0)
    return Resolution(
        blocks=plan.max_blocks,
        comparisons=plan.comparisons,
        rarest_mode=rarest_excluded(plan.max_blocks),
        blocks_for_mode=for_mode,
        differences=tuple(
            (sd, beyond_margin * (1.0 + smallest_difference(plan.max_blocks, sd, level, power_asked)) - 1.0, enough[sd])
            for sd in LAUNCH_SDS
        ),
        iterations=iterations,
        percentile=max(held, default=0.0),
        next_percentile=beyond,
        next_iterations=support(beyond) if beyond else 0,
        proposed_blocks=max(for_mode, usual) if usual else None,
        proposed_iterations=support(P99) if iterations else 0,
        iterations_by=by,
    )


def iterations_by(workloads: Iterable[WorkloadSpec]) -> dict[str, int]:
    """Return the fewest iterations of the engine's sizes, by the key that sets them."""
    fewest: dict[str, int] = {}
    for one in (one for one in workloads if one.kind == "engine"):
        for size in one.sizes or [0]:
            made = of_size(size, one.options, "iterations", one.iterations)
            key = "iterations" if made == one.iterations else "iterations_large"
            fewest[key] = min(made, fewest.get(key, made))
    return fewest


def last_level(plan: StoppingPlan, blocks: int) -> float:
    """Return the nominal level of the last look where a study has at most so many blocks, its looks as planned."""
    alpha = ALPHA / plan.comparisons
    first = min(plan.min_blocks, blocks)
    looks = replace(plan, min_blocks=first, max_blocks=min(blocks, first + _MOST_LOOKS)).looks
    return levels_at(looks, plan.first_share, alpha)[-1]


def power(blocks: int, difference: float, launch_sd: float, level: float) -> float:
    """Return how often a true difference (0.1: 10 %) is found by so many blocks, two-sided at `level`."""
    critical = float(special.stdtrit(blocks - 1, 1 - level / 2))
    shift = math.log1p(difference) * math.sqrt(blocks) / (math.sqrt(1.5) * launch_sd)
    missed = float(special.nctdtr(blocks - 1, shift, critical))
    return 1.0 if math.isnan(missed) else 1.0 - missed  # SciPy returns NaN where this probability underflows


def asked_power(blocks: int, *, boots: bool = False) -> float:
    """Return the power that lets about 80 % of studies of so many blocks find a difference, 75 % of several boots."""
    few = _OF_FEW_BLOCKS.get(blocks, POWER)
    return _OF_BOOTS if boots and blocks >= LEAST_BLOCKS else few


def smallest_difference(blocks: int, launch_sd: float, level: float, asked: float) -> float:
    """Return the smallest difference that is found with the power that is asked."""
    low, high = 0.0, 1.0
    while power(blocks, high, launch_sd, level) < asked:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power(blocks, middle, launch_sd, level) >= asked else (middle, high)
    return high


def blocks_for(
    difference: float,
    launch_sd: float,
    level: Callable[[int], float],
    least: int = 3,
    asked: Callable[[int], float] = asked_power,
) -> int | None:
    """Return the fewest blocks, from `least` on, that find a difference with the power `asked`, None beyond 1,000.

    `level` is that of a study of so many blocks.
    """

    def enough(blocks: int) -> bool:
        return power(blocks, difference, launch_sd, level(blocks)) >= asked(blocks)

    if not enough(_MOST_BLOCKS):
        return None
    few = range(least, least + _FEW_BLOCKS)  # the second look lowers the level, so power may fall there
    found = next((blocks for blocks in few if enough(blocks)), None)
    return found or bisect_left(range(_MOST_BLOCKS), True, lo=few.stop, key=enough)
