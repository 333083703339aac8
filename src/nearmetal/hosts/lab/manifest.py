"""What a folder of the lab's cache holds: how it came to be, and a checksum of each of its files.

A snapshot's memory is mostly holes (2 GiB of which 0.6 are used), and every run checks all snapshots that it starts
from: hashing holes, too, took 18 s of processor time before the first trial of a study with three boots.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nearmetal.errors import ForeignFileError

MANIFEST_FORMAT = 2
"""1 had the plain SHA-256 of each file."""
_NAME = "manifest.json"
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
