"""Work for messages: hidden while ranks wait, but taken from their time while they compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.fit import Windows, fit_work, typical_times
from nearmetal.predict.models import UNBOUNDED, Distribution, PathModel, Segment
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Op, OpKind, Schedule
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import DoCall, DoGap
from nearmetal.predict.wire import work_told
from tests.unit.simulated import MACHINE, NS, path, program, recv, run_ns, send

BY_BYTE = replace(path(), interrupt_fs_per_byte=500_000)
BY_SIZE = replace(path(), work_ps=((0, 200 * NS), (500, 200 * NS), (1500, 800 * NS)))


@pytest.mark.parametrize("way", [BY_BYTE, BY_SIZE], ids=["older file", "measured sizes"])
@pytest.mark.parametrize(
    ("computes_ns", "sender", "receiver"),
    [(4000, 100 + 4000 + 400, 4000 + 500), (150, 100 + 150 + 150, 2300), (0, 100, 2300)],
    ids=["long", "short", "not"],
)
def test_work_for_a_message_delays_ranks_that_compute_meanwhile(
    computes_ns: int, sender: int, receiver: int, way: PathModel
) -> None:
    """Both ends' processors are busy with 1000 B for 500 ns each; waiting ranks notice 100 and 200 ns of it."""
    busy = replace(MACHINE, inter=way)
    gap = (Distribution((0.0,), (computes_ns * NS,)),)
    mark = Op(OpKind.MARK, tag=1)
    sends = program([send(1), mark], [DoCall(0), DoGap(0), DoCall(1)], gaps=(0,))
    receives = program([recv(0), mark], [DoGap(0), DoCall(0), DoCall(1)], gaps=(0,))
    found = simulate_launches([Schedule(2, (sends, receives), gap)], [busy], Placement.block(2, 1), keep_marks=True)
    assert {int(rank): int(time) // NS for rank, _, time in found.marks[0]} == {0: sender, 1: receiver}


def test_a_waiting_rank_does_the_work_for_its_sends_meanwhile() -> None:
    busy = replace(MACHINE, inter=replace(path(), interrupt_fs_per_byte=900_000))
    gap = (Distribution((0.0,), (4000 * NS,)),)
    steps = [DoCall(0), DoCall(1), DoGap(0)]
    both = tuple(program([send(1 - rank), recv(1 - rank)], steps, gaps=(0,)) for rank in range(2))
    exchange = Schedule(2, both, gap)
    assert run_ns(exchange, busy) == run_ns(exchange)


def test_work_is_interpolated_between_measured_sizes_and_extrapolated_per_byte() -> None:
    """A receiver that goes on computing handles its message late, so the time added is the work."""
    gap = (Distribution((0.0,), (20_000 * NS,)),)

    def adds_ns(size: int, way: PathModel) -> int:
        sends = program([send(1, size)])
        receives = program([recv(0, size)], [DoGap(0), DoCall(0)], gaps=(0,))
        return run_ns(Schedule(2, (sends, receives), gap), replace(MACHINE, inter=way)) - 20_000

    way = replace(path(o_s=0, o_r=0, fs=0), work_ps=((0, 300 * NS), (1000, 500 * NS)))
    assert [adds_ns(size, way) for size in (0, 500, 1000, 3000)] == [300, 400, 500, 1500]


def test_work_that_falls_with_the_size_is_refused() -> None:
    with pytest.raises(BadInputError, match="does not increase"):
        replace(path(), work_ps=((0, 500), (1000, 300)))


def test_bidirectional_streams_give_the_work_by_the_setting_with_the_fastest_ping_pong() -> None:
    """The minimum was used, even from a setting whose windows are mostly waiting at both ends, which is subtracted. 16
    messages each way in 1,000 ns each, less the latency of the last one and of its acknowledgement, are 937 ns for both
    ends.
    """
    trips = {size: [np.full(20, ns)] for size, ns in ((8, 800), (1000, 1600))}
    found = fit_work([Windows(1000, 16, 1, np.full(5, 16_000))], trips)
    assert found[1000] == (16_000 - 800 - 400) / 15 / 2
    times = typical_times(trips)
    waits, less = (times[0], 2 * times[1]), {size: ns / 2 for size, ns in found.items()}
    work = work_told([(waits, less), (times, found), (waits, {2000: 10.0})])
    assert work == ((0, 200_000), (8, 200_000), (1000, 493_333), (2000, 493_333))
    assert work_told([(times, {})]) == ()


def to_itself(size: int) -> Schedule:
    """Return two ranks; the first sends itself a message, then receives it."""
    return Schedule(2, (program([send(0, size), recv(0, size)]), program([])))


def one_processor(eager: int = UNBOUNDED) -> PathModel:
    """2000 ns of waiting, 100 and 200 ns of work, 1 ns per byte at either end, measured on one processor shared by
    both.
    """
    segments = (
        Segment(1000, 2000 * NS, 100 * NS, 200 * NS, overhead_fs_per_byte=1_000_000),
        Segment(UNBOUNDED, 2000 * NS, 100 * NS, 200 * NS, overhead_fs_per_byte=1_000_000),
    )
    return PathModel(segments, eager, fetched=eager != UNBOUNDED, one_processor=True)


def test_a_message_to_oneself_does_not_wait_for_a_time_slice() -> None:
    """It was charged the wait for the other rank's time slice that a message to it takes on one processor."""
    alone = replace(MACHINE, intra=one_processor())
    assert run_ns(to_itself(500), alone, per_host=2) == 100 + 500 + 200 + 500
    other = Schedule(2, (program([send(1, 500)]), program([recv(0, 500)])))
    assert run_ns(other, alone, per_host=2) == 2000 + 100 + 500 + 200 + 500


def test_a_large_message_to_oneself_uses_rendezvous_without_a_wait() -> None:
    alone = replace(MACHINE, intra=one_processor(eager=1000))
    assert run_ns(to_itself(1000), alone, per_host=2) == 100 + 1000 + 200 + 1000
    assert run_ns(to_itself(2000), alone, per_host=2) == 2 * 100 + 2000 + 3 * 200 + 2000


@pytest.mark.parametrize(
    "intra",
    [
        replace(one_processor(), one_processor=False),  # no rank waited for a time slice
        PathModel((Segment(UNBOUNDED, 2000 * NS),), one_processor=True),  # the work of the ends is not known
    ],
)
def test_otherwise_a_message_to_oneself_is_like_one_inside_the_node(intra: PathModel) -> None:
    machine = replace(MACHINE, intra=intra)
    assert run_ns(to_itself(500), machine, per_host=2) == intra.segments[0].one_way_ps(500) // NS
