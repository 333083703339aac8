"""Figures that are a timer's and not the path's: a median that equals the scheduler's tick, or one of TCP's timers.

A rank that polls on a processor that its partner needs gives it up at a tick of the scheduler. Such a figure repeats to
a hundredth of a per cent, on every path alike, and looks like the best measurement of all.
"""

from collections.abc import Mapping, Sequence

from nearmetal.store.samples import CellSamples
from nearmetal.study.facts import TICK, TIMER
from nearmetal.study.order import Scalar
from nearmetal.units import counted
from nearmetal.workloads.figures import WITH_OPERATIONS
from nearmetal.workloads.operations import OPERATIONS

_MOST_TICKS = 4
_NEAR = 0.01
_OF_TCP = {40_000_000: "TCP's shortest delay of an acknowledgement", 200_000_000: "TCP's shortest retransmission time"}
"""include/net/tcp.h: TCP_DELACK_MIN (HZ/25) and TCP_RTO_MIN (HZ/5)."""


def timers_of(kind: str, cells: Sequence[CellSamples], facts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a fact `timer.<operation>.<bytes>` for each cell whose median is within 1 % of a known timer.

    Windows of messages are left out: their duration is that of many messages. So are workloads of a `kind` whose cells
    only happen to be called like an operation.
    """
    if kind not in WITH_OPERATIONS:
        return {}
    known = _known(facts)
    found: dict[str, Scalar] = {}
    for cell in cells:
        row = OPERATIONS.get(cell.operation)
        if row is None or row.kind == "window":
            continue
        median_ns = cell.summary.median_ns if cell.summary else 0.0
        name = next((name for ns, name in known.items() if abs(median_ns - ns) <= _NEAR * ns), "")
        if name:
            found[f"{TIMER}{cell.operation}.{cell.message_bytes}"] = name
    return found


def _known(facts: Mapping[str, Scalar]) -> dict[int, str]:
    tick_ns = facts.get(TICK)
    if not isinstance(tick_ns, int):
        return _OF_TCP
    of_the_tick = {
        count * tick_ns: f"{counted(count, 'tick')} of the scheduler ({tick_ns / 1e6:g} ms{' each' * (count > 1)})"
        for count in range(1, _MOST_TICKS + 1)
    }
    return _OF_TCP | of_the_tick
