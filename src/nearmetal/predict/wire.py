"""Which part of a message's way needs the processors of its ends, where a wire or a shared processor shows it.

Streams do not: TCP packs the small messages of a stream into few packets, large ones wait for the wire, and all of them
for moderation, so the gap between them is neither what an end needs for one message nor less than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nearmetal.predict.models import FS_PER_NS, PS_PER_NS, Segment
from nearmetal.predict.segments import with_ends
from nearmetal.stats.interval import FloatArray
from nearmetal.study.facts import wire_of
from nearmetal.study.order import Scalar
from nearmetal.units import NS_PER_US

Works = Callable[[int, float], float]
"""From a size in bytes and its one-way time to what the processors of both ends work for such a message, in ns."""

PACKET_BYTES, HEADER_BYTES, BETWEEN_BYTES = 1448, 66, 24
"""Of TCP with time stamps in Ethernet frames; the last are preamble, check sequence and the gap between frames."""


@dataclass(frozen=True, slots=True)
class KnownWire:
    """A wire of which delay and rate are known, as the lab's are: what a message spends on it, no processor works."""

    delay_us: float
    rate_mbit: float

    @classmethod
    def of(cls, facts: Mapping[str, Scalar]) -> KnownWire | None:
        """Return the wire of a trial."""
        known = wire_of(facts)
        return cls(*known) if known and known[1] > 0 else None

    def ns(self, message_bytes: float) -> float:
        """Return how long a message is on it, with the headers of its packets."""
        packets = max(1.0, message_bytes / PACKET_BYTES)
        return self.delay_us * NS_PER_US + (message_bytes + packets * (HEADER_BYTES + BETWEEN_BYTES)) * (
            8 * NS_PER_US / self.rate_mbit
        )


def works_beside(wire: KnownWire, settings: Sequence[tuple[FloatArray, FloatArray]]) -> Works:
    """Return what nodes of one processor each work for a message: all of t that it is not on the wire.

    `settings` are the sizes and times (ns) of the path under each of its settings. One that makes messages wait, as
    moderation does, adds no work to them: the quickest shows how much there is, and what others take longer is waiting.
    Messages larger than the largest measured take as much as that.
    """
    largest = min(float(sizes[-1]) for sizes, _ in settings)

    def works_ns(message_bytes: int, time_ns: float) -> float:
        known = min(message_bytes, largest)
        times = (float(np.interp(known, *one)) for one in settings)
        return max(0.0, min(time_ns, *times) - wire.ns(known))

    return works_ns


def work_told(
    settings: Sequence[tuple[tuple[FloatArray, FloatArray], Mapping[int, float]]],
) -> tuple[tuple[int, int], ...]:
    """Return the processor time of a message while computing (`PathModel.work_ps`), from each setting's streams.

    `settings` are sizes and times (ns) of a ping-pong, and what streams tell, by size. A setting that makes messages
    wait adds no work to them, so of each size that with the quickest ping-pong tells it; never falling. The streams of
    others do not: their ends wait for a timer, which may be half of the time of a window.
    """
    sizes = sorted({size for _, works in settings for size in works})
    if not sizes:
        return ()

    def told(size: int) -> float:
        return min((float(np.interp(size, *times)), works[size]) for times, works in settings if size in works)[1]

    ps = np.maximum.accumulate([told(size) for size in sizes]) * PS_PER_NS
    return ((0, round(ps[0])), *((size, round(time)) for size, time in zip(sizes, ps, strict=True) if size))


def with_overheads(segments: Sequence[Segment], works_ns: Works) -> list[Segment]:
    """Return the segments with what both ends of a message work as overheads, half each, and the rest of t as waiting.

    `works_ns` tells that of a size and its t. At the largest size of each segment t is kept exactly.
    """
    found: list[Segment] = []
    for low, segment, high in with_ends(segments):
        times = [segment.one_way_ps(size) / PS_PER_NS for size in (low, high)]
        works = [min(works_ns(size, time), time) for size, time in zip((low, high), times, strict=True)]
        each, per_byte = rising((low, works[0]), (high, works[1]))
        left = [time - each - per_byte * size for size, time in zip((low, high), times, strict=True)]
        latency, slope = rising((low, max(0.0, left[0])), (high, max(0.0, left[1])))
        one = replace(
            segment,
            latency_ps=round(latency * PS_PER_NS),
            latency_fs_per_byte=round(slope * FS_PER_NS),
            send_overhead_ps=round(each * PS_PER_NS / 2),
            recv_overhead_ps=round(each * PS_PER_NS / 2),
            overhead_fs_per_byte=round(per_byte * FS_PER_NS / 2),
        )
        middle = int((low * high) ** 0.5)
        if left[0] > left[1] and low < middle < segment.up_to_bytes:  # what is left falls: in a step
            found.append(replace(one, up_to_bytes=middle, latency_ps=round(left[0] * PS_PER_NS)))
        found.append(one)
    return found


def rising(low: tuple[float, float], high: tuple[float, float]) -> tuple[float, float]:
    """Return a and b >= 0 of a + b s through the second point, and as near the first as they allow."""
    if high[0] == low[0] or high[1] <= low[1]:
        return high[1], 0.0
    slope = min((high[1] - low[1]) / (high[0] - low[0]), high[1] / high[0])
    return high[1] - slope * high[0], slope
