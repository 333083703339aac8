"""Who measures on this machine, or from it on a far one, whatever user and home: a socket with a name and no file.

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
from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import run_c
from nearmetal.knobs.registry import machine_folder

_SOCKETS = Path("/proc/net/unix")
_HINT = "wait until it ends, or stop it with Ctrl-C: a run and a search can be resumed"


def _name(host: str) -> str:
    """Return how the names begin: another folder of the machine, as in tests, is another machine."""
    of = bytes(machine_folder()) + (f"\0{host}".encode() if host else b"")
    return f"nearmetal-measures-{sha256(of).hexdigest()[:16]}-"


@contextlib.contextmanager
def measuring_from_here(host: str = "") -> Iterator[None]:
    """Let others see for the length of a `with` that this process measures on a far host, '' for this machine.

    Where that is forbidden, go on.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        with contextlib.suppress(OSError):
            mark.bind(f"\0{_name(host)}{os.getpid()}-{secrets.token_hex(4)}")
        yield


def refuse_measured_from_here(host: str = "", called: str = "this machine") -> None:
    """Raise TrialError while a process of any user here measures on a far host, '' for this machine."""
    with contextlib.suppress(OSError):
        if found := _pids(_SOCKETS.read_text(errors="replace"), host):
            raise measured_by(found, called)


def refuse_measured_there(shell: Shell, host: str) -> None:
    """Raise TrialError while a process of any user on a far machine measures on that machine."""
    if found := _pids(run_c(shell, ("cat", str(_SOCKETS)), "").stdout.decode(errors="replace"), ""):
        owner = run_c(shell, ("stat", "-c", "%U", f"/proc/{found[-1]}"), "")
        of_whom = f" of {owner.stdout.decode(errors='replace').strip()}" if owner.ok else ""
        raise TrialError(f"process {found[-1]}{of_whom} on {host} measures there now", hint=_HINT)


def _pids(sockets: str, host: str) -> list[str]:
    return re.findall(rf" @{_name(host)}(\d{{1,10}})-[0-9a-f]{{8}}$", sockets, re.MULTILINE)


def measured_by(pids: list[str], host: str) -> TrialError:
    """Return the error that names who measures on a host: the last of these processes that is alive."""
    alive = [pid for pid in dict.fromkeys(pids) if Path(f"/proc/{pid}").exists()]
    return TrialError(
        f"{f'process {alive[-1]}{_of_whom(alive[-1])}' if alive else 'another process'} measures on {host} now",
        hint=_HINT,
    )


def _of_whom(pid: str) -> str:
    """Return whose a process is, if it is somebody else's."""
    with contextlib.suppress(OSError, KeyError):
        owner = Path(f"/proc/{pid}").stat().st_uid
        return f" of {pwd.getpwuid(owner).pw_name}" if owner != os.geteuid() else ""
    return ""
