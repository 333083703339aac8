"""A thread that lives in a node's namespaces and does there what others ask of it.

Entering by `nsenter` costs two program starts a step: a third of the processor time of a short trial here, and some 4
million instructions in the lab, whose clock counts them. A thread enters once: files are opened, and programs started,
from where it lives (setns(2)). Standard library only: this also runs inside the lab.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nearmetal.errors import NearmetalError

T = TypeVar("T")

_CLONE_FS = 0x200  # include/uapi/linux/sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class NamespaceThread:
    """A thread in the namespaces of a process; `do` is answered from there. Close it, or it stays."""

    def __init__(self, pid: int, namespaces: Sequence[str]) -> None:
        """Enter `namespaces` (names below /proc/PID/ns) of a process; raise NearmetalError when that is refused."""
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.do(lambda: _enter(pid, namespaces))

    def do(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in the namespaces; what it raises is raised here."""
        return self._thread.submit(work).result()

    def close(self) -> None:
        """Let the thread end; calling twice does nothing more."""
        self._thread.shutdown()


def _enter(pid: int, namespaces: Sequence[str]) -> None:
    """Move the calling thread. Its file system context must be its own before it may change mount namespaces."""
    with contextlib.ExitStack() as stack:
        handles = []
        for name in namespaces:  # all of them first: beyond the mount namespace this process has another number
            handles.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
            stack.callback(os.close, handles[-1])
        _require_success(_LIBC.unshare(_CLONE_FS), "leave the process's working directory")
        for name, handle in zip(namespaces, handles, strict=True):
            _require_success(_LIBC.setns(handle, 0), f"enter the {name} namespace of process {pid}")


def _require_success(status: int, what: str) -> None:
    if status != 0:
        raise NearmetalError(f"cannot {what}: {os.strerror(ctypes.get_errno())}")
