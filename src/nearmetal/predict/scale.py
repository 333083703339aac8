"""A traced program on another number of ranks, where its trace tells what every rank would do there.

One trace cannot tell how a program divides its work, so only what does not depend on that is scaled: collectives of all
ranks whose sizes are the same on any number of them, and messages to the next and the previous rank, of a ring or of an
open chain. The two ends may differ from the ranks between them, and those must all do the same; of four ranks or more,
a pair, a grid and a master with workers do not pass for a chain. A face of a chain's slab has the same size on any
number of ranks, under weak and under strong scaling. The number of iterations is taken as the same, and computing as
the user says. Everything else is refused with the rank and the call that it fails on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from nearmetal.errors import BadInputError
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.trace import NONE, WORLD

CHAIN_RANKS = 4
"""So many ranks have two between the ends: with fewer, neighbours cannot be told from other partners."""
ELEMENT_BYTES = 8
"""A contribution of one element cannot be divided among more ranks."""
_ANY_RANKS = {
    *(Collective.BARRIER, Collective.BCAST, Collective.REDUCE, Collective.ALLREDUCE),
    *(Collective.SCAN, Collective.EXSCAN),
}
_GATHERS = {Collective.GATHER, Collective.ALLGATHER}
_SENDS_OR_RECEIVES = {OpKind.SEND, OpKind.RECV, OpKind.SENDRECV, OpKind.PROBE}


def scale(schedule: Schedule, ranks: int) -> Schedule:
    """Return a trace's schedule on another number of ranks; a rank between the ends computes as one of the traced.

    Raise BadInputError, with the reason, for a program of which the trace does not tell what it would do there.
    """
    traced = schedule.ranks
    scaled = [_Relative(rank, traced, program, ranks).program() for rank, program in enumerate(schedule.programs)]
    talks = any(op.kind in _SENDS_OR_RECEIVES for program in scaled for op in program.ops)
    if talks and min(traced, ranks) < CHAIN_RANKS:
        _refuse(f"of {traced} ranks" if traced < CHAIN_RANKS else f"to {ranks} ranks", "neighbours look like pairs")
    first, between, last = scaled[0], scaled[1:-1], scaled[-1]
    if not talks:
        first, between, last = scaled[0], scaled, scaled[-1]
        _all_alike(scaled, 0)
    _all_alike(between, 1)
    middle = [between[rank % len(between)] for rank in range(ranks - 2)]
    programs = (first, *middle, last) if ranks > 1 else (first,)
    return replace(schedule, ranks=ranks, programs=programs, traced_ranks=traced)


class _Relative:
    """A rank's program with its partners given as neighbours."""

    def __init__(self, rank: int, ranks: int, source: Program, wanted: int) -> None:
        self.rank, self.ranks, self.source, self.wanted = rank, ranks, source, wanted

    def program(self) -> Program:
        """Return it for the wanted number of ranks."""
        ops = tuple(self._op(op) for op in self.source.ops)
        # No operation that is left refers to a list of sizes, or to a communicator of a part of the ranks.
        comms = [comm if self._is_whole(comm) else self.source.comms[WORLD] for comm in self.source.comms]
        return replace(
            self.source, ops=ops, comms=tuple(replace(comm, size=self.wanted) for comm in comms), size_lists=()
        )

    def _is_whole(self, comm: Comm) -> bool:
        return not comm.members and comm.size == self.ranks

    def _op(self, op: Op) -> Op:
        if op.kind in {OpKind.WAIT, OpKind.MARK}:
            return op
        comm = self.source.comms[op.comm]
        if not self._is_whole(comm):
            self._refuse(op, "is on a communicator of a part of the ranks")
        if len(comm.dims) > 1:
            self._refuse(op, f"is on a grid of {'x'.join(map(str, comm.dims))}, which would be another on more ranks")
        if op.kind is OpKind.COLLECTIVE:
            return self._collective(op)
        if op.peer >= 0:
            op = replace(op, rule=Peer.SHIFT, peer=self._neighbor(op, op.peer))
        if op.kind is OpKind.SENDRECV and op.recv_peer >= 0:
            op = replace(op, recv_rule=Peer.SHIFT, recv_peer=self._neighbor(op, op.recv_peer))
        return op

    def _neighbor(self, op: Op, peer: int) -> int:
        """Return the shift to the next rank, or to the previous one, around the end of the ranks that are wanted."""
        distance = (peer - self.rank) % self.ranks
        if distance not in {1, self.ranks - 1}:
            self._refuse(op, f"is with rank {peer}, which is no neighbour in a ring or chain")
        return 1 if distance == 1 else self.wanted - 1

    def _collective(self, op: Op) -> Op:
        of_one_size = op.collective in _ANY_RANKS or (op.collective in _GATHERS and op.message_bytes <= ELEMENT_BYTES)
        if not of_one_size or not op.sizes == op.recv_sizes == NONE:
            self._refuse(op, f"of {op.message_bytes} B changes its size with the number of ranks, in a way not traced")
        if op.peer > 0:
            self._refuse(op, f"has rank {op.peer} as its root")
        return op

    def _refuse(self, op: Op, why: str) -> NoReturn:
        name = op.collective.name if op.kind is OpKind.COLLECTIVE else op.kind.name
        _refuse(f"of {self.ranks} ranks", f"{name.lower()} of rank {self.rank} {why}")


def _all_alike(programs: list[Program], first: int) -> None:
    for rank, program in enumerate(programs, first):
        if replace(program, gaps=()) != replace(programs[0], gaps=()):
            _refuse(f"of {len(programs) + 2 * first} ranks", f"rank {rank} makes other calls than rank {first}")


def _refuse(what: str, why: str) -> NoReturn:
    raise BadInputError(
        f"a trace {what} cannot be scaled: {why}",
        hint="trace the program on as many ranks (more than processors will do, with --processor-time), or describe it "
        "as a pattern",
    )
