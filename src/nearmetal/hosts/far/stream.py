"""A program on a far machine, as three streams; the transport (ssh, srun) only fills the inbox."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

from nearmetal import process
from nearmetal.errors import NearmetalError


class LostError(NearmetalError):
    """The connection to a far machine, or the allocation that held it, is gone."""


class Inbox:
    """A far program's output so far, and how it ended; filled by one thread, read by another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._output = {1: bytearray(), 2: bytearray()}
        self._begin: dict[int, bytes] = {}
        self._ended: tuple[int | None, str] | None = None

    def put(self, stream: int, data: bytes) -> None:
        """Take bytes of stdout (1) or stderr (2) in."""
        with self._changed:
            self._output[stream] += data
            if stream in self._begin:
                self._leave_out(stream)
            self._changed.notify_all()

    def begin_after(self, line: bytes) -> None:
        """Leave out all that comes before a line on either stream, and the line: what a login shell greets with."""
        with self._changed:
            self._begin = {1: line + b"\n", 2: line + b"\n"}

    def end(self, status: int | None, reason: str = "") -> None:
        """Note the end: an exit status, or None and the reason when the connection went first."""
        with self._changed:
            self._ended = self._ended or (status, reason)
            self._changed.notify_all()

    @property
    def ended(self) -> tuple[int | None, str] | None:
        """Return the exit status and the reason, or None while the program runs."""
        with self._changed:
            return self._ended

    def until(self, mark: bytes, timeout_s: float) -> tuple[bytes, bytes] | None:
        """Take and return what stands before a line that starts with `mark` on both streams, the status line included.

        Returns stdout (the rest of its mark's line behind a newline at its end) and stderr, None after the timeout.
        Raises LostError when the program ended before it printed the mark.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not all(self._line_end(stream, mark) for stream in (1, 2)):
                if self._ended is not None:
                    raise LostError(self._why_lost(self._ended))
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    return None
            out, status = self._take(1, mark)
            err, _ = self._take(2, mark)
            return out + b"\n" + status, err

    def take_line(self, timeout_s: float) -> str:
        """Take the first line of stdout; raise LostError when the program ended or was silent instead."""
        with self._changed:
            self._changed.wait_for(lambda: b"\n" in self._output[1] or self._ended is not None, timeout_s)
            line, newline, rest = self._output[1].partition(b"\n")
            if not newline:
                raise LostError(self._why_lost(self._ended) if self._ended else f"no answer within {timeout_s:.0f} s")
            self._output[1] = rest
            return line.decode(errors="replace")

    def first_lines(self, count: int, timeout_s: float) -> list[str]:
        """Wait for the first `count` lines of stdout, left where they are; fewer after the end or the timeout."""

        def there() -> bool:
            return 1 not in self._begin and self._output[1].count(b"\n") >= count

        with self._changed:
            self._changed.wait_for(lambda: there() or self._ended is not None, timeout_s)
            return [] if 1 in self._begin else bytes(self._output[1]).decode(errors="replace").split("\n")[:-1][:count]

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the program has ended; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended is not None, timeout_s)

    def taken(self) -> tuple[bytes, bytes]:
        """Return all of stdout and stderr so far."""
        with self._changed:
            return bytes(self._output[1]), bytes(self._output[2])

    @staticmethod
    def _why_lost(ended: tuple[int | None, str]) -> str:
        return f"the far shell ended: {ended[1] or f'status {ended[0]}'}"

    def _leave_out(self, stream: int) -> None:
        _, found, after = self._output[stream].partition(self._begin[stream])
        if found:
            self._output[stream] = after
            del self._begin[stream]

    def _line_end(self, stream: int, mark: bytes) -> bool:
        received = self._output[stream]
        at = received.find(mark)
        return at >= 0 and received.find(b"\n", at) >= 0

    def _take(self, stream: int, mark: bytes) -> tuple[bytes, bytes]:
        received = self._output[stream]
        at = received.find(mark)
        end = received.find(b"\n", at)
        before, rest = bytes(received[:at]), bytes(received[at + len(mark) : end])
        del received[: end + 1]
        return before, rest.strip()


@dataclass(frozen=True, slots=True)
class Stream:
    """A running far program: its output is in `inbox`, the rest are operations of its transport."""

    inbox: Inbox
    write: Callable[[bytes], None]
    end_input: Callable[[], None]
    close: Callable[[], None]


OpenShell = Callable[[], Stream]
"""Starts `sh` on a far machine, which reads its commands from the stream; raises LostError or UnavailableError."""


# ---- A far shell behind a local program, such as srun or `kubectl exec`
# Its streams are the far shell's.


_READ_BYTES = 64 * 1024
_LAST_WORDS = 500
_GRACE_S = 2.0


def open_program(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Stream:
    """Start the local program that starts `sh` on a far machine; it ends with its input, or with the far side."""
    child = process.spawn(argv, env=env, stdin=-1)
    inbox = Inbox()
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    readers = [
        threading.Thread(target=_read, args=(pipe, partial(inbox.put, number)), daemon=True)
        for number, pipe in ((1, child.stdout), (2, child.stderr))
    ]
    for reader in readers:
        reader.start()
    threading.Thread(target=_await_end, args=(child, readers, inbox), daemon=True).start()
    return Stream(inbox, partial(_write, child, inbox), partial(_end_input, child), partial(_close, child, inbox))


def _read(pipe: IO[bytes], put: partial[None]) -> None:
    with pipe:
        while data := pipe.read1(_READ_BYTES):  # type: ignore[attr-defined]  # a BufferedReader
            put(data)


def _await_end(child: subprocess.Popen[bytes], readers: list[threading.Thread], inbox: Inbox) -> None:
    for reader in readers:
        reader.join()
    status = child.wait()
    _end_input(child)
    printed = inbox.taken()[1].decode(errors="replace").strip()
    inbox.end(status if status >= 0 else 128 - status, printed[-_LAST_WORDS:])


def _write(child: subprocess.Popen[bytes], inbox: Inbox, data: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(data)
        child.stdin.flush()
    except (BrokenPipeError, ValueError) as error:
        inbox.wait(_GRACE_S)
        ended = inbox.ended
        raise LostError(f"the program has ended: {ended[1] if ended else 'its input is closed'}") from error


def _end_input(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()


def _close(child: subprocess.Popen[bytes], inbox: Inbox) -> None:
    """Give it a moment after the end of its input; a program that stays is ended."""
    _end_input(child)
    if not inbox.wait(_GRACE_S):
        process.end_session(child)
