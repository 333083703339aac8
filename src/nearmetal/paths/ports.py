"""Physical ports of the machine that holds the nodes, and the wire between them.

A machine of the lab has two SR-IOV ports on one wire; a host of namespaces has none. A recipe that finds ports joins
its nodes through them: node `i` belongs to port `i mod (number of ports)`, so traffic between neighbours crosses the
wire. In a cluster of the lab every node is a machine with one port on the wire, and builds its end of the path itself.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.host import HYPERVISOR, OnNode, Shell, machines_of
from nearmetal.hosts.lab.machine import MANAGEMENT
from nearmetal.paths import links
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.process import wait_until
from nearmetal.reading import parse_json
from nearmetal.study.order import PathOrder, Scalar

T = TypeVar("T")
WIRE_OPTIONS = {"wire_delay_us", "wire_rate_mbit"}
OPTIONS = {
    "wire_delay_us": "how long a frame is on the wire, in us, for each port",
    "wire_rate_mbit": "rate of the wire, in Mbit/s",
    "wire_loss_percent": "with `nodes`: percentage of frames that are lost",
    "wire_queue_kib": "with `nodes`: queue at each port of the switch, in KiB",
    "rx_usecs": "receive interrupt moderation of every port and function on the path, in us",
}
"""What every path over ports of the lab understands."""
MAX_VFS = 7
"""What an 82576 offers."""
CARRIER_TIMEOUT_S = 10.0
_POLL_S = 0.05


def find_ports(shell: Shell) -> tuple[str, ...]:
    """Return the names of the machine's PCI network ports, in order of name; none among namespaces."""
    return parse_ports(shell.run(["ip", "-json", "-details", "link", "show"]).text)


def parse_ports(text: str) -> tuple[str, ...]:
    """Read `ip -json -details link show`: interfaces whose parent is a PCI device; raise TrialError when it is not.

    The port by which a cluster's nodes are told what to do is none of them.
    """
    try:
        names = (link["ifname"] for link in parse_json(text) if link.get("parentbus") == "pci")
        return tuple(sorted(name for name in names if name != MANAGEMENT))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise TrialError(f"cannot read the machine's network interfaces: {error}") from error


def require_ports(shell: Shell, kind: str) -> tuple[str, ...]:
    """Return the ports; raise UnavailableError when there are fewer than two."""
    ports = find_ports(shell)
    _require_two(kind, len(ports))
    return ports


def _require_two(kind: str, count: int) -> None:
    if count < 2:
        message = f"path {kind!r} needs two network ports on one wire, this host has {count}"
        raise UnavailableError(message, hint="the lab has them: `[host] kind = 'lab'`")


@dataclass(frozen=True, slots=True)
class Holder:
    """A machine with ports and those of a path's nodes that are on it; its `shell` takes it for the hypervisor."""

    shell: Shell
    nodes: tuple[str, ...]
    ports: tuple[str, ...]


def holders(shell: Shell, nodes: Sequence[str]) -> list[Holder]:
    """Return the machines that a path is built on: the one that holds all nodes, or every node itself."""
    if machines_of(shell) == (HYPERVISOR,):
        return [Holder(shell, tuple(nodes), find_ports(shell))]
    views = [OnNode(shell, node) for node in nodes]
    return [Holder(view, (view.node,), find_ports(view)) for view in views]


def require_holders(shell: Shell, kind: str, nodes: Sequence[str]) -> list[Holder]:
    """Return the machines; raise UnavailableError when they have fewer than two ports together."""
    found = holders(shell, nodes)
    _require_two(kind, sum(len(holder.ports) for holder in found))
    return found


def on_each(found: Sequence[Holder], do: Callable[[Holder], T]) -> list[T]:
    """Return what `do` makes of each machine, at work on all of them at once: drivers keep them waiting for seconds."""
    if len(found) == 1:
        return [do(found[0])]
    with ThreadPoolExecutor(max(1, len(found))) as pool:
        return list(pool.map(do, found))


def over(endpoints: Endpoints, found: Sequence[Holder], made: Sequence[str] = ()) -> Endpoints:
    """Return a path's ends with what is beneath them on nodes that are machines: ports, and what a recipe made."""
    machines = [holder for holder in found if isinstance(holder.shell, OnNode)]
    under = [Endpoint(node, name) for one in machines for node in one.nodes for name in (*one.ports, *made)]
    return replace(endpoints, beneath=tuple(under))


def join(
    shell: Shell,
    order: PathOrder,
    found: Sequence[Holder],
    make: Callable[[Holder, PathOrder], list[str]],
    made: Sequence[str] = (),
) -> Endpoints:
    """Join nodes by the interfaces that `make` makes of each machine for its nodes, and moderate the ports beneath."""
    nodes = [node for holder in found for node in holder.nodes]
    endpoints = links.configure(shell, nodes, [name for holder in found for name in make(holder, order)])
    moderate_all(found, order)
    return over(endpoints, found, made)


def refuse_wire(order: PathOrder) -> None:
    """Raise BadInputError for options of wire and ports on a host that has neither."""
    given = sorted(OPTIONS.keys() & order.options.keys())
    if given:
        message = f"path {order.label!r} asks for {given[0]}, but namespaces have no wire and no port"
        raise BadInputError(message, hint="the lab has both; leave the option out here")


def shape_wire(shell: Shell, order: PathOrder, interface: str, *, node: str = HYPERVISOR) -> None:
    """Give an interface the rate and delay that the path's options ask for, on its way out (tc-netem(8)).

    A delay costs some microseconds of kernel work on top of itself, as every software delay does.
    """
    words = wire_words(order.options)
    if words:
        shell.run(["tc", "qdisc", "replace", "dev", interface, "root", "netem", *words], node=node)


def wire_words(options: Mapping[str, Scalar]) -> list[str]:
    """Return netem's parameters for path options; raise BadInputError for values that are no positive number."""
    words: list[str] = []
    if alien := sorted({"wire_loss_percent", "wire_queue_kib"} & options.keys()):
        raise BadInputError(f"{alien[0]} works only where nodes are machines", hint="`nodes = 2` in [host.options]")
    for option, parameter, unit in (("wire_delay_us", "delay", "us"), ("wire_rate_mbit", "rate", "mbit")):
        if option in options:
            value = options[option]
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise BadInputError(f"{option} is {value!r}, not a positive number")
            words += [parameter, f"{value:g}{unit}"]
    return words


def moderate(shell: Shell, order: PathOrder, interface: str, *, node: str = HYPERVISOR) -> None:
    """Set an interface's receive interrupt moderation to the path's option `rx_usecs`, where that is given.

    This is for ports that a trial's setting does not reach, such as the one under a bridge. Raise BadInputError for
    a value that is no whole number.
    """
    usecs = order.options.get("rx_usecs")
    if usecs is None:
        return
    if isinstance(usecs, bool) or not isinstance(usecs, int) or usecs < 0:
        raise BadInputError(f"rx_usecs is {usecs!r}, not a whole number from 0 up")
    shell.run(["ethtool", "-C", interface, "rx-usecs", str(usecs)], node=node)


def moderate_all(found: Sequence[Holder], order: PathOrder) -> None:
    """Do so for the ports under a path, once it carries traffic: a port that gets its link forgets what it was told."""
    for holder in found:
        for port in holder.ports:
            moderate(holder.shell, order, port)


def shape_ends(shell: Shell, order: PathOrder, endpoints: Endpoints) -> None:
    """Give every end of a path the wire and the moderation that the path's options ask for."""
    for end in endpoints.ends:
        shape_wire(shell, order, end.interface, node=end.node)
        moderate(shell, order, end.interface, node=end.node)


def split_ports(shell: Shell, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Split each port into that many virtual functions; return their interfaces by port, in order.

    The order of steps is the drivers': functions appear while the port is down, get their MAC addresses, the port
    raises their reset-done bit when it comes up, and only then, with the link there, igbvf takes them. Otherwise
    igbvf finds its port in reset, draws a random address, and its later resets may never end. Raise TrialError
    when a port cannot be split that often or has no link.
    """
    for port, count in counts.items():
        declare_vfs(shell, port, count)
    for port in counts:
        shell.run(["ip", "link", "set", port, "up"])
    for port in counts:
        wait_for_carrier(shell, port)
    return {port: [_probe_vf(shell, port, index) for index in range(count)] for port, count in counts.items()}


def mac_of(shell: Shell, port: str) -> str:
    """Return a port's hardware address; the last byte of it is unlike any other port's."""
    return shell.read(f"/sys/class/net/{port}/address").decode().strip()


def join_ports(shell: Shell) -> None:
    """Make every port whole again: its virtual functions, if it has any, are gone."""
    for port in find_ports(shell):
        count = f"/sys/class/net/{port}/device/sriov_numvfs"
        if shell.run(["cat", count], check=False).text.strip() not in ("", "0"):
            shell.write(count, b"0\n")


def declare_vfs(shell: Shell, port: str, count: int) -> None:
    """Make a port's virtual functions, with fixed addresses and no driver; the port is down afterwards."""
    if not 1 <= count <= MAX_VFS:
        raise TrialError(f"port {port} can be split into 1 to {MAX_VFS} virtual functions, not {count}")
    device = f"/sys/class/net/{port}/device"
    shell.run(["ip", "link", "set", port, "down"])
    shell.write(f"{device}/sriov_drivers_autoprobe", b"0\n")
    shell.write(f"{device}/sriov_numvfs", f"{count}\n".encode())
    own = mac_of(shell, port)[-2:]
    for index in range(count):
        mac = f"52:54:00:01:{own}:{index + 1:02x}"
        shell.run(["ip", "link", "set", port, "vf", str(index), "mac", mac])


def _probe_vf(shell: Shell, port: str, index: int) -> str:
    shell.write(f"/sys/class/net/{port}/device/sriov_drivers_autoprobe", b"1\n")
    shell.write("/sys/bus/pci/drivers_probe", vf_address(shell, port, index).encode())
    folder = f"/sys/class/net/{port}/device/virtfn{index}/net"
    finished = shell.run(["ls", folder], check=False)
    names = finished.text.split()
    if not finished.ok or len(names) != 1:
        message = f"virtual function {index} of {port} has {len(names)} interfaces, not one"
        raise TrialError(message, hint="the driver igbvf is missing or did not bind to it")
    return names[0]


def vf_address(shell: Shell, port: str, index: int) -> str:
    """Return the PCI address of a port's virtual function, such as `0000:01:10.0`."""
    return shell.run(["readlink", f"/sys/class/net/{port}/device/virtfn{index}"]).text.strip().rpartition("/")[2]


def wait_for_carrier(shell: Shell, port: str) -> None:
    """Wait until a port that is up has its link; raise TrialError after `CARRIER_TIMEOUT_S`."""
    carrier = f"/sys/class/net/{port}/carrier"
    if not wait_until(lambda: shell.read(carrier) == b"1\n", CARRIER_TIMEOUT_S, _POLL_S):
        raise TrialError(f"port {port} had no link within {CARRIER_TIMEOUT_S:.0f} s")
