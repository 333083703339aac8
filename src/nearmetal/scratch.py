"""Folders for the time of a process, whose names say whose they are, so that what a killed one left can be removed.

    nm-4711-2x9k1-3fa9-a8b7c6d5      prefix, process, its start time, boot and process namespace, at random

A process is told from a later one of the same number by its start time (proc_pid_stat(5), field 22). Numbers mean
nothing across boots and process namespaces: what another of these made is left alone. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIXES = ("nm", "nearmetal-lab", "nearmetal-root", "nearmetal-wire")
_OWNED = re.compile(r"-(\d+)-([0-9a-z]+)-([0-9a-f]{4})-\w+")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_swept: set[Path] = set()
"""Folders in which this process has looked for what others left."""


class Owner(StrEnum):
    """What became of the process that made a folder."""

    HERE = "here"
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that some nearmetal made; `pid` is 0 where its name does not say."""

    path: Path
    owner: Owner
    pid: int

    def size_bytes(self) -> int:
        """Return what its files take; what vanishes meanwhile counts nothing."""
        total = 0
        for root, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):
                    total += Path(root, name).lstat().st_size
        return total

    def remove(self) -> None:
        """Remove it; what another process removes at the same time is no error."""
        shutil.rmtree(self.path, ignore_errors=True)


def make(prefix: str, within: Path | None = None) -> Path:
    """Make a private folder that carries its owner; the first in a place removes what dead processes left there.

    Raises OSError where there is no room.
    """
    within = within or Path(tempfile.gettempdir())
    if within not in _swept:
        _swept.add(within)
        sweep(within, (*PREFIXES, prefix))
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-{_mine()}-", dir=within))


@contextlib.contextmanager
def folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Give such a folder and remove it afterwards."""
    made = make(prefix, within)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(within: Path, prefixes: tuple[str, ...] = PREFIXES) -> list[Path]:
    """Remove this user's folders whose owners are gone; return which."""
    dead = [one for one in find(within, prefixes) if one.owner is Owner.GONE]
    for one in dead:
        one.remove()
    return [one.path for one in dead]


def find(within: Path, prefixes: tuple[str, ...] = PREFIXES) -> list[Folder]:
    """Return this user's folders there, by name; a place that cannot be read has none."""
    found = []
    with contextlib.suppress(OSError), os.scandir(within) as entries:
        for entry in entries:
            prefix = next((one for one in prefixes if entry.name.startswith(f"{one}-")), None)
            with contextlib.suppress(OSError):
                mine = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if prefix is not None and mine:
                    found.append(_judged(Path(entry.path), entry.name.removeprefix(prefix)))
    return sorted(found, key=lambda one: one.path)


def _judged(path: Path, rest: str) -> Folder:
    match = _OWNED.fullmatch(rest)
    if match is None:
        return Folder(path, Owner.UNKNOWN, 0)
    pid, start, place = int(match[1]), match[2], match[3]
    if place != _place():
        return Folder(path, Owner.ELSEWHERE, pid)
    return Folder(path, Owner.HERE if _start(str(pid)) == start else Owner.GONE, pid)


def _mine() -> str:
    return f"{os.getpid()}-{_start('self')}-{_place()}"


def _place() -> str:
    """Return what the boot and the process namespace are known by."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(f"{boot}{Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:4]


def _start(pid: str) -> str:
    """Return when a process started, in ticks since the boot, base 36; '' when there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] in "ZX":
        return ""
    ticks, digits = int(fields[19]), ""
    while ticks:
        ticks, digit = divmod(ticks, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
