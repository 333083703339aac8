"""Runs on the fake host for several verbs, the engine under the fake MPI, and namespaces of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake_runs import STUDY, RunCache
from nearmetal.errors import UnavailableError
from nearmetal.hosts.namespaces import NamespaceShell
from tests.instrument import Instrument, build, parts

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@pytest.fixture
def shell() -> Iterator[NamespaceShell]:
    try:
        made = NamespaceShell()
    except UnavailableError as error:
        pytest.skip(error.render())
    with made:
        yield made
