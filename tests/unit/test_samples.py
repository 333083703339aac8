"""Samples on disk, exactly: the layout, what is read back, and which bytes the checksums cover."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.store.samples import (
    SCHEMA,
    CellSamples,
    StoredCell,
    _check_lengths,
    _Pieces,
    describe,
    part_sums,
    read_rows,
    read_table,
    read_values,
    write_samples,
)

if TYPE_CHECKING:
    from pathlib import Path


def samples(
    operation: str, ns: list[list[int]], *, warmup: int = 0, value_ranks: tuple[int, ...] = (0,)
) -> CellSamples:
    durations = np.array(ns, np.int64)
    begin = np.cumsum(durations, axis=1) - durations
    return CellSamples(operation, 64, warmup, value_ranks, begin, durations, np.zeros_like(durations, dtype=np.uint8))


def flagged(cell: CellSamples, *places: tuple[int, int]) -> CellSamples:
    flags = cell.flags.copy()
    for place in places:
        flags[place] = 1
    return replace(cell, flags=flags)


LATENCY = samples("latency", [[90, 10, 30, 20], [91, 11, 31, 21]], warmup=1)
REDUCE = flagged(samples("allreduce", [[5, 6, 7], [9, 4, 8], [1, 2, 3]], value_ranks=(0, 1, 2)), (2, 1))
BW = samples("bw", [[1000, 1001]])
CELLS = [LATENCY, REDUCE, BW]
VALUES = [[10, 30, 20], [9, 8], [1000, 1001]]
"""Of the slowest rank that counts, without warm-up and flagged iterations."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_samples(tmp_path / "s.parquet", CELLS)
    return tmp_path / "s.parquet"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_each_rank_of_a_cell_is_a_row_group_of_its_own() -> None:
    described = describe(CELLS)
    assert [cell.first_group for cell in described] == [0, 2, 5]
    assert [(cell.ranks, cell.iterations, cell.warmup) for cell in described] == [(2, 4, 1), (3, 3, 0), (1, 2, 0)]
    assert [cell.value_ranks for cell in described] == [(0,), (0, 1, 2), (0,)]
    assert [cell.summary for cell in described] == [cell.summary for cell in CELLS]


def test_samples_may_lie_where_the_name_is_not_utf8(tmp_path: Path) -> None:
    """A run in such a directory ended in a traceback."""
    path = tmp_path / os.fsdecode(b"d\xfcr.parquet")
    write_samples(path, CELLS)
    assert part_sums(path, describe(CELLS))
    assert [read_values(path, cell).tolist() for cell in describe(CELLS)] == VALUES
    assert read_values(path, describe(CELLS)[0], sha256(path)).tolist() == VALUES[0]


def test_a_summary_is_of_good_iterations_of_the_slowest_rank() -> None:
    assert LATENCY.summary is not None
    assert (LATENCY.summary.n, LATENCY.summary.mean_ns) == (3, 20.0)
    assert REDUCE.summary is not None
    assert (REDUCE.summary.n, REDUCE.summary.mean_ns) == (2, 8.5)
    assert flagged(BW, (0, 0), (0, 1)).summary is None


def test_a_file_holds_every_time_stamp(path: Path) -> None:
    rows = read_table(path)
    assert rows.schema.names == SCHEMA.names
    assert rows["cell"].to_pylist() == [0] * 8 + [1] * 9 + [2] * 2
    assert rows["rank"].to_pylist() == [0] * 4 + [1] * 4 + [0] * 3 + [1] * 3 + [2] * 3 + [0] * 2
    assert rows["iteration"].to_pylist() == [0, 1, 2, 3] * 2 + [0, 1, 2] * 3 + [0, 1]
    assert rows["warmup"].to_pylist() == [True, False, False, False] * 2 + [False] * 11
    assert rows["flags"].to_pylist() == [0] * 15 + [1] + [0] * 3
    assert rows["begin_ns"].to_pylist()[:5] == [0, 90, 100, 130, 0]
    assert rows["ns"].to_pylist() == [ns for cell in CELLS for rank in cell.ns.tolist() for ns in rank]
    assert read_table(path, sha256(path)) == rows


def test_stamps_are_delta_packed_and_the_rest_is_compressed(path: Path) -> None:
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [4, 4, 3, 3, 3, 2]
    columns = [metadata.row_group(0).column(index) for index in range(metadata.num_columns)]
    packed = {"iteration", "begin_ns", "ns"}
    assert {one.path_in_schema for one in columns if one.compression == "UNCOMPRESSED"} == packed
    assert {one.path_in_schema for one in columns if "DELTA_BINARY_PACKED" in one.encodings} == packed


@pytest.mark.parametrize("number", range(3))
def test_values_are_the_same_with_and_without_checksums(path: Path, number: int) -> None:
    cell, (directory, *parts) = describe(CELLS)[number], part_sums(path, describe(CELLS))
    assert read_values(path, cell).tolist() == VALUES[number]
    assert read_values(path, cell, sha256(path)).tolist() == VALUES[number]
    assert read_values(path, cell, parts=(directory, parts[number])).tolist() == VALUES[number]
    for wrong in (("", parts[number]), (directory, parts[number - 1])):
        with pytest.raises(ForeignFileError):
            read_values(path, cell, parts=wrong)
    with pytest.raises(ForeignFileError):
        read_values(path, cell, directory)


@pytest.mark.parametrize("number", range(3))
def test_rows_of_a_cell_include_all_its_ranks(path: Path, number: int) -> None:
    rows = read_rows(path, describe(CELLS)[number], sha256(path))
    assert rows.schema.names == SCHEMA.names
    assert rows.schema.metadata is None
    assert set(rows["cell"].to_pylist()) == {number}
    assert rows["ns"].to_pylist() == CELLS[number].ns.ravel().tolist()
    with pytest.raises(ForeignFileError):
        read_rows(path, describe(CELLS)[number], "of something else")


def test_checksums_cover_the_footer_and_the_columns_of_values(path: Path) -> None:
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    directory = data[-8 - int.from_bytes(data[-8:-4], "little") :]

    def held(cell: StoredCell) -> bytes:
        groups = [metadata.row_group(cell.first_group + rank) for rank in cell.value_ranks]
        columns = [group.column(SCHEMA.get_field_index(name)) for group in groups for name in ("flags", "ns")]
        return b"".join(data[one.data_page_offset :][: one.total_compressed_size] for one in columns)

    expected = [directory, *map(held, describe(CELLS))]
    assert part_sums(path, describe(CELLS)) == tuple(hashlib.sha256(one).hexdigest() for one in expected)


def test_a_truncated_file_gives_nothing(path: Path) -> None:
    whole, cells = path.read_bytes(), describe(CELLS)
    directory, part, *_ = part_sums(path, cells)
    for length in (*range(0, len(whole), 7), *range(12), len(whole) - 1):
        path.write_bytes(whole[:length])
        for read in (
            lambda: part_sums(path, cells),
            lambda: read_values(path, cells[0]),
            lambda: read_values(path, cells[0], parts=(directory, part)),
            lambda: read_rows(path, cells[0]),
            lambda: read_table(path),
        ):
            with pytest.raises(ForeignFileError):
                read()


@pytest.mark.parametrize("change", [{"iterations": 3}, {"ranks": 3, "first_group": 4}, {"first_group": 6}])
def test_a_record_of_another_file_is_refused_before_anything_is_read(path: Path, change: dict[str, int]) -> None:
    other = replace(describe(CELLS)[0], **change)  # type: ignore[arg-type]
    with pytest.raises(ForeignFileError):
        read_rows(path, other)
    if "ranks" not in change:
        with pytest.raises(ForeignFileError):
            read_values(path, other)


@pytest.mark.parametrize(("rows", "ranks"), [([], 0), ([4], 2), ([4, 4], 1), ([4, 3], 2), ([3, 3], 2)])
def test_lengths_missing_from_the_record_are_refused(path: Path, rows: list[int], ranks: int) -> None:
    cell = describe(CELLS)[0]
    _check_lengths(path, cell, [4, 4], 2)
    with pytest.raises(ForeignFileError, match=f"holds {len(rows)} ranks with .* its record says {ranks} with 4"):
        _check_lengths(path, cell, rows, ranks)


@pytest.mark.parametrize("statistics", [True, False])
def test_flags_count_with_and_without_parquet_statistics(path: Path, statistics: bool) -> None:
    table, cells = read_table(path), describe(CELLS)
    with pq.ParquetWriter(path, SCHEMA, write_statistics=statistics) as writer:
        start = 0
        for length in (4, 4, 3, 3, 3, 2):
            writer.write_table(table.slice(start, length))
            start += length
    assert [read_values(path, cell).tolist() for cell in cells] == VALUES


class TestPieces:
    """A file of 20 bytes, of which bytes 4 to 8 and 12 to 13 are available."""

    CONTENT = bytes(range(20))
    PLACES = [(4, 5), (12, 2)]

    @pytest.fixture
    def pieces(self, tmp_path: Path) -> _Pieces:
        (tmp_path / "f").write_bytes(self.CONTENT)
        made = _Pieces(20)
        with (tmp_path / "f").open("rb", buffering=0) as file:
            held = self.CONTENT[4:9] + self.CONTENT[12:14]
            assert made.hold(file, self.PLACES) == hashlib.sha256(held).hexdigest()
        return made

    def test_it_seeks_like_a_file(self, pieces: _Pieces) -> None:
        assert pieces.readable()
        assert pieces.tell() == 0
        assert [pieces.seek(7), pieces.tell()] == [7, 7]
        assert pieces.seek(-2, os.SEEK_CUR) == 5
        assert pieces.seek(-3, os.SEEK_END) == 17

    @pytest.mark.parametrize(("at", "size"), [(4, 5), (4, 0), (5, 3), (8, 1), (9, 0), (12, 2)])
    def test_available_bytes_are_read(self, pieces: _Pieces, at: int, size: int) -> None:
        pieces.seek(at)
        assert bytes(pieces.read(size)) == self.CONTENT[at : at + size]
        assert pieces.tell() == at + size

    @pytest.mark.parametrize(("at", "size"), [(3, 2), (4, 6), (8, 2), (4, -1), (9, 1), (11, 1), (0, 0)])
    def test_missing_bytes_are_not_read(self, pieces: _Pieces, at: int, size: int) -> None:
        pieces.seek(at)
        with pytest.raises(OSError, match=f"{size} bytes from byte {at} on were not verified"):
            pieces.read(size)

    def test_a_file_that_ends_within_a_piece_is_reported_with_its_size(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"12345")
        with (tmp_path / "f").open("rb", buffering=0) as file, pytest.raises(OSError, match="it ends at byte 5,"):
            _Pieces(20).hold(file, [(2, 9)])


@pytest.mark.parametrize("name", ["read", "read_row_groups", "read_row_group"])
def test_arrow_reads_without_threads(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They still held Python's memory when a process ended: one `show --samples` in 20 was aborted."""
    threads, whole = [], getattr(pq.ParquetFile, name)

    def seen(*args: object, **options: object) -> object:
        threads.append(options.get("use_threads", True))
        return whole(*args, **options)

    monkeypatch.setattr(pq.ParquetFile, name, seen)
    cell = describe(CELLS)[0]
    assert read_table(path).num_rows == sum(one.ns.size for one in CELLS)
    assert read_rows(path, cell).num_rows == LATENCY.ns.size
    assert read_values(path, cell).tolist() == VALUES[0]
    assert threads
    assert not any(threads)
