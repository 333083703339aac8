"""Files of the machine that this code runs on, read and written at once. Standard library only."""

import contextlib
import fcntl
import os
from collections.abc import Sequence

_CHUNK = 1 << 16
"""A larger buffer would be memory of its own from the kernel for each read: 1 ms of the lab's time."""
_RNDRESEEDCRNG = 0x5207  # include/uapi/linux/random.h


def read(path: str) -> bytes:
    """Return a file's content, also of files that do not report their size; raise OSError when it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while chunk := os.read(descriptor, _CHUNK):
            content += chunk
        return content
    finally:
        os.close(descriptor)


def read_all(paths: Sequence[str]) -> dict[str, bytes]:
    """Return the content of those files that can be read."""
    found: dict[str, bytes] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = read(path)
    return found


def write(path: str, data: bytes) -> None:
    """Write a file; /proc and /sys get all of it in one write, as they want. Raise OSError when that fails."""
    kernels = path.startswith(("/proc/", "/sys/"))
    flags = os.O_WRONLY if kernels else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def reseed(data: bytes) -> None:
    """Let the kernel's random numbers follow from `data` too, from now on (random(4))."""
    descriptor = os.open("/dev/urandom", os.O_RDWR)
    try:
        os.write(descriptor, data)
        fcntl.ioctl(descriptor, _RNDRESEEDCRNG)
    finally:
        os.close(descriptor)
