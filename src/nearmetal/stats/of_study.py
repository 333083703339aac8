"""What a study asks of the statistics: its criteria for a verdict, and the looks of its sequential stopping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.stats.conclude import Criteria
from nearmetal.stats.stopping import StoppingPlan

if TYPE_CHECKING:
    from nearmetal.study.spec import Study


def criteria_of(study: Study) -> Criteria:
    """Return what a study asks of `near-metal`."""
    return Criteria(study.margin, study.tail_margin, study.rarest_mode)


def stopping_plan(study: Study) -> StoppingPlan:
    """Return the looks of this study; a path's verdicts over sizes, operations and settings share their error."""
    return StoppingPlan(
        min_blocks=study.trials.min_blocks,
        max_blocks=study.trials.max_blocks,
        margin=study.margin,
        precision=study.trials.precision,
        comparisons=sum(max(1, len(w.sizes)) for w in study.workload) * len(study.setting),
    )
