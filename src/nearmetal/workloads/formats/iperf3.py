"""iperf3 -J: the report of a client as one JSON object, of --json-stream one event a line. Read with 3.1 to 3.21.

Every reporting interval is a sample of the rate; neighbouring intervals are not independent. iperf3 has no latency of
requests: its `rtt` is the kernel's smoothed estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nearmetal.reading import parse_json
from nearmetal.workloads.formats.lines import refuse, to_text

PROGRAM = "iperf3 -J"


@dataclass(frozen=True, slots=True)
class Interval:
    """What all streams moved in one reporting interval."""

    start_s: float
    seconds: float
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """One run: `received_bit_s` is what arrived, `retransmits` is -1 and `lost` 0 where the protocol has none."""

    version: str
    protocol: str
    block_bytes: int
    intervals: tuple[Interval, ...]
    received_bit_s: float
    retransmits: int
    lost: int


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
    intervals = raw["intervals"]
    if not isinstance(intervals, list) or not intervals:
        raise ValueError("there are no intervals")
    sums = [_object(_object(one)["sum"]) for one in intervals]
    report = Report(
        version=str(start["version"]),
        protocol=str(test["protocol"]).lower(),
        block_bytes=_count(test["blksize"]),
        intervals=tuple(
            Interval(_number(one["start"]), _number(one["seconds"]), _count(one["bytes"]))
            for one in sums
            if not one.get("omitted")
        ),
        received_bit_s=_number(received["bits_per_second"]),
        retransmits=_count(sent.get("retransmits", -1), least=-1),
        lost=_count(_object(end.get("sum") or {}).get("lost_packets", 0)),
    )
    if report.received_bit_s == 0:
        raise ValueError("nothing was received")
    return report


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
