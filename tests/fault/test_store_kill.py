"""Kill -9 and a full disk at every step of the store: finished trials stay, unfinished ones disappear."""

import errno
import os
import signal
from pathlib import Path

import pytest

from nearmetal.errors import ForeignFileError, StoreError
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir
from nearmetal.store.samples import read_values
from tests.lost import INFO, append

STEPS_A_TRIAL = 9  # write, fsync, rename, fsync-directory for the samples and again for the record, then its line


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, name: str, path: Path) -> None:
        self.steps.append(f"{name} {path.name}")


class DyingDisk(Disk):
    """Kills this process, or fails with an errno, at its nth step."""

    def __init__(self, at: int, code: int = 0) -> None:
        self.left = at
        self.code = code

    def step(self, name: str, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            if self.code:
                raise OSError(self.code, os.strerror(self.code))
            path.with_name(path.name + ".part").write_bytes(b"half")  # what a crash leaves behind
            os.kill(os.getpid(), signal.SIGKILL)


def test_the_steps_of_a_trial_are_all_tested(tmp_path: Path) -> None:
    disk = CountingDisk()
    with RunDir.create(tmp_path / "r", INFO, "", disk) as run:
        disk.steps.clear()
        append(run, 0)
    assert len(disk.steps) == STEPS_A_TRIAL
    assert disk.steps[-5:-1] == [f"{s} 000000.json" for s in ("write", "fsync", "rename", "fsync-directory")]
    assert disk.steps[-1] == "append records.sums"


@pytest.mark.parametrize("at", range(1, STEPS_A_TRIAL + 1))
def test_kill_at_every_step(tmp_path: Path, at: int) -> None:
    root = tmp_path / "r"
    with RunDir.create(root, INFO, "study") as run:
        append(run, 0)
    child = os.fork()
    if child == 0:
        try:
            append(RunDir.open_for_writing(root, DyingDisk(at)), 1)
        finally:
            os._exit(7)  # not reached: the disk kills this process first
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    with RunDir.open_for_writing(root) as run:
        finished = [record.order.trial for record in run.trials()]
        assert finished == ([0, 1] if at >= STEPS_A_TRIAL - 1 else [0])
        assert not list(root.rglob("*.part"))
        assert len(list((root / "samples").iterdir())) == len(finished)
        if 1 not in finished:
            append(run, 1)
    records = run.trials()
    for record in records:
        values = run.values(record, record.cells[0])
        assert values.tolist() == [record.order.trial * 1000 + i for i in range(5, 20)]


@pytest.mark.parametrize("at", range(1, STEPS_A_TRIAL + 1))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_error_at_every_step(tmp_path: Path, at: int, code: int) -> None:
    root = tmp_path / "r"
    with RunDir.create(root, INFO, "study") as run:
        append(run, 0)
    with RunDir.open_for_writing(root, DyingDisk(at, code)) as run:
        with pytest.raises(StoreError) as caught:
            append(run, 1)
        assert ("no space left" in caught.value.message) == (code == errno.ENOSPC)
        assert (f"nearmetal run --resume {root}" in (caught.value.hint or "")) == (code == errno.ENOSPC)
    with RunDir.open_for_writing(root) as run:
        assert 0 in [record.order.trial for record in run.trials()]
    assert not list(root.rglob("*.part"))


def test_a_real_full_disk(tmp_path: Path) -> None:
    full = Path("/dev/full")
    with pytest.raises(StoreError, match="no space left"):
        Disk().put(tmp_path / "x", lambda part: _copy_to_full(full))
    assert not list(tmp_path.iterdir())


def _copy_to_full(full: Path) -> None:
    with full.open("wb") as sink:
        sink.write(b"x" * 10)


def test_a_read_only_directory_is_an_error_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only file system even removing the temporary file fails."""
    root = tmp_path / "r"
    with RunDir.create(root, INFO, "study") as run:
        append(run, 0)
    (root / "lock").unlink()
    (root / "lock").mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*/lock") as caught:
        RunDir.open_for_writing(root)
    assert "cp -r" in caught.value.hint
    (root / "lock").rmdir()
    (root / "samples" / "000009.parquet").touch()

    def read_only(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(StoreError, match=r"cannot remove .*000009"):
        RunDir.open_for_writing(root)
    with pytest.raises(StoreError, match="Read-only file system"):
        Disk().put_bytes(tmp_path / "report.html", b"x")


def test_a_file_system_without_locks_is_not_taken_for_another_nearmetal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.raises(StoreError, match=r"cannot lock .*No locks available"):
        RunDir.create(tmp_path / "r", INFO, "study")


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "r", INFO, "study"), pytest.raises(StoreError, match="in use by another"):
        RunDir.open_for_writing(tmp_path / "r")
    RunDir.open_for_writing(tmp_path / "r").close()


def test_damage_is_named(tmp_path: Path) -> None:
    root = tmp_path / "r"
    with RunDir.create(root, INFO, "study") as run:
        append(run, 0)
    record = run.trials()[0]
    whole = run.samples_path(record).read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"x" * len(whole)):
        run.samples_path(record).write_bytes(damaged)
        with pytest.raises(ForeignFileError, match="has changed since it was recorded"):
            run.values(record, record.cells[0])
        with pytest.raises(ForeignFileError, match="not a complete sample file"):
            read_values(run.samples_path(record), record.cells[0])
    (root / "trials" / "000000.json").write_text('{"run_format": 1}')
    with pytest.raises(ForeignFileError, match="not the record of a trial"):
        run.trials()
    with pytest.raises(ForeignFileError, match="not a run directory"):
        RunDir.open(tmp_path)
