"""How often samples are read: records hold their summaries; only distributions read samples again, once each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fake_runs import STUDY, make_run
from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import BadInputError
from nearmetal.stats.summary import summarize
from nearmetal.store import rundir
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.store.samples import StoredCell

LOOKING = STUDY.replace("max_blocks = 3", "max_blocks = 6")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str, int]]:
    """Count the reads of each cell: file, operation and size."""
    counted: Counter[tuple[str, str, int]] = Counter()
    real = rundir.read_values

    def counting(path: Path, cell: StoredCell, *rest: object) -> object:
        counted[path.name, cell.operation, cell.message_bytes] += 1
        return real(path, cell, *rest)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(rundir, "read_values", counting)
    return counted


def test_measuring_and_comparing_read_no_samples_and_a_report_reads_each_once(
    tmp_path: Path, reads: Counter[tuple[str, str, int]]
) -> None:
    root = make_run(tmp_path / "run", LOOKING)
    other = make_run(tmp_path / "other", LOOKING.replace("seed = 3", "seed = 4"))
    for argv in (
        ["compare", str(root)],
        ["compare", str(root), "--format", "json"],
        ["show", str(root), "--trial", "0"],
        ["gate", str(root), "--against", str(other), "--no-remeasure"],
        ["history", "add", str(tmp_path / "h.duckdb"), str(root)],
    ):
        assert nearmetal(argv) in {0, 1, 2}, argv
    assert reads == {}
    assert nearmetal(["report", str(root)]) == 0
    stored = [(record, cell) for record in RunDir.open(root).trials() for cell in record.cells if record.valid]
    assert len(stored) >= 2 * 9
    assert sorted(reads) == sorted((f"{one.name}.parquet", cell.operation, cell.message_bytes) for one, cell in stored)
    assert set(reads.values()) == {1}


def test_a_record_holds_the_summary_of_its_samples(tmp_path: Path) -> None:
    ns = np.random.default_rng(5).integers(1_000, 9_000, (3, 60))
    flags = np.zeros(ns.shape, np.uint8)
    flags[0, 20], flags[2, 30] = 1, 1  # a rank whose values count, and one whose values do not
    cells = [
        CellSamples("allreduce", 8, 5, (0, 1), ns, ns, flags),
        CellSamples("latency", 64, 60, (0,), ns, ns, flags),  # only warm-up
        CellSamples("latency", 8, 0, (0,), ns, -ns, flags * 0),
    ]
    info = RunInfo("small", digest(STUDY), "fake", "made up", "0", "2026-01-01T00:00:00+00:00")
    order = plan.block(parse_study(STUDY, "small"), 0)[0]
    with RunDir.create(tmp_path / "run", info, STUDY) as run:
        run.append(order, Outcome(TrialStatus.VALID), cells, attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    (record,) = RunDir.open(tmp_path / "run").trials()
    first, *silent = record.cells
    assert first.summary == summarize(run.values(record, first))
    assert first.summary.n == 54
    for cell in silent:
        assert cell.summary is None
        with pytest.raises(BadInputError):
            run.summary(record, cell)
