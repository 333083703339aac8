"""The one place that starts programs: argv lists only, a hard timeout always, no process left behind.

Every program runs in its own session, so that a timeout or an interrupt ends it together with its children.
"""

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import NearmetalError, UnavailableError

_GRACE_S = 2.0
_TAIL_LINES = 15
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended; `exit_status` is negative for a signal, as in `subprocess`."""

    argv: tuple[str, ...]
    exit_status: int
    stdout: bytes
    stderr: bytes
    elapsed_ns: int
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Return whether it ended by itself with status 0."""
        return self.exit_status == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """Return stdout as text; bytes that are not UTF-8 are shown as escapes."""
        return self.stdout.decode(errors="backslashreplace")

    def complaint(self) -> str:
        """Return how it ended and its last lines of output, for an error message."""
        if self.timed_out:
            how = f"was stopped after {self.elapsed_ns / 1e9:.1f} s"
        elif self.exit_status < 0:
            how = f"was ended by {_name_of(-self.exit_status)}"
        else:
            how = f"ended with status {self.exit_status}"
        printed = (self.stderr or self.stdout).decode(errors="backslashreplace").strip().splitlines()
        tail = "\n  ".join(printed[-_TAIL_LINES:])
        return f"{self.argv[0]} {how}" + (f":\n  {tail}" if tail else " and printed nothing")


def _name_of(signum: int) -> str:
    """Return a signal's name; real-time signals between the first and the last have none."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a program started with its own session, and its children: SIGTERM, a grace period, SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


_LIMITS = {
    errno.EMFILE: "`ulimit -n` raises the limit of open files of this shell",
    errno.ENFILE: "`sysctl fs.file-max` is the limit of open files of all programs",
    errno.EAGAIN: "`ulimit -u` raises the limit of processes; in a container, its `pids` limit",
    errno.ENOMEM: "free some memory first",
}


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a program in its own session; raise UnavailableError when that fails."""
    try:
        return subprocess.Popen(
            list(argv), env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
    except OSError as error:
        hint = _LIMITS.get(error.errno or 0, "`nearmetal doctor` names what is missing here")
        raise UnavailableError(f"cannot start {argv[0]!r}: {error.strerror}", hint=hint) from error


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes = b"",
    check: bool = False,
) -> Finished:
    """Run a program to its end or to the timeout.

    `env` replaces the environment when given. With `check`, anything but status 0 raises NearmetalError with
    the program's last words. A timeout never raises by itself: it is in the record.
    """
    started_ns = time.monotonic_ns()
    process = spawn(argv, env=env, cwd=cwd, stdin=subprocess.PIPE)
    timed_out = False
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        end_session(process)
        stdout, stderr = _drain(process)
    except BaseException:
        end_session(process)
        raise
    finished = Finished(
        tuple(argv), process.returncode, stdout, stderr, time.monotonic_ns() - started_ns, timed_out=timed_out
    )
    if check and not finished.ok:
        raise NearmetalError(finished.complaint())
    return finished


_VERSIONS: dict[tuple[object, ...], Finished] = {}


def version_of(argv: Sequence[str], *, timeout_s: float) -> Finished:
    """Return what a program prints about itself; one that succeeded is not started again while its file is the same."""
    try:
        file = Path(argv[0]).stat()
    except OSError:
        return run(argv, timeout_s=timeout_s)  # which names what is missing
    key = (*argv, file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns)
    finished = _VERSIONS.get(key) or run(argv, timeout_s=timeout_s)
    if finished.ok:
        _VERSIONS[key] = finished
    return finished


def _drain(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Take what an ended program had written; a grandchild that kept the pipe open is not waited for."""
    try:
        return process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired as error:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return error.stdout or b"", error.stderr or b""


def of_each_process(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield each process's number and its `/proc/PID/FILE`, without those that may not be read or end meanwhile."""
    with os.scandir(_PROC) as entries:
        numbers = [entry.name for entry in entries if entry.name.isdecimal()]
    for number in numbers:
        # Without pathlib, whose paths would take longer than the reading: every trial looks at all processes thrice.
        with contextlib.suppress(OSError), open(f"{_PROC}/{number}/{file}", "rb", buffering=0) as opened:  # noqa: PTH123
            yield int(number), opened.read()


def wait_until(done: Callable[[], bool], timeout_s: float, pause_s: float) -> bool:
    """Ask once, then after each pause, and return whether it is done in time."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
    return True
