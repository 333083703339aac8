"""Steps that recipes share: addresses on nodes, and waiting until a path carries traffic."""

import time
from collections.abc import Sequence

from nearmetal.errors import TrialError
from nearmetal.hosts.host import HYPERVISOR, Shell, machines_of, name_of
from nearmetal.paths.path import Endpoint, Endpoints

INTERFACE = "eth0"
LARGEST_MTU = "65535"
"""Of what nearmetal lays between nodes: frames are as long as the nodes' interfaces allow, by default 1500 bytes."""
SUBNET = "10.77.0.0/24"
LINK_TIMEOUT_S = 10.0
_POLL_S = 0.02

# Prints what an interface is built on: the ports of a bond or a bridge, the port below a VLAN or a macvlan.
LOWER = r"""
lower() {
    for link in "/sys/class/net/$1"/lower_*; do
        [ ! -e "$link" ] || { echo "${link##*/lower_}"; lower "${link##*/lower_}"; }
    done
}
"""
LOWER_SCRIPT = LOWER + 'lower "$1"\n'


def address(index: int) -> str:
    """Return the IPv4 address of the node with that index in `SUBNET`."""
    return f"10.77.0.{index + 1}"


def configure(shell: Shell, nodes: Sequence[str], interfaces: Sequence[str]) -> Endpoints:
    """Give `interfaces[i]` to `nodes[i]`, address it, write the hosts file, wait until all reach all.

    Nodes that are machines keep the names of their interfaces, others call theirs `INTERFACE`. IPv6 is switched off on
    the interfaces, so that its neighbour discovery never shares the path with a trial.
    """
    lines = ["127.0.0.1 localhost"]
    names = list(interfaces)
    if machines_of(shell) == (HYPERVISOR,):
        names = [INTERFACE] * len(nodes)
        for node, interface in zip(nodes, interfaces, strict=True):
            shell.give_interface(interface, node, INTERFACE)
    for index, (node, name) in enumerate(zip(nodes, names, strict=True)):
        shell.write(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", b"1\n", node=node)
        both = f"addr add {address(index)}/24 dev {name}\nlink set {name} up\n"  # a program's start is 5 ms in the lab
        shell.run(["ip", "-batch", "-"], node=node, stdin=both.encode())
        lines.append(f"{address(index)} {node}")
    shell.write(f"{shell.scratch}/hosts", ("\n".join(lines) + "\n").encode())
    wait_until_reachable(shell, nodes, [address(index) for index in range(len(nodes))])
    ends = (Endpoint(node, name, address(i)) for i, (node, name) in enumerate(zip(nodes, names, strict=True)))
    return Endpoints(tuple(ends), SUBNET)


def wait_until_reachable(shell: Shell, nodes: Sequence[str], addresses: Sequence[str]) -> None:
    """Wait until the first node gets an answer from each `addresses[i]`; raise TrialError after `LINK_TIMEOUT_S`."""
    deadline = time.monotonic() + LINK_TIMEOUT_S
    for node, there in zip(nodes[1:], addresses[1:], strict=True):
        ping = ["ping", "-c", "1", "-W", "1", "-q", there]
        while not (done := shell.run(ping, node=nodes[0], check=False)).ok:
            if b"not permitted" in done.stderr:
                message = f"{name_of(shell, nodes[0])} cannot ping {name_of(shell, node)}: {done.complaint()}"
                raise TrialError(message, hint="ping needs CAP_NET_RAW: start the container with --cap-add NET_RAW")
            if time.monotonic() > deadline:
                state = shell.run(["ip", "-br", "addr"], node=node, check=False).text.strip()
                raise TrialError(
                    f"{name_of(shell, node)} ({there}) did not answer {name_of(shell, nodes[0])} within "
                    f"{LINK_TIMEOUT_S:.0f} s; "
                    f"its interfaces: {state or 'none'}",
                    hint="the link is down or filtered: `nearmetal doctor` checks what each path needs",
                )
            time.sleep(_POLL_S)


def refuse_narrow(shell: Shell, endpoints: Endpoints) -> None:
    """Raise TrialError where short frames reach another node, but none as long as the first interface takes.

    What lies between has a smaller MTU and drops it: TCP would send it again and again until the launch is given up.
    """
    first, *others = endpoints.ends
    if not endpoints.networked or not first.interface:
        return
    mtu = int(shell.read(f"/sys/class/net/{first.interface}/mtu", node=first.node))
    for end in (one for one in others if one.address and one.node != first.node):
        headers = 48 if ":" in end.address else 28
        short, long = (
            shell.run([*_THREE_PINGS, str(size), end.address], node=first.node, check=False)
            for size in (16, min(mtu - headers, _LONGEST_PING))
        )
        if short.ok and not long.ok:
            near, far = name_of(shell, first.node), name_of(shell, end.node)
            raise TrialError(
                f"frames of {mtu} bytes, the MTU of {first.interface} on {near}, do not reach {far}; short "
                "ones do: something between the two takes no frame as long",
                hint="`nic.mtu` sets the interfaces of the nodes alone: raise the MTU of each bridge, port, switch and "
                "tunnel between them first",
            )


_THREE_PINGS = ("ping", "-M", "do", "-c", "3", "-i", "0.2", "-W", "1", "-q", "-s")
_LONGEST_PING = 65507


def require_two(kind: str, nodes: Sequence[str]) -> None:
    """Raise TrialError unless there are exactly two nodes."""
    if len(nodes) != 2:
        raise TrialError(f"path {kind!r} connects exactly 2 nodes, not {len(nodes)}", hint="use `bridge` or `macvlan`")
