"""Who sends how much to whom: the graph that placement cuts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nearmetal.errors import BadInputError
from nearmetal.predict import _sim
from nearmetal.predict.models import MPIS, Machine, MeasuredCollective
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.trace import NONE, DoCall, walk

Ranks = NDArray[np.int64]
_Rows = tuple[Ranks, Ranks, Ranks, Ranks]

MESSAGE_WEIGHT_BYTES = 4096
"""What the fixed cost of a message weighs in bytes: about latency times bandwidth of a virtual path."""
MAX_EXPANDED_RANKS = 1024
"""Up to this size collectives are expanded; beyond, their edges would outnumber all others: a sample takes one rank."""
MAX_TOLD_RANKS = 1 << 18
"""Beyond this size no collective is expanded for that one rank either."""
MAX_SAMPLED_RANKS = 512
"""So many ranks, evenly spread, show the sizes of a program's messages."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages that a program sends, one row for each sender and operation: arrays of shape (rows,)."""

    source: Ranks
    target: Ranks
    message_bytes: Ranks
    count: Ranks


@dataclass(frozen=True, slots=True)
class _Collectives:
    """The MPI whose messages they are, and the node of each rank where it divides them."""

    mpi: int
    node_of: NDArray[np.uint32] | None


def messages_of(
    schedule: Schedule,
    machine: Machine,
    max_ranks: int | None = None,
    measured: Sequence[MeasuredCollective] = (),
    node_of: NDArray[np.uint32] | None = None,
) -> Messages:
    """Return the messages that ranks send, of all, or of about `max_ranks`.

    Rounds of collectives are among them, as the machine's MPI chooses; those that take the time `measured` send none.
    Without the node of each rank none is divided by nodes.
    """
    senders = np.arange(0, schedule.ranks, 1 if max_ranks is None else max(1, schedule.ranks // max_ranks))
    groups = (
        [(senders, schedule.programs[0])]
        if schedule.shared
        else [(senders[at : at + 1], schedule.program(int(rank))) for at, rank in enumerate(senders)]
    )
    rows: list[_Rows] = []
    how = _Collectives(MPIS.index(machine.collectives), node_of if machine.by_nodes else None)
    for ranks, program in groups:
        for step, times in walk(program.steps):
            if isinstance(step, DoCall) and not as_measured(program, program.ops[step.index], schedule, measured):
                rows += _of_op(ranks, program, program.ops[step.index], times, how, sampled=max_ranks is not None)
    joined = [np.concatenate(column) for column in zip(*rows, strict=True)] if rows else [np.empty(0, np.int64)] * 4
    return Messages(*joined)


def messages_of_all(
    launches: Sequence[Schedule], machine: Machine, node_of: NDArray[np.uint32] | None = None
) -> Messages:
    """Return the messages of all launches of a program together: who sends to whom may differ between them."""
    found = [messages_of(one, machine, node_of=node_of) for one in launches]
    rows = [(one.source, one.target, one.message_bytes, one.count) for one in found]
    return Messages(*map(np.concatenate, zip(*rows, strict=True)))


def traffic(sent: Messages, n: int) -> sparse.csr_array:
    """Return the weight of traffic from each of `n` ranks to each other, shape (n, n), bytes-like.

    A message weighs its bytes and MESSAGE_WEIGHT_BYTES. Wildcards cost nothing here: only senders are counted.
    """
    weights = sent.count * (sent.message_bytes + MESSAGE_WEIGHT_BYTES).astype(np.float64)
    total = sparse.coo_array((weights, (sent.source, sent.target)), shape=(n, n)).tocsr()
    total.setdiag(0)
    total.eliminate_zeros()
    return total


def as_measured(program: Program, op: Op, schedule: Schedule, measured: Sequence[MeasuredCollective]) -> bool:
    """Return whether a replay takes the measured time of a call: `Engine::as_measured`."""
    if op.kind is not OpKind.COLLECTIVE or op.nonblocking or op.vector:
        return False
    comm = program.comms[op.comm]
    return (not comm.members and comm.size == schedule.ranks) and any(
        one.collective == op.collective.name.lower() and one.times_ps[0][0] <= op.message_bytes <= one.times_ps[-1][0]
        for one in measured
    )


def _of_op(ranks: Ranks, program: Program, op: Op, times: int, how: _Collectives, *, sampled: bool) -> list[_Rows]:
    comm = program.comms[op.comm]
    if op.kind in {OpKind.SEND, OpKind.SENDRECV}:
        peers = peers_of(ranks, program, comm, op.rule, op.peer)
        there = peers >= 0
        count = int(there.sum())
        return [(ranks[there], peers[there], np.full(count, op.message_bytes), np.full(count, times))]
    if op.kind is not OpKind.COLLECTIVE:
        return []
    size = len(comm.members) or comm.size
    if size <= MAX_EXPANDED_RANKS:
        return _of_collective(ranks, program, op, times, how)
    told = sampled and size <= MAX_TOLD_RANKS
    return _of_collective(ranks[:1], program, op, times * ranks.size, how) if told else []


def _of_collective(ranks: Ranks, program: Program, op: Op, times: int, how: _Collectives) -> list[_Rows]:
    comm = program.comms[op.comm]
    size = len(comm.members) or comm.size
    out, back = (program.size_lists[one] if one != NONE else () for one in (op.sizes, op.recv_sizes))
    rows: list[_Rows] = []
    for rank, mine, row in zip(ranks, _comm_ranks(ranks, comm), _members(ranks, comm), strict=True):
        rounds = _sim.expand_collective(
            how.mpi,
            int(op.collective),
            size,
            int(mine),
            max(op.peer, 0),
            op.message_bytes,
            op.vector,
            out,
            back,
            comm.dims,
            comm.periods,
            op.nonblocking,
            () if how.node_of is None else how.node_of[row].tolist(),
        )
        sends = [(to, size_bytes) for to, size_bytes, _, _ in rounds if to >= 0]
        if sends:
            to, sizes = (np.array(column, dtype=np.int64) for column in zip(*sends, strict=True))
            rows.append((np.full(len(sends), rank), row[to], sizes, np.full(len(sends), times)))
    return rows


def _comm_ranks(ranks: Ranks, comm: Comm) -> Ranks:
    if comm.members:
        return np.full(ranks.size, comm.my_rank, dtype=np.int64)
    return ranks // comm.stride % comm.size


def _members(ranks: Ranks, comm: Comm) -> Ranks:
    """World ranks of the members of each rank's communicator, shape (ranks, size)."""
    if comm.members:
        return np.tile(np.array(comm.members, dtype=np.int64), (ranks.size, 1))
    block = comm.stride * comm.size
    base = ranks // block * block + ranks % comm.stride
    return base[:, None] + comm.stride * np.arange(comm.size)[None, :]


def peers_of(ranks: Ranks, program: Program, comm: Comm, rule: Peer, peer: int) -> Ranks:
    """Return the world rank of the peer of each rank; -1 off the edge of a grid or for a wildcard."""
    mine = _comm_ranks(ranks, comm)
    size = len(comm.members) or comm.size
    if rule is Peer.CART:
        inside = _grid_neighbor(mine, program, peer)
    elif rule is Peer.RANK:
        inside = np.full(ranks.size, peer, dtype=np.int64)
    elif rule is Peer.XOR:
        inside = mine ^ peer
    elif rule is Peer.SHIFT:
        inside = (mine + peer) % size
    else:
        inside = mine % peer * peer + mine // peer
    valid = (inside >= 0) & (inside < size)
    found = np.full(ranks.size, -1, dtype=np.int64)
    if comm.members:
        found[valid] = np.array(comm.members)[inside[valid]]
    else:
        block = comm.stride * comm.size
        found[valid] = (ranks // block * block + ranks % comm.stride + inside * comm.stride)[valid]
    return found


def _grid_neighbor(mine: Ranks, program: Program, direction: int) -> Ranks:
    dimension, upper = divmod(direction, 2)
    if dimension >= len(program.dims):
        raise BadInputError(f"direction {direction} in a grid of {len(program.dims)} dimensions")
    stride = int(np.prod(program.dims[dimension + 1 :], dtype=np.int64))
    extent = program.dims[dimension]
    at = mine // stride % extent
    to = at + (1 if upper else -1)
    moved = mine + (to % extent - at) * stride
    return moved if program.periods[dimension] else np.where((to >= 0) & (to < extent), moved, -1)


def share_of_any_source(schedule: Schedule) -> float:
    """Return the share of receives, of those that are calls, that take a message of any of several ranks.

    A probe may choose the message, and the receive then name its rank; one for each receive, at most.
    """
    total, wild = 0, []
    for rank, program in enumerate(schedule.programs):
        for step, times in walk(program.steps):
            if isinstance(step, DoCall) and (op := program.ops[step.index]).kind in _TAKES:
                total += times * (op.kind is not OpKind.PROBE)
                source, tag = (op.recv_peer, op.recv_tag) if op.kind is OpKind.SENDRECV else (op.peer, op.tag)
                if source < 0:
                    wild.append((op.kind is OpKind.PROBE, times, (rank, program.comms[op.comm].context), tag))
    senders = _senders(schedule) if wild else {}
    several = [(probed, times) for probed, times, at, tag in wild if len(_of_tag(senders.get(at, {}), tag)) > 1]
    most = max(sum(times for probed, times in several if probed is kind) for kind in (False, True))
    return min(1.0, most / max(1, total))


_OF_BOTH = {Collective.BARRIER, Collective.ALLREDUCE, Collective.BCAST, Collective.REDUCE}
_BY_NODES = {
    "mpich": {*_OF_BOTH, Collective.SCAN},
    "openmpi": {*_OF_BOTH, Collective.GATHER, Collective.ALLGATHER, Collective.SCATTER},
}
_BY_NODES_NONBLOCKING = {"mpich": {Collective.BCAST, Collective.REDUCE, Collective.SCAN}, "openmpi": set[Collective]()}


def shares_by_nodes(
    schedule: Schedule, machine: Machine, node_of: NDArray[np.uint32], measured: Sequence[MeasuredCollective]
) -> dict[str, float]:
    """Return the shares of calls, by name, that an MPI which divides collectives by nodes divides, but no replay does.

    Those are among several nodes of which one has several of the ranks, and not replayed as `measured`.
    """
    total, divided = 0, Counter[str]()
    for rank, program in enumerate(schedule.programs):
        nodes = (node_of[_members(np.array([rank]), comm)[0]] for comm in program.comms)
        counts = [np.unique(of_comm, return_counts=True)[1] for of_comm in nodes]
        for step, times in walk(program.steps):
            if isinstance(step, DoCall):
                op = program.ops[step.index]
                total += times
                if _lacks_division(op, counts[op.comm], machine) and not as_measured(program, op, schedule, measured):
                    divided["i" * op.nonblocking + op.collective.name.lower()] += times
    return {name: times / max(1, total) for name, times in divided.items()}


def _lacks_division(op: Op, ranks_of: NDArray[np.intp], machine: Machine) -> bool:
    if machine.by_nodes or op.kind is not OpKind.COLLECTIVE or op.vector:
        return False
    divided = (_BY_NODES_NONBLOCKING if op.nonblocking else _BY_NODES)[machine.collectives]
    return ranks_of.size > 1 and ranks_of.max() > 1 and op.collective in divided


_TAKES = {OpKind.RECV, OpKind.SENDRECV, OpKind.PROBE}


def _senders(schedule: Schedule) -> dict[tuple[int, int], dict[int, set[int]]]:
    """Return who sends, by receiver and communicator, and by tag."""
    found: dict[tuple[int, int], dict[int, set[int]]] = {}
    for rank, program in enumerate(schedule.programs):
        for op in program.ops:
            if op.kind in {OpKind.SEND, OpKind.SENDRECV}:
                comm = program.comms[op.comm]
                to = int(peers_of(np.array([rank]), program, comm, op.rule, op.peer)[0])
                found.setdefault((to, comm.context), {}).setdefault(op.tag, set()).add(rank)
    return found


def _of_tag(by_tag: Mapping[int, set[int]], tag: int) -> set[int]:
    return set().union(*by_tag.values()) if tag < 0 else by_tag.get(tag, set())


def inter_share(sent: Messages, host_of: NDArray[np.uint32]) -> float:
    """Return the share of messages that crosses hosts."""
    crossing = host_of[sent.source] != host_of[sent.target]
    return float(sent.count[crossing].sum()) / max(1, int(sent.count.sum()))
