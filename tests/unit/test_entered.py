"""A thread in other namespaces: what it sees, what it starts, and the error when it may not enter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal import process
from nearmetal.errors import NearmetalError
from nearmetal.hosts.inside import NamespaceThread

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACES = ("pid", "net", "uts", "ipc", "mnt")


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """Return a process with namespaces of its own, whose host name is `elsewhere`."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a thread cannot enter a user namespace")
    unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = ["sh", "-c", "hostname elsewhere; mount -t tmpfs t /mnt; echo here >/mnt/file; echo ready; exec cat"]
    outer = process.spawn([*unshare, *script], stdin=subprocess.PIPE)
    assert outer.stdout is not None
    assert outer.stdout.readline() == b"ready\n"
    yield int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
    process.end_session(outer)
    for stream in (outer.stdin, outer.stdout, outer.stderr):
        assert stream is not None
        stream.close()


def test_programs_and_files_are_those_of_the_namespaces(elsewhere: int) -> None:
    entered = NamespaceThread(elsewhere, NAMESPACES)
    try:
        output = entered.do(
            lambda: process.run(["sh", "-c", "hostname; echo $$; ls /sys/class/net /proc"], timeout_s=600)
        )
        assert output.text.splitlines()[0] == "elsewhere"
        assert int(output.text.splitlines()[1]) < 20
        assert entered.do(lambda: Path("/mnt/file").read_text()) == "here\n"
    finally:
        entered.close()
    assert os.uname().nodename != "elsewhere"
    assert not Path("/mnt/file").exists()


def test_an_exception_in_the_thread_is_raised_in_the_caller(elsewhere: int) -> None:
    entered = NamespaceThread(elsewhere, NAMESPACES)
    with pytest.raises(FileNotFoundError):
        entered.do(lambda: Path("/mnt/none").read_text())
    assert entered.do(lambda: 7) == 7
    entered.close()
    entered.close()


def test_the_namespaces_of_an_ended_process_cannot_be_entered() -> None:
    with pytest.raises(FileNotFoundError):
        NamespaceThread(2**22 + 1, ("net",))


def test_a_namespace_that_may_not_be_entered_is_named() -> None:
    with pytest.raises(NearmetalError, match="enter the user namespace"):
        NamespaceThread(os.getpid(), ("user",))  # no thread may: user_namespaces(7)
