"""One run of the emulator: start it, freeze it into a snapshot, or let it carry an order out."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from nearmetal import process, scratch
from nearmetal.closing import Closing
from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.lab import frames, running, wire
from nearmetal.hosts.lab.machine import ANSWER_FILE, CONSOLE_FILE, CONTROL_SOCKET, ORDER_FILE, Boot, emulator_argv
from nearmetal.hosts.lab.qmp import EmulatorGoneError, Json, Listener, Qmp

# An emulator whose nearmetal was killed would keep a core busy for ever.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
_LOOK_S = 0.02
_START_TIMEOUT_S = 20.0 * running.PATIENCE
_SNAPSHOT_TIMEOUT_S = 60.0 * running.PATIENCE
_CONSOLE_LINES = 20
_PROBE_BYTES = 1 << 16
_PANIC = "Kernel panic"
_DUMP = re.compile(r"\[[ \d.]+\] +(\? |</?\w+>|R[A-Z0-9]{2}: |RIP: |Code: |[\w.]+\+0x)")


class Vm(Closing):
    """A running emulator and its private directory; use as a context manager."""

    def __init__(
        self,
        boot: Boot,
        *,
        order: bytes = b"{}",
        seed: int = 0,
        restore: bool = False,
        node_id: frames.NodeId = frames.ONLY_NODE,
        plugin: Callable[[Path], str] | None = None,
    ) -> None:
        """Start the emulator, paused; raise NearmetalError with its words when it does not start.

        `plugin` returns what joins it to the other machines of a cluster, in which it is `node_id`, from the name of a
        file for the plugin's counts.
        """
        self._boot = replace(boot, terminal=None) if node_id.node else boot
        self.node_id = node_id
        self._folder = _own_folder()
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None
        try:
            (self._folder / ORDER_FILE).write_bytes(frames.pack_order(order, node_id))
            self.refuse_full()
            joined = plugin(self._folder / "wire") if plugin else wire.alone_argument(boot.wire, boot.machine.iommu)
            self._start(emulator_argv(self._boot, self._folder, seed=seed, restore=restore, plugin=joined))
        except OSError as error:
            self.close()
            raise _no_room(error) from error
        except BaseException:
            self.close()
            raise

    def _start(self, argv: tuple[str, ...]) -> None:
        listener = Listener(self._folder / CONTROL_SOCKET)
        try:
            with (self._folder / "stderr").open("wb") as stderr:
                started = process.spawn([*_DIE_WITH_PARENT, *argv], stdout=stderr.fileno(), stderr=stderr.fileno())
            self._process = started
            self._qmp = listener.accept(alive=lambda: started.poll() is None, timeout_s=_START_TIMEOUT_S)
        except EmulatorGoneError as error:
            raise self.gone(error) from error
        finally:
            listener.close()

    def close(self) -> None:
        """End the emulator and remove its directory; calling twice does nothing more."""
        if self._qmp is not None:
            self._qmp.close()
        if self._process is not None and self._process.poll() is None:
            process.end_session(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End the emulator from another thread; waiters see it gone."""
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
    def status(self) -> int | None:
        """How the emulator ended, or None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def console(self) -> str:
        """Return what the guest's kernel has printed so far."""
        with contextlib.suppress(OSError):
            return (self._folder / CONSOLE_FILE).read_bytes().decode(errors="backslashreplace")
        return ""

    def freeze(self, target: Path, *, timeout_s: float) -> None:
        """Let the guest run until it asks to be frozen, and save it to `target`.

        Raises NearmetalError when it does not come that far within `timeout_s` of processor time.
        """
        if running.first_stop([self], "the lab's boot", timeout_s)[1] == "SHUTDOWN":
            raise NearmetalError(self.told("the lab's guest stopped while booting"))
        self._migrate("migrate", target, "max-bandwidth", 1 << 40)

    def restore(self, snapshot: Path) -> None:
        """Load a snapshot; the guest stays paused."""
        # Announcing the restored ports on the network would happen on the host's clock.
        self._migrate("migrate-incoming", snapshot, "announce-rounds", 0)

    def _migrate(self, command: str, snapshot: Path, parameter: str, value: int) -> None:
        """Save to a snapshot or load it, but for memory that stays in its own file."""
        try:
            self.control.execute("migrate-set-parameters", **{parameter: value})
            if self._boot.memory is not None:
                shared: Json = [{"capability": "x-ignore-shared", "state": True}]
                self.control.execute("migrate-set-capabilities", capabilities=shared)
            self.control.execute(command, uri=f"file:{snapshot}")
            self._wait_migrated()
        except EmulatorGoneError as error:
            raise self.gone(error) from error

    def refuse_full(self) -> None:
        """Raise UnavailableError when its folder takes no more: the emulator would wait for room, not say so."""
        probe = self._folder / "probe"
        try:
            probe.write_bytes(bytes(_PROBE_BYTES))
            probe.unlink()
        except OSError as error:
            raise _no_room(error) from error

    def processor_s(self) -> float:
        """Return how long processors have worked for the emulator; 0 when it is gone (proc_pid_stat(5), 14 and 15)."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def answers(self) -> Iterator[dict[str, bytes]]:
        """Yield the files that each launch left; raise TrialError when there are none or they are not whole."""
        answer = self._folder / ANSWER_FILE
        received = answer.read_bytes() if answer.exists() else b""
        try:
            yield from frames.unpack_answers(received)
        except NearmetalError as error:
            panicked = _PANIC in self.console
            raise TrialError(self.told("the lab's guest panicked" if panicked else error.message)) from error

    def _wait_migrated(self) -> None:
        deadline_s = time.monotonic() + _SNAPSHOT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            answer = self.control.execute("query-migrate")
            state = answer if isinstance(answer, dict) else {}
            if state.get("status") == "completed":
                return
            if state.get("status") == "failed":
                message = f"the snapshot could not be moved: {state.get('error-desc', state)}"
                raise NearmetalError(message, hint="check free space; `nearmetal lab clean --old` frees some")
            time.sleep(_LOOK_S)
        raise NearmetalError(f"the snapshot was not moved within {_SNAPSHOT_TIMEOUT_S:.0f} s")

    def gone(self, error: EmulatorGoneError) -> TrialError:
        """Return the error for an emulator that ended: how it ended, its words, and the console's tail."""
        status = None
        if self._process is not None:
            with contextlib.suppress(Exception):
                status = self._process.wait(_LOOK_S * 50)
        printed = ""
        with contextlib.suppress(OSError):
            printed = (self._folder / "stderr").read_text(errors="backslashreplace").strip()
        how = f"{error.message} with status {status}" + (f": {printed}" if printed else "")
        return TrialError(self.told(how))

    def told(self, message: str) -> str:
        """Return a message with the machine's name, where it is one of several, and its console's tail."""
        message = message if self.node_id.alone else f"node {self.node_id.node}: {message}"
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
