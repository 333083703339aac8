"""What messages take longer that cross on their way: neither can carry the other's acknowledgement.

A ping-pong has an answer to each message, and streams so many at once that the kernel takes them together. Only an
exchange of both ends (`exchange`, without computing before it) meets messages that cross one by one: what it takes
longer than its replay from the other samples is booked to the receivers.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nearmetal.predict.fit import Exchanges
from nearmetal.predict.models import PS_PER_NS, Machine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import MARKS, iterations_ps, simulate_launches
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.units import by_key

_TIMES = 200
"""Exchanges in a replay."""

Crossing = tuple[tuple[int, int], ...]


def fit_crossing(exchanges: Sequence[Exchanges], machine: Machine) -> Crossing:
    """Return `PathModel.crossing_ps` from exchanges back to back, () without; what a replay takes longer is none."""
    times = by_key((one.message_bytes, float(np.median(one.ns))) for one in exchanges if one.computed_ns == 0)
    longer = (
        (size, float(np.median(launches)) - _replayed_ns(machine, size)) for size, launches in sorted(times.items())
    )
    return tuple((size, max(0, round(more * PS_PER_NS))) for size, more in longer)


def crossed(machine: Machine, crossing: Crossing) -> Machine:
    """Return a machine whose messages between nodes take that much longer where they cross."""
    return replace(machine, inter=replace(machine.inter, crossing_ps=crossing))


def _replayed_ns(machine: Machine, size: int) -> float:
    """Return the median time of exchanges between two nodes, as `nmbench` measures them (mean of both ends)."""
    barrier = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
    begin, end = (Op(OpKind.MARK, tag=tag) for tag in MARKS[0])
    steps = (Repeat(_TIMES, tuple(DoCall(call) for call in range(4))),)
    own = (Op(OpKind.SENDRECV, peer=1 - rank, recv_peer=1 - rank, message_bytes=size) for rank in range(2))
    programs = (Program(steps, (barrier, begin, exchange, end), (Comm(0, size=2),)) for exchange in own)
    plain = replace(machine, measured=())
    replayed = simulate_launches([Schedule(2, tuple(programs))], [plain], Placement.block(2, 1), keep_marks=True)
    iterations = iterations_ps(replayed.marks[0])
    assert iterations is not None, "both ranks mark each exchange"
    begins, ends = iterations
    return float(np.median(np.mean(ends - begins, axis=0))) / PS_PER_NS
