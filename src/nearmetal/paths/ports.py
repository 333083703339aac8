"""Physical ports of the machine that holds the nodes, and the wire between them.

The lab has two SR-IOV ports on one wire; a host of namespaces has none. A recipe that finds ports joins its nodes
through them: node `i` belongs to port `i mod (number of ports)`, so traffic between neighbours crosses the wire.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.hosts.host import HYPERVISOR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearmetal.hosts.host import Shell
    from nearmetal.study.order import PathOrder, Scalar

WIRE_OPTIONS = {"wire_delay_us", "wire_rate_mbit"}
_MAX_VFS = 7


def find_ports(shell: Shell) -> tuple[str, ...]:
    """Return the names of the machine's PCI network ports, in order of name; none among namespaces."""
    return parse_ports(shell.run(["ip", "-json", "-details", "link", "show"]).text)


def parse_ports(text: str) -> tuple[str, ...]:
    """Read `ip -json -details link show`: interfaces whose parent is a PCI device; raise TrialError when it is not."""
    try:
        links = json.loads(text)
        return tuple(sorted(link["ifname"] for link in links if link.get("parentbus") == "pci"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise TrialError(f"cannot read the machine's network interfaces: {error}") from error


def require_ports(shell: Shell, kind: str) -> tuple[str, ...]:
    """Return the ports; raise UnavailableError when there are fewer than two."""
    ports = find_ports(shell)
    if len(ports) < 2:
        raise UnavailableError(
            f"path {kind!r} needs two network ports on one wire, this host has {len(ports)}",
            hint="the lab has them: `[host] kind = 'lab'`",
        )
    return ports


def refuse_wire(order: PathOrder) -> None:
    """Raise BadInputError for wire options on a host that has no wire."""
    given = sorted(WIRE_OPTIONS & order.options.keys())
    if given:
        raise BadInputError(
            f"path {order.label!r} asks for {given[0]}, and namespaces have no wire", hint="the lab has one"
        )


def shape_wire(shell: Shell, order: PathOrder, interface: str, *, node: str = HYPERVISOR) -> None:
    """Give an interface the rate and delay that the path's options ask for, on its way out (tc-netem(8)).

    A delay costs some microseconds of kernel work on top of itself, as every software delay does.
    """
    words = wire_words(order.options)
    if words:
        shell.run(["tc", "qdisc", "replace", "dev", interface, "root", "netem", *words], node=node)


def wire_words(options: Mapping[str, Scalar]) -> list[str]:
    """Return netem's parameters for path options; raise BadInputError for values that are no positive number."""
    words = []
    for option, parameter, unit in (("wire_delay_us", "delay", "us"), ("wire_rate_mbit", "rate", "mbit")):
        if option in options:
            value = options[option]
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise BadInputError(f"{option} is {value!r}, not a positive number")
            words += [parameter, f"{value:g}{unit}"]
    return words


def make_vfs(shell: Shell, port: str, count: int) -> list[str]:
    """Split a port into virtual functions and return their interfaces, in order; the port itself stays.

    Each gets a fixed MAC address, because an igbvf without one draws it at random. Raise TrialError when the port
    cannot be split that often.
    """
    if not 1 <= count <= _MAX_VFS:
        raise TrialError(f"port {port} can be split into 1 to {_MAX_VFS} virtual functions, not {count}")
    device = f"/sys/class/net/{port}/device"
    # The port must be down while its functions appear, and raises their reset-done bit when it comes up.
    shell.run(["ip", "link", "set", port, "down"])
    shell.write(f"{device}/sriov_numvfs", f"{count}\n".encode())
    shell.run(["ip", "link", "set", port, "up"])
    number = port[-1] if port[-1].isdigit() else "0"
    for index in range(count):
        mac = f"52:54:00:0{number}:00:{index + 1:02x}"
        shell.run(["ip", "link", "set", port, "vf", str(index), "mac", mac])
    return [vf_interface(shell, port, index) for index in range(count)]


def vf_interface(shell: Shell, port: str, index: int) -> str:
    """Return the interface of a port's virtual function; raise TrialError when no driver has made one."""
    folder = f"/sys/class/net/{port}/device/virtfn{index}/net"
    finished = shell.run(["ls", folder], check=False)
    names = finished.text.split()
    if not finished.ok or len(names) != 1:
        raise TrialError(
            f"virtual function {index} of {port} has {len(names)} interfaces, not one",
            hint="the driver igbvf is missing or did not take it",
        )
    return names[0]
