"""Where a host's knobs are reached from, and where their journals are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.journal import journal_folder
from nearmetal.knobs.knob import Target
from nearmetal.knobs.nic import listing

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.hosts.host import Shell

LOCAL = "local"


def open_shell(host: str) -> MachineShell:
    """Return a shell on a host whose knobs stay as they are set; raise UnavailableError for hosts out of reach."""
    if host != LOCAL:
        raise UnavailableError(
            f"the knobs of {host!r} cannot be reached from here", hint=f"run this on {host} itself, with host `{LOCAL}`"
        )
    return MachineShell()


def folder_of(host: str) -> Path:
    """Return where the journals of a host's knobs are kept; those of this machine are where trials keep theirs."""
    if not host or "/" in host or host.startswith("."):
        raise BadInputError(f"{host!r} is not the name of a host")
    return journal_folder() if host == LOCAL else journal_folder() / host


def interfaces(shell: Shell) -> list[Target]:
    """Return the network interfaces of the machine but for the loopback."""
    names = listing(shell, "", "/sys/class/net")
    return [Target("", name) for name in names if name not in {"lo", "bonding_masters"}]
