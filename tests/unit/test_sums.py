"""Seals, and the cache of files whose checksums matched."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import pytest

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
