"""Who sends how much to whom: the graph that placement cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from nearmetal.errors import BadInputError
from nearmetal.predict import _sim
from nearmetal.predict.schedule import Collective, OpKind, Peer
from nearmetal.predict.trace import DoCall, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearmetal.predict.schedule import Comm, Op, Program, Schedule

    Ranks = NDArray[np.int64]

MESSAGE_WEIGHT_BYTES = 4096
"""What the fixed cost of a message weighs in bytes: about latency times bandwidth of a virtual path."""
MAX_EXPANDED_RANKS = 1024
"""Up to this size collectives are expanded; beyond, their edges would outnumber all others."""


def traffic(schedule: Schedule) -> sparse.csr_array:
    """Return the weight of traffic from each rank to each other, shape (ranks, ranks), bytes-like.

    A message weighs its bytes and MESSAGE_WEIGHT_BYTES. Wildcards cost nothing here: only senders are counted.
    """
    n = schedule.ranks
    total = sparse.csr_array((n, n), dtype=np.float64)
    groups = (
        [(np.arange(n), schedule.programs[0])]
        if schedule.shared
        else [(np.array([rank]), program) for rank, program in enumerate(schedule.programs)]
    )
    rows: list[Ranks] = []
    columns: list[Ranks] = []
    weights: list[NDArray[np.float64]] = []
    for ranks, program in groups:
        for step, times in walk(program.steps):
            if isinstance(step, DoCall):
                _add_op(ranks, program, program.ops[step.index], times, (rows, columns, weights))
    if rows:
        entries = (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))
        total = sparse.coo_array(entries, shape=(n, n)).tocsr()
    total.setdiag(0)
    total.eliminate_zeros()
    return total


def _add_op(
    ranks: Ranks,
    program: Program,
    op: Op,
    times: int,
    edges: tuple[list[Ranks], list[Ranks], list[NDArray[np.float64]]],
) -> None:
    comm = program.comms[op.comm]
    if op.kind in {OpKind.SEND, OpKind.SENDRECV}:
        peers = peers_of(ranks, program, comm, op.rule, op.peer)
        there = peers >= 0
        edges[0].append(ranks[there])
        edges[1].append(peers[there])
        edges[2].append(np.full(int(there.sum()), float(times) * (op.message_bytes + MESSAGE_WEIGHT_BYTES)))
    elif op.kind is OpKind.COLLECTIVE:
        _add_collective(ranks, comm, op, times, edges)


def _add_collective(
    ranks: Ranks,
    comm: Comm,
    op: Op,
    times: int,
    edges: tuple[list[Ranks], list[Ranks], list[NDArray[np.float64]]],
) -> None:
    size = len(comm.members) or comm.size
    if size > MAX_EXPANDED_RANKS or op.collective >= Collective.NEIGHBOR_ALLGATHER:
        return
    members = _members(ranks, comm)
    for rank, mine, row in zip(ranks, _comm_ranks(ranks, comm), members, strict=True):
        rounds = _sim.expand_collective(0, int(op.collective), size, int(mine), max(op.peer, 0), op.message_bytes)
        sends = [(to, size_bytes) for to, size_bytes, _, _ in rounds if to >= 0]
        edges[0].append(np.full(len(sends), rank))
        edges[1].append(row[[to for to, _ in sends]] if sends else np.empty(0, dtype=np.int64))
        edges[2].append(np.array([float(times) * (b + MESSAGE_WEIGHT_BYTES) for _, b in sends]))


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


def inter_share(graph: sparse.csr_array, host_of: NDArray[np.uint32]) -> float:
    """Return the share of the traffic's weight that crosses hosts."""
    entries = graph.tocoo()
    total = float(entries.data.sum())
    crossing = host_of[entries.coords[0]] != host_of[entries.coords[1]]
    return float(entries.data[crossing].sum()) / total if total else 0.0
