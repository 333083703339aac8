"""Integer nanoseconds and bytes: how they are read and how they are shown.

Inside nearmetal a duration is an `int` of nanoseconds and a size an `int` of bytes, and the name says so
(`window_ns`, `message_bytes`). Floats with other units appear only where figures are shown.
"""

from __future__ import annotations

import re

from nearmetal.errors import BadInputError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_DURATION_NS = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S, "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_SIZE_BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def _parse(text: str, table: dict[str, int], kind: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text)
    factor = table.get(match[2].lower()) if match else None
    if match is None or factor is None:
        units = ", ".join(table)
        raise BadInputError(f"{text!r} is not a {kind}", hint=f"write a number and one of {units}, such as {example!r}")
    return round(float(match[1]) * factor)


def parse_duration_ns(text: str) -> int:
    """Read `'250 ms'`, `'3 min'` or `'12us'` as nanoseconds; raise BadInputError otherwise."""
    return _parse(text, _DURATION_NS, "duration", "250 ms")


def parse_size_bytes(text: str) -> int:
    """Read `'64 KiB'`, `'4MiB'` or `'8 B'` as bytes (binary units only); raise BadInputError otherwise."""
    return _parse(text, _SIZE_BYTES, "size", "64 KiB")


def format_size(size_bytes: int) -> str:
    """Return the shortest exact binary form: 65536 -> '64 KiB', 1000 -> '1000 B'."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def format_duration(duration_ns: float) -> str:
    """Return a duration with three significant digits, all whole seconds, and a fitting unit, such as '12.3 us'."""
    for unit, factor in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US)):
        # What rounds to 1000 of a unit is 1 of the next: 999.7 ms is 1 s, not 1e+03 ms.
        if abs(duration_ns) >= 0.9995 * factor:
            value = duration_ns / factor
            return f"{value:.0f} {unit}" if abs(value) >= 999.5 else f"{value:.3g} {unit}"
    return f"{duration_ns:.3g} ns"
