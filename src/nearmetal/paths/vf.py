"""Path `vf`: each node owns an SR-IOV virtual function of a port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.paths import links, ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import PathOrder


class Vf:
    """A port is split into virtual functions, and each moves into a node with its own driver."""

    kind = "vf"
    about = "an SR-IOV virtual function in the node, switched in the port itself"

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
        """Split every port into as many functions as it has nodes, and give each node one."""
        found = ports.require_ports(shell, self.kind)
        counts = {port: max(1, len(nodes[number :: len(found)])) for number, port in enumerate(found)}
        functions = ports.split_ports(shell, counts)
        interfaces = [functions[found[i % len(found)]][i // len(found)] for i in range(len(nodes))]
        endpoints = links.configure(shell, nodes, interfaces)
        for end in endpoints.ends:
            ports.shape_wire(shell, order, end.interface, node=end.node)
            ports.moderate(shell, order, end.interface, node=end.node)
        return endpoints

    def down(self, shell: Shell, endpoints: Endpoints) -> None:
        """Make the ports whole again: igbvf must be at rest before its device goes, or its last reset never ends."""
        for end in endpoints.ends:
            shell.run(["ip", "link", "set", end.interface, "down"], node=end.node)
        ports.join_ports(shell)
