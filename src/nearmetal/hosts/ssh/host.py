"""Host `ssh`: machines that the study names, bare hosts and guests, or one hypervisor to build paths on."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, NearmetalError, QuarantinedError, UnavailableError
from nearmetal.hosts.far.bind import Bound, bind
from nearmetal.hosts.far.machine import Machine
from nearmetal.hosts.far.namespaces import FarNamespaceShell
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.host import Site, at_once
from nearmetal.hosts.ssh.connect import Access, Connector, Place, SshCarrier
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.spec import read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.study.order import Order, Scalar
    from nearmetal.study.spec import HostSpec, NodeSpec

OPTIONS = {
    "identity": "file of the private key; ssh's own and the agent's when left out",
    "known_hosts": "file of known host keys; ssh's own when left out",
    "config": "ssh_config file to read",
    "connect_timeout_s": "time for one connection (20)",
    "parallel": "connections that are made at once (32)",
    "mpi_prefix": "directory of the MPI on the machines; PATH when left out",
    "remote_shell": "what reaches one machine from another there (`ssh -o BatchMode=yes`)",
    "cache": "directory for programs built there (`~/.cache/nearmetal`)",
}
_DEFAULT_REMOTE_SHELL = "ssh -o BatchMode=yes"


class SshHost:
    """Carries trials out on far machines; connections stay open between trials."""

    kind = "ssh"
    slots = 1

    def __init__(self, nodes: Sequence[NodeSpec], options: Mapping[str, Scalar]) -> None:
        _check_options(options)
        if not nodes:
            raise BadInputError("the ssh host has no machines", hint="give [[host.node]] tables, or a `hosts_file`")
        self._nodes = {node.name: node for node in nodes}
        self._options = dict(options)
        self._memory = Memory()
        self.label = f"over ssh: {', '.join(self._nodes)}"
        self._connector = Connector(_access(options))
        self._machines = {node.name: Machine(SshCarrier(self._connector, _place(node))) for node in nodes}
        try:
            self.on_all(Machine.connect)
        except BaseException:
            self.close()
            raise

    def on_all(self, deed: Callable[[Machine], object]) -> None:
        """Do something on every machine, at most `parallel` at once; raise UnavailableError with all failures."""
        failures = []
        with ThreadPoolExecutor(max_workers=min(int(self._options.get("parallel", 32)), len(self._machines))) as pool:
            for done in [pool.submit(deed, machine) for machine in self._machines.values()]:
                try:
                    done.result()
                except NearmetalError as error:
                    failures.append(error)
        if failures:
            raise UnavailableError("; ".join(error.message for error in failures), hint=failures[0].hint)

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Give the body a shell to the machines that the path names; a lost machine fails the trial, not the run."""
        try:
            bound = bind(order, {name: node.interface for name, node in self._nodes.items()})
            with self._shell(bound) as shell:
                outcome = body(shell, bound.order)
        except QuarantinedError:
            raise
        except NearmetalError as error:
            return Outcome(TrialStatus.FAILED, reason=error.message, hint=error.hint or "check the machine with ssh")
        machines = {f"machine.{index}": name for index, name in enumerate(bound.machines)}
        return replace(outcome, facts={**outcome.facts, **machines})

    def _shell(self, bound: Bound) -> MachinesShell | FarNamespaceShell:
        machines = [self._machines[name] for name in bound.machines]
        for machine in machines:
            machine.refresh()
        site = self._site(machines[0].home)
        if bound.built:
            return FarNamespaceShell(machines[0], site, self._memory, own_network=bound.own_network)
        nodes = [self._nodes[name] for name in bound.machines]
        names = [node.reach or node.address or node.name for node in nodes]
        reach = shlex.split(str(self._options.get("remote_shell", _DEFAULT_REMOTE_SHELL)))
        return MachinesShell(machines, names, site, self._memory, remote_shell=shlex.join(reach).encode())

    def _site(self, home: str) -> Site:
        cache = str(self._options.get("cache", f"{home}/.cache/nearmetal"))
        return Site(cache, f"{home}/.local/state/nearmetal", str(self._options.get("mpi_prefix", "")))

    def close(self) -> None:
        """Close every connection; calling twice does nothing more."""
        for machine in self._machines.values():
            machine.close()
        self._connector.close()


def open_ssh(spec: HostSpec) -> SshHost:
    """Return the host of a study's [host] table, connected; raise UnavailableError when a machine does not answer."""
    further = read_nodes(Path(spec.hosts_file).expanduser()) if spec.hosts_file else []
    return SshHost([*spec.node, *further], spec.options)


def _check_options(options: Mapping[str, Scalar]) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise BadInputError(f"the ssh host has no option {unknown[0]!r}", hint=f"known: {', '.join(OPTIONS)}")


def _access(options: Mapping[str, Scalar]) -> Access:
    def file(name: str) -> str:
        given = str(options.get(name, ""))
        path = Path(given).expanduser()
        if given and not path.is_file():
            raise BadInputError(f"{name} = {given!r} is not a file")
        return str(path) if given else ""

    return Access(
        file("identity"),
        file("known_hosts"),
        file("config"),
        float(options.get("connect_timeout_s", 20)),
        at_once(options, "parallel", 32),
    )


def _place(node: NodeSpec) -> Place:
    return Place(node.name, node.address or node.name, node.user, node.port, node.jump, node.connect_timeout_s)
