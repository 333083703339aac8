"""iperf3 -J: the report of a client as one JSON object, of --json-stream one event a line. Read with 3.1 to 3.21.

Of n reporting intervals each n-th part of all bytes is a sample, with the time that it took: the mean of the intervals'
own rates, as times of a fixed amount, would be less than the rate of the whole (their harmonic mean). Neighbouring
samples are not independent. Intervals of a sender count what it gave to the kernel, so those of the server are taken
where they are told (`--get-server-output` of a server with -J). Without them samples over TCP are scaled to the rate of
the whole that arrived, and over UDP that is the sample. iperf3 has no latency of requests: its `rtt` is the kernel's
smoothed estimate.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nearmetal.errors import ForeignFileError
from nearmetal.reading import parse_json
from nearmetal.workloads.figures import STREAMS, UNITS
from nearmetal.workloads.pairs import Pair
from nearmetal.workloads.streams import ClientResult, PairWorkload, StreamOptions
from nearmetal.workloads.tools.lines import refuse, to_text
from nearmetal.workloads.tools.tool import ONE_MEAN, FileCell, Foreign, Import, Spans, Tool, of_streams, one_figure

PROGRAM = "iperf3 -J"


@dataclass(frozen=True, slots=True)
class ReportInterval:
    """What all streams moved in one reporting interval."""

    start_s: float
    seconds: float
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """One run: `received_bit_s` is what arrived, `retransmits` is -1 and `lost` 0 where the protocol has none.

    `of_sender` says that its intervals count what was sent, whether or not it arrived; `reverse` that the server sent.
    `limit_bit_s` is what each stream may send, 0 without a limit, None where a release does not say. `window_bytes` is
    the socket's buffer, 0 for the kernel's choice, and where a release does not say. `paced_bit_s` is what the kernel
    lets each stream send (`--fq-rate`), `of_sender_tcp` its congestion control and the segments' size, both the
    kernel's unless chosen.
    """

    version: str
    protocol: str
    of_sender: bool
    streams: int
    reverse: bool
    block_bytes: int
    intervals: tuple[ReportInterval, ...]
    received_bit_s: float
    retransmits: int
    lost: int
    limit_bit_s: int | None
    window_bytes: int
    paced_bit_s: int
    of_sender_tcp: str

    @property
    def unheard(self) -> bool:
        """Return whether nothing says when datagrams arrived."""
        return self.of_sender and self.protocol == "udp"


def parse(data: bytes) -> Report:
    """Read one report; raise ForeignFileError for anything else, with iperf3's own words when it reports an error."""
    text = to_text(data + b"\n", PROGRAM)
    try:
        raw = _of_stream(text) if text.startswith('{"event"') else parse_json(text)
    except (ValueError, TypeError, KeyError) as error:
        raise refuse(PROGRAM, f"it is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise refuse(PROGRAM, "it is not an object")
    if "error" in raw:
        raise refuse(PROGRAM, f"iperf3 says: {str(raw['error'])[:200]}")
    try:
        return _report(raw)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise refuse(PROGRAM, f"a field is missing or is of another kind: {error!r}") from error


def _of_stream(text: str) -> object:
    """Return the report that the events of --json-stream (3.17 and later), one a line, are the parts of."""
    events = [_object(parse_json(line)) for line in text.splitlines() if line.strip()]
    whole: dict[str, object] = {"intervals": [one.get("data") for one in events if one.get("event") == "interval"]}
    return whole | {str(one["event"]): one.get("data") for one in events if one.get("event") in _ONCE}


_ONCE = ("start", "end", "error")


def _report(raw: dict[str, object]) -> Report:
    start, end = _object(raw["start"]), _object(raw["end"])
    test = _object(start["test_start"])
    # UDP reports have one sum; what the receiver saw is in it.
    sent = _object(end.get("sum_sent") or end["sum"])
    received = _object(end.get("sum_received") or end["sum"])
    if test.get("bidir") or "sum_sent_bidir_reverse" in end:  # 3.7 to 3.12 do not say it in the test
        raise refuse(PROGRAM, "it is of both directions at once (--bidir)")
    protocol = str(test["protocol"]).lower()
    if f"{protocol}_stream" not in STREAMS:
        raise refuse(PROGRAM, f"it is over {protocol[:40]!r}")
    server = raw.get("server_output_json")
    of_server = isinstance(server, dict) and not test.get("reverse")
    intervals = _object(server if of_server else raw)["intervals"]
    if not isinstance(intervals, list) or not intervals:
        raise ValueError("there are no intervals")
    sums = [_object(_object(one)["sum"]) for one in intervals]
    return Report(
        version=str(start["version"]),
        protocol=protocol,
        of_sender=not test.get("reverse") and not of_server,
        streams=_count(test["num_streams"]),
        reverse=bool(test.get("reverse")),
        block_bytes=_count(test["blksize"]),
        intervals=tuple(_interval(one) for one in sums if not one.get("omitted")),
        received_bit_s=_number(received["bits_per_second"]) * (1.0 if "sum_received" in end else _arrived(received)),
        retransmits=_count(sent.get("retransmits", -1), least=-1),
        lost=_count(_object(end.get("sum") or {}).get("lost_packets", 0)),
        limit_bit_s=_count(test["target_bitrate"]) if "target_bitrate" in test else None,
        window_bytes=_count(start.get("sock_bufsize", 0)),
        paced_bit_s=_count(test.get("fqrate", 0)),
        of_sender_tcp=" and ".join(filter(None, (str(end.get("sender_tcp_congestion", ""))[:16], _segments(start)))),
    )


def _segments(start: dict[str, object]) -> str:
    found = start.get("tcp_mss", start.get("tcp_mss_default"))  # the former is that of -M
    return f"segments of {_count(found)} bytes" if found else ""


def _interval(raw: dict[str, object]) -> ReportInterval:
    """Return an interval; the first that is kept after omitted ones (-O) begins at 0, as its end is counted.

    A client of 3.12 tells it a start of before and as many seconds as it and the omitted one took together.
    """
    start_s, seconds, moved = _number(raw["start"]), _number(raw["seconds"]), _count(raw["bytes"])
    end_s = _number(raw.get("end", start_s + seconds))
    return ReportInterval(start_s, seconds, moved) if seconds <= end_s else ReportInterval(0.0, end_s, moved)


def _arrived(sent: dict[str, object]) -> float:
    """Return the share of a sender's datagrams that arrived, as releases without `sum_received` report it."""
    return 1.0 - _count(sent["lost_packets"]) / _count(sent["packets"], least=1)


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:40]!r} is not an object")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    return float(value)


def _count(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 62:
        raise TypeError(f"{str(value)[:40]!r} is not a whole number")
    return value


# ---- launching, decoding, adopting


INTERVAL_S = 0.1
"""The shortest that iperf3 reports."""


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    argv = ["iperf3", "-c", pair.server.address, "-p", str(pair.port), "-J", "-t", str(options.seconds)]
    argv += ["-i", str(INTERVAL_S), "-P", str(options.streams), "--get-server-output"]
    argv += ["-l", str(size)] if size else []
    argv += ["-u"] if options.udp else []
    # Its limit is for each stream, but the option's for the pair.
    argv += ["-b", f"{options.rate_mbit * 1_000_000 // options.streams}"] if options.rate_mbit else []
    return argv


def _read_result(data: bytes) -> ClientResult:
    found = parse(data)
    lost = found.lost if found.protocol == "udp" else -1
    return ClientResult(f"{found.protocol}_stream", _spans(found), found.retransmits, lost)


_WORKLOAD = PairWorkload(
    "iperf3",
    lambda pair: ["iperf3", "-s", "-p", str(pair.port), "-J", "-i", str(INTERVAL_S)],
    _client,
    _read_result,
    first_port=5201,
)


def _spans(report: Report) -> Spans:
    """Return the rate of every equal part of the bytes, or of the whole where intervals do not tell what arrived."""
    if report.unheard:
        return one_figure("bit/s", report.received_bit_s)
    intervals = _without_rest([one for one in report.intervals if one.seconds > 0])
    parts = sum(one.moved_bytes > 0 for one in intervals)
    if not parts:
        raise ForeignFileError("the report of iperf3 has no interval in which a byte was moved")
    ends_s = _ends_of_parts(intervals, parts)
    if any(end <= begin for begin, end in pairwise(ends_s)):
        raise ForeignFileError("the report of iperf3 has bytes that took no time")
    part_bytes = sum(one.moved_bytes for one in intervals) / parts
    if report.of_sender:
        part_bytes = report.received_bit_s / 8 * (ends_s[-1] - ends_s[0]) / parts
    ns = [UNITS["B/s"].to_ns(part_bytes / (end - begin)) for begin, end in pairwise(ends_s)]
    begin_ns = [UNITS["s"].to_ns(begin) if begin else 0 for begin in ends_s[:-1]]
    return Spans(ns, begin_ns, UNITS["bit/s"].to_ns(report.received_bit_s))


def _without_rest(intervals: list[ReportInterval]) -> list[ReportInterval]:
    """Leave out what a server reports when its client has ended, however short."""
    rest = intervals and 2 * intervals[-1].seconds < intervals[0].seconds
    return intervals[:-1] if rest else intervals


def _ends_of_parts(intervals: Sequence[ReportInterval], parts: int) -> list[float]:
    """Return when the first byte could be sent, and by when each of so many equal parts of all bytes had arrived.

    Within an interval bytes are taken to arrive evenly. Time without a byte belongs to the part that it holds up, at
    the end to the last.
    """
    total, moved, now = sum(one.moved_bytes for one in intervals), 0, intervals[0].start_s
    ends = [now]
    for one in intervals:
        while moved * parts < len(ends) * total <= (moved + one.moved_bytes) * parts:
            share = (len(ends) * total - moved * parts) / (one.moved_bytes * parts)
            ends.append(now + one.seconds * share)
        moved, now = moved + one.moved_bytes, now + one.seconds
    return [*ends[:-1], now]


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    report = parse(data)
    operation = f"{report.protocol}_stream"
    of_intervals = (
        "its samples are equal parts of all bytes, as many as intervals, not messages; no latency of requests"
    )
    if report.of_sender:
        of_intervals += "; they count what was sent, scaled to the rate that arrived"
    lacks: tuple[str, ...] = (ONE_MEAN if report.unheard else of_intervals,)
    name = of_streams("iperf3", report.streams) + ("-reverse" if report.reverse else "")
    if report.limit_bit_s not in {None, _UDP_BIT_S if report.protocol == "udp" else 0}:
        name += f"-{report.limit_bit_s / 1e6:g}-mbit" if report.limit_bit_s else "-unlimited"
    name += f"-paced-{report.paced_bit_s / 1e6:g}-mbit" if report.paced_bit_s else ""
    lacks += (f"sent with {report.of_sender_tcp}, chosen or not",) if report.of_sender_tcp else ()
    if report.protocol == "udp":  # the default follows the path's MTU, so that paths to be compared may differ
        lacks += (f"its datagrams have {report.block_bytes} bytes: compare them with others of that size only",)
    elif report.block_bytes != _TCP_BLOCK_BYTES:
        name += f"-{report.block_bytes}-byte-blocks"
    name += f"-{report.window_bytes}-byte-window" if report.window_bytes else ""
    yield Foreign("iperf3", report.version, name, 2, ((operation, 0, _spans(report)),), lacks)


_TCP_BLOCK_BYTES = 128 << 10
_UDP_BIT_S = 1 << 20
"""The limit of datagrams unless `-b` sets another."""
_MARKS = (b'"intervals"', b'"test_start"', b'"error"')
_BEGINS = rb'^\{(?:$|"event": ?"start")'
TOOL = Tool("iperf3", (Import(_MARKS, _adopt, begins=_BEGINS),), _WORKLOAD, _WORKLOAD.samples, STREAMS)
