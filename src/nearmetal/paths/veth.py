"""Path `veth`: a virtual cable straight from node to node, the shortest path through two stacks of one kernel."""

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths import links
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Lay the cable between exactly two nodes."""
    links.require_two(order.kind, nodes)
    shell.run(["ip", "link", "add", "nm-v0", "type", "veth", "peer", "name", "nm-v1"])
    return links.configure(shell, nodes, ["nm-v0", "nm-v1"])


_ABOUT = "a virtual cable between two nodes: both network stacks, with nothing between them"
VETH = PathRecipe("veth", _ABOUT, _up, pair=True)
