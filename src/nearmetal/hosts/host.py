"""The two seams between nearmetal and machines.

A `Shell` runs commands, one after another, on a machine and its nodes. A `Host` carries out whole trials. Most
hosts carry a trial out by giving its body a shell (`LocalHost`, `SshHost`); the lab ships the order into an
emulated machine that holds the same body, because nothing from outside may touch its clock while it runs.

`tests/contract/test_host.py` holds what every host must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.process import Finished
from nearmetal.study.order import Order, Outcome, Scalar

T = TypeVar("T")

Way = Mapping[str, Any]
"""How a far machine is reached, as plain data: the `kind` of host, its `options` and the `node`, as in a study."""

RUN = frozenset({"config", "kubectl"})
"""Options of a way that name what is run on this side, or may: those of a way that a file gives are not acted on."""

HYPERVISOR = ""
"""The node name that stands for the machine that holds the nodes."""


class Shell(Protocol):
    """Commands on a machine and on its nodes; not safe for use by two threads at once."""

    @property
    def scratch(self) -> str:
        """A private directory that machine and nodes all see; it is gone when the shell is closed."""

    @property
    def agent(self) -> str:
        """A program that stands for ssh between nodes: `agent NODE COMMAND...`, for MPI launchers."""

    def add_node(self, name: str) -> None:
        """Make a node: its own network, host name, shared memory and scratch directory."""

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Move a network interface of the hypervisor into a node and rename it there."""

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str = HYPERVISOR,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 20.0,
        check: bool = True,
    ) -> Finished:
        """Run a program on a node to its end; `env` is added to the node's environment.

        With `check`, anything but status 0 raises NearmetalError with the program's last words.
        """

    def start(self, argv: Sequence[str], *, node: str = HYPERVISOR) -> Helper:
        """Start a program that stays, such as a server or a relay; it ends with the shell at the latest."""

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content as that node sees it; raise NearmetalError when it cannot be read."""

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return, in one go, the content of those files that can be read; the others are not in the answer."""

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; raise NearmetalError when it cannot be written."""


class FarShell(Shell, Protocol):
    """A shell on machines without nearmetal's files: programs are looked for, and built, on their side."""

    @property
    def machines(self) -> tuple[str, ...]:
        """The nodes that are machines of their own; `HYPERVISOR` alone when the nodes share one."""

    @property
    def site(self) -> Site:
        """Where things are on the far side."""

    def start(self, argv: Sequence[str], *, node: str = HYPERVISOR) -> FarHelper:
        """Start a program that stays; what it says can be read."""

    def machine_name(self, node: str) -> str:
        """Return the name by which this side knows the machine that holds a node."""

    def way(self, node: str) -> Way:
        """Return how the machine that holds a node is reached; nothing where its name is enough."""

    def launch_name(self, node: str) -> str:
        """Return the name by which an MPI launcher on the far side knows a node."""

    def lifeline(self, node: str) -> str:
        """Return the process on that node which ends with the connection; empty when the node itself does."""

    def once(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` returned when this host was first asked for `key` on these machines."""


def is_far(shell: Shell | None) -> TypeGuard[FarShell]:
    """Return whether a shell is on machines without nearmetal's files.

    Asks the class alone: looking an attribute up on the shell would run its properties, and some refuse.
    """
    return hasattr(type(shell), "machine_name")


def name_of(shell: Shell, node: str) -> str:
    """Return what a person calls a node: its machine's name, or the node's where machines have several nodes."""
    return shell.machine_name(node) if is_far(shell) and shell.machines != (HYPERVISOR,) else node


def is_disposable(shell: Shell) -> bool:
    """Return whether the machines of a shell end with the trial: nothing on them has to be put back or taken down."""
    return getattr(type(shell), "disposable", False)


SCRATCH = "/tmp"  # noqa: S108 - what is made there has a random name, and mode 700


@dataclass(frozen=True, slots=True)
class Site:
    """Where things are on far machines, the same on each.

    `cache` is for programs that can be built again, `state` for journals. `mpi_prefix` is where the MPI is, empty for
    PATH. `starter` starts ranks instead of the MPI's own launcher, where a batch system wants that. Directories of
    trials are made in `scratch`, from which programs must be allowed to start.
    """

    cache: str
    state: str
    mpi_prefix: str = ""
    starter: Starter | None = None
    scratch: str = SCRATCH


class Starter(Protocol):
    """What starts ranks on the nodes of a batch system."""

    def command(self, flavour: str, nodes: Sequence[str], hostfile: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the argv prefix and environment that put rank r on `nodes[r]`; `hostfile` holds them, one a line."""


def whole_number(options: Mapping[str, Scalar], name: str, default: int) -> int:
    """Return a host's option that counts something; raise BadInputError where it is no whole number above 0."""
    count = options.get(name, default)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BadInputError(f"the host's option {name!r} must be a whole number of at least 1, not {count!r}")
    return count


def seconds(options: Mapping[str, Scalar], name: str, default: float) -> float:
    """Return a host's option that is a time in seconds; raise BadInputError where it is no number above 0."""
    time_s = options.get(name, default)
    if not isinstance(time_s, int | float) or isinstance(time_s, bool) or not 0 < time_s < inf:
        raise BadInputError(f"the host's option {name!r} must be a number of seconds above 0, not {time_s!r}")
    return float(time_s)


def is_on(options: Mapping[str, Scalar], name: str, *, default: bool, whose: str = "the host's") -> bool:
    """Return what an option that is true or false says; raise BadInputError where it says something else."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise BadInputError(f"{whose} option {name!r} must be true or false, not {value!r}")
    return value


def machines_of(shell: Shell) -> tuple[str, ...]:
    """Return the nodes that stand for whole machines: `HYPERVISOR` alone unless every node is a machine."""
    if not hasattr(type(shell), "machines"):
        return (HYPERVISOR,)
    machines: tuple[str, ...] = shell.machines  # type: ignore[attr-defined]  # the class was asked
    return machines


def management_of(shell: Shell) -> str:
    """Return the subnet by which a shell's nodes are told what to do, where they have a network for that alone."""
    return str(getattr(type(shell), "management", ""))


class OnNode:
    """A node that is a machine, as the machine that a shell's nodes are on: what is done there is done on the node."""

    def __init__(self, shell: Shell, node: str) -> None:
        self.node = node
        self.scratch, self.agent = shell.scratch, shell.agent
        self.run, self.start = self._there(shell.run), self._there(shell.start)
        self.read, self.read_all = self._there(shell.read), self._there(shell.read_all)
        self.write = self._there(shell.write)

    def _there(self, method: Callable[..., T]) -> Callable[..., T]:
        """Return a method of the shell in which the node stands for the hypervisor."""

        def on_node(*words: Any, node: str = HYPERVISOR, **options: Any) -> T:
            return method(*words, node=node or self.node, **options)

        return on_node

    def add_node(self, name: str) -> None:
        """Refuse: nodes are machines."""
        raise UnavailableError(f"cannot make node {name!r} on {self.node}: the nodes are machines")

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Refuse: a machine keeps its interfaces."""
        raise UnavailableError(f"cannot give {interface} to {node} as {name}: the nodes are machines")


class Helper(Protocol):
    """A program that was started to stay."""

    def ended(self) -> Finished | None:
        """Return how it ended, or None while it runs."""

    def stop(self) -> None:
        """End it and its children; calling twice does nothing more."""


class FarHelper(Helper, Protocol):
    """A program on a far machine that was started to stay."""

    def first_lines(self, count: int, timeout_s: float) -> list[str]:
        """Wait for so many lines of what it says; return fewer when it ended or the time was up before."""


@runtime_checkable
class SharedMachinesHost(Protocol):
    """A host that can carry several trials out on machines that stay up between them."""

    def together(self, orders: Sequence[Order]) -> list[list[Order]]:
        """Return the orders, each once, in groups that run together."""

    def carry_out_together(self, orders: Sequence[Order]) -> Iterator[Outcome]:
        """Carry a group out; yield an outcome for each, as `Host.carry_out` returns it."""


@runtime_checkable
class PreparingHost(Protocol):
    """A host that must build something before trials can run."""

    def prepare(self, orders: Iterable[Order]) -> None:
        """Make what these orders need and is not there, as much at once as this machine has cores for."""


@dataclass(frozen=True, slots=True)
class ClockProgress:
    """How far machines have come on a clock of their own, and when they began on this one's (`time.monotonic`)."""

    virtual_ns: int
    since_s: float


@runtime_checkable
class VirtualTimeHost(Protocol):
    """A host whose machines have a clock of their own."""

    def reached(self) -> ClockProgress | None:
        """Return how far those have come that run now; None where none runs."""


class Host(Protocol):
    """Something that carries out trials."""

    @property
    def kind(self) -> str:
        """The word in the study file: `local`, `lab`, `ssh`, `slurm`, `fake`."""

    @property
    def label(self) -> str:
        """Where figures are from and what they are good for, as the end of a sentence; shown wherever they are."""

    @property
    def slots(self) -> int:
        """How many trials may run side by side without disturbing each other."""

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Run one trial and clean up after it, whatever happens.

        A trial that cannot be run is an outcome with status `failed` and a reason. Errors are raised only when the host
        as a whole is unusable.
        """

    def close(self) -> None:
        """Leave nothing behind; calling twice does nothing more."""
