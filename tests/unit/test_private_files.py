"""Files that name hosts are readable only by their owner; locked packages have hashes and name no server."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nearmetal.cli.main import group
from nearmetal.errors import ForeignFileError
from nearmetal.store.disk import Disk, SharedDisk
from nearmetal.store.rundir import RunDir

ROOT = Path(__file__).parents[2]
STUDY = """
format = 1
name = "private"
baseline = "veth"
host = { kind = "fake" }
path = [{ name = "veth" }, { name = "bridge" }]
workload = [{ name = "latency", sizes = [8], iterations = 30 }]
trials = { min_blocks = 3, max_blocks = 3 }
"""


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_private_before_anything_is_in_them(tmp_path: Path) -> None:
    seen = []
    Disk().put(tmp_path / "x", lambda part: seen.append(mode(part)))
    assert (seen, mode(tmp_path / "x")) == ([0o600], 0o600)


def test_files_left_by_a_crash_do_not_set_the_mode(tmp_path: Path) -> None:
    (tmp_path / "x.part").write_text("half")
    Disk().put_bytes(tmp_path / "x", b"whole")
    assert mode(tmp_path / "x") == 0o600
    assert (tmp_path / "x").read_bytes() == b"whole"


def test_files_for_collectors_have_the_usual_mode(tmp_path: Path) -> None:
    SharedDisk().put_bytes(tmp_path / "x", b"")
    assert mode(tmp_path / "x") == 0o666


def test_every_file_of_a_run_and_its_report_is_private(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    runner = CliRunner()
    for argv in (["run", f"{tmp_path}/study.toml", "--out", f"{tmp_path}/run"], ["report", f"{tmp_path}/run"]):
        done = runner.invoke(group, argv)
        assert done.exception is None, done.output
        files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"run.json", "study.toml", "report.html", "lock"}
        assert {path.name: oct(mode(path)) for path in files if mode(path) != 0o600} == {}


def test_a_run_that_may_not_be_read_is_not_called_anything_else(tmp_path: Path) -> None:
    """A colleague's run was `not a run directory: Permission denied (run.json)`, with `nearmetal run` for a remedy."""
    tmp_path.chmod(0o000)  # a folder that even its owner may not enter; root is let in, so not as root
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        with pytest.raises(ForeignFileError, match=r"run\.json cannot be read: Permission denied") as found:
            RunDir.open(tmp_path)
    finally:
        os.seteuid(before)
        tmp_path.chmod(0o700)
    assert "nearmetal archive" in found.value.hint


@pytest.mark.parametrize("lock", sorted((ROOT / "packaging").glob("*.lock")), ids=lambda path: path.name)
def test_every_locked_package_has_a_version_and_hashes_and_no_server(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^--(extra-)?index|^--find-links|^-f |^-e ", text, re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) > 0
    for entry in entries:
        assert re.match(r"[\w.-]+(\[[\w,]+\])?==[\w.!+]+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_special_files_are_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        Disk().put_bytes(pipe, b"report")
        assert os.read(reader, 100) == b"report"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_written_files_are_closed(tmp_path: Path) -> None:
    before = list(Path("/proc/self/fd").iterdir())
    for number in range(10):
        Disk().make_folder(tmp_path / f"{number}" / "below")
        Disk().put_bytes(tmp_path / f"{number}" / "x", b"whole")
        Disk().append(tmp_path / f"{number}" / "x", b"more")
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)
