"""Messages above the eager limit: what they cost either end, which end copies them, and when their sender is done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearmetal.predict.fit import Windows, fit_path
from nearmetal.predict.models import UNBOUNDED, Cores, Distribution, Machine, PathModel, Segment
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import simulate, simulate_launches
from nearmetal.predict.trace import DoCall, DoGap, Repeat, Step

from .simulated import MACHINE, NS, US, path, program, recv, run_ns, send

ONE_WAY_NS = {8: 3900, 64: 3900, 512: 4700, 4096: 12_300, 8192: 17_200, 65_536: 85_700, 1 << 20: 1_257_000}
"""Inside a node of one processor, in the lab."""
GAP_NS = {8: 1800, 512: 2300, 8192: 27_000, 65_536: 164_000}
EAGER = 4032


def fitted(both_ways: dict[int, int]) -> PathModel:
    """Fit a path inside a node with these gaps between messages and the measured one-way time."""
    round_trips = {size: [np.full(400, 2 * ns)] for size, ns in ONE_WAY_NS.items()}
    one_way, both = (
        [Windows(size, 64, 1, np.full(50, 64 * ns)) for size, ns in gaps.items()] for gaps in (GAP_NS, both_ways)
    )
    return fit_path(round_trips, one_way, EAGER, both, one_processor=True)


BY_ONE_END = {8: 3400, 512: 4800, 8192: 29_000, 65_536: 167_000}
BY_BOTH = {8: 3400, 512: 4800, 8192: 54_000, 65_536: 328_000}


def round_trip_ns(machine: Machine, size: int, per_host: int = 2) -> float:
    ops = (Op(OpKind.SEND, peer=1, message_bytes=size), Op(OpKind.RECV, peer=1, message_bytes=size))
    there = Program((Repeat(20, (DoCall(0), DoCall(1))),), ops, (Comm(0, size=2),))
    back = Program((Repeat(20, (DoCall(1), DoCall(0))),), tuple(replace(op, peer=0) for op in ops), (Comm(0, size=2),))
    return float(simulate(Schedule(2, (there, back)), machine, Placement.block(2, per_host)).makespan_ns[0]) / 20


@pytest.mark.parametrize("size", ONE_WAY_NS)
@pytest.mark.parametrize("both_ways", [BY_ONE_END, BY_BOTH])
def test_a_replayed_ping_pong_inside_a_node_takes_as_long_as_measured(both_ways: dict[int, int], size: int) -> None:
    """The handshake remained in overheads that included all of t, and the sender was done only after its data had come:
    64 KiB took 2.5 times as long as measured if the ranks shared a processor, and twice as long if not.
    """
    model = fitted(both_ways)
    for cores in (None, Cores(1, switch_ps=0)):
        machine = Machine(model, model, cores=cores)
        assert round_trip_ns(machine, size) == pytest.approx(2 * ONE_WAY_NS[size], rel=0.01)


BULK = Segment(UNBOUNDED, 100 * NS, 4000 * NS, 0, 50 * NS, latency_fs_per_byte=100_000, fs_per_byte=1_000_000)
STREAMED = PathModel((Segment(999, 1000 * NS, 100 * NS, 200 * NS, 50 * NS), BULK), eager_up_to_bytes=999)
"""A path whose streams take longer by the byte than a message of its own, as that of a socket does."""


@pytest.mark.parametrize("port_fs_per_byte", [0, 1_000_000])
@pytest.mark.parametrize("copy_fs_per_byte", [0, 600_000])
def test_a_ping_pong_with_a_handshake_waits_for_no_message_that_has_arrived(
    port_fs_per_byte: int, copy_fs_per_byte: int
) -> None:
    """What the sender of 10,000 B does for 4 us is part of the 10 us that they take in a stream, and the answer's
    request meets an idle sender: 256 KiB over a pair of virtual interfaces took 1.8 times as long as measured.
    """
    inter = replace(STREAMED, copy_fs_per_byte=copy_fs_per_byte)
    machine = Machine(inter, inter, port_fs_per_byte=port_fs_per_byte)
    ready, data = (100 + 1000 + 200) + (1000 + 200), 4000 + 100 + 1000
    assert round_trip_ns(machine, 10_000, per_host=1) == pytest.approx(2 * (ready + data), abs=1)


def test_a_send_ends_when_its_last_byte_has_left() -> None:
    """Its 1000 ns of bytes began with the 100 that the process takes for them."""
    schedule = Schedule(2, (program([send(1), Op(OpKind.MARK, tag=7)]), program([recv(0)])))
    found = simulate_launches([schedule], [Machine(None, path(eager=999))], Placement.block(2, 1), keep_marks=True)
    granted = 100 + (1000 + 200) + (1000 + 200)
    assert found.marks[0][:, 2].tolist() == [(granted + 100 + 900) * NS]


def test_a_request_does_not_wait_for_data_that_left_before() -> None:
    """The second data of a sender leave 10.05 us after the first, not a handshake later."""
    schedule = Schedule(2, (program([send(1, 10_000)] * 2), program([recv(0, 10_000)] * 2)))
    first = (100 + 1000 + 200) + (1000 + 200) + 4000
    assert run_ns(schedule, Machine(STREAMED, STREAMED)) == first + 10_050 + (100 + 1000)


def bytes_in_a_row(count: int, copy_fs_per_byte: int = 0, **machine: int) -> int:
    """Return when two ranks have the 10,000 B each that rank 0 sends to them in turn, `count` times."""
    ops = [send(1 + slot % 2, 10_000, nonblocking=True, slot=slot) for slot in range(count)]
    wait = Op(OpKind.WAIT, slots=0)
    sender = program([*ops, wait], ranks=3, slot_sets=(tuple(range(count)),), slots=count)
    receiver = program([recv(0, 10_000)] * (count // 2), ranks=3)
    inter = replace(STREAMED, eager_up_to_bytes=UNBOUNDED, copy_fs_per_byte=copy_fs_per_byte)
    return run_ns(Schedule(3, (sender, receiver, receiver)), Machine(inter, inter, **machine))


@pytest.mark.parametrize(
    ("machine", "each_ns"),
    [({}, 10_050), ({"port_fs_per_byte": 2_000_000}, 20_000), ({"copy_fs_per_byte": 2_000_000}, 20_000)],
)
def test_messages_in_a_row_still_take_the_time_of_a_stream(machine: dict[str, int], each_ns: int) -> None:
    """The work on each is part of its time in the stream, not beside it."""
    six, ten = (bytes_in_a_row(count, **machine) for count in (6, 10))
    assert ten == six + 4 * each_ns


def test_a_small_message_leaves_when_the_bulk_before_it_has() -> None:
    """It takes 50 of the process's pipe, of its own 100."""
    ops = [send(1, 10_000, nonblocking=True, slot=0), send(1, 1), Op(OpKind.WAIT, slots=0)]
    sender = program(ops, slot_sets=((0,),), slots=1)
    inter = replace(STREAMED, eager_up_to_bytes=UNBOUNDED)
    took = run_ns(Schedule(2, (sender, program([recv(0, 10_000), recv(0, 1)]))), Machine(inter, inter))
    assert took == 10_050 + 50 + 1000 + 200


def test_bidirectional_streams_show_whether_one_end_copies() -> None:
    assert fitted(BY_ONE_END).fetched
    assert not fitted(BY_BOTH).fetched
    eager = fit_path({size: [np.full(400, 2 * ns)] for size, ns in ONE_WAY_NS.items()}, one_processor=True)
    assert not eager.fetched


def late_sender(*, fetched: bool) -> list[int]:
    """Return when rank 0, which starts a send, computes for 50 us and waits, and rank 1, which receives, finish."""
    done = Op(OpKind.MARK, tag=7)
    ops = [send(1, nonblocking=True, slot=0), Op(OpKind.WAIT, slots=0), done]
    steps: list[Step] = [DoCall(0), DoGap(0), DoCall(1), DoCall(2)]
    sender = program(ops, steps, gaps=(0,), slot_sets=((0,),), slots=1)
    intra = replace(path(latency=100, eager=999), fetched=fetched)
    schedule = Schedule(2, (sender, program([recv(0), done])), (Distribution((0.0,), (50 * US,)),))
    found = simulate_launches([schedule], [replace(MACHINE, intra=intra)], Placement.block(2, 2), keep_marks=True)
    return [int(time) // NS for _, _, time in sorted(found.marks[0].tolist())]


def test_a_receiver_that_fetches_needs_no_sender() -> None:
    """For 1000 B: the request, then L and the bytes, and the work of both ends, all done by the receiver."""
    waits, fetches = late_sender(fetched=False), late_sender(fetched=True)
    assert waits[1] == 100 + 50_000 + 200 + 100 + 100 + 1000 + 200
    assert fetches == [100 + 50_000, 100 + (100 + 200) + (100 + 1000) + (100 + 200)]


def test_a_sender_whose_data_are_fetched_is_done_when_notified() -> None:
    intra = replace(path(latency=100, eager=999), fetched=True)
    schedule = Schedule(2, (program([send(1)]), program([recv(0)])))
    received = 100 + (100 + 200) + (100 + 1000) + (100 + 200)
    assert run_ns(schedule, replace(MACHINE, intra=intra), per_host=2) == received + 100 + 200


def test_a_rank_yields_its_core_while_its_data_are_in_flight() -> None:
    """It kept the core until they had left: the other rank of its node computed afterwards instead of meanwhile."""
    gaps = (Distribution((0.0,), (800 * US,)), Distribution((0.0,), (100 * US,)))
    comm = (Comm(0, size=4),)
    waiting = Program((DoCall(0), DoGap(0)), (recv(2),), comm, (0,))  # computes 800 us from 100 us on
    answers = (recv(0, 1_000_000, nonblocking=True, slot=0), recv(3), send(1), Op(OpKind.WAIT, slots=0))
    receiver = Program(tuple(DoCall(at) for at in range(4)), answers, comm, slot_sets=((0,),), slots=1)
    sender = Program((DoGap(0), DoCall(0)), (send(2),), comm, (1,))
    schedule = Schedule(4, (program([send(2, 1_000_000)], ranks=4), waiting, receiver, sender), gaps)
    wire = replace(MACHINE, inter=path(eager=1000), cores=Cores(1, switch_ps=0))
    took = simulate(schedule, wire, Placement.of_hosts(np.array([0, 0, 1, 2], np.uint32))).makespan_ns[0]
    assert 1_000_000 < took < 1_010_000
