"""Raw samples on disk: one Parquet file a trial, integer nanoseconds, kept for ever.

Columns: `cell` (index into the trial's cells), `rank`, `iteration`, `warmup`, `flags` (0: good), `begin_ns` (since
the rank's first stamp of the trial) and `ns` (the duration). Rows go by cell, rank, iteration; each (cell, rank)
is a row group of its own, so that one rank's durations are read without touching the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.stats.summary import Summary, summarize
from nearmetal.store.sums import changed, hint_damaged, read_verified

_COLUMNS: dict[str, pa.DataType] = {
    "cell": pa.int16(),
    "rank": pa.int32(),
    "iteration": pa.int32(),
    "warmup": pa.bool_(),
    "flags": pa.uint8(),
    "begin_ns": pa.int64(),
    "ns": pa.int64(),
}
_VALUED = ("flags", "ns")
"""What values are made of, in the order of the file."""
_END_BYTES = 8
"""A Parquet file ends with the length of its directory (4 bytes, little-endian) and a mark of 4 bytes."""
_HASHED_BYTES = 131_072
_PACKED = ("iteration", "begin_ns", "ns")
_DAMAGES = (OSError, pa.ArrowException, IndexError, KeyError, ValueError)
SCHEMA = pa.schema(_COLUMNS, metadata={"nearmetal.samples": "1"})
_THREADS = False
"""Arrow's threads let go of Python's memory after a read has ended; where the process ends then, it is aborted."""


@dataclass(frozen=True)
class CellSamples:
    """Everything that one launch stamped for one operation and size.

    `begin_ns`, `ns` and `flags` have shape (ranks, iterations); the first `warmup` iterations are warm-up. An
    iteration's value is the longest duration among `value_ranks` (the initiators of a point-to-point operation,
    all ranks of a collective). Iterations with a flag (a missed time window) are kept but have no value.
    """

    operation: str
    message_bytes: int
    warmup: int
    value_ranks: tuple[int, ...]
    begin_ns: NDArray[np.int64]
    ns: NDArray[np.int64]
    flags: NDArray[np.uint8]

    @cached_property
    def summary(self) -> Summary | None:
        """What its values say by themselves, None where they say nothing: none is good, or one is no duration."""
        rows = list(self.value_ranks)
        good = self.flags[rows, self.warmup :].max(axis=0) == 0
        try:
            return summarize(self.ns[rows, self.warmup :].max(axis=0)[good])
        except BadInputError:  # readers of the figures get the error
            return None


@dataclass(frozen=True, slots=True)
class StoredCell:
    """What the trial's record says of one cell; `first_group` is the row group of its rank 0.

    `summary` is None in runs from before records held it, and where `CellSamples.summary` is.
    """

    operation: str
    message_bytes: int
    ranks: int
    iterations: int
    warmup: int
    value_ranks: tuple[int, ...]
    first_group: int
    summary: Summary | None = field(default=None, compare=False)


def describe(cells: Sequence[CellSamples]) -> tuple[StoredCell, ...]:
    """Return the record entries for cells in the order in which `write_samples` lays them down."""
    described: list[StoredCell] = []
    for of in cells:
        ranks, iterations = of.ns.shape
        first_group = described[-1].first_group + described[-1].ranks if described else 0
        what = (of.operation, of.message_bytes, ranks, iterations, of.warmup, of.value_ranks)
        described.append(StoredCell(*what, first_group, of.summary))
    return tuple(described)


def write_samples(path: Path, cells: Sequence[CellSamples]) -> None:
    """Write all cells of a trial to a new file; the caller makes it permanent.

    Stamps and durations are delta-packed: about as small as zstd, and read several times as fast.
    """
    with (
        path.open("wb") as file,  # not by its name: pyarrow takes only names that are UTF-8
        pq.ParquetWriter(
            file,
            SCHEMA,
            use_dictionary=False,
            compression={name: "none" if name in _PACKED else "zstd" for name in _COLUMNS},
            column_encoding=dict.fromkeys(_PACKED, "DELTA_BINARY_PACKED"),
        ) as writer,
    ):
        for index, cell in enumerate(cells):
            for rank in range(cell.ns.shape[0]):
                writer.write_table(_table(index, cell, rank), row_group_size=max(1, cell.ns.shape[1]))


def _table(index: int, cell: CellSamples, rank: int) -> pa.Table:
    iterations = cell.ns.shape[1]
    number = np.arange(iterations, dtype=np.int32)
    columns = (
        _array(np.full(iterations, index, np.int16)),
        _array(np.full(iterations, rank, np.int32)),
        _array(number),
        _array(number < cell.warmup),
        _array(cell.flags[rank]),
        _array(cell.begin_ns[rank]),
        _array(cell.ns[rank]),
    )
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _array(values: NDArray[Any]) -> pa.Array[Any]:
    """Return what `pa.array` does, which would load pandas where that is installed: a third of a second."""
    kept = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(kept.data)])


def part_sums(path: Path, cells: Sequence[StoredCell]) -> tuple[str, ...]:
    """Return the SHA-256 of a file's directory, and of what the values of each cell are made of.

    Values are about half of a file, and hashing is a good part of reading it: who wants values hashes only those.
    Raise ForeignFileError when it is not the file of such cells.
    """
    with _read(path), path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        directory = whole[-_directory_bytes(whole[-_END_BYTES:]) :]
        metadata = pq.read_metadata(file)
        return (hashlib.sha256(directory).hexdigest(), *(_sum_of_parts(whole, metadata, cell) for cell in cells))


def read_values(
    path: Path, cell: StoredCell, sha256: str = "", parts: tuple[str, str] | None = None
) -> NDArray[np.int64]:
    """Return the values of a cell's good iterations in order, warm-up left out.

    Raise ForeignFileError when the file has not the recorded digest `sha256` ('': none was recorded) or is not one of
    samples. `parts` are the recorded digests of its directory and of this cell, which are looked at instead.
    """
    with _read(path), _opened(path, sha256) if parts is None else _opened_in_parts(path, cell, *parts) as file:
        groups = [cell.first_group + rank for rank in cell.value_ranks]
        lengths = [file.metadata.row_group(group).num_rows for group in groups]
        _check_lengths(path, cell, lengths, len(cell.value_ranks))
        values, good = _rank_values(file, groups[0])
        for group in groups[1:]:
            others, others_good = _rank_values(file, group)
            values, good = np.maximum(values, others), good & others_good
    measured, good = values[cell.warmup :], good[cell.warmup :]
    return measured if good.all() else measured[good]


def read_rows(path: Path, cell: StoredCell, sha256: str = "") -> pa.Table:
    """Return everything that was stamped for a cell: all ranks, warm-up and flagged iterations too.

    Takes and raises what `read_values` does.
    """
    with _read(path), _opened(path, sha256) as file:
        groups = list(range(cell.first_group, min(cell.first_group + cell.ranks, file.num_row_groups)))
        _check_lengths(path, cell, [file.metadata.row_group(group).num_rows for group in groups], cell.ranks)
        rows = file.read_row_groups(groups, use_threads=_THREADS)
        return rows.select(list(_COLUMNS)).replace_schema_metadata()


def read_table(path: Path, sha256: str = "") -> pa.Table:
    """Return all rows of a file; takes and raises what `read_values` does."""
    with _read(path), _opened(path, sha256) as file:
        return file.read(use_threads=_THREADS)


@contextlib.contextmanager
def _read(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        text = f"{path} is not a complete sample file: {error}"
        raise ForeignFileError(text, hint=hint_damaged(path.parent.parent)) from error


@contextlib.contextmanager
def _opened(path: Path, sha256: str) -> Iterator[pq.ParquetFile]:
    """Open a file of samples that has this digest; '' is for one of which none was recorded."""
    data = read_verified(path, sha256) if sha256 else None
    with path.open("rb") if data is None else pa.BufferReader(data) as source:
        yield pq.ParquetFile(source)


def _opened_in_parts(path: Path, cell: StoredCell, directory_sum: str, cell_sum: str) -> pq.ParquetFile:
    """Open a file of samples of which only a cell's values can be read, from the very bytes that were verified."""
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES))
        end_bytes = _directory_bytes(file.read())
        if end_bytes > size:
            raise changed(path)
        file.seek(size - end_bytes)
        directory = file.read()
        if hashlib.sha256(directory).hexdigest() != directory_sum:
            raise changed(path)
        metadata = pq.read_metadata(pa.BufferReader(directory))
        pieces = _Pieces(size)
        if pieces.hold(file, _places(metadata, cell)) != cell_sum:
            raise changed(path)
    return pq.ParquetFile(pa.PythonFile(pieces, mode="r"), metadata=metadata)


class _Pieces(io.RawIOBase):
    """A file in memory of which only some pieces are there; to read anything else is an error.

    Each piece is hashed in parts while the processor's cache still holds what was read, and decoded where it lies:
    separate memory for the whole file would cost more than the hash.
    """

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0
        self._held: dict[int, memoryview] = {}

    def hold(self, file: io.RawIOBase, places: list[tuple[int, int]]) -> str:
        """Read pieces (first byte, length) of a file and return the SHA-256 of them all; a short file is an OSError."""
        found = hashlib.sha256()
        for start, length in places:
            piece = self._held[start] = np.empty(length, np.uint8).data
            file.seek(start)
            done = 0
            while done < length:
                part = piece[done : done + _HASHED_BYTES]
                got = file.readinto(part)
                if not got:
                    raise OSError(f"it ends at byte {start + done}, within a part that its footer lists")
                found.update(part[:got])
                done += got
        return found.hexdigest()

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> memoryview:  # Arrow takes any buffer
        for start, piece in self._held.items():
            begin = self._at - start
            if begin >= 0 and 0 <= size <= len(piece) - begin:
                self._at += size
                return piece[begin : begin + size]
        raise OSError(f"{size} bytes from byte {self._at} on were not verified")


def _directory_bytes(end: bytes) -> int:
    """Return the length of a Parquet file's directory with the end itself, from its last bytes."""
    return int.from_bytes(end[:4], "little") + _END_BYTES


def _places(metadata: pq.FileMetaData, cell: StoredCell) -> list[tuple[int, int]]:
    """Return where a file keeps what a cell's values are made of: first byte and length of each piece."""
    columns = [SCHEMA.get_field_index(name) for name in _VALUED]
    groups = [metadata.row_group(cell.first_group + rank) for rank in cell.value_ranks]
    pieces = [group.column(column) for group in groups for column in columns]
    return [(piece.data_page_offset, piece.total_compressed_size) for piece in pieces]


def _sum_of_parts(data: mmap.mmap, metadata: pq.FileMetaData, cell: StoredCell) -> str:
    found = hashlib.sha256()
    with memoryview(data) as view:
        for start, length in _places(metadata, cell):
            found.update(view[start : start + length])
    return found.hexdigest()


def _check_lengths(path: Path, cell: StoredCell, rows: Sequence[int], ranks: int) -> None:
    """Raise ForeignFileError before anything is read when the file does not hold what the record says."""
    if not rows or len(rows) != ranks or set(rows) != {cell.iterations}:
        raise ForeignFileError(
            f"{path} holds {len(rows)} ranks with {sorted(set(rows))} iterations of {cell.operation}, its record says "
            f"{ranks} with {cell.iterations}",
            hint=hint_damaged(path.parent.parent),
        )


def _rank_values(file: pq.ParquetFile, group: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return one rank's durations, and which of its iterations carry no flag.

    The row group's own statistics show when no iteration has a flag; the column is then not read at all.
    """
    ns = np.asarray(_column(file, group, "ns"), dtype=np.int64)
    statistics = file.metadata.row_group(group).column(SCHEMA.get_field_index("flags")).statistics
    if statistics is not None and statistics.has_min_max and statistics.max == 0:
        return ns, np.ones(ns.size, np.bool_)
    return ns, _column(file, group, "flags") == 0


def _column(file: pq.ParquetFile, group: int, name: str) -> NDArray[Any]:
    """Return one column of a row group; `to_numpy` would load pandas, as `pa.array` does."""
    found = file.read_row_group(group, columns=[name], use_threads=_THREADS).column(0)
    return np.from_dlpack(found.chunk(0) if found.num_chunks == 1 else found.combine_chunks())  # type: ignore[arg-type]
