"""Vector collectives, from the profiler's records of them to the replayed messages.

The expected figures were counted by Open MPI 5.0.11 itself (its monitoring component) for 12 ranks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearmetal.predict.models import Distribution, MeasuredCollective
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import NONE, Call, CallFlag, CallKind, CommKind, Communicator, DoCall, RankTrace, Trace
from nearmetal.predict.traffic import messages_of
from tests.trace_writer import made_rank

from .simulated import MACHINE, US

RANKS = 12
ROOTED = (CallKind.GATHER, CallKind.SCATTER)


def recorded(kind: CallKind, each: int, rank: int, dims: tuple[int, ...] = ()) -> Call:
    """Return a call with equal blocks as the profiler records it: list a for sends, list b for receives."""
    peers = 2 * len(dims) or RANKS
    whole = Call(kind, CallFlag.VECTOR, comm=2 if dims else 0, message_bytes=peers * each)
    if kind in ROOTED:
        knows = replace(whole, peer=0, **{"list_a" if kind is CallKind.SCATTER else "list_b": 0})  # type: ignore[arg-type]
        return knows if rank == 0 else replace(whole, peer=0, message_bytes=each)
    if kind in {CallKind.ALLTOALL, CallKind.NEIGHBOR_ALLTOALL}:
        return replace(whole, list_a=0, list_b=0)
    return replace(whole, list_b=0)


def traced(kind: CallKind, each: int, *, listed: bool = True, dims: tuple[int, ...] = ()) -> Schedule:
    everyone = tuple(range(RANKS))

    def of_rank(rank: int) -> RankTrace:
        grid = Communicator(99, CommKind.CART, 0, everyone, rank, dims, (1,) * len(dims))
        call = recorded(kind, each, rank, dims)
        if not listed:
            call = replace(call, list_a=NONE, list_b=NONE)
        sizes = ((each,) * (2 * len(dims) or RANKS),)
        return made_rank(rank, RANKS, [call], *([grid] if dims else []), lists=sizes)

    return schedule_from_trace(Trace(tuple(map(of_rank, range(RANKS)))))


def sent(schedule: Schedule) -> tuple[int, int]:
    """Return messages and bytes of a replay, which must match the traffic matrix."""
    found = simulate_launches([schedule], [MACHINE], Placement.block(schedule.ranks, 1), threads=1)
    counted = messages_of(schedule, MACHINE)
    assert (int(counted.count.sum()), int((counted.message_bytes * counted.count).sum())) == (
        found.messages,
        found.message_bytes,
    )
    return found.messages, found.message_bytes


@pytest.mark.parametrize(
    ("kind", "each", "counted"),
    [
        (CallKind.GATHER, 100, (11, 1100)),  # was a tree, 2000 B; that of a root with 6000 B and more never ended
        (CallKind.GATHER, 8192, (11, 90_112)),
        (CallKind.SCATTER, 100, (11, 1100)),  # had messages that no rank received
        (CallKind.SCATTER, 8192, (11, 90_112)),
        (CallKind.ALLGATHER, 100, (22, 14_300)),  # was 48 messages of 158,400 B
        (CallKind.ALLGATHER, 8192, (48, 1_081_344)),  # was 12 times as many bytes
        (CallKind.ALLTOALL, 100, (132, 13_200)),
        (CallKind.REDUCE_SCATTER, 100, (32, 13_600)),  # was 132 messages of 158,400 B
        (CallKind.REDUCE_SCATTER, 8192, (32, 1_114_112)),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_messages_match_the_counts_of_open_mpi(
    kind: CallKind, each: int, counted: tuple[int, int], listed: bool
) -> None:
    assert sent(traced(kind, each, listed=listed)) == counted


@pytest.mark.parametrize(
    ("collective", "ranks", "each", "counted"),
    [
        (Collective.GATHER, 12, 8192, (11, 163_840)),  # was linear, 90,112 B
        (Collective.GATHER, 5, 3000, (4, 12_000)),
        (Collective.GATHER, 5, 20_000, (4, 100_000)),
        (Collective.SCATTER, 12, 8192, (11, 163_840)),
        (Collective.SCATTER, 16, 20_000, (15, 300_000)),
        (Collective.REDUCE_SCATTER, 5, 3000, (10, 63_000)),  # of one block size; was a ring of 20 messages
        (Collective.REDUCE_SCATTER, 16, 300_000, (64, 72_000_000)),
    ],
)
def test_equal_blocks_match_the_counts_of_open_mpi(
    collective: Collective, ranks: int, each: int, counted: tuple[int, int]
) -> None:
    op = Op(OpKind.COLLECTIVE, collective=collective, message_bytes=each, peer=0)
    program = Program((DoCall(0),), (op,), (Comm(0, size=ranks),))
    assert sent(Schedule(ranks, (program,))) == counted


@pytest.mark.parametrize("kind", [CallKind.NEIGHBOR_ALLGATHER, CallKind.NEIGHBOR_ALLTOALL])
@pytest.mark.parametrize("listed", [True, False])
def test_a_neighbour_gets_only_its_own_blocks(kind: CallKind, listed: bool) -> None:
    """Each got the blocks of all, and the traffic did not show them."""
    assert sent(traced(kind, 100, listed=listed, dims=(3, 4))) == (48, 4800)


@pytest.mark.parametrize("kind", [CallKind.NEIGHBOR_ALLGATHER, CallKind.NEIGHBOR_ALLTOALL])
@pytest.mark.parametrize("absent", [0, 100])
@pytest.mark.parametrize("listed", [True, False])
def test_an_open_edge_does_not_change_the_parts_of_other_neighbours(kind: CallKind, absent: int, listed: bool) -> None:
    """A rank at the edge of 12 gave its only neighbour the mean of two parts, of which one goes nowhere."""
    everyone = tuple(range(RANKS))

    def of_rank(rank: int) -> RankTrace:
        line = Communicator(99, CommKind.CART, 0, everyone, rank, (RANKS,), (0,))
        parts = (100 if rank > 0 else absent, 100 if rank < RANKS - 1 else absent)
        call = replace(recorded(kind, 100, rank, (RANKS,)), message_bytes=sum(parts))
        if not listed:
            call = replace(call, list_a=NONE, list_b=NONE)
        return made_rank(rank, RANKS, [call], line, lists=(parts,))

    # Without a list the whole of older traces cannot be told from that of two neighbours.
    edge = 200 if absent and not listed else 100
    assert sent(schedule_from_trace(Trace(tuple(map(of_rank, range(RANKS)))))) == (22, 2000 + 2 * edge)


def test_different_blocks_are_sent_with_their_sizes() -> None:
    schedule = traced(CallKind.ALLGATHER, 8192)
    sizes = tuple(1000 * rank + 4096 for rank in range(RANKS))
    uneven = [
        replace(program, ops=(replace(program.ops[0], message_bytes=sum(sizes) // RANKS),), size_lists=(sizes,))
        for program in schedule.programs
    ]
    assert sent(replace(schedule, programs=tuple(uneven))) == (48, (RANKS - 1) * sum(sizes))


def test_a_measured_allgather_does_not_stand_for_different_blocks() -> None:
    """Without lists, as in a trace of very many distinct calls, it took the time of equal blocks."""
    took = Distribution((0.0,), (9 * US,))
    measured = MeasuredCollective("allgather", tuple(range(RANKS)), ((1, took), (1 << 20, took)))
    schedule = traced(CallKind.ALLGATHER, 100, listed=False)
    found = simulate_launches(
        [schedule], [replace(MACHINE, measured=(measured,))], Placement.block(RANKS, 1), threads=1
    )
    assert (found.collectives_as_measured, found.messages) == (0, 22)
    assert messages_of(schedule, MACHINE, measured=(measured,)).count.sum() == 22


@pytest.mark.parametrize(
    "kind", [CallKind.GATHER, CallKind.SCATTER, CallKind.ALLGATHER, CallKind.ALLTOALL, CallKind.REDUCE_SCATTER]
)
def test_nothing_is_sent_where_there_are_no_data(kind: CallKind) -> None:
    assert sent(traced(kind, 0)) == (0, 0)


def of_one_rank(kind: CallKind, *, lists: bool = True, **meta: str) -> Schedule:
    """Return a call of two ranks and one byte that rank 0 gives rank 1, or rank 1 gives rank 0 in a gather."""
    away = kind is CallKind.GATHER

    def of_rank(rank: int) -> RankTrace:
        knows = rank == 0 or kind is CallKind.ALLTOALL
        call = Call(kind, CallFlag.VECTOR, peer=0 if kind in ROOTED else -1, message_bytes=int(rank == int(away)))
        if knows and (lists or rank == 0):
            gives, takes = (1, 0) if rank == 0 else (0, 2)
            call = replace(
                call,
                list_a=NONE if away else gives,
                list_b=NONE if kind is CallKind.SCATTER else 1 if away else takes,
                message_bytes=int(rank == 0),
            )
        elif not knows:
            call = replace(call, message_bytes=1)
        return made_rank(rank, 2, [call], lists=((0, 0), (0, 1), (1, 0)), meta=meta)

    return schedule_from_trace(Trace((of_rank(0), of_rank(1))))


@pytest.mark.parametrize("kind", [CallKind.GATHER, CallKind.SCATTER, CallKind.ALLTOALL])
def test_only_the_parts_that_hold_something_are_sent(kind: CallKind) -> None:
    """A scatterv of a byte was one of none to the rank that took it, an alltoallv had a message for every pair."""
    assert sent(of_one_rank(kind)) == (1, 1)


def test_every_part_is_sent_where_a_rank_may_lack_the_list_of_parts() -> None:
    """Rank 0 knows that rank 1 gives it nothing; rank 1, whose list was left out, has a total alone."""
    assert sent(of_one_rank(CallKind.ALLTOALL, lists=False, rounded="1"))[0] == 2
