"""netperf's omni tests with `-k`: `KEY=value` lines of the selectors that were asked for. Written for version 2.7.

Rates are in the unit that the output names; latencies are microseconds of whole round trips, already summarized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.figures import BANDWIDTH, LATENCY
from nearmetal.workloads.pairs import Pair
from nearmetal.workloads.streams import ClientResult, PairWorkload, StreamOptions
from nearmetal.workloads.tools.lines import number, positive, refuse, to_text, whole
from nearmetal.workloads.tools.tool import NO_SIZE, FileCell, Foreign, Import, Spans, Tool, one_figure

PROGRAM = "netperf -k"

SELECTORS = ("PROTOCOL", "THROUGHPUT", "THROUGHPUT_UNITS", "ELAPSED_TIME", "LOCAL_TRANSPORT_RETRANS", "MEAN_LATENCY")
_KEY = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
_UNITS = {"10^6bits/s": "Mbit/s", "10^9bits/s": "Gbit/s", "10^3bits/s": "kbit/s", "Trans/s": "1/s"}


@dataclass(frozen=True, slots=True)
class NetperfResult:
    """One test: `throughput` in `unit`, `mean_latency_us` 0 and `retransmits` -1 where netperf does not report them."""

    protocol: str
    throughput: float
    unit: str
    seconds: float
    retransmits: int
    mean_latency_us: float


def parse(data: bytes) -> NetperfResult:
    """Read the output of one test; raise ForeignFileError for anything else."""
    text = to_text(data, PROGRAM)
    pairs = _KEY.findall(text)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise refuse(PROGRAM, "a key is there twice")
    missing = [selector for selector in SELECTORS if selector not in fields]  # a cut output lacks the last
    if missing:
        raise refuse(PROGRAM, f"{missing[0]} is missing")
    unit = _UNITS.get(fields["THROUGHPUT_UNITS"].strip())
    if unit is None or unit == "kbit/s":
        raise refuse(PROGRAM, f"throughput is in {fields['THROUGHPUT_UNITS'][:40]!r}")
    if unit != "1/s" and "REQUEST/RESPONSE" in text:
        raise refuse(PROGRAM, f"its requests are counted in {fields['THROUGHPUT_UNITS'][:40]!r}: leave out -f")
    retransmits = fields.get("LOCAL_TRANSPORT_RETRANS", "-1").strip()
    return NetperfResult(
        fields.get("PROTOCOL", "").strip(),
        positive(fields["THROUGHPUT"], PROGRAM, "the throughput", "nothing was transferred"),
        unit,
        number(fields["ELAPSED_TIME"], PROGRAM, "the time"),
        -1 if retransmits == "-1" else whole(retransmits, PROGRAM, "the count of retransmits"),
        number(fields.get("MEAN_LATENCY", "0"), PROGRAM, "the latency"),
    )


# ---- launching, decoding, adopting


_MBIT = {"Mbit/s": 1.0, "Gbit/s": 1e3}


def _server(pair: Pair) -> list[str]:
    return ["netserver", "-D", "-p", str(pair.port)]


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    argv = ["netperf", "-H", pair.server.address, "-p", str(pair.port), "-t", options.test]
    argv += ["-l", str(options.seconds), "--", "-k", ",".join(SELECTORS)]
    if size:
        argv += ["-m", str(size)] if options.streaming else ["-r", f"{size},{size}"]
    return argv


def _read_result(data: bytes) -> ClientResult:
    found = parse(data)
    return ClientResult(found.throughput * _MBIT.get(found.unit, 0.0), found.retransmits)


_TESTS = {"TCP_STREAM": "tcp_stream", "TCP_RR": "tcp_round_trip", "UDP_RR": "udp_round_trip"}
_WORKLOAD = PairWorkload("netperf", _server, _client, _read_result, first_port=12865, tests=_TESTS, version_flag="-V")


def _span(result: NetperfResult) -> Spans:
    """Return the one rate of a stream, or the mean round trip of a request test."""
    if result.unit != "1/s":
        return one_figure(result.unit, result.throughput)
    return one_figure("us", result.mean_latency_us or 1e6 / result.throughput)


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    result = parse(data)
    protocol = result.protocol.lower()
    if protocol not in ("tcp", "udp"):
        named = result.protocol[:40] or "a protocol that it does not name"
        raise ForeignFileError(f"netperf's test was over {named!r}")
    operation = f"{protocol}_round_trip" if result.unit == "1/s" else f"{protocol}_stream"
    lacks = ("one figure per run: no percentiles, no spread within it", NO_SIZE)
    cells = ((operation, 0, _span(result)),)
    yield Foreign("netperf", "", f"netperf-{operation.replace('_', '-')}", 2, cells, lacks)


TOOL = Tool(
    "netperf",
    (Import((b"THROUGHPUT_UNITS=",), _adopt, begins=rb"^MIGRATED |^netperf "),),
    _WORKLOAD,
    lambda data: _span(parse(data)),
    {"tcp_stream": BANDWIDTH, "tcp_round_trip": LATENCY, "udp_round_trip": LATENCY},
)
