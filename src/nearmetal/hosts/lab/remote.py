"""Run a program inside a guest of the lab's hypervisor, over vsock; both ends in one file. Standard library only.

`python3 -m nearmetal.hosts.lab.remote serve` is what a guest ends its boot with. `... CID -- ARGV` runs ARGV there
with the caller's environment, working directory and standard streams, and ends as it ends.

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

PORT = 1024
_HEADER = struct.Struct(">cI")
_REQUEST, _INPUT, _INPUT_END, _OUT, _ERR, _END = b"r", b"i", b"e", b"1", b"2", b"x"
_CHUNK = 1 << 16
_UNREACHABLE = 255


class _Link:
    """Whole frames over a socket; `send` is safe for use by several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        with self._lock:
            self._socket.sendall(_HEADER.pack(kind, len(content)) + content)

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
        try:
            program = subprocess.Popen(
                request["argv"],
                cwd=request["cwd"],
                env=request["env"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            link.send(_ERR, f"{request['argv'][0]}: {error.strerror}\n".encode())
            link.send(_END, b"127")
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


def call(cid: int, argv: list[str]) -> int:
    """Run a program in the guest with that CID; return its exit status, 255 when the guest cannot be reached."""
    connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        connection.connect((cid, PORT))
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
