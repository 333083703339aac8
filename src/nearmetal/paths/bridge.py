"""Path `bridge`: each node hangs by a virtual cable on a Linux bridge, as guests do on their host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.paths import links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import PathOrder


class Bridge:
    """A learning switch in the kernel; any number of nodes."""

    kind = "bridge"
    about = "a Linux bridge between the nodes, each on a virtual cable"

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:  # noqa: ARG002 (the Protocol's)
        """Build the bridge and hang every node on it; no spanning tree, so ports forward at once."""
        shell.run(["ip", "link", "add", "nm-br", "type", "bridge", "stp_state", "0", "forward_delay", "0"])
        shell.run(["ip", "link", "set", "nm-br", "up"])
        node_sides = []
        for index in range(len(nodes)):
            port, node_side = f"nm-p{index}", f"nm-n{index}"
            shell.run(["ip", "link", "add", port, "type", "veth", "peer", "name", node_side])
            shell.run(["ip", "link", "set", port, "master", "nm-br", "up"])
            node_sides.append(node_side)
        return links.configure(shell, nodes, node_sides)

    def down(self, shell: Shell, endpoints: Endpoints) -> None:  # noqa: ARG002 (the Protocol's)
        """Remove the bridge; its ports vanish with the nodes."""
        shell.run(["ip", "link", "del", "nm-br"])
