"""The shell inside the lab: nodes are namespaces, or guests of the lab's own hypervisor under KVM.

A guest has a service that runs programs over vsock, which does not cross the measured path. Standard library only: this
runs inside the lab.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nearmetal import native, process
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.lab import kvm, remote
from nearmetal.hosts.lab.machine import CALLER
from nearmetal.hosts.namespaces import AGENT_ENTER, AGENT_HEAD, NamespaceShell
from nearmetal.process import Finished

_FIRST_CID = 3
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
        super().__init__(own_network=False)

    def _write_scratch(self) -> None:
        super()._write_scratch()
        Path(self.scratch, "guests").mkdir()
        to_guest = _TO_GUEST.replace("CALLER", str(native.build(CALLER)))
        Path(self.agent).write_text(AGENT_HEAD + to_guest + AGENT_ENTER)

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
        return super().read(path, node=node)

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read; no program is started for it."""
        if node in self._guests:
            return remote.read_all(self._guests[node], paths, timeout_s=_FILE_TIMEOUT_S)
        return super().read_all(paths, node=node)

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; guests have the names of nodes in a file of their own."""
        if node in self._guests:
            remote.write(self._guests[node], path, data, timeout_s=_FILE_TIMEOUT_S).require(f"write {path} on {node}")
            return
        super().write(path, data, node=node)
        if path == f"{self.scratch}/hosts":
            for guest in self._guests:
                self.write("/etc/hosts", data, node=guest)

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

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        if node not in self._guests:
            return super()._enter(node)
        return [*super()._enter(), str(native.build(CALLER)), str(self._guests[node]), "--"]
