"""One life of the emulator: start it, freeze it into a snapshot, or let it carry an order out."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.lab import frames
from nearmetal.hosts.lab.machine import Files, Machine, emulator_argv
from nearmetal.hosts.lab.qmp import EmulatorGoneError, Event, Listener, Qmp

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType

# An emulator whose nearmetal was killed would keep a core busy for ever.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
_LOOK_S = 0.02
_STEP_S = 0.5
_PATIENCE = 8.0
"""How many times its processor time a boot or a trial may take where other programs take turns with it."""
_START_TIMEOUT_S = 20.0 * _PATIENCE
_SNAPSHOT_TIMEOUT_S = 60.0 * _PATIENCE
_CONSOLE_LINES = 20
_PANIC = "Kernel panic"
_DUMP = re.compile(r"\[[ \d.]+\] +(\? |</?\w+>|R[A-Z0-9]{2}: |RIP: |Code: |[\w.]+\+0x)")


@dataclass(frozen=True, slots=True)
class Boot:
    """What an emulated machine starts from: the emulator, the configuration, the kernel and the root."""

    emulator: str
    machine: Machine
    kernel: Path
    initrd: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a trial in the lab left: its files, the guest's console, and the wall time that it took."""

    files: dict[str, bytes]
    console: str
    wall_ns: int


class Vm:
    """A running emulator and its private directory; use as a context manager."""

    def __init__(self, boot: Boot, *, order: bytes = b"{}", seed: int = 0, restore: bool = False) -> None:
        """Start the emulator, paused; raise NearmetalError with its words when it does not start."""
        self._machine = boot.machine
        self._folder = _own_folder()
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None
        self._files = Files(
            kernel=boot.kernel,
            initrd=boot.initrd,
            order=self._folder / "order",
            console=self._folder / "console",
            answer=self._folder / "answer",
            control=self._folder / "qmp",
        )
        try:
            self._files.order.write_bytes(frames.pack_order(order))
            self._start(emulator_argv(boot.emulator, boot.machine, self._files, seed=seed, restore=restore))
        except OSError as error:
            self.close()
            raise _no_room(error) from error
        except BaseException:
            self.close()
            raise

    def _start(self, argv: tuple[str, ...]) -> None:
        listener = Listener(self._files.control)
        try:
            with (self._folder / "stderr").open("wb") as stderr:
                started = process.spawn([*_DIE_WITH_PARENT, *argv], stdout=stderr.fileno(), stderr=stderr.fileno())
            self._process = started
            self._qmp = listener.accept(alive=lambda: started.poll() is None, timeout_s=_START_TIMEOUT_S)
        except EmulatorGoneError as error:
            raise self._gone(error) from error
        finally:
            listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the emulator and remove its directory; calling twice does nothing more."""
        if self._qmp is not None:
            self._qmp.close()
        if self._process is not None and self._process.poll() is None:
            process.end_session(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End the emulator from another thread; whoever waits for it sees it gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    @property
    def control(self) -> Qmp:
        """The control connection."""
        if self._qmp is None:
            raise EmulatorGoneError("the emulator is not running")
        return self._qmp

    @property
    def pid(self) -> int:
        """The emulator's process id, or 0 when there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def console(self) -> str:
        """Return what the guest's kernel has said so far."""
        with contextlib.suppress(OSError):
            return self._files.console.read_bytes().decode(errors="backslashreplace")
        return ""

    def freeze(self, target: Path, *, timeout_s: float) -> None:
        """Let the guest boot until it asks to be frozen, and save it to `target`.

        Raises NearmetalError when it does not come that far within `timeout_s` of the emulator's processor time, or
        `_PATIENCE` times that of wall time.
        """
        try:
            event, spent = self._run_until_event(timeout_s)
            if event is None:
                raise NearmetalError(
                    self._told(f"the lab did not boot within {spent}"),
                    hint="its console says how far it came; a machine that is merely busy is waited for",
                )
            if event.name == "SHUTDOWN":
                raise NearmetalError(self._told("the lab's guest stopped while booting"))
            self.control.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
            self.control.execute("migrate", uri=f"file:{target}")
            self._wait_migrated()
        except EmulatorGoneError as error:
            raise self._gone(error) from error

    def restore(self, snapshot: Path) -> None:
        """Load a snapshot; the guest stays paused."""
        try:
            # Announcing the restored ports on the network would happen on the host's clock.
            self.control.execute("migrate-set-parameters", **{"announce-rounds": 0})
            self.control.execute("migrate-incoming", uri=f"file:{snapshot}")
            self._wait_migrated()
        except EmulatorGoneError as error:
            raise self._gone(error) from error

    def carry_out(self, *, timeout_s: float) -> Answer:
        """Let the guest run until it switches off, and return what it left.

        Raises TrialError with the console's tail when the guest panics, exceeds `timeout_s` of the emulator's processor
        time or `_PATIENCE` times that of wall time, or leaves no whole answer, and when the emulator is killed. A guest
        never idles on the wall's clock, so a machine that is busy with other things costs no trial.
        """
        started_ns = time.monotonic_ns()
        try:
            event, spent = self._run_until_event(timeout_s)
        except EmulatorGoneError as error:
            raise self._gone(error) from error
        if event is None:
            raise TrialError(
                self._told(f"the trial exceeded its limit of {spent}"),
                hint="a guest that hangs says so on its console; a long trial needs a larger time limit",
            )
        return Answer(self._answer_files(), self.console, time.monotonic_ns() - started_ns)

    def _run_until_event(self, timeout_s: float) -> tuple[Event | None, str]:
        """Let the guest run until it stops by itself; return why, or None and the limit that it met, in words.

        `timeout_s` is of the emulator's processor time. Wall time only ends what does not work at all.
        """
        spent_s = self._processor_s()
        deadline_s = time.monotonic() + _PATIENCE * timeout_s
        self.control.execute("cont")
        while time.monotonic() < deadline_s:
            event = self._wait_for({"SHUTDOWN", "GUEST_PANICKED"}, min(deadline_s, time.monotonic() + _STEP_S))
            if event is not None:
                return event, ""
            if self._processor_s() - spent_s >= timeout_s:
                return None, f"{timeout_s:.0f} s of processor time"
        return None, f"{_PATIENCE * timeout_s:.0f} s of wall time"

    def _processor_s(self) -> float:
        """Return how long processors have worked for the emulator; 0 when it is gone (proc_pid_stat(5), 14 and 15)."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _answer_files(self) -> dict[str, bytes]:
        said = self._files.answer.read_bytes() if self._files.answer.exists() else b""
        try:
            return frames.unpack_files(said)
        except NearmetalError as error:
            panicked = _PANIC in self.console
            raise TrialError(self._told("the lab's guest panicked" if panicked else error.message)) from error

    def _wait_for(self, names: set[str], deadline_s: float) -> Event | None:
        while (event := self.control.wait_event(deadline_s)) is not None and event.name not in names:
            pass
        return event

    def _wait_migrated(self) -> None:
        deadline_s = time.monotonic() + _SNAPSHOT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            answer = self.control.execute("query-migrate")
            status = answer.get("status") if isinstance(answer, dict) else None
            if status == "completed":
                return
            if status == "failed":
                raise NearmetalError(
                    f"the snapshot could not be moved: {_described(answer)}",
                    hint="check free space; `nearmetal lab clean` removes old images",
                )
            time.sleep(_LOOK_S)
        raise NearmetalError(f"the snapshot was not moved within {_SNAPSHOT_TIMEOUT_S:.0f} s")

    def _gone(self, error: EmulatorGoneError) -> TrialError:
        """Return the error for an emulator that ended: how it ended, its words, and the console's tail."""
        status = None
        if self._process is not None:
            with contextlib.suppress(Exception):
                status = self._process.wait(_LOOK_S * 50)
        said = ""
        with contextlib.suppress(OSError):
            said = (self._folder / "stderr").read_text(errors="backslashreplace").strip()
        how = f"{error.message} with status {status}" + (f": {said}" if said else "")
        return TrialError(self._told(how))

    def _told(self, message: str) -> str:
        tail = console_tail(self.console)
        return message + ("\n  console: " + "\n  console: ".join(tail) if tail else " (its console is empty)")


def _own_folder() -> Path:
    try:
        return scratch.make("nearmetal-lab")
    except OSError as error:
        raise _no_room(error) from error


def _no_room(error: OSError) -> UnavailableError:
    return UnavailableError(
        f"the lab has no room for its files: {error}",
        hint="free space (`nearmetal clean` shows what killed runs left), or set TMPDIR to another disk",
    )


def console_tail(console: str) -> list[str]:
    """Return the last lines of a console that a person can use: without the body of stack and register dumps."""
    return [line for line in console.strip().splitlines() if not _DUMP.match(line)][-_CONSOLE_LINES:]


def _described(answer: object) -> object:
    return answer.get("error-desc", answer) if isinstance(answer, dict) else answer
