"""The shell inside the lab: nodes are namespaces, or guests of the lab's own hypervisor under KVM.

A guest has a service that runs programs over vsock, which does not cross the measured path. Standard library only: this
runs inside the lab.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from nearmetal import native, process
from nearmetal.errors import NearmetalError, TrialError, os_errors_as
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.lab import kvm, plain_files, remote
from nearmetal.hosts.lab.machine import CALLER
from nearmetal.hosts.namespaces import AGENT_ENTER, AGENT_HEAD, NamespaceShell
from nearmetal.hosts.shell import read_each
from nearmetal.process import Finished

# ---- A thread that lives in a node's namespaces and does there what others ask of it
# Entering by `nsenter` costs two program starts a step, some 4 million instructions, and the lab's clock counts
# instructions. A thread enters once: files are opened, and programs started, from where it lives (setns(2)).
# Standard library only: this runs inside the lab.


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


# ---- hypervisor


_FIRST_CID = 3
_FIRST_PID = 1
"""The first process of the cradle."""
_FILE_TIMEOUT_S = 20.0

_TO_GUEST = """if [ -e "$here/guests/$node" ]; then
    read -r cid <"$here/guests/$node"
    exec CALLER "$cid" -- sh -c "$*"
fi
"""


class LabShell(NamespaceShell):
    """Namespaces on the lab's own network, and guests."""

    disposable = True

    def __init__(self) -> None:
        """Start on the machine's own network, where its ports are."""
        self._guests: dict[str, int] = {}
        self._entered: dict[str, NamespaceThread] = {}
        super().__init__(own_network=False)
        self._entered[HYPERVISOR] = NamespaceThread(int(self._cradle_pid), ("pid", "mnt"))

    def _write_scratch(self) -> None:
        super()._write_scratch()
        Path(self.scratch, "guests").mkdir()
        to_guest = _TO_GUEST.replace("CALLER", str(native.build(CALLER)))
        Path(self.agent).write_text(AGENT_HEAD + to_guest + AGENT_ENTER)

    def add_node(self, name: str) -> None:
        """Make a node, and keep a thread in it."""
        super().add_node(name)
        self._entered[name] = NamespaceThread(int(self._holders[name]), ("pid", "net", "uts", "ipc", "mnt"))

    def boot_guest(self, node: str, devices: Sequence[str]) -> Callable[[], str]:
        """Make a node a guest with these devices (QEMU's words), and wait until it runs programs.

        The result gives its name, which is the node's. Raises as `kvm.start` and `kvm.BootingGuest.wait` do.
        """
        cid = _FIRST_CID + len(self._guests)
        booting = kvm.start(self, node, ["-device", f"vhost-vsock-pci,guest-cid={cid}", *devices], {})
        self._guests[node] = cid
        Path(self.scratch, "guests", node).write_text(f"{cid}\n")
        booting.wait(lambda: self.run(["true"], node=node, check=False).ok)
        self.run(["ip", "link", "set", "lo", "up"], node=node)
        return lambda: node

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content as that node sees it."""
        if node in self._guests:
            reply = remote.read(self._guests[node], path, timeout_s=_FILE_TIMEOUT_S)
            reply.require(f"read {path} on {node}")
            return bytes(reply.stdout)
        seen = self._seen_by_thread(path, node)
        with os_errors_as(NearmetalError, f"cannot read {path} on {self._called(node)}"):
            return self._inside(node).do(lambda: plain_files.read(seen))

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read; no program is started for it."""
        if node in self._guests:
            return remote.read_all(self._guests[node], paths, timeout_s=_FILE_TIMEOUT_S)
        return read_each(lambda path: self.read(path, node=node), paths)

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; guests have the names of nodes in a file of their own."""
        if node in self._guests:
            remote.write(self._guests[node], path, data, timeout_s=_FILE_TIMEOUT_S).require(f"write {path} on {node}")
            return
        with os_errors_as(NearmetalError, f"cannot write {path} on {self._called(node)}"):
            self._inside(node).do(lambda: plain_files.write(path, data))
        if path == f"{self.scratch}/hosts":
            for guest in self._guests:
                self.write("/etc/hosts", data, node=guest)

    def close(self) -> None:
        """Let the threads go, then end every process."""
        while self._entered:
            self._entered.popitem()[1].close()
        super().close()

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Move an interface into a node; a guest has its own, whatever the host calls it."""
        if node in self._guests:
            self.run(["ip", "link", "show", name], node=node)
        else:
            super().give_interface(interface, node, name)

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        if node not in self._guests:
            return self._inside(node).do(lambda: process.run(argv, timeout_s=timeout_s, env=env, stdin=stdin))
        return remote.finished(self._guests[node], argv, env=env, stdin=stdin, timeout_s=timeout_s)

    def _inside(self, node: str) -> NamespaceThread:
        try:
            return self._entered[node]
        except KeyError:
            raise TrialError(f"there is no node {node!r}") from None

    def _seen_by_thread(self, path: str, node: str) -> str:
        """Return the name of a file for the thread in a node, which has no number in the node's /proc.

        /proc/net is that of /proc/self, which is nothing there; the node's first process has the same network.
        """
        if not path.startswith("/proc/net/"):
            return path
        return f"/proc/{self._nodes.get(node, _FIRST_PID)}{path.removeprefix('/proc')}"

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        if node not in self._guests:
            return super()._enter(node)
        return [*super()._enter(), str(native.build(CALLER)), str(self._guests[node]), "--"]
