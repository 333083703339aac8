"""Programs of a few calls and a machine with round numbers, for tests of the simulator."""

from __future__ import annotations

from nearmetal.predict.models import UNBOUNDED, Distribution, Machine, PathModel, Segment
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import DoCall, DoGap, Step

NS = 1000  # picoseconds
US = 1_000_000


def path(
    latency: int = 1000, o_s: int = 100, o_r: int = 200, gap: int = 50, fs: int = 1_000_000, eager: int = UNBOUNDED
) -> PathModel:
    """Durations in ns; 1,000,000 fs a byte are 1 ns a byte."""
    return PathModel((Segment(UNBOUNDED, latency * NS, o_s * NS, o_r * NS, gap * NS, fs, fs),), eager)


MACHINE = Machine(intra=path(latency=100), inter=path())


def program(ops: list[Op], steps: list[Step] | None = None, ranks: int = 2, **rest: object) -> Program:
    done = steps if steps is not None else [DoCall(i) for i in range(len(ops))]
    return Program(tuple(done), tuple(ops), (Comm(0, size=ranks),), **rest)  # type: ignore[arg-type]


def send(peer: int, size: int = 1000, **rest: object) -> Op:
    return Op(OpKind.SEND, peer=peer, message_bytes=size, **rest)  # type: ignore[arg-type]


def recv(peer: int, size: int = 1000, **rest: object) -> Op:
    return Op(OpKind.RECV, peer=peer, message_bytes=size, **rest)  # type: ignore[arg-type]


def run_ns(schedule: Schedule, machine: Machine = MACHINE, per_host: int = 1) -> int:
    found = simulate_launches([schedule], [machine], Placement.block(schedule.ranks, per_host), threads=1)
    return int(found.makespan_ns[0])


def ping(size: int = 1000) -> Schedule:
    return Schedule(2, (program([send(1, size)]), program([recv(0, size)])))


def computing(*ms: int, ops: tuple[Op, ...] = (), steps: tuple[Step, ...] | None = None) -> Schedule:
    """Return one rank for each duration; each computes, then runs its op."""
    gaps = tuple(Distribution((0.0,), (one * 1000 * US,)) for one in ms)
    ranks = len(ms)
    return Schedule(
        ranks,
        tuple(
            Program(steps or (DoGap(0), *(DoCall(i) for i in range(len(ops)))), ops, (Comm(0, size=ranks),), (rank,))
            for rank in range(ranks)
        ),
        gaps,
    )
