"""What a trial needs, tried once on the host before the first one: paths, programs, logins, settings, quiet.

Every path, workload and setting is tried at least once, on far machines every workload on every path; what fails is
told with all other reasons at once. Paths are made and taken down as in a trial, programs are found or built, servers
start, tracing begins and ends; knobs are read, not written, and nothing is launched.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from nearmetal import native
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.facts import tracing
from nearmetal.facts.tenants import look_for_tenants, used_between
from nearmetal.hosts.host import HYPERVISOR, Host, Shell, is_far, machines_of, name_of
from nearmetal.hosts.table import find_host
from nearmetal.knobs.hold import check
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.results.stopping import as_it_ends
from nearmetal.run.between import BUSY
from nearmetal.run.check import OF_MPI
from nearmetal.run.resolve import iterations_by, resolution
from nearmetal.run.trial import machine_itself, path_up
from nearmetal.run.unused import measured_twice
from nearmetal.study.facts import OTHERS, scope_of
from nearmetal.study.order import PROFILE_OPTION, Order, Outcome, Scalar, TrialStatus
from nearmetal.study.plan import block
from nearmetal.study.spec import Study
from nearmetal.units import counted
from nearmetal.workloads.build import mpi_for, refuse_unloadable
from nearmetal.workloads.mpi.mpich import MPICH
from nearmetal.workloads.processors import cores
from nearmetal.workloads.table import find_workload

_VERSION_S = 30.0
_TICKS_PER_S = 100
"""USER_HZ, the unit of /proc on every architecture that Linux has now."""
_WORTH_NAMING = 0.1
_IDENTITY = ("/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id")
_LOG_INS = """agent=$1
shift
for node do
    {
        said=$("$agent" "$node" grep . /proc/sys/kernel/hostname /proc/sys/kernel/random/boot_id </dev/null 2>&1)
        status=$?
        of=$(printf '%s\\n' "$said" | sed -n 's|^/proc/sys/kernel/[a-z/_]*:||p' | tr '\\n' ' ')
        [ "$status" = 0 ] || { said=$("$agent" "$node" true </dev/null 2>&1); status=$?; }
        printf '%s\\t%s\\t%s\\t%s\\n' "$node" "$status" "$of" "$(printf %s "$said" | tail -n 1)"
    } &
done
wait
"""
"""A line for each node: its name, the status of a log-in, which machine that is, and the last line that it printed."""
_NOT_STARTED = "126"
"""A shell's status where a program is there, but may not be executed."""


def preflight(study: Study, host: Host, warn: Callable[[str], object]) -> None:
    """Raise UnavailableError with every reason for which trials of a study would fail on this host.

    `warn` is called with what would spoil or limit the figures: busy machines, too few iterations or blocks.
    """
    for sentence in (*limits(study), *measured_twice(study)):
        warn(sentence)
    orders = [order for order in block(study, 0) if not order.path.again]
    hint = "fix them or remove them from the study; `nearmetal run STUDY --anyway` measures the rest"
    rehearse(study.name, orders, host, warn, hint=hint)


def rehearse(
    name: str, orders: Sequence[Order], host: Host, warn: Callable[[str], object], *, hint: str = "fix them first"
) -> None:
    """Try everything that the orders need, each thing once; raise UnavailableError with every reason, and the hint.

    Nothing is tried on kinds of hosts that say so, such as the lab.
    """
    if not find_host(host.kind).rehearsed:
        return
    found = _Reasons(warn)
    waiting = set().union(*map(_parts, orders))
    for order in sorted(orders, key=lambda one: one.trial):
        if waiting.isdisjoint(_parts(order)):
            continue
        waiting -= _parts(order)
        outcome = host.carry_out(order, found.rehearse)
        if outcome.status is not TrialStatus.VALID:
            found.add(f"path {order.path.label}", outcome.reason, outcome.hint)
    if found.reasons:
        count = counted(len(found.reasons), "reason")
        raise UnavailableError(
            f"the study {name!r} cannot run here, for {count}:\n" + "\n".join(found.lines()), hint=hint
        )


def limits(study: Study) -> Iterator[str]:
    """Yield what the study is too small to conclude, whatever its trials give; nothing where it compares nothing."""
    if len(study.path) == 1 and len(study.setting) <= 1:
        return
    can = resolution(as_it_ends(study))
    for one in study.workload:
        for key, made in iterations_by([one]).items():
            if made < can.proposed_iterations:
                yield (
                    f"workload {one.name}: {key} = {made} is too few for a p99, which near-metal needs; "
                    f"{can.proposed_iterations} are enough"
                )
    if can.blocks < can.blocks_for_mode:
        yield f"{can.blocks} blocks cannot show near-metal, which needs {can.blocks_for_mode}; see `nearmetal plan`"


def _parts(order: Order) -> set[tuple[str, ...]]:
    """Return what a rehearsal of this order tries; on declared paths programs are on machines of that path alone."""
    where = order.path.label if order.path.kind == "declared" else ""
    nodes = str(order.nodes)
    return {("path", order.path.label, nodes), ("workload", where, order.workload.label), ("set", where, order.setting)}


@dataclass(slots=True)
class _Reasons:
    """Reasons with the parts of the study that they hold for."""

    warn: Callable[[str], object]
    reasons: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    looked: set[str] = field(default_factory=set)
    code: dict[tuple[str, str], tuple[Scalar, str]] = field(default_factory=dict)
    """A version by workload and name, with the path that has it."""

    def add(self, part: str, reason: str, hint: str) -> None:
        """Keep a reason once, with each part that it holds for."""
        parts = self.reasons.setdefault((reason, hint), [])
        if part not in parts:
            parts.append(part)

    def lines(self) -> Iterator[str]:
        """Yield the reasons as text."""
        for (reason, hint), parts in self.reasons.items():
            yield f"  {', '.join(parts)}: {reason}" + (f"\n    ({hint})" if hint else "")

    def rehearse(self, shell: Shell, order: Order) -> Outcome:
        """Do what a trial does before its launch, as its body; reasons are kept, so the outcome is good."""
        nodes = [f"n{index}" for index in range(order.nodes)]
        for node in nodes:
            shell.add_node(node)
        new = [node for node in machines_of(shell) if _machine(shell, node) not in self.looked]
        began_s, there = time.monotonic(), look_for_tenants(shell) if new else {}
        with self._keeping(f"path {order.path.label}"):
            _refuse_one_machine(shell, nodes)
            if order.workload.kind in OF_MPI:  # a tool's client and server are started from here
                self._log_in(shell, nodes)
            with path_up(shell, order, nodes) as endpoints:
                self._on_path(shell, order, endpoints)
        if new:
            others = used_between(there, look_for_tenants(shell))
            self._look(shell, new, _shares(others, time.monotonic() - began_s))
            for name in (_machine(shell, node) for node in new if _has_ranks(there, node)):
                self.warn(f"{name} has ranks of another run of nearmetal: the two disturb each other")
        return Outcome(TrialStatus.VALID)

    def _on_path(self, shell: Shell, order: Order, endpoints: Endpoints) -> None:
        with self._keeping(f"setting {order.setting}"), machine_itself(shell) as machine:
            check(shell, endpoints, order.knobs, machine)
        with self._keeping(f"workload {order.workload.label}"):
            _refuse_directory(shell, order)
            if order.workload.kind in OF_MPI:
                _same_interface(shell, order, endpoints)
                _same_mpi(shell, order)
            with tracing.recorded(shell, order):
                self._same_code(order, find_workload(order.workload.kind).prepare(shell, order, endpoints).facts)

    def _same_code(self, order: Order, facts: Mapping[str, Scalar]) -> None:
        """Raise UnavailableError where a workload runs in another version than on an earlier path: `store.query`."""
        path = order.path.label
        for name in (one for one in facts if scope_of(one) == "code"):
            version, earlier = self.code.setdefault((order.workload.label, name), (facts[name], path))
            if version != facts[name]:
                raise UnavailableError(
                    f"{name} is {version} on path {earlier}, {facts[name]} on path {path}: they would not be compared",
                    hint="give their machines the same version, or let `compare --allow-mixed` pass over it",
                )

    def _look(self, shell: Shell, machines: Sequence[str], others: str) -> None:
        """Warn of each machine that is busy, with who keeps it so."""
        for node in machines:
            name = _machine(shell, node)
            load, count = float(shell.read("/proc/loadavg", node=node).split()[0]), cores(shell, node)
            if load > BUSY * count:
                who = f" ({others})" if others else ""
                self.warn(f"{name} is busy: a load of {load:g} on {count} processors{who}; intervals will be wide")
            self.looked.add(name)

    def _log_in(self, shell: Shell, nodes: Sequence[str]) -> None:
        """Raise UnavailableError unless the first node reaches all others, tried at once, as the launcher will.

        Ranks run where that leads: elsewhere, all that is said of a node would be of another.
        """
        if not is_far(shell) or shell.machines == (HYPERVISOR,) or shell.site.starter:
            return
        names = [shell.launch_name(node) for node in nodes[1:]]
        finished = shell.run(
            ["sh", "-c", _LOG_INS, "sh", shell.agent, *dict.fromkeys(names)], node=nodes[0], check=False
        )
        answers = {line[0]: line[1:] for line in (one.split("\t", 3) for one in finished.text.splitlines())}
        if refused := next((said for status, _, said in answers.values() if status == _NOT_STARTED), ""):
            raise UnavailableError(
                f"{shell.machine_name(nodes[0])} starts no programs from {shell.site.scratch}: {refused}",
                hint="it may be mounted noexec: name another directory in the host's option `scratch`",
            )
        wrong = []
        for node, name in zip(nodes[1:], names, strict=True):
            status, there, said = answers.get(name, ["", "", finished.complaint()])
            machine = f"{shell.machine_name(node)}, known there as {name!r}"
            if status != "0":
                wrong.append(f"cannot log in to {machine}: {said or f'status {status}'}")
            elif there and there.split() != (own := _identity(shell, node)):
                wrong.append(f"reaches another machine than {machine}: {there.split()[0]}, not {own[0]}")
        if wrong:
            raise UnavailableError(
                f"{shell.machine_name(nodes[0])} {'; it '.join(wrong)}",
                hint="set the host's option `remote_shell` to a command that reaches it, or correct the node's `reach`",
            )

    @contextlib.contextmanager
    def _keeping(self, part: str) -> Iterator[None]:
        try:
            yield
        except NearmetalError as error:
            self.add(part, error.message, error.hint)


def _refuse_directory(shell: Shell, order: Order) -> None:
    """Raise UnavailableError for a directory of this machine that a launcher of MPI, or the loader, cannot use."""
    if is_far(shell) or not (order.workload.kind in OF_MPI or order.workload.options.get("mpi")):
        return
    if order.nodes > 1 and re.search(r"\s", shell.scratch):
        text = f"launchers of MPI cut a path at a blank, and temporary files are in {shell.scratch}"
        raise UnavailableError(text, hint="name another directory with TMPDIR")
    if order.nodes > 1 and Path(shell.agent).exists() and not os.access(shell.agent, os.X_OK):
        text = f"launchers of MPI start a script in {shell.scratch}, from which no program may be started"
        raise UnavailableError(text, hint="it may be mounted noexec: name another directory with TMPDIR")
    if order.workload.options.get(PROFILE_OPTION):
        refuse_unloadable(native.cache_dir())


def _has_ranks(tenants: Iterable[str], machine: str) -> bool:
    """Return whether an engine of nearmetal is among the processes of a machine, given by their keys."""
    found = (key.split(" ") for key in tenants)
    return any(words[0] == machine and words[-1].startswith(_ENGINES) for words in found)


_ENGINES = ("nmbench-", "nmapps-", "nmfabric-")


def _refuse_one_machine(shell: Shell, nodes: Sequence[str]) -> None:
    """Raise UnavailableError where two nodes that should be machines of their own are one, under two names."""
    if not is_far(shell) or shell.machines == (HYPERVISOR,):
        return
    seen: dict[str, str] = {}
    for node in nodes:
        identity = shell.run(["sh", "-c", _WHICH_MACHINE], node=node).text
        first = seen.setdefault(identity, node)
        if first != node and identity:
            one, other = shell.machine_name(first), shell.machine_name(node)
            raise UnavailableError(
                f"{one} and {other} are one machine ({identity.split()[0]}), with no network between",
                hint="correct the `address` of one, or name another machine in the path's option `nodes`",
            )


_WHICH_MACHINE = """cat /proc/sys/kernel/hostname /proc/sys/kernel/random/boot_id
cat /sys/class/net/*/address 2> /dev/null
true"""
"""Machines restored from one snapshot may have name and boot alike, but not their interfaces."""


def _identity(shell: Shell, node: str) -> list[str]:
    """Return what tells a machine from others: its host name, and the boot, which differs where names do not."""
    return [line.decode(errors="replace").strip() for line in shell.read_all(_IDENTITY, node=node).values()]


def _machine(shell: Shell, node: str) -> str:
    return shell.machine_name(node) if is_far(shell) else "this machine"


def _shares(others: Mapping[str, int], seconds: float) -> str:
    """Return the programs that kept processors busy, and how many each."""
    used = {name.removeprefix(OTHERS): ticks / _TICKS_PER_S / seconds for name, ticks in others.items()}
    return ", ".join(f"{name} uses {many:.1f}" for name, many in used.items() if many >= _WORTH_NAMING)


def _same_interface(shell: Shell, order: Order, endpoints: Endpoints) -> None:
    """Raise UnavailableError for names of interfaces that MPICH cannot be told: it is told one for all nodes."""
    names = {end.interface: name_of(shell, end.node) for end in endpoints.ends}
    if order.mpi == MPICH.name and len(names) > 1:
        each = ", ".join(f"{interface} on {machine}" for interface, machine in names.items())
        raise UnavailableError(
            f"MPICH takes one name of an interface for all nodes, and path {order.path.label} has {each}",
            hint='flavour = "openmpi" in [mpi], or give the interfaces one name',
        )


def _same_mpi(shell: Shell, order: Order) -> None:
    """Raise UnavailableError unless every machine has the MPI of the first one, in the same place."""
    mpi = mpi_for(shell, order.mpi)
    if not is_far(shell) or not mpi.mpirun:
        return

    def version(node: str) -> Finished:
        return shell.run([mpi.mpirun, "--version"], node=node, timeout_s=_VERSION_S, check=False)

    with ThreadPoolExecutor(max_workers=32) as pool:
        first, *others = pool.map(version, shell.machines)
    for node, answer in zip(shell.machines[1:], others, strict=True):
        if answer.stdout != first.stdout:
            found = "another version is" if answer.ok else "nothing that runs"
            here, there = map(shell.machine_name, (shell.machines[0], node))
            raise UnavailableError(
                f"{mpi.label} is at {mpi.mpirun} on {here}; on {there} {found}",
                hint="install the same MPI in the same directory of every machine, and name it: `mpi_prefix`",
            )
