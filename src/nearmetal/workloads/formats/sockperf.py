"""sockperf: the summary that it prints, and the file of every packet (--full-log). Read with versions 3.5 to 3.10.

The latency of both is half a round trip. The log holds when each packet was sent and when its answer came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.workloads.formats.lines import number, refuse, to_text, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = "sockperf"

_LATENCY = re.compile(r"^sockperf: Summary: (?P<kind>Latency|Round trip) is (?P<us>[\d.]+) usec", re.MULTILINE)
_OBSERVED = re.compile(r"^sockperf: Total (\d+) observations", re.MULTILINE)
_SENT = re.compile(r"^sockperf: \[Total Run\] .*\bSentMessages=(\d+)", re.MULTILINE)
_LOST = re.compile(
    r"^sockperf: # dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)",
    re.MULTILINE,
)
_PROTOCOL = re.compile(rb"PORT = +\d{1,5} # (TCP|UDP)\b")
_LOOK_BYTES = 1 << 16
_PARAMETERS = re.compile(r"--msg-size=(\d+)")
_HEAD = "packet, txTime(sec), rxTime(sec), latency(usec)"
_ROW = re.compile(r"(\d+), (\d+)\.(\d{9}), (\d+)\.(\d{9}), *[\d.]+")


@dataclass(frozen=True, slots=True)
class Summary:
    """What sockperf says at its end: the mean half round trip, how many there were, what went astray.

    `observations` leave the warm-up out, `sent` counts every message.
    """

    mean_half_round_trip_us: float
    observations: int
    sent: int
    dropped: int
    duplicated: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class Packets:
    """Every answered packet: ns of sockperf's clock at sending, and the whole round trip in ns."""

    message_bytes: int
    sent_ns: tuple[int, ...]
    round_trip_ns: tuple[int, ...]


def protocol_of(data: bytes) -> str:
    """Return `tcp` or `udp` where the output names the one protocol of its connections, else nothing."""
    found = {match[1].lower() for match in _PROTOCOL.finditer(data[:_LOOK_BYTES])}
    return found.pop().decode() if len(found) == 1 else ""


def parse_summary(data: bytes) -> Summary:
    """Read what sockperf printed; raise ForeignFileError unless it came to a summary."""
    text = to_text(data, PROGRAM)
    latency, observed, lost, sent = (one.search(text) for one in (_LATENCY, _OBSERVED, _LOST, _SENT))
    if not latency or not observed or not lost or not sent:
        raise refuse(PROGRAM, "there is no summary of latencies in it")
    halves = 1.0 if latency["kind"] == "Latency" else 0.5
    return Summary(
        number(latency["us"], PROGRAM, "the latency") * halves,
        whole(observed[1], PROGRAM, "the count of observations"),
        whole(sent[1], PROGRAM, "the count of messages"),
        *(whole(count, PROGRAM, "a count of lost messages") for count in lost.groups()),
    )


def parse_full_log(data: bytes) -> Packets:
    """Read a full log; raise ForeignFileError for anything else, torn files included."""
    text = to_text(data, PROGRAM)
    head, found, rows = text.partition(_HEAD)
    if not found:
        raise refuse("sockperf --full-log", f"there is no line {_HEAD!r} in it")
    size = _PARAMETERS.search(head)
    sent, spans = [], []
    for began_ns, ended_ns in _rows(rows):
        sent.append(began_ns)
        spans.append(ended_ns - began_ns)
    if not spans:
        raise refuse("sockperf --full-log", "it holds no packet")
    if min(spans) <= 0:
        raise refuse("sockperf --full-log", "an answer came before its packet was sent")
    return Packets(whole(size[1], PROGRAM, "the size") if size else 0, tuple(sent), tuple(spans))


def _rows(text: str) -> Iterator[tuple[int, int]]:
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith("---"):
        raise refuse("sockperf --full-log", "it is cut: the closing line is missing")
    for line in lines[:-1]:
        match = _ROW.fullmatch(line.strip())
        if match is None:
            raise refuse("sockperf --full-log", f"{line[:60]!r} is no packet")
        _, begun, begun_ns, ended, ended_ns = match.groups()
        if max(len(begun), len(ended)) > 9:
            raise refuse("sockperf --full-log", f"{line[:60]!r} is beyond any clock")
        yield int(begun + begun_ns), int(ended + ended_ns)
