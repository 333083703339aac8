"""The C++ simulator and its slow Python twin agree to the picosecond on random programs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nearmetal.predict import _sim
from nearmetal.predict.models import (
    UNBOUNDED,
    Cores,
    Distribution,
    Machine,
    MeasuredCollective,
    PathModel,
    Progress,
    Recorded,
    Segment,
)
from nearmetal.predict.native import Placement, native_job
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.trace import DoCall, DoGap, Repeat, Step

from .simulator_twin import Twin

if TYPE_CHECKING:
    from collections.abc import Callable

OUTCOMES = ("finished", "deadlock", "unmatched")
COMMS = 2

durations = st.integers(0, 3_000_000)
residuals = st.none() | st.builds(
    lambda values: Distribution((0.0, 0.5, 0.9), tuple(sorted(values))),
    st.lists(st.integers(-500_000, 20_000_000), min_size=3, max_size=3),
)
segments = st.builds(
    Segment, st.just(UNBOUNDED), durations, durations, durations, durations, st.integers(0, 10**6),
    st.integers(0, 10**6), residuals, st.sampled_from([0, 0, 300_000]),
)  # fmt: skip
rising = st.lists(st.integers(1, 20_000_000), min_size=1, max_size=3, unique=True).map(sorted)
cold = st.just(()) | st.builds(lambda gaps, more: tuple(zip(gaps, more, strict=False)), rising, rising)
paths = st.builds(
    lambda small, large, eager, copy, cold, interrupt, work, sent, received, fetched, crossing, trailing, single: (
        PathModel(
            (Segment(500, *_fields(small)), large),
            eager,
            copy,
            cold=cold,
            interrupt_fs_per_byte=interrupt,
            work_ps=work,
            send_work_ps=sent,
            receive_work_ps=received,
            fetched=fetched,
            crossing_ps=crossing,
            trailing_ps=trailing,
            single_copy=(single, copy // 3),
        )
    ),
    segments,
    segments,
    st.sampled_from([0, 400, 2000, UNBOUNDED]),
    st.sampled_from([0, 0, 500_000, 3_000_000]),
    cold,
    st.sampled_from([0, 0, 1_000_000, 9_000_000]),
    st.sampled_from([(), (), ((0, 50_000),), ((0, 40_000), (300, 900_000), (2000, 900_000)), ((700, 4_000_000),)]),
    st.sampled_from([(), (), ((0, 5_000_000),), ((0, 40_000), (600, 2_000_000))]),
    st.sampled_from([(), (), ((0, 7_000_000),), ((0, 60_000), (800, 1_000_000))]),
    st.booleans(),
    st.sampled_from([(), ((1, 70_000), (600, 3_000_000), (1000, 500_000))]),
    st.sampled_from([(), ((8, 2_000_000),), ((1, 9_000_000), (700, 60_000))]),
    st.sampled_from([0, 300, 5000]),
)


def _fields(segment: Segment) -> tuple[int, int, int, int, int, int, Distribution | None, int]:
    return (
        segment.latency_ps,
        segment.send_overhead_ps,
        segment.recv_overhead_ps,
        segment.gap_ps,
        segment.latency_fs_per_byte,
        segment.fs_per_byte,
        segment.residual,
        segment.overhead_fs_per_byte,
    )


machines = st.builds(
    Machine,
    intra=paths,
    inter=paths,
    port_fs_per_byte=st.sampled_from([0, 80_000, 1_000_000]),
    port_gap_ps=st.sampled_from([0, 100_000]),
    progress=st.builds(
        Progress, blocking=st.booleans(), spin_ps=st.sampled_from([0, 10**6]), wakeup_ps=st.just(4 * 10**6)
    ),
)


def cancel(how: object, do: Callable[[Op], None], open_slots: list[int], slot: int) -> tuple[int, ...]:
    """Post a receive of a message that nobody sends, cancel it, and perhaps those that may have come."""
    if not how:
        return ()
    do(Op(OpKind.RECV, nonblocking=True, tag=9, slot=slot))
    do(Op(OpKind.CANCEL, slots=1))
    return tuple(open_slots[0 if how == "all" else -1 :])


@st.composite
def schedules(draw: Callable[..., object]) -> Schedule:
    """Messages in one global order, so that most programs end; wildcards and blocking sends make some deadlock."""
    ranks = int(str(draw(st.integers(2, 4))))
    ops: list[list[Op]] = [[] for _ in range(ranks)]
    steps: list[list[Step]] = [[] for _ in range(ranks)]
    open_slots: list[list[int]] = [[] for _ in range(ranks)]

    def do(rank: int, op: Op) -> None:
        steps[rank].append(DoCall(len(ops[rank])))
        ops[rank].append(op)
        if op.nonblocking:
            open_slots[rank].append(op.slot)

    slots_used = [0] * ranks
    for _ in range(int(str(draw(st.integers(1, 8))))):
        src = int(str(draw(st.integers(0, ranks - 1))))
        dst = int(str(draw(st.integers(0, ranks - 1))))
        size = int(str(draw(st.sampled_from([0, 100, 500, 501, 1000, 5000]))))
        tag = int(str(draw(st.integers(0, 1))))
        comm = int(str(draw(st.integers(0, COMMS - 1))))
        flags = [bool(draw(st.booleans())) for _ in range(4)]
        receive = Op(
            OpKind.RECV,
            nonblocking=flags[0] or src == dst,
            comm=comm,
            peer=-1 if flags[2] else src,
            tag=-1 if flags[3] else tag,
            slot=slots_used[dst],
        )
        slots_used[dst] += receive.nonblocking
        first_gap, later_gap = (draw(st.sampled_from([None, 0, 1])) for _ in range(2))
        send = Op(
            OpKind.SEND,
            nonblocking=flags[1] or src == dst,
            synchronous=flags[0] and flags[1],
            comm=comm,
            peer=dst,
            tag=tag,
            message_bytes=size,
            slot=slots_used[src],
        )
        slots_used[src] += send.nonblocking
        if first_gap is not None:
            steps[src].append(DoGap(int(str(first_gap))))
        do(dst if flags[1] else src, receive if flags[1] else send)
        do(src if flags[1] else dst, send if flags[1] else receive)
        if later_gap is not None:
            steps[dst].append(DoGap(int(str(later_gap))))
    shift = draw(st.none() | st.integers(0, ranks - 1))
    if shift is not None:  # a ring; with 0, messages to oneself
        by, size = int(str(shift)), int(str(draw(st.sampled_from([0, 500, 5000]))))
        for rank in range(ranks):
            to, source = (rank + by) % ranks, (rank - by) % ranks
            do(rank, Op(OpKind.SENDRECV, peer=to, tag=2, message_bytes=size, recv_peer=source, recv_tag=2))
    collective = draw(st.sampled_from(["", "BARRIER", "ALLREDUCE"]))
    size = int(str(draw(st.integers(1, 1000)))) if collective == "ALLREDUCE" else 0
    repeat = int(str(draw(st.integers(1, 3))))
    programs = []
    for rank in range(ranks):
        how = draw(st.sampled_from(["", "", "", "alone", "all"]))
        cancelled = cancel(how, partial(do, rank), open_slots[rank], slots_used[rank])
        slots_used[rank] += bool(how)
        wait = Op(OpKind.WAIT, slots=0)
        do(rank, wait)
        if collective:
            do(rank, Op(OpKind.COLLECTIVE, comm=1, collective=Collective[str(collective)], message_bytes=size))
            steps[rank].append(DoGap(rank % 2))
        programs.append(
            Program(
                (Repeat(repeat, tuple(steps[rank])),),
                tuple(ops[rank]),
                tuple(Comm(context, size=ranks) for context in range(COMMS)),
                gaps=(0, 1),
                slot_sets=(tuple(open_slots[rank]), cancelled),
                slots=slots_used[rank],
            )
        )
    gap = Distribution((0.0, 0.5, 0.99), (0, 5_000_000, 50_000_000))
    recorded = Recorded(bytes.fromhex("0500a00f0030"))  # 5, 4000 and 65,536 ns
    return Schedule(ranks, tuple(programs), (gap, recorded))


def as_measured(machine: Machine, placement: Placement, tables: list[Distribution]) -> Machine:
    nodes = tuple(map(int, placement.host_of))
    barrier = MeasuredCollective("barrier", nodes, ((0, tables[0]),))
    return replace(
        machine,
        measured=(barrier, MeasuredCollective("allreduce", nodes, tuple(zip((1, 500, 1000), tables, strict=True)))),
    )


times = st.lists(
    st.lists(st.integers(0, 10**8), min_size=2, max_size=2).map(
        lambda ends: Distribution((0.0, 0.9), tuple(sorted(ends)))
    ),
    min_size=3,
    max_size=3,
)


@settings(deadline=None, max_examples=300)
@given(schedules(), machines, st.integers(0, 2**64 - 1), st.data())
def test_the_simulator_equals_its_twin(schedule: Schedule, machine: Machine, seed: int, data: st.DataObject) -> None:
    hosts = data.draw(st.lists(st.integers(0, 2), min_size=schedule.ranks, max_size=schedule.ranks))
    placement = Placement.of_hosts(np.array(hosts, dtype=np.uint32))
    machine = as_measured(machine, placement, data.draw(times))
    native = _sim.simulate(native_job(schedule, machine, placement), seed, 0, 1, 1, False)[0]
    outcome, end_ps = Twin(schedule, machine, placement, seed).run()
    assert OUTCOMES[native.outcome] == outcome
    assert native.makespan_ps == end_ps


def test_philox_gives_the_published_numbers() -> None:
    # Random123 known-answer vectors for philox4x32-10 (kat_vectors).
    assert _sim.philox([0, 0, 0, 0], 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert _sim.philox([ones] * 4, 2**64 - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@settings(max_examples=200, deadline=None)
@given(
    schedules(),
    machines,
    st.integers(1, 2),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from((None, 0, 300_000, 7_000_000)),
)
def test_sharing_cores_takes_time_and_loses_no_message(
    schedule: Schedule, machine: Machine, cores: int, grouped: bool, per_node: int, lead_ps: int | None
) -> None:
    """Without wildcards and blocking sends beyond the eager limit, time does not decide which rank waits for which."""
    placement = Placement.block(schedule.ranks, per_node)
    machine = as_measured(machine, placement, [Distribution((0.0,), (size * 10**6,)) for size in (1, 2, 3)])
    shared_by = Cores(cores, one_computer=True, shared_by_node=grouped, slice_ps=5_000_000, switch_ps=100_000)
    crowded = replace(machine, cores=replace(shared_by, lead_ps=lead_ps))
    free = _sim.simulate(native_job(schedule, machine, placement), 1, 0, 1, 1, False)[0]
    shared = _sim.simulate(native_job(schedule, crowded, placement), 1, 0, 1, 1, False)[0]
    wild = any(op.peer < 0 or op.recv_peer < 0 for program in schedule.programs for op in program.ops if op.kind < 2)
    if free.outcome == 0 and not wild:
        assert shared.outcome == 0
        assert (shared.messages, shared.bytes) == (free.messages, free.bytes)


def test_a_measured_collective_ends_its_duration_after_the_last_rank_arrives() -> None:
    """Between two measured sizes it is interpolated; with another placement ranks exchange the algorithm's messages."""
    way = PathModel((Segment(UNBOUNDED, 1_000_000),))
    measured = MeasuredCollective(
        "allreduce", (0, 1), ((8, Distribution((0.0,), (10_000_000,))), (16, Distribution((0.0,), (20_000_000,))))
    )
    machine = Machine(intra=way, inter=way, measured=(measured,))
    gaps = tuple(Distribution((0.0,), (us * 10**6,)) for us in (30, 70))

    def end_us(
        size: int, hosts: list[int], *, nonblocking: bool = False, members: tuple[int, ...] = ()
    ) -> tuple[float, int]:
        op = Op(OpKind.COLLECTIVE, nonblocking, collective=Collective.ALLREDUCE, message_bytes=size)
        ops = (op, Op(OpKind.WAIT, slots=0))
        steps = (DoGap(0), DoCall(0), DoCall(1))
        comms = [Comm(0, members, members.index(rank)) if members else Comm(0, size=2) for rank in range(2)]
        programs = tuple(
            Program(steps, ops, (comms[rank],), gaps=(rank,), slot_sets=((0,),), slots=1) for rank in range(2)
        )
        placement = Placement.of_hosts(np.array(hosts, np.uint32))
        job = native_job(Schedule(2, programs, gaps), machine, placement)
        found = _sim.simulate(job, 1, 0, 1, 1, False)[0]
        return found.makespan_ps / 1e6, found.collectives_as_measured

    assert end_us(8, [0, 1]) == end_us(8, [5, 3]) == (80, 1)  # nodes have other numbers but are shared in the same way
    assert end_us(12, [0, 1]) == (85, 1)
    by_messages = (71, 0)
    assert end_us(12, [0, 0]) == end_us(17, [0, 1]) == end_us(7, [0, 1]) == by_messages
    assert end_us(12, [0, 1], nonblocking=True) == (72, 0)  # there and back, one after the other
    assert end_us(12, [0, 1], members=(1, 0)) == by_messages  # measured with ranks in the order of the nodes
