"""The verbs of a history of knob sessions: started in forked children, with faults, and judged; and their watchdogs.

See `knob_histories.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from knob_world import KNOBS, Boot, Command, Fault, QuickShell, enter, hangs, runs, state
from nearmetal.cli import reach
from nearmetal.errors import ExitCode
from nearmetal.knobs import identity

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 600.0


class Player:
    """Starts verbs on real devices, waits for them, and records what they named and the settings to expect."""

    def __init__(self, seed: int, other: tuple[int, int]) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.other = other
        self.root = Path(tempfile.mkdtemp(prefix="history-"))
        self.folder = self.root / "state/nearmetal/journal"
        self.boot = Boot()
        self.before = state()
        self.expected = dict(self.before)
        self.excused: set[str] = set()
        self.touched: set[str] = set()
        self.named: set[str] = set()
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self.live: Command | None = None

    def note(self, action: str, details: str = "") -> None:
        self.counts[action] += 1
        self.log.append(f"{action} {details}")

    # ---- commands

    def start(
        self,
        verb: Callable[[], int],
        fault: Fault,
        *,
        away: bool = False,
        boot: Boot | None = None,
        acts: Fault | None = None,
    ) -> Command:
        """Fork a child that runs a verb; its output goes to a file. `acts` is a fault that it causes itself."""
        output, fault = self.root / f"output-{len(self.log)}", replace(fault, acted=self.acted())
        output.touch()
        ends = os.pipe()
        pid = os.fork()
        if not pid:
            self._child(verb, fault, output, ends, away=away, boot=boot or self.boot)
        os.close(ends[0])
        return Command(pid, output, ends[1], replace(acts or fault, acted=self.acted()))

    def acted(self) -> Path:
        """Return the file that is created when the fault of the latest action happens."""
        return self.root / f"acted-{len(self.log)}"

    def _child(
        self, verb: Callable[[], int], fault: Fault, log: Path, ends: tuple[int, int], *, away: bool, boot: Boot
    ) -> None:
        status = 99
        try:
            os.close(ends[1])
            os.dup2(ends[0], 0)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
            os.environ |= {
                "XDG_STATE_HOME": str(self.root / "state"),
                "NEARMETAL_MACHINE_STATE": str(self.root / "machine"),
                "TMPDIR": str(self.root),
                "SSH_CONNECTION": "",
            }
            tempfile.tempdir = str(self.root)
            self.reach(boot, away=away)
            fault.install(self.folder)
            status = verb()
        except BaseException:  # noqa: BLE001 - nothing of the child may go on as the player
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def reach(self, boot: Boot, *, away: bool) -> None:
        """Direct the verbs of a child to the machine, or with `away` to another one."""
        if away:
            enter(self.other)
        QuickShell.boot = boot
        identity_lines = "\n".join(f"echo '{line}'" for line in (boot.machine, "host", boot.boot))
        spaces = "readlink /proc/self/ns/net; readlink /proc/self/ns/mnt"
        identity._WHERE_SCRIPT = f"# machine-id\n{identity_lines}\n{spaces}\necho '{boot.up_s} 0'\n"
        mock.patch.object(reach, "MachineShell", QuickShell).start()  # fails where there is no such name

    def journals(self) -> list[Path]:
        return sorted(self.folder.rglob("*.journal"), key=lambda path: path.name)

    def marks(self, line: bytes) -> bool:
        """Return whether a command line is that of a watchdog of this history."""
        return b"nearmetal-watchdog" in line and str(self.folder).encode() in line

    def finish(self, command: Command) -> int:
        """Wait until a command has ended; a hanging one is killed when its watchdog has acted."""
        os.close(command.answer)
        deadline = time.monotonic() + PATIENCE_S
        while (status := command.ended()) is None:
            if time.monotonic() > deadline or (hangs(command.process) and not self.watchdogs()):
                command.signal(signal.SIGKILL)
            command.pause()
        return self.judge(command, status)

    def judge(self, command: Command, status: int) -> int:
        text = command.text()
        if command.fault.happened():
            self.counts[command.fault.kind] += 1
        self.log.append(f"  -> {status}: {text.strip()!r}")
        if "Traceback" in text:
            raise AssertionError(f"a traceback: {text}")
        if status not in {0, ExitCode.PARTIAL}:  # an apply that was not confirmed left nothing, and has nothing to name
            self.named |= {name for name in KNOBS if name in text}
        if status and self.live is None:  # a waiting command keeps its watchdog
            self.settle()
        if command.knobs and ("CONFIRMED" in text or (status < 0 and self.confirmed() and self.kept(command.knobs))):
            self.expected |= command.knobs
            self.excused -= set(command.knobs)
        return status

    def confirmed(self) -> bool:
        """Return whether the newest journal is confirmed: a command that died afterwards could not print it."""
        newest = self.journals()[-1:]
        return bool(newest) and b'"state": "confirmed"' in newest[0].read_bytes()[-200:]

    def kept(self, knobs: dict[str, str]) -> bool:
        """Return whether a setting is applied as a whole: its watchdog may undo one killed while confirming."""
        now = state()
        return all(now[name] == value for name, value in knobs.items())

    # ---- watchdogs

    def watchdogs(self) -> list[int]:
        """Return the live watchdogs of this history: their command line names its folder."""
        found = []
        for place in (one / "cmdline" for one in Path("/proc").glob("[0-9]*")):
            with contextlib.suppress(OSError):
                if self.marks(place.read_bytes()):
                    found.append(int(place.parent.name))
        return found

    def settle(self) -> None:
        """Wait until the watchdogs of dead commands have acted."""
        deadline = time.monotonic() + PATIENCE_S
        while found := self.watchdogs():
            while any(runs(pid) for pid in found):  # looking at every process takes longer
                if time.monotonic() > deadline:
                    raise AssertionError("a watchdog does not act")
                time.sleep(0.02)

    def power_off(self) -> None:
        self.kill_watchdogs()
        if self.live is not None:
            os.kill(self.live.pid, signal.SIGKILL)
            os.waitpid(self.live.pid, 0)
            os.close(self.live.answer)
            self.live = None

    def kill_watchdogs(self, by: signal.Signals = signal.SIGKILL) -> None:
        for pid in self.watchdogs():
            if by == signal.SIGKILL:
                self.note("kill watchdog", str(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, by)
