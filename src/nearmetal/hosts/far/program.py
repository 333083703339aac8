"""A far shell behind a local program, such as srun or `kubectl exec`: its streams are the far shell's."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from nearmetal import process
from nearmetal.hosts.far.stream import Inbox, LostError, Stream

if TYPE_CHECKING:
    import subprocess

_READ_BYTES = 64 * 1024
_LAST_WORDS = 500
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class ProgramCarrier:
    """One far machine: `argv` is the local program that starts `sh` there."""

    name: str
    argv: tuple[str, ...]

    def open(self) -> Stream:
        """Start the program; it lives until its input ends, or the far side does."""
        return local_stream(self.argv)


def local_stream(argv: tuple[str, ...]) -> Stream:
    """Start a program here whose streams feed an inbox."""
    child = process.spawn(argv, stdin=-1)
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
    said = inbox.taken()[1].decode(errors="replace").strip()
    inbox.end(status if status >= 0 else 128 - status, said[-_LAST_WORDS:])


def _write(child: subprocess.Popen[bytes], inbox: Inbox, data: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(data)
        child.stdin.flush()
    except (BrokenPipeError, ValueError) as error:
        inbox.wait(_GRACE_S)
        said = inbox.ended
        raise LostError(f"the program has ended: {said[1] if said else 'its input is closed'}") from error


def _end_input(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()


def _close(child: subprocess.Popen[bytes], inbox: Inbox) -> None:
    """Give it a moment after the end of its input; a program that stays is ended."""
    _end_input(child)
    if not inbox.wait(_GRACE_S):
        process.end_session(child)
