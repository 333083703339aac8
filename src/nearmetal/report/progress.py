"""How far a run has come, from its records: what there is to see before anything can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nearmetal.report import words
from nearmetal.report.as_json import attempt
from nearmetal.report.schema import AttemptJson
from nearmetal.report.tables import Table
from nearmetal.results.series import are_fresh, own_ns
from nearmetal.results.stopping import planned_blocks
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study import plan
from nearmetal.units import format_duration

LAST_TRIALS = 10


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run has come; `running` says that a nearmetal is writing it.

    `planned_blocks` is (least, most) at each occasion: a study stops between them when its comparisons are decided.
    `occasion` counts from 1, and so does `block` in it, 0 before the first trial; of its trials `block_done` have ended
    and `block_most` are planned, fewer where some comparisons have stopped. `trial_ns` is the median time of a trial,
    None before the first. `fresh` blocks are of another run: the gate that measures them knows how many, and
    `planned_blocks` are those so far.
    """

    running: bool
    planned_blocks: tuple[int, int]
    occasion: int
    block: int
    block_done: int
    block_most: int
    valid: int
    failed: int
    trial_ns: int | None
    last: tuple[AttemptJson, ...]
    fresh: bool = False

    @property
    def most_trials(self) -> int:
        """Return how many trials the study has at most, to the end of this occasion."""
        return self.occasion * self.planned_blocks[1] * self.block_most


def progress(run: RunDir, records: Sequence[TrialRecord], *, running: bool = False) -> RunProgress:
    """Return how far a run has come; `records` are all its trials, valid and failed.

    Raises BadInputError and ForeignFileError when its study cannot be read.
    """
    study = run.study()
    block = max((record.order.block for record in records), default=-1)
    fresh = are_fresh(study, records)
    first = min(record.order.block for record in records) if fresh else block - block % study.trials.max_blocks
    within = block - first + 1 if records else 0
    took_ns = [ns for ns in map(own_ns, records) if ns]
    newest = sorted(records, key=lambda one: (one.started_utc, one.order.trial, one.attempt), reverse=True)
    return RunProgress(
        running=running,
        planned_blocks=(within, within) if fresh else planned_blocks(study),
        occasion=1 if fresh else plan.occasion_of(study, max(block, 0)) + 1,
        block=within,
        block_done=len({one.order.trial for one in records if one.order.block == block}),
        block_most=len(plan.block(study, max(block, 0))),
        valid=len({one.order.trial for one in records if one.valid}),
        failed=sum(not one.valid for one in records),
        trial_ns=round(median(took_ns)) if took_ns else None,
        last=tuple(map(attempt, newest[:LAST_TRIALS])),
        fresh=fresh,
    )


def sentence(so_far: RunProgress) -> str:
    """Return the progress in one sentence."""
    least, most = so_far.planned_blocks
    planned = f"{most}" if least == most else f"{least} to {most}"
    if not so_far.block:
        return f"No trial has ended yet; {planned} blocks of {so_far.block_most} trials are planned."
    failed = f", {so_far.failed} failed" if so_far.failed else ""
    took = f" A trial takes {format_duration(so_far.trial_ns)}." if so_far.trial_ns else ""
    place = f"Occasion {so_far.occasion}, block" if so_far.occasion > 1 else "Block"
    where = (
        f"Fresh block {so_far.block} of another run" if so_far.fresh else f"{place} {so_far.block} ({planned} planned)"
    )
    return (
        f"{where}: {so_far.block_done} of at most {so_far.block_most} trials; "
        f"{so_far.valid} valid in all{failed}.{took}"
    )


def last_trials(so_far: RunProgress) -> Table:
    """Return the last trials, the newest first."""
    rows = [
        (
            str(one.trial),
            one.path,
            one.workload,
            one.setting,
            "failed: " + one.reason.partition("\n")[0] if one.status == "failed" else one.status,
            format_duration(one.elapsed_ns) if one.elapsed_ns else words.NOTHING,
            one.started_utc[:19].replace("T", " "),
        )
        for one in so_far.last
    ]
    head = ("trial", "path", "workload", "setting", "status", "took", "begun (UTC)")
    return Table("Last trials", head, tuple(rows), left=5)
