"""The reader of sample files trusts nothing: any truncation and any changed byte is a clear error."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError, TrialError
from nearmetal.workloads.sample_file import (
    FLAG_MISSED_WINDOW,
    SampleCell,
    SampleFile,
    SampleHeader,
    read_sample_file,
    to_cell_samples,
)
from tests.engine_files import FLAG_WARMUP, LATER_FIELDS, encode_sample_file, iteration_values, start_spread_ns

INT64 = st.integers(-(2**62), 2**62)


def header_of(kind: str, ranks: int, sizes: list[int], warmup: list[int], iterations: list[int]) -> SampleHeader:
    cells = len(sizes)
    return SampleHeader(
        engine="nmbench",
        operation="any",
        kind=kind,
        ranks=ranks,
        window_messages=1,
        sync="none",
        sizes_bytes=tuple(sizes),
        iterations=tuple(iterations),
        warmup=tuple(warmup),
        sync_window_ns=(0,) * cells,
        datatypes=("byte",) * cells,
        clock="CLOCK_MONOTONIC_RAW",
        clock_cost_ns=(20,) * ranks,
        clock_offset_ns=((0,) * ranks,) * cells,
        clock_error_ns=((0,) * ranks,) * cells,
        check_rounds=0,
        check_failures=(0,) * cells,
        mpi_standard="4.0",
        mpi_library='an "MPI"\n\x7f\u00e9',
        processors=("somewhere",) * ranks,
    )


@st.composite
def sample_files(draw: st.DrawFn) -> SampleFile:
    kind = draw(st.sampled_from(["round_trip", "window", "collective", "exchange"]))
    ranks = draw(st.sampled_from([2, 4] if kind in {"round_trip", "window"} else [1, 2, 3]))
    count = draw(st.integers(1, 3))
    warmup = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    iterations = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 1 << 31), min_size=count, max_size=count))
    header = header_of(kind, ranks, sizes, warmup, iterations)
    seed = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    cells = []
    for index in range(count):
        shape = (ranks, warmup[index] + iterations[index])
        begin_ns = seed.integers(0, 2**60, shape)
        flags = np.where(seed.random(shape) < 0.2, np.uint8(FLAG_MISSED_WINDOW), np.uint8(0))
        flags[:, : warmup[index]] |= FLAG_WARMUP
        end_ns = begin_ns + seed.integers(0, 2**40, shape)
        cells.append(SampleCell(sizes[index], warmup[index], header.value_ranks, begin_ns, end_ns, flags))
    return SampleFile(header, tuple(cells))


WHOLE = encode_sample_file(
    header_of("round_trip", 2, [8], [1], [3]),
    [SampleCell(8, 1, (0,), np.zeros((2, 4), np.int64), np.ones((2, 4), np.int64), np.zeros((2, 4), np.uint8))],
)


@given(sample_files())
def test_sample_files_round_trip(file: SampleFile) -> None:
    read = read_sample_file(encode_sample_file(file.header, file.cells))
    assert read.header == file.header
    for mine, theirs in zip(file.cells, read.cells, strict=True):
        assert (mine.size_bytes, mine.warmup) == (theirs.size_bytes, theirs.warmup)
        assert (mine.begin_ns == theirs.begin_ns).all()
        assert (mine.end_ns == theirs.end_ns).all()
        assert (mine.flags == theirs.flags).all()


@given(sample_files())
def test_values_are_those_of_the_slowest_value_rank_in_good_iterations(file: SampleFile) -> None:
    for cell in file.cells:
        expected = [
            max(int(cell.end_ns[rank, i] - cell.begin_ns[rank, i]) for rank in cell.value_ranks)
            for i in range(cell.warmup, cell.flags.shape[1])
            if not (cell.flags[:, i] & FLAG_MISSED_WINDOW).any()
        ]
        assert iteration_values(cell).tolist() == expected


@given(sample_files())
def test_the_store_gets_durations_without_the_warmup_flag(file: SampleFile) -> None:
    if any(iteration_values(cell).size == 0 for cell in file.cells):
        with pytest.raises(TrialError, match="has no value"):
            to_cell_samples(file)
        return
    for cell, kept in zip(file.cells, to_cell_samples(file), strict=True):
        assert (kept.ns == cell.end_ns - cell.begin_ns).all()
        assert ((kept.flags == 0) == ~cell.missed).all()
        assert kept.warmup == cell.warmup
        assert kept.ns.shape == kept.flags.shape == kept.begin_ns.shape


@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_truncated_anywhere_is_refused(length: int) -> None:
    with pytest.raises(ForeignFileError):
        read_sample_file(WHOLE[:length])


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_file_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[place] ^= change
    with pytest.raises(ForeignFileError):
        read_sample_file(bytes(damaged))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ForeignFileError):
        read_sample_file(data)
    with pytest.raises(ForeignFileError):
        read_sample_file(WHOLE + data + b"\0")


def sealed(header_json: bytes, blocks: bytes = b"", version: int = 1) -> bytes:
    """Return a file with a correct checksum around any content."""
    payload = struct.pack("<8sII", b"NMSAMPLE", version, len(header_json)) + header_json + blocks
    return payload + struct.pack("<8sQII", b"NMTRAILR", len(payload), zlib.crc32(payload), 0)


@given(st.binary(max_size=100), st.binary(max_size=50))
def test_a_meaningless_header_with_a_correct_checksum_is_refused(header: bytes, blocks: bytes) -> None:
    with pytest.raises(ForeignFileError):
        read_sample_file(sealed(header, blocks))


def test_a_newer_version_is_reported_as_such() -> None:
    with pytest.raises(ForeignFileError, match="format version 2, this nearmetal reads version 1"):
        read_sample_file(sealed(b"{}", version=2))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(SampleHeader)])
@pytest.mark.parametrize("wrong", [None, 1.5, True, {}, [[]]])
def test_a_header_with_a_field_of_another_type_is_refused(field: str, wrong: object) -> None:
    start = struct.calcsize("<8sII")
    (length,) = struct.unpack_from("<I", WHOLE, start - 4)
    fields = json.loads(WHOLE[start : start + length])
    fields[field] = wrong
    with pytest.raises(ForeignFileError, match="header is not one of version 1"):
        read_sample_file(sealed(json.dumps(fields).encode(), WHOLE[start + length : -24]))
    del fields[field]
    if field in LATER_FIELDS:  # files without these fields are still read
        read_sample_file(sealed(json.dumps(fields).encode(), WHOLE[start + length : -24]))
        return
    with pytest.raises(ForeignFileError, match=field):
        read_sample_file(sealed(json.dumps(fields).encode(), WHOLE[start + length : -24]))


def test_pairs_of_an_odd_number_of_ranks_are_refused() -> None:
    start = struct.calcsize("<8sII")
    (length,) = struct.unpack_from("<I", WHOLE, start - 4)
    fields = json.loads(WHOLE[start : start + length]) | {"kind": "window", "ranks": 3}
    with pytest.raises(ForeignFileError, match="3 ranks in pairs"):
        read_sample_file(sealed(json.dumps(fields).encode(), WHOLE[start + length : -24]))


def test_a_header_that_declares_more_than_the_file_has_is_refused() -> None:
    whole = read_sample_file(WHOLE)
    promising = dataclasses.replace(whole.header, iterations=(10**15,))
    with pytest.raises(ForeignFileError, match="promises"):
        read_sample_file(encode_sample_file(promising, whole.cells))


def test_starts_are_compared_on_one_clock() -> None:
    header = dataclasses.replace(header_of("collective", 2, [8], [0], [2]), clock_offset_ns=((0, 1000),))
    begin_ns = np.array([[100, 200], [1107, 1195]])
    cell = SampleCell(8, 0, (0, 1), begin_ns, begin_ns + 1, np.zeros((2, 2), np.uint8))
    assert start_spread_ns(header, 0, cell).tolist() == [7, 5]
