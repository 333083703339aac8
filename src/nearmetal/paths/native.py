"""Path `native`: each node owns a whole port, as a program on the bare machine does."""

from collections.abc import Sequence
from dataclasses import replace

from nearmetal.errors import TrialError
from nearmetal.hosts.host import Shell, is_on
from nearmetal.paths import links, ports
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder

_ONE_PEER = "one_peer"


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Give port i to node i."""
    one_peer = is_on(order.options, _ONE_PEER, default=False, whose=f"path {order.label!r}'s")
    joined = nodes[:2] if one_peer else nodes
    found = [port for holder in ports.require_holders(shell, order.kind, joined) for port in holder.ports]
    if len(joined) > len(found):
        message = f"path 'native' connects at most {len(found)} nodes here, not {len(joined)}"
        raise TrialError(message, hint=f"use `vf`, or the option `{_ONE_PEER} = true` for streams to one bare node")
    endpoints = links.configure(shell, joined, found[: len(joined)])
    ports.shape_ends(shell, order, endpoints)
    further = endpoints.ends[-1:] * (len(nodes) - len(joined))
    return replace(endpoints, ends=endpoints.ends + further)


NATIVE = PathRecipe(
    "native",
    "the whole port in the node (SR-IOV physical function), with nothing between driver and wire",
    _up,  # the kernel hands ports back when their node vanishes
    options=ports.OPTIONS
    | {_ONE_PEER: "true: node 1 stands for every further node, as a bare peer does for several guests on one machine"},
)
