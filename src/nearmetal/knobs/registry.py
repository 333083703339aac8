"""Root's open sessions on this machine, known to each other whatever home and state directory each has.

What root sets belongs to the machine, while its journals are below a home: `sudo` with and without -H, `su` and cron
have several. So an open session leaves its undo scripts in one folder of the machine as well, with the path of its
journal as their last line, and every session that sets something on the machine itself holds the lock there. The folder
is empty after a boot, which no knob outlives.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import NearmetalError, StoreError, os_errors_as
from nearmetal.hosts.host import Shell
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.journal import put_durably
from nearmetal.knobs.trust import check_folder, trusted_bytes
from nearmetal.knobs.undo import NAMED

FOLDER = "/run/nearmetal"
_JOURNAL = "# journal: "
_SUFFIX = ".undo.sh"


def machine_folder() -> Path:
    """Return the folder of the machine; NEARMETAL_MACHINE_STATE names another, for tests."""
    return Path(os.environ.get("NEARMETAL_MACHINE_STATE") or FOLDER)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """An undo script in the folder of the machine: whose journal it is, and what may be changed, with old values.

    `unreadable` says why neither is known.
    """

    script: Path
    journal: Path
    changed: tuple[str, ...] = ()
    unreadable: str = ""


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
    text = f"{script}{_JOURNAL}{json.dumps(str(journal.absolute()))}\n"
    os.close(put_durably(folder / f"{journal.name}.{number}{_SUFFIX}", text.encode()))


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
    journal = script.with_name(script.name.removesuffix(_SUFFIX).rpartition(".")[0])
    try:
        lines = trusted_bytes(script).decode(errors="replace").splitlines()
        path = json.loads(lines[-1].removeprefix(_JOURNAL))
    except NearmetalError as error:
        return OpenSession(script, journal, unreadable=error.message)
    except (ValueError, IndexError):
        return OpenSession(script, journal, unreadable=f"{script} is damaged")
    changed = tuple(line.removeprefix(NAMED) for line in lines if line.startswith(NAMED))
    return OpenSession(script, Path(str(path)), changed)
