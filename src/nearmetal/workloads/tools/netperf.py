"""netperf's omni tests with `-k`: `KEY=value` lines of the selectors that were asked for. Written for version 2.7.

Rates are in the unit that the output names; latencies are microseconds of whole round trips, already summarized.
"""

import re
from collections.abc import Iterator

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.figures import BANDWIDTH, LATENCY
from nearmetal.workloads.pairs import Pair
from nearmetal.workloads.streams import ClientResult, PairWorkload, StreamOptions
from nearmetal.workloads.tools.lines import number, positive, refuse, to_text, whole
from nearmetal.workloads.tools.tool import NO_SIZE, FileCell, Foreign, Import, Tool, one_figure

PROGRAM = "netperf -k"

SELECTORS = ("PROTOCOL", "THROUGHPUT", "THROUGHPUT_UNITS", "LOCAL_TRANSPORT_RETRANS", "MEAN_LATENCY")
_KEY = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
_CONNECTS = re.compile(r"^MIGRATED TCP Connect/", re.MULTILINE)
_OTHERWISE = re.compile(rb"^MIGRATED (?:TCP MAERTS TEST|.* : first burst (?P<burst>[1-9]\d*)$)", re.MULTILINE)
_NODELAY = re.compile(rb"^MIGRATED .* : nodelay\b", re.MULTILINE)
_SIZE = re.compile(rb"^(LOCAL_SEND|REQUEST|RESPONSE)_SIZE=(\d{1,12})$", re.MULTILINE)
"""Selectors that `-k` may name, too; -1 where a test has none."""
_UNITS = {"10^6bits/s": "Mbit/s", "10^9bits/s": "Gbit/s", "Trans/s": "1/s"}


def parse(data: bytes) -> ClientResult:
    """Read the one rate of a stream, or the mean round trip of a request test; raise ForeignFileError otherwise."""
    text = to_text(data, PROGRAM)
    pairs = _KEY.findall(text)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise refuse(PROGRAM, "a key is there twice")
    missing = [selector for selector in SELECTORS if selector not in fields]  # a cut output lacks the last
    if missing:
        raise refuse(PROGRAM, f"{missing[0]} is missing")
    unit = _UNITS.get(fields["THROUGHPUT_UNITS"].strip())
    if unit is None:
        raise refuse(PROGRAM, f"throughput is in {fields['THROUGHPUT_UNITS'][:40]!r}")
    if _CONNECTS.search(text):
        raise refuse(PROGRAM, "its transactions open a connection each, so they are no round trips")
    if unit != "1/s" and "REQUEST/RESPONSE" in text:
        raise refuse(PROGRAM, f"its requests are counted in {fields['THROUGHPUT_UNITS'][:40]!r}: leave out -f")
    throughput = positive(fields["THROUGHPUT"], PROGRAM, "the throughput", "nothing was transferred")
    printed = fields["LOCAL_TRANSPORT_RETRANS"].strip()
    retransmits = -1 if printed == "-1" else whole(printed, PROGRAM, "the count of retransmits")
    mean_us = number(fields["MEAN_LATENCY"], PROGRAM, "the latency")
    protocol = fields["PROTOCOL"].strip()
    if protocol.lower() not in ("tcp", "udp"):
        named = protocol or "a protocol that it does not name"
        raise ForeignFileError(f"netperf's test was over {named[:40]!r}")
    if unit == "1/s":
        spans = one_figure("us", mean_us or 1e6 / throughput)
        return ClientResult(f"{protocol.lower()}_round_trip", spans, retransmits)
    return ClientResult(f"{protocol.lower()}_stream", one_figure(unit, throughput), retransmits)


# ---- launching, decoding, adopting


def _server(pair: Pair) -> list[str]:
    return ["netserver", "-D", "-p", str(pair.port)]


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    argv = ["netperf", "-H", pair.server.address, "-p", str(pair.port), "-t", options.test]
    argv += ["-l", str(options.seconds), "--", "-k", ",".join(SELECTORS)]
    if size:
        argv += ["-m", str(size)] if options.streaming else ["-r", f"{size},{size}"]
    return argv


_TESTS = {"TCP_STREAM": "tcp_stream", "TCP_RR": "tcp_round_trip", "UDP_RR": "udp_round_trip"}
_WORKLOAD = PairWorkload("netperf", _server, _client, parse, first_port=12865, tests=_TESTS, version_flag="-V")


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    result = parse(data)
    sizes = {key: int(size) for key, size in _SIZE.findall(data)}
    size = sizes.get(b"REQUEST" if result.operation.endswith("round_trip") else b"LOCAL_SEND", 0)
    lacks = ("one figure per run: no percentiles, no spread within it", *(() if size else (NO_SIZE,)))
    cells = ((result.operation, size, result.spans),)
    name = f"netperf-{result.operation.replace('_', '-')}"
    if match := _OTHERWISE.search(data):
        name += f"-burst-{match['burst'].decode()}" if match["burst"] else "-reverse"
    name += "-nodelay" if _NODELAY.search(data) else ""
    response = sizes.get(b"RESPONSE", size)
    name += f"-response-{response}" if result.operation.endswith("round_trip") and response != size else ""
    yield Foreign("netperf", "", name, 2, cells, lacks)


TOOL = Tool(
    "netperf",
    (Import((b"THROUGHPUT_UNITS=",), _adopt, begins=rb"^MIGRATED |^netperf "),),
    _WORKLOAD,
    _WORKLOAD.samples,
    {"tcp_stream": BANDWIDTH, "tcp_round_trip": LATENCY, "udp_round_trip": LATENCY},
)
