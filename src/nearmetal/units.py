"""Integer nanoseconds and bytes: how they are read and how they are shown.

Inside nearmetal a duration is an `int` of nanoseconds and a size an `int` of bytes, and the name says so
(`window_ns`, `message_bytes`). Floats with other units appear only where figures are shown. At the end stand the words
for how many things there are, and their groups.
"""

import math
import re
import textwrap
from collections.abc import Iterable
from typing import Any, TypeVar

from nearmetal.errors import BadInputError

_K = TypeVar("_K")
_V = TypeVar("_V")

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

DURATION_NS = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S, "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "": 1}
MOST = (1 << 63) - 1
"""The largest number of ns or bytes that a file can hold."""
_QUANTITY = re.compile(r"([0-9.]{1,40}+)\s*+([A-Za-z]{0,8}+)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]{1,3})?")
_MOST_LETTERS = 60
HELD = "\u2800"
"""Stands for a blank where no line may end: an empty pattern of Braille, which nothing takes for one."""
_UNIT = re.compile(
    r"(?<=[0-9]) (?=(?:%|[num]?s|min|h|[KMG]i?B|[kMGT]?B(?:/s)?|[kMG]?bit/s)(?![\w/]))|(?<=\w) (?== )|(?<= =) (?=\S)"
)
"""The blank between a number and its unit, and those of an assignment, such as `max_blocks = 18`."""
_WORD = r"""(?:[^\s'"()`]|'[^']*'|"[^"]*")+"""
_COMMAND = re.compile(rf"(?:(?<=: )|(?<=[`(]))nearmetal(?: {_WORD})+")
"""A command in a sentence: in backticks or brackets, or after a colon."""


def decimal(text: str) -> float:
    """Read a number as programs print it; raise ValueError for anything else.

    Refused is what `float` would take besides: nan, inf, underscores, digits of other scripts, numbers of hundreds of
    digits and those too large for a float.
    """
    word = text.strip()
    if len(word) > _MOST_LETTERS or not _DECIMAL.fullmatch(word):
        raise ValueError(f"{text[:40]!r} is not a number")
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is out of range")
    return value


def whole(text: str, most: int = MOST) -> int:
    """Read a whole number from 0 to `most`; raise ValueError for anything else."""
    if not is_whole(text, most):
        raise ValueError(f"{text[:40]!r} is not a whole number from 0 to {most}")
    return int(text)


def is_whole(text: str, most: int = MOST) -> bool:
    """Return whether a text is a whole number from 0 to `most` in ASCII digits, which `str.isdigit` does not."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_LETTERS and int(text) <= most


def to_whole(value: float) -> int:
    """Round to a number of ns or bytes from 0 to `MOST`; raise ValueError for what is none, inf and nan included."""
    if not 0 <= value < MOST:  # as floats, so that `MOST` itself, which is 2^63 then, is out
        raise ValueError(f"{value:.6g} is out of range")
    return round(value)


def _parse(text: str, table: dict[str, int], kind: str, example: str, *, exact: bool, measured: bool) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    number, unit = match.groups() if match else ("", "")
    why, hint = "", f"write a number and one of {', '.join(filter(None, table))}, such as {example!r}"
    alike = {one.lower(): one for one in table}.get(unit.lower())
    if match and (unit in table or (measured and alike)):
        try:
            value = decimal(number) * table[unit if unit in table else alike or ""]
            whole_value = to_whole(value)
            if value == whole_value or (whole_value and not exact):
                return whole_value
            smallest = next(iter(table))
            why = f": it is {value:g} {smallest}, " + (f"no whole number of {smallest}" if exact else "below 1")
        except ValueError as error:
            why = f": {error}"
    elif alike:
        hint = f"upper and lower case count: did you mean '{number} {alike}'?"
    elif f"{unit[:1].upper()}iB" in table and unit[1:].lower() == "b":
        why = f": {unit} may mean powers of 1000 or of 1024"
        hint = f"write '{number} {unit[0].upper()}iB' for a power of 1024"
    raise BadInputError(f"{text[:40]!r} is not a {kind}{why}", hint=hint)


def parse_duration_ns(text: str, *, measured: bool = False) -> int:
    """Read `'250 ms'`, `'3 min'` or `'12us'` as nanoseconds; raise BadInputError otherwise.

    In what was `measured` under earlier versions, units in upper and lower case are the same, as they were then.
    """
    return _parse(text, DURATION_NS, "duration", "250 ms", exact=False, measured=measured)


def parse_size_bytes(text: str, *, measured: bool = False) -> int:
    """Read `'64 KiB'`, `'64K'`, `'8 B'` or `'8'` as bytes (binary units only); raise BadInputError otherwise.

    So it does for parts of a byte, such as those of `'1.3 KiB'`, and for units in other upper and lower case. In what
    was `measured` under earlier versions the former are rounded and the latter read, as they were then.
    """
    return _parse(text, _SIZE_BYTES, "size", "64 KiB", exact=not measured, measured=measured)


def parse_share(text: str) -> float:
    """Read `5%`, `5 %` or `0.05`; raise ValueError for anything else."""
    number = text.strip()
    return decimal(number.removesuffix("%")) / 100 if number.endswith("%") else decimal(number)


def as_percent(share: float, decimals: int = 0, sign: str = "") -> str:
    """Return a share as a percentage: 0.71 -> '71 %', with a `sign` of '+' '+71 %'."""
    # z: what rounds to zero is on neither side of it.
    return f"{share:{sign}z.{decimals}%}".replace("%", " %")


def format_size(size_bytes: int) -> str:
    """Return the shortest exact binary form: 65536 -> '64 KiB', 1000 -> '1000 B'."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def format_wait(duration_ns: float) -> str:
    """Return a duration as people plan by it: whole seconds from 10 on, minutes and hours where it takes so long."""
    seconds = duration_ns / NS_PER_S
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 9.95 else format_duration(duration_ns)
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def rounded(value: float, digits: int = 3) -> str:
    """Return a figure with so many significant digits, a larger one to the whole: without an exponent."""
    return f"{value:.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def format_duration(duration_ns: float) -> str:
    """Return a duration with three significant digits, all whole seconds, and a fitting unit, such as '12.3 us'."""
    for unit, factor in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US)):
        # What rounds to 1000 of a unit is 1 of the next: 999.7 ms is 1 s, not 1e+03 ms.
        if abs(duration_ns) >= 0.9995 * factor:
            return f"{rounded(duration_ns / factor)} {unit}"
    return f"{duration_ns:.3g} ns"


def held(text: str) -> str:
    """Return text whose numbers and units, and whose assignments, are each one word: `HELD` stands for their blanks."""
    return _UNIT.sub(HELD, text)


def wrapped(text: str, width: int, **options: Any) -> list[str]:
    """Return text as lines of so many columns, and one line at least; options are those of `textwrap.wrap`.

    None ends between a number and its unit, in an assignment or within a command of nearmetal. Words and commands that
    are longer than a line stay whole, to be copied.
    """
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", HELD), held(text))
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False, **options)
    return [line.replace(HELD, " ") for line in lines or [""]]


def counted(count: int, thing: str) -> str:
    """Return how many of a thing there are: 1 host, 2 hosts."""
    return f"{count} {thing}{'s' * (count != 1)}"


def by_key(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """Return the values of each key; keys and values in the order given."""
    found: dict[_K, list[_V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def ranges(numbers: Iterable[int], between: str = ",") -> str:
    """Return ascending numbers with those that follow each other drawn together, such as `0-3,8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return between.join("-".join(map(str, run)) for run in runs)
