"""A host can prepare before the first trial for the blocks that are certain to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fake_runs import STUDY, Silent
from nearmetal.hosts.fake import FakeHost
from nearmetal.run.schedule import run_study
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.spec import digest, parse_study

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from nearmetal.study.order import Order

LONGER = STUDY.replace("max_blocks = 3", "max_blocks = 6")


class PreparingHost(FakeHost):
    """Records the blocks of each preparation."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: list[set[int]] = []

    def prepare(self, orders: Iterable[Order]) -> None:
        self.asked.append({order.block for order in orders})


def test_a_host_prepares_the_certain_blocks_once_per_occasion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.results.stopping.decided", lambda *_: set())
    study = parse_study(LONGER, "s")
    info = RunInfo(study.name, digest(LONGER), "fake", "made up", "0", "2026-01-01T00:00:00+00:00")
    host = PreparingHost()
    with RunDir.create(tmp_path / "run", info, LONGER) as run:
        assert run_study(study, host, run, Silent(), occasions=2).blocks == 6
        assert run_study(study, host, run, Silent(), occasions=2).blocks == 6
        assert run_study(study, host, run, Silent(), occasions=3, blocks=2).blocks == 2
    assert host.asked == [{0, 1, 2}, {0, 1, 2}, {6, 7, 8}, {0, 1}, {6, 7}, {12, 13}]
