"""What a folder of the lab's cache holds: how it came to be, and a checksum of each of its files.

A snapshot's memory is mostly holes (2 GiB of which 0.6 are used), and every run checks all snapshots that it starts
from: hashing holes, too, took 18 s of processor time before the first trial of a study with three boots, and what is no
hole still took 6. So a run reads files once in a boot of this machine, and again when the file system says that they
may have changed; `nearmetal lab status --verify` reads them always.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nearmetal.errors import ForeignFileError

MANIFEST_FORMAT = 2
"""1 had the plain SHA-256 of each file."""
_NAME = "manifest.json"
_SEEN = "seen.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SETTLED_NS = 1_000_000_000
_BLOCK_BYTES = 256 * 1024
_ZEROS = bytes(_BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a cached folder holds: how it came to be, and the digest of each of its files."""

    kind: str
    key: str
    files: dict[str, str]
    facts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def load(folder: Path) -> Manifest:
        """Read what `seal` wrote; raise ForeignFileError for anything else."""
        try:
            raw = json.loads((folder / _NAME).read_text())
            if raw.pop("format") != MANIFEST_FORMAT:
                raise ForeignFileError(f"{folder / _NAME} is of another format than {MANIFEST_FORMAT}")
            return Manifest(**raw)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ForeignFileError(f"{folder / _NAME} is not a manifest of the lab: {error}") from error

    def damaged(self, folder: Path) -> tuple[str, ...]:
        """Return the names of the files that are missing or not what they were."""
        return tuple(name for name, digest in sorted(self.files.items()) if _digest(folder / name) != digest)

    def damaged_since(self, folder: Path) -> tuple[str, ...]:
        """Return what `damaged` does, from memory where nothing has touched the files since it found them whole."""
        present = self._present(folder)
        with contextlib.suppress(OSError, ValueError):
            if json.loads((folder / _SEEN).read_text()) == present:
                return ()
        if damaged := self.damaged(folder):
            return damaged
        with contextlib.suppress(OSError):  # a cache that may not be written is read each time
            newest_ns = max(((folder / name).stat().st_ctime_ns for name in self.files), default=0)
            # A change right after the last one may get the same time: Linux counts ctime in ticks of up to 10 ms.
            if time.time_ns() - newest_ns > _SETTLED_NS:
                (folder / _SEEN).write_text(json.dumps(present))
        return ()

    def _present(self, folder: Path) -> list[object]:
        """Return what differs once a file has been written, replaced or lost: nobody can set a file's ctime back.

        A boot begins anew, because nobody saw what happened to the disk between two of them.
        """
        present: list[object] = [_BOOT_ID.read_text().strip()]
        for name, digest in sorted(self.files.items()):
            place: list[int] = []
            with contextlib.suppress(OSError):
                status = (folder / name).stat()
                place = [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]
            present.append([name, digest, place])
        return present


def seal(folder: Path, kind: str, key: str, facts: dict[str, str], versions: dict[str, str]) -> None:
    """Write the manifest of a folder whose files are complete."""
    files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    text = json.dumps({"format": MANIFEST_FORMAT, **asdict(Manifest(kind, key, files, facts, versions))}, indent=1)
    (folder / _NAME).write_text(text + "\n")


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file's length and of its blocks that are not all zeros, each after its place.

    So holes need not be read, and a copy without holes has the same digest. Empty for a file that cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            digest = hashlib.sha256(os.fstat(stream.fileno()).st_size.to_bytes(8, "little"))
            for at, block in _blocks(stream.fileno()):
                digest.update(at.to_bytes(8, "little"))
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def _blocks(descriptor: int) -> Iterator[tuple[int, memoryview]]:
    """Yield place and content of every block that is not all zeros; the content is good until the next."""
    size = os.fstat(descriptor).st_size
    room = memoryview(bytearray(_BLOCK_BYTES))
    at = _data_from(descriptor, 0, size)
    while at < size:
        at -= at % _BLOCK_BYTES
        count = _read_whole(descriptor, at, room[: min(_BLOCK_BYTES, size - at)])
        if room[:count] != _ZEROS[:count]:
            yield at, room[:count]
        at = _data_from(descriptor, at + _BLOCK_BYTES, size)


def _data_from(descriptor: int, at: int, size: int) -> int:
    """Return where data begins at or after `at`: `size` when there is none (lseek(2), SEEK_DATA)."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        raise


def _read_whole(descriptor: int, at: int, room: memoryview) -> int:
    """Fill `room` from a place in the file; return how much there was."""
    count = 0
    while count < len(room) and (got := os.preadv(descriptor, [room[count:]], at + count)):
        count += got
    return count
