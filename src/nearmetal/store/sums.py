"""SHA-256 of what a run keeps: of files, in the record that commits them, and of the JSON documents themselves.

A sealed document carries the digest of its own bytes in its first field, so that it stays plain JSON:

    {
     "sha256": "<of every byte after this line>",
     ...

A file that was found to be as recorded is not read a second time by this process while its inode, size and times stay
as they were.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearmetal.errors import ForeignFileError, command_line

SEAL = "sha256"
"""The first field of a sealed document."""
HINT_RESTORE = "restore it from a backup"
HINT_READABLE = "make the run readable for you (chmod), or have its owner archive it: nearmetal archive DIR FILE"
_HEAD = re.compile(rb'\{\n "sha256": "([0-9a-f]{64})",\n')
_TICK_NS = 2_000_000_000
"""File times are this coarse on some file systems: a younger file may change again without its time telling."""
_MAX_SEEN = 100_000
MAX_HELD_BYTES = 1 << 28

_Stamp = tuple[int, int, int, int, int]
_seen: dict[tuple[str, str], _Stamp] = {}
"""Path and recorded digest -> what the file was when it agreed. Of the process, because `serve` opens a run anew for
each page."""


def resume_command(root: Path) -> str:
    """Return the command that measures what a run, or a search, lacks."""
    return command_line("tune" if _is_search(root) else "run", "--resume", root)


def _is_search(root: Path) -> bool:
    return (root / "search.json").exists()


def hint_damaged(root: Path) -> str:
    """Return what to do about a damaged file of a trial."""
    # What a search asks for follows from the figures before.
    anew = ", or start a new search" if _is_search(root) else ""
    return f"{HINT_RESTORE}{anew}, or delete the trial's record and measure the trial again: {resume_command(root)}"


def unread(path: Path, error: OSError, hint: str = HINT_RESTORE) -> ForeignFileError:
    """Return the error for a part of a run that cannot be read; what may not be read is not lost."""
    hint = HINT_READABLE if isinstance(error, PermissionError) else hint
    return ForeignFileError(f"{path} cannot be read: {error.strerror}", hint=hint)


def sealed(raw: Mapping[str, Any]) -> bytes:
    """Return an object of at least one field as a JSON document that carries its own digest."""
    rest = json.dumps(raw, indent=1, sort_keys=True)[2:].encode() + b"\n"
    return b'{\n "sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest


def seal_of(data: bytes) -> str:
    """Return the digest that a document carries, '' for one that is not sealed."""
    head = _HEAD.match(data)
    return head[1].decode() if head else ""


def check_seal(data: bytes, path: Path) -> bool:
    """Return whether a document is sealed; raise ForeignFileError when its digest is another one."""
    head = _HEAD.match(data)
    if head is None:
        return False
    found = hashlib.sha256(memoryview(data)[head.end() :]).hexdigest().encode()
    if found != head[1]:
        message = f"{path} has changed since it was written: its SHA-256 differs from the one that it carries"
        raise ForeignFileError(message, hint=HINT_RESTORE)
    return True


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; raise OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_verified(path: Path, recorded: str) -> bytes | None:
    """Return the bytes of a file that has the recorded digest, None where this process has seen that before.

    So a file is read once to be verified and used; one of more than `MAX_HELD_BYTES` twice (None, too).
    Raise ForeignFileError when the digest differs, and OSError.
    """
    with path.open("rb") as file:
        stamp = _stamp(os.fstat(file.fileno()))
        if _seen.get((os.fspath(path), recorded)) == stamp:
            return None
        now_ns = time.time_ns()
        large = stamp[2] > MAX_HELD_BYTES
        data = None if large else file.read()
        found = hashlib.file_digest(file, "sha256") if data is None else hashlib.sha256(data)
    if found.hexdigest() != recorded:
        raise changed(path)
    _note(path, recorded, stamp, now_ns)
    return data


def check_unchanged(path: Path, recorded: str) -> None:
    """Raise ForeignFileError for a file that has not the recorded digest; one seen before is not read. OSError, too."""
    with path.open("rb") as file:
        seen = _seen.get((os.fspath(path), recorded)) == _stamp(os.fstat(file.fileno()))
    if not seen and not agrees(path, recorded):
        raise changed(path)


def changed(path: Path) -> ForeignFileError:
    """Return the error for a file that has not the recorded digest."""
    return ForeignFileError(
        f"{path} has changed since it was recorded: its SHA-256 differs", hint=hint_damaged(path.parent.parent)
    )


def agrees(path: Path, recorded: str) -> bool:
    """Read a file, seen before or not, and return whether it has the recorded digest; raise OSError."""
    now_ns = time.time_ns()
    with path.open("rb") as file:
        stamp = _stamp(os.fstat(file.fileno()))
        if hashlib.file_digest(file, "sha256").hexdigest() != recorded:
            return False
    _note(path, recorded, stamp, now_ns)
    return True


def _note(path: Path, recorded: str, stamp: _Stamp, now_ns: int) -> None:
    """Keep that a file agreed, unless it is so young that it could change again under the same time."""
    if now_ns - max(stamp[3:]) > _TICK_NS:
        if len(_seen) >= _MAX_SEEN:
            _seen.clear()
        _seen[os.fspath(path), recorded] = stamp


def _stamp(found: os.stat_result) -> _Stamp:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
