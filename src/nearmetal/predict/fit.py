"""Path models from raw samples: LogGP-style parameters for each range of sizes, and the residual distribution.

Method, in this order; every step uses medians, so single slow messages move the residual and not the parameters.

1. One-way time t(s): half the median round trip at each size s.
2. Segments: t(s) is cut into straight lines by dynamic programming over all break points (Bellman and Roth, JASA
   64(327), 1969), least squares of the *relative* error in each, with a penalty for every further segment. So a
   change of protocol shows as a break point; only the eager limit, where it is known, always is one.
3. Streaming: a window of W messages lasts w = (W - 1) tau(s) + t(s) + t(acknowledgement). Between the sizes that were
   streamed tau is on the line through both (beyond the largest in proportion to the size), which is cut into g + s G
   at the sizes of step 1. A single message's own slope over s is kept apart from G (see `Segment`).
4. Overheads. Streaming both ways at once, a process needs tau2(s) for a message out and a message in; one way, the
   busier end needs tau(s). So o_s + o_r = tau2 and the larger of both is tau: the sender's, as on every path where the
   kernel carries a message to the other end's queue within the call that sends it. Without samples of both ways
   o_s = o_r = min(tau, t / 4), without streaming they are 0. All at the smallest size of the segment; L is what is left
   of t at size 0, and never below 0. Where both ends shared one processor, all of tau is theirs, or half of tau2 where
   that is less, and nothing but the processor keeps messages apart; where a wire of known rate joins nodes of one
   processor each, all but the wire is theirs (`predict/wire.py`). Above the eager limit t contains the handshake, which
   the simulator plays: it is taken out of L, and what L does not hold of it out of both overheads.
5. Residual, for one way: each size with enough samples has its own; others take the mean of the quantile functions of
   their segment (Vincent averaging; Ratcliff, Psychological Bulletin 86, 1979). A round trip is the sum of two ways.
   One way is found by deconvolution (`predict/residual.py`); its mean is at most 1 % above that of half a round trip.
6. Cold messages: what an exchange of both ends takes longer after both computed for some us than after none, the
   median over its sizes, never falling. It lies in the processors: half in the send, half in the receive.
7. Sizes. Each measured size keeps its own median exactly; between two of them the time is on the line through both,
   never above the larger nor below the smaller. Leaving every other of 23 sizes out, that misses the median by 5 to
   10 % on namespaces, lines in the logarithm of the size by 6 to 8 % with twice the worst error. The line of the
   segment holds only beyond the largest size, where `doubts` warns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.models import FS_PER_NS, PS_PER_NS, SMALL_BYTES, UNBOUNDED, FitQuality, PathModel, Segment
from nearmetal.predict.segments import (
    cut_by_protocol,
    end_of_segment,
    line_through,
    segment_of,
    sizes_beside,
    with_ends,
    with_residuals,
    without_handshake,
)
from nearmetal.predict.wire import Works, rising, with_overheads
from nearmetal.stats.interval import FloatArray
from nearmetal.units import by_key

METHOD = "relative least squares on medians, break points by dynamic programming"
NO_LOSS = 0.95
"""Share of twice the one-way throughput from which on both ways at once cost nothing."""
BY_ONE_END = 1.5
"""How much longer both ways at once take than one where both ends work for a message: twice; 1 where one end does."""
WELL_WITHIN = 0.75
"""A message comes while its receiver computes if its way takes at most this part of that."""


Points = tuple[tuple[int, int], ...]
"""Bytes, and the ps that belong to them."""
RoundTrips = Mapping[int, Sequence[NDArray[np.int64]]]
"""Ping-pong samples by size: whole round trips, ns, an array a launch."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Streaming samples of one size: `ns` (n,), int64, is the time of `window_messages` of each of `pairs` pairs."""

    message_bytes: int
    window_messages: int
    pairs: int
    ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Samples of both ends sending at once after both computed for `computed_ns`: `ns` (n,), mean of both ends."""

    message_bytes: int
    computed_ns: int
    ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interruption:
    """How much longer both ranks of a pair took to compute something beside a message than alone, on average."""

    message_bytes: int
    first_ns: float
    second_ns: float
    computed_ns: int


def fit_path(
    round_trips: RoundTrips,
    windows: Sequence[Windows] = (),
    eager_up_to_bytes: int = UNBOUNDED,
    both_ways: Sequence[Windows] = (),
    *,
    one_processor: bool = False,
    works_ns: Works | None = None,
) -> PathModel:
    """Fit one path; `one_processor` says that both ends of it shared a single one, `works_ns` what they do, if known.

    `eager_up_to_bytes` is the library's limit, when known. Raise BadInputError for fewer than two sizes or a size
    without enough samples.
    """
    merged = _merged(round_trips)
    sizes, times = _typical(merged)
    tau = _gaps_between_messages(windows, sizes, times)
    tau_both = _gaps_between_messages(both_ways, sizes, times)
    if one_processor and tau:
        works_ns = _works_of_both(tau, tau_both)
    told = tau if works_ns is None else {}
    segments: list[Segment] = []
    predicted = np.empty_like(times)
    measured = dict(zip(map(int, sizes), map(float, times), strict=True))
    for first, stop in cut_by_protocol(sizes, times, eager_up_to_bytes):
        intercept, slope = line_through(sizes[first:stop], times[first:stop])
        predicted[first:stop] = intercept + slope * sizes[first:stop]
        line = segment_of(
            up_to_bytes=end_of_segment(sizes, stop, eager_up_to_bytes),
            smallest=(float(sizes[first]), float(times[first])),
            intercept=intercept,
            slope=slope,
            busier=_gap_at(told, float(sizes[first])) if told else None,
            total=_gap_at(tau_both, float(sizes[first])) if told and tau_both else None,
        )
        below, above = (sizes_beside(sizes, end, eager_up_to_bytes) for end in (first, stop))
        samples = {int(size): merged[int(size)] for size in sizes[first:stop]}
        segments += with_residuals(line, samples, measured, below and below[0], above and above[1])
    error = np.abs(predicted / times - 1)
    quality = FitQuality(
        METHOD, int(sum(ns.size for ns in merged.values())), float(np.median(error)), float(error.max())
    )
    segments = _with_gaps(segments, tau)
    if works_ns is not None:
        segments = with_overheads(segments, works_ns)
    if one_processor and tau:
        segments = [replace(one, gap_ps=one.send_overhead_ps, fs_per_byte=one.overhead_fs_per_byte) for one in segments]
    fetched = one_processor and _done_by_one_end(tau, tau_both, eager_up_to_bytes)
    return PathModel(
        without_handshake(segments, eager_up_to_bytes, fetched=fetched),
        eager_up_to_bytes,
        fit=quality,
        measured_bytes=tuple(sorted(merged)),
        fetched=fetched,
        one_processor=one_processor,
    )


def _works_of_both(tau: dict[int, float], tau_both: dict[int, float]) -> Works:
    """Return what both ends work for a message on the one processor that they share.

    One way, an end that has less to do polls meanwhile; both ways at once, where that is quicker, it does not.
    """

    def works_ns(size: int, _: float) -> float:
        one_way = _gap_at(tau, size)
        return min(one_way, _gap_at(tau_both, size) / 2) if tau_both else one_way

    return works_ns


def _done_by_one_end(tau: dict[int, float], tau_both: dict[int, float], eager_up_to_bytes: int) -> bool:
    """Return whether one end works for messages above the eager limit: then both ways take hardly longer than one."""
    sizes = [size for size in tau if size > eager_up_to_bytes and size in tau_both]
    return bool(sizes) and all(tau_both[size] < BY_ONE_END * tau[size] for size in sizes)


def fit_port(windows: Sequence[Windows]) -> int:
    """Return the fs per byte of the wire that a node's pairs share: as fast as the largest total throughput seen."""
    rates = [w.message_bytes * w.window_messages * w.pairs / float(np.median(w.ns)) for w in windows]
    if max(rates, default=0.0) <= 0:
        raise BadInputError("there are no streaming samples with a payload", hint="add the operation `bw` to the study")
    return round(FS_PER_NS / max(rates))


def fit_copy(one_way: Sequence[Windows], both_ways: Sequence[Windows]) -> int:
    """Return the fs that a process needs for each byte it sends or receives; 0 where both ways at once cost nothing.

    From the largest throughput of one pair one way, and both ways at once (both directions added): a path that copies
    with the processors of its ends moves little more in both directions than in one.
    """
    alone, both = _rate(one_way), 2 * _rate(both_ways)
    return round(FS_PER_NS / both) if 0 < both < NO_LOSS * 2 * alone else 0


def fit_work(both_ways: Sequence[Windows], round_trips: RoundTrips) -> dict[int, float]:
    """Return, by size, what a message takes of either end's processor (ns) where one streams both ways and computes."""
    gaps = _gaps_between_messages(both_ways, *_typical(_merged(round_trips)))
    return {size: gaps[size] / 2 for size in gaps}


def fit_cold(exchanges: Sequence[Exchanges], eager_up_to_bytes: int = UNBOUNDED) -> tuple[tuple[int, int], ...]:
    """Return what computing adds to a send, and likewise to a receive, as `PathModel.cold`; () without exchanges.

    Sizes that were not also exchanged back to back say nothing. Above the eager limit, how a transfer goes changes its
    time by more than any cache does, and requests and grants would be counted as well.
    """
    eager = (one for one in exchanges if one.message_bytes <= eager_up_to_bytes)
    times = by_key(((one.computed_ns, one.message_bytes), float(np.median(one.ns))) for one in eager)
    found = {key: float(np.median(launches)) for key, launches in times.items()}
    hot = {size: time for (computed_ns, size), time in found.items() if computed_ns == 0}
    more = by_key((gap, time - hot[size]) for (gap, size), time in found.items() if gap > 0 and size in hot)
    gaps = sorted(more)
    extra = np.maximum.accumulate([0.0, *(float(np.median(more[gap])) / 2 for gap in gaps)])[1:]
    return tuple((gap * PS_PER_NS, round(one * PS_PER_NS)) for gap, one in zip(gaps, extra, strict=True))


def fit_beside(
    one_way: Sequence[Interruption],
    times: tuple[FloatArray, FloatArray],
    eager_up_to_bytes: int,
    streams_ps: Points = (),
) -> tuple[Points, Points]:
    """Return `PathModel.send_work_ps` and `receive_work_ps` from messages whose receiver computes, () without.

    The larger of both counts: an interrupt of a stream finds several messages, single ones have no large sizes. A
    message that takes longer than the computing, by the `times` of the ping-pong, is waited for and tells nothing.
    """
    sizes, ns = times
    found = [one for one in one_way if one.message_bytes <= eager_up_to_bytes]
    found = [one for one in found if float(np.interp(one.message_bytes, sizes, ns)) < WELL_WITHIN * one.computed_ns]
    if not found:
        return (), ()
    sent = _never_falling(by_key((one.message_bytes, one.first_ns) for one in found))
    received = _never_falling(by_key((one.message_bytes, one.second_ns) for one in found))
    if not streams_ps:
        return (*sent, *([(eager_up_to_bytes, sent[-1][1])] if eager_up_to_bytes > sent[-1][0] else [])), received
    return _larger(sent, streams_ps), _larger(received, streams_ps)


def _larger(single: Points, streams: Points) -> Points:
    """Return the larger of both at each size of either: beyond the last, `single` is constant, streams by the byte."""

    def at(points: Points, size: int, beyond: float) -> float:
        sizes, ps = zip(*points, strict=True)
        return ps[-1] * beyond if size > sizes[-1] else float(np.interp(size, sizes, ps))

    sizes = sorted({size for size, _ in (*single, *streams)})
    most = ((at(single, size, 1), at(streams, size, size / max(1, streams[-1][0]))) for size in sizes)
    ps = np.maximum.accumulate([max(both) for both in most])
    return tuple((size, round(one)) for size, one in zip(sizes, ps, strict=True))


def _never_falling(launches: Mapping[int, Sequence[float]]) -> Points:
    """Return the median by size, in ps, from 0 bytes on."""
    sizes = sorted(launches)
    ps = np.maximum.accumulate([max(0.0, float(np.median(launches[size]))) for size in sizes]) * PS_PER_NS
    return ((0, round(ps[0])), *((size, round(one)) for size, one in zip(sizes, ps, strict=True)))


def _rate(windows: Sequence[Windows]) -> float:
    """Return the largest throughput of one pair, bytes a ns; 0 without samples."""
    rates = (w.message_bytes * w.window_messages / float(np.median(w.ns)) for w in windows if w.pairs == 1)
    return max(rates, default=0.0)


def typical_times(round_trips: RoundTrips) -> tuple[FloatArray, FloatArray]:
    """Return sizes, rising, and the one-way time of each: half the median round trip, in ns."""
    return _typical(_merged(round_trips))


def _typical(merged: dict[int, NDArray[np.int64]]) -> tuple[FloatArray, FloatArray]:
    sizes = np.array(sorted(merged), dtype=np.float64)
    return sizes, np.array([np.median(merged[int(size)]) / 2 for size in sizes])


def _merged(round_trips: RoundTrips) -> dict[int, NDArray[np.int64]]:
    found = {size: np.concatenate(launches) for size, launches in round_trips.items()}
    if len(found) < 2:
        text = f"a path needs ping-pong samples of at least 2 sizes, there are {len(found)}"
        raise BadInputError(text, hint="add the operation `latency` with several sizes to the study")
    for size, ns in found.items():
        if ns.size < 10 or int(ns.min()) <= 0:
            text = f"{ns.size} ping-pong samples of {size} B, shortest {int(ns.min()) if ns.size else 0} ns"
            raise BadInputError(text, hint="a fit needs at least 10 positive samples of each size")
    return found


def _gaps_between_messages(windows: Sequence[Windows], sizes: FloatArray, times: FloatArray) -> dict[int, float]:
    """Return ns between messages of one pair, by size.

    A window lasts W - 1 gaps, the way of its last message and the way of the acknowledgement; of several launches the
    median counts. Where only large messages were streamed, the smallest are as far apart as those, but by no more than
    the time of a single one.
    """
    found: list[tuple[int, float]] = []
    for window in windows:
        if window.pairs != 1:
            continue
        total, count = float(np.median(window.ns)), window.window_messages
        ends = float(np.interp(window.message_bytes, sizes, times)) + float(times[0])
        gap = max((total - ends) / (count - 1), total / count / 2) if count > 1 else total
        found.append((window.message_bytes, gap))
    gaps = {size: float(np.median(launches)) for size, launches in by_key(found).items()}
    if gaps and (least := min(gaps)) > max(SMALL_BYTES, sizes[0]):
        gaps[int(sizes[0])] = min(gaps[least], float(times[0]))
    return gaps


def _gap_at(tau: dict[int, float], size: float) -> float:
    """Return ns between messages of a size: on the line through its neighbours, never falling; beyond, by the byte."""
    sizes = sorted(tau)
    gaps = np.maximum.accumulate([tau[one] for one in sizes])
    if size > sizes[-1] > 0:
        return float(gaps[-1]) * size / sizes[-1]
    return float(np.interp(size, sizes, gaps))


def _with_gaps(segments: Sequence[Segment], tau: dict[int, float]) -> list[Segment]:
    """Return the segments with the gap between messages that holds from their smallest size to their largest."""
    if not tau:
        return list(segments)
    found: list[Segment] = []
    for low, segment, high in with_ends(segments):
        gap, per_byte = rising((low, _gap_at(tau, low)), (high, _gap_at(tau, high)))
        found.append(replace(segment, gap_ps=round(gap * PS_PER_NS), fs_per_byte=round(per_byte * FS_PER_NS)))
    return found
