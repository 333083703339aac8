"""What a terminal is sent: nothing that text of studies, tools and files could have made a command of.

Neither square brackets (rich's markup) nor control characters do anything; a standard output that cannot be written
is an error with its reason, not a traceback.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from nearmetal.errors import NearmetalError, visible


class OutputError(NearmetalError):
    """Standard output or standard error cannot be written."""


class ReaderGoneError(Exception):
    """Nobody reads standard output any more (`| head`): no failure, and no OSError, which click would end with 1."""


class Console(rich.console.Console):
    """A console that shows text verbatim: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is drawn, with control characters made visible; those of rich itself pass."""
        return _unpadded(
            one if one.control else Segment(visible(one.text), one.style) for one in super().render(renderable, options)
        )


def _unpadded(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Leave out the blanks that end a line: those that pad a table's last column, or stand where a line was broken."""
    blanks: list[Segment] = []
    for one in segments:
        if one.control:
            yield one
            continue
        whole = re.sub(" +\n", "\n", one.text)
        text = whole.rstrip(" ")
        if text and not text.startswith("\n"):
            yield from blanks
        if text:
            blanks.clear()
            yield Segment(text, one.style)
        if text != whole:
            blanks.append(Segment(whole[len(text) :], one.style))
    yield from blanks


class _GuardedStream:
    """A text stream whose failures say what could not be written; `clean` makes control characters visible."""

    def __init__(self, stream: IO[str], name: str, *, clean: bool) -> None:
        self._stream = stream
        self._name = name
        self._clean = clean

    @property
    def rich_proxied_file(self) -> _GuardedStream:
        """The stream that rich writes to: its own control codes have to pass."""
        return _GuardedStream(self._stream, self._name, clean=False)

    def write(self, text: str) -> int:
        """Write text; raise OutputError when that fails, ReaderGoneError when nobody reads."""
        with self._saying():
            return self._stream.write(visible(text) if self._clean else text)

    def flush(self) -> None:
        """Flush; raise as `write` does."""
        with self._saying():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _saying(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except OSError as error:
            raise OutputError(
                f"cannot write to standard {self._name}: {error.strerror}",
                hint="free some space, or write to another place",
            ) from error


_PLAINLY = "nearmetal.plainly"
_PLAIN = dict(zip("▁▂▃▄▅▆▇█·░▒▓│╎▼▲≈…", "12345678.-+#|:v^=~", strict=True))


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return letters of ASCII for what an encoding lacks, and where to go on: a handler of `codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one, one.encode("ascii", "backslashreplace").decode()) for one in lacking), error.end


@contextmanager
def guarded_output() -> Iterator[None]:
    """Guard standard output and error for the time of a command, and flush them at its end.

    What the locale cannot write is written as an escape, on standard output as on standard error; on the former, bars
    and marks are one letter each, so that charts of letters keep their columns.
    """
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):  # of a locale without UTF-8, which has no bars and no arrows
        codecs.register_error(_PLAINLY, _plain)
        sys.stdout.reconfigure(errors=_PLAINLY)
    sys.stdout = _GuardedStream(sys.stdout, "output", clean=True)
    sys.stderr = _GuardedStream(sys.stderr, "error", clean=True)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before
