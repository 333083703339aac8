"""The noise floor: what the study would have reported between two runs of the very same path.

In every block the baseline runs twice under two names (A/A). The true ratio of the two is 1, so whatever interval
comes out is made of noise alone, and no gap smaller than it can be believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.stats.compare import BlockFigures, RatioEstimate, estimate_ratio
from nearmetal.stats.equivalence import ALPHA, MARGIN
from nearmetal.stats.paired import moments
from nearmetal.stats.widen import LEAST_BLOCKS

if TYPE_CHECKING:
    import numpy as np

    from nearmetal.stats.stopping import StoppingPlan


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What A/A found.

    `floor` is the smallest relative gap that stands out of the noise, e.g. 0.03 for 3 %: the farther end of the A/A
    interval from 1. `block_spread` is the relative spread of one block's ratio, exp(sd of log ratios) - 1. Both are
    None below 2 blocks (or before the first planned look). `false_alarm` tells that the two are shown to differ, which
    happens by chance in 5 % of cells and otherwise means an order effect or drift; it widens the intervals of the cell
    (`widen.offset_of`). `hides_margin` tells that the floor is not smaller than the margin.
    """

    estimate: RatioEstimate
    floor: float | None
    block_spread: float | None
    false_alarm: bool
    hides_margin: bool


def noise_floor(
    baseline: BlockFigures,
    *,
    rng: np.random.Generator,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    plan: StoppingPlan | None = None,
) -> NoiseFloor:
    """Return the noise floor from the baseline's figures: `path` is its second run, `baseline` its first, by block.

    floor = exp(max(|log low|, |log high|)) - 1 over the interval that `estimate_ratio` gives for the two.
    """
    estimate = estimate_ratio(baseline, rng=rng, margin=margin, alpha=alpha, plan=plan)
    if estimate.evidence is None:
        return NoiseFloor(estimate, None, None, false_alarm=False, hides_margin=True)
    interval = estimate.evidence.difference
    reach = max(abs(interval.low), abs(interval.high))
    floor = math.expm1(reach)
    spread = math.expm1(moments(baseline.log_ratios[: estimate.n]).sd)
    outside = estimate.n >= LEAST_BLOCKS and estimate.evidence.p_difference <= alpha
    margin = plan.margin if plan else margin
    return NoiseFloor(estimate, floor, spread, false_alarm=outside, hides_margin=floor >= margin)
