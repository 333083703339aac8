"""Who measures on this machine, whatever user and home: a socket with a name and without a file.

Every process on this machine's network may bind one and see all of them, so no directory has to be shared, and the
kernel removes it with its process, however that ends.
"""

import contextlib
import os
import pwd
import re
import secrets
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from nearmetal.errors import TrialError
from nearmetal.knobs.registry import machine_folder

_SOCKETS = Path("/proc/net/unix")


def _name() -> str:
    """Return how the names begin: another folder of the machine, as in tests, is another machine."""
    return f"nearmetal-measures-{sha256(bytes(machine_folder())).hexdigest()[:16]}-"


@contextlib.contextmanager
def measuring_here() -> Iterator[None]:
    """Let others see for the length of a `with` that this process measures here; where that is forbidden, go on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        with contextlib.suppress(OSError):
            mark.bind(f"\0{_name()}{os.getpid()}-{secrets.token_hex(4)}")
        yield


def refuse_measured_here() -> None:
    """Raise TrialError while a process of any user measures on this machine."""
    try:
        sockets = _SOCKETS.read_text(errors="replace")
    except OSError:
        return
    found = re.findall(rf" @{_name()}(\d{{1,10}})-[0-9a-f]{{8}}$", sockets, re.MULTILINE)
    if found:
        raise measured_by(found, "this machine")


def measured_by(pids: list[str], host: str) -> TrialError:
    """Return the error that names who measures on a host: the last of these processes that is alive."""
    alive = [pid for pid in dict.fromkeys(pids) if Path(f"/proc/{pid}").exists()]
    return TrialError(
        f"{f'process {alive[-1]}{_of_whom(alive[-1])}' if alive else 'another process'} measures on {host} now",
        hint="wait until it ends, or stop it with Ctrl-C: a run and a search can be resumed",
    )


def _of_whom(pid: str) -> str:
    """Return whose a process is, if it is somebody else's."""
    with contextlib.suppress(OSError, KeyError):
        owner = Path(f"/proc/{pid}").stat().st_uid
        return f" of {pwd.getpwuid(owner).pw_name}" if owner != os.geteuid() else ""
    return ""
