import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nearmetal import process
from nearmetal.errors import NearmetalError, UnavailableError


def test_output_and_status_are_captured() -> None:
    finished = process.run(["sh", "-c", "cat; echo oops >&2; exit 3"], timeout_s=600, stdin=b"in")
    assert (finished.stdout, finished.stderr, finished.exit_status, finished.ok) == (b"in", b"oops\n", 3, False)
    assert "ended with status 3" in finished.complaint()
    assert "oops" in finished.complaint()


def test_check_raises_with_the_last_output() -> None:
    with pytest.raises(NearmetalError, match="status 1"):
        process.run(["false"], timeout_s=600, check=True)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(UnavailableError, match="no-such-program"):
        process.run(["no-such-program"], timeout_s=1)


def test_a_timeout_kills_the_children_too(tmp_path: object) -> None:
    finished = _timed_out("sleep 6000 & echo $!; wait")
    assert not finished.ok
    while _alive(int(finished.stdout)):
        time.sleep(0.02)


def test_a_child_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    finished = _timed_out("setsid sleep 6000 & echo $!; wait")
    child = int(finished.stdout)
    assert _alive(child), "it waited for the child"
    os.kill(child, signal.SIGKILL)


def test_a_signal_is_named() -> None:
    assert "SIGKILL" in process.run(["sh", "-c", "kill -9 $$"], timeout_s=600).complaint()
    assert "signal 40" in process.run(["sh", "-c", "kill -40 $$"], timeout_s=600).complaint()


def test_processes_that_end_during_a_scan_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel then returns ESRCH, which a glob that names the file raises instead of skipping."""
    (tmp_path / "self").mkdir()
    for pid in (7, 8, 9):
        (tmp_path / f"{pid}").mkdir()
        (tmp_path / f"{pid}" / "stat").write_text(f"{pid}")
    real = {"stat": Path.stat, "read_bytes": Path.read_bytes}

    def ended(name: str) -> Callable[..., object]:
        def look(path: Path, *args: object, **options: object) -> object:
            if path == tmp_path / "8" / "stat":
                raise ProcessLookupError
            return real[name](path, *args, **options)

        return look

    for name in real:
        monkeypatch.setattr(Path, name, ended(name))
    real["open"] = open
    monkeypatch.setattr(
        process, "open", lambda path, *args, **kw: ended("open")(Path(path), *args, **kw), raising=False
    )
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert sorted(process.of_each_process("stat")) == [(7, b"7"), (9, b"9")]


def test_processes_are_scanned_in_one_place_only() -> None:
    """A glob such as `[0-9]*/stat` fails if a process ends meanwhile: there were five of these."""
    tree = Path(process.__file__).parent
    scan = re.compile(r'"\[0-9\]\*|scandir\(_?PROC')
    found = [file.name for file in tree.rglob("*.py") if scan.search(file.read_text())]
    assert found == ["process.py"]


def _timed_out(script: str) -> process.Finished:
    """Run a script until its timeout; without output by then, as on a busy machine, it gets more time."""
    for timeout_s in (0.5, 5.0, 50.0):
        finished = process.run(["sh", "-c", script], timeout_s=timeout_s)
        assert finished.timed_out
        if finished.stdout:
            break
    return finished


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_programs_version_is_asked_once_until_its_file_changes(tmp_path: Path) -> None:
    program, starts = tmp_path / "mpirun", tmp_path / "starts"

    def starts_after(status: int, words: str) -> int:
        program.write_text(f"#!/bin/sh\necho start >>{starts}\necho {words}\nexit {status}\n")
        program.chmod(0o755)
        starts.write_text("")
        versions = [process.version_of([str(program), "--version"], timeout_s=600).text for _ in range(3)]
        assert versions == [f"{words}\n"] * 3
        return len(starts.read_text().splitlines())

    assert starts_after(0, "version 5") == 1
    assert starts_after(0, "version 5.1") == 1, "the file has changed"
    assert starts_after(1, "no version at all") == 3, "a failure is not cached"
    program.unlink()
    with pytest.raises(UnavailableError):
        process.version_of([str(program), "--version"], timeout_s=600)
