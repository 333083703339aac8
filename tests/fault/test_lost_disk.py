"""Power failures: nothing that was reported done is lost, and a disk that ignores any one sync is detected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from knob_machine import KnobMachine
from nearmetal.errors import NearmetalError
from nearmetal.knobs.journal import read_state
from nearmetal.store.rundir import RunDir
from nearmetal.workloads.sample_file import read_sample_file
from tests.e2e.test_instrument import BENCH, build
from tests.lost import LostDisk, library

if TYPE_CHECKING:
    from pathlib import Path

STORE = """
import sys
from pathlib import Path
from tests.lost import INFO, append
from nearmetal.store.rundir import RunDir
with RunDir.create(Path(sys.argv[1]), INFO, "study") as run:
    for trial in range(4):
        append(run, trial)
        print("done", trial, flush=True)
    import os
    os.kill(os.getpid(), 9)
"""
JOURNAL = """
import sys
from pathlib import Path
from nearmetal.knobs.journal import Journal
import knob_victim
create, append = Journal.create, Journal.append
def telling_create(path, records):
    made = create(path, records)
    print("done\\n" * len(records), flush=True)
    return made
def telling_append(journal, record):
    append(journal, record)
    print("done", flush=True)
Journal.create, Journal.append = staticmethod(telling_create), telling_append
knob_victim.main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("engine"), BENCH).program


@pytest.fixture
def disk(tmp_path: Path, shim: Path) -> LostDisk:
    kept = tmp_path / "kept"
    kept.mkdir()
    return LostDisk(shim, kept)


def stored(disk: LostDisk, tmp_path: Path, drop: str = "") -> tuple[int, RunDir]:
    """Store four trials and lose the power; return how many were reported done, and the run that is left."""
    root = tmp_path / "runs"
    root.mkdir()
    ended = disk.python(STORE, str(root / "run"), drop=drop)
    assert ended.exit_status == -9, ended.complaint()
    left = disk.after_power_loss(root, tmp_path / "left")
    return ended.text.count("done"), RunDir.open(left / "run")


def whole(run: RunDir) -> int:
    """Return how many trials exist with all their samples as stored."""
    records = run.trials()
    for record in records:
        (cell,) = record.cells
        ns = np.arange(40).reshape(2, 20) + record.order.trial * 1000
        assert run.values(record, cell).tolist() == ns[0, 5:].tolist()
    return len(records)


def test_no_trial_that_was_reported_done_is_lost(disk: LostDisk, tmp_path: Path) -> None:
    done, run = stored(disk, tmp_path)
    assert done == whole(run) == 4
    assert run.study_text() == "study"


@pytest.mark.parametrize(
    "drop",
    [
        *("file:samples/", "file:trials/", "file:run.json", "file:study.toml"),
        *("folder:samples", "folder:trials", "folder:run", "folder:runs"),
    ],
)
def test_each_sync_of_the_store_is_needed(disk: LostDisk, tmp_path: Path, drop: str) -> None:
    try:
        done, run = stored(disk, tmp_path, drop)
        kept = whole(run), run.study_text()
    except (NearmetalError, AssertionError):
        return
    assert kept != (done, "study")


def journalled(disk: LostDisk, tmp_path: Path, event: int, drop: str = "") -> tuple[int, list[Path]]:
    """Kill a session of knobs at an event and lose the power; return the records reported, and the journals left."""
    machine = KnobMachine.make(tmp_path / "machine", {"eth1": {}}, {"/proc/sys/net/core/busy_read": "0\n"})
    folder = tmp_path / "journals"
    folder.mkdir()
    ended = disk.python(JOURNAL, str(machine.root), str(folder), str(event), drop=drop)
    assert ended.exit_status in {-9, 7}, ended.complaint()
    left = disk.after_power_loss(folder, tmp_path / "left")
    return ended.text.count("done"), sorted(left.glob("*.journal"))


@pytest.mark.parametrize("event", [1, 7, 12, 999])
def test_no_record_of_the_journal_that_was_reported_is_lost(disk: LostDisk, tmp_path: Path, event: int) -> None:
    done, journals = journalled(disk, tmp_path, event)
    (journal,) = journals
    read_state(journal)
    assert len(journal.read_bytes().splitlines()) >= done > 0


@pytest.mark.parametrize(("drop", "event"), [("file:.new", 1), ("file:.journal", 999), ("folder:journals", 999)])
def test_each_sync_of_the_journal_is_needed(disk: LostDisk, tmp_path: Path, drop: str, event: int) -> None:
    done, journals = journalled(disk, tmp_path, event, drop)
    assert done > 0
    assert not journals or len(journals[0].read_bytes().splitlines()) < done


@pytest.mark.parametrize("drop", ["", "file:.tmp", "folder:"])
def test_the_engines_file_is_on_disk_when_it_has_ended(tmp_path: Path, disk: LostDisk, engine: Path, drop: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    argv = [str(engine), "--op", "barrier", "--iterations", "3", "--out", str(folder / "samples")]
    ended = disk.run(["env", "FAKE_RANKS=2", "FAKE_STAMP=20", "FAKE_CALL=700", *argv], drop=drop)
    assert ended.ok, ended.complaint()
    kept = disk.after_power_loss(folder, tmp_path / "left") / "samples"
    if not drop:
        assert read_sample_file(kept.read_bytes()).header.operation == "barrier"
    else:
        assert not kept.exists() or kept.read_bytes() == b""
