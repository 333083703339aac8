"""Paths into guests under KVM: what each way of giving a guest a network card costs.

Node 0 is the peer on the wire, with the second port to itself; every other node is a guest behind the first port.
The option `rx_usecs` sets the interrupt moderation of every real port and function that takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nearmetal.errors import TrialError, UnavailableError
from nearmetal.paths import links, ports
from nearmetal.paths.bridge import remove_bridges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import PathOrder


@runtime_checkable
class Hypervisor(Protocol):
    """A shell that can make a node a guest."""

    def boot_guest(self, node: str, devices: Sequence[str]) -> None:
        """Boot a guest with these devices and wait until it runs programs."""
        ...


@dataclass(frozen=True, slots=True)
class GuestPath:
    """A recipe for guests: `attach` prepares the port and returns each guest's devices.

    `own_interrupts` says that the guest itself takes a real function's interrupts.
    """

    kind: str
    about: str
    attach: Callable[[Shell, PathOrder, str, int], list[list[str]]]
    own_interrupts: bool = False

    def up(self, shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
        """Attach and boot the guests, give the peer its port, and wait until all reach all."""
        if not isinstance(shell, Hypervisor):
            raise UnavailableError(
                f"path {self.kind!r} needs a hypervisor", hint="the lab has one: machine = 'kvm' in [host.options]"
            )
        guest_port, peer_port = ports.require_ports(shell, self.kind)[:2]
        if len(nodes) < 2:
            raise TrialError(f"path {self.kind!r} needs a peer and at least one guest")
        shell.run(["ip", "link", "set", peer_port, "up"])
        for node, devices in zip(nodes[1:], self.attach(shell, order, guest_port, len(nodes) - 1), strict=True):
            shell.boot_guest(node, devices)
        endpoints = links.configure(shell, nodes, [peer_port, *("" for _ in nodes[1:])])
        ports.shape_wire(shell, order, endpoints.ends[0].interface, node=nodes[0])
        self._moderate(shell, order, endpoints, guest_port)
        return endpoints

    def _moderate(self, shell: Shell, order: PathOrder, endpoints: Endpoints, port: str) -> None:
        for end in endpoints.ends if self.own_interrupts else endpoints.ends[:1]:
            ports.moderate(shell, order, end.interface, node=end.node)
        if not self.own_interrupts:
            ports.moderate(shell, order, port)

    def down(self, shell: Shell, endpoints: Endpoints) -> None:
        """Free the port of its bridge; guests end with their shell."""
        remove_bridges(shell, endpoints)


def _tapped(card: Sequence[str], backend: str = "") -> Callable[[Shell, PathOrder, str, int], list[list[str]]]:
    """Return what hangs every guest's card, by a tap device, on a bridge on the port."""

    def attach(shell: Shell, order: PathOrder, port: str, guests: int) -> list[list[str]]:
        bridge = "nm-br0"
        shell.run(["ip", "link", "add", bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0"])
        shell.run(["ip", "link", "set", bridge, "up"])
        shell.run(["ip", "link", "set", port, "master", bridge, "up"])
        ports.shape_wire(shell, order, port)
        devices = []
        for index in range(guests):
            tap = f"nm-g{index}"
            shell.run(["ip", "tuntap", "add", tap, "mode", "tap"])
            shell.run(["ip", "link", "set", tap, "master", bridge, "up"])
            mac = f"52:54:00:02:00:{index + 1:02x}"
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
        raise TrialError(f"path {order.kind!r} gives one guest the whole port, not {guests}", hint="use `guest-vf`")
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


GUEST_PATHS = (
    GuestPath("e1000", "a KVM guest with a card emulated in software (e1000), tap and bridge", _tapped(["e1000"])),
    GuestPath(
        "virtio",
        "a KVM guest with a virtio card served by the emulator in user space, tap and bridge",
        _tapped(["virtio-net-pci"], ",vhost=off"),
    ),
    GuestPath(
        "vhost",
        "a KVM guest with a virtio card served by the kernel (vhost), tap and bridge",
        _tapped(["virtio-net-pci"], ",vhost=on"),
    ),
    GuestPath("guest-vf", "a KVM guest with an SR-IOV virtual function by vfio", _functions, own_interrupts=True),
    GuestPath("passthrough", "a KVM guest with the whole port by vfio", _whole_port, own_interrupts=True),
)
