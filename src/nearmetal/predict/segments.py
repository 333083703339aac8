"""The ranges of sizes of a path, and the parameters of each: steps 2, 4, 5 and 7 of the method in `fit.py`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearmetal.predict.models import FS_PER_NS, PS_PER_NS, UNBOUNDED, Segment
from nearmetal.predict.residual import residual_of
from nearmetal.stats.interval import FloatArray

_Line = tuple[int, int]  # L (ps) and fs a byte
Sizes = NDArray[np.int64]

MAX_SEGMENTS = 8
SEGMENT_PENALTY = 0.02
"""Squared relative error that a further segment must save: one of 2 % at about 50 points, or 14 % at one."""
OWN_RESIDUAL = 300
"""Samples from which on a size has a residual of its own; below, it takes the one of its segment."""
_LINE_SIZES = 2
"""Sizes that a line needs."""


def line_through(sizes: FloatArray, times: FloatArray) -> tuple[float, float]:
    """Least squares of the relative error of a + b s, with a, b >= 0."""
    weight = 1 / times
    if sizes.size == 1 or sizes[0] == sizes[-1]:
        return float(times.mean()), 0.0
    design = np.stack([weight, sizes * weight], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(design, np.ones_like(times), rcond=None)
    if slope < 0:
        return float(weight.sum() / (weight**2).sum()), 0.0
    if intercept < 0:
        relative = sizes * weight
        return 0.0, float(relative.sum() / (relative**2).sum())
    return float(intercept), float(slope)


def cut_by_protocol(sizes: FloatArray, times: FloatArray, eager_up_to_bytes: int) -> list[tuple[int, int]]:
    """Return the segments of eager sizes, then of those with a handshake; of all together when either has one size."""
    eager = int(np.searchsorted(sizes, eager_up_to_bytes, side="right"))
    if eager < _LINE_SIZES or sizes.size - eager < _LINE_SIZES:
        return _cut(sizes, times)
    above = _cut(sizes[eager:], times[eager:])
    return _cut(sizes[:eager], times[:eager]) + [(first + eager, stop + eager) for first, stop in above]


def far_from_its_protocol(measured: Sizes, sizes: Sizes, factor: float, limit: int) -> NDArray[np.bool_]:
    """Return which sizes, up to the eager limit or down to it, are by more than `factor` beyond those of their line.

    Where two sizes of each protocol were measured, no line joins them (`cut_by_protocol`).
    """
    eager, other = measured[measured <= limit], measured[measured > limit]
    if min(eager.size, other.size) < _LINE_SIZES:
        return np.zeros(sizes.shape, dtype=bool)
    found: NDArray[np.bool_] = np.where(sizes <= limit, sizes > factor * eager[-1], factor * sizes < other[0])
    return found


def end_of_segment(sizes: FloatArray, stop: int, eager_up_to_bytes: int) -> int:
    """Return the largest size of a segment: what is below the eager limit behaves as the eager sizes do."""
    if stop == sizes.size:
        return UNBOUNDED
    return eager_up_to_bytes if sizes[stop - 1] <= eager_up_to_bytes < sizes[stop] else int(sizes[stop - 1])


def with_ends(segments: Iterable[Segment]) -> Iterator[tuple[int, Segment, int]]:
    """Yield each segment between the sizes it is from and up to; one without end up to twice what it is from."""
    low = 0
    for segment in segments:
        yield low, segment, 2 * max(low, 1) if segment.up_to_bytes == UNBOUNDED else segment.up_to_bytes
        low = segment.up_to_bytes


def sizes_beside(sizes: FloatArray, cut: int, eager_up_to_bytes: int) -> tuple[int, int] | None:
    """Return the sizes on both sides of a cut; None at the ends and where another protocol begins."""
    if not 0 < cut < sizes.size or sizes[cut - 1] <= eager_up_to_bytes < sizes[cut]:
        return None
    return int(sizes[cut - 1]), int(sizes[cut])


def _cut(sizes: FloatArray, times: FloatArray) -> list[tuple[int, int]]:
    """Return [first, stop) of each segment: the cut with the least squared relative error plus penalties."""
    n = sizes.size
    cost = np.full(n + 1, np.inf)
    cost[0] = 0.0
    back = np.zeros(n + 1, dtype=np.int64)
    count = np.zeros(n + 1, dtype=np.int64)
    for stop in range(2, n + 1):
        for first in (0, *range(2, stop - 1)):
            if count[first] >= MAX_SEGMENTS or not np.isfinite(cost[first]):
                continue
            intercept, slope = line_through(sizes[first:stop], times[first:stop])
            error = (intercept + slope * sizes[first:stop]) / times[first:stop] - 1
            total = cost[first] + float((error**2).sum()) + SEGMENT_PENALTY
            if total < cost[stop]:
                cost[stop], back[stop], count[stop] = total, first, count[first] + 1
    cuts: list[tuple[int, int]] = []
    stop = n
    while stop > 0:
        cuts.append((int(back[stop]), stop))
        stop = int(back[stop])
    return cuts[::-1]


def segment_of(
    *,
    up_to_bytes: int,
    smallest: tuple[float, float],
    intercept: float,
    slope: float,
    busier: float | None,
    total: float | None,
) -> Segment:
    """Return a segment from its line and from the gaps of its smallest size: one way, and both ways at once (ns)."""
    if busier is not None and total is not None:
        total = min(total, intercept)
        send = min(busier, total)
        receive = min(total - send, send)
    else:
        send = receive = min(busier or 0.0, smallest[1] / 4, intercept / 2)
    send_ps, receive_ps = round(send * PS_PER_NS), round(receive * PS_PER_NS)
    return Segment(
        up_to_bytes=up_to_bytes,
        latency_ps=max(0, round(intercept * PS_PER_NS) - send_ps - receive_ps),
        send_overhead_ps=send_ps,
        recv_overhead_ps=receive_ps,
        latency_fs_per_byte=round(slope * FS_PER_NS),
        fs_per_byte=round(slope * FS_PER_NS),
    )


def without_handshake(segments: list[Segment], eager_up_to_bytes: int, *, fetched: bool) -> tuple[Segment, ...]:
    """Return the segments without the messages before the data: a request, and a grant unless the data are fetched."""
    small = segments[0]
    handshake_ps = small.send_overhead_ps + (1 if fetched else 2) * (small.latency_ps + small.recv_overhead_ps)
    cut: list[Segment] = []
    lowest = 0
    for segment in segments:
        if lowest < eager_up_to_bytes < segment.up_to_bytes and eager_up_to_bytes != UNBOUNDED:
            cut.append(replace(segment, up_to_bytes=eager_up_to_bytes))
        rendezvous = segment.up_to_bytes > eager_up_to_bytes
        cut.append(_shorter(segment, handshake_ps) if rendezvous else segment)
        lowest = segment.up_to_bytes
    return tuple(cut)


def _shorter(segment: Segment, by_ps: int) -> Segment:
    """Return a segment that takes so much less: in L, and what that does not hold, in both overheads alike."""
    waits_ps = min(segment.latency_ps, by_ps)
    left_ps = by_ps - waits_ps
    receives_ps = min(segment.recv_overhead_ps, max(left_ps // 2, left_ps - segment.send_overhead_ps))
    return replace(
        segment,
        latency_ps=segment.latency_ps - waits_ps,
        send_overhead_ps=max(0, segment.send_overhead_ps - (left_ps - receives_ps)),
        recv_overhead_ps=segment.recv_overhead_ps - receives_ps,
    )


def with_residuals(
    line: Segment,
    samples: dict[int, NDArray[np.int64]],
    times_ns: dict[int, float],
    below: int | None,
    above: int | None,
) -> list[Segment]:
    """Return the segment cut at its sizes: each measured size has its own time exactly, and a residual.

    Between two sizes the time is on the line through both, with the residual of the nearer one (by logarithm). Where
    that line begins below the overheads, it is on the line from those to the nearer one; where it falls, it is the time
    of the nearer one. `below` and `above` are the measured sizes beside the segment's, in segments of their own: each
    segment ends halfway to the other.
    """
    sizes = sorted(samples)
    residuals = {size: residual_of([ns]) for size, ns in samples.items() if ns.size >= OWN_RESIDUAL}
    if len(residuals) < len(sizes):
        residuals = dict.fromkeys(sizes, residual_of(list(samples.values()))) | residuals
    overheads_ps = line.send_overhead_ps + line.recv_overhead_ps
    parts: list[Segment] = []
    before: _Line | None = None
    if below is not None:
        before = _between((below, times_ns[below]), (sizes[0], times_ns[sizes[0]]), overheads_ps)[1]
    for size, following in zip(sizes, [*sizes[1:], above], strict=True):
        own = _through(size, times_ns[size], line.latency_fs_per_byte, overheads_ps)
        if following is None:
            middle, after, then = line.up_to_bytes, own, None
        else:
            middle = max(size, int((size * following) ** 0.5))
            after, then = _between((size, times_ns[size]), (following, times_ns[following]), overheads_ps)
        for up_to, (latency_ps, slope) in ((size, before or own), (middle, after)):
            if not parts or up_to > parts[-1].up_to_bytes:
                one = replace(line, up_to_bytes=up_to, latency_ps=max(0, latency_ps), latency_fs_per_byte=slope)
                parts.append(replace(one, residual=residuals[size]))
        before = then
    return parts


def _between(low: tuple[int, float], high: tuple[int, float], overheads_ps: int) -> tuple[_Line, _Line]:
    """Return the lines of the lower and the upper half of what lies between two measured sizes (bytes, ns)."""
    slope = round((high[1] - low[1]) / (high[0] - low[0]) * FS_PER_NS)
    joint = _through(*low, slope, overheads_ps)
    if slope >= 0 and joint[0] >= 0:
        return joint, joint
    beyond = [round(time_ns * PS_PER_NS) - overheads_ps for _, time_ns in (low, high)]
    if slope > 0 and low[0] > 0 and beyond[0] >= 0:
        # The line begins below the overheads: large messages take a little more for each byte than smaller ones. Lines
        # from the overheads to either size are as near as can be, and stay between the times of both.
        return (0, beyond[0] * 1000 // low[0]), (0, beyond[1] * 1000 // high[0])
    return _through(*low, 0, overheads_ps), _through(*high, 0, overheads_ps)


def _through(size: int, time_ns: float, slope_fs: int, overheads_ps: int) -> _Line:
    return round(time_ns * PS_PER_NS) - slope_fs * size // 1000 - overheads_ps, slope_fs
