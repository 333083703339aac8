"""What a study asks of the statistics: its criteria for a verdict, when to look, and which comparisons may stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearmetal.results.series import Combination, launches, variants
from nearmetal.stats.compare import enough, pair_launches
from nearmetal.stats.conclude import Criteria
from nearmetal.stats.stopping import StoppingPlan
from nearmetal.stats.summary import HEADLINE
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.spec import AGAIN, Study


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


def decided(study: Study, run: RunDir, records: Sequence[TrialRecord]) -> set[Combination]:
    """Return the combinations whose comparison with the baseline (both its names count) may stop in every cell."""
    found = launches(run, records)
    open_, boots = set(), variants(records)
    baseline = (study.baseline, study.baseline + AGAIN)
    compared = {cell: ours for cell, ours in found.items() if cell.path not in baseline}
    for cell, ours in compared.items():
        theirs = [found.get(replace(cell, path=name), {}) for name in baseline]
        figures, refused = pair_launches(ours, [one for one in theirs if one], margin=study.margin, variants=boots)
        if HEADLINE not in figures or not enough(figures, refused, criteria_of(study), stopping_plan(study)):
            open_.add(cell.combination)
    return {cell.combination for cell in compared} - open_
