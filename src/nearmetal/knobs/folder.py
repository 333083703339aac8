"""The directory of a host's journals: one lock, journals newest first, what is damaged, and what has expired."""

import contextlib
import errno
import fcntl
import glob
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nearmetal.errors import NearmetalError, StoreError, TrialError, os_errors_as
from nearmetal.hosts.host import Way
from nearmetal.knobs import registry
from nearmetal.knobs.journal import NEW_SUFFIX, EndState, JournalState, read_state
from nearmetal.knobs.presence import measured_by
from nearmetal.knobs.trust import check_folder
from nearmetal.process import wait_until

SUFFIX = ".journal"
DAMAGED_SUFFIX = ".damaged"
KEPT_DAYS = 30
"""How long a journal that ended is kept."""

_LOCK_NAME = "lock"
_MEASURED_NAME = "measured"
_LOCK_PAUSE_S = 0.05
_DAY_S = 86_400


def journal_folder() -> Path:
    """Return where this user's undo journals are: ${XDG_STATE_HOME:-~/.local/state}/nearmetal/journal.

    A relative path is ignored, as the XDG specification requires: each directory would have its own journals, and a
    roll-back in another one would find nothing.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "nearmetal" / "journal"


@dataclass(frozen=True, slots=True)
class JournalFolder:
    """The journals of a directory, newest first, and those that could not be read, with the reason."""

    journals: tuple[tuple[Path, JournalState], ...]
    refused: tuple[tuple[Path, NearmetalError], ...]

    def waiting(self) -> list[tuple[Path, str, JournalState]]:
        """Return those that did not end, or ended in quarantine, newest first.

        Of a trial on far machines there is one for each that it waits for, with its name and what happened there; the
        name of other journals is empty.
        """
        return [
            (path, name, state.on(name) if name else state)
            for path, state in self.journals
            if state.end in {None, EndState.QUARANTINED}
            for name in (sorted(state.waiting) if state.machines else [""])
        ]

    def far_machines(self) -> dict[str, str]:
        """Return the far machines that journals of trials still wait for, each with the command that rolls it back."""
        waiting = [(name, state) for _, name, state in self.waiting() if name]
        return {name: state.rolled_back_by(name) for name, state in sorted(waiting, key=lambda one: one[0])}

    def ways_to(self, machine: str) -> list[Way]:
        """Return how trials that wait for a far machine of this name reached it; two may have meant different ones."""
        found = [state.ways[name] for _, name, state in self.waiting() if name == machine and name in state.ways]
        return [way for number, way in enumerate(found) if way not in found[:number]]


def survey(folder: Path) -> JournalFolder:
    """Read every journal of a directory; one that cannot be read does not keep the others from being read."""
    journals, refused = [], []
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=age, reverse=True):
        try:
            journals.append((path, read_state(path)))
        except NearmetalError as error:
            refused.append((path, error))
    return JournalFolder(tuple(journals), tuple(refused))


def open_journals(folder: Path, machine: str = "") -> list[Path]:
    """Return the journals that wait for a roll-back of a machine, newest first; see `JournalFolder.waiting`."""
    return [path for path, name, _ in survey(folder).waiting() if name == machine]


def new_journal(folder: Path) -> Path:
    """Return the path of a new journal, whose name sorts after every other's although a clock may step back."""
    newest = max((age(path)[0] for path in folder.glob(f"*{SUFFIX}")), default=0)
    return folder / f"{max(time.time_ns(), newest + 1)}-{os.getpid()}{SUFFIX}"


def age(path: Path) -> tuple[int, str]:
    """Return what journals are sorted by, the oldest first."""
    started = path.name.partition("-")[0]
    return (int(started) if started.isdecimal() else 0, path.name)


def set_aside(path: Path) -> Path:
    """Rename a damaged journal, so that it is named once and kept for a person to read; return its new name."""
    aside = path.with_name(path.name + DAMAGED_SUFFIX)
    with os_errors_as(StoreError, f"cannot rename {path}"):
        path.rename(aside)
    registry.forget(path)
    return aside


def undo_scripts(path: Path) -> list[Path]:
    """Return the undo scripts of a journal."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.*.undo.sh"))


def forget_scripts(path: Path) -> None:
    """Remove the undo scripts of a journal, and the reports of watchdogs; those in the machine's own folder, too."""
    registry.forget(path)
    for beside in [*undo_scripts(path), *path.parent.glob(f"{glob.escape(path.name)}.*.watchdog")]:
        remove(beside)


def remove(path: Path) -> None:
    """Remove a file that nothing depends on any more; where the disk refuses, it stays until it expires."""
    with contextlib.suppress(OSError):
        path.unlink()


def expire(folder: Path) -> None:
    """Remove journals that ended `KEPT_DAYS` ago, and files that never got their name; the caller holds the lock."""
    for part in folder.glob(f"*{SUFFIX}*{NEW_SUFFIX}"):
        remove(part)
    for path, state in survey(folder).journals:
        ended = state.end not in {None, EndState.QUARANTINED}
        if ended and time.time() - path.stat().st_mtime > KEPT_DAYS * _DAY_S:
            remove(path)
            forget_scripts(path)


@contextmanager
def host_lock(folder: Path, *, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of one host's knobs.

    Raises TrialError when another session still holds it after `patience_s`, StoreError when the directory cannot be
    used, or when others could write into it.
    """
    with _opened(folder) as lock:
        if not wait_until(lambda: _locked(lock), patience_s, _LOCK_PAUSE_S):
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise TrialError(
                f"process {holder} holds the knobs of this host ({folder / _LOCK_NAME})",
                hint="wait until it ends; the lock is released with the process",
            )
        with contextlib.suppress(OSError):  # for the message above; a full disk must not keep a roll-back away
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"{os.getpid()}\n".encode())
        yield


@contextmanager
def measured(folder: Path) -> Iterator[None]:
    """Let sessions that would change a far host's settings see that this process measures there; several may at a time.

    Where that cannot be written no journal can be either, so no such session begins. The lock alone suffices on a full
    disk: the process is then not named.
    """
    with ExitStack() as stack:
        with contextlib.suppress(StoreError, OSError):
            file = stack.enter_context(_opened(folder, _MEASURED_NAME))
            if _locked(file):  # nobody else measures, so what the file says is old
                os.ftruncate(file.fileno(), 0)
            fcntl.flock(file, fcntl.LOCK_SH)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        yield


def refuse_measured_far(folder: Path, host: str) -> None:
    """Raise TrialError while a process of this user measures on a far host: its figures would be of two settings."""
    if not (folder / _MEASURED_NAME).exists():
        return
    with _opened(folder, _MEASURED_NAME) as file:
        if not _locked(file):
            file.seek(0)
            raise measured_by(file.read().split(), host)


def _opened(folder: Path, name: str = _LOCK_NAME) -> IO[str]:
    place = folder / name
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if folder == registry.machine_folder():
            registry.make_folder()
        elif not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        check_folder(folder)
        try:
            return os.fdopen(os.open(place, flags | os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
        except OSError as error:
            if error.errno not in {errno.EROFS, errno.EDQUOT, errno.ENOSPC}:
                raise
            # A roll-back continues where nothing can be written any more.
            return os.fdopen(os.open(place, flags | os.O_RDONLY))
    except OSError as error:
        of_machine = folder == registry.machine_folder()
        raise StoreError(
            f"cannot use the directory of {'open sessions' if of_machine else 'undo journals'} {folder}: "
            f"{error.strerror}; no setting was changed",
            hint="root's sessions of every home are known there: make it writable"
            if of_machine
            else "XDG_STATE_HOME can name another place for it",
        ) from error


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"cannot lock {lock.name}: {error.strerror}; no setting was changed") from error
    return True
