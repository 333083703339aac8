"""Whose files may say what is written to a machine: their owner's alone, and nobody else's."""

import grp
import os
import pwd
import stat
from pathlib import Path

from nearmetal.errors import StoreError, os_errors_as

_MOST_BYTES = 64 * 2**20


class UntrustedError(StoreError):
    """Somebody else could have written a file that would be acted upon."""


def trusted_bytes(path: Path, *, owners: frozenset[int] = frozenset()) -> bytes:
    """Return a file's content; raise UntrustedError unless only its user could have written it.

    File and directory must belong to this user (a directory to root as well; or to one of `owners`), and be writable by
    nobody else. The file that is looked at is the one that is read. Raises StoreError when it cannot be read.
    """
    allowed = owners | {os.geteuid()}
    with os_errors_as(StoreError, f"cannot read {path}"):
        check_folder(path.parent, owners=owners)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_BYTES:
                raise UntrustedError(f"{path} is not a regular file of at most {_MOST_BYTES >> 20} MiB")
            _check(path, about, allowed)
            return file.read(_MOST_BYTES)


def check_folder(folder: Path, *, owners: frozenset[int] = frozenset()) -> None:
    """Raise UntrustedError when others could put files into a directory, or take some away."""
    about = folder.stat()
    if not (about.st_mode & stat.S_ISVTX and about.st_uid in {0, os.geteuid()}):
        _check(folder, about, owners | {os.geteuid(), 0})


def caller() -> frozenset[int]:
    """Return the users whose profiles this process may apply besides its own: root's, and who called sudo."""
    called_by = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return frozenset({0, int(called_by)} if called_by.isdecimal() else {0})


def _check(path: Path, about: os.stat_result, allowed: frozenset[int]) -> None:
    if about.st_uid not in allowed:
        raise UntrustedError(
            f"{path} belongs to {_name(about.st_uid)}, and its contents would be written to this machine",
            hint="read it; if you trust it, make your own copy",
        )
    if about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and not _alone(about)):
        raise UntrustedError(
            f"{path} can be written by others (mode {stat.S_IMODE(about.st_mode):o}), and what it says would be "
            "written to this machine",
            hint=f"read it, then: chmod go-w {path}",
        )


def _alone(about: os.stat_result) -> bool:
    """Return whether a group is its owner's private one, as distributions with umask 002 make it."""
    try:
        group = grp.getgrgid(about.st_gid)
    except KeyError:
        return False
    name = _name(about.st_uid)
    return group.gr_name == name and set(group.gr_mem) <= {name}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
