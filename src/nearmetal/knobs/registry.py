"""Root's open sessions on this machine, known to each other whatever home and state directory each has.

What root sets belongs to the machine, while its journals are below a home: `sudo` with and without -H, `su` and cron
have several. So an open session leaves its undo scripts in one folder of the machine as well, with the path of its
journal as their last line, and every session that sets something on the machine itself holds the lock there. The folder
is empty after a boot, which no knob outlives.
"""

import contextlib
import glob
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import NearmetalError, StoreError, os_errors_as
from nearmetal.hosts.host import Shell
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.access import run_c
from nearmetal.knobs.journal import put_durably
from nearmetal.knobs.trust import check_folder, trusted_bytes
from nearmetal.knobs.undo import NAMED
from nearmetal.units import by_key

FOLDER = "/run/nearmetal"
_JOURNAL = "# journal: "
_SUFFIX = ".undo.sh"


def machine_folder() -> Path:
    """Return the folder of the machine; NEARMETAL_MACHINE_STATE names another, for tests."""
    return Path(os.environ.get("NEARMETAL_MACHINE_STATE") or FOLDER)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """An undo script in the folder of a machine: whose journal it is, and what may be changed, with old values.

    The journal is on the machine `host`. `unreadable` says why nothing of this is known.
    """

    script: Path
    journal: Path
    changed: tuple[str, ...] = ()
    unreadable: str = ""
    host: str = ""

    @property
    def away(self) -> str:
        """Return where the journal is when it is on another machine."""
        return f"{self.journal} is on {self.host}" if self.host not in {"", socket.gethostname()} else ""


def is_of_the_machine(shell: Shell) -> bool:
    """Return whether a shell's settings are known in the folder of the machine: its root's, on the machine itself.

    The root of a user namespace is not the machine's, and cannot write there.
    """
    if not isinstance(shell, MachineShell) or os.geteuid() != 0:
        return False
    above = machine_folder().parent
    return not above.exists() or above.stat().st_uid == 0


def make_folder() -> None:
    """Make the folder of the machine; every user may see that something is open, root alone what."""
    folder = machine_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)


def note(journal: Path, number: int, script: str) -> None:
    """Keep an undo script of a session that is about to write; raise StoreError when that is impossible."""
    folder = machine_folder()
    with os_errors_as(StoreError, f"cannot use {folder}, where root's sessions are known to each other"):
        make_folder()
        check_folder(folder)
    text = f"{script}{origin(journal)}\n"
    os.close(put_durably(folder / f"{journal.name}.{number}{_SUFFIX}", text.encode()))


def origin(journal: Path) -> str:
    """Return the last line of an undo script in the folder of a machine: where its journal is."""
    return f"{_JOURNAL}{json.dumps([str(journal.absolute()), socket.gethostname()])}"


def forget(journal: Path) -> None:
    """Remove what the folder of the machine knows of a session; what the disk refuses is looked at again later."""
    for script in machine_folder().glob(f"{glob.escape(journal.name)}.*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            script.unlink()


def sessions() -> list[OpenSession]:
    """Return what the folder of the machine knows, the newest last; of what only root may read, that it is there."""
    folder = machine_folder()
    try:
        scripts = sorted(script for script in folder.iterdir() if script.name.endswith(_SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [OpenSession(folder, folder, unreadable=f"{folder}: {error.strerror}")]
    return [_read(script) for script in scripts]


def folders() -> list[Path]:
    """Return the folders of the journals that are open on this machine, without those that are not acted on."""
    found = dict.fromkeys(one.journal.parent for one in sessions() if not one.unreadable)
    return [folder for folder in found if not why_unusable(folder)]


def why_unusable(folder: Path) -> str:
    """Return why a folder's journals are not acted on; empty for one whose journals are."""
    try:
        check_folder(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    except NearmetalError as error:
        return error.message
    return ""


def _read(script: Path) -> OpenSession:
    journal = _journal_of(script)
    try:
        lines = trusted_bytes(script).decode(errors="replace").splitlines()
    except NearmetalError as error:
        return OpenSession(script, journal, unreadable=error.message)
    return _session(script, journal, lines)


def _session(script: Path, journal: Path, lines: Sequence[str]) -> OpenSession:
    try:
        path, host = map(str, json.loads(lines[-1].removeprefix(_JOURNAL)))
    except (ValueError, IndexError, TypeError):
        return OpenSession(script, journal, unreadable=f"{script} is damaged")
    changed = tuple(line.removeprefix(NAMED) for line in lines if line.startswith(NAMED))
    return OpenSession(script, Path(path), changed, host=host)


_SESSIONS_SCRIPT = """cd -- "${NEARMETAL_MACHINE_STATE:-/run/nearmetal}" 2> /dev/null || exit 0
pwd
grep -H -e "^$1" -e "^$2" -- *.undo.sh 2> /dev/null
"""


def sessions_on(shell: Shell, node: str) -> list[OpenSession]:
    """Return what the folder of a far machine knows of open sessions, as far as its user may read that."""
    asked = ("sh", "-c", _SESSIONS_SCRIPT, "sessions", NAMED, _JOURNAL)
    folder, *lines = run_c(shell, asked, node).text.splitlines() or [""]
    split = (line.partition(f"{_SUFFIX}:") for line in lines)
    found = by_key((Path(folder, name + _SUFFIX), line) for name, _, line in split)
    return [_session(script, _journal_of(script), own) for script, own in found.items()]


def _journal_of(script: Path) -> Path:
    return script.with_name(script.name.removesuffix(_SUFFIX).rpartition(".")[0])
