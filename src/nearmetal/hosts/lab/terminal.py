"""This program's terminal, joined to the console of a machine of the lab."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_LEAVE = b"\x1d"
"""ctrl-], as in telnet(1)."""
_END_OF_INPUT = b"\x04"
_CHUNK = 1 << 16
_LOOK_S = 0.2


def attend(listener: socket.socket, over: Callable[[], bool]) -> bool:
    """Carry bytes between this terminal and the console that connects to `listener`, until that is gone.

    Tells whether the person left first, by ctrl-]. Returns at once where no console connects before all is `over`.
    """
    listener.settimeout(_LOOK_S)
    while not over():
        with contextlib.suppress(TimeoutError):
            console, _ = listener.accept()
            with console, _raw():
                return _carry(console)
    return False


def _carry(console: socket.socket) -> bool:
    # A line that nobody has opened drops what it gets, so the console speaks first.
    sources: list[socket.socket | int] = [console]
    silent = True
    while True:
        ready, _, _ = select.select(sources, (), ())
        if console in ready:
            received = _received(console)
            if not received:
                return False
            sys.stdout.buffer.write(received)
            sys.stdout.buffer.flush()
            if silent:
                silent, sources = False, [console, sys.stdin.fileno()]
        if sys.stdin.fileno() in ready:
            typed = os.read(sys.stdin.fileno(), _CHUNK)
            if _LEAVE in typed:
                return True
            if not typed:
                sources = [console]
            with contextlib.suppress(OSError):  # it ended: its end is read above
                console.sendall(typed or _END_OF_INPUT)


def _received(console: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return console.recv(_CHUNK)
    return b""


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Let every key through to the machine, where standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
