"""Path `native`: each node owns a whole port, as a program on the bare machine does."""

from __future__ import annotations

from collections.abc import Sequence

from nearmetal.errors import TrialError
from nearmetal.hosts.host import Shell
from nearmetal.paths import links, ports
from nearmetal.paths.path import Endpoints
from nearmetal.study.order import PathOrder


class Native:
    """The physical function moves into the node; as many nodes as there are ports."""

    kind = "native"
    about = "the whole port in the node (SR-IOV physical function), with nothing between driver and wire"
    options = ports.OPTIONS

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
        """Give port i to node i."""
        found = [port for holder in ports.require_holders(shell, self.kind, nodes) for port in holder.ports]
        if len(nodes) > len(found):
            said = f"path 'native' connects at most {len(found)} nodes here, not {len(nodes)}"
            raise TrialError(said, hint="use `vf`")
        endpoints = links.configure(shell, nodes, found[: len(nodes)])
        ports.shape_ends(shell, order, endpoints)
        return endpoints

    def down(self, shell: Shell, endpoints: Endpoints) -> None:
        """Nothing to do: the kernel hands ports back when their node vanishes."""
