"""Runs a group of programs: `python3 program_group_run.py AGENT FOLDER TIMEOUT_S COMMAND...`, those of a step together.

Each COMMAND is one of `program_group.Command` as JSON; the first failure ends the group with status 1, a program that
does not end with `LATE`. The file is
copied to the node that runs it, where there may be no nearmetal and an older Python: it keeps to the standard library
of Python 3.6 and imports nothing of this package. Annotations are texts, because that Python has no `list[str]`.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

LOG = "programs.json"
LATE = 124
"""As timeout(1) ends."""
_LATE_WORDS = "did not end within"
_GRACE_S = 3.0
_SHOWN_BYTES = 20_000
_LAST_BYTES = 2_000
_children: "set[subprocess.Popen[bytes]]" = set()
_starting = threading.Lock()  # held while a program runs that is not among the children yet


def _now_ns() -> int:
    # Python 3.6 has no clock of integers.
    return time.monotonic_ns() if hasattr(time, "monotonic_ns") else int(time.monotonic() * 1e9)


def main(argv: "list[str]") -> int:
    """Run a group to its end."""
    agent, folder, timeout_s, *texts = argv
    commands = [json.loads(text) for text in texts]
    ran: list[dict[str, object]] = []  # of a local variable, which no Python evaluates
    for step in sorted({one["step"] for one in commands}):
        together = [one for one in commands if one["step"] == step]
        with ThreadPoolExecutor(max_workers=len(together)) as pool:
            running = [pool.submit(_run, agent, Path(folder), float(timeout_s), one) for one in together]
            _wait(running)
            results = [one.result() for one in running]
        ran += [one for one, _, _ in results]
        for _, complaint, late in results:
            if complaint:
                sys.stderr.write(f"{complaint}\n")
                return LATE if late else 1
    Path(folder, LOG).write_text(json.dumps(ran))
    return 0


def _wait(running: "list[Future[Any]]") -> None:
    """Wait until all have ended, so that a signal is noticed whenever it comes.

    Python carries a handler out between two steps of the main thread. A signal that comes just before that begins to
    wait for a lock does not end the wait, and is not handled before the programs end; but it leaves a byte in a pipe.
    """
    noticed, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell)
    try:
        for one in running:
            one.add_done_callback(lambda _: os.write(tell, b"."))
        left = len(running)
        while left:  # a signal's byte is its number, which is never that of a full stop here
            left -= os.read(noticed, 1) == b"."
    finally:
        signal.set_wakeup_fd(before)
        for end in (noticed, tell):
            os.close(end)


def _run(
    agent: str, folder: Path, timeout_s: float, command: "dict[str, Any]"
) -> "tuple[dict[str, object], str, bool]":
    """Run one command; return when it ran and, where it failed, its last words and whether it did not end."""
    node, program = command["node"], command["argv"]
    argv = list(program)
    if command["env"]:
        argv = ["env", *(f"{name}={value}" for name, value in command["env"].items()), *argv]
    if node:
        # The agent evaluates its words, as ssh does.
        argv = [agent, node, " ".join(map(shlex.quote, argv))]
    began_ns = _now_ns()
    status, out, err, how = _ended(argv, program[0], command["stdin"].encode(), timeout_s)
    ran = {
        "stdout": command["stdout"],
        "step": command["step"],
        "began_ns": began_ns,
        "ended_ns": _now_ns(),
        "exit_status": status,
    }
    (folder / command["stdout"]).write_bytes(out)
    if how or status not in command["accept"]:
        printed = (err + b"\n" + out[-_LAST_BYTES:]).decode(errors="replace").strip() or "it printed nothing"
        late = _LATE_WORDS in how
        how = how or f"{program[0]} {_how(status)}"
        return ran, f"on {node or 'its node'}: {how}:\n  {printed}", late
    sys.stdout.buffer.write(out[-_SHOWN_BYTES:])
    return ran, "", False


def _how(status: int) -> str:
    """Return how a program ended, as `Finished.complaint` does."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _ended(argv: "list[str]", name: str, stdin: bytes, timeout_s: float) -> "tuple[int, bytes, bytes, str]":
    """Run a program to its end; return status, output and errors, and how it could not start or did not end."""
    pipe = subprocess.PIPE
    try:
        with _starting:
            child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
            _children.add(child)
    except OSError as error:
        return 127, b"", str(error.strerror).encode(), f"cannot start {name!r}"
    try:
        out, err = child.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        out, err = _end(child)
        # What it printed before it was ended says why it hangs; Python 3.6 does not tell that from the rest.
        if late.output or late.stderr:
            out, err = late.output or b"", late.stderr or b""
        return child.returncode or -signal.SIGKILL, out, err, f"{name} {_LATE_WORDS} {timeout_s:g} s"
    finally:
        _children.discard(child)
    return child.returncode, out, err, ""


def _end(child: "subprocess.Popen[bytes]") -> "tuple[bytes, bytes]":
    """End a program and its children: SIGTERM, a grace period, SIGKILL; return its output so far."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=_GRACE_S)
    return b"", b""


def _end_all(signum: int, _: object) -> None:
    """End all programs with this one, as when its connection is gone: each has its own session."""
    _starting.acquire()  # for good: none begins any more. Programs are started by other threads than this
    for child in list(_children):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    os._exit(128 + signum)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_all)
    sys.exit(main(sys.argv[1:]))
