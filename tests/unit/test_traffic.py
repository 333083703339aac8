"""Who sends to whom, by each rule of a peer, and which calls no replay plays as they are: figures by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.models import Distribution, MeasuredCollective
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.predict.traffic import (
    inter_share,
    messages_of,
    peers_of,
    share_of_any_source,
    shares_by_nodes,
    traffic,
)
from tests.unit.simulated import MACHINE, program, recv, send

EVERY = Program((), (), ())
GRID = replace(EVERY, dims=(3, 2), periods=(1, 0))
"""Ranks 0 and 1 are the first row of three; its columns are rings, its rows are open."""
ROWS = Comm(1, stride=2, size=4)
"""Of every eight ranks, the even ones and the odd ones."""
SOME = Comm(2, (5, 3, 7), my_rank=1)


@pytest.mark.parametrize(
    ("program", "comm", "rule", "peer", "ranks", "peers"),
    [
        (EVERY, Comm(0, size=4), Peer.RANK, 2, (0, 2, 3), (2, 2, 2)),
        (EVERY, Comm(0, size=4), Peer.RANK, 0, (0, 3), (0, 0)),
        (EVERY, Comm(0, size=4), Peer.RANK, 4, (0,), (-1,)),
        (EVERY, Comm(0, size=4), Peer.RANK, -1, (0,), (-1,)),
        (EVERY, Comm(0, size=3), Peer.XOR, 1, (0, 1, 2), (1, 0, -1)),
        (EVERY, Comm(0, size=4), Peer.SHIFT, 3, (0, 1, 2, 3), (3, 0, 1, 2)),
        (EVERY, Comm(0, size=16), Peer.TRANSPOSE, 4, (0, 1, 6, 11), (0, 4, 9, 14)),
        (EVERY, ROWS, Peer.SHIFT, 1, (0, 6, 7, 9, 15), (2, 0, 1, 11, 9)),
        (EVERY, ROWS, Peer.RANK, 3, (0, 1, 10, 11), (6, 7, 14, 15)),
        (EVERY, SOME, Peer.SHIFT, 1, (3,), (7,)),
        (EVERY, SOME, Peer.XOR, 1, (3,), (5,)),
        (EVERY, SOME, Peer.RANK, 3, (3,), (-1,)),
        (GRID, Comm(0, size=6), Peer.CART, 0, range(6), (4, 5, 0, 1, 2, 3)),
        (GRID, Comm(0, size=6), Peer.CART, 1, range(6), (2, 3, 4, 5, 0, 1)),
        (GRID, Comm(0, size=6), Peer.CART, 2, range(6), (-1, 0, -1, 2, -1, 4)),
        (GRID, Comm(0, size=6), Peer.CART, 3, range(6), (1, -1, 3, -1, 5, -1)),
    ],
)
def test_each_rule_names_a_peer(
    program: Program, comm: Comm, rule: Peer, peer: int, ranks: tuple[int, ...], peers: tuple[int, ...]
) -> None:
    assert tuple(peers_of(np.array(ranks), program, comm, rule, peer)) == peers


def test_a_direction_that_a_grid_lacks_is_refused() -> None:
    with pytest.raises(BadInputError, match="direction 4 in a grid of 2 dimensions"):
        peers_of(np.array([0]), GRID, Comm(0, size=6), Peer.CART, 4)


def test_a_row_of_messages_for_each_sender_and_call() -> None:
    """A program that all ranks share tells each rank's peers; what goes off the edge is no message."""
    ops = (Op(OpKind.SEND, rule=Peer.CART, peer=3, message_bytes=8), Op(OpKind.RECV, rule=Peer.CART, peer=2))
    both = Op(OpKind.SENDRECV, rule=Peer.SHIFT, peer=1, message_bytes=100)
    shared = replace(
        GRID, steps=(Repeat(5, (DoCall(0), DoCall(1))), DoCall(2)), ops=(*ops, both), comms=(Comm(0, size=6),)
    )
    sent = messages_of(Schedule(6, (shared,)), MACHINE)
    rows = list(zip(sent.source, sent.target, sent.message_bytes, sent.count, strict=True))
    assert rows == [
        *((rank, rank + 1, 8, 5) for rank in (0, 2, 4)),
        *((rank, (rank + 1) % 6, 100, 1) for rank in range(6)),
    ]
    graph = traffic(sent, 6)
    assert graph[0, 1] == 5 * (8 + 4096) + 100 + 4096
    assert graph[1, 2] == 100 + 4096
    assert graph.nnz == 6
    assert inter_share(sent, np.array([0, 0, 1, 1, 2, 2])) == 3 / 21


def test_a_program_without_messages_has_none() -> None:
    sent = messages_of(Schedule(2, (program([]), program([]))), MACHINE)
    assert inter_share(sent, np.array([0, 1])) == 0.0
    assert traffic(sent, 2).nnz == 0


def test_a_collective_of_some_ranks_is_sent_among_them() -> None:
    """The root is a rank of the communicator; its members are ranks of the world."""
    cast = Op(OpKind.COLLECTIVE, collective=Collective.BCAST, message_bytes=8, peer=1)
    ranks = (5, 3)
    own = [program([cast] if rank in ranks else [], ranks=6) for rank in range(6)]
    own = [
        replace(one, comms=(Comm(9, ranks, ranks.index(rank) if rank in ranks else 0),)) for rank, one in enumerate(own)
    ]
    sent = messages_of(Schedule(6, tuple(own)), MACHINE)
    assert (sent.source.tolist(), sent.target.tolist(), sent.message_bytes.tolist()) == ([3], [5], [8])


TOOK = Distribution((0.0,), (1,))
MEASURED = (MeasuredCollective("allreduce", (0, 1), ((8, TOOK), (1024, TOOK))),)


@pytest.mark.parametrize(
    ("changed", "sends"),
    [
        ({"message_bytes": 7}, True),
        ({"message_bytes": 8}, False),
        ({"message_bytes": 1024}, False),
        ({"message_bytes": 1025}, True),
        ({"nonblocking": True}, True),
        ({"vector": True}, True),
        ({"collective": Collective.ALLGATHER}, True),
        ({"comm": 1}, True),
        ({"comm": 2}, True),
    ],
)
def test_calls_that_take_a_measured_time_send_nothing(changed: dict[str, int], sends: bool) -> None:
    op = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=100)
    comms = (Comm(0, size=4), Comm(1, (0, 1, 2, 3)), Comm(2, size=2))
    shared = Program((DoCall(0),), (replace(op, **changed),), comms)  # type: ignore[arg-type]
    assert bool(messages_of(Schedule(4, (shared,)), MACHINE, measured=MEASURED).count.size) == sends


PROBE = Op(OpKind.PROBE)
ASKS = Op(OpKind.SENDRECV, peer=1, recv_tag=1)


@pytest.mark.parametrize(
    ("ops", "share"),
    [
        ([recv(-1, tag=1), recv(1), recv(2), recv(1)], 1 / 4),
        ([recv(-1, tag=-1), recv(1)], 1 / 2),
        ([recv(-1, tag=2), recv(1)], 0),  # one rank alone sends such a message
        ([recv(-1, tag=3), recv(1)], 0),
        ([recv(-1, tag=1, comm=1), recv(1)], 0),
        ([ASKS, recv(1)], 1 / 2),
        ([replace(ASKS, recv_peer=2), recv(1)], 0),
        ([replace(ASKS, peer=-1, recv_peer=2), recv(1)], 0),
        ([replace(PROBE, tag=1), recv(1), recv(2), recv(1), recv(2)], 1 / 4),
        ([replace(PROBE, tag=1), recv(-1, tag=1), recv(2)], 1 / 2),  # one for each receive at most
        ([*[replace(PROBE, tag=1)] * 3, recv(2)], 1),
        ([send(1)], 0),
    ],
)
def test_receives_that_several_ranks_may_answer_are_counted(ops: list[Op], share: float) -> None:
    comms = (Comm(0, size=3), Comm(1, size=3))
    gives = [program([send(0, tag=1), *more], ranks=3) for more in ([], [send(0, tag=2)])]
    schedule = Schedule(3, (replace(program(ops), comms=comms), *gives))
    assert share_of_any_source(schedule) == pytest.approx(share)


def test_repeated_receives_count_as_often() -> None:
    ops = [recv(-1, tag=1), recv(1)]
    takes = program(ops, [Repeat(3, (DoCall(0),)), DoCall(1)], ranks=3)
    gives = program([send(0, tag=1)], ranks=3)
    assert share_of_any_source(Schedule(3, (takes, gives, gives))) == 3 / 4


def test_shares_of_undivided_collectives_are_those_of_all_calls() -> None:
    reduce, cast, barrier = (
        Op(OpKind.COLLECTIVE, collective=one, message_bytes=100)
        for one in (Collective.ALLREDUCE, Collective.BCAST, Collective.BARRIER)
    )
    steps = [Repeat(3, (DoCall(0),)), DoCall(1), DoCall(2), Repeat(5, (DoCall(3),))]
    own = tuple(program([reduce, cast, barrier, send(1)], list(steps), ranks=4) for _ in range(4))
    nodes, schedule = np.array([0, 0, 0, 1], np.uint32), Schedule(4, own)
    assert shares_by_nodes(schedule, MACHINE, nodes, ()) == {"allreduce": 0.3, "bcast": 0.1, "barrier": 0.1}
    assert shares_by_nodes(schedule, MACHINE, nodes, MEASURED) == {"bcast": 0.1, "barrier": 0.1}
    assert shares_by_nodes(schedule, replace(MACHINE, by_nodes=True), nodes, ()) == {}
    assert shares_by_nodes(Schedule(4, (program([], ranks=4),) * 4), MACHINE, nodes, ()) == {}
