"""Which messages follow another to the same rank before anything came back from it.

A ping-pong never sends so, a pipeline does nearly always. TCP may hold such a message back (`doubts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.predict.schedule import OpKind
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.predict.traffic import MAX_SAMPLED_RANKS, peers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.predict.native import Placement
    from nearmetal.predict.schedule import Op, Peer, Program, Schedule
    from nearmetal.predict.trace import Step


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part of a rank's program does with each peer: whether it sends to it first, and last, or receives.

    `heard` says that all peers were heard from in it, as in a collective. Of the `sent` messages `in_a_row` are so
    whatever came before.
    """

    first: dict[int, bool] = field(default_factory=dict)
    last: dict[int, bool] = field(default_factory=dict)
    heard: bool = False
    in_a_row: int = 0
    sent: int = 0

    def then(self, following: _Part) -> _Part:
        joint = sum(sends and self.last.get(peer, False) for peer, sends in following.first.items())
        return _Part(
            self.first if self.heard else following.first | self.first,
            following.last if following.heard else self.last | following.last,
            self.heard or following.heard,
            self.in_a_row + following.in_a_row + joint,
            self.sent + following.sent,
        )

    def repeated(self, count: int) -> _Part:
        again = self.then(self).in_a_row - self.in_a_row
        in_a_row = self.in_a_row + (count - 1) * again
        return _Part(self.first, self.last, self.heard, in_a_row, count * self.sent)


_HEARD_FROM_ALL = _Part(heard=True)


def share_in_a_row(schedule: Schedule, placement: Placement) -> float:
    """Return the share of messages between nodes that follow another to the same rank, collectives' left out."""
    step = max(1, schedule.ranks // MAX_SAMPLED_RANKS)
    ranks = [schedule.ranks // 2] if schedule.shared else range(0, schedule.ranks, step)
    parts = [_Rank(rank, schedule.program(rank), placement).part() for rank in ranks]
    return sum(part.in_a_row for part in parts) / max(1, sum(part.sent for part in parts))


class _Rank:
    def __init__(self, rank: int, program: Program, placement: Placement) -> None:
        self.rank, self.program, self.placement = rank, program, placement
        self.calls = [self._call(op) for op in program.ops]

    def part(self) -> _Part:
        return self._steps(self.program.steps)

    def _steps(self, steps: Sequence[Step]) -> _Part:
        whole = _Part()
        for step in steps:
            if isinstance(step, Repeat):
                whole = whole.then(self._steps(step.body).repeated(step.count))
            elif isinstance(step, DoCall):
                whole = whole.then(self.calls[step.index])
        return whole

    def _call(self, op: Op) -> _Part:
        if op.kind is OpKind.COLLECTIVE:
            return _HEARD_FROM_ALL
        if op.kind is OpKind.RECV:
            return self._message(op, op.rule, op.peer, sends=False)
        if op.kind is OpKind.SEND:
            return self._message(op, op.rule, op.peer, sends=True)
        if op.kind is OpKind.SENDRECV:
            there = self._message(op, op.rule, op.peer, sends=True)
            return there.then(self._message(op, op.recv_rule, op.recv_peer, sends=False))
        return _Part()

    def _message(self, op: Op, rule: Peer, peer: int, *, sends: bool) -> _Part:
        found = int(peers_of(np.array([self.rank]), self.program, self.program.comms[op.comm], rule, peer)[0])
        if found < 0:
            return _Part() if sends else _HEARD_FROM_ALL  # off the edge of a grid; from any source
        domains = self.placement.domain_of
        if domains[found] == domains[self.rank]:
            return _Part()
        return _Part({found: sends}, {found: sends}, sent=int(sends))
