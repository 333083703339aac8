"""Runs on the fake host that the tests of several verbs begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_runs import STUDY, Kept


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def root(tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a run of the small study as `r`, and stand beside it."""
    monkeypatch.chdir(tmp_path)
    kept.copy(tmp_path / "r", STUDY)
    return Path("r")
