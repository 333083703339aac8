"""Path `shm`: all ranks in one node, through shared memory; the bound that no network reaches."""

from collections.abc import Sequence

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoint, Endpoints, PathRecipe
from nearmetal.study.order import PathOrder


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Return the first node for every node of the placement: there is nothing to set up."""
    del order
    shell.write(f"{shell.scratch}/hosts", f"127.0.0.1 localhost {nodes[0]}\n".encode())
    return Endpoints(tuple(Endpoint(nodes[0]) for _ in nodes))


SHM = PathRecipe("shm", "shared memory inside one node; no network at all", _up)
