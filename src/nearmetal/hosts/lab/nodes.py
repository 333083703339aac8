"""A cluster seen from its node 0: the other nodes are machines behind the management port, and guests of machines.

Every node serves programs and files there; the client is the far shell, with these connections in place of ssh. A guest
has its own card for that, which its machine routes to the port. Standard library only: this runs inside the lab.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from nearmetal import native, process
from nearmetal.errors import NearmetalError, os_errors_as
from nearmetal.hosts import plain_files
from nearmetal.hosts.far.machine import SHORT_S, FarMachine
from nearmetal.hosts.far.shell import NodesShell
from nearmetal.hosts.far.stream import Inbox, LostError, Stream
from nearmetal.hosts.host import HYPERVISOR, OnNode
from nearmetal.hosts.lab import kvm, remote
from nearmetal.hosts.lab.frames import NodeId
from nearmetal.hosts.lab.machine import CALLER, MANAGEMENT, MEASURED
from nearmetal.process import Finished

T = TypeVar("T")

_SERVING_S = 5.0
"""How long a node may take, all of them waking at the same moment, until it serves."""
_POLL_S = 0.01
_SETTINGS = {
    # Neighbour discovery would share the wire with a trial.
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv6/conf/default/disable_ipv6": "1",
    # A port under a bridge has no address, and does not answer for the interface that has one.
    "ipv4/conf/all/arp_ignore": "1",
    "ipv4/conf/all/arp_announce": "2",
}
_GUESTS_FROM = 100
_HAS_CARD = f"/sys/class/net/{MEASURED}/address"
_SEED_BYTES = 16


def name_of(node: int) -> str:
    """Return a node's name, which is its machine's own and MPI's."""
    return f"n{node}"


def address_of(node: int) -> str:
    """Return a node's address on the management network."""
    return f"10.78.0.{node + 1}"


def guest_of(node: int) -> str:
    """Return the name of a node's guest, which is the guest's own and MPI's."""
    return f"g{node}"


def address_of_guest(node: int) -> str:
    """Return a guest's address on the management network."""
    return address_of(_GUESTS_FROM + node)


def take(node_id: NodeId) -> None:
    """Make this machine that node, and serve on the management network in a thread.

    All nodes are restored from one snapshot, so name and hardware addresses are dealt here.
    """
    Path("/proc/sys/kernel/hostname").write_text(name_of(node_id.node))
    nodes = range(node_id.nodes)
    names = "".join(f"{address_of(i)} {name_of(i)}\n{address_of_guest(i)} {guest_of(i)}\n" for i in nodes)
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{names}")
    lines = [
        f"link set {MEASURED} address 52:54:00:0a:00:{node_id.node:02x}",
        f"link set {MANAGEMENT} address 52:54:00:0b:00:{node_id.node:02x}",
        f"addr add {address_of(node_id.node)}/24 dev {MANAGEMENT}",
    ]
    for setting, value in _SETTINGS.items():
        Path("/proc/sys/net", setting).write_text(value)
    process.run(["ip", "-batch", "-"], stdin="\n".join(lines).encode(), timeout_s=20, check=True)
    threading.Thread(target=remote.serve, args=(remote.of_node(address_of(node_id.node)),), daemon=True).start()


def machine_of(node: str) -> FarMachine:
    """Return a node by its name or address, as a machine to run commands on."""
    return FarMachine(node, partial(open_shell, node))


def open_shell(node: str) -> Stream:
    """Start `sh` on a node; raise LostError when it is out of reach."""
    inbox = Inbox()
    program = _once_it_serves(node, lambda: remote.RemoteProgram(node, ["/bin/sh"], output=inbox.put, ended=inbox.end))
    return Stream(inbox, program.write, program.end_input, program.close)


def _once_it_serves(node: str, connect: Callable[[], T]) -> T:
    deadline_s = time.monotonic() + _SERVING_S
    while True:
        try:
            return connect()
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise LostError(f"node {node} cannot be reached: {error}") from error
            time.sleep(_POLL_S)


class ClusterShell(NodesShell):
    """Nodes are the cluster's machines, and guests that were booted on them; the first is the one that this runs on.

    Their own service starts programs and reads files: the far shell would start `sh` and `env` for each program and a
    program for each file, at 3 ms of the lab's time apiece. It serves those that stay.
    """

    disposable = True

    management = "10.78.0.0/24"
    """The network by which the nodes are told what to do."""

    def __init__(self, node_id: NodeId) -> None:
        """Name the machines; a connection is made when a node is first spoken to."""
        names = [name_of(node) for node in range(node_id.nodes)]
        machines = [machine_of(name) for name in names]
        super().__init__(machines, names, remote_shell=str(native.build(CALLER)).encode())
        self._guests: set[str] = set()

    @property
    def machines(self) -> tuple[str, ...]:
        """Every node that is no guest is a machine of the lab."""
        return tuple(name for name in super().machines if name not in self._guests)

    def boot_guest(self, node: str, devices: Sequence[str]) -> Callable[[], str]:
        """Start a guest with these devices (QEMU's words) on a node.

        What is returned waits until it runs programs, makes it a node, and returns its name. Raises as `kvm.start` and
        `kvm.BootingGuest.wait` do.
        """
        number = self.machines.index(node)
        name, address = guest_of(number), address_of_guest(number)
        booting = kvm.managed(OnNode(self, node), name, devices, address_of(number), address)

        def known() -> str:
            booting.wait(lambda: True)
            self._free.insert(0, (machine_of(name), name))
            self._guests.add(name)
            self.add_node(name)
            if kvm.stands():
                booting.wait(lambda: _HAS_CARD in remote.read_all(name, [_HAS_CARD], timeout_s=SHORT_S))
                seed = os.urandom(_SEED_BYTES)
                remote.reseed(name, seed, timeout_s=SHORT_S).require(f"give guest {name} its seed")
            return name

        return known

    def add_node(self, name: str) -> None:
        """Take the next machine as a node, once it serves."""
        if name != name_of(0):
            _once_it_serves(name, lambda: remote.reach(name))
        super().add_node(name)

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content."""
        name = self._called(node)
        if name == name_of(0):
            with os_errors_as(NearmetalError, f"cannot read {path} on {name}"):
                return plain_files.read(path)
        reply = remote.read(name, path, timeout_s=SHORT_S)
        reply.require(f"read {path} on {name}")
        return bytes(reply.stdout)

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read."""
        name = self._called(node)
        if name == name_of(0):
            return plain_files.read_all(paths)
        return remote.read_all(name, paths, timeout_s=SHORT_S)

    def close(self) -> None:
        """Leave everything: the machines end now."""

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        name, env = self._called(node), {**os.environ, **env}
        if name == name_of(0):
            return process.run(argv, env=env, stdin=stdin, timeout_s=timeout_s)
        return remote.finished(name, argv, env=env, stdin=stdin, timeout_s=timeout_s)
