"""Runs on the fake host for the tests of several verbs, and the engine under the fake MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_runs import STUDY, RunCache
from tests.instrument import Instrument, build, parts


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RunCache:
    return RunCache(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def root(tmp_path: Path, kept: RunCache, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a run of the small study as `r` in the working directory."""
    monkeypatch.chdir(tmp_path)
    kept.copy(tmp_path / "r", STUDY)
    return Path("r")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Compile the engine and the fake MPI once, for the original engine and for those with a changed source."""
    return parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, compiled: list[Path]) -> Instrument:
    """Link the original engine."""
    return build(tmp_path_factory.mktemp("bench"), [], others=compiled)
