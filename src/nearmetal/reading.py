"""The one way in for bytes that somebody else wrote: JSON and files, bounded in size and depth.

Where a run, a profile or a trace came from is not known, so no reader may be made to recurse, to allocate or to wait
without end. Standard library only.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from nearmetal import limits
from nearmetal.errors import ForeignFileError
from nearmetal.limits import Limit

_P = ParamSpec("_P")
_T = TypeVar("_T")

MAX_DEPTH = 64
"""How deep objects and lists may nest; nearmetal's own files nest 8 deep."""
MAX_DIGITS = 20
"""Digits of a whole number: 2^64 has as many."""

_SHORT = 1 << 16
"""JSON of fewer characters is not timed: to watch takes longer than to read."""
TOO_DEEP = f"it nests deeper than {MAX_DEPTH} levels"
_CHUNK_BYTES = 1 << 16
_HOLDS = (dict, list)
_HALF = re.compile("[\ud800-\udfff]")
_LONG = re.compile(f"[0-9]{{{MAX_DIGITS + 1}}}")
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else ord(" ") for byte in range(256))
"""Translates digits to zeros and all else to spaces: to look for a long number then is to look for zeros."""


class _OverTimeError(BaseException):
    """Ends a reader wherever it is; no reader catches it, and it does not leave `timed`."""


class _Watch(threading.Thread):
    """Ends a reader in the thread that makes this once it has used its processor time, however long it waits."""

    def __init__(self, most_ms: int) -> None:
        super().__init__(name="nearmetal-reading", daemon=True)
        self._reader = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._reader)
        self._end_ns = time.clock_gettime_ns(self._clock) + 1_000_000 * most_ms
        self._done = threading.Event()
        self._over = False
        self.start()

    def run(self) -> None:
        while (left_ns := self._end_ns - time.clock_gettime_ns(self._clock)) > 0:
            if self._done.wait(min(left_ns / 1e9, 3600)):
                return
        self._over = True
        _raise_in(self._reader, _OverTimeError)

    def stop(self) -> None:
        """Stop watching; raise _OverTimeError when that came too late."""
        self._done.set()
        self.join()
        if self._over:
            _raise_in(self._reader, None)
            raise _OverTimeError


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread before its next instruction; None takes back one that was not raised yet."""
    import ctypes  # noqa: PLC0415 (loaded where it is needed: the lab's guests have none)

    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


_watched = threading.local()


def timed(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a reader of what others wrote raise ForeignFileError when it uses more processor time than `limits.TIME`.

    A reader within one that is timed already has no separate limit.
    """

    @wraps(read)
    def bounded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if getattr(_watched, "now", False):
            return read(*args, **kwargs)
        most_ms = limits.TIME.value()
        _watched.now = True
        try:
            watch = _Watch(most_ms)
            try:
                return read(*args, **kwargs)
            finally:
                watch.stop()
        except _OverTimeError:
            raise ForeignFileError(
                f"reading took more than {most_ms} ms of processor time", hint=limits.TIME.hint
            ) from None
        finally:
            _watched.now = False

    return bounded


def shown_name(name: str) -> str:
    """Return a name as pages and addresses can hold it: bytes that are no text, and control characters, are escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]


def read_bytes(path: Path, limit: Limit = limits.FILE) -> bytes:
    """Return a file's bytes; raise ForeignFileError for one that is larger than the limit, OSError as usual."""
    most = limit.value()
    with path.open("rb", buffering=0) as file:
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
    return (_parse_json if len(text) < _SHORT else timed(_parse_json))(text)


def check_numbers(data: bytes) -> None:
    """Raise ValueError for JSON that another parser is to read, where `parse_json` would refuse it for its numbers."""
    if b"0" * (MAX_DIGITS + 1) in data.translate(_DIGITS):
        parse_json(data)


def is_text(found: str) -> bool:
    """Return whether a file can hold a text: JSON may hold halves of characters."""
    return not _HALF.search(found)


def _parse_json(text: str | bytes) -> Any:
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        held = json.loads(text, parse_int=_whole if _LONG.search(text) else None)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    check_depth(held)
    return held


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def check_depth(held: Any) -> None:
    """Raise ValueError for objects and lists that nest too deep, without recursion.

    The parsers bound their own recursion, but what they return may still be too deep for those who walk it.
    """
    level = [held] if type(held) in _HOLDS else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            one for outer in level for one in (outer.values() if type(outer) is dict else outer) if type(one) in _HOLDS
        ]
    if level:
        raise ValueError(TOO_DEEP)
