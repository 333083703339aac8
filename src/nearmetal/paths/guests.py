"""Paths into guests under KVM: what each way of giving a guest a network card costs.

On one machine node 0 is the peer on the wire, with the second port to itself, and every other node is a guest behind
the first port. Where every node is a machine, each holds a guest behind its port; with the option `ends = "one"` node 0
is the peer there too. The option `rx_usecs` sets the interrupt moderation of every real port and function that takes
part.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Protocol, runtime_checkable

from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.paths import links, ports
from nearmetal.paths.bridge import make_bridges, remove_bridges
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder

_TAP = "nm-g"
_ENDS = "which ends are guests: `both` (the default if every node is a machine) or `one`, with a bare peer"


@runtime_checkable
class Hypervisor(Protocol):
    """A shell that can boot guests."""

    def boot_guest(self, node: str, devices: Sequence[str]) -> Callable[[], str]:
        """Boot a node's guest with these devices; the result waits until it runs programs, and returns its name."""


_Attach = Callable[[Shell, PathOrder, str, int], list[list[str]]]
"""Prepares a port for so many guests and returns each one's devices."""


def _up(
    attach: _Attach,
    shell: Shell,
    order: PathOrder,
    nodes: Sequence[str],
    *,
    own_interrupts: bool,
    whole_port: bool,
) -> Endpoints:
    """Attach and boot the guests, give a peer its port, and wait until all reach all.

    `own_interrupts` says that the guest itself takes a real function's interrupts, `whole_port` that it has the port.
    """
    if not isinstance(shell, Hypervisor):
        message = f"path {order.kind!r} needs a hypervisor"
        raise UnavailableError(message, hint="the lab has one: machine = 'kvm' in [host.options]")
    peer, hosts = _sides(ports.require_holders(shell, order.kind, nodes), order)
    for port in peer.ports:
        peer.shell.run(["ip", "link", "set", port, "up"])
    guests = _boot(attach, shell, order, hosts)
    if whole_port:  # its card knows the address of a snapshot, which every machine has
        for name, mac in guests.items():
            shell.run(["ip", "link", "set", links.INTERFACE, "address", mac], node=name)
    endpoints = links.configure(shell, [*peer.nodes, *guests], [*peer.ports, *(links.INTERFACE for _ in guests)])
    for end in endpoints.ends:
        if end.node in peer.nodes:
            ports.shape_wire(shell, order, end.interface, node=end.node)
        if end.node in peer.nodes or own_interrupts:
            ports.moderate(shell, order, end.interface, node=end.node)
    if not own_interrupts:
        ports.moderate_all(hosts, order)
    return ports.over(endpoints, hosts, ("nm-br0", f"{_TAP}0"))


def _boot(attach: _Attach, shell: Hypervisor, order: PathOrder, hosts: Sequence[ports.Holder]) -> dict[str, str]:
    """Attach and boot the guests, on all machines at once and on each one after another.

    Returns each one's name, in the order of nodes, and the address that the port before it had.
    """
    macs = [ports.mac_of(host.shell, host.ports[0]) for host in hosts]
    devices = ports.on_each(hosts, lambda host: attach(host.shell, order, host.ports[0], len(host.nodes)))
    names: dict[str, str] = {}
    for turn in zip_longest(*(zip(host.nodes, own, strict=True) for host, own in zip(hosts, devices, strict=True))):
        booting = {guest[0]: shell.boot_guest(*guest) for guest in turn if guest}
        names |= {node: known() for node, known in booting.items()}
    return {names[node]: mac for host, mac in zip(hosts, macs, strict=True) for node in host.nodes}


def ends_of(order: PathOrder, *, machines: bool) -> str:
    """Return at which ends of a path guests are, `both` or `one`; raise BadInputError for what cannot be.

    `machines` says that every node is a machine.
    """
    ends = order.options.get("ends", "both" if machines else "one")
    if ends not in ("both", "one"):
        raise BadInputError(f"path {order.label!r}: ends must be 'both' or 'one', not {ends!r}")
    if ends == "both" and not machines:
        message = f"path {order.label!r} can have a guest at only one end if one machine holds all nodes"
        raise BadInputError(message, hint="set `nodes` in [host.options], so that every node is a machine")
    return str(ends)


def _sides(found: Sequence[ports.Holder], order: PathOrder) -> tuple[ports.Holder, list[ports.Holder]]:
    """Return the bare peer with its port, without either where there is none, and what holds guests behind one port.

    Raises BadInputError for `ends` that cannot be, TrialError where there is no guest.
    """
    first, *others = found
    ends = ends_of(order, machines=bool(others))
    if others:
        peer, hosts = (first, others) if ends == "one" else (replace(first, nodes=(), ports=()), list(found))
    else:
        peer = replace(first, nodes=first.nodes[:1], ports=first.ports[1:2])
        hosts = [replace(first, nodes=first.nodes[1:], ports=first.ports[:1])]
    if not any(host.nodes for host in hosts):
        raise TrialError(f"path {order.kind!r} needs a peer and at least one guest")
    return peer, hosts


def _tapped(card: Sequence[str], backend: str = "") -> Callable[[Shell, PathOrder, str, int], list[list[str]]]:
    """Return what hangs every guest's card, by a tap device, on a bridge on the port."""

    def attach(shell: Shell, order: PathOrder, port: str, guests: int) -> list[list[str]]:
        (bridge,) = make_bridges(shell, order, [port])
        own, devices = ports.mac_of(shell, port)[-2:], []
        for index in range(guests):
            tap = f"{_TAP}{index}"
            shell.run(["ip", "tuntap", "add", tap, "mode", "tap"])
            shell.run(["ip", "link", "set", tap, "master", bridge, "up"])
            mac = f"52:54:00:02:{own}:{index + 1:02x}"
            network = f"tap,id=net,ifname={tap},script=no,downscript=no{backend}"
            devices.append(["-netdev", network, "-device", f"{','.join(card)},netdev=net,mac={mac},romfile="])
        return devices

    return attach


def _functions(shell: Shell, order: PathOrder, port: str, guests: int) -> list[list[str]]:
    """Split the port, and hand its functions to vfio before any host driver sees them."""
    del order
    ports.declare_vfs(shell, port, guests)
    shell.run(["ip", "link", "set", port, "up"])
    ports.wait_for_carrier(shell, port)
    addresses = [ports.vf_address(shell, port, index) for index in range(guests)]
    for address in addresses:
        _give_to_vfio(shell, address)
    return [_assigned(address) for address in addresses]


def _whole_port(shell: Shell, order: PathOrder, port: str, guests: int) -> list[list[str]]:
    """Take the port from its driver and hand it to vfio."""
    if guests != 1:
        raise TrialError(
            f"path {order.kind!r} gives the whole port to one guest, not to {guests}", hint="use `guest-vf`"
        )
    address = shell.run(["readlink", f"/sys/class/net/{port}/device"]).text.strip().rpartition("/")[2]
    shell.run(["ip", "link", "set", port, "down"])
    shell.write(f"/sys/bus/pci/devices/{address}/driver/unbind", address.encode())
    _give_to_vfio(shell, address)
    return [_assigned(address)]


def _give_to_vfio(shell: Shell, address: str) -> None:
    shell.write(f"/sys/bus/pci/devices/{address}/driver_override", b"vfio-pci\n")
    shell.write("/sys/bus/pci/drivers_probe", address.encode())


def _assigned(address: str) -> list[str]:
    return ["-device", f"vfio-pci,host={address},rombar=0"]


def _recipe(
    kind: str, about: str, attach: _Attach, *, own_interrupts: bool = False, whole_port: bool = False
) -> PathRecipe:
    up = partial(_up, attach, own_interrupts=own_interrupts, whole_port=whole_port)
    # Guests end with their shell.
    return PathRecipe(kind, about, up, remove_bridges, ports.OPTIONS | {"ends": _ENDS})


GUEST_PATHS = (
    _recipe("e1000", "a KVM guest with a card emulated in software (e1000), tap and bridge", _tapped(["e1000"])),
    _recipe(
        "virtio",
        "a KVM guest with a virtio card served by the emulator in user space, tap and bridge",
        _tapped(["virtio-net-pci"], ",vhost=off"),
    ),
    _recipe(
        "vhost",
        "a KVM guest with a virtio card served by the kernel (vhost), tap and bridge",
        _tapped(["virtio-net-pci"], ",vhost=on"),
    ),
    _recipe("guest-vf", "a KVM guest with an SR-IOV virtual function by vfio", _functions, own_interrupts=True),
    _recipe(
        "passthrough", "a KVM guest with the whole port by vfio", _whole_port, own_interrupts=True, whole_port=True
    ),
)
