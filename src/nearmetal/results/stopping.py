"""What a study asks of the statistics: its criteria for a verdict, when to look, and which comparisons may stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nearmetal.results.series import CellId, Combination, is_part, launches, variants
from nearmetal.stats.compare import enough, is_quiet, pair_launches
from nearmetal.stats.conclude import Criteria
from nearmetal.stats.stopping import StoppingPlan
from nearmetal.stats.summary import HEADLINE, Summary
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.spec import AGAIN, Study, WorkloadSpec
from nearmetal.workloads.figures import of_pairs


def criteria_of(study: Study) -> Criteria:
    """Return what a study asks of `near-metal`."""
    return Criteria(study.margin, study.tail_margin, study.rarest_mode)


def stopping_plan(study: Study) -> StoppingPlan:
    """Return the looks of this study; a path's verdicts over sizes, operations and settings share their error.

    It counts sizes and all else that gives several cells: applications, fabrics and pairs. Pairs of a latency have no
    sum, so they are one fewer.
    """
    return StoppingPlan(
        min_blocks=study.trials.min_blocks,
        max_blocks=study.trials.max_blocks,
        margin=study.margin,
        precision=study.trials.precision,
        comparisons=sum(map(_cells, study.workload)) * len(study.setting),
    )


def _cells(workload: WorkloadSpec) -> int:
    if workload.kind in _OF_A_LAUNCH:
        return _OF_A_LAUNCH[workload.kind]
    pairs = len(workload.placed) // 2 if of_pairs(workload.kind) else 1
    return (pairs + 1 if pairs > 1 else 1) * max(1, len(workload.sizes))


_OF_A_LAUNCH = {"application": 3, "fabric": 2}
"""An application's total, its iterations and its communication; a fabric's latency and bandwidth."""


def decided(study: Study, run: RunDir, records: Sequence[TrialRecord]) -> set[Combination]:
    """Return the combinations whose comparison with the baseline (both its names count) may stop in every cell.

    Where the study requires a noise floor, all paths continue in a workload and setting in which a cell is above it,
    and so does a lone baseline.
    """
    found = launches(run, records)
    open_, boots, plan = set[Combination](), variants(records), stopping_plan(study)
    noisy = _noisy(study, found, boots, plan)
    baseline = (study.baseline, study.baseline + AGAIN)
    compared = {cell: ours for cell, ours in found.items() if cell.path not in baseline}
    cells = Counter(cell.path for cell in compared)
    for cell, ours in compared.items():
        theirs = [found.get(replace(cell, path=name), {}) for name in baseline]
        figures, refused = pair_launches(ours, [one for one in theirs if one], margin=study.margin, variants=boots)
        # As many as the report corrects for, so that its correction does not undo a stop.
        of_path = replace(plan, comparisons=max(plan.comparisons, cells[cell.path]))
        if HEADLINE not in figures or not enough(figures, refused, criteria_of(study), of_path):
            open_.add(cell.combination)
    return {one for cell in compared or found if (one := cell.combination)[1:] not in noisy} - open_


def _noisy(
    study: Study, found: Mapping[CellId, Mapping[int, Summary]], boots: Mapping[int, int], plan: StoppingPlan
) -> set[tuple[str, str]]:
    """Return the workloads and settings in which the baseline differs from itself by more than the study allows.

    Parts of a program are not considered: how long its ranks wait for each other has its own floor.
    """
    noisy: set[tuple[str, str]] = set()
    if (allowed := study.trials.floor) is not None:
        measured = {(one.workload, one.operation) for one in found}
        wholes = (one for one in found if not is_part(one.workload, one.operation, measured))
        for cell in (one for one in wholes if one.path == study.baseline):
            again = found.get(replace(cell, path=study.baseline + AGAIN), {})
            figures, _ = pair_launches(again, [found[cell]], margin=study.margin, variants=boots)
            if HEADLINE not in figures or not is_quiet(figures[HEADLINE], allowed, plan):
                noisy.add((cell.workload, cell.setting))
    return noisy
