"""The simulator on programs small enough to work out the time by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.models import (
    Distribution,
    Machine,
    NamedMachine,
    Network,
    PathModel,
    Progress,
    Recorded,
    SharedReceiveQueue,
    Topology,
)
from nearmetal.predict.moderation import Moderation, ModerationSetting, StageSetting
from nearmetal.predict.native import Placement
from nearmetal.predict.patterns import Pattern, cubic_dims, parse_pattern, schedule_from_pattern
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule, exchange
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import DeadlockError, UnmatchedError, sensitivity, simulate, simulate_launches
from nearmetal.predict.trace import (
    Call,
    CallFlag,
    CallKind,
    DoCall,
    DoGap,
    Gap,
    RankTrace,
    Repeat,
    Step,
    Trace,
)
from tests.trace_writer import made_rank

from .simulated import MACHINE, NS, US, computing, path, ping, program, recv, run_ns, send


def test_only_the_first_message_after_computing_costs_both_ends_more() -> None:
    points = ((100 * US, 300_000), (400 * US, 900_000))
    cold = replace(MACHINE, inter=replace(MACHINE.inter, cold=points))

    def exchanges(computed_us: int, count: int, machine: Machine) -> int:
        gaps = (Distribution((0.0,), (computed_us * US,)),)
        one = [
            program([Op(OpKind.SENDRECV, peer=1 - rank, recv_peer=1 - rank, message_bytes=8)] * count, gaps=(0,))
            for rank in range(2)
        ]
        ready = tuple(replace(each, steps=(DoGap(0), *each.steps)) for each in one)
        return run_ns(Schedule(2, ready, gaps), machine)

    for computed_us, more_ns in ((0, 0), (50, 150), (100, 300), (250, 600), (400, 900), (5000, 900)):
        for count in (1, 3):
            hot_ns = exchanges(computed_us, count, MACHINE)
            assert exchanges(computed_us, count, cold) - hot_ns == 2 * more_ns, (computed_us, count)
            assert exchanges(computed_us, count, replace(cold, intra=MACHINE.inter, inter=MACHINE.inter)) == hot_ns
    with pytest.raises(BadInputError, match="does not increase"):
        replace(MACHINE.inter, cold=((100, 5), (100, 6)))


def test_marks_record_when_a_rank_reached_them_and_take_no_time() -> None:
    def marked(op: Op) -> Program:
        return program([Op(OpKind.MARK, tag=3), op, Op(OpKind.MARK, tag=4)])

    schedule = Schedule(2, (marked(send(1)), marked(recv(0))))
    found = simulate_launches([schedule], [MACHINE], Placement.block(2, 1), replicas=2, keep_marks=True)
    assert int(found.makespan_ns[0]) == run_ns(ping())
    (first, second) = found.marks
    assert first.tolist() == second.tolist()
    assert sorted(first.tolist()) == [[0, 3, 0], [0, 4, 100 * NS], [1, 3, 0], [1, 4, 2300 * NS]]
    assert simulate(schedule, MACHINE, Placement.block(2, 1)).marks == ()


def test_one_message_takes_overheads_latency_and_time_per_byte() -> None:
    assert run_ns(ping()) == 100 + 1000 + 1000 + 200


def test_the_time_of_a_rank_is_split_into_computing_overheads_and_waiting() -> None:
    gap = Distribution((0.0,), (4000 * NS,))
    sender = program([send(1)], [DoGap(0), DoCall(0)], gaps=(0,))
    found = simulate(Schedule(2, (sender, program([recv(0)])), (gap,)), MACHINE, Placement.block(2, 1))
    assert (found.rank_compute_ns, found.rank_overhead_ns) == (4000 / 2, (100 + 200) / 2)
    rendezvous = replace(MACHINE, inter=path(eager=10))
    asked = simulate(Schedule(2, (sender, program([recv(0)])), (gap,)), rendezvous, Placement.block(2, 1))
    assert asked.rank_overhead_ns == (2 * 100 + 200 + 2 * 200) / 2  # handling the request and the grant counts too


def test_overhead_per_byte_takes_the_processor_at_both_ends() -> None:
    plain = path()
    heavy = replace(plain, segments=(replace(plain.segments[0], overhead_fs_per_byte=500_000),))
    alone, loaded = (run_ns(ping(), replace(MACHINE, inter=one)) for one in (plain, heavy))
    assert loaded == alone + 2 * 500  # 1000 B at 0.5 ns each, sent and received


def test_ranks_of_one_host_use_the_intra_path() -> None:
    assert run_ns(ping(), per_host=2) == 100 + 100 + 1000 + 200


def test_two_guests_of_one_host_use_the_host_path() -> None:
    machine = replace(MACHINE, host=path(latency=500))
    placement = Placement.block(2, ranks_per_host=2, domains_per_host=2)
    assert simulate(ping(), machine, placement).makespan_ns[0] == 100 + 500 + 1000 + 200


def test_a_message_stream_is_limited_by_the_gap_per_byte() -> None:
    ten = Schedule(2, (program([send(1)], [Repeat(10, (DoCall(0),))]), program([recv(0)], [Repeat(10, (DoCall(0),))])))
    # Each message occupies the sender's port for gap + bytes = 1050 ns; the last one then travels to the receiver.
    assert run_ns(ten) == 100 + 9 * 1050 + 1000 + 1000 + 200


def test_rendezvous_needs_a_round_trip_before_the_data() -> None:
    machine = replace(MACHINE, inter=path(eager=999))
    # request (L), answered after o_r; grant (L), answered after o_r and the data's o_s; then the data.
    assert run_ns(ping(), machine) == 100 + (1000 + 200) + (1000 + 200) + 100 + 1000 + 1000 + 200


def late_receiver(async_progress: bool) -> int:
    """The receiver posts, computes 50 us, then waits; the message needs rendezvous."""
    receiver = program(
        [recv(0, nonblocking=True, slot=0), Op(OpKind.WAIT, slots=0)],
        [DoCall(0), DoGap(0), DoCall(1)],
        gaps=(0,),
        slot_sets=((0,),),
        slots=1,
    )
    gaps = (Distribution((0.0,), (50 * US,)),)
    machine = replace(MACHINE, inter=path(eager=999), progress=Progress(asynchronous=async_progress))
    return run_ns(Schedule(2, (program([send(1)]), receiver), gaps), machine)


def test_rendezvous_waits_until_the_receiver_enters_mpi() -> None:
    assert late_receiver(async_progress=False) == 50_000 + 200 + (1000 + 200 + 100) + 1000 + 1000 + 200
    assert late_receiver(async_progress=True) == 50_000 + 200


def test_a_wildcard_receive_matches_the_first_arrival() -> None:
    waits = program([recv(-1, tag=-1), recv(-1, tag=-1)], ranks=3)
    gaps = (Distribution((0.0,), (10 * US,)),)
    late = program([send(0)], [DoGap(0), DoCall(0)], ranks=3, gaps=(0,))
    assert run_ns(Schedule(3, (waits, late, program([send(0)], ranks=3)), gaps)) == 10_000 + 2300


def test_tags_and_communicators_keep_messages_apart() -> None:
    comms = (Comm(0, size=2), Comm(1, size=2))
    sends = replace(program([send(1, tag=1), send(1, tag=2), send(1, comm=1, tag=1)]), comms=comms)
    receives = replace(program([recv(0, comm=1, tag=1), recv(0, tag=2), recv(0, tag=1)]), comms=comms)
    # All have arrived when the third does; each costs its receive overhead.
    assert run_ns(Schedule(2, (sends, receives))) == 100 + 2 * 1050 + 1000 + 1000 + 3 * 200


def test_ranks_of_a_host_share_its_port() -> None:
    machine = replace(MACHINE, inter=path(gap=0, fs=500_000), port_fs_per_byte=500_000)
    pairs = Schedule(
        4,
        tuple(program([send(rank + 2)] if rank < 2 else [recv(rank - 2)], ranks=4) for rank in range(4)),
    )
    alone = run_ns(ping(), machine)
    assert run_ns(pairs, machine, per_host=2) == alone + 500


@pytest.mark.parametrize(
    ("topology", "far", "extra"),
    [
        (Topology.FLAT, 15, 0),
        (Topology.FAT_TREE, 1, 0),
        (Topology.FAT_TREE, 3, 2),
        (Topology.FAT_TREE, 15, 4),
        (Topology.DRAGONFLY, 3, 1),
        (Topology.DRAGONFLY, 15, 3),
    ],
)
def test_switches_beyond_the_first_add_latency(topology: Topology, far: int, extra: int) -> None:
    machine = replace(MACHINE, network=Network(topology, nodes_per_leaf=2, leaves_per_group=4, hop_ps=100 * NS))
    hosts = np.array([0, far], dtype=np.uint32)
    assert simulate(ping(), machine, Placement.of_hosts(hosts)).makespan_ns[0] == 2300 + extra * 100


def test_a_sleeping_receiver_pays_for_its_wake_up() -> None:
    blocking = replace(MACHINE, progress=Progress(blocking=True, spin_ps=2000 * NS, wakeup_ps=5 * US))
    assert run_ns(ping(), blocking) == 2300 + 5000
    assert run_ns(ping(), replace(blocking, progress=Progress(blocking=True, spin_ps=3 * US, wakeup_ps=5 * US))) == 2300


def test_moderation_delays_a_single_message_by_its_period() -> None:
    stage = StageSetting(
        moderation=ModerationSetting(Moderation.FIXED_EQE, usecs=16, frames=44),
        delivery_ps=1500 * NS,
        poll_ps=300 * NS,
        packet_ps=200 * NS,
    )
    assert run_ns(ping(), replace(MACHINE, stage=stage)) == 2300 + 16_000 + 1500 + 300 + 200


def test_an_empty_shared_receive_queue_delays_later_messages() -> None:
    queue = SharedReceiveQueue(buffers=2, low=1, refill_ps=20 * US, retry_ps=5 * US)
    three = Schedule(
        2,
        (program([send(1, 0)], [Repeat(3, (DoCall(0),))]), program([recv(0, 0)], [Repeat(3, (DoCall(0),))])),
    )
    # Messages arrive at 1100, 1200, 1300; the first leaves 1 <= low, so buffers are refilled 20 us later, and the third
    # is sent again 5 us after that.
    assert run_ns(three, replace(MACHINE, receive_queue=queue)) == 1100 + 20_000 + 5000 + 200


def test_a_message_stays_behind_one_that_an_empty_queue_refused() -> None:
    """The queue has been refilled when it arrives, but the refused one is sent again only 5 us later."""
    queue = SharedReceiveQueue(buffers=2, low=1, refill_ps=20 * US, retry_ps=5 * US)
    sends = [send(1, 0), send(1, 0), send(1, 0), send(1, 0, tag=1)]
    steps = [DoCall(0), DoCall(1), DoCall(2), DoGap(0), DoCall(3)]
    receives = program([recv(0), recv(0), recv(0, tag=-1), recv(0, tag=1)])
    pause = (Distribution((0.0,), (21 * US,)),)
    found = Schedule(2, (program(sends, steps, gaps=(0,)), receives), pause)
    assert run_ns(found, replace(MACHINE, receive_queue=queue)) == 1100 + 20_000 + 5000 + 2 * 200


def test_messages_of_a_pair_do_not_overtake() -> None:
    fast_then_slow = Distribution((0.0, 0.5), (0, 100 * US))
    segment = replace(MACHINE.inter.segments[0], residual=fast_then_slow)
    machine = replace(MACHINE, inter=PathModel((segment,)))
    many = Schedule(2, (program([send(1)], [Repeat(50, (DoCall(0),))]), program([recv(0)], [Repeat(50, (DoCall(0),))])))
    # FIFO matching: with overtaking, the last receive could match an early arrival; the end time is the latest.
    assert run_ns(many, machine) >= 100 * 1000


@pytest.mark.parametrize("before", range(1, 5))
def test_a_small_message_stays_behind_a_large_one_in_flight(before: int) -> None:
    """Records of messages are used again, the one freed last first, so the later one may have the lower number."""
    in_step = replace(MACHINE.inter.segments[0], gap_ps=0, fs_per_byte=0)
    in_flight = replace(MACHINE, inter=PathModel((in_step,)))
    at_port = replace(MACHINE, inter=PathModel((replace(in_step, latency_fs_per_byte=0),)), port_fs_per_byte=1_000_000)
    first = [send(1, 0, tag=5)] * before, [recv(0, tag=5)] * before
    both = [send(1, 100_000), send(1, 0, tag=1)], [recv(0, tag=-1), recv(0, tag=1)]
    programs = (
        program([*first[0], recv(1), *both[0]], ranks=3),
        program([*first[1], send(2, 0), send(0, 0), *both[1], recv(2)], ranks=3),
        program([recv(1), send(1, 1_000_000)], ranks=3),  # fills the port of rank 1
    )
    for machine in (in_flight, at_port):
        run_ns(Schedule(3, programs), machine)  # if tag 1 were first, the last receive from rank 0 would never end


def test_packets_of_a_message_arrive_after_those_of_the_previous_one() -> None:
    small = replace(MACHINE.inter.segments[0], up_to_bytes=100, latency_ps=60 * US)
    large = replace(MACHINE.inter.segments[0], latency_ps=20 * US, latency_fs_per_byte=8_000_000)
    stage = StageSetting(ModerationSetting(Moderation.FIXED_EQE, usecs=200, frames=44), packet_gap_ps=12 * US)
    machine = replace(MACHINE, inter=PathModel((small, large)), stage=stage, packet_bytes=1460)
    sends, receives = [send(1, 0), send(1, 14_000, tag=1)], [recv(0, tag=-1), recv(0, tag=1)]
    run_ns(Schedule(2, (program(sends), program(receives))), machine)  # one poll shows both


COLLECTIVES = [one for one in Collective if not one.name.startswith("NEIGHBOR")]


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 13])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_terminates_at_every_size(collective: Collective, ranks: int, library: str) -> None:
    machine = replace(MACHINE, collectives=library)  # type: ignore[arg-type]
    all_the_same = {Collective.BARRIER, Collective.NEW_COMMUNICATOR}
    all_the_same |= {Collective.ALLREDUCE} if library == "mpich" else set()
    for size in (0, 8, 5000, 1 << 20):
        op = Op(OpKind.COLLECTIVE, collective=collective, peer=ranks - 1, message_bytes=size)
        schedule = Schedule(ranks, (program([op], ranks=ranks),) * ranks)
        assert (run_ns(schedule, machine) > 0) is (ranks > 1 and (size > 0 or collective in all_the_same))


def test_a_barrier_of_eight_takes_three_rounds() -> None:
    barrier = Schedule(8, (program([Op(OpKind.COLLECTIVE)], ranks=8),))
    assert run_ns(barrier) == 3 * (100 + 1000 + 200)


def test_neighbour_collectives_follow_the_grid() -> None:
    grid = Comm(0, size=4, dims=(2, 2), periods=(0, 1))
    ops = [Op(OpKind.COLLECTIVE, collective=Collective.NEIGHBOR_ALLTOALL, message_bytes=10)]
    found = simulate_launches(
        [Schedule(4, (Program((DoCall(0),), tuple(ops), (grid,)),))], [MACHINE], Placement.block(4, 1), threads=1
    )
    assert found.messages == 4 * (1 + 2)  # one neighbour down the open dimension, two around the other


def test_a_nonblocking_collective_overlaps_with_compute() -> None:
    op = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8, nonblocking=True, slot=0)
    overlapped = program(
        [op, Op(OpKind.WAIT, slots=0)],
        [DoCall(0), DoGap(0), DoCall(1)],
        ranks=4,
        gaps=(0,),
        slot_sets=((0,),),
        slots=1,
    )
    gaps = (Distribution((0.0,), (50 * US,)),)
    machine = replace(MACHINE, collectives="mpich")
    lazy = run_ns(Schedule(4, (overlapped,), gaps), machine)
    eager = run_ns(Schedule(4, (overlapped,), gaps), replace(machine, progress=Progress(asynchronous=True)))
    assert eager < lazy == 100 + 50_000 + 200 + (100 + 1008 + 200)  # at the wait the second round is still to come


# ---------------------------------------------------------------- what goes wrong


def test_a_deadlock_names_ranks_and_calls() -> None:
    machine = replace(MACHINE, inter=path(eager=10))
    both_send_first = Schedule(
        2, (program([send(1, tag=7), recv(1, tag=7)]), program([send(0, tag=7), recv(0, tag=7)]))
    )
    with pytest.raises(DeadlockError, match=r"2 of 2 ranks.*rank 0 in send with 1, tag 7, 1000 B.*rank 1 in send"):
        run_ns(both_send_first, machine)
    assert run_ns(both_send_first) > 0  # with buffering it ends
    with pytest.raises(DeadlockError) as caught:  # one thread may have sent while the other received
        run_ns(replace(both_send_first, calling_threads=2), machine)
    assert "the calls of the 2 threads of a rank that call MPI one after another" in caught.value.hint


def test_a_program_that_waits_for_calls_missing_from_its_trace_is_refused_with_their_names() -> None:
    waits = Schedule(2, (program([recv(1)]), program([], [])), opaque_share=0.5, opaque_names=("Cancel", "Put"))
    with pytest.raises(DeadlockError) as caught:
        run_ns(waits)
    assert "lacks calls that others wait for (MPI_Cancel, MPI_Put)" in caught.value.hint
    with pytest.raises(DeadlockError) as caught:
        run_ns(replace(waits, opaque_names=("Cancel",)))
    assert "does not say which requests MPI_Cancel ended" in caught.value.hint
    with pytest.raises(DeadlockError) as caught:
        run_ns(replace(waits, opaque_share=0.0))
    assert "lacks" not in caught.value.hint


def test_a_lost_message_and_a_lost_receive_are_errors() -> None:
    with pytest.raises(UnmatchedError, match="rank 1: message from 0 tag 0"):
        run_ns(Schedule(2, (program([send(1)]), program([], []))))
    lost = program([recv(0, nonblocking=True, slot=0)], slots=1)
    with pytest.raises(UnmatchedError, match="1 messages or receives"):
        run_ns(Schedule(2, (program([], []), lost)))
    with pytest.raises(DeadlockError, match="rank 1 in recv with 0"):
        run_ns(Schedule(2, (program([], []), program([recv(0)]))))


def test_programs_and_placements_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadInputError, match="peer outside"):
        run_ns(Schedule(2, (program([send(5)]), program([recv(0)]))))
    with pytest.raises(BadInputError, match="not well-formed"):
        run_ns(Schedule(2, (program([send(1)], [DoCall(3)]), program([recv(0)]))))
    with pytest.raises(BadInputError, match="placement has 3 ranks"):
        simulate(ping(), MACHINE, Placement.block(3, 1))
    for replicas, seed in ((0, 0), (1 << 33, 0), (1, -1), (1, 1 << 64)):  # the large ones ended in tracebacks
        with pytest.raises(BadInputError, match=f"{replicas} replicas with seed {seed}"):
            simulate(ping(), MACHINE, Placement.block(2, 1), replicas=replicas, seed=seed)


# ---------------------------------------------------------------- patterns, replicas, traces

TAILED = replace(
    MACHINE,
    inter=PathModel(
        (replace(MACHINE.inter.segments[0], residual=Distribution((0.0, 0.9, 0.999), (0, 500 * NS, 50 * US))),)
    ),
)


def halo(ranks: int, steps: int = 5) -> Schedule:
    return schedule_from_pattern(
        Pattern(kind="halo", ranks=ranks, steps=steps, message_bytes=1000, compute="20 us", compute_spread=0.1)
    )


def test_the_same_seed_gives_the_same_answer_on_any_number_of_threads() -> None:
    placement = Placement.block(64, 4)
    one = simulate_launches([halo(64)], [TAILED], placement, seed=3, replicas=7, threads=1)
    four = simulate_launches([halo(64)], [TAILED], placement, seed=3, replicas=7, threads=4)
    other = simulate_launches([halo(64)], [TAILED], placement, seed=4, replicas=7, threads=4)
    assert one.makespan_ns.tolist() == four.makespan_ns.tolist()
    assert one.makespan_ns.tolist() != other.makespan_ns.tolist()
    assert len(set(one.makespan_ns.tolist())) > 1


def test_halo_sends_across_every_face() -> None:
    found = simulate(halo(27), MACHINE, Placement.block(27, 1))
    assert found.messages == 27 * 6 * 5
    assert found.inter_share == 1.0
    open_edges = Pattern(kind="halo", ranks=27, steps=1, message_bytes=8, periodic=False)
    assert simulate(schedule_from_pattern(open_edges), MACHINE, Placement.block(27, 1)).messages == 2 * 3 * 18


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_cg_and_alltoall_run_on_powers_of_two(ranks: int) -> None:
    for kind in ("cg", "alltoall"):
        pattern = Pattern(kind=kind, ranks=ranks, steps=2, message_bytes=4000, allreduce_bytes=8)  # type: ignore[arg-type]
        assert run_ns(schedule_from_pattern(pattern)) > 0


def test_strong_scaling_shrinks_the_work_and_weak_does_not() -> None:
    weak = Pattern(kind="halo", ranks=8, steps=10, message_bytes=64_000, compute="1 ms")
    strong = replace(weak, scaling="strong")
    at_64 = [run_ns(schedule_from_pattern(one.at(64))) for one in (weak, strong)]
    assert at_64[0] > 10_000_000 > at_64[1] > 10_000_000 / 8


def test_tails_matter_more_with_more_ranks() -> None:
    medians = []
    for ranks in (8, 64, 512):
        tail = simulate(halo(ranks), TAILED, Placement.block(ranks, 1), replicas=5)
        plain = simulate(halo(ranks), MACHINE, Placement.block(ranks, 1), replicas=5)
        medians.append(float(np.median(tail.makespan_ns)) / float(np.median(plain.makespan_ns)))
    assert medians == sorted(medians)


def test_replicas_take_launches_in_turn() -> None:
    slow = Machine(intra=path(latency=100), inter=path(latency=3000))
    both = simulate_launches([ping(), ping(2000)], [MACHINE, slow], Placement.block(2, 1), replicas=8).makespan_ns
    alone = {
        (size, machine is slow): int(simulate(ping(size), machine, Placement.block(2, 1)).makespan_ns[0])
        for size in (1000, 2000)
        for machine in (MACHINE, slow)
    }
    assert len(set(alone.values())) == 4
    assert sorted(both) == sorted([*alone.values()] * 2)
    assert both[0] == alone[1000, False]
    assert both[1] == alone[2000, True]


def test_launches_of_programs_of_different_size_are_refused() -> None:
    with pytest.raises(BadInputError, match="traces of"):
        simulate_launches([ping(), computing(1, 1, 1)], [MACHINE], Placement.block(2, 1))


def test_the_interval_of_a_quantile_needs_replicas() -> None:
    few = simulate(halo(8), TAILED, Placement.block(8, 1), replicas=5).quantile(0.99)
    many = simulate(halo(8, 2), TAILED, Placement.block(8, 1), replicas=40).quantile(0.5)
    assert few.high_ns is None
    assert many.low_ns is not None
    assert many.high_ns is not None
    assert many.low_ns <= many.value_ns <= many.high_ns


def test_sensitivity_finds_the_parameters_the_time_depends_on() -> None:
    only_compute = schedule_from_pattern(Pattern(kind="halo", ranks=8, steps=2, message_bytes=0, compute="10 ms"))
    found = sensitivity([only_compute], MACHINE, Placement.block(8, 1))
    assert next(iter(found)) == "compute"
    assert found["compute"] == pytest.approx(1, abs=0.01)
    big = schedule_from_pattern(Pattern(kind="halo", ranks=8, steps=2, message_bytes=1_000_000))
    assert sensitivity([big], MACHINE, Placement.block(8, 1))["inter.bandwidth"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("size", "told", "parameter"),
    [
        (1 << 20, {"copy_fs_per_byte": 1_000_000}, "inter.bandwidth"),
        (1 << 20, {"copy_fs_per_byte": 1_000_000, "single_copy": (1 << 21, 900_000)}, "inter.bandwidth"),
        (8, {"crossing_ps": ((8, 200_000_000),)}, "inter.overhead"),
    ],
)
def test_sensitivity_knows_what_copying_and_crossing_take(size: int, told: dict[str, Any], parameter: str) -> None:
    """The time of exchanges on a path that copies depended on nothing, whatever was varied."""
    machine = replace(MACHINE, inter=replace(MACHINE.inter, **told), port_fs_per_byte=0)
    swap = exchange(Peer.XOR, 1, size)
    schedule = Schedule(2, (Program((Repeat(50, (DoCall(0),)),), (swap,), (Comm(0, size=2),)),))
    found = sensitivity([schedule], machine, Placement.block(2, 1))
    assert found[parameter] == pytest.approx(1, abs=0.1)
    assert sum(found.values()) == pytest.approx(1, abs=0.02)


def test_dims_are_as_cubic_as_the_ranks_allow() -> None:
    assert cubic_dims(64) == (4, 4, 4)
    assert cubic_dims(131_072) == (64, 64, 32)
    assert cubic_dims(7) == (7, 1, 1)
    flat = Pattern(kind="halo", ranks=16, dims=(16, 1), steps=1, message_bytes=8)
    assert (flat.at(16), flat.at(64).dims) == (flat, (8, 8))  # unchanged if it fits, with as many dimensions


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "ring"),
        ("ranks", 0),
        ("dims", [3, 3]),
        ("compute", "fast"),
        ("colour", 1),
        ("steps", -1),
        ("compute_spread", 0.7),
    ],
)
def test_a_bad_pattern_names_its_key(key: str, value: object) -> None:
    table: dict[str, object] = {"kind": "halo", "ranks": 8, "steps": 1, "message_bytes": 8, key: value}
    with pytest.raises(BadInputError, match=key if key != "compute" else "duration"):
        parse_pattern({"pattern": table})


def traced(rank: int, calls: tuple[Call, ...], program_: tuple[Step, ...], **meta: str) -> RankTrace:
    return made_rank(rank, 2, calls, meta=meta, lists=((0,), (0, 1)), program=program_)


def test_a_trace_is_replayed() -> None:
    sends = (Call(CallKind.INIT), Call(CallKind.SEND, CallFlag.NONBLOCKING, peer=1, message_bytes=1000, request=0),
             Call(CallKind.WAIT, request=0))  # fmt: skip
    receives = (Call(CallKind.RECV, CallFlag.ANY_SOURCE | CallFlag.ANY_TAG, message_bytes=1000), Call(CallKind.BARRIER),
                Call(CallKind.COMM_FREE))  # fmt: skip
    one = traced(0, (*sends, Call(CallKind.BARRIER)), tuple(DoCall(i) for i in range(4)))
    two = traced(1, receives, (DoCall(0), DoCall(1), Repeat(3, (DoCall(2),))))
    schedule = schedule_from_trace(Trace((one, two)))
    assert run_ns(schedule) == 2300 + 1300


def test_recorded_gaps_are_replayed_in_their_order() -> None:
    exchange = Op(OpKind.SENDRECV, peer=0, recv_peer=0, message_bytes=1000)
    steps = (Repeat(4, (DoGap(0), DoCall(0))),)

    def both(*orders: tuple[int, ...]) -> int:
        programs = (
            Program(steps, (replace(exchange, peer=1 - rank, recv_peer=1 - rank),), (Comm(0, size=2),), (rank,))
            for rank in range(2)
        )
        gaps = (Recorded(np.array(order, "<u2").tobytes()) for order in orders)
        return run_ns(Schedule(2, tuple(programs), tuple(gaps)))

    # Two durations for four visits: they start over. Each exchange of 1000 B takes 2300 ns here.
    together, apart, longest = (
        both((1000, 3000), (1000, 3000)),
        both((1000, 3000), (3000, 1000)),
        both((3000,), (3000,)),
    )
    assert together == 2 * (1000 + 3000) + longest - 4 * 3000
    assert apart == longest


def test_a_trace_with_too_few_ordered_durations_draws_them_at_random() -> None:
    def gaps_of(visits: int, kept: int) -> type:
        one = replace(
            traced(0, (Call(CallKind.BARRIER),), (DoGap(0), DoCall(0))),
            gaps=(Gap(visits, visits, (1, 1), b"\1\0" * kept),),
        )
        (gap,) = schedule_from_trace(Trace((one, traced(1, (Call(CallKind.BARRIER),), (DoCall(0),))))).gaps
        return type(gap)

    assert gaps_of(3, 3) is Recorded
    assert gaps_of(3000, 256) is Recorded
    assert gaps_of(3000, 255) is Distribution
    assert gaps_of(3, 0) is Distribution


def test_calls_that_a_trace_cannot_hold_count_as_computing_and_are_reported() -> None:
    barrier, steps = (Call(CallKind.BARRIER),), (DoCall(0),)
    two = (traced(0, barrier, steps, unsupported="5"), traced(1, barrier, steps, unsupported="1"))
    schedule = schedule_from_trace(Trace(two))
    assert schedule.opaque_share == 6 / 8
    doubts = find_doubts([schedule], NamedMachine("p", "s", "polling", MACHINE), Placement.block(2, 1))
    assert [doubt.said.partition(" of MPI calls are not in the trace")[0] for doubt in doubts][:1] == ["75.0 %"]
    assert schedule_from_trace(Trace((traced(0, barrier, steps), traced(1, barrier, steps)))).opaque_share == 0
