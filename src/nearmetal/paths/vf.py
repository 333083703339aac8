"""Path `vf`: each node owns an SR-IOV virtual function of a port."""

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths import links, ports
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Split every port into as many functions as it has nodes, and give each node one, with its own driver."""
    holders = ports.require_holders(shell, order.kind, nodes)
    functions = [name for names in ports.on_each(holders, _functions) for name in names]
    endpoints = ports.over(links.configure(shell, nodes, functions), holders)
    ports.shape_ends(shell, order, endpoints)
    return endpoints


def _down(shell: Shell, endpoints: Endpoints) -> None:
    """Make the ports whole again: igbvf must be at rest before its device goes, or its last reset never ends."""
    for end in endpoints.ends:
        shell.run(["ip", "link", "set", end.interface, "down"], node=end.node)
    for holder in ports.holders(shell, [end.node for end in endpoints.ends]):
        ports.join_ports(holder.shell)


def _functions(holder: ports.Holder) -> list[str]:
    """Split a machine's ports, and return the interface of each of its nodes."""
    found, nodes = holder.ports, holder.nodes
    counts = {port: max(1, len(nodes[number :: len(found)])) for number, port in enumerate(found)}
    functions = ports.split_ports(holder.shell, counts)
    return [functions[found[i % len(found)]][i // len(found)] for i in range(len(nodes))]


VF = PathRecipe("vf", "an SR-IOV virtual function in the node; the port itself switches", _up, _down, ports.OPTIONS)
