"""Programs that would crash the simulator, never end or take all memory: each ends, or is refused by name."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.models import Distribution
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import BudgetError, simulate, simulate_launches
from nearmetal.predict.trace import Call, CallFlag, CallKind, DoCall, DoGap, Repeat, Trace
from tests.unit.test_simulate import MACHINE, Placement, path, program, recv, run_ns, send, traced

INTERRUPTED = """
import signal, sys
from nearmetal.predict.schedule import Schedule
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import DoGap, Repeat
from tests.unit.test_simulate import MACHINE, Distribution, Placement, program

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
endless = Repeat(1 << 29, (Repeat(1 << 29, (DoGap(0),)),))
print("replaying", flush=True)
schedule = Schedule(2, (program([], [endless], gaps=(0,)),), (Distribution((0.0,), (0,)),))
simulate_launches([schedule], [MACHINE], Placement.block(2, 1), replicas=int(sys.argv[1]), threads=2)
"""


@pytest.mark.parametrize("request_id", [0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFC, 1 << 31])
def test_large_request_numbers_take_no_memory(request_id: int) -> None:
    sends = (
        Call(CallKind.SEND, CallFlag.NONBLOCKING, peer=1, message_bytes=8, request=request_id),
        Call(CallKind.WAIT, request=0),
    )
    receives = (Call(CallKind.RECV, peer=0, message_bytes=8),)
    waits = replace(traced(0, sends, (DoCall(0), DoCall(1))), lists=((request_id,),))
    schedule = schedule_from_trace(Trace((waits, traced(1, receives, (DoCall(0),)))))
    assert [one.slots for one in schedule.programs] == [1, 0]
    assert schedule.programs[0].slot_sets == ((0,),)
    assert simulate(schedule, MACHINE, Placement.block(2, 1)).messages == 1


def test_further_replicas_of_a_short_program_take_no_new_memory() -> None:
    """Each cleared 4 to 8 MiB, which took up to 50 times as long as its replay."""
    op = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    schedule = Schedule(4, (Program((DoCall(0),), (op,), (Comm(0, size=4),)),))

    def pages(replicas: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        simulate_launches([schedule], [MACHINE], Placement.block(4, 1), replicas=replicas, threads=1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages(1000)
    assert pages(1000) < 500


def test_a_freed_receive_still_matches_its_message() -> None:
    # Irecv, MPI_Request_free, Irecv: the second uses the request of the first, which is still posted.
    twice = [recv(0, tag=1, nonblocking=True), recv(0, tag=2, nonblocking=True), Op(OpKind.WAIT, slots=0)]
    receiver = program(twice, slots=1, slot_sets=((0,),))
    assert run_ns(Schedule(2, (program([send(1, tag=1), send(1, tag=2)]), receiver))) > 0
    reversed_order = program([send(1, tag=2), send(1, tag=1)])
    assert run_ns(Schedule(2, (reversed_order, receiver))) > 0


@pytest.mark.parametrize("eager", [10, 10_000])
def test_a_request_freed_in_flight_does_not_complete_its_successor(eager: int) -> None:
    machine = replace(MACHINE, inter=path(eager=eager))
    freed = [send(1, tag=1, nonblocking=True), send(1, tag=2, nonblocking=True), Op(OpKind.WAIT, slots=0)]
    sender = program(freed, slots=1, slot_sets=((0,),))
    steps = [DoCall(0), DoGap(0), DoCall(1)]
    late = Schedule(
        2, (sender, program([recv(0, tag=1), recv(0, tag=2)], steps, gaps=(0,))), (Distribution((0.0,), (10**9,)),)
    )
    found = simulate_launches([late], [machine], Placement.block(2, 1), threads=1, keep_marks=True)
    assert found.messages == 2
    both = [recv(0, tag=tag, nonblocking=True) for tag in (1, 2)]
    receiver = program([*both, Op(OpKind.WAIT, slots=0)], slots=1, slot_sets=((0,),))
    assert run_ns(Schedule(2, (sender, receiver)), machine) > 0


def test_freeing_a_request_repeatedly_terminates() -> None:
    body = (Repeat(1000, (DoCall(0),)),)
    receiver = program([recv(0, nonblocking=True)], [*body], slots=1)
    assert run_ns(Schedule(2, (program([send(1)], [*body]), receiver))) > 0


def test_a_replay_with_too_many_steps_names_rank_and_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMETAL_MAX_STEPS", "5000")
    loop = [Repeat(1 << 29, (Repeat(1 << 29, (DoCall(0),)),))]
    schedule = Schedule(2, (program([send(1, tag=5)], loop), program([recv(0, tag=5)], loop)))
    with pytest.raises(BudgetError, match=r"steps, rank [01] in (send with 1|recv with 0), tag 5") as seen:
        run_ns(schedule)
    assert "NEARMETAL_MAX_STEPS=10000" in seen.value.hint
    monkeypatch.setenv("NEARMETAL_MAX_STEPS", "many")
    with pytest.raises(BadInputError, match="NEARMETAL_MAX_STEPS='many'"):
        run_ns(schedule)


def test_memory_of_a_replay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMETAL_MAX_MEMORY", str(64 << 20))
    flood = program([send(1, 0, nonblocking=True)], [Repeat(1 << 29, (DoCall(0),))], slots=1)
    with pytest.raises(BudgetError, match=r"memory than its limit, rank 0 in send with 1") as seen:
        run_ns(Schedule(2, (flood, program([], []))))
    assert "NEARMETAL_MAX_MEMORY" in seen.value.hint
    with pytest.raises(BudgetError, match="memory"):
        run_ns(Schedule(2, (replace(program([], []), slots=0xFFFFFFFF),)))


def test_a_simulated_run_of_weeks_is_refused_instead_of_overflowing() -> None:
    gaps = (Distribution((0.0,), (1 << 57,)),)
    with pytest.raises(BudgetError, match="13 days"):
        run_ns(Schedule(2, (program([], [Repeat(100, (DoGap(0),))], gaps=(0,)),), gaps))


@pytest.mark.parametrize(
    "odd",
    [
        program([], [Repeat(1 << 30, (DoGap(0),))], gaps=(0,)),
        program([send(1, nonblocking=True, slot=1)], slots=1),
        program([send(1, 1 << 63)]),
        program([send(1, 1 << 64)]),
        program([send(0, rule=Peer.TRANSPOSE)]),
        program([send(3, rule=Peer.TRANSPOSE)]),
        program([send(2, rule=Peer.CART)], dims=(2,), periods=(0,)),
        program([send(1, rule=Peer.CART)], dims=(0,), periods=(0,)),
        program([send(1, rule=Peer.CART)], dims=(1 << 16, 1 << 16), periods=(0, 0)),
    ],
)
def test_programs_that_cannot_be_simulated_are_refused(odd: Program) -> None:
    with pytest.raises(BadInputError):
        run_ns(Schedule(2, (odd,), (Distribution((0.0,), (0,)),)))


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_interrupt_ends_a_replay(replicas: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(replicas)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as replay:
        assert replay.stdout is not None
        try:
            assert replay.stdout.readline() == "replaying\n"
            os.kill(replay.pid, signal.SIGINT)
            _, stderr = replay.communicate(timeout=600)
        finally:
            replay.kill()
    assert replay.returncode != 0
    assert "KeyboardInterrupt" in stderr
