"""qperf -uu: each test's name with its results below, in nanoseconds and bytes. Read with version 0.4.11.

A latency is one way: qperf halves the round trip itself. There are no samples, one mean a test.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.figures import HALVED, STREAMS
from nearmetal.workloads.pairs import Pair
from nearmetal.workloads.streams import ClientResult, PairWorkload, StreamOptions
from nearmetal.workloads.tools.lines import number, refuse, to_text, whole
from nearmetal.workloads.tools.tool import NO_SIZE, ONE_MEAN, FileCell, Foreign, Import, Spans, Tool, one_figure

PROGRAM = "qperf -uu"

_TEST = re.compile(r"^(\w+):\s*$")
_RESULT = re.compile(r"^\s+(\w+)\s+=\s+([\d.]+)\s*(\S*)")


@dataclass(frozen=True, slots=True)
class QperfResult:
    """One test: its one-way latency, or its rate. `message_bytes` and `window_bytes` are 0 when not printed.

    `told` says whether it was run with `-v`, which prints options that are not the usual ones.
    """

    test: str
    mean: Spans
    told: bool
    message_bytes: int
    window_bytes: int


def parse(data: bytes) -> tuple[QperfResult, ...]:
    """Read every test of one output; raise ForeignFileError for anything else, other units included."""
    tests: list[tuple[str, dict[str, tuple[str, str]]]] = []
    for line in to_text(data, PROGRAM).splitlines():
        if match := _TEST.match(line):
            tests.append((match[1], {}))
        elif tests and (match := _RESULT.match(line)):
            tests[-1][1][match[1]] = (match[2], match[3])
        elif line.strip():
            raise refuse(PROGRAM, f"{line[:60]!r} is neither a test nor a result")
    if not tests:
        raise refuse(PROGRAM, "there is no test in it")
    return tuple(_result(name, fields) for name, fields in tests)


def _result(name: str, fields: dict[str, tuple[str, str]]) -> QperfResult:
    rate_key = next((key for key in ("bw", "recv_bw") if key in fields), "")
    latency = _of(fields, "latency", "ns") if "latency" in fields else 0.0
    rate = _of(fields, rate_key, "bytes/sec") if rate_key else 0.0
    if (latency > 0) == (rate > 0):
        raise refuse(PROGRAM, f"test {name} gives neither a latency nor a bandwidth")
    mean = one_figure("ns", latency) if latency else one_figure("B/s", rate)
    return QperfResult(name, mean, "time" in fields, *(_size(fields, key) for key in ("msg_size", "sock_buf_size")))


def _size(fields: dict[str, tuple[str, str]], key: str) -> int:
    size, unit = fields.get(key, ("0", "bytes"))
    if unit != "bytes":
        raise refuse(PROGRAM, f"{key} is in {unit!r}, not in bytes")
    return whole(size, PROGRAM, key)


def _of(fields: dict[str, tuple[str, str]], key: str, unit: str) -> float:
    value, found = fields[key]
    if found != unit:
        raise refuse(PROGRAM, f"{key} is in {found!r}, not in {unit!r}")
    return number(value, PROGRAM, key)


# ---- launching, decoding, adopting


_OPERATIONS = {"tcp_lat": "tcp_one_way", "udp_lat": "udp_one_way", "tcp_bw": "tcp_stream", "udp_bw": "udp_stream"}


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    argv = ["qperf", "-uu", "-v", "-lp", str(pair.port), "-t", str(options.seconds)]
    argv += ["-m", str(size)] if size else []
    return [*argv, pair.server.address, options.test]


def _read_result(data: bytes) -> ClientResult:
    """Return the one mean of a test."""
    results = parse(data)
    if len(results) != 1:
        raise ForeignFileError(f"qperf left {len(results)} results where one was asked for")
    return ClientResult(_operation(results[0]), results[0].mean)


def _operation(result: QperfResult) -> str:
    if result.test not in _OPERATIONS:
        raise ForeignFileError(f"nearmetal has no operation like qperf's {result.test[:40]!r}")
    return _OPERATIONS[result.test]


_WORKLOAD = PairWorkload(
    "qperf", lambda pair: ["qperf", "-lp", str(pair.port)], _client, _read_result, first_port=19765, tests=_OPERATIONS
)


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    results = parse(data)
    names = Counter(one.test for one in results if not one.told)
    if twice := next((name for name, count in names.items() if count > 1), ""):
        message = f"it has {twice} {names[twice]} times, and not with which options: a loop of sizes (-oo) looks alike"
        raise ForeignFileError(message, hint="run qperf with -v, or give each launch in a file of its own")
    for one in results:
        cells = ((_operation(one), one.message_bytes, one.mean),)
        lacks = (ONE_MEAN,) if one.message_bytes else (ONE_MEAN, NO_SIZE)
        window = f"-{one.window_bytes}-byte-window" if one.window_bytes else ""
        yield Foreign("qperf", "", f"qperf-{one.test.replace('_', '-')}{window}", 2, cells, lacks)


_BEGINS = rb"^\w+_(?:lat|bw):$(?s:.*)"
"""All that follows: whether tests are alike is told by the others."""
TOOL = Tool(
    "qperf",
    (Import(tuple(f"{test}:".encode() for test in _OPERATIONS), _adopt, begins=_BEGINS),),
    _WORKLOAD,
    _WORKLOAD.samples,
    {"tcp_one_way": HALVED, "udp_one_way": HALVED, **STREAMS},
)
