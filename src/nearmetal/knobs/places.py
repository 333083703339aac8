"""Where a host's knobs are reached from, and where their journals are kept."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, TrialError
from nearmetal.hosts.host import is_far
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.folder import host_lock, journal_folder
from nearmetal.knobs.knob import Target
from nearmetal.knobs.nic import listing
from nearmetal.knobs.rollback import refuse_unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nearmetal.hosts.host import FarShell, Shell

LOCAL = "local"
_LOCK_PATIENCE_S = 10.0
_LOCK_PAUSE_S = 0.05
_HOLD_SCRIPT = 'echo "$0" > "$1"; exec sleep 86400'


@contextmanager
def host_locks(shell: Shell, host: str, folder: Path) -> Iterator[None]:
    """Hold the locks of a host's knobs, here and on a far machine itself; raise TrialError when another holds one."""
    with host_lock(folder), _far_lock(shell, host) if is_far(shell) else nullcontext():
        yield


@contextmanager
def _far_lock(shell: FarShell, host: str) -> Iterator[None]:
    place = f"{shell.site.state}/journal/lock"
    token = secrets.token_hex(8)
    shell.run(["mkdir", "-p", "-m", "700", "--", f"{shell.site.state}/journal"])
    # The lock goes with its process, and the process with the connection.
    holder = shell.start(["flock", "--nonblock", place, "sh", "-c", _HOLD_SCRIPT, token, f"{place}.holder"])
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while shell.run(["cat", "--", f"{place}.holder"], check=False).text.strip() != token:
            if holder.ended() or time.monotonic() > deadline:
                raise TrialError(
                    f"somebody else holds the knobs of {host} ({place} there)", hint="wait until that ends"
                )
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        holder.stop()


def folder_of(host: str) -> Path:
    """Return where the journals of a host's knobs are kept; those of this machine are where trials keep theirs."""
    if not host or "/" in host or host.startswith("."):
        raise BadInputError(f"{host!r} is not the name of a host")
    return journal_folder() if host == LOCAL else journal_folder() / host


def refuse_unfinished_here() -> None:
    """Raise UnfinishedError when an earlier session has left settings of this machine changed."""
    if folder_of(LOCAL).is_dir():
        with MachineShell() as here:
            refuse_unfinished_on(here)


def folders_for(shell: Shell, home: Path) -> list[Path]:
    """Return where journals about a shell's machines are: `home`, and a folder in it for each far machine, by name."""
    names = {shell.machine_name(node) for node in shell.machines} if is_far(shell) else set()
    return [home, *(home / name for name in sorted(names) if "/" not in name)]


def refuse_unfinished_on(
    shell: Shell, home: Path | None = None, *, held: Sequence[Path] = (), measuring: bool = False
) -> None:
    """Raise UnfinishedError when an earlier session has left settings of a shell's machines changed.

    A session that holds the lock of a folder is alive, and may have changed something for now; but for the folders
    `held`, whose locks are the caller's. See `refuse_unfinished`.
    """
    for folder in folders_for(shell, home or folder_of(LOCAL)):
        with ExitStack() as stack:
            if not folder.is_dir():
                continue
            if folder not in held:
                try:
                    stack.enter_context(host_lock(folder))
                except TrialError:
                    continue
            refuse_unfinished(shell, folder, measuring=measuring)


def interfaces(shell: Shell) -> list[Target]:
    """Return the network interfaces of the machine but for the loopback."""
    names = listing(shell, "", "/sys/class/net")
    return [Target("", name) for name in names if name not in {"lo", "bonding_masters"}]
