"""Seals, and the cache of files whose checksums matched."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.store import sums

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sealed_document_has_exactly_these_bytes() -> None:
    rest = b' "a": [\n  1\n ],\n "b": null\n}\n'
    digest = hashlib.sha256(rest).hexdigest()
    assert sums.sealed({"b": None, "a": [1]}) == b'{\n "sha256": "' + digest.encode() + b'",\n' + rest


@pytest.mark.parametrize(("age_s", "kept"), [(1, False), (3, True)])
def test_only_a_file_older_than_a_clock_tick_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, kept: bool
) -> None:
    monkeypatch.setattr(sums, "_seen", {})
    file = tmp_path / "file"
    file.write_bytes(b"content")
    recorded = hashlib.sha256(b"content").hexdigest()
    then_ns = file.stat().st_ctime_ns + age_s * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: then_ns)
    assert sums.agrees(file, recorded)
    assert list(sums._seen) == ([(str(file), recorded)] if kept else [])


@pytest.mark.parametrize(("size", "held"), [(7, True), (8, True), (9, False)])
def test_a_file_is_verified_whether_it_is_held_in_memory_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, held: bool
) -> None:
    monkeypatch.setattr(sums, "MAX_HELD_BYTES", 8)
    file = tmp_path / "run" / "samples" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * size)
    assert sums.read_verified(file, hashlib.sha256(b"x" * size).hexdigest()) == (b"x" * size if held else None)
    with pytest.raises(ForeignFileError, match="has changed since it was recorded: its SHA-256 differs") as raised:
        sums.read_verified(file, hashlib.sha256(b"y" * size).hexdigest())
    assert raised.value.hint.endswith(f"measure the trial again: nearmetal run --resume {tmp_path}/run")


def test_a_file_of_more_than_a_quarter_of_a_gibibyte_is_not_held_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(256 * 1024 * 1024 + 1)
    assert sums.read_verified(tmp_path / "large", sums.file_sha256(tmp_path / "large")) is None
