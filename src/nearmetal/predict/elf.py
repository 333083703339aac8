"""What an executable file says of its MPI, without running it.

Only the parts of ELF-64 that answer one question: can a library be put in front of this program's MPI
(ELF specification, program header and dynamic section; System V gABI chapters 5 and 6).
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_IDENT = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB = 1, 5
_MOST_NAME_BYTES = 4096
"""Many entries may point into one text that has no end."""


@dataclass(frozen=True, slots=True)
class Executable:
    """`needed` are the libraries it names itself; `has_mpi_inside` that MPI's own code is part of the file."""

    dynamic: bool
    needed: tuple[str, ...]
    has_mpi_inside: bool

    @property
    def mpi_library(self) -> str:
        """Return the MPI library it names, such as `libmpi.so.40`, or ''."""
        return next(
            (name for name in self.needed if name.startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so"))), ""
        )


def read_executable(path: Path) -> Executable | None:
    """Return what a file says; None when it is not a little-endian 64-bit ELF file or is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)
    except (OSError, ValueError, struct.error):
        return None


def _read(data: mmap.mmap) -> Executable | None:
    if data[: len(_IDENT)] != _IDENT:
        return None
    header = _HEADER.unpack_from(data)
    offset, entry_bytes, entries = header[5], header[9], header[10]
    segments = [_SEGMENT.unpack_from(data, offset + index * entry_bytes) for index in range(entries)]
    dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC), None)
    needed = _needed(data, segments, dynamic) if dynamic else ()
    # A static program has the profiling names in its symbol table; one that is linked to libmpi has not.
    inside = data.find(b"\0PMPI_Init\0") >= 0 and not any(name.startswith("libmpi") for name in needed)
    return Executable(dynamic is not None, needed, inside)


def _needed(data: mmap.mmap, segments: list[tuple[int, ...]], dynamic: tuple[int, ...]) -> tuple[str, ...]:
    entries = list(struct.iter_unpack("<QQ", data[dynamic[2] : dynamic[2] + dynamic[5] // 16 * 16]))
    address = next((value for tag, value in entries if tag == _STRTAB), 0)
    for kind, _, offset, start, _, size, *_ in segments:
        if kind == _LOAD and start <= address < start + size:
            base = offset + address - start
            return tuple(_text(data, base + value) for tag, value in entries if tag == _NEEDED)
    return ()


def _text(data: mmap.mmap, start: int) -> str:
    return data[start : start + _MOST_NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
