"""Programs and files on another machine of the lab, over vsock or TCP.

A guest of the lab's hypervisor is known by its CID and serves on vsock: `python3 -m nearmetal.hosts.lab.remote` is what
it ends its boot with. A node of a cluster, machine or guest, is known by its name and serves on TCP (`... ADDRESS` in a
guest). `run`, `read` and `write` are for callers in Python, the program `nmremote` (native/remote) for all others.
Standard library only.

A connection carries frames of one byte of kind, four of length (big-endian), and content. The caller sends the
request, then its stdin; the guest sends what the program says, then how it ended.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from nearmetal.errors import TrialError
from nearmetal.hosts import plain_files
from nearmetal.process import Finished

PORT = 1024
READY = "lab: guest is up"
"""What a guest says on its console when it serves."""
_HEADER = struct.Struct(">cI")
_REQUEST, _INPUT, _INPUT_END, _OUT, _ERR, _END = b"r", b"i", b"e", b"1", b"2", b"x"
_NAME = b"n"
"""Names the file, of several, whose content follows."""
_CHUNK = 1 << 16
_BACKLOG = 16
_UNREACHABLE = 255
_FAILED = 1
_NOT_FOUND = 127

Where = int | str
"""A guest's CID, or the name or address of a node."""


class Reply:
    """What came back: the exit status, below 0 for a signal, the output, and files by name."""

    # A dataclass would double the time that a start takes.
    __slots__ = ("files", "status", "stderr", "stdout", "timed_out")

    def __init__(self) -> None:
        """Start without output, as of an unreachable guest."""
        self.status = _UNREACHABLE
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.files: dict[str, bytearray] = {}
        self.timed_out = False

    def require(self, what: str) -> None:
        """Raise TrialError, which says what cannot be done, unless it was."""
        if self.status != 0:
            raise TrialError(f"cannot {what}: {self.stderr.decode(errors='replace') or 'no answer in time'}")


class _Link:
    """Whole frames over a socket; `send` is safe for use by several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        with self._lock:
            self._socket.sendall(_HEADER.pack(kind, len(content)) + content)

    def send_all(self, kind: bytes, content: bytes) -> None:
        for start in range(0, len(content), _CHUNK):
            self.send(kind, content[start : start + _CHUNK])

    def receive(self) -> tuple[bytes, bytes]:
        """Return the next frame; raise EOFError at the end of the stream."""
        kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
        return kind, self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        received = b""
        while len(received) < length:
            more = self._socket.recv(length - len(received))
            if not more:
                raise EOFError
            received += more
        return received


def _pump(stream: BinaryIO, link: _Link, kind: bytes) -> None:
    """Send a stream on until it ends, or the other side is gone."""
    with contextlib.suppress(OSError, ValueError):
        while chunk := os.read(stream.fileno(), _CHUNK):
            link.send(kind, chunk)


def of_guest() -> socket.socket:
    """Return where a guest listens."""
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    listener.bind((socket.VMADDR_CID_ANY, PORT))
    listener.listen(_BACKLOG)
    return listener


def of_node(address: str) -> socket.socket:
    """Return where a cluster's node listens; what accepts from it inherits that nothing is held back (tcp(7))."""
    listener = socket.create_server((address, PORT), backlog=_BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve(listener: socket.socket) -> None:
    """Answer callers for ever, each in a thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    link = _Link(connection)
    with connection, contextlib.suppress(OSError, EOFError):
        request = json.loads(link.receive()[1])
        if "argv" in request:
            _answer_program(request, link)
        else:
            # All that was sent must be taken before the connection is closed, or TCP drops the answer too.
            content = bytearray()
            while (frame := link.receive())[0] == _INPUT:
                content += frame[1]
            _answer_file(request, bytes(content), link)


def _answer_file(request: dict[str, Any], content: bytes, link: _Link) -> None:
    """Read or write what a request names."""
    try:
        if "read_all" in request:
            for path, found in plain_files.read_all(request["read_all"]).items():
                link.send(_NAME, path.encode())
                link.send_all(_OUT, found)
        elif "reseed" in request:
            plain_files.reseed(content)
        elif "read" in request:
            link.send_all(_OUT, plain_files.read(request["read"]))
        else:
            plain_files.write(request["write"], content)
    except OSError as error:
        link.send(_ERR, str(error.strerror).encode())
        link.send(_END, str(_FAILED).encode())
    else:
        link.send(_END, b"0")


def _answer_program(request: dict[str, object], link: _Link) -> None:
    argv, cwd, env = request["argv"], request["cwd"], request["env"]
    assert isinstance(argv, list)
    assert isinstance(cwd, str)
    assert isinstance(env, dict)
    pipe = subprocess.PIPE
    try:
        program = subprocess.Popen(argv, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        link.send(_ERR, f"{argv[0]}: {error.strerror}\n".encode())
        link.send(_END, str(_NOT_FOUND).encode())
        return
    _carry_streams(program, link)


def _carry_streams(program: subprocess.Popen[bytes], link: _Link) -> None:
    """Carry a program's streams until it ends; end it when its caller is gone."""
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    feeder = threading.Thread(target=_feed, args=(program, link), daemon=True)
    pumps = [
        threading.Thread(target=_pump, args=(stream, link, kind), daemon=True)
        for stream, kind in ((program.stdout, _OUT), (program.stderr, _ERR))
    ]
    for thread in (feeder, *pumps):
        thread.start()
    for thread in pumps:
        thread.join()
    status = program.wait()
    for stream in (program.stdin, program.stdout, program.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    with contextlib.suppress(OSError):  # the caller may be gone
        link.send(_END, str(status).encode())
    feeder.join()  # until the caller has closed: what it sent and nobody took would make TCP drop the answer


def _feed(program: subprocess.Popen[bytes], link: _Link) -> None:
    assert program.stdin is not None
    try:
        while True:
            kind, content = link.receive()
            if kind == _INPUT_END:
                program.stdin.close()
            elif kind == _INPUT:
                with contextlib.suppress(BrokenPipeError, ValueError):  # it ended, or closed its input
                    program.stdin.write(content)
                    program.stdin.flush()
    except (EOFError, OSError):
        if program.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, 9)


def _connect(where: Where) -> socket.socket:
    """Connect to a guest by its CID or to a node by its name or address; raise OSError."""
    if isinstance(where, str):
        connection = socket.create_connection((where, PORT))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        connection.connect((where, PORT))
    except OSError:
        connection.close()
        raise
    return connection


def reach(where: Where) -> None:
    """Raise OSError when the machine is out of reach."""
    _connect(where).close()


def _ask(where: Where, request: Mapping[str, object], content: bytes, timeout_s: float) -> Reply:
    """Send a request and what belongs to it; return all that came back."""
    reply = Reply()
    deadline_s = time.monotonic() + timeout_s
    try:
        with _connect(where) as connection:
            connection.settimeout(timeout_s)
            link = _Link(connection)
            link.send(_REQUEST, json.dumps(request).encode())
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered and gone
                link.send_all(_INPUT, content)
                link.send(_INPUT_END)
            while True:
                connection.settimeout(max(deadline_s - time.monotonic(), 1e-3))
                kind, chunk = link.receive()
                if kind == _END:
                    reply.status = int(chunk)
                    return reply
                if kind == _NAME:
                    reply.files[chunk.decode()] = reply.stdout = bytearray()
                else:
                    (reply.stdout if kind == _OUT else reply.stderr).extend(chunk)
    except TimeoutError:
        reply.timed_out = True
    except (OSError, EOFError) as error:
        reply.stderr += f"{_named(where)} cannot be reached: {error}\n".encode()
    return reply


def _named(where: Where) -> str:
    return f"node {where}" if isinstance(where, str) else f"the guest with CID {where}"


def run(where: Where, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes, timeout_s: float) -> Reply:
    """Run a program there; a status below 0 is a signal, 255 that the machine is out of reach."""
    return _ask(where, {"argv": list(argv), "cwd": "/", "env": dict(env)}, stdin, timeout_s)


def finished(where: Where, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes, timeout_s: float) -> Finished:
    """Run a program there, and return how it ended as if it had run here."""
    started_ns = time.monotonic_ns()
    reply = run(where, argv, env=env, stdin=stdin, timeout_s=timeout_s)
    elapsed_ns = time.monotonic_ns() - started_ns
    return Finished(
        tuple(argv), reply.status, bytes(reply.stdout), bytes(reply.stderr), elapsed_ns, timed_out=reply.timed_out
    )


def read(where: Where, path: str, *, timeout_s: float) -> Reply:
    """Read a file there: its content is in `stdout`, or the reason why not in `stderr`."""
    return _ask(where, {"read": path}, b"", timeout_s)


def read_all(where: Where, paths: Sequence[str], *, timeout_s: float) -> dict[str, bytes]:
    """Return the content of those files that can be read there; raise TrialError when the machine is out of reach."""
    reply = _ask(where, {"read_all": list(paths)}, b"", timeout_s)
    reply.require("read files")
    return {path: bytes(content) for path, content in reply.files.items()}


def write(where: Where, path: str, data: bytes, *, timeout_s: float) -> Reply:
    """Write a file there; the reason why not is in `stderr`."""
    return _ask(where, {"write": path}, data, timeout_s)


def reseed(where: Where, data: bytes, *, timeout_s: float) -> Reply:
    """Let a machine's random numbers follow from `data`; the reason why not is in `stderr`."""
    return _ask(where, {"reseed": True}, data, timeout_s)


class RemoteProgram:
    """A program that runs there, with streams that stay open; raises OSError when the machine is out of reach.

    A thread passes `output` the stream (1 or 2) and bytes, and `ended` the exit status, or None and why it is unknown.
    """

    def __init__(
        self,
        where: Where,
        argv: Sequence[str],
        *,
        output: Callable[[int, bytes], None],
        ended: Callable[[int | None, str], None],
    ) -> None:
        self._connection = _connect(where)
        self._link = _Link(self._connection)
        self._output, self._ended = output, ended
        self._link.send(_REQUEST, json.dumps({"argv": list(argv), "cwd": "/", "env": dict(os.environ)}).encode())
        threading.Thread(target=self._listen, daemon=True).start()

    def write(self, data: bytes) -> None:
        """Give bytes to the program's input; one that ended does not take them."""
        with contextlib.suppress(OSError):
            self._link.send_all(_INPUT, data)

    def end_input(self) -> None:
        """End the program's input."""
        with contextlib.suppress(OSError):
            self._link.send(_INPUT_END)

    def close(self) -> None:
        """Let go of the program: it is ended there."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        reason = "the connection was closed"
        with self._connection:
            try:
                while (frame := self._link.receive())[0] != _END:
                    self._output(1 if frame[0] == _OUT else 2, frame[1])
                self._ended(int(frame[1]), "")
            except OSError as error:
                reason = str(error)
            except EOFError:
                pass
            self._ended(None, reason)  # counts only where no status came


def main(arguments: Sequence[str]) -> None:
    """Be a guest's service, on TCP if an address is given."""
    listener = of_node(arguments[0]) if arguments else of_guest()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    serve(listener)


if __name__ == "__main__":
    main(sys.argv[1:])
