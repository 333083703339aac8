"""A traced program on another number of ranks, where its trace shows what every rank would do there.

One trace cannot show how a program divides its work, so only what does not depend on that is scaled: collectives of all
ranks whose sizes are the same on any number of them, and messages to the next and the previous rank, of a ring or of an
open chain. The two ends may differ from the ranks between them, and those must all do the same; of four ranks or more,
a pair, a grid and a master with workers do not pass for a chain. A face of a chain's slab has the same size on any
number of ranks, under weak and under strong scaling. The number of iterations is taken as the same, and computing as
the user says. Everything else is refused with the rank and the call that it fails on.

Two traces of different numbers of ranks show more (`scale_on`): how sizes, and computing, go with the ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NoReturn

from nearmetal.errors import BadInputError
from nearmetal.predict.models import Machine
from nearmetal.predict.native import TO_ONESELF, Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import WORLD

CHAIN_RANKS = 4
"""So many ranks have two between the ends: with fewer, neighbours cannot be told from other partners."""
NEAR = 0.02
"""How far a power of the ranks may be from a multiple of a sixth, for sizes that are not divided without a rest."""
_SIXTH = 6
_ANY_MACHINE = Machine(TO_ONESELF, TO_ONESELF)
"""What ranks compute does not depend on it."""
ELEMENT_BYTES = 8
"""A contribution of one element cannot be divided among more ranks."""
_ANY_RANKS = {
    *(Collective.BARRIER, Collective.BCAST, Collective.REDUCE, Collective.ALLREDUCE),
    *(Collective.SCAN, Collective.EXSCAN, Collective.NEW_COMMUNICATOR),
}
_GATHERS = {Collective.GATHER, Collective.ALLGATHER}
_SENDS_OR_RECEIVES = {OpKind.SEND, OpKind.RECV, OpKind.SENDRECV, OpKind.PROBE}


def scale(schedule: Schedule, ranks: int) -> Schedule:
    """Return a trace's schedule on another number of ranks; a rank between the ends computes as one of the traced.

    Raise BadInputError, with the reason, for a program whose trace does not show what it would do there.
    """
    return _chained(schedule, _relative(schedule, ranks), ranks, schedule.ranks)


def scale_on(few: Sequence[Schedule], many: Sequence[Schedule], ranks: int) -> list[Schedule]:
    """Return on still more ranks what traces of two numbers show, a schedule for each of those on many ranks.

    A size is that of many ranks times a power of the ranks, from both traces; a power of a sixth tells any division
    of three dimensions. Computing goes on from the mean of each number's launches. Raise BadInputError where the calls
    of both are not the same, sizes follow no such power, or the traces are of several models of processors.
    """
    processors = sorted({one.processor for one in (*few, *many) if one.processor})
    if len(processors) > 1:
        _refuse(f"of {few[0].ranks} ranks", f"traces are of several processors: {' and '.join(processors)}")
    times = [
        fmean(simulate(one, _ANY_MACHINE, Placement.block(one.ranks, 1)).rank_compute_ns for one in launches)
        for launches in (few, many)
    ]
    counts = few[0].ranks, many[0].ranks
    power = math.log(times[1] / times[0]) / math.log(counts[1] / counts[0]) if min(times) > 0 else 0.0
    return [
        replace(_on_more(few, one, ranks), traced_before=counts[0], compute_scale=(ranks / counts[1]) ** power)
        for one in many
    ]


def _on_more(few: Sequence[Schedule], many: Schedule, ranks: int) -> Schedule:
    """Return a trace of many ranks on still more, as each of those of few shows."""
    after, last = _relative(many, ranks, any_size=True), many.ranks - 1
    found: list[Schedule] = []
    for one in few:
        before = _relative(one, ranks, any_size=True)
        between = (before[1:-1] or before)[0]
        ends = {last: before[-1], 0: before[0]}
        pairs = ((ends.get(rank, between), program) for rank, program in enumerate(after))
        grown = [_extrapolated(rank, pair, (one.ranks, many.ranks, ranks)) for rank, pair in enumerate(pairs)]
        found.append(_chained(many, grown, ranks, one.ranks))
        if found[-1] != found[0]:
            _refuse(f"of {one.ranks} ranks", "another one has messages of other sizes")
    return found[0]


def _relative(schedule: Schedule, ranks: int, *, any_size: bool = False) -> list[Program]:
    return [
        _RelativeProgram(rank, schedule.ranks, program, ranks, any_size=any_size).program()
        for rank, program in enumerate(schedule.programs)
    ]


def _chained(schedule: Schedule, scaled: list[Program], ranks: int, fewest: int) -> Schedule:
    traced = schedule.ranks
    talks = any(op.kind in _SENDS_OR_RECEIVES for program in scaled for op in program.ops)
    if talks and min(fewest, ranks) < CHAIN_RANKS:
        _refuse(f"of {fewest} ranks" if fewest < CHAIN_RANKS else f"to {ranks} ranks", "neighbours look like pairs")
    first, between, last = scaled[0], scaled[1:-1], scaled[-1]
    if not talks:
        first, between, last = scaled[0], scaled, scaled[-1]
        _all_alike(scaled, 0)
    _all_alike(between, 1)
    middle = [between[rank % len(between)] for rank in range(ranks - 2)]
    programs = (first, *middle, last) if ranks > 1 else (first,)
    # Operations on communicators of some of the ranks were refused; those of all ranks grow.
    every = tuple(range(ranks))
    groups = tuple(
        replace(one, parent=every, members=every) for one in schedule.node_groups if len(one.members) == traced
    )
    return replace(schedule, ranks=ranks, programs=programs, traced_ranks=traced, node_groups=groups)


def _extrapolated(rank: int, pair: tuple[Program, Program], counts: tuple[int, int, int]) -> Program:
    """Return the program of many ranks with the sizes that it would have on more."""
    before, after = pair
    few, many, ranks = counts
    calls = [[replace(op, message_bytes=0) for op in program.ops] for program in pair]
    if calls[0] != calls[1] or before.steps != after.steps:
        _refuse(
            f"of {many} ranks", f"rank {rank} makes different calls than on {few} ranks, or a different number of them"
        )
    ops = []
    for old, op in zip(before.ops, after.ops, strict=True):
        if old.message_bytes == op.message_bytes:
            ops.append(op)
            continue
        sizes = f"messages of rank {rank} have {old.message_bytes} B on {few} ranks and {op.message_bytes} B on {many}"
        if not old.message_bytes or not op.message_bytes:
            _refuse(f"of {many} ranks", sizes)
        power = math.log(op.message_bytes / old.message_bytes) / math.log(many / few)
        if abs(power - round(_SIXTH * power) / _SIXTH) > NEAR:
            _refuse(f"of {many} ranks", f"{sizes}, which is no power of the ranks that a division of data gives")
        size = op.message_bytes * (ranks / many) ** (round(_SIXTH * power) / _SIXTH)
        ops.append(replace(op, message_bytes=max(1, round(size))))
    return replace(after, ops=tuple(ops))


class _RelativeProgram:
    """A rank's program with its partners given as neighbours."""

    def __init__(self, rank: int, ranks: int, source: Program, wanted: int, *, any_size: bool) -> None:
        self.rank, self.ranks, self.source, self.wanted = rank, ranks, source, wanted
        self.any_size = any_size

    def program(self) -> Program:
        """Return it for the wanted number of ranks."""
        ops = tuple(self._op(op) for op in self.source.ops)
        # No operation that is left refers to a list of sizes, a grid, or a communicator of a part of the ranks.
        comms = [comm if self._is_whole(comm) else self.source.comms[WORLD] for comm in self.source.comms]
        return replace(self.source, ops=ops, comms=tuple(map(self._grown, comms)), size_lists=())

    def _grown(self, comm: Comm) -> Comm:
        line = len(comm.dims) == 1
        dims, periods = ((self.wanted,), comm.periods) if line else ((), ())
        return replace(comm, size=self.wanted, dims=dims, periods=periods)

    def _is_whole(self, comm: Comm) -> bool:
        return not comm.members and comm.size == self.ranks

    def _op(self, op: Op) -> Op:
        if op.kind in {OpKind.WAIT, OpKind.MARK, OpKind.CANCEL}:
            return op
        comm = self.source.comms[op.comm]
        if not self._is_whole(comm):
            self._refuse(op, "uses a communicator with only some of the ranks")
        if len(comm.dims) > 1:
            self._refuse(op, f"is on a grid of {'x'.join(map(str, comm.dims))}, which would differ on more ranks")
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
            self._refuse(op, f"is with rank {peer}, which is not a neighbour in a ring or chain")
        return 1 if distance == 1 else self.wanted - 1

    def _collective(self, op: Op) -> Op:
        of_one_size = op.collective in _ANY_RANKS or (op.collective in _GATHERS and op.message_bytes <= ELEMENT_BYTES)
        if not (of_one_size or self.any_size) or op.vector:
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
        hint="trace the program on that many ranks (more than processors is possible with --processor-time), "
        "or describe it as a pattern",
    )
