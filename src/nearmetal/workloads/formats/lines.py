"""What the readers of this folder share: text from bytes, numbers from words, and one way to refuse."""

from __future__ import annotations

import math
import re

from nearmetal.errors import ForeignFileError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def to_text(data: bytes, program: str) -> str:
    """Return a program's output as text without colours; raise ForeignFileError when it is not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise refuse(program, f"it is not text: {error.reason} at byte {error.start}") from error
    if "\0" in text:
        raise refuse(program, "it is not text: it holds a zero byte")
    return _ESCAPE.sub("", text)


def refuse(program: str, why: str) -> ForeignFileError:
    """Return the error for output that is not what its reader knows."""
    return ForeignFileError(
        f"this is not whole output of {program} that nearmetal can read: {why}",
        hint="docs/reference/foreign-formats.md lists the versions and options that are read",
    )


def number(word: str, program: str, what: str) -> float:
    """Return a finite number >= 0; raise ForeignFileError for anything else."""
    try:
        value = float(word)
    except ValueError:
        raise refuse(program, f"{what} is {word[:40]!r}, not a number") from None
    if not math.isfinite(value) or value < 0:
        raise refuse(program, f"{what} is {word[:40]!r}")
    return value


def whole(word: str, program: str, what: str) -> int:
    """Return a whole number >= 0; raise ForeignFileError for anything else."""
    if not word.isascii() or not word.isdigit() or len(word) > 18:
        raise refuse(program, f"{what} is {word[:40]!r}, not a whole number")
    return int(word)
