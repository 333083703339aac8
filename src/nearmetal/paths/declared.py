"""Path `declared`: it is there already; nearmetal looks at it and changes nothing."""

import ipaddress
from collections.abc import Sequence

from nearmetal.errors import BadInputError, TrialError
from nearmetal.hosts.host import Shell, is_far, is_on
from nearmetal.paths.links import LOWER, wait_until_reachable
from nearmetal.paths.path import Endpoint, Endpoints, PathRecipe
from nearmetal.reading import parse_json
from nearmetal.study.order import PathOrder

# Prints what an interface is built on, and of a tunnel, which need not name its port, where the ways to its ends leave.
_BENEATH = (
    LOWER
    + r"""
ports() {
    { ip -d link show dev "$1"; bridge fdb show dev "$1"; } 2> /dev/null | tr -s ' ' '\n' |
        awk 'to && /[.:]/ { print } { to = /^(remote|dst)$/ }' | sort -u |
        while read -r end; do ip route get "$end" | sed -n 's/.* dev \([^ ]*\).*/\1/p'; done
}
for one in "$1" $(lower "$1"); do
    [ "$one" = "$1" ] || echo "$one"
    for port in $(ports "$one"); do echo "$port"; lower "$port"; done
done
"""
)


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Find each node's address on its interface and what that is built on; check that the first reaches the others.

    Options: `interface`, or `interface.I` for node I; `routed` lets ends be in different networks. Raises BadInputError
    without an interface, TrialError when one has no IPv4 address, when two are in different networks that nobody said
    to be routed (one of them may be another network than was meant), or when there is no answer.
    """
    routed = is_on(order.options, "routed", default=False, whose=f"path {order.label!r}:")
    if not is_far(shell):
        message = "path 'declared' connects machines, but this host has none"
        raise BadInputError(message, hint="use [host] kind = 'ssh' or 'slurm'")
    ends, beneath, networks = list[Endpoint](), list[Endpoint](), set[ipaddress.IPv4Network]()
    for index, node in enumerate(nodes):
        interface = str(order.options.get(f"interface.{index}", order.options.get("interface", "")))
        if not interface:
            message = f"path {order.label!r} does not name the interface of node {index}"
            raise BadInputError(message, hint="give the path the option `interface`, or each [[host.node]] its own")
        own = address_of(shell.run(["ip", "-json", "addr", "show", "dev", interface], node=node).text, interface)
        ends.append(Endpoint(node, interface, str(own.ip)))
        below = shell.run(["sh", "-c", _BENEATH, "beneath", interface], node=node).text.split()
        beneath += [Endpoint(node, name) for name in dict.fromkeys(below)]
        networks.add(own.network)
    subnets = [str(network) for network in sorted(networks)]
    if len(subnets) != 1 and not routed:
        raise TrialError(
            f"the interfaces of path {order.label!r} are in {len(subnets)} networks: {', '.join(subnets)}",
            hint="name interfaces of one subnet, or, where routers join them as they do pods, give the path the option "
            "`routed = true`",
        )
    wait_until_reachable(shell, nodes, [end.address for end in ends])
    return Endpoints(tuple(ends), ",".join(subnets), alone=False, beneath=tuple(beneath))


def address_of(text: str, interface: str) -> ipaddress.IPv4Interface:
    """Read `ip -json addr show dev X`: its first IPv4 address and network; raise TrialError without one."""
    try:
        found = [a for a in parse_json(text)[0]["addr_info"] if a["family"] == "inet"]
        if found:
            return ipaddress.IPv4Interface(f"{found[0]['local']}/{found[0]['prefixlen']}")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise TrialError(f"cannot read the addresses of {interface}: {error}") from error
    raise TrialError(f"interface {interface} has no IPv4 address", hint="MPI over TCP needs one on each node")


DECLARED_PATH = PathRecipe(
    "declared",
    "the existing network between the machines named in the study: bare hosts or guests, with any NICs",
    _up,
    options={
        "interface": "the interface on every machine, if it differs from the node's own",
        "routed": "true: its ends may be in different subnets, which routers join, as pods' are",
    },
)
