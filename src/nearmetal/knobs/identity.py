"""Which machine, boot and namespaces a value belongs to: what a roll-back compares before it touches anything.

Equal boot ids mean one running kernel. Between different boots of one machine nothing remains: no knob outlives a
reboot. Machine ids are cloned with images, so a reboot is believed only of a machine of the same host name that has not
been up since before the session. Numbers of network namespaces are used again, so on this machine the kernel's cookie
of the namespace, which is not, stands beside the number (socket option SO_NETNS_COOKIE, Linux 5.14).
"""

import contextlib
import socket
from dataclasses import dataclass
from typing import Literal

from nearmetal.hosts.host import HYPERVISOR, Shell, is_far
from nearmetal.hosts.machine import MachineShell
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.knobs.access import run_c

_SO_NETNS_COOKIE = 71
_COOKIE_BYTES = 8

# One line each; an empty one for what the machine does not report.
_WHERE_SCRIPT = r"""
first() {
    for file; do
        if read -r line < "$file"; then echo "$line"; return; fi
    done 2> /dev/null
    echo
}
first /etc/machine-id /var/lib/dbus/machine-id
first /proc/sys/kernel/hostname
first /proc/sys/kernel/random/boot_id
readlink /proc/self/ns/net || echo
readlink /proc/self/ns/mnt || echo
first /proc/uptime
"""
_ANSWERS = 6


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is. `vanishes` says that it is in namespaces that end with the session's process."""

    machine: str = ""
    name: str = ""
    boot: str = ""
    network: str = ""
    mount: str = ""
    vanishes: bool = False


UNKNOWN_PLACE = Place()


@dataclass(frozen=True, slots=True)
class Present:
    """Where a shell's node is now, and for how long its machine has been up."""

    place: Place
    up_s: float


Claim = Literal["mine", "past", "elsewhere", "unknown"]
"""What a place is to the one that looks."""


def present(shell: Shell, node: str = HYPERVISOR) -> Present:
    """Return where a node is."""
    lines = run_c(shell, ("sh", "-c", _WHERE_SCRIPT, "where"), node).text.split("\n")
    machine, name, boot, network, mount, uptime = [*lines, *[""] * _ANSWERS][:_ANSWERS]
    if isinstance(shell, MachineShell):
        network += _cookie()
    up_s = float(uptime.split()[0]) if uptime else 0.0
    return Present(Place(machine, name, boot, network, mount, vanishes(shell, node)), up_s)


def vanishes(shell: Shell, node: str) -> bool:
    """Return whether a node's namespaces end with the session's process."""
    if is_far(shell):
        return not shell.lifeline(node)
    return isinstance(shell, NamespaceShell) and (shell.own_network or node != HYPERVISOR)


def _cookie() -> str:
    """Return the cookie of this process's network namespace; empty where the kernel has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        raw = one.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)
        return f" cookie {int.from_bytes(raw, 'little')}"
    return ""


def claim(then: Place, now: Present, elapsed_s: float) -> tuple[Claim, str]:
    """Return what a journal's place is to the present one, and why; `elapsed_s` have passed since the session began."""
    here = now.place
    if then.boot and then.boot == here.boot:
        return _same_boot(then, here)
    if not then.boot or not then.machine or not here.machine:
        return "unknown", "it cannot be verified that this is the machine that it was on"
    if (then.machine, then.name) != (here.machine, here.name):
        return "elsewhere", f"it was on {then.name}, machine id {then.machine}"
    if now.up_s > elapsed_s:
        return "elsewhere", f"it was on another boot of {here.name}"
    return "past", "the machine has been rebooted since"


def _same_boot(then: Place, here: Place) -> tuple[Claim, str]:
    if not then.network:
        return "unknown", "the journal does not say in which network namespace it was"
    if not _same_network(then.network, here.network) or then.machine != here.machine:
        if then.vanishes:
            return "past", "its namespaces ended with their process"
        return "elsewhere", f"it was in network namespace {then.network} of {then.name}, this is {here.network}"
    if then.mount != here.mount:
        if then.vanishes:
            return "past", "its namespaces ended with their process"
        return "unknown", f"it was in mount namespace {then.mount}, this is {here.mount}"
    return "mine", ""


def _same_network(then: str, here: str) -> bool:
    """Return whether two are one network namespace; a far machine reports no cookie, and then the number has to do."""
    pair = [network.partition(" cookie ") for network in (then, here)]
    return then == here or (pair[0][0] == pair[1][0] and not all(cookie for _, _, cookie in pair))
