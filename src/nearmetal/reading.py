"""The one way in for bytes that somebody else wrote: JSON, TOML and files, bounded in size and depth.

Where a run, a profile or a trace came from is not known, so no reader may be made to recurse, to allocate or to wait
without end. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

from nearmetal import limits
from nearmetal.errors import ForeignFileError

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.limits import Limit

MAX_DEPTH = 64
"""How deep objects and lists may nest; nearmetal's own files nest 8 deep."""
MAX_DIGITS = 20
"""Digits of a whole number: 2^64 has as many."""

_CHUNK_BYTES = 1 << 20
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_LONG = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))


def read_bytes(path: Path, limit: Limit = limits.FILE) -> bytes:
    """Return a file's bytes; raise ForeignFileError for one that is larger than the limit, OSError as usual."""
    most = limit.value()
    with path.open("rb") as file:
        # A pipe or a device does not say its size; asking for the limit at once would allocate it.
        parts = [file.read(min(os.fstat(file.fileno()).st_size, most) + 1)]
        while parts[-1] and sum(map(len, parts)) <= most:
            parts.append(file.read(_CHUNK_BYTES))
    data = b"".join(parts)
    if len(data) > most:
        raise ForeignFileError(f"{path} has more than {most} bytes", hint=limit.hint)
    return data


def read_text(path: Path, limit: Limit = limits.TEXT) -> str:
    """Return a file's text; raise as `read_bytes` does, ValueError when it is no UTF-8."""
    return read_bytes(path, limit).decode()


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text holds.

    Raise ValueError for anything else, for one that nests deeper than `MAX_DEPTH` and for whole numbers of more than
    `MAX_DIGITS` digits, which no field of any format has.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    _check_depth(data)
    try:
        return json.loads(text, parse_int=_whole if _LONG.search(data) else None)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return what a TOML text holds; raise ValueError for anything else, and for one that nests too deep."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _check_depth(data: bytes) -> None:
    """Raise ValueError for a text that nests too deep, in time in proportion to its length and without recursion."""
    if _is_flat(data) or _is_flat(_STRING.sub(b"", data)):  # most texts have no lone bracket in a string
        return
    raise ValueError(f"it nests deeper than {MAX_DEPTH} levels, or its brackets do not match")


def _is_flat(data: bytes) -> bool:
    brackets = data.translate(None, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets
