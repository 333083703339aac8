"""A cluster of the lab: every node is a machine, all of them restored from one snapshot, in one virtual time."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.host import is_on
from nearmetal.hosts.lab import wire
from nearmetal.hosts.lab.frames import NodeId
from nearmetal.hosts.lab.machine import STANDING_PATHS, Boot, LabMachine
from nearmetal.hosts.lab.vm import Vm
from nearmetal.study.order import Order, PathOrder, Scalar

_FEWEST = 2
_MACHINE_MIB = {"base": 384, "smp2": 384, "kvm": 900}
"""What a machine takes for itself, by its name: the pages of the snapshot that it writes to, and the emulator.

Seen were at most 207 MiB (base, MPI on two nodes), and 727 MiB with a KVM guest, pages of the snapshot included.
"""
_MANAGEMENT = wire.Link(delay_ns=20_000, rate_mbps=1000)
"""So far that the measured network alone decides how far machines may run ahead of each other."""
WIRE = {
    "wire_delay_us": "with `nodes`: how long a frame is on a wire, in us (2); a path's own option overrides it",
    "wire_rate_mbit": "with `nodes`: rate of a wire, in Mbit/s (1000, like a port of the 82576)",
    "wire_loss_percent": "with `nodes`: percentage of frames that are lost, drawn from the trial's seed (0)",
    "wire_queue_kib": "with `nodes`: queue at each port of the switch, in KiB; excess is dropped and counted (1024)",
}
"""Options of the host, and of a path, that the wires themselves carry out, and what they are."""
_DEFAULTS = {"wire_delay_us": 2.0, "wire_rate_mbit": 1000.0, "wire_loss_percent": 0.0, "wire_queue_kib": 1024.0}
_MOST = {"wire_delay_us": 1e6, "wire_rate_mbit": 1e6, "wire_loss_percent": 100.0, "wire_queue_kib": float(1 << 20)}
_SHORTEST_NS = 600
"""A wire cannot be shorter: the longest block of instructions takes 512 ns (native/wire)."""
_LEAST_FRAME_BITS = 84 * 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """How many machines there are at most, and which options of their wires differ from the defaults."""

    nodes: int
    wires: Mapping[str, float] = field(default_factory=dict)
    standing_guests: bool = True
    """Whether machines of which each holds a guest are restored from a snapshot with it."""

    def has_guests(self, path: PathOrder) -> bool:
        """Return whether machines for that path start with a guest on each."""
        return self.standing_guests and path.kind in STANDING_PATHS and path.options.get("ends", "both") == "both"

    def start(
        self, boot: Boot, orders: Sequence[Order], seed: int, memory: str, stack: contextlib.ExitStack
    ) -> Iterator[Vm]:
        """Start as many machines as orders of one path need, which share `memory`, paused; `stack` ends them.

        Raises TrialError when the order needs more than there are.
        """
        order = orders[0]
        if order.nodes > self.nodes:
            message = f"the trial needs {order.nodes} nodes, but the cluster has {self.nodes}"
            raise TrialError(message, hint=f"nodes = {order.nodes} in [host.options]")
        count = _count(order)
        options = {name: value for name, value in order.path.options.items() if name not in WIRE}
        path = replace(order.path, options=options)
        text = "\n".join(replace(one, path=path).to_json() for one in orders).encode()
        measured = self._link(order)
        for node in range(count):
            plugin = partial(_joined, boot, wire.WirePlace(memory, node, count), seed, measured)
            vm = Vm(boot, order=text, seed=seed + node, restore=True, node_id=NodeId(node, count), plugin=plugin)
            yield stack.enter_context(vm)

    def facts(self, order: Order) -> dict[str, Scalar]:
        """Return what is to be known of a trial's machines and wires."""
        return {"lab.nodes": _count(order), **{f"lab.{name}": value for name, value in self._wire(order).items()}}

    def _wire(self, order: Order) -> dict[str, Scalar]:
        own = {name: value for name, value in order.path.options.items() if name in WIRE}
        return {**_DEFAULTS, **self.wires, **own}

    def _link(self, order: Order) -> wire.Link:
        """Return what an order's wires are; raise TrialError for what they cannot be."""
        try:
            return link_of(self._wire(order))
        except BadInputError as error:
            raise TrialError(error.message, hint=error.hint) from error


def _joined(boot: Boot, place: wire.WirePlace, seed: int, measured: wire.Link, counts: Path) -> str:
    return wire.plugin_argument(
        boot.wire,
        place,
        seed=seed,
        guests=boot.machine.iommu,
        person=boot.terminal is not None and place.node == 0,
        counts=counts,
        measured=measured,
        management=_MANAGEMENT,
    )


def _count(order: Order) -> int:
    return max(_FEWEST, order.nodes)


def link_of(options: Mapping[str, Scalar]) -> wire.Link:
    """Return the wire that options describe, those that are not given as they are by default.

    Raises BadInputError for values that no wire has.
    """
    numbers: dict[str, float] = {}
    for name, default in _DEFAULTS.items():
        value = options.get(name, default)
        if isinstance(value, bool | str) or not (0 < value <= _MOST[name] or value == default):
            raise BadInputError(f"{name} is {value!r}, not a number above 0 and up to {_MOST[name]:g}")
        numbers[name] = value
    delay_us, rate_mbit, loss_percent, queue_kib = numbers.values()
    link = wire.Link(
        round(delay_us * 1000), max(1, round(rate_mbit)), round(queue_kib * 1024), round(loss_percent * 1e4)
    )
    on_its_way_ns = link.delay_ns + _LEAST_FRAME_BITS * 1000 // link.rate_mbps
    if on_its_way_ns < _SHORTEST_NS:
        raise BadInputError(
            f"with wire_delay_us = {delay_us:g} and wire_rate_mbit = {rate_mbit:g} a frame arrives after "
            f"{on_its_way_ns} ns, but machines need {_SHORTEST_NS} ns to stay in step",
            hint="use a longer delay or a lower rate",
        )
    return link


def nodes_of(options: Mapping[str, Scalar]) -> int:
    """Return how many machines a study's `host.options` ask for, 0 for the one that holds all nodes.

    Raises BadInputError for a number that cannot be.
    """
    nodes = options.get("nodes", 0)
    if "nodes" in options and (isinstance(nodes, bool) or nodes not in range(_FEWEST, wire.NODES_MAX + 1)):
        message = f"the lab's option 'nodes' is a whole number from {_FEWEST} to {wire.NODES_MAX}, not {nodes!r}"
        raise BadInputError(message, hint="leave it out for one machine that holds all nodes")
    return int(nodes)


def cluster_of(options: Mapping[str, Scalar], machine: LabMachine, slots: int) -> Cluster | None:
    """Return the cluster of such machines that a study's `host.options` ask for, or None.

    Raises BadInputError, and UnavailableError when the machines of all slots do not fit into this one's memory.
    """
    nodes, asked = nodes_of(options), {name: value for name, value in options.items() if name in WIRE}
    standing = is_on(options, "standing_guests", default=True)
    if asked and not nodes:
        raise BadInputError(
            f"the lab's option {next(iter(asked))!r} needs one machine per node",
            hint="set `nodes`, too; on one machine, paths have `wire_delay_us` and `wire_rate_mbit`",
        )
    link_of(asked)
    if not nodes:
        return None
    needed = machine.memory_mib + slots * nodes * _MACHINE_MIB[machine.name]
    free = _available_mib()
    if needed > free:
        raise UnavailableError(
            f"{slots} times {nodes} machines need {needed} MiB of memory, of it {machine.memory_mib} MiB for their "
            f"snapshot, and {free} MiB are available",
            hint="ask for fewer `nodes` or `slots` in [host.options]",
        )
    return Cluster(nodes, {name: float(value) for name, value in asked.items()}, standing)


def slots_in_memory(nodes: int, machine: LabMachine) -> int:
    """Return how many trials on so many machines fit into this one's memory side by side."""
    return (_available_mib() - machine.memory_mib) // (nodes * _MACHINE_MIB[machine.name])


def _available_mib() -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) // 1024 if match else 0
