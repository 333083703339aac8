"""What the families of NIC knobs share: accesses through the `ethtool` program and interface files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.access import BLANKS, Access, Pick, file_access, run_c
from nearmetal.knobs.knob import Kind, PlainKnob, Scope, Stage

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.knob import Locate, Target

NUMBER = "([0-9]+)"
SWITCH_WORD = "(on|off)"


def labelled(label: str, value: str = NUMBER, *, after: str = "") -> Pick:
    """Return the pick of a line `label: value`."""
    return Pick(f"{BLANKS}{label}:{BLANKS}{value}{BLANKS}", after, f"{BLANKS}{label}:")


def ethtool(show: str, pick: Pick, change: tuple[str, str], *, ceiling: Pick | None = None) -> Locate:
    """Return what locates a parameter that `ethtool SHOW DEV` prints and `ethtool CHANGE[0] DEV CHANGE[1] {}` sets."""

    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        device = target.interface
        set_argv = ("ethtool", change[0], device, change[1], "{}")
        return (Access(target.node, ("ethtool", show, device), pick, change=set_argv, ceiling=ceiling),)

    return locate


def interface_file(name: str) -> Locate:
    """Return what locates `/sys/class/net/DEV/NAME`."""

    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        return (file_access(target.node, f"/sys/class/net/{target.interface}/{name}"),)

    return locate


def queue_files(prefix: str, name: str) -> Locate:
    """Return what locates `/sys/class/net/DEV/queues/PREFIX*/NAME`, one access a queue."""

    def locate(shell: Shell, target: Target) -> tuple[Access, ...]:
        folder = f"/sys/class/net/{target.interface}/queues"
        queues = [entry for entry in listing(shell, target.node, folder) if entry.startswith(prefix)]
        return tuple(file_access(target.node, f"{folder}/{queue}/{name}") for queue in queues)

    return locate


def listing(shell: Shell, node: str, folder: str) -> list[str]:
    """Return the names in a directory, by number where they end in one; empty when it does not exist."""
    names = run_c(shell, ("ls", "--", folder), node).text.split()
    return sorted(names, key=lambda name: (len(name), name))


def nic_knob(
    name: str, about: str, stage: Stage, kind: Kind, locate: Locate, *, disturbs: tuple[str, ...] = ()
) -> PlainKnob:
    """Return a knob of an interface."""
    return PlainKnob(f"nic.{name}", about, Scope.INTERFACE, stage, kind, locate, disturbs)
