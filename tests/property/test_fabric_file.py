"""The reader of fabric files trusts nothing: any truncation and any changed byte is a clear error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError
from nearmetal.workloads import rounds
from nearmetal.workloads.fabric_file import FORMAT, FabricFile, FabricHeader, read_fabric_file
from nearmetal.workloads.framed_file import open_frame
from tests.engine_files import close_frame, encode_fabric_file

GOLDEN = Path(__file__).parents[1] / "golden" / "fabric-v1.nmf"


@st.composite
def fabric_files(draw: st.DrawFn) -> FabricFile:
    nodes = draw(st.integers(2, 6))
    plan = rounds.whole(nodes, bisection=draw(st.booleans()))
    phases: dict[str, int] = {}
    for phase, _ in plan:
        phases[phase] = phases.get(phase, 0) + 1
    header = FabricHeader(
        engine="nmfabric",
        ranks=nodes,
        phases=tuple(phases.items()),
        latency_bytes=8,
        latency_iterations=draw(st.integers(1, 3)),
        latency_warmup=draw(st.integers(0, 2)),
        bandwidth_bytes=1024,
        bandwidth_window=4,
        bandwidth_iterations=(bandwidth := draw(st.integers(0, 3))),
        bandwidth_warmup=draw(st.integers(0, 2)) if bandwidth else 0,
        clock="CLOCK_MONOTONIC_RAW",
        clock_cost_ns=(20,) * nodes,
        mpi_standard="4.0",
        mpi_library='an "MPI"\n\x7f\u00e9',
        processors=tuple(f"node{i}" for i in range(nodes)),
    )
    rows = sorted((number, a, b) for number, (_, pairs) in enumerate(plan) for a, b in pairs)
    columns = np.array(rows, np.int64).T
    random = np.random.default_rng(draw(st.integers(0, 99)))

    def samples(entries: int) -> np.ndarray:
        return random.integers(1, 2**60, (len(rows), entries))

    latency = header.latency_warmup + header.latency_iterations
    windows = header.bandwidth_warmup + header.bandwidth_iterations
    return FabricFile(header, *columns, samples(latency), samples(windows), samples(windows))


@given(fabric_files())
def test_fabric_files_round_trip(file: FabricFile) -> None:
    again = read_fabric_file(encode_fabric_file(file))
    assert again.header == file.header
    for name in ("round", "first", "second", "latency_ns", "there_ns", "back_ns"):
        assert np.array_equal(getattr(again, name), getattr(file, name))


@given(fabric_files(), st.data())
def test_any_truncation_is_refused(file: FabricFile, data: st.DataObject) -> None:
    whole = encode_fabric_file(file)
    with pytest.raises(ForeignFileError):
        read_fabric_file(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(fabric_files(), st.data())
def test_any_changed_byte_is_refused(file: FabricFile, data: st.DataObject) -> None:
    whole = bytearray(encode_fabric_file(file))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ForeignFileError):
        read_fabric_file(bytes(whole))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_a_wrong_header_with_a_correct_checksum_is_refused(data: st.DataObject) -> None:
    text, blocks = open_frame(GOLDEN.read_bytes(), FORMAT)
    header = json.loads(text)
    key = data.draw(st.sampled_from(sorted(header)))
    header[key] = data.draw(_JSON)
    with contextlib.suppress(ForeignFileError):
        read_fabric_file(close_frame(FORMAT, header, [blocks]))


@given(st.binary(max_size=600))
def test_any_blocks_with_a_correct_checksum_are_read_or_refused(blocks: bytes) -> None:
    text, _ = open_frame(GOLDEN.read_bytes(), FORMAT)
    with contextlib.suppress(ForeignFileError):
        read_fabric_file(close_frame(FORMAT, json.loads(text), [blocks]))


def test_inconsistent_ranks_are_refused() -> None:
    text, blocks = open_frame(GOLDEN.read_bytes(), FORMAT)
    partners = np.frombuffer(blocks, "<i4", 3).copy()
    assert partners.tolist() == [0, -3, 2]
    partners[1] = -2
    with pytest.raises(ForeignFileError, match="do not agree"):
        read_fabric_file(close_frame(FORMAT, json.loads(text), [partners.tobytes(), blocks[12:]]))


def test_a_huge_declared_size_allocates_no_memory() -> None:
    text, blocks = open_frame(GOLDEN.read_bytes(), FORMAT)
    for change in ({"phases": [["all", 10**15]]}, {"latency_warmup": 10**30}, {"ranks": 10**9}):
        with pytest.raises(ForeignFileError):
            read_fabric_file(close_frame(FORMAT, json.loads(text) | change, [blocks]))


def test_version_1_is_still_read_and_written() -> None:
    data = GOLDEN.read_bytes()
    file = read_fabric_file(data)
    assert (file.header.ranks, file.header.phases) == (3, (("all", 3),))
    assert list(zip(file.round.tolist(), file.first.tolist(), file.second.tolist(), strict=True)) == [
        (0, 1, 2), (1, 2, 0), (2, 0, 1)
    ]  # fmt: skip
    assert file.header.mpi_library.startswith("Open MPI v5.0.11")
    assert np.median(file.latency_ns, axis=1).tolist() == LATENCY_NS
    assert encode_fabric_file(file) == data


LATENCY_NS = [5713.5, 5273.0, 7811.5]
