"""Which messages follow another to the same rank before anything came back from it.

A ping-pong never sends so, a pipeline does nearly always. TCP may hold such a message back (`doubts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.predict.schedule import Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.trace import DoCall, Repeat, Step
from nearmetal.predict.traffic import MAX_SAMPLED_RANKS, peers_of

if TYPE_CHECKING:
    from nearmetal.predict.native import Placement

_Event = tuple[int | None, bool]
"""A peer, None for all of them, and whether it is sent to."""


@dataclass(slots=True)
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

    def add(self, peer: int, *, sends: bool) -> None:
        if sends:
            self.sent += 1
            self.in_a_row += self.last.get(peer, False)
        if not self.heard:
            self.first.setdefault(peer, sends)
        self.last[peer] = sends

    def hear_from_all(self) -> None:
        self.heard = True
        self.last.clear()

    def add_repeated(self, body: _Part, count: int) -> None:
        self.sent += count * body.sent
        self.in_a_row += count * body.in_a_row + _joint(self, body) + (count - 1) * _joint(body, body)
        if not self.heard:
            self.first = body.first | self.first
        if body.heard:
            self.hear_from_all()
        self.last |= body.last


def _joint(before: _Part, after: _Part) -> int:
    """Return how many messages follow one of the part before."""
    return sum(sends and before.last.get(peer, False) for peer, sends in after.first.items())


def share_in_a_row(schedule: Schedule, placement: Placement) -> float:
    """Return the share of messages between nodes that follow another to the same rank, collectives' left out."""
    step = max(1, schedule.ranks // MAX_SAMPLED_RANKS)
    ranks = [schedule.ranks // 2] if schedule.shared else range(0, schedule.ranks, step)
    parts = [_Rank(rank, schedule.program(rank), placement).part() for rank in ranks]
    return sum(part.in_a_row for part in parts) / max(1, sum(part.sent for part in parts))


class _Rank:
    def __init__(self, rank: int, program: Program, placement: Placement) -> None:
        self.rank, self.program, self.placement = rank, program, placement
        self.calls = [self._events(op) for op in program.ops]

    def part(self) -> _Part:
        return self._steps(self.program.steps)

    def _steps(self, steps: Sequence[Step]) -> _Part:
        whole = _Part()
        for step in steps:
            if isinstance(step, Repeat):
                whole.add_repeated(self._steps(step.body), step.count)
            elif isinstance(step, DoCall):
                for peer, sends in self.calls[step.index]:
                    if peer is None:
                        whole.hear_from_all()
                    else:
                        whole.add(peer, sends=sends)
        return whole

    def _events(self, op: Op) -> list[_Event]:
        if op.kind is OpKind.COLLECTIVE:
            return [(None, False)]
        if op.kind is OpKind.RECV:
            return self._message(op, op.rule, op.peer, sends=False)
        there = self._message(op, op.rule, op.peer, sends=True) if op.kind in {OpKind.SEND, OpKind.SENDRECV} else []
        if op.kind is OpKind.SENDRECV:
            return there + self._message(op, op.recv_rule, op.recv_peer, sends=False)
        return there

    def _message(self, op: Op, rule: Peer, peer: int, *, sends: bool) -> list[_Event]:
        found = int(peers_of(np.array([self.rank]), self.program, self.program.comms[op.comm], rule, peer)[0])
        if found < 0:
            return [] if sends else [(None, False)]  # off the edge of a grid; from any source
        domains = self.placement.domain_of
        return [] if domains[found] == domains[self.rank] else [(found, sends)]
