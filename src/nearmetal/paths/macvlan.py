"""Path `macvlan`: nodes are MAC addresses on one parent device, switched without a bridge."""

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths import links, ports
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder

_PARENT = "nm-parent"


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Make one device per node, on the machine's ports or on a parent that goes nowhere; any number of nodes."""
    return ports.join(shell, order, ports.holders(shell, nodes), _devices)


def _down(shell: Shell, endpoints: Endpoints) -> None:
    """Remove the parent that was made; the nodes' devices vanish with it or with the nodes."""
    del endpoints
    shell.run(["ip", "link", "del", _PARENT], check=False)


def _devices(holder: ports.Holder, order: PathOrder) -> list[str]:
    """Make one device for each node of a machine, and return their names."""
    shell, parents, mtu = holder.shell, holder.ports, tuple[str, ...]()
    for parent in parents:
        shell.run(["ip", "link", "set", parent, "up"])
        ports.shape_wire(shell, order, parent)
    if not parents:
        ports.refuse_wire(order)
        shell.run(["ip", "link", "add", _PARENT, "type", "veth", "peer", "name", "nm-idle"])
        for end in (_PARENT, "nm-idle"):
            shell.run(["ip", "link", "set", end, "mtu", links.LARGEST_MTU, "up"])
        parents, mtu = (_PARENT,), ("mtu", "1500")
    devices = [f"nm-m{index}" for index in range(len(holder.nodes))]
    for index, device in enumerate(devices):
        parent = parents[index % len(parents)]
        shell.run(["ip", "link", "add", device, "link", parent, *mtu, "type", "macvlan", "mode", "bridge"])
    return devices


MACVLAN = PathRecipe("macvlan", "macvlan devices of one parent in bridge mode", _up, _down, ports.OPTIONS)
