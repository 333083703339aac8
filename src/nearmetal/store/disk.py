"""The few steps by which bytes become permanent, in one place so that a test can fail each of them."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from shlex import quote

from nearmetal.errors import StoreError, os_errors_as
from nearmetal.store.sums import resume_command

TEMPORARY_SUFFIX = ".part"


class Disk:
    """Writes files so that after a crash each is there whole or not at all.

    Files are for their owner alone (0600), because runs and reports name hosts, interfaces and command lines.
    """

    def put(self, path: Path, write: Callable[[Path], object]) -> None:
        """Let `write` fill a temporary file, then make it permanent under `path`.

        Steps: write, fsync the file, rename, fsync the directory. Raise StoreError with the cause when the disk
        refuses; the temporary file is removed then, `path` is untouched.
        """
        if not path.name:  # `.` and `/`
            raise _explain(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)), path)
        part = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            self.step("write", path)
            self.make(part)
            write(part)
            self.step("fsync", path)
            _fsync(part)
            self.step("rename", path)
            part.replace(path)
            self.step("fsync-directory", path)
            _fsync(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):  # a disk that may not be written holds no part either
                part.unlink(missing_ok=True)
            raise _explain(error, path) from error

    def put_bytes(self, path: Path, data: bytes) -> None:
        """Write `data` as a whole file; what is no file (`/dev/stdout`, a pipe) is written to and stays what it is."""
        if not (path.exists() and (path.parent.as_posix() == "/dev" or not (path.is_file() or path.is_dir()))):
            self.put(path, lambda part: part.write_bytes(data))
            return
        try:
            path.write_bytes(data)
        except OSError as error:
            raise _explain(error, path) from error

    def append(self, path: Path, data: bytes) -> None:
        """Add bytes to the end of a file; a crash may leave a part of them. Raise StoreError as `put` does."""
        try:
            self.step("append", path)
            with path.open("ab", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
        except OSError as error:
            raise _explain(error, path) from error

    def remove(self, path: Path) -> None:
        """Remove a file; raise StoreError where the disk refuses."""
        with os_errors_as(StoreError, f"cannot remove {path}", hint="check the directory and its permissions"):
            path.unlink()

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, each permanent in the one that holds it."""
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for one in made:
            _fsync(one.parent)

    def make(self, part: Path) -> None:
        """Make the temporary file, empty and private, before anything is in it."""
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def step(self, name: str, path: Path) -> None:
        """Mark the start of a step; fault tests override it to kill or to fail there."""


class SharedDisk(Disk):
    """The same with the usual mode, for files that another account has to read, such as a collector of metrics."""

    def make(self, part: Path) -> None:
        """Leave it to the writer."""
        part.unlink(missing_ok=True)


def take_lock(root: Path) -> TextIOWrapper:
    """Return the lock of a run directory, held until it is closed.

    Raise StoreError where another one holds it, or where the directory cannot be written.
    """
    path = root / "lock"
    hint = f"resume a copy that you may write: cp -r {quote(str(root))} COPY"
    with os_errors_as(StoreError, f"cannot write {path}", hint=hint):
        lock = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise StoreError(f"{root} is in use by another nearmetal", hint="wait for it, or name another run") from error
    except OSError as error:
        lock.close()
        message, hint = f"cannot lock {path}: {error.strerror}", "name a directory on a file system that has locks"
        raise StoreError(message, hint=hint) from error
    return lock


def confirm_lock(lock: TextIOWrapper, root: Path, option: str) -> None:
    """Raise StoreError where `lock` is not that of the directory that is at `root` now; `option` names another one."""
    ours = os.fstat(lock.fileno())
    try:
        there = (root / "lock").stat()
    except OSError as error:
        message = f"{root} was removed while it was being written ({error.strerror})"
        raise StoreError(message, hint="start again; what is measured from now on has no place") from error
    if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
        message = f"{root} was removed while it was being written, and another nearmetal writes to it now"
        raise StoreError(message, hint=f"let that one end, or start again with another {option}")


def is_being_written(root: Path) -> bool:
    """Return whether a process of this machine holds the run's lock, without taking it for a moment.

    Taking it, even shared, could make a `nearmetal run` that starts in this moment fail. The kernel lists locks in
    /proc/locks (proc_locks(5)), with the inode as the last part of the sixth column.
    """
    try:
        inode = (root / "lock").stat().st_ino
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in held)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"no space left to write {path}"
        of_trials = ("run.json", "search.json")
        root = next((one for one in path.parents if any((one / name).exists() for name in of_trials)), None)
        again = f"continue: {resume_command(root)}" if root else "repeat the command"
        return StoreError(message, hint=f"free some space and {again}")
    hint = "name a file in it" if error.errno == errno.EISDIR else "check the directory and its permissions"
    return StoreError(f"cannot write {path}: {error.strerror or error}", hint=hint)
