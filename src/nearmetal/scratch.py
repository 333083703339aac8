"""Folders for the time of a process, whose names identify their owner, so that what a killed one left can be removed.

    nm-4711-2x9k1-3fa9-a8b7c6d5      prefix, process, its start time, boot and process namespace, at random

A process is told from a later one of the same number by its start time (proc_pid_stat(5), field 22). Numbers mean
nothing across boots and process namespaces: what another of these made is left alone. A folder in which something is
mounted stays: what is removed in it would be removed elsewhere. Standard library only.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nearmetal import process

PREFIXES = ("nm", "nearmetal-lab", "nearmetal-root", "nearmetal-wire")
BUILDER = "mmdebstrap"
"""What the lab's image is built with: when killed, an older one left its folder with mounts in it."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, and nothing is made there
_SEGMENTS = ("mpich_shm_", "vader_segment.", "sm_segment.", "ucx_shm_posix_", "psm3_shm")
"""How the names of shared memory begin that MPI programs make, and leave when they are killed."""
_OWNED = re.compile(r"-(\d+)-([0-9a-z]+)-([0-9a-f]{4})-\w+")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_UNMOUNT_TIMEOUT_S = 20.0
_swept: set[Path] = set()
"""Folders in which this process has looked for what others left."""


Owner = Literal["here", "gone", "elsewhere", "unknown", "nobody"]
"""What became of the process that made a folder."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that some nearmetal made, or a file of shared memory; `pid` is 0 where nothing says whose it is."""

    path: Path
    owner: Owner
    pid: int

    def mounts(self) -> list[Path]:
        """Return what is mounted in it, what was mounted last first (proc_pid_mountinfo(5), field 5)."""
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        points = [Path(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4])) for line in lines]
        inside = self.path.resolve()
        return [point for point in reversed(points) if point.is_relative_to(inside)]

    def unmount(self) -> list[Path]:
        """Unmount what is mounted in it; return what is busy, and stays."""
        for point in self.mounts():
            process.run(["umount", "--", str(point)], timeout_s=_UNMOUNT_TIMEOUT_S)
        return self.mounts()

    def size_bytes(self) -> int:
        """Return what its files take; what vanishes meanwhile counts nothing, nor does what is mounted in it."""
        mounted = {str(point) for point in self.mounts()}
        total = 0
        if not self.path.is_dir():
            with contextlib.suppress(OSError):
                total = self.path.lstat().st_size
        for root, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if str(Path(root, name)) not in mounted]
            for name in names:
                with contextlib.suppress(OSError):
                    total += Path(root, name).lstat().st_size
        return total

    def remove(self) -> None:
        """Remove it unless something is mounted in it; what another process removes at the same time is no error."""
        if self.path.is_dir() and not self.mounts():
            shutil.rmtree(self.path, ignore_errors=True)
        elif not self.path.is_dir():
            self.path.unlink(missing_ok=True)


def make(prefix: str, within: Path | None = None) -> Path:
    """Make a private folder that carries its owner; the first in a place removes what dead processes left there.

    Raises OSError where there is no room.
    """
    within = within or Path(tempfile.gettempdir())
    if within not in _swept:
        _swept.add(within)
        sweep(within, (*PREFIXES, prefix))
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-{_start('self')}-{_place()}-", dir=within))


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
    dead = [one for one in find(within, prefixes) if one.owner == "gone"]
    for one in dead:
        one.remove()
    return [one.path for one in dead if not one.path.exists()]


def left_behind() -> list[Folder]:
    """Return all that nearmetal and what it starts may have left on this machine, by place and name."""
    temporary = Path(tempfile.gettempdir())
    found = find(temporary, (*PREFIXES, BUILDER)) + (find(SHARED_MEMORY) if temporary != SHARED_MEMORY else [])
    below = _below() if any(one.owner == "elsewhere" for one in found) else {}
    return [_seen(one, below) for one in found] + _segments()


def _seen(one: Folder, below: dict[str, int]) -> Folder:
    """Return a folder of another process namespace as in use where its process is seen from here."""
    here = below.get("-".join(one.path.name.split("-")[-4:-2]), 0) if one.owner == "elsewhere" else 0
    return replace(one, owner="here", pid=here) if here else one


def _segments() -> list[Folder]:
    """Return this user's shared memory of MPI programs, with a process that has it open."""
    with contextlib.suppress(OSError):
        segments = [path for path in sorted(SHARED_MEMORY.iterdir()) if path.name.startswith(_SEGMENTS)]
        users = _users({str(path): 0 for path in segments if path.lstat().st_uid == os.geteuid()})
        return [Folder(Path(path), "here" if pid else "nobody", pid) for path, pid in users.items()]
    return []


def _users(paths: dict[str, int]) -> dict[str, int]:
    """Return files with a process that has each mapped, 0 where none has."""
    for pid, mapped in process.of_each_process("maps") if paths else ():
        for line in mapped.decode(errors="replace").splitlines():
            path = line[line.find("/") :]
            if path in paths:
                paths[path] = pid
    return paths


def find(within: Path, prefixes: tuple[str, ...] = PREFIXES) -> list[Folder]:
    """Return this user's folders there, by name; a place that cannot be read has none."""
    found = []
    with contextlib.suppress(OSError), os.scandir(within) as entries:
        for entry in entries:
            prefix = next((one for one in prefixes if entry.name.startswith((f"{one}-", f"{one}."))), None)
            with contextlib.suppress(OSError):
                mine = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if prefix is not None and mine:
                    found.append(_judged(Path(entry.path), entry.name.removeprefix(prefix)))
    return sorted(found, key=lambda one: one.path)


def _judged(path: Path, rest: str) -> Folder:
    match = _OWNED.fullmatch(rest)
    if match is None:
        return Folder(path, "unknown", 0)
    pid, start, place = int(match[1]), match[2], match[3]
    if place != _place():
        return Folder(path, "elsewhere", pid)
    return Folder(path, "here" if _start(str(pid)) == start else "gone", pid)


def _below() -> dict[str, int]:
    """Return processes of namespaces below this one, such as containers: number there and start time -> number here.

    NSpid of proc_pid_status(5). Those of sibling namespaces cannot be seen.
    """
    found = {}
    for here, status in process.of_each_process("status"):
        numbers = next((line.split()[1:] for line in status.decode().splitlines() if line.startswith("NSpid:")), [])
        if len(numbers) > 1 and (start := _start(str(here))):
            found[f"{numbers[-1]}-{start}"] = here
    return found


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
