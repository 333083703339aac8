"""A thread that lives in a node's namespaces and does there what others ask of it.

Entering by `nsenter` costs two program starts a step, some 4 million instructions, and the lab's clock counts
instructions. A thread enters once: files are opened, and programs started, from where it lives (setns(2)).
Standard library only: this runs inside the lab.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from nearmetal.errors import NearmetalError

T = TypeVar("T")

_CLONE_FS = 0x200  # include/uapi/linux/sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class Entered:
    """A thread in the namespaces of a process; `do` is answered from there. Close it, or it stays."""

    def __init__(self, pid: int, namespaces: Sequence[str]) -> None:
        """Enter `namespaces` (names below /proc/PID/ns) of a process; raise NearmetalError when that is refused."""
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self.do(lambda: _enter(pid, namespaces))

    def do(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in the namespaces; what it raises is raised here."""
        answer: Future[T] = Future()

        def attempt() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked, whatever it is
                answer.set_exception(error)

        self._asked.put(attempt)
        return answer.result()

    def close(self) -> None:
        """Let the thread end; calling twice does nothing more."""
        self._asked.put(None)
        self._thread.join()

    def _live(self) -> None:
        while (attempt := self._asked.get()) is not None:
            attempt()


def _enter(pid: int, namespaces: Sequence[str]) -> None:
    """Move the calling thread. Its file system context must be its own before it may change mount namespaces."""
    with contextlib.ExitStack() as stack:
        doors = []
        for name in namespaces:  # all of them first: beyond the mount namespace this process has another number
            doors.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, doors[-1])
        _must(_LIBC.unshare(_CLONE_FS), "leave the process's working directory")
        for name, door in zip(namespaces, doors, strict=True):
            _must(_LIBC.setns(door, 0), f"enter the {name} namespace of process {pid}")


def _must(status: int, what: str) -> None:
    if status != 0:
        raise NearmetalError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")
