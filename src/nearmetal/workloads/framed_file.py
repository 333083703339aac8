"""The frame around what the engines write: magic, version, JSON header, blocks, length and checksum.

Laid down by native/common/sample_file.c; docs/reference/sample-file.md has the table. The reader believes nothing
before the checksum has been found right. Standard library only.
"""

import struct
import zlib
from dataclasses import dataclass

from nearmetal.errors import ForeignFileError

_TRAILER_MAGIC = b"NMTRAILR"
_PREAMBLE = struct.Struct("<8sII")
_TRAILER = struct.Struct("<8sQII")
_ALIGN_BYTES = 8


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What a frame holds: 8 bytes of magic, a version, its name for people and the program that writes it."""

    magic: bytes
    version: int
    name: str
    program: str


SAMPLE_FILE = FileFormat(b"NMSAMPLE", 1, "sample file", "nmbench")
"""What `nmbench` and `nmapps` write; see `sample_file`."""


def open_frame(data: bytes, of: FileFormat) -> tuple[bytes, bytes]:
    """Return the header's JSON text and the blocks; raise ForeignFileError that names what is wrong with the frame."""
    if data[: len(of.magic)] != of.magic:
        message = f"this is not a {of.name}: it begins with {data[:8]!r}"
        raise ForeignFileError(message, hint=f"{of.program} --out writes {of.name}s")
    if len(data) < _PREAMBLE.size + _TRAILER.size:
        raise torn(of, f"it has {len(data)} bytes")
    _, version, header_bytes = _PREAMBLE.unpack_from(data)
    if version != of.version:
        raise ForeignFileError(
            f"the {of.name} has format version {version}, this nearmetal reads version {of.version}",
            hint="it was written by another version of the engine; read it with that version of nearmetal",
        )
    magic, length, crc, zero = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if magic != _TRAILER_MAGIC or length != len(data) - _TRAILER.size or zero != 0:
        raise torn(of, f"its {len(data)} bytes do not end with the trailer")
    found = zlib.crc32(memoryview(data)[:length])
    if found != crc:
        raise torn(of, f"its checksum is {found:#010x}, the trailer says {crc:#010x}")
    if _PREAMBLE.size + header_bytes > length:
        raise torn(of, f"its header of {header_bytes} bytes does not fit in {length}")
    header_end = _PREAMBLE.size + int(header_bytes)
    return data[_PREAMBLE.size : header_end], data[header_end : -_TRAILER.size]


def torn(of: FileFormat, seen: str) -> ForeignFileError:
    """Return the error for a file that was cut or changed after it was written."""
    return ForeignFileError(
        f"the {of.name} is torn or damaged: {seen}",
        hint="it was cut or changed after it was written (disk full, partial copy); measure or copy it again",
    )


def padded(count: int) -> int:
    """Return how many bytes a block of `count` bytes takes."""
    return -(-count // _ALIGN_BYTES) * _ALIGN_BYTES
