"""Path `tap`: two tap devices joined by a relay in user space, standing for a software-emulated NIC.

Every frame leaves the kernel, is copied by a process and enters the kernel again, as it does when a virtual
machine monitor emulates a network card.
"""

import time
from collections.abc import Sequence

from nearmetal import native
from nearmetal.errors import TrialError, UnavailableError
from nearmetal.hosts.far.build import program
from nearmetal.hosts.host import Shell
from nearmetal.paths import links, ports
from nearmetal.paths.bridge import make_bridges, remove_bridges
from nearmetal.paths.path import Endpoints, PathRecipe
from nearmetal.study.order import PathOrder

RELAY = native.Recipe(name="nmrelay", room="relay")
_READY_TIMEOUT_S = 5.0


def _up(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Start the relay (`native/relay`) and give one of its devices to each of two nodes.

    Where the machine has ports every node has its own relay, from its device to a bridge on its port.
    """
    holders = ports.holders(shell, nodes)
    if not any(holder.ports for holder in holders):
        ports.refuse_wire(order)
        links.require_two(order.kind, nodes)
        _start_relay(shell, "nm-t0", "nm-t1")
        return links.configure(shell, nodes, ["nm-t0", "nm-t1"])
    return ports.join(shell, order, holders, _devices, ("nm-br0", "nm-u0"))


def _devices(holder: ports.Holder, order: PathOrder) -> list[str]:
    """Start a relay for each node of a machine, to a bridge on its port; return the devices."""
    bridges = make_bridges(holder.shell, order, holder.ports)
    devices = [f"nm-t{index}" for index in range(len(holder.nodes))]
    for index, device in enumerate(devices):
        outside = f"nm-u{index}"
        _start_relay(holder.shell, device, outside)
        holder.shell.run(["ip", "link", "set", outside, "master", bridges[index % len(bridges)], "up"])
    return devices


def _start_relay(shell: Shell, one: str, other: str) -> None:
    """Start a relay between two devices that it makes; raise with its own words when it gives up."""
    relay = shell.start([str(program(shell, RELAY)), one, other])
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not all(shell.run(["ip", "link", "show", name], check=False).ok for name in (one, other)):
        ended = relay.ended()
        if ended is not None:
            raise UnavailableError(
                f"the tap relay failed: {ended.complaint()}",
                hint="the tap path needs to open /dev/net/tun: run as root, or `sudo chmod 666 /dev/net/tun`",
            )
        if time.monotonic() > deadline:
            raise TrialError(f"the tap relay created no devices within {_READY_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


_ABOUT = "two tap devices joined by a user-space relay, standing for a software-emulated NIC"
# The relay ends with its shell, and its devices with the relay.
TAP = PathRecipe("tap", _ABOUT, _up, remove_bridges, ports.OPTIONS, pair=True)
