"""What messages take longer that cross on their way: neither can carry the other's acknowledgement.

A ping-pong has an answer to each message, and streams so many at once that the kernel takes them together. Only an
exchange of both ends (`exchange`, without computing before it) meets messages that cross one by one: what it takes
longer than its replay from the other samples is booked to the receivers.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nearmetal.predict.fit import Exchanges, Interruption, Points
from nearmetal.predict.models import PS_PER_NS, Machine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import MARKS, iterations_ps, simulate_launches
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.units import by_key

_TIMES = 200
"""Exchanges in a replay."""
_STEPS = 50
"""In which copying is found."""


def fit_crossing(exchanges: Sequence[Exchanges], machine: Machine) -> Points:
    """Return `PathModel.crossing_ps` from exchanges back to back, () without; what a replay takes longer is none."""
    times = by_key((one.message_bytes, float(np.median(one.ns))) for one in exchanges if one.computed_ns == 0)
    longer = (
        (size, float(np.median(launches)) - _replayed_ns(machine, size)) for size, launches in sorted(times.items())
    )
    points = tuple((size, max(0, round(more * PS_PER_NS))) for size, more in longer)
    return _by_protocol(points, machine.inter.eager_up_to_bytes)


def _by_protocol(points: Points, eager_up_to_bytes: int) -> Points:
    """Return the points with a step at the eager limit: the request and grant of larger messages cross as well."""
    eager, large = ([point for point in points if (point[0] > eager_up_to_bytes) is above] for above in (False, True))
    step = {eager_up_to_bytes: eager[-1][1], eager_up_to_bytes + 1: large[0][1]} if eager and large else {}
    return tuple(sorted((step | dict(points)).items()))


def fit_trailing(after: Sequence[Interruption], eager_up_to_bytes: int) -> Points:
    """Return `PathModel.trailing_ps`, () without samples. What larger messages leave is data still under way."""
    eager = (one for one in after if one.message_bytes <= eager_up_to_bytes)
    longer = by_key((one.message_bytes, (one.first_ns + one.second_ns) / 2) for one in eager)
    return tuple((size, max(0, round(float(np.median(ns)) * PS_PER_NS))) for size, ns in sorted(longer.items()))


def fit_single_copy(exchanges: Sequence[Exchanges], machine: Machine) -> tuple[int, int]:
    """Return `PathModel.single_copy`: the most that copying may take for exchanges to last as long as measured.

    Streams keep both processors busy with more than single messages do. The largest exchange back to back tells.
    """
    times = by_key((one.message_bytes, float(np.median(one.ns))) for one in exchanges if one.computed_ns == 0)
    stream_fs = machine.inter.copy_fs_per_byte
    if not times or stream_fs == 0:
        return 0, 0
    size, launches = max(times.items())
    limit_ns = float(np.median(launches))

    def longer(copy_fs: int) -> bool:
        copied = replace(machine, inter=replace(machine.inter, copy_fs_per_byte=max(1, copy_fs)))
        return _replayed_ns(copied, size) > limit_ns

    candidates = range(stream_fs, 0, -max(1, stream_fs // _STEPS))
    return size, next((copy_fs for copy_fs in candidates if not longer(copy_fs)), 0)


def crossed(machine: Machine, crossing: Points) -> Machine:
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
