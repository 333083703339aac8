"""What the readers of tools share: text from bytes, numbers from words, and one way to refuse."""

import re

from nearmetal import limits, units
from nearmetal.errors import ForeignFileError

MOST_COUNT = 10**18
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def to_text(data: bytes, program: str) -> str:
    """Return a program's output as text, without colours and blanks at ends of lines.

    Raise ForeignFileError when it is not text, and when its last line has no newline: every program ends its lines, so
    the number in it may be half of one.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise refuse(program, f"it is not text: {error.reason} at byte {error.start}") from error
    if "\0" in text:
        raise refuse(program, "it is not text: it holds a zero byte")
    if text and not text.endswith("\n"):
        last = text[text.rfind("\n") + 1 :]
        message = f"this output of {program} may be cut off: its last line has no newline: {last[:60]!r}"
        raise ForeignFileError(message, hint="copy the file again; if it is complete, end its last line: echo >> FILE")
    return "\n".join(map(str.rstrip, _ESCAPE.sub("", text).split("\n")))


def refuse(program: str, why: str) -> ForeignFileError:
    """Return the error for output that is not what its reader knows."""
    message = f"this is not complete output of {program} that nearmetal can read: {why}"
    hint = "docs/reference/foreign-formats.md lists the versions and options that are read"
    return ForeignFileError(message, hint=hint)


def cut_short(why: str) -> str:
    """Return what an import says of a table that may go on elsewhere; its rows are whole."""
    return f"may be cut short: {why}"


def sizes_end(last: int, usual: int) -> str:
    """Mark a table whose sizes stop before those that the program measures by default."""
    if last >= usual:
        return ""
    ends, asked = units.format_size(last), units.format_size(usual)
    return cut_short(f"its sizes end at {ends}, not {asked}, unless that was asked for")


def number(word: str, program: str, what: str) -> float:
    """Return a finite number >= 0; raise ForeignFileError for anything else."""
    try:
        value = units.decimal(word)
    except ValueError as error:
        comma = ", but has a comma: run the program under LC_ALL=C" if "," in word else ""
        raise refuse(program, f"{what}: {error}{comma}") from None
    if value < 0:
        raise refuse(program, f"{what} is {word[:40]!r}")
    return value


def positive(word: str, program: str, what: str, zero: str) -> float:
    """Return a finite number above 0; raise ForeignFileError for anything else, in the words `zero` for 0."""
    value = number(word, program, what)
    if value == 0:
        raise refuse(program, zero)
    return value


def whole(word: str, program: str, what: str, most: int = MOST_COUNT) -> int:
    """Return a whole number >= 0; raise ForeignFileError for anything else."""
    try:
        return units.whole(word, most)
    except ValueError as error:
        raise refuse(program, f"{what}: {error}") from None


def processes(word: str, program: str) -> int:
    """Return a number >= 1 of processes or pairs, which a reader may make that many records of."""
    count = whole(word, program, "the number of processes", limits.RANKS.value())
    if count == 0:
        raise refuse(program, "the number of processes is 0")
    return count
