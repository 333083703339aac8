"""Path `macvlan`: nodes are MAC addresses on one parent device, switched without a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.paths import links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import PathOrder


class Macvlan:
    """Macvlan in bridge mode over a parent that goes nowhere; any number of nodes."""

    kind = "macvlan"
    about = "macvlan devices of one parent in bridge mode"

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:  # noqa: ARG002 (the Protocol's)
        """Build the parent (one end of a cable whose other end is idle) and one device a node."""
        shell.run(["ip", "link", "add", "nm-parent", "type", "veth", "peer", "name", "nm-idle"])
        for end in ("nm-parent", "nm-idle"):
            shell.run(["ip", "link", "set", end, "up"])
        devices = [f"nm-m{index}" for index in range(len(nodes))]
        for device in devices:
            shell.run(["ip", "link", "add", device, "link", "nm-parent", "type", "macvlan", "mode", "bridge"])
        return links.configure(shell, nodes, devices)

    def down(self, shell: Shell, endpoints: Endpoints) -> None:  # noqa: ARG002 (the Protocol's)
        """Remove the parent; the nodes' devices go with it."""
        shell.run(["ip", "link", "del", "nm-parent"])
