"""Path `bridge`: a virtual cable joins each node to a Linux bridge, as for guests on their host.

Where the machine has ports, each port is on its own bridge and the wire joins them.
"""

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths import links, ports
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Build a bridge, or one on each of the machine's ports, and hang any number of nodes on them."""
    return ports.join(shell, order, ports.holders(shell, nodes), _cables, ("nm-br0", "nm-p0"))


def _cables(holder: ports.Holder, order: PathOrder) -> list[str]:
    """Build a machine's bridges, and return the ends of its nodes' cables."""
    shell, bridges = holder.shell, make_bridges(holder.shell, order, holder.ports)
    ends = []
    for index in range(len(holder.nodes)):
        port, node_side = f"nm-p{index}", f"nm-n{index}"
        shell.run(["ip", "link", "add", port, "type", "veth", "peer", "name", node_side])
        shell.run(["ip", "link", "set", port, "mtu", links.LARGEST_MTU])
        shell.run(["ip", "link", "set", port, "master", bridges[index % len(bridges)], "up"])
        ends.append(node_side)
    return ends


def make_bridges(shell: Shell, order: PathOrder, found: Sequence[str]) -> list[str]:
    """Make one bridge on each port that was found, or a single one without; return their names.

    There is no spanning tree, so ports forward at once.
    """
    bridges = [f"nm-br{number}" for number in range(len(found) or 1)]
    for bridge in bridges:
        shell.run(["ip", "link", "add", bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0"])
        shell.run(["ip", "link", "set", bridge, "up"])
    for bridge, port in zip(bridges, found, strict=False):
        shell.run(["ip", "link", "set", port, "master", bridge, "up"])
        ports.shape_wire(shell, order, port)
    if not found:
        ports.refuse_wire(order)
    return bridges


def remove_bridges(shell: Shell, endpoints: Endpoints) -> None:
    """Remove every bridge that `make_bridges` made for a path; its ports vanish with the nodes or are free again."""
    for holder in ports.holders(shell, list(dict.fromkeys(end.node for end in endpoints.beneath or endpoints.ends))):
        text = holder.shell.run(["ip", "-brief", "link", "show", "type", "bridge"]).text
        for bridge in (line.split()[0] for line in text.splitlines() if line.startswith("nm-br")):
            holder.shell.run(["ip", "link", "del", bridge])


_ABOUT = "a Linux bridge between the nodes, each on a virtual cable"
BRIDGE = PathRecipe("bridge", _ABOUT, _up, remove_bridges, ports.OPTIONS)
