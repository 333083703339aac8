import os
import signal
import time
from pathlib import Path

import pytest

from nearmetal import process
from nearmetal.errors import NearmetalError, UnavailableError


def test_output_and_status_are_kept() -> None:
    finished = process.run(["sh", "-c", "cat; echo oops >&2; exit 3"], timeout_s=10, stdin=b"in")
    assert (finished.stdout, finished.stderr, finished.exit_status, finished.ok) == (b"in", b"oops\n", 3, False)
    assert "ended with status 3" in finished.complaint()
    assert "oops" in finished.complaint()


def test_check_raises_with_the_last_words() -> None:
    with pytest.raises(NearmetalError, match="status 1"):
        process.run(["false"], timeout_s=10, check=True)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(UnavailableError, match="no-such-program"):
        process.run(["no-such-program"], timeout_s=1)


def test_a_timeout_ends_the_children_too(tmp_path: object) -> None:
    finished = process.run(["sh", "-c", "sleep 60 & echo $!; wait"], timeout_s=0.5)
    assert finished.timed_out
    assert not finished.ok
    child = int(finished.stdout)
    for _ in range(100):
        if not _alive(child):
            return
        time.sleep(0.02)
    pytest.fail(f"process {child} outlived its timeout")


def test_a_child_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    finished = process.run(["sh", "-c", "setsid sleep 600 & echo $!; wait"], timeout_s=2)
    assert finished.timed_out
    child = int(finished.stdout)
    assert _alive(child), "it was waited for"
    os.kill(child, signal.SIGKILL)


def test_a_signal_is_named() -> None:
    assert "SIGKILL" in process.run(["sh", "-c", "kill -9 $$"], timeout_s=5).complaint()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
