"""Which trial comes next: blocks in seeded order, resume, a second attempt, and when to stop.

The state of a run is its records and nothing else: `results.stopping` derives from them what still has to be
measured, so a run that was killed continues exactly where its last finished trial left it.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Protocol

import nearmetal
from nearmetal.errors import BadInputError, ForeignFileError, TrialError
from nearmetal.hosts.host import Host, PreparingHost, SharedMachinesHost
from nearmetal.results.series import Combination, are_fresh
from nearmetal.results.stopping import (
    MAX_ATTEMPTS,
    attempts,
    combination,
    given_up,
    missing_trials,
    open_combinations,
    to_repeat,
)
from nearmetal.run.timers import timers_of
from nearmetal.run.trial import carry_out
from nearmetal.store.record import started_now
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.facts import OCCASION
from nearmetal.study.order import Order, Outcome, Scalar, TrialStatus
from nearmetal.study.spec import Study
from nearmetal.units import by_key
from nearmetal.workloads.samples import decode


class Watcher(Protocol):
    """Is told what happens during a run; the command line draws it."""

    def block_started(self, number: int, trials: int, open_paths: Sequence[str]) -> None:
        """Note that a block with that many trials still to run begins; `number` counts on over occasions."""

    def trial_ended(self, record: TrialRecord) -> None:
        """Note that a trial was made permanent, valid or failed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a run ended: how many blocks it has, the combinations that were given up, and its occasion, from 1.

    `cut` says that the caller wanted no more blocks, though the study lacks some, and `idle` that nothing was left to
    measure.
    """

    blocks: int
    given_up: tuple[Combination, ...]
    occasion: int = 1
    cut: bool = False
    idle: bool = False


def run_study(
    study: Study, host: Host, run: RunDir, watcher: Watcher, *, occasions: int = 1, blocks: int | None = None
) -> Ending:
    """Run what the study still lacks, block after block, until every comparison may stop or `blocks` are done.

    With several `occasions` the whole is repeated, but one call runs only the first that is not complete: the next is
    for later. Errors of single trials are in their records; errors of the host or the disk are raised, with every
    finished trial kept.
    """
    records = run.trials()
    _refuse_another_plan(study, run, records)
    begun = 1 + max((plan.occasion_of(study, record.order.block) for record in records), default=0)
    ending = Ending(0, ())
    before = len(records)
    for occasion in range(max(occasions, begun)):
        ending = _run_occasion(study, host, run, watcher, occasion=occasion, blocks=blocks, records=records)
        if len(records) > before:
            break
    return replace(ending, idle=len(records) == before)


def _refuse_another_plan(study: Study, run: RunDir, records: Sequence[TrialRecord]) -> None:
    """Raise ForeignFileError where a trial is not the one that is planned under its number: it would count as done.

    Raise BadInputError for fresh blocks of another run: what is measured beside them would make them a later occasion.
    """
    if are_fresh(study, records):
        text = f"{run.root} holds fresh blocks of another run, which only the gate of that run continues"
        raise BadInputError(text, hint=f"repeat that gate with --out {run.root}, or begin a new run")
    for number, mine in by_key((record.order.block, record) for record in records).items():
        planned = {order.trial: combination(order) for order in plan.block(study, number)}
        for record in mine:
            if planned.get(record.order.trial) != combination(record.order):
                begun_by = run.info.nearmetal_version
                raise ForeignFileError(
                    f"trial {record.order.trial} of {run.root} is not the one that is planned under its number",
                    hint=f"continue with the nearmetal that began the run ({begun_by}), or begin a new run",
                )


def _run_occasion(
    study: Study,
    host: Host,
    run: RunDir,
    watcher: Watcher,
    *,
    occasion: int,
    blocks: int | None,
    records: list[TrialRecord],
) -> Ending:
    """Run what one occasion still lacks, at most `blocks` of it; its looks are at its own blocks alone."""
    first = occasion * study.trials.max_blocks
    left = study.trials.max_blocks if blocks is None else blocks
    for number in range(first, first + study.trials.max_blocks):
        mine = [record for record in records if record.order.block >= first]
        wanted = open_combinations(study, run, mine, before_block=number)
        if not wanted or (not left and missing_trials(study, run, mine, number)):
            return Ending(number - first, given_up(mine), occasion + 1, cut=bool(wanted))
        if isinstance(host, PreparingHost) and number == first:
            ahead = range(first, first + min(left, study.trials.min_blocks))
            host.prepare(order for block in ahead for order in plan.block(study, block))
        before = len(records)
        run_block(study, host, run, watcher, number=number, wanted=wanted, records=records)
        left -= len(records) > before
    return Ending(study.trials.max_blocks, given_up(r for r in records if r.order.block >= first), occasion + 1)


def run_block(
    study: Study,
    host: Host,
    run: RunDir,
    watcher: Watcher,
    *,
    number: int,
    wanted: set[Combination],
    records: list[TrialRecord],
) -> None:
    """Measure what block `number` still lacks of these combinations; add to `records` what was made permanent."""
    planned = plan.by_launch(study, plan.block(study, number))
    # What shares a launch is measured as long as any of it is wanted, so that it never runs under other conditions.
    launches = [launch.of_launch for launch in planned if wanted & set(map(combination, launch.of_launch))]
    orders = [order for launch in launches for order in launch]
    begun = attempts(records)
    todo = [order for order in orders if order.trial not in begun]
    if todo:
        watcher.block_started(number, len(todo), sorted({path for path, _, _ in wanted}))
    occasion = 1 + plan.occasion_of(study, number)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        for record in _carry_out_block(host, run, plan.by_launch(study, todo), occasion, attempt=attempt):
            records.append(record)
            watcher.trial_ended(record)
        todo = to_repeat(records, number)


def _carry_out_block(
    host: Host, run: RunDir, orders: Sequence[Order], occasion: int, *, attempt: int
) -> Iterable[TrialRecord]:
    """Carry orders out, as many side by side as the host allows; yield each record once it is permanent."""
    groups = host.together(orders) if isinstance(host, SharedMachinesHost) else [[order] for order in orders]
    # In this thread where there is one at a time, so that an interrupt ends the launch that is under way.
    one_by_one = (ended for group in groups for ended in _carried_out(host, group))
    outcomes = one_by_one if host.slots == 1 else _side_by_side(host, groups)
    for launched, started_utc, outcome in outcomes:
        of_run = _of_another_version(run) | {OCCASION: occasion}
        for order, one in outcome.of_each(launched):
            yield keep(run, order, replace(one, facts=one.facts | of_run), attempt, started_utc)


def _of_another_version(run: RunDir) -> dict[str, Scalar]:
    """Return the version of this nearmetal where another one began the run: their trials are of different code."""
    own = nearmetal.__version__
    return {} if own == run.info.nearmetal_version else {"nearmetal.version": own}


_Ended = tuple["Order", str, "Outcome"]


def _carried_out(host: Host, group: Sequence[Order]) -> Iterator[_Ended]:
    """Yield each of a group's orders with the instant at which its machines began, and its outcome."""
    started_utc = started_now()
    if isinstance(host, SharedMachinesHost):
        outcomes = host.carry_out_together(group)
    else:
        outcomes = (host.carry_out(order, carry_out) for order in group)
    for order, outcome in zip(group, outcomes, strict=True):
        yield order, started_utc, outcome


def _side_by_side(host: Host, groups: Sequence[Sequence[Order]]) -> Iterable[_Ended]:
    """Carry orders out in threads; on an interrupt the host is closed, which ends what is under way."""
    with ThreadPoolExecutor(max_workers=host.slots) as pool:
        running: set[Future[list[_Ended]]] = set()
        waiting = list(reversed(groups))
        try:
            while waiting or running:
                while waiting and len(running) < host.slots:
                    running.add(pool.submit(list, _carried_out(host, waiting.pop())))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        except BaseException:
            host.close()
            raise


def keep(run: RunDir, order: Order, outcome: Outcome, attempt: int, started_utc: str) -> TrialRecord:
    """Make a trial permanent; one whose samples cannot be read is kept as failed, with the reader's reason."""
    cells: list[CellSamples] = []
    if outcome.status is TrialStatus.VALID:
        try:
            cells = decode(outcome)
            outcome = replace(outcome, facts=outcome.facts | timers_of(order.workload.kind, cells, outcome.facts))
        except (ForeignFileError, TrialError) as error:
            outcome = replace(outcome, status=TrialStatus.FAILED, reason=error.message, hint=error.hint, files={})
    return run.append(order, outcome, cells, attempt=attempt, started_utc=started_utc)
