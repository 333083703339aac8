"""Work for messages that passes while ranks wait, and takes their time where they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearmetal.predict.models import Distribution
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Op, OpKind, Schedule
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import DoCall, DoGap
from tests.unit.simulated import MACHINE, NS, path, program, recv, run_ns, send


@pytest.mark.parametrize(
    ("computes_ns", "sender", "receiver"),
    [(4000, 100 + 4000 + 400, 4000 + 500), (150, 100 + 150 + 150, 2300), (0, 100, 2300)],
    ids=["long", "short", "not"],
)
def test_work_for_a_message_takes_time_of_ranks_that_compute_meanwhile(
    computes_ns: int, sender: int, receiver: int
) -> None:
    """Both ends' processors are busy with 1000 B for 500 ns each, of which waiting ranks see 100 and 200."""
    busy = replace(MACHINE, inter=replace(path(), interrupt_fs_per_byte=500_000))
    gap = (Distribution((0.0,), (computes_ns * NS,)),)
    mark = Op(OpKind.MARK, tag=1)
    sends = program([send(1), mark], [DoCall(0), DoGap(0), DoCall(1)], gaps=(0,))
    receives = program([recv(0), mark], [DoGap(0), DoCall(0), DoCall(1)], gaps=(0,))
    found = simulate(Schedule(2, (sends, receives), gap), busy, Placement.block(2, 1), keep_marks=True)
    assert {int(rank): int(time) // NS for rank, _, time in found.marks[0]} == {0: sender, 1: receiver}


def test_a_rank_that_waits_does_work_for_what_it_sent_in_its_wait() -> None:
    busy = replace(MACHINE, inter=replace(path(), interrupt_fs_per_byte=900_000))
    gap = (Distribution((0.0,), (4000 * NS,)),)
    steps = [DoCall(0), DoCall(1), DoGap(0)]
    both = tuple(program([send(1 - rank), recv(1 - rank)], steps, gaps=(0,)) for rank in range(2))
    exchange = Schedule(2, both, gap)
    assert run_ns(exchange, busy) == run_ns(exchange)
