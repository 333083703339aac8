"""The one family of errors that nearmetal shows to a person.

Every message says what was seen; `hint` says the likely cause and the next step. Anything that is not a
`NearmetalError` is a bug in nearmetal and keeps its traceback.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from shlex import join
from typing import TypeVar

_T = TypeVar("_T")
_MOST_LISTED = 12
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),  # halves of characters, which JSON may hold and no file can
}


def visible(text: str) -> str:
    """Return text in which nothing commands a terminal: escapes and the like become symbols, lines and tabs stay."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_VISIBLE)


def listed(things: Sequence[_T], line: Callable[[_T], str] = str) -> list[str]:
    """Return a line for each of the first dozen things, and one that says how many more there are."""
    more = len(things) - _MOST_LISTED
    return [*map(line, things[:_MOST_LISTED]), *[f"and {more:,} more"] * (more > 0)]


def command_line(*words: object) -> str:
    """Return a command of nearmetal as a shell takes it, whatever is in the names of files."""
    return join(["nearmetal", *map(str, words)])


def meant(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a name that is not known: the closest known one, else `otherwise`, else all that are known."""
    import difflib  # noqa: PLC0415 (only for a typo)

    close = difflib.get_close_matches(name, names := list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"known: {', '.join(names)}"


def named(table: Mapping[str, _T], name: str, unknown: str) -> _T:
    """Return the entry of a table; raise BadInputError that says `unknown` for a name that it does not have."""
    if name not in table:
        raise BadInputError(unknown, hint=meant(name, table))
    return table[name]


def refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    """Raise BadInputError for the first option that is not known; after a dot stands what it is of (`interface.1`)."""
    stems = {name.partition(".")[0] for name in known}
    for name in given:
        if name.partition(".")[0] not in stems:
            raise BadInputError(f"{whose} has no option {name!r}", hint=meant(name, known) if stems else "leave it out")


class ExitCode(IntEnum):
    """Exit codes of the command line, part of its interface."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    PARTIAL = 4
    INTERRUPTED = 130


class NearmetalError(Exception):
    """Something that a person can act on.

    `message` is one lower-case sentence with the figures that were seen; `hint` names the next step.
    """

    exit_code: IntEnum = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # where no `render` shows it: a notebook's traceback

    def render(self) -> str:
        """Return the text for stderr: `error:` line, then a `hint:` line when there is one."""
        text = f"error: {self.message}"
        return visible(f"{text}\nhint: {self.hint}" if self.hint else text)


class BadInputError(NearmetalError):
    """A study, option or file is wrong; nothing was started."""

    exit_code = ExitCode.USAGE


class UnavailableError(NearmetalError):
    """This machine lacks something that was asked for (a program, a device, a permission)."""

    exit_code = ExitCode.UNAVAILABLE


class ForeignFileError(NearmetalError):
    """A file is not of the format that its reader knows, or is damaged."""

    exit_code = ExitCode.USAGE


class TrialError(NearmetalError):
    """A trial could not be run; the other trials are unaffected."""


class TimedOutError(TrialError):
    """The launch ran into its time limit, which is worth one more attempt on a busy machine."""


class StoreError(NearmetalError):
    """A run directory could not be written or read."""


class QuarantinedError(NearmetalError):
    """A setting could not be put back; the message names it, and `undo_script` puts it back by hand.

    It ends the run: what is measured from here on would be measured on a changed machine.
    """

    def __init__(self, message: str, undo_script: str, journal: str) -> None:
        super().__init__(message, hint=f"run the undo script, or `nearmetal rollback` later; the journal is {journal}")
        self.undo_script = undo_script
        self.journal = journal


@contextmanager
def os_errors_as(kind: type[NearmetalError], failed: str, *, hint: str = "") -> Iterator[None]:
    """Turn an OSError of the body into an error that says what failed, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{failed}: {error.strerror}", hint=hint) from error
