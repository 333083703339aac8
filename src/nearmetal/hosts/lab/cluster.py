"""A cluster of the lab: every node is a machine, all of them lives of one snapshot in one virtual time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.lab import wire
from nearmetal.hosts.lab.frames import Seat
from nearmetal.hosts.lab.vm import Vm

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator, Mapping

    from nearmetal.hosts.lab.machine import Machine
    from nearmetal.hosts.lab.vm import Boot
    from nearmetal.study.order import Order, Scalar

_FEWEST = 2
_OWN_MIB = 100
"""What an emulator takes beside its guest's memory."""
_MANAGEMENT = wire.Link(delay_ns=20_000, rate_mbps=1000)
"""So far that the measured network alone decides how far machines may run ahead of each other."""
_WIRE: dict[str, float] = {"wire_delay_us": 2.0, "wire_rate_mbit": 1000.0}
"""Options of a path that the wires themselves carry out, and what holds without them: an 82576 is a 1 Gbit/s port."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """How many machines there are at most."""

    nodes: int

    def start(self, boot: Boot, order: Order, seed: int, stack: contextlib.ExitStack) -> Iterator[Vm]:
        """Start as many machines as an order needs, paused; `stack` ends them.

        What they share is memory without a name, so nothing of it outlives them. Raises TrialError when the order needs
        more than there are.
        """
        if order.nodes > self.nodes:
            raise TrialError(
                f"the trial needs {order.nodes} nodes, and the cluster has {self.nodes}",
                hint=f"nodes = {order.nodes} in [host.options]",
            )
        count = _count(order)
        options = {name: value for name, value in order.path.options.items() if name not in _WIRE}
        text = replace(order, path=replace(order.path, options=options)).to_json().encode()
        memory, measured = stack.enter_context(wire.shared_memory()), _link(order)
        for node in range(count):
            plugin = partial(_joined, boot, wire.Place(memory, node, count), seed, measured)
            life = Vm(boot, order=text, seed=seed + node, restore=True, seat=Seat(node, count), plugin=plugin)
            yield stack.enter_context(life)

    def facts(self, order: Order) -> dict[str, Scalar]:
        """Return what is to be known of a trial's machines and wires."""
        return {"lab.nodes": _count(order), **{f"lab.{name}": value for name, value in _wire(order).items()}}


def _joined(boot: Boot, place: wire.Place, seed: int, measured: wire.Link, counts: Path) -> str:
    return wire.plugin_argument(
        boot.wire,
        place,
        seed=seed,
        guests=boot.machine.iommu,
        counts=counts,
        measured=measured,
        management=_MANAGEMENT,
    )


def _count(order: Order) -> int:
    return max(_FEWEST, order.nodes)


def _wire(order: Order) -> dict[str, Scalar]:
    return {name: order.path.options.get(name, default) for name, default in _WIRE.items()}


def _link(order: Order) -> wire.Link:
    """Return delay and rate of an order's wires; raise TrialError for what is no positive number."""
    numbers = []
    for name, value in _wire(order).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise TrialError(f"{name} is {value!r}, not a positive number")
        numbers.append(value)
    delay_us, rate_mbit = numbers
    return wire.Link(delay_ns=round(delay_us * 1000), rate_mbps=round(rate_mbit))


def nodes_of(options: Mapping[str, Scalar]) -> int:
    """Return how many machines a study's `host.options` ask for, 0 for the one that holds all nodes.

    Raises BadInputError for a number that cannot be.
    """
    nodes = options.get("nodes", 0)
    if "nodes" in options and (isinstance(nodes, bool) or nodes not in range(_FEWEST, wire.NODES_MAX + 1)):
        raise BadInputError(
            f"the lab's option 'nodes' is a whole number from {_FEWEST} to {wire.NODES_MAX}, not {nodes!r}",
            hint="leave it out for one machine that holds all nodes",
        )
    return int(nodes)


def cluster_of(options: Mapping[str, Scalar], machine: Machine, slots: int) -> Cluster | None:
    """Return the cluster of such machines that a study's `host.options` ask for, or None.

    Raises BadInputError, and UnavailableError when the machines of all slots do not fit into this one's memory.
    """
    nodes = nodes_of(options)
    if not nodes:
        return None
    needed, free = slots * nodes * (machine.memory_mib + _OWN_MIB), _available_mib()
    if needed > free:
        raise UnavailableError(
            f"{slots} times {nodes} machines of {machine.memory_mib} MiB need {needed} MiB of memory, "
            f"and {free} MiB are available",
            hint="ask for fewer `nodes` or `slots` in [host.options]",
        )
    return Cluster(nodes)


def _available_mib() -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) // 1024 if match else 0
