"""Frames from the lab's guest: complete ones are read back, anything else is refused without side effects."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError
from nearmetal.hosts.lab import frames

FILES = st.dictionaries(st.text(max_size=20), st.binary(max_size=500), max_size=4)


def packed(files: dict[str, bytes]) -> bytes:
    return b"".join(frames.pack_files(files))


def unpacked(stream: bytes) -> list[dict[str, bytes]]:
    return list(frames.unpack_answers(stream))


@given(FILES)
def test_files_round_trip(files: dict[str, bytes]) -> None:
    assert unpacked(packed(files)) == [files]


@given(st.lists(FILES, min_size=1, max_size=3), st.data())
def test_replies_before_a_truncation_are_complete(answers: list[dict[str, bytes]], data: st.DataObject) -> None:
    streams = [packed(files) for files in answers]
    assert unpacked(b"".join(streams)) == answers
    torn = data.draw(st.integers(1, len(streams[-1])))
    before: list[dict[str, bytes]] = []
    with contextlib.suppress(ForeignFileError):
        before.extend(frames.unpack_answers(b"".join(streams)[:-torn]))
    assert before == answers[:-1]


@given(FILES, st.data())
def test_a_truncated_stream_is_refused(files: dict[str, bytes], data: st.DataObject) -> None:
    stream = packed(files)
    length = data.draw(st.integers(0, len(stream) - 1))
    with pytest.raises(ForeignFileError):
        unpacked(stream[:length])


@given(FILES, st.data())
def test_a_changed_byte_is_never_accepted(files: dict[str, bytes], data: st.DataObject) -> None:
    stream = bytearray(packed(files))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    try:
        assert unpacked(bytes(stream)) == [files]  # the padding byte of a header has no meaning
    except ForeignFileError:
        return


@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused(stream: bytes) -> None:
    with pytest.raises(ForeignFileError):
        unpacked(stream)


@given(FILES, st.binary(min_size=1, max_size=40))
def test_bytes_after_the_end_are_refused(files: dict[str, bytes], rest: bytes) -> None:
    with pytest.raises(ForeignFileError):
        unpacked(packed(files) + rest)


@given(st.binary(max_size=5000), st.integers(0, 15), st.integers(1, 16))
def test_an_order_round_trips_through_an_area_of_fixed_size(order: bytes, node: int, nodes: int) -> None:
    area = frames.pack_order(order, frames.NodeId(node, nodes))
    assert len(area) == frames.ORDER_AREA_BYTES
    assert frames.unpack_order(area) == (order, frames.NodeId(node, nodes))


@given(st.binary(max_size=200), st.data())
def test_a_changed_order_is_never_accepted(order: bytes, data: st.DataObject) -> None:
    area = bytearray(frames.pack_order(order))
    used = frames.ORDER_HEADER_BYTES + frames.order_length(bytes(area))
    area[data.draw(st.integers(0, used - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ForeignFileError):
        frames.unpack_order(bytes(area))


@given(st.binary(max_size=100))
def test_a_foreign_order_is_refused(area: bytes) -> None:
    with contextlib.suppress(ForeignFileError):
        frames.unpack_order(area)


def test_an_order_that_does_not_fit_is_refused() -> None:
    import random

    with pytest.raises(ValueError, match="does not fit"):
        frames.pack_order(random.Random(1).randbytes(frames.ORDER_AREA_BYTES))
