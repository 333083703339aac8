"""qperf -uu: each test's name with its results below, in nanoseconds and bytes. Read with version 0.4.11.

A latency is one way: qperf halves the round trip itself. There are no samples, one mean a test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.workloads.formats.lines import number, refuse, to_text, whole

PROGRAM = "qperf -uu"

_TEST = re.compile(r"^(\w+):\s*$")
_RESULT = re.compile(r"^\s+(\w+)\s+=\s+([\d.]+)\s*(\S*)")


@dataclass(frozen=True, slots=True)
class Result:
    """One test: `latency_ns` one way, or `rate_bytes_s`; the other is 0. `message_bytes` 0 when it was not printed."""

    test: str
    latency_ns: float
    rate_bytes_s: float
    message_bytes: int


def parse(data: bytes) -> tuple[Result, ...]:
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


def _result(name: str, fields: dict[str, tuple[str, str]]) -> Result:
    rate_key = next((key for key in ("bw", "recv_bw") if key in fields), "")
    latency = _of(fields, "latency", "ns") if "latency" in fields else 0.0
    rate = _of(fields, rate_key, "bytes/sec") if rate_key else 0.0
    if (latency > 0) == (rate > 0):
        raise refuse(PROGRAM, f"test {name} gives neither a latency nor a bandwidth")
    size = fields.get("msg_size", ("0", "bytes"))
    if size[1] != "bytes":
        raise refuse(PROGRAM, f"the size of {name} is in {size[1]!r}, not in bytes")
    return Result(name, latency, rate, whole(size[0], PROGRAM, "the size"))


def _of(fields: dict[str, tuple[str, str]], key: str, unit: str) -> float:
    value, found = fields[key]
    if found != unit:
        raise refuse(PROGRAM, f"{key} is in {found!r}, not in {unit!r}")
    return number(value, PROGRAM, key)
