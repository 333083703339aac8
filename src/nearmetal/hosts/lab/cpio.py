"""Write an initramfs: the kernel's `newc` archive, byte for byte the same for the same content.

Format: `Documentation/driver-api/early-userspace/buffer-format.rst` in the kernel source. Times, owners and inode
numbers are fixed, so only names, modes and contents decide the bytes.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Node:
    """One file, directory or symbolic link; `path` has no leading slash, `data` of a link is its target."""

    path: str
    mode: int
    data: bytes = b""

    @staticmethod
    def directory(path: str) -> Node:
        """Return a directory that anyone may read."""
        return Node(path, stat.S_IFDIR | 0o755)

    @staticmethod
    def file(path: str, data: bytes, *, executable: bool = False) -> Node:
        """Return a file that anyone may read, and run when `executable`."""
        return Node(path, stat.S_IFREG | (0o755 if executable else 0o644), data)

    @staticmethod
    def link(path: str, target: str) -> Node:
        """Return a symbolic link."""
        return Node(path, stat.S_IFLNK | 0o777, target.encode())


def write_archive(stream: BinaryIO, nodes: Iterable[Node], *, mtime_s: int, first_inode: int = 1) -> int:
    """Write one whole archive, padded so that another may follow it; return its length in bytes."""
    written_bytes = 0
    inode = first_inode
    for inode, node in enumerate(nodes, first_inode):
        written_bytes += stream.write(_header(node, inode, mtime_s))
        written_bytes += stream.write(node.data + _padding(len(node.data)))
    trailer = _header(Node(_TRAILER, 0), 0, 0)
    written_bytes += stream.write(trailer)
    # The kernel skips zero bytes between archives, and asks for 4-byte alignment only; 512 is what cpio writes.
    return written_bytes + stream.write(b"\0" * (-written_bytes % 512))


def _header(node: Node, inode: int, mtime_s: int) -> bytes:
    name = node.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(node.mode) else 1
    fields = (inode, node.mode, 0, 0, links, mtime_s, len(node.data), 0, 0, 0, 0, len(name), 0)
    header = _MAGIC + b"".join(b"%08X" % value for value in fields) + name
    return header + _padding(len(header))


def _padding(length: int) -> bytes:
    return b"\0" * (-length % 4)


def with_parents(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes sorted by path, with every directory that they need before them; the first of a path wins."""
    found: dict[str, Node] = {}
    for node in nodes:
        found.setdefault(node.path, node)
    for path in list(found):
        parent = path.rpartition("/")[0]
        while parent and parent not in found:
            found[parent] = Node.directory(parent)
            parent = parent.rpartition("/")[0]
    return [found[path] for path in sorted(found)]
