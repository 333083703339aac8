"""Inter-communicators: each rank's file lists its own group, and their calls name ranks of the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.trace import Call, CallKind, CallTime, CommKind, Communicator, RankTrace, Trace
from nearmetal.predict.trace_file import trace_of
from nearmetal.predict.trace_view import view_trace
from tests.trace_writer import encode_rank, made_rank

from .simulated import run_ns


def read(*ranks: RankTrace) -> Trace:
    return trace_of({str(rank.rank): encode_rank(rank) for rank in ranks}, "t")


def of_two_groups(rank: int, *calls: Call, group: tuple[int, ...] = ()) -> RankTrace:
    """Return a trace of one of three ranks, of which 0 and 2 are a group and 1 another, joined and then merged."""
    mine = (1,) if rank == 1 else (0, 2)
    local = Communicator(40 + rank % 2, CommKind.SPLIT, 0, mine, rank // 2)
    inter = Communicator(50, CommKind.INTER, 2, group or mine, rank // 2)
    merged = Communicator(51, CommKind.CREATE, 3, (0, 2, 1), (0, 2, 1)[rank])
    create, merge = (Call(CallKind.COMM_CREATE, comm=at, request=at + 1) for at in (2, 3))
    made = made_rank(rank, 3, (create, *calls, merge), local, inter, merged)
    return replace(made, times=(CallTime(1, 5, 5),) * len(made.calls))


def test_messages_between_groups_are_replayed() -> None:
    """They made the whole trace unusable, as a copy of an inter-communicator did."""
    sends = Call(CallKind.SEND, comm=3, peer=0, tag=7, message_bytes=1000)
    takes = Call(CallKind.RECV, comm=3, peer=1, tag=7, message_bytes=1000)
    ranks = (of_two_groups(0), of_two_groups(1, takes), of_two_groups(2, sends))
    trace = read(*ranks)
    assert [rank.communicators[3].members for rank in trace.ranks] == [(0, 2, 1)] * 3
    assert [rank.communicators[3].my_rank for rank in trace.ranks] == [0, 2, 1]
    assert [(pair.source, pair.destination) for pair in view_trace(trace).pairs] == [(2, 1)]
    found = schedule_from_trace(trace)
    assert [op.comm for op in found.programs[1].ops] == [3, 3, 3]  # both groups agree on it, as on their merging
    silent = schedule_from_trace(read(*map(of_two_groups, range(3))))
    assert 2000 < run_ns(found) - run_ns(silent) <= 2300  # rank 2 leaves the agreement before rank 1


def test_an_inter_communicator_of_one_group_is_refused() -> None:
    beyond = Call(CallKind.SEND, comm=3, peer=1)
    with pytest.raises(ForeignFileError, match="rank 2 calls send with rank 1 of a group that has fewer ranks"):
        read(of_two_groups(0), of_two_groups(1), of_two_groups(2, beyond))
    for group in ((0, 2), (0, 1)):
        with pytest.raises(ForeignFileError, match=r"an inter-communicator of rank 0 has [12] groups"):
            read(of_two_groups(0), of_two_groups(1, group=group), of_two_groups(2))
