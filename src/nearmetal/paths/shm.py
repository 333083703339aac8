"""Path `shm`: all ranks in one node, through shared memory; the bound that no network reaches."""

from __future__ import annotations

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import NO_OPTIONS, Endpoint, Endpoints
from nearmetal.study.order import PathOrder


class Shm:
    """Ranks of every node of the placement run in the first node."""

    kind = "shm"
    about = "shared memory inside one node; no network at all"
    options = NO_OPTIONS

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:  # noqa: ARG002 (the Protocol's)
        """Return the first node for every node: there is nothing to set up."""
        shell.write(f"{shell.scratch}/hosts", f"127.0.0.1 localhost {nodes[0]}\n".encode())
        return Endpoints(tuple(Endpoint(nodes[0]) for _ in nodes))

    def down(self, shell: Shell, endpoints: Endpoints) -> None:
        """There is nothing to take apart."""
