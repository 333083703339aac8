"""Which trial comes next, with a host that follows a script: exact, without samples or files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import nearmetal
from fake_runs import STUDY, Silent
from nearmetal.errors import BadInputError, ForeignFileError, TrialError
from nearmetal.hosts.host import Shell
from nearmetal.native import source_dir
from nearmetal.results import stopping
from nearmetal.results.series import own_ns
from nearmetal.results.stopping import given_up, open_combinations
from nearmetal.run import schedule
from nearmetal.run.schedule import Ending, run_study
from nearmetal.store.record import TrialRecord, utc_now
from nearmetal.store.rundir import RunInfo
from nearmetal.study import plan
from nearmetal.study.facts import OCCASION, SHARED
from nearmetal.study.order import AGAIN, Order, Outcome, TrialStatus, numbered
from nearmetal.study.spec import Study, parse_study

VETH, TWIN, TAP = "veth", "veth" + AGAIN, "tap"
SETTING = "as-found"
OF_TAP = (TAP, "latency", SETTING)
ALL = {VETH, TWIN, TAP}
ANSWERS = {
    "valid": Outcome(TrialStatus.VALID),
    "failed": Outcome(TrialStatus.FAILED, reason="it broke"),
    "late": Outcome(TrialStatus.FAILED, reason="it took too long", timed_out=True),
}


def study(more: str = "", blocks: tuple[int, int] = (2, 4)) -> Study:
    """Return the small study with fewer blocks than a study file may ask for."""
    found = parse_study(STUDY.replace("[trials]", f"{more}\n[trials]"), "s")
    trials = found.trials.model_copy(update={"min_blocks": blocks[0], "max_blocks": blocks[1]})
    return found.model_copy(update={"trials": trials})


class MemoryRun:
    """A run directory in memory."""

    root = "r"

    def __init__(self, records: Sequence[TrialRecord] = (), version: str = nearmetal.__version__) -> None:
        self.records = list(records)
        self.info = RunInfo("s", "", "scripted", "scripted", version, "")

    def trials(self) -> list[TrialRecord]:
        return list(self.records)

    def append(
        self, order: Order, outcome: Outcome, cells: Sequence[object], *, attempt: int, started_utc: str
    ) -> TrialRecord:
        del cells
        self.records.append(TrialRecord(order, outcome, attempt, started_utc, ()))
        return self.records[-1]

    def seen(self, block: int) -> list[tuple[str, int]]:
        """Return path and attempt of each trial of a block, in the order in which they were kept."""
        return [(one.order.path.label, one.attempt) for one in self.records if one.order.block == block]


class Scripted:
    """Gives scripted outcomes by path, block and attempt; others are valid."""

    kind = label = "scripted"

    def __init__(self, script: dict[tuple[str, int, int], str] | None = None, slots: int = 1) -> None:
        self.slots = slots
        self.asked: list[int] = []
        self.closed = 0
        self._script = script or {}

    def answer(self, order: Order) -> Outcome:
        self.asked.append(order.trial)
        key = (order.path.label, order.block, self.asked.count(order.trial))
        outcome = self._script.get(key, "valid")
        if outcome == "boom":
            raise OSError("the host is gone")
        return ANSWERS[outcome]

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        assert body is schedule.carry_out
        return self.answer(order)

    def close(self) -> None:
        self.closed += 1


class PairHost(Scripted):
    """Carries out two trials at a time."""

    def together(self, orders: Sequence[Order]) -> list[list[Order]]:
        return [list(orders[start : start + 2]) for start in range(0, len(orders), 2)]

    def carry_out_together(self, orders: Sequence[Order]) -> Iterator[Outcome]:
        for order in orders:
            yield self.answer(order)


class RecordingWatcher(Silent):
    """Records the calls to a watcher."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, tuple[str, ...]]] = []
        self.trials: list[tuple[str, int, int]] = []

    def block_started(self, number: int, trials: int, open_paths: Any) -> None:
        self.blocks.append((number, trials, tuple(open_paths)))

    def trial_ended(self, record: Any) -> None:
        self.trials.append((record.order.path.label, record.order.block, record.attempt))


@pytest.fixture(autouse=True)
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "decode", lambda _: [])
    monkeypatch.setattr(stopping, "decided", lambda *_: set())


def run(of: Study, host: Any, kept: Any, watcher: Any = None, **asked: int) -> Ending:
    return run_study(of, host, kept, watcher or Silent(), **asked)


def settles(after: int) -> Callable[..., set[tuple[str, str, str]]]:
    """Decide tap as soon as its blocks up to `after` are complete."""

    def decided(_: Study, __: object, records: Sequence[TrialRecord]) -> set[tuple[str, str, str]]:
        return {OF_TAP} if {one.order.block for one in records} >= set(range(after + 1)) else set()

    return decided


def record(path: str, block: int, message: str = "valid", attempt: int = 1, of: Study | None = None) -> TrialRecord:
    order = next(
        one for one in plan.block(of or study(), block) if (one.path.label, one.workload.label) == (path, "latency")
    )
    return TrialRecord(order, ANSWERS[message], attempt, "t", ())


def test_every_block_is_measured_in_the_order_of_the_plan_while_nothing_is_decided() -> None:
    kept, notes, host = MemoryRun(), RecordingWatcher(), Scripted()
    assert run(study(), host, kept, notes) == Ending(4, (), 1)
    planned = [order for block in range(4) for order in plan.block(study(), block)]
    assert [one.order for one in kept.records] == planned
    assert host.asked == [order.trial for order in planned] == list(range(12))
    assert notes.blocks == [(block, 3, (TAP, VETH, TWIN)) for block in range(4)]
    assert notes.trials == [(one.path.label, one.block, 1) for one in planned]
    assert host.closed == 0
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", one.started_utc) for one in kept.records)


def test_a_run_ends_once_its_comparisons_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "decided", settles(after=2))
    kept = MemoryRun()
    assert run(study(), Scripted(), kept) == Ending(3, (), 1)
    assert [len(kept.seen(block)) for block in range(4)] == [3, 3, 3, 0]


def test_the_baseline_is_measured_under_both_names_for_the_minimum_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "decided", settles(after=0))
    kept, notes = MemoryRun(), RecordingWatcher()
    assert run(study(), Scripted(), kept, notes) == Ending(2, (), 1)
    assert {path for path, _ in kept.seen(1)} == {VETH, TWIN}
    assert notes.blocks == [(0, 3, (TAP, VETH, TWIN)), (1, 2, (VETH, TWIN))]


def test_a_path_that_failed_in_two_blocks_in_a_row_is_given_up() -> None:
    kept = MemoryRun()
    failing = {(TAP, block, 1): "failed" for block in range(4)}
    assert run(study(blocks=(2, 6)), Scripted(failing), kept) == Ending(2, (OF_TAP,), 1)
    assert [len(kept.seen(block)) for block in range(3)] == [3, 3, 0]
    assert run(study(blocks=(2, 2)), Scripted(failing), MemoryRun()) == Ending(
        2, (OF_TAP,), 1
    )  # of the maximum of blocks


@pytest.mark.parametrize(
    ("failed", "hopeless"),
    [
        ({0, 1}, True),
        ({0}, False),
        ({0, 2}, False),
        ({2, 3}, True),
        ({1, 2}, False),
        ({0, 1, 2, 3}, True),
        (set(), False),
    ],
)
def test_the_last_two_blocks_decide_what_is_given_up(failed: set[int], hopeless: bool) -> None:
    last = 2 if failed == {0, 1} else 4
    records = [record(TAP, block, "failed" if block in failed else "valid") for block in range(last)]
    assert given_up(reversed(records)) == ((OF_TAP,) if hopeless else ())
    assert given_up(records[:1]) == ()


def test_a_block_with_one_valid_attempt_has_not_failed() -> None:
    records = [record(TAP, 0, "late"), record(TAP, 0, "valid", 2), record(TAP, 1, "failed")]
    assert given_up(records) == ()
    assert given_up([records[0], records[2]]) == (OF_TAP,)
    both = [record(path, block, "failed") for path in (VETH, TAP) for block in (0, 1)]
    assert given_up(both) == (OF_TAP, (VETH, "latency", SETTING))  # sorted


def test_a_launch_that_timed_out_is_repeated_once_after_the_block() -> None:
    kept, notes = MemoryRun(), RecordingWatcher()
    script = {(TAP, 0, 1): "late", (VETH, 1, 1): "late", (VETH, 1, 2): "late", (TWIN, 1, 1): "failed"}
    run(study(), Scripted(script), kept, notes)
    assert sorted(kept.seen(0)[:3]) == [(TAP, 1), (VETH, 1), (TWIN, 1)]
    assert kept.seen(0)[3:] == [(TAP, 2)]
    assert kept.seen(1)[3:] == [(VETH, 2)]
    assert len(kept.seen(2)) == 3
    assert (TAP, 0, 2) in notes.trials
    assert notes.trials.count((TAP, 0, 2)) == 1
    assert [one.attempt for one in kept.records if one.order.path.label == VETH and not one.valid] == [1, 2]


def test_a_second_attempt_counts_as_the_first_would_have() -> None:
    late = {(TAP, block, 1): "late" for block in range(4)}
    assert run(study(), Scripted(late), MemoryRun()) == Ending(4, (), 1)
    done = [record(VETH, 0), record(TWIN, 0), record(TAP, 0, "late"), record(TAP, 0, "late", 2)]
    kept = MemoryRun(done)
    run(study(), Scripted(), kept)
    assert len(kept.seen(0)) == 4  # there is no third


def test_a_run_continues_where_its_records_end() -> None:
    done = [record(VETH, 0), record(TAP, 0, "late"), record(TWIN, 0, "failed")]
    kept, notes = MemoryRun(done), RecordingWatcher()
    assert run(study(), Scripted(), kept, notes) == Ending(4, (), 1)
    assert kept.seen(0) == [(VETH, 1), (TAP, 1), (TWIN, 1), (TAP, 2)]
    assert [number for number, _, _ in notes.blocks] == [1, 2, 3]
    kept = MemoryRun(done[:1])
    run(study(), Scripted(), kept, notes := RecordingWatcher())
    assert notes.blocks[0] == (0, 2, (TAP, VETH, TWIN))
    assert sorted(kept.seen(0)) == [(TAP, 1), (VETH, 1), (TWIN, 1)]
    whole = MemoryRun(kept.records)
    assert run(study(), Scripted(), whole, notes := RecordingWatcher()) == Ending(4, (), 1, idle=True)
    assert (whole.records, notes.blocks, notes.trials) == (kept.records, [], [])


def test_each_invocation_carries_out_one_occasion() -> None:
    kept = MemoryRun()
    of = study(blocks=(2, 3))
    assert run(of, Scripted(), kept, occasions=2) == Ending(3, (), 1)
    assert {one.order.block for one in kept.records} == {0, 1, 2}
    assert {one.outcome.facts[OCCASION] for one in kept.records} == {1}
    assert run(of, Scripted(), kept, notes := RecordingWatcher(), occasions=2) == Ending(3, (), 2)
    assert {one.order.block for one in kept.records} == set(range(6))
    assert [one.outcome.facts[OCCASION] for one in kept.records] == [1] * 9 + [2] * 9
    assert [number for number, _, _ in notes.blocks] == [3, 4, 5]
    before = list(kept.records)
    assert run(of, Scripted(), kept, occasions=2) == Ending(3, (), 2, idle=True)
    assert run(of, Scripted(), kept) == Ending(3, (), 2, idle=True)  # begun blocks count towards any number
    assert kept.records == before
    kept.records.pop()
    assert run(of, Scripted(), kept) == Ending(3, (), 2)
    assert len(kept.records) == 18


def test_an_invocation_carries_out_no_more_blocks_than_requested() -> None:
    kept = MemoryRun()
    of = study(blocks=(2, 4))
    assert run(of, Scripted(), kept, blocks=1) == Ending(1, (), 1, cut=True)
    assert {one.order.block for one in kept.records} == {0}
    kept.records.pop()  # a block left open by an interrupt counts for the next invocation
    assert run(of, Scripted(), kept, blocks=2) == Ending(2, (), 1, cut=True)
    assert run(of, Scripted(), kept, blocks=2, occasions=2) == Ending(4, (), 1), "all its blocks are complete"
    assert run(of, Scripted(), kept, blocks=3, occasions=2) == Ending(3, (), 2, cut=True)
    whole = MemoryRun()
    run(of, Scripted(), whole)
    assert sorted(one.order.trial for one in whole.records) == sorted(one.order.trial for one in kept.records)[:12]


def test_a_trial_lost_from_an_early_block_leaves_no_block_to_do_once_it_is_measured() -> None:
    kept = MemoryRun()
    of = study(blocks=(2, 4))
    run(of, Scripted(), kept)
    kept.records.remove(next(one for one in kept.records if one.order.block == 1))
    assert run(of, Scripted(), kept, blocks=1) == Ending(4, (), 1)
    kept.records = [one for one in kept.records if one.order.block not in {1, 3}]
    assert run(of, Scripted(), kept, blocks=1) == Ending(3, (), 1, cut=True)


def test_interim_looks_of_an_occasion_use_its_own_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    of = study(blocks=(2, 3))
    looked: list[set[int]] = []

    def decided(_: Study, __: object, records: Sequence[TrialRecord]) -> set[tuple[str, str, str]]:
        looked.append({one.order.block for one in records})
        return {OF_TAP} if len(looked[-1]) == 2 else set()

    monkeypatch.setattr(stopping, "decided", decided)
    kept = MemoryRun()
    assert run(of, Scripted(), kept, occasions=2) == Ending(2, (), 1)
    assert run(of, Scripted(), kept, occasions=2) == Ending(2, (), 2)
    assert looked == [set(), {0}, {0, 1}] * 2 + [set(), {3}, {3, 4}]
    failing = {(TAP, block, 1): "failed" for block in (0, 1, 3)}
    kept = MemoryRun()
    monkeypatch.setattr(stopping, "decided", lambda *_: set())
    assert run(of, Scripted(failing), kept, occasions=2).given_up == (OF_TAP,)
    assert run(of, Scripted(failing), kept, occasions=2).given_up == ()  # of its own blocks one failed
    assert len(kept.seen(3)) == 3


MORE = """
[[workload]]
name = "allreduce"
operation = "allreduce"
sizes = [8]
iterations = 50
warmup = 5
"""


def test_the_baseline_is_measured_only_if_something_is_compared_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of = study(MORE)
    monkeypatch.setattr(stopping, "decided", lambda *_: {OF_TAP})
    rest = {(path, "allreduce", SETTING) for path in ALL}
    past = [record(path, 0, of=of) for path in (VETH, TAP)]
    assert open_combinations(of, MemoryRun(), past, before_block=1) == rest  # type: ignore[arg-type] # a run in memory
    hopeless = [record(VETH, block, "failed", of=of) for block in (0, 1)]
    monkeypatch.setattr(stopping, "decided", lambda *_: set())
    found = open_combinations(of, MemoryRun(), hopeless, before_block=2)  # type: ignore[arg-type]
    every = {(path, name, SETTING) for path in ALL for name in ("latency", "allreduce")}
    assert found == every - {(VETH, "latency", SETTING)}
    assert open_combinations(of, MemoryRun(), hopeless, before_block=1) == every  # type: ignore[arg-type] # judged by block 0
    nothing = {(TAP, name, SETTING) for name in ("latency", "allreduce")}
    monkeypatch.setattr(stopping, "decided", lambda *_: nothing)
    for block, wanted in ((0, every - nothing), (1, every - nothing), (2, set()), (4, every - nothing), (6, set())):
        assert open_combinations(of, MemoryRun(), [], before_block=block) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("slots", [2, 3])
def test_a_host_with_slots_measures_side_by_side(slots: int) -> None:
    kept, host = MemoryRun(), Scripted({(TAP, 0, 1): "late"}, slots=slots)
    assert run(study(), host, kept) == Ending(4, (), 1)
    assert sorted(one.order.trial for one in kept.records) == sorted([*range(12), *host.asked[3:4]])
    assert kept.seen(0)[3:] == [(TAP, 2)]
    assert host.closed == 0


def test_no_more_trials_run_at_once_than_the_host_has_slots() -> None:
    under_way: list[int] = []

    class Counting(Scripted):
        now = 0

        def answer(self, order: Order) -> Outcome:
            self.now += 1
            under_way.append(self.now)
            found = super().answer(order)
            self.now -= 1
            return found

    run(study(), Counting(slots=2), MemoryRun())
    assert max(under_way) <= 2


@pytest.mark.parametrize(("slots", "closed"), [(1, 0), (2, 1)])
def test_an_error_of_the_host_is_raised_with_every_finished_trial_kept(slots: int, closed: int) -> None:
    kept, host = MemoryRun(), Scripted({(TAP, 1, 1): "boom"}, slots=slots)
    with pytest.raises(OSError, match="the host is gone"):
        run(study(), host, kept)
    assert len(kept.seen(0)) == 3
    assert (TAP, 1) not in kept.seen(1)
    assert host.closed == closed


@pytest.mark.parametrize("slots", [1, 2])
def test_groups_are_carried_out_together(slots: int) -> None:
    kept, host = MemoryRun(), PairHost({(TAP, 0, 1): "late"}, slots=slots)
    assert run(study(), host, kept) == Ending(4, (), 1)
    assert kept.seen(0)[3:] == [(TAP, 2)]
    assert len(kept.records) == 13
    for one in kept.records:
        assert one.valid != ((one.order.path.label, one.order.block, one.attempt) == (TAP, 0, 1))


@pytest.mark.parametrize("error", [TrialError("torn", hint="h"), ForeignFileError("torn", hint="h")])
def test_a_trial_whose_samples_cannot_be_read_is_kept_as_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(_: Outcome) -> list[object]:
        raise error

    monkeypatch.setattr(schedule, "decode", torn)
    kept: Any = MemoryRun()
    outcome = replace(ANSWERS["valid"], facts={"a": 1}, counters={"c": 2}, files={"f": b""}, launch_argv=("x",))
    found = schedule.keep(kept, record(TAP, 0).order, outcome, 2, "then")
    assert found.outcome == replace(outcome, status=TrialStatus.FAILED, reason="torn", hint="h", files={})
    assert (found.attempt, found.started_utc) == (2, "then")
    failed = schedule.keep(kept, record(TAP, 0).order, ANSWERS["failed"], 1, "then")
    assert failed.outcome == ANSWERS["failed"]  # its samples are not decoded


def test_a_trial_records_which_of_its_medians_equal_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "timers_of", lambda kind, cells, facts: {"timer.x": f"{kind} {cells} {facts}"})
    kept: Any = MemoryRun()
    found = schedule.keep(kept, record(TAP, 0).order, replace(ANSWERS["valid"], facts={"a": 1}), 1, "then")
    assert found.outcome.facts == {"a": 1, "timer.x": "engine [] {'a': 1}"}


def test_the_time_of_a_record_has_no_fraction_and_its_zone() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", utc_now())


def test_a_trial_of_another_plan_does_not_count_as_done() -> None:
    """A version that draws its blocks in another order would skip trials that have another number there."""
    kept = MemoryRun()
    run_study(study(), Scripted(), kept, RecordingWatcher(), blocks=1)  # type: ignore[arg-type]
    one, other = kept.records[:2]
    kept.records[0] = replace(one, order=replace(one.order, path=other.order.path))
    with pytest.raises(ForeignFileError, match=f"trial {one.order.trial} of r is not the one that is planned"):
        run_study(study(), Scripted(), kept, RecordingWatcher())  # type: ignore[arg-type]


def test_fresh_blocks_of_a_gate_are_not_resumed_as_a_run() -> None:
    """The study's own blocks were added to them, after which they counted as later occasions."""
    kept = MemoryRun()
    fresh = {"number": 4, "wanted": {OF_TAP}, "records": []}
    schedule.run_block(study(), Scripted(), kept, RecordingWatcher(), **fresh)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="r holds fresh blocks of another run") as refused:
        run_study(study(), Scripted(), kept, RecordingWatcher())  # type: ignore[arg-type]
    assert refused.value.hint == "repeat that gate with --out r, or begin a new run"
    assert {one.order.block for one in kept.records} == {4}


def test_trials_record_a_version_other_than_the_runs_first() -> None:
    for version, recorded in ((nearmetal.__version__, None), ("0.0.9", nearmetal.__version__)):
        kept = MemoryRun(version=version)
        run_study(study(), Scripted(), kept, RecordingWatcher(), blocks=1)  # type: ignore[arg-type]
        assert {one.outcome.facts.get("nearmetal.version") for one in kept.records} == {recorded}


# ---- workloads that share a launch ----

SHARED_STUDY = """
[[workload]]
name = "paced"
operation = "latency"
sizes = [8]
iterations = 64
warmup = 8
pace = "random"
"""


class Launches(Scripted):
    """Records what was launched together, and gives each trial of a launch a file that names it."""

    def __init__(self, script: dict[tuple[str, int, int], str] | None = None) -> None:
        super().__init__(script)
        self.launched: list[list[str]] = []

    def answer(self, order: Order) -> Outcome:
        self.launched.append([one.workload.label for one in order.of_launch])
        named = {numbered("samples", at): one.workload.label.encode() for at, one in enumerate(order.of_launch)}
        return replace(super().answer(order), files=named, elapsed_ns=6_000)


def shared_study() -> Study:
    found = study(SHARED_STUDY)
    return found.model_copy(update={"trials": found.trials.model_copy(update={"share_launches": True})})


def test_workloads_that_share_a_launch_have_a_trial_each_with_its_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(schedule, "decode", lambda outcome: read.append(outcome.files["samples"]) or [])
    kept, host = MemoryRun(), Launches()
    run(shared_study(), host, kept, blocks=1)
    assert host.launched == [["latency", "paced"]] * 3  # in the order of the study, whatever that of the block
    planned = {order.trial: order for order in plan.block(shared_study(), 0)}
    assert {one.order.trial: one.order for one in kept.records} == planned
    assert [one.order.workload.label.encode() for one in kept.records] == read
    assert {one.outcome.facts[SHARED] for one in kept.records} == {"latency, paced"}
    assert sum(map(own_ns, kept.records)) == 3 * 6_000


def test_a_launch_that_fails_is_repeated_for_all_its_trials() -> None:
    kept, host = MemoryRun(), Launches({(TAP, 0, 1): "late"})
    run(shared_study(), host, kept, blocks=1)
    assert [one.attempt for one in kept.records if one.order.path.label == TAP] == [1, 1, 2, 2]
    assert host.launched == [["latency", "paced"]] * 4


def test_what_shares_a_launch_is_measured_until_all_of_it_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "decided", settles(after=0))
    kept, host = MemoryRun(), Launches()
    assert run(shared_study(), host, kept).blocks == 4
    assert host.launched == [["latency", "paced"]] * 12


def test_a_trial_that_is_missing_of_a_launch_is_measured_by_itself() -> None:
    kept, host = MemoryRun(), Launches()
    run(shared_study(), host, kept, blocks=1)
    lost = kept.records.pop()
    host.launched.clear()
    run(shared_study(), host, kept, blocks=1)
    assert host.launched[0] == [lost.order.workload.label]
    assert SHARED not in next(one for one in kept.records if one.order == lost.order).outcome.facts


@pytest.mark.parametrize(
    "more", ["ranks = 4", "placement = [1, 0]", 'progress = "blocking"', "options = { waterfall = true }"]
)
def test_workloads_that_differ_in_more_than_what_is_measured_have_launches_of_their_own(more: str) -> None:
    found = study(SHARED_STUDY.replace('operation = "latency"', f'operation = "latency"\n{more}'))
    alone = found.model_copy(update={"trials": found.trials.model_copy(update={"share_launches": True})})
    planned = plan.block(alone, 0)
    assert plan.by_launch(alone, planned) == planned


def test_an_order_for_several_trials_travels_whole() -> None:
    launch = plan.by_launch(shared_study(), plan.block(shared_study(), 0))[0]
    back = Order.from_json(launch.to_json())
    assert (back, back.of_launch, back.timeout_s) == (
        launch,
        launch.of_launch,
        sum(o.timeout_s for o in back.of_launch),
    )
    assert all(type(one) is Order for one in back.of_launch)
    with pytest.raises(ForeignFileError, match="lacks or misnames"):
        Order.from_json(launch.to_json().replace('"then": [{', '"then": [{"odd": 1, '))


def test_a_launch_has_at_most_as_many_workloads_as_the_engine_measures() -> None:
    many = "".join(SHARED_STUDY.replace("paced", f"paced{number}") for number in range(plan.MOST_IN_LAUNCH))
    found = study(many)
    shared = found.model_copy(update={"trials": found.trials.model_copy(update={"share_launches": True})})
    sizes = [len(launch.of_launch) for launch in plan.by_launch(shared, plan.block(shared, 0))]
    assert sorted(sizes) == [1] * 3 + [plan.MOST_IN_LAUNCH] * 3
    found_in_c = re.search(r"PARTS_MAX = (\d+)", (source_dir("bench") / "main.c").read_text())
    assert found_in_c
    assert int(found_in_c[1]) == plan.MOST_IN_LAUNCH
