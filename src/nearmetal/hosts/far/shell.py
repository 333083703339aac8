"""Shells whose nodes are machines, each with its own kernel."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from nearmetal.errors import NearmetalError, TrialError
from nearmetal.hosts.far.machine import FarMachine, KeptProgram
from nearmetal.hosts.host import HYPERVISOR, SCRATCH, Site, Way
from nearmetal.hosts.shell import CommandShell
from nearmetal.process import Finished

T = TypeVar("T")

# A file system may be shared by the machines: then the directory is there, and it is ours.
_MAKE_NODE = """test -O "$1" || mkdir -m 700 -- "$1" && mkdir -p -- "$1/$2" && printf %s "$4" > "$3" && chmod 755 "$3"
"""
_AGENT_SCRIPT = """#!/bin/sh
# Reaches from node to node for MPI launchers: agent [OPTIONS] NODE COMMAND...; ssh's own way to read both.
while [ "${1#-}" != "$1" ]; do shift; done
exec %s "$@"
"""


class Memory:
    """What a host found out once: where the MPI is, which programs are built."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}

    def once(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time; nothing is kept of a `make` that raised."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]  # the caller's key stands for one type


class NodesShell(CommandShell[KeptProgram]):
    """Nodes are machines, in the order in which they were given; the first stands for the hypervisor as well.

    A context manager, made for one trial; the connections are the host's and stay. `names[i]` is how the machines
    know each other, `remote_shell` the quoted command that reaches one of them from another.
    """

    def __init__(
        self,
        machines: Sequence[FarMachine],
        names: Sequence[str],
        *,
        remote_shell: bytes,
        scratch: str = SCRATCH,
    ) -> None:
        super().__init__(f"{scratch}/nm-{secrets.token_hex(12)}")  # made with mkdir -m 700
        self._free = list(zip(machines, names, strict=True))
        self._first = machines[0]
        self._remote_shell = remote_shell
        self._nodes: dict[str, tuple[FarMachine, str]] = {}

    @property
    def machines(self) -> tuple[str, ...]:
        """Every node is a machine."""
        return tuple(self._nodes) or (HYPERVISOR,)

    def add_node(self, name: str) -> None:
        """Take the next machine as a node; raise TrialError when there is none."""
        if name in self._nodes or not self._free:
            raise TrialError(
                f"there is no machine for node {name!r}: {len(self._nodes)} are in use",
                hint="name as many machines in the path's option `nodes` as the workload's placement has nodes",
            )
        machine, known_as = self._free.pop(0)
        self._nodes[name] = (machine, known_as)
        machine.remove_at_end(self.scratch)
        script = _AGENT_SCRIPT % self._remote_shell.decode()
        self.run(["sh", "-c", _MAKE_NODE, "sh", self.scratch, name, self.agent, script], node=name)

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Refuse: the interfaces of machines are as they are."""
        raise TrialError(
            f"cannot give {interface} to {node} as {name}: the nodes are machines with interfaces of their own",
            hint="use kind = 'declared' for the path, or name one `hypervisor` that the recipe may build on",
        )

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file; a short one goes out as one write."""
        self._machine(node).write(path, data)

    def close(self) -> None:
        """End what was started and remove the scratch directories; calling twice does nothing more."""
        self._stop_helpers()
        nodes, self._nodes = self._nodes, {}
        lost: list[NearmetalError] = []
        for machine, _ in nodes.values():
            try:
                machine.remove(self.scratch)
            except NearmetalError as error:
                lost.append(error)
        if lost:
            raise lost[0]

    def _environment(self, node: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        return super()._environment(node, extra) if node else dict(extra or {})

    def _called(self, node: str) -> str:
        return self._machine(node).name

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        return self._machine(node).run(argv, env=env, stdin=stdin, timeout_s=timeout_s)

    def _started(self, argv: Sequence[str], node: str) -> KeptProgram:
        return self._machine(node).keep(argv)

    def _machine(self, node: str) -> FarMachine:
        if node == HYPERVISOR:
            return self._first
        if node not in self._nodes:
            raise TrialError(f"there is no node {node!r}")
        return self._nodes[node][0]


class MachinesShell(NodesShell):
    """Machines without any of nearmetal's files."""

    def __init__(
        self,
        machines: Sequence[FarMachine],
        names: Sequence[str],
        site: Site,
        memory: Memory,
        *,
        remote_shell: bytes = b"ssh -o BatchMode=yes",
    ) -> None:
        super().__init__(machines, names, remote_shell=remote_shell, scratch=site.scratch)
        self.site = site
        self._memory = memory

    def each(self) -> Iterator[MachinesShell]:
        """Give a shell on each machine, one after another; the machine itself is its only node."""
        for machine, name in [*self._free, *self._nodes.values()]:
            with MachinesShell([machine], [name], self.site, self._memory) as shell:
                yield shell

    def machine_name(self, node: str) -> str:
        """Return the machine's name."""
        return self._machine(node).name

    def way(self, node: str) -> Way:
        """Return how the machine is reached."""
        return self._machine(node).way

    def launch_name(self, node: str) -> str:
        """Return the name by which the machines know each other."""
        return self._nodes[node][1]

    def lifeline(self, node: str) -> str:
        """Return the far shell's process."""
        machine = self._machine(node)
        machine.connect()
        return machine.process

    def once(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time."""
        return self._memory.once(f"{sorted(name for _, name in self._nodes.values())} {key}", make)
