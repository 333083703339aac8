from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.results.paths import build_view
from tests.unit.report.synthetic_run import make_run

if TYPE_CHECKING:
    from nearmetal.results.records import View
    from nearmetal.store.rundir import RunDir


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return make_run(tmp_path_factory.mktemp("run") / "paths")


@pytest.fixture(scope="session")
def view(run: RunDir) -> View:
    return build_view(run)
