"""A small client of QEMU's machine protocol (docs/interop/qmp-spec.rst in the QEMU source).

The emulator connects to us, so nothing polls for a socket to appear, and its death is seen as the end of stream.
"""

import contextlib
import json
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nearmetal.errors import NearmetalError

_COMMAND_TIMEOUT_S = 30.0
_LOOK_S = 0.1

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


class EmulatorGoneError(NearmetalError):
    """The emulator ended or stopped answering."""


class Qmp:
    """One connection; not safe for use by two threads."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket and shake hands; raise EmulatorGoneError when the other side is not QEMU."""
        self._socket = connection
        self._buffer = b""
        self._events: deque[str] = deque()
        greeting = self._message(time.monotonic() + _COMMAND_TIMEOUT_S)
        if greeting is None or "QMP" not in greeting:
            raise EmulatorGoneError("the emulator did not greet on its control socket")
        self.execute("qmp_capabilities")

    @property
    def has_more(self) -> bool:
        """Return whether something has arrived that was not looked at yet."""
        return bool(self._events) or b"\n" in self._buffer

    def fileno(self) -> int:
        """Return the socket's descriptor, for waiting on several emulators at once."""
        return self._socket.fileno()

    def execute(self, command: str, **arguments: Json) -> Json:
        """Run a command and return its answer; raise NearmetalError with the emulator's words when it refuses."""
        self.send(command, **arguments)
        return self.answered(command)

    def send(self, command: str, **arguments: Json) -> None:
        """Give a command; the next message that is no event answers it."""
        request: dict[str, Json] = {"execute": command, "arguments": arguments}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # read its output before it ended
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def answered(self, command: str) -> Json:
        """Wait for the answer to the command that was sent last; raise NearmetalError when it was refused."""
        deadline_s = time.monotonic() + _COMMAND_TIMEOUT_S
        while (message := self._message(deadline_s)) is not None:
            if "error" in message:
                raise _refused(repr(command), message)
            if "return" in message:
                return message["return"]
            self._keep_event(message)
        raise EmulatorGoneError(f"the emulator did not answer {command!r} within {_COMMAND_TIMEOUT_S:.0f} s")

    def wait_event(self, deadline_s: float) -> str | None:
        """Return the name of the next event (`SHUTDOWN`), or None when the monotonic clock passes `deadline_s` first.

        Raises EmulatorGoneError when the emulator ends without another event.
        """
        while not self._events:
            message = self._message(deadline_s)
            if message is None:
                return None
            if "error" in message:
                raise _refused("a command", message)
            self._keep_event(message)
        return self._events.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _keep_event(self, message: dict[str, Json]) -> None:
        name = message.get("event")
        if isinstance(name, str):
            self._events.append(name)

    def _message(self, deadline_s: float) -> dict[str, Json] | None:
        """Return the next message, or None at the deadline."""
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._socket.settimeout(left_s)
            try:
                received = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            except ConnectionResetError:
                received = b""
            if not received:
                raise EmulatorGoneError("the emulator ended")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise EmulatorGoneError(f"the emulator did not send JSON on its control socket: {line[:80]!r}") from error
        if not isinstance(message, dict):
            raise EmulatorGoneError(f"the emulator did not send a JSON object on its control socket: {line[:80]!r}")
        return message


def _refused(command: str, message: dict[str, Json]) -> NearmetalError:
    error = message["error"]
    described = error.get("desc") if isinstance(error, dict) else error
    return NearmetalError(f"the emulator refused {command}: {described}")


class Listener:
    """The socket that the emulator connects to."""

    def __init__(self, path: Path) -> None:
        """Listen at `path`; it must be short, as socket addresses are limited to 107 bytes."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(1)

    def accept(self, *, alive: Callable[[], bool], timeout_s: float) -> Qmp:
        """Wait for the emulator; raise EmulatorGoneError when it ends or does not connect in time."""
        deadline_s = time.monotonic() + timeout_s
        self._socket.settimeout(_LOOK_S)
        while time.monotonic() < deadline_s:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                if not alive():
                    break
            else:
                return Qmp(connection)
        raise EmulatorGoneError("the emulator did not start")

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
