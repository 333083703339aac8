"""Verbs without an RDMA card: soft-RoCE (rdma_rxe) over the ports or over virtual functions of them.

Linux 6.1's rdma_rxe lives in the machine's own network alone, so both ends stay there instead of in nodes, and what
usually keeps two addresses of one machine off the wire is switched off (Documentation/networking/ip-sysctl.rst).
"""

from collections.abc import Callable, Sequence
from functools import partial

from nearmetal.errors import BadInputError, TrialError
from nearmetal.hosts.host import HYPERVISOR, Shell
from nearmetal.paths import links, ports
from nearmetal.paths.path import Endpoint, Endpoints, PathRecipe
from nearmetal.process import wait_until
from nearmetal.study.order import PathOrder

_ENDS = 2
_MODULES = ("rdma_rxe", "ib_uverbs", "rdma_ucm")
_GID_TIMEOUT_S = 5.0
_POLL_S = 0.05

# Frames from an address of this very machine are taken, and only the interface that has an address answers for it.
_OWN_PEER = {"rp_filter": b"0\n", "accept_local": b"1\n", "arp_ignore": b"1\n", "arp_announce": b"2\n"}


_Interfaces = Callable[[Shell, Sequence[str]], Sequence[str]]
"""Makes of two ports the two interfaces that carry it."""


def _up(interfaces: _Interfaces, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Make an RDMA device on each of two interfaces of the machine; MPI has no way to use them there."""
    if len(nodes) != _ENDS:
        raise BadInputError(f"path {order.kind!r} connects exactly 2 ends, not {len(nodes)}")
    found = ports.require_ports(shell, order.kind)[:_ENDS]
    shell.run(["modprobe", "-a", *_MODULES])
    names = interfaces(shell, found)
    for index, name in enumerate(names):
        for scope in ("all", name):
            for setting, value in _OWN_PEER.items():
                shell.write(f"/proc/sys/net/ipv4/conf/{scope}/{setting}", value)
        shell.write(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", b"1\n")
        shell.run(["ip", "addr", "add", f"{links.address(index)}/24", "dev", name])
        shell.run(["ip", "link", "set", name, "up"])
        ports.wait_for_carrier(shell, name)
    for index, name in enumerate(names):
        there = ports.mac_of(shell, names[1 - index])
        neighbour = [links.address(1 - index), "lladdr", there, "dev", name, "nud", "permanent"]
        shell.run(["ip", "neigh", "replace", *neighbour])
        shell.run(["rdma", "link", "add", f"rxe{index}", "type", "rxe", "netdev", name])
        ports.shape_wire(shell, order, name)
        ports.moderate(shell, order, name)
    for index in range(_ENDS):
        _wait_for_gid(shell, f"rxe{index}")
    ends = tuple(Endpoint(HYPERVISOR, name, links.address(index)) for index, name in enumerate(names))
    beneath = tuple(Endpoint(HYPERVISOR, port) for port in found if port not in names)
    return Endpoints(ends, links.SUBNET, beneath=beneath)


def _down(shell: Shell, endpoints: Endpoints) -> None:
    """Remove the RDMA devices, then make split ports whole again."""
    for index, end in enumerate(endpoints.ends):
        shell.run(["rdma", "link", "delete", f"rxe{index}"])
        shell.run(["ip", "addr", "flush", "dev", end.interface])
        shell.run(["ip", "link", "set", end.interface, "down"])
    ports.join_ports(shell)


def _split(shell: Shell, found: Sequence[str]) -> Sequence[str]:
    functions = ports.split_ports(shell, dict.fromkeys(found, 1))
    return [functions[port][0] for port in found]


def _wait_for_gid(shell: Shell, device: str) -> None:
    """Wait until the device has the GID of its IPv4 address (RoCE v2, index 1); it follows the address by a moment."""
    show = ["cat", f"/sys/class/infiniband/{device}/ports/1/gids/1"]
    if not wait_until(lambda: b"ffff" in shell.run(show, check=False).stdout, _GID_TIMEOUT_S, _POLL_S):
        raise TrialError(f"{device} had no RoCE v2 address within {_GID_TIMEOUT_S:.0f} s")


_KINDS: tuple[tuple[str, str, _Interfaces], ...] = (
    ("native-roce", "the whole ports", lambda _shell, found: found),
    ("vf-roce", "SR-IOV virtual functions", _split),
)
ROCE_PATHS = tuple(
    PathRecipe(kind, f"verbs by soft-RoCE over {over}; for perftest", partial(_up, interfaces), _down, ports.OPTIONS)
    for kind, over, interfaces in _KINDS
)
