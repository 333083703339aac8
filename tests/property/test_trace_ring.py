"""The reader of kernel traces reads any bytes or refuses them with an error of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError
from nearmetal.facts.ftrace import PAGE_BYTES, read_trace
from nearmetal.store.bundle import read_bundle

_FILES = read_bundle(Path(__file__).parents[1] / "golden" / "waterfall-v1.zip")
_PAGE = _FILES["trace/cpu0"][:PAGE_BYTES]


@given(st.binary(max_size=200), st.integers(0, PAGE_BYTES - 200))
def test_a_damaged_page_is_read_or_refused(damage: bytes, at: int) -> None:
    page = _PAGE[:at] + damage + _PAGE[at + len(damage) :]
    with contextlib.suppress(ForeignFileError):
        for event in read_trace({**_FILES, "trace/cpu0": page}):
            assert event.name


@given(st.binary(max_size=3_000), st.integers(0, 5_000))
def test_a_damaged_layout_is_read_or_refused(damage: bytes, at: int) -> None:
    text = _FILES["trace/formats"]
    with contextlib.suppress(ForeignFileError):
        read_trace({"trace/formats": text[:at] + damage + text[at + len(damage) :], "trace/cpu0": _PAGE})
