"""Programs and files inside a guest of the lab's hypervisor, over vsock; both ends in one file.

`python3 -m nearmetal.hosts.lab.remote serve` is what a guest ends its boot with. `... CID -- ARGV` runs ARGV there
with the caller's environment, working directory and standard streams, and ends as it ends. `run`, `read` and `write`
do the same for a caller in Python, without a program of their own. Standard library only.

A connection carries frames of one byte of kind, four of length (big-endian), and content. The caller sends the
request, then its stdin; the guest sends what the program says, then how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from nearmetal.hosts.lab import plain_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

PORT = 1024
_HEADER = struct.Struct(">cI")
_REQUEST, _INPUT, _INPUT_END, _OUT, _ERR, _END = b"r", b"i", b"e", b"1", b"2", b"x"
_CHUNK = 1 << 16
_UNREACHABLE = 255
_FAILED = 1
_NOT_FOUND = 127


class Said:
    """What came back: the exit status, below 0 for a signal, and what was said."""

    __slots__ = ("status", "stderr", "stdout", "timed_out")  # a dataclass would double the time that a start takes

    def __init__(self) -> None:
        """Start with nothing said, by a guest out of reach."""
        self.status = _UNREACHABLE
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.timed_out = False


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


def serve() -> None:
    """Answer callers for ever, each in a thread."""
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    listener.bind((socket.VMADDR_CID_ANY, PORT))
    listener.listen(16)
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
            _answer_file(request, link)


def _answer_file(request: dict[str, str], link: _Link) -> None:
    """Read or write the file that a request names."""
    try:
        if "read" in request:
            link.send_all(_OUT, plain_files.read(request["read"]))
        else:
            content = bytearray()
            while (frame := link.receive())[0] == _INPUT:
                content += frame[1]
            plain_files.write(request["write"], bytes(content))
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
    _attend(program, link)


def _attend(program: subprocess.Popen[bytes], link: _Link) -> None:
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, 9)


def _connect(cid: int) -> socket.socket:
    connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        connection.connect((cid, PORT))
    except OSError:
        connection.close()
        raise
    return connection


def _ask(cid: int, request: Mapping[str, object], content: bytes, timeout_s: float) -> Said:
    """Send a request and what belongs to it; return all that came back."""
    said = Said()
    deadline_s = time.monotonic() + timeout_s
    try:
        with _connect(cid) as connection:
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
                    said.status = int(chunk)
                    return said
                (said.stdout if kind == _OUT else said.stderr).extend(chunk)
    except TimeoutError:
        said.timed_out = True
    except (OSError, EOFError) as error:
        said.stderr += f"the guest with CID {cid} cannot be reached: {error}\n".encode()
    return said


def run(cid: int, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes, timeout_s: float) -> Said:
    """Run a program in the guest with that CID; a status below 0 is a signal, 255 that the guest is out of reach."""
    return _ask(cid, {"argv": list(argv), "cwd": "/", "env": dict(env)}, stdin, timeout_s)


def read(cid: int, path: str, *, timeout_s: float) -> Said:
    """Read a file of the guest: its content is in `stdout`, or the reason why not in `stderr`."""
    return _ask(cid, {"read": path}, b"", timeout_s)


def write(cid: int, path: str, data: bytes, *, timeout_s: float) -> Said:
    """Write a file of the guest; the reason why not is in `stderr`."""
    return _ask(cid, {"write": path}, data, timeout_s)


def call(cid: int, argv: list[str]) -> int:
    """Run a program in the guest with this process's streams; return its exit status as a shell does."""
    try:
        connection = _connect(cid)
    except OSError as error:
        sys.stderr.write(f"the guest with CID {cid} cannot be reached: {error.strerror}\n")
        return _UNREACHABLE
    link = _Link(connection)
    request = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}  # noqa: PTH109 (pathlib costs start-up time)
    link.send(_REQUEST, json.dumps(request).encode())
    threading.Thread(target=_send_input, args=(link,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, content = link.receive()
            if kind == _END:
                status = int(content)
                return status if status >= 0 else 128 - status
            os.write(1 if kind == _OUT else 2, content)
    return _UNREACHABLE


def _send_input(link: _Link) -> None:
    _pump(sys.stdin.buffer, link, _INPUT)
    with contextlib.suppress(OSError):
        link.send(_INPUT_END)


def main(arguments: list[str]) -> int:
    """Serve, or call."""
    if arguments == ["serve"]:
        serve()
    return call(int(arguments[0]), arguments[2:])


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # a thread may still wait on stdin
