"""What a study asks of the statistics: its criteria for a verdict, when to look, and which comparisons may stop.

So also what a run still lacks. Its state is its records and nothing else: what `run --resume` would measure is known
from them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nearmetal.errors import command_line, listed
from nearmetal.results.series import CellId, Combination, are_fresh, is_part, launches, variants
from nearmetal.stats.compare import is_quiet, pair_launches
from nearmetal.stats.conclude import Criteria
from nearmetal.stats.stopping import StoppingPlan, enough
from nearmetal.stats.summary import HEADLINE, Summary
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study import plan
from nearmetal.study.order import Order, is_again, labels_of
from nearmetal.study.spec import Study, WorkloadSpec
from nearmetal.units import by_key, counted
from nearmetal.workloads.figures import of_pairs

MAX_ATTEMPTS = 2
FAILURES_TO_GIVE_UP = 2
"""Blocks in a row in which a combination failed, after which it is not tried again."""
_OF_A_LAUNCH = {"application": 3, "fabric": 2}
"""An application's total, its iterations and its communication; a fabric's latency and bandwidth."""


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


def as_it_ends(study: Study) -> Study:
    """Return a study with the most blocks that it can take: only a floor keeps one path alone beyond the least."""
    if len(study.path) > 1 or study.trials.floor is not None:
        return study
    trials = study.trials.model_copy(update={"max_blocks": study.trials.min_blocks})
    return study.model_copy(update={"trials": trials})


def planned_blocks(study: Study) -> tuple[int, int]:
    """Return the least and the most blocks that a study takes at each occasion."""
    trials = as_it_ends(study).trials
    return trials.min_blocks, trials.max_blocks


def _cells(workload: WorkloadSpec) -> int:
    if workload.kind in _OF_A_LAUNCH:
        return _OF_A_LAUNCH[workload.kind]
    pairs = len(workload.placed) // 2 if of_pairs(workload.kind) else 1
    return (pairs + 1 if pairs > 1 else 1) * max(1, len(workload.sizes))


def decided(study: Study, run: RunDir, records: Sequence[TrialRecord]) -> set[Combination]:
    """Return the combinations whose comparison with the baseline (both its names count) may stop in every cell.

    Where the study requires a noise floor, all paths continue in a workload and setting in which a cell is above it,
    and so does a lone baseline.
    """
    found = launches(run, records)
    open_, boots, looks = set[Combination](), variants(records), stopping_plan(study)
    noisy, baseline = _noisy(study, found, boots, looks), labels_of(study.baseline)
    compared = {cell: ours for cell, ours in found.items() if cell.path not in baseline}
    cells = Counter(cell.path for cell in compared)
    for cell, ours in compared.items():
        theirs = [found.get(replace(cell, path=name), {}) for name in baseline]
        figures, refused = pair_launches([ours], [one for one in theirs if one], margin=study.margin, variants=boots)
        # As many as the report corrects for, so that its correction does not undo a stop.
        of_path = replace(looks, comparisons=max(looks.comparisons, cells[cell.path]))
        if HEADLINE not in figures or not enough(figures, refused, criteria_of(study), of_path):
            open_.add(cell.combination)
    return {one for cell in compared or found if (one := cell.combination)[1:] not in noisy} - open_


def _noisy(
    study: Study, found: Mapping[CellId, Mapping[int, Summary]], boots: Mapping[int, int], looks: StoppingPlan
) -> set[tuple[str, str]]:
    """Return the workloads and settings in which the baseline differs from itself by more than the study allows.

    Parts of a program are not considered: how long its ranks wait for each other has its own floor.
    """
    noisy, baseline = set[tuple[str, str]](), labels_of(study.baseline)
    if (allowed := study.trials.floor) is not None:
        measured = {(one.workload, one.operation) for one in found}
        wholes = (one for one in found if not is_part(one.workload, one.operation, measured))
        for cell in {replace(one, path=study.baseline) for one in wholes if one.path in baseline}:
            once, again = (found.get(replace(cell, path=name), {}) for name in baseline)
            figures, _ = pair_launches([again], [once], margin=study.margin, variants=boots)
            if HEADLINE not in figures or not is_quiet(figures[HEADLINE], allowed, looks):
                noisy.add((cell.workload, cell.setting))
    return noisy


# ---- what a run still lacks


def open_combinations(
    study: Study, run: RunDir, records: Sequence[TrialRecord], *, before_block: int
) -> set[Combination]:
    """Return what block `before_block` must measure, judged by the blocks before it alone.

    The baseline is measured, under both its names, as long as anything is compared with it, or by itself.
    """
    past = [record for record in records if record.order.block < before_block]
    hopeless = set(given_up(past))
    everything = {(path.label, workload.name, setting) for path, workload, setting in plan.combinations(study)}
    baseline = labels_of(study.baseline)
    settled = hopeless | decided(study, run, past)
    asked = {one for one in everything if one[0] not in baseline} or everything
    wanted = asked - settled
    pairs = {(workload, setting) for _, workload, setting in wanted}
    if not wanted and before_block % study.trials.max_blocks < study.trials.min_blocks:
        pairs = {(workload, setting) for _, workload, setting in everything}
    return wanted | {c for c in everything - hopeless if c[0] in baseline and c[1:] in pairs}


def given_up(records: Iterable[TrialRecord]) -> tuple[Combination, ...]:
    """Return the combinations whose last `FAILURES_TO_GIVE_UP` blocks all failed."""
    last: dict[Combination, dict[int, bool]] = {}
    for record in records:
        blocks = last.setdefault(combination(record.order), {})
        blocks[record.order.block] = blocks.get(record.order.block, False) or record.valid
    return tuple(
        one
        for one, blocks in sorted(last.items())
        if len(blocks) >= FAILURES_TO_GIVE_UP and not any(blocks[b] for b in sorted(blocks)[-FAILURES_TO_GIVE_UP:])
    )


def never_valid(records: Iterable[TrialRecord]) -> tuple[Combination, ...]:
    """Return the combinations of which trials were carried out and none is valid."""
    tried: dict[Combination, bool] = {}
    for record in records:
        one = combination(record.order)
        tried[one] = tried.get(one, False) or record.valid
    return tuple(one for one, valid in sorted(tried.items()) if not valid)


def lost_workloads(records: Iterable[TrialRecord]) -> dict[str, list[str]]:
    """Return the workloads of each setting of which trials were carried out and none is valid on any path."""
    tried = by_key(((one.order.setting, one.order.workload.label), one.valid) for one in records)
    return by_key(one for one, valid in sorted(tried.items()) if not any(valid))


def combination(order: Order) -> Combination:
    """Return what an order measures."""
    return (order.path.label, order.workload.label, order.setting)


def attempts(records: Iterable[TrialRecord]) -> dict[int, int]:
    """Return how often each trial was tried."""
    return {record.order.trial: record.attempt for record in records}


def to_repeat(records: Sequence[TrialRecord], block: int) -> list[Order]:
    """Return a block's launches that ran into their time limit once; both attempts stay on record."""
    tried = attempts(records)
    return [
        record.order
        for record in records
        if record.order.block == block and record.outcome.timed_out and tried[record.order.trial] < MAX_ATTEMPTS
    ]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """That a run was stopped before its schedule ended, or is `running`: a nearmetal of this machine measures it.

    `short` says that it has not even the blocks that its study asks for at least, or ends within one. `says` is what
    was measured, and `resume` the command that measures the rest.
    """

    running: bool
    short: bool
    says: str
    resume: str

    @property
    def premature(self) -> bool:
        """Return whether its figures are not to be relied on yet."""
        return self.running or self.short


def unfinished(run: RunDir, records: Sequence[TrialRecord]) -> Unfinished | None:
    """Return what a run lacks, None for one that is finished and where there is no schedule.

    Only what its study plans counts: nobody knows at how many occasions it was to be measured. There is no schedule for
    imported figures, whole fabrics, searches, and fresh blocks of another run.
    """
    if run.MARKER != RunDir.MARKER or run.info.host_kind == "import" or run.of_fabric:
        return None
    study = run.study()
    most, least = study.trials.max_blocks, study.trials.min_blocks
    last = max((record.order.block for record in records), default=-1)
    if are_fresh(study, records):
        return None
    first = plan.occasion_of(study, max(last, 0)) * most
    mine = [record for record in records if record.order.block >= first]
    begun = last - first + 1
    missing = missing_trials(study, run, mine, last) if begun else 0
    wanted = open_combinations(study, run, mine, before_block=last + 1) if begun < most else set()
    if not (missing or wanted):
        return None
    occasion = f" of occasion {first // most + 1}" if first else ""
    if missing:
        says = f"it ended within block {begun}{occasion}, {counted(missing, 'trial')} short of it"
    elif begun < least:
        says = f"it has {begun} of at least {counted(least, 'block')}{occasion}"
    else:
        paths = sorted({path for path, _, _ in wanted if not is_again(path)})
        says = f"block {begun + 1}{occasion} would follow for {', '.join(listed(paths))}"
    resume = command_line("run", "--resume", run.root)
    return Unfinished(run.written_elsewhere, bool(missing) or begun < least, says, resume)


def missing_trials(study: Study, run: RunDir, records: Sequence[TrialRecord], block: int) -> int:
    """Return how many trials a block that was begun lacks."""
    tried = attempts(records)
    untried = [order for order in plan.block(study, block) if order.trial not in tried]
    wanted = open_combinations(study, run, records, before_block=block) if untried else set()
    return sum(combination(order) in wanted for order in untried) + len(to_repeat(records, block))
