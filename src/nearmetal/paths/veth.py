"""Path `veth`: a virtual cable straight from node to node."""

from __future__ import annotations

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths import links
from nearmetal.paths.path import NO_OPTIONS, Endpoints
from nearmetal.study.order import PathOrder


class Veth:
    """The shortest path through two network stacks that one kernel offers: the namespaces' native."""

    kind = "veth"
    about = "a virtual cable between two nodes: both network stacks, with nothing between them"
    options = NO_OPTIONS

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:  # noqa: ARG002 (the Protocol's)
        """Lay the cable between exactly two nodes."""
        links.require_two(self.kind, nodes)
        shell.run(["ip", "link", "add", "nm-v0", "type", "veth", "peer", "name", "nm-v1"])
        return links.configure(shell, nodes, ["nm-v0", "nm-v1"])

    def down(self, shell: Shell, endpoints: Endpoints) -> None:
        """Nothing to do: the cable vanishes with its nodes."""
