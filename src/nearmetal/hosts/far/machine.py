"""Commands on one far machine, which needs nothing but `sh` and the usual small programs.

Short commands go, one after another, to one `sh` that stays: a command costs a process and a round trip, not a new
channel. A random mark on both streams shows where the output of a command ends. Programs that take time get a stream
of their own and a guardian there, which ends the program and its children as soon as the stream is closed, by whatever
means; so a connection that drops leaves nothing running.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Mapping, Sequence

from nearmetal.errors import NearmetalError, TrialError
from nearmetal.hosts.far.quote import command, printf, word
from nearmetal.hosts.far.stream import LostError, OpenShell, Stream
from nearmetal.hosts.host import Way
from nearmetal.process import Finished

SHORT_S = 20.0
"""The time limit of short commands; a command with a limit of its own gets a stream and a guardian of its own."""
_GRACE_S = 5.0
_CHUNK_BYTES = 32 * 1024

# Comes behind what a login shell or its profile prints, a title or greeting without the end of a line perhaps.
_BEHIND_GREETING = b"printf '%%s\\n' %s; printf '%%s\\n' %s >&2; "

# `trash` holds what is to go with the far shell. Programs that are being ended may still write into it, hence twice. A
# signal (a job that is cancelled) does not end the shell before its input does: sh leaves its own trap out then.
_BEGIN = b"""LC_ALL=C; export LC_ALL; set -f; trash=
trap : TERM HUP
trap 'test -z "$trash" || rm -rf -- $trash || { sleep 3; rm -rf -- $trash; }' EXIT
"""

# One compound command: sh reads it to its end before it starts, so nothing of it is left for `cat` to swallow. The
# status comes with a mark, not as the far shell's own: kubectl and srun comment on that, and have their own failures.
_KEEP = b"""{ exec 3<&0
setsid %s < %s &
child=$!
{ cat <&3 > /dev/null; kill -s TERM -- "-$child"; sleep 2; kill -s KILL -- "-$child"; } > /dev/null 2>&1 &
guardian=$!
wait "$child"
status=$?
kill "$guardian" 2> /dev/null
printf '%%s %%s\n' %s "$status" >&2
exit 0
}
"""


class FarMachine:
    """Runs commands in a shell that `open_shell` starts; not safe for use by two threads at once.

    `name` is the machine's in errors and facts, `way` how it is reached by who knows nothing else of it.
    """

    def __init__(self, name: str, open_shell: OpenShell, way: Way | None = None) -> None:
        self.name = name
        self.way: Way = way or {}
        self._open_shell = open_shell
        self._mark = secrets.token_hex(16).encode()
        self._count = 0
        self._stream: Stream | None = None
        self.process = ""
        self.home = ""

    def connect(self) -> None:
        """Open the connection when it is not open: the first use does the same."""
        if self._stream is None:
            self._stream = self._open_after_greeting(_BEGIN)
            self.process, _, home = self._answer(b"echo $$; cd; pwd").text.partition("\n")
            self.home = home.removesuffix("\n")

    def refresh(self) -> None:
        """Connect anew when the connection is gone; between trials, so that none goes on after a loss unnoticed."""
        if self._stream is not None and self._stream.inbox.ended is not None:
            self.close()
        self.connect()

    def run(
        self,
        argv: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = SHORT_S,
    ) -> Finished:
        """Run a program to its end; `prefix` is put before `argv` and not shown. Raise LostError with the machine."""
        line = command([*prefix, *argv], env)
        started_ns = time.monotonic_ns()
        self.connect()
        if stdin or timeout_s != SHORT_S:
            return self._run_kept(argv, line, stdin, timeout_s)
        finished = self._ask(line, timeout_s, tuple(argv))
        if finished is None:
            self._give_up()
            return Finished(tuple(argv), -signal.SIGKILL, b"", b"", time.monotonic_ns() - started_ns, timed_out=True)
        return finished

    def keep(self, argv: Sequence[str], *, prefix: Sequence[str] = ()) -> KeptProgram:
        """Start a program that stays until it is stopped or the connection is gone."""
        self.connect()
        return self._keep(argv, command([*prefix, *argv]), b"/dev/null")

    def hold(self, argv: Sequence[str]) -> KeptProgram:
        """Start a program whose own input is the stream: it reads the end of it when the connection is gone."""
        self.connect()
        return KeptProgram(tuple(argv), self._open_after_greeting(b"exec %s\n" % command(argv)))

    def write(self, path: str, data: bytes) -> None:
        """Write a file; what is no longer than a page goes out as one write, as sysfs wants it."""
        self.connect()
        for start in range(0, max(len(data), 1), _CHUNK_BYTES):
            sign = b">>" if start else b">"
            line = b"{ printf %s %s %s; }" % (printf(data[start : start + _CHUNK_BYTES]), sign, word(path))
            written = self._ask(line, SHORT_S)
            if written is None or not written.ok:
                reason = written.stderr.decode(errors="replace").strip() if written else "no answer"
                raise NearmetalError(f"cannot write {path} on {self.name}: {reason}")

    def remove_at_end(self, path: str) -> None:
        """Have the far shell remove a file or folder when it ends, also by a lost connection or a kill -9 here.

        Not where a signal ends the far shell itself.
        """
        self.connect()
        self._answer(b'trash="$trash "%s' % word(path))

    def remove(self, path: str) -> None:
        """Remove a file or folder now."""
        self.run(["rm", "-rf", "--", path])
        self._answer(b'trash=${trash%%" "%s}' % word(path))

    def close(self) -> None:
        """End the far shell; calling twice does nothing more, and a later command connects anew."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            with contextlib.suppress(NearmetalError):
                stream.end_input()
            stream.close()

    def _answer(self, line: bytes) -> Finished:
        """Return what the far shell says to a line that takes no time."""
        answer = self._ask(line, SHORT_S)
        if answer is None:
            self._give_up()
            raise LostError(f"{self.name} did not answer within {SHORT_S:.0f} s")
        return answer

    def _ask(self, line: bytes, timeout_s: float, shown: tuple[str, ...] = ("sh",)) -> Finished | None:
        """Give the far shell one line; return None when it took too long."""
        assert self._stream is not None
        self._count += 1
        mark = b"%s-%d" % (self._mark, self._count)
        started_ns = time.monotonic_ns()
        try:
            self._stream.write(
                b"%s </dev/null; printf '%%s %%s\\n' %s $?; printf '%%s\\n' %s >&2\n" % (line, mark, mark)
            )
            answer = self._stream.inbox.until(mark, timeout_s)
        except LostError as error:
            self._stream.close()
            self._stream = None
            raise LostError(f"lost {self.name}: {error.message}", hint=error.hint) from error
        if answer is None:
            return None
        out, _, status = answer[0].rpartition(b"\n")
        return Finished(shown, _as_signal(int(status)), out, answer[1], time.monotonic_ns() - started_ns)

    def _give_up(self) -> None:
        """End the far shell together with the command that did not come back."""
        process, stream = self.process, self._stream
        self._stream = None
        if stream is not None:
            stream.close()
        if process:
            with contextlib.suppress(NearmetalError):
                killer = self._open_shell()
                killer.write(b"kill -s KILL -- -%s || kill -s KILL %s\nexit\n" % (process.encode(), process.encode()))
                killer.inbox.wait(_GRACE_S)
                killer.close()

    def _run_kept(self, argv: Sequence[str], line: bytes, stdin: bytes, timeout_s: float) -> Finished:
        source = "/dev/null"
        if stdin:
            source = f"/tmp/nm-{secrets.token_hex(16)}.in"  # noqa: S108 - the name cannot be guessed, the mode is 0600
            self.remove_at_end(source)
            self._answer(b"(umask 077; set -C; : > %s)" % word(source))
            self.write(source, stdin)
        kept = self._keep(argv, line, word(source))
        try:
            return kept.wait(timeout_s, self.name)
        finally:
            if stdin and self._stream is not None:
                self.remove(source)

    def _keep(self, argv: Sequence[str], line: bytes, source: bytes) -> KeptProgram:
        stream = self._open_after_greeting(_KEEP % (line, source, self._mark))
        return KeptProgram(tuple(argv), stream, self._mark)

    def _open_after_greeting(self, script: bytes) -> Stream:
        """Start a far shell with a script; only what it prints from then on is in its stream."""
        stream, begin = self._open_shell(), b"begin-" + self._mark
        stream.inbox.begin_after(begin)
        stream.write(_BEHIND_GREETING % (begin, begin) + script)
        return stream


class KeptProgram:
    """A far program with its own stream, and a guardian that ends it; `mark` precedes its status on stderr.

    Without a mark the status is that of the stream.
    """

    def __init__(self, argv: tuple[str, ...], stream: Stream, mark: bytes = b"") -> None:
        self._argv = argv
        self._stream = stream
        self._mark = mark
        self._started_ns = time.monotonic_ns()

    def ended(self) -> Finished | None:
        """Return how it ended, or None while it runs."""
        return self._finished() if self._stream.inbox.ended is not None else None

    def first_lines(self, count: int, timeout_s: float) -> list[str]:
        """Wait for so many lines of what it says; return fewer when it ended or the time was up before."""
        return self._stream.inbox.first_lines(count, timeout_s)

    def stop(self) -> None:
        """End it and its children; calling twice does nothing more."""
        with contextlib.suppress(NearmetalError):
            self._stream.end_input()
        self._stream.inbox.wait(_GRACE_S)
        self._stream.close()

    def wait(self, timeout_s: float, where: str) -> Finished:
        """Wait for its end, and end it after the timeout or on an interrupt; raise LostError with the machine."""
        try:
            timed_out = not self._stream.inbox.wait(timeout_s)
        finally:
            self.stop()
        end = self._stream.inbox.ended
        if end is not None and not timed_out and self._end()[0] is None:
            message = f"lost {where} while {self._argv[0]} ran: {end[1] or 'the connection was closed'}"
            raise LostError(message, hint="the program there was stopped; the next trial reconnects")
        return self._finished(timed_out=timed_out)

    def _end(self) -> tuple[int | None, bytes]:
        """Return the program's status, or None where its end was not reported, and its stderr."""
        printed = self._stream.inbox.taken()[1]
        if not self._mark:
            return (self._stream.inbox.ended or (None, ""))[0], printed
        before, found, after = printed.rpartition(self._mark + b" ")
        status = after.partition(b"\n")[0]
        return (int(status), before) if found and status.isdigit() else (None, printed)

    def _finished(self, *, timed_out: bool = False) -> Finished:
        status, err = self._end()
        elapsed_ns = time.monotonic_ns() - self._started_ns
        out = self._stream.inbox.taken()[0]
        return Finished(self._argv, _as_signal(status), out, err, elapsed_ns, timed_out=timed_out)


def _as_signal(status: int | None) -> int:
    """Return a shell's status as `Finished` has it: 128 plus a signal's number becomes the negative number."""
    if status is None:
        return -signal.SIGKILL
    number = status - 128
    return -number if number in {int(one) for one in signal.Signals} else status


def require_ok(finished: Finished) -> Finished:
    """Return it, or raise TrialError with the program's last words."""
    if not finished.ok:
        raise TrialError(finished.complaint())
    return finished
