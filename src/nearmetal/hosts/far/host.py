"""A host of far machines: its transport (ssh, kubectl) names them, the rest is here."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import (
    BadInputError,
    NearmetalError,
    QuarantinedError,
    StoreError,
    UnavailableError,
    refuse_unknown,
)
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.namespaces import FarNamespaceShell
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import OpenShell
from nearmetal.hosts.host import SCRATCH, Shell, Site, Way, whole_number
from nearmetal.study.order import Order, Outcome, Scalar

if TYPE_CHECKING:
    from nearmetal.study.spec import NodeSpec


# ---- from the names in a study to machines
# Which ones a trial needs, and what its path must know of them. Pure.


DECLARED = "declared"
NODES, HYPERVISOR_OPTION, NETWORK, INTERFACE = "nodes", "hypervisor", "network", "interface"
PATH_OPTIONS = {
    NODES: "for a `declared` path: names of its machines, separated by blanks",
    HYPERVISOR_OPTION: "for any other path: the machine on which it is built",
    NETWORK: "`own` (a scratch network) or `machine` (its own ports); default: as the kind of path requires",
}
"""What a path on far machines may say besides its recipe's own options."""
_OF_PORTS = frozenset({"native", "vf"})
"""Recipes that take the machine's own ports, so its network cannot be a scratch one."""


@dataclass(frozen=True, slots=True)
class BoundTrial:
    """A trial with its machines: one a node, or the one hypervisor that its path is built on."""

    order: Order
    machines: tuple[str, ...]
    built: bool
    own_network: bool = True


def bind(order: Order, interfaces: Mapping[str, str]) -> BoundTrial:
    """Resolve an order against the host's machines, given as name -> interface on the measured path (or '').

    A `declared` path takes its option `nodes` (names, separated by blanks; all machines in order when left out); any
    other recipe is built on `hypervisor` (which may be left out when there is one machine). Raises BadInputError.
    """
    options = dict(order.path.options)
    if order.path.kind == DECLARED:
        named = str(options.pop(NODES, "")).split() or list(interfaces)
        _check(order, named, interfaces)
        if twice := next((name for name, count in Counter(named).items() if count > 1), ""):
            message = f"path {order.path.label!r} names the machine {twice!r} several times"
            raise BadInputError(message, hint="a node is a machine of its own; ranks share one by their `placement`")
        if len(named) < order.nodes:
            message = f"path {order.path.label!r} has {len(named)} machines, but the workload needs {order.nodes}"
            raise BadInputError(message, hint="name more machines in the path's option `nodes`")
        chosen = named[: order.nodes]
        if not options.get(INTERFACE):  # the path's own is for all of its machines
            known: dict[str, Scalar] = {f"{INTERFACE}.{i}": interfaces[name] for i, name in enumerate(chosen)}
            options |= {k: v for k, v in known.items() if v and k not in options}
        return BoundTrial(_with(order, options), tuple(chosen), built=False)
    hypervisor = str(options.pop(HYPERVISOR_OPTION, "")) or (next(iter(interfaces)) if len(interfaces) == 1 else "")
    if not hypervisor:
        raise BadInputError(
            f"path {order.path.label!r} does not say where to build it",
            hint="kind = 'declared' for machines as they are, or the option `hypervisor` for a recipe",
        )
    _check(order, [hypervisor], interfaces)
    network = options.pop(NETWORK, "machine" if order.path.kind in _OF_PORTS else "own")
    if network not in {"own", "machine"}:
        raise BadInputError(f"path {order.path.label!r}: network must be 'own' or 'machine', not {network!r}")
    return BoundTrial(_with(order, options), (hypervisor,), built=True, own_network=network == "own")


def _check(order: Order, named: list[str], interfaces: Mapping[str, str]) -> None:
    unknown = [name for name in named if name not in interfaces]
    if unknown:
        message = f"path {order.path.label!r} names the machine {unknown[0]!r}, which the host does not have"
        raise BadInputError(message, hint=f"known: {', '.join(interfaces)}")


def _with(order: Order, options: dict[str, Scalar]) -> Order:
    return replace(order, path=replace(order.path, options=options))


# ---- host


OPTIONS = {
    "parallel": "number of connections opened at once (32)",
    "mpi_prefix": "directory of the MPI on the machines (found on PATH)",
    "remote_shell": "command that logs in from one machine to another (`ssh -o BatchMode=yes`)",
    "cache": "directory for programs built there (`~/.cache/nearmetal`)",
    "scratch": "directory for temporary files there; it must not be mounted noexec (`/tmp`)",
}
"""What every host of far machines understands."""
FILES = frozenset({"identity", "known_hosts", "config"})
"""Options that name files on this side."""
_OF_A_WAY = ("name", "address", "user", "port", "jump", "connect_timeout_s")
_DEFAULT_REMOTE_SHELL = "ssh -o BatchMode=yes"


class FarHost:
    """Carries trials out on far machines; their shells stay open between trials.

    `hint` is for machines that fail a trial without one of their own. Raises UnavailableError, with every failure, when
    a machine does not answer.
    """

    kind = "far"
    reaching: frozenset[str] = frozenset()
    """The host's options without which its machines are not reached."""
    slots = 1
    hint = "check the machine manually"

    def __init__(
        self, nodes: Sequence[NodeSpec], shells: Sequence[OpenShell], options: Mapping[str, Scalar], *, label: str
    ) -> None:
        """Connect every machine; `shells[i]` starts the shell of `nodes[i]`."""
        self._nodes = {node.name: node for node in nodes}
        self._options = dict(options)
        self._memory = Memory()
        self.label = label
        self._machines = {
            node.name: FarMachine(node.name, one, self._way(node)) for node, one in zip(nodes, shells, strict=True)
        }
        try:
            self.on_all(FarMachine.connect)
        except BaseException:
            self.close()
            raise

    def _way(self, node: NodeSpec) -> Way:
        """Return how a machine is reached from any directory."""
        options = {name: value for name, value in self._options.items() if name in self.reaching}
        options |= {name: str(Path(str(options[name])).expanduser().absolute()) for name in FILES & options.keys()}
        return {"kind": self.kind, "node": node.model_dump(include=set(_OF_A_WAY)), "options": options}

    def on_all(self, deed: Callable[[FarMachine], object]) -> None:
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
        except (QuarantinedError, StoreError):
            raise
        except NearmetalError as error:
            return Outcome.of_error(error, self.hint)
        machines = {f"machine.{index}": name for index, name in enumerate(bound.machines)}
        return replace(outcome, facts={**outcome.facts, **machines})

    def shells(self) -> Generator[MachinesShell]:
        """Give a shell on each machine, one after another; the machine itself is its only node."""
        for name, machine in self._machines.items():
            with MachinesShell([machine], [name], site_of(machine.home, self._options), self._memory) as shell:
                yield shell

    def _shell(self, bound: BoundTrial) -> MachinesShell | FarNamespaceShell:
        machines = [self._machines[name] for name in bound.machines]
        site = refreshed(machines, self._options)
        if bound.built:
            return FarNamespaceShell(machines[0], site, self._memory, own_network=bound.own_network)
        nodes = [self._nodes[name] for name in bound.machines]
        names = [node.reach or node.address or node.name for node in nodes]
        return MachinesShell(
            machines, names, site, self._memory, remote_shell=shlex.join(_remote_shell(self._options)).encode()
        )

    def close(self) -> None:
        """Close every shell; calling twice does nothing more."""
        for machine in self._machines.values():
            machine.close()


def refreshed(machines: Sequence[FarMachine], options: Mapping[str, Scalar]) -> Site:
    """Connect machines anew where they are lost; return where things are on them."""
    for machine in machines:
        machine.refresh()
    return site_of(machines[0].home, options)


def site_of(home: str, options: Mapping[str, Scalar]) -> Site:
    """Return where things are on far machines, below the home directory where the host's options do not say."""

    def folder(name: str, default: str) -> str:
        given = str(options.get(name, default))
        return f"{home}{given[1:]}" if given == "~" or given.startswith("~/") else given  # no shell expands it there

    return Site(
        folder("cache", "~/.cache/nearmetal"),
        f"{home}/.local/state/nearmetal",
        folder("mpi_prefix", ""),
        scratch=folder("scratch", SCRATCH),
    )


def check_options(kind: str, options: Mapping[str, Scalar], known: Mapping[str, str]) -> None:
    """Raise BadInputError for an option that a host does not have, or a number of connections that is none."""
    refuse_unknown(options, known, f"host {kind!r}")
    whole_number(options, "parallel", 32)
    _remote_shell(options)
    scratch = str(options.get("scratch", SCRATCH))
    if not re.fullmatch(r"(/|~/)\S+", scratch):
        raise BadInputError(
            f"the host's option 'scratch' is not a directory for trials: {scratch!r}",
            hint="give an absolute path, or one below `~/`; MPI launchers cut it at a blank",
        )


def _remote_shell(options: Mapping[str, Scalar]) -> list[str]:
    """Return the words of the command that logs in elsewhere; raise BadInputError where a shell could not read it."""
    given = str(options.get("remote_shell", _DEFAULT_REMOTE_SHELL))
    try:
        words, why = shlex.split(given), ""
    except ValueError as error:
        words, why = [], f": {str(error).lower()}"
    if not words:
        raise BadInputError(
            f"the host's option 'remote_shell' is not a command: {given!r}{why}",
            hint="leave it out for `ssh -o BatchMode=yes`",
        )
    return words


def check_names(kind: str, nodes: Sequence[NodeSpec]) -> None:
    """Raise BadInputError for a name that several machines of a host have: trials would all go to the last of them."""
    name, count = Counter(node.name for node in nodes).most_common(1)[0]
    if count > 1:
        message = f"{count} machines of the {kind} host are called {name!r}"
        raise BadInputError(message, hint="give each machine a name of its own; a path names its machines by it")
