"""From the names in a study to machines: which ones a trial needs, and what its path must know of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearmetal.errors import BadInputError
from nearmetal.study.order import Order, Scalar

DECLARED = "declared"
NODES, HYPERVISOR_OPTION, NETWORK = "nodes", "hypervisor", "network"
_OF_PORTS = frozenset({"native", "vf"})
"""Recipes that take the machine's own ports, so its network cannot be a scratch one."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A trial with its machines: one a node, or the one hypervisor that its path is built on."""

    order: Order
    machines: tuple[str, ...]
    built: bool
    own_network: bool = True


def bind(order: Order, interfaces: Mapping[str, str]) -> Bound:
    """Resolve an order against the host's machines, given as name -> interface on the measured path (or '').

    A `declared` path takes its option `nodes` (names, separated by blanks; all machines in order when left out); any
    other recipe is built on `hypervisor` (which may be left out when there is one machine). Raises BadInputError.
    """
    options = dict(order.path.options)
    if order.path.kind == DECLARED:
        named = str(options.pop(NODES, "")).split() or list(interfaces)
        _check(order, named, interfaces)
        if len(named) < order.nodes:
            raise BadInputError(
                f"path {order.path.label!r} has {len(named)} machines and the workload needs {order.nodes}",
                hint="name more machines in the path's option `nodes`",
            )
        chosen = named[: order.nodes]
        known: dict[str, Scalar] = {f"interface.{i}": interfaces[name] for i, name in enumerate(chosen)}
        options = {**{k: v for k, v in known.items() if v}, **options}
        return Bound(_with(order, options), tuple(chosen), built=False)
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
    return Bound(_with(order, options), (hypervisor,), built=True, own_network=network == "own")


def _check(order: Order, named: list[str], interfaces: Mapping[str, str]) -> None:
    unknown = [name for name in named if name not in interfaces]
    if unknown:
        raise BadInputError(
            f"path {order.path.label!r} names the machine {unknown[0]!r}, which the host does not have",
            hint=f"known: {', '.join(interfaces)}",
        )


def _with(order: Order, options: dict[str, Scalar]) -> Order:
    return replace(order, path=replace(order.path, options=options))
