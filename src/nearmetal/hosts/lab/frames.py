"""What leaves the lab's guest: named files, framed, on a serial line that is a file outside.

A frame is a header, the name, and the zlib-compressed content; the CRC-32 covers name and compressed content. The
last frame has no content and counts the frames before it, so a cut stream is seen. `docs/reference/lab-frames.md`
holds the layout. Standard library only: the writer runs inside the guest.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nearmetal.errors import ForeignFileError

MAGIC = b"NMF1"
ORDER_MAGIC = b"NMO2"
ORDER_AREA_BYTES = 1 << 16
"""An order's size in the device that carries it: fixed, because the device's layout is part of the snapshot."""

STAND_GUEST = b"stand a guest"
"""What a machine takes in the place of orders to start a guest that stands, and to be frozen again."""

_HEADER = struct.Struct("<4sBxHIII")  # magic, kind, name length, content length, packed length, CRC-32
_ORDER_HEADER = struct.Struct("<4sIIHH")  # magic, length, CRC-32, node, nodes
ORDER_HEADER_BYTES = _ORDER_HEADER.size
_FILE, _END = 1, 2
_MAX_FILE_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class NodeId:
    """Which node of a cluster a machine is; a single machine is the only node."""

    node: int = 0
    nodes: int = 1

    @property
    def alone(self) -> bool:
        """Return whether there is no other machine."""
        return self.nodes == 1


ONLY_NODE = NodeId()


def _frame(kind: int, name: str, content: bytes) -> bytes:
    name_bytes, packed = name.encode(), zlib.compress(content, 1) if kind == _FILE else content
    check = zlib.crc32(packed, zlib.crc32(name_bytes))
    return _HEADER.pack(MAGIC, kind, len(name_bytes), len(content), len(packed), check) + name_bytes + packed


def pack_files(files: Mapping[str, bytes]) -> Iterable[bytes]:
    """Yield the frames of all files, in order of name, and the closing frame."""
    for name in sorted(files):
        yield _frame(_FILE, name, files[name])
    yield _frame(_END, "", struct.pack("<I", len(files)))


def unpack_answers(stream: bytes) -> Iterator[dict[str, bytes]]:
    """Yield the files of each answer that `pack_files` wrote, of one at least.

    Raises ForeignFileError at what is torn, damaged or foreign.
    """
    position = 0
    while not position or position < len(stream):
        files: dict[str, bytes] = {}
        kind, name, content, position = _next(stream, position)
        while kind != _END:
            if name in files:
                raise ForeignFileError(f"the lab's answer holds {name!r} twice")
            files[name] = content
            kind, name, content, position = _next(stream, position)
        if content != struct.pack("<I", len(files)):
            raise ForeignFileError(f"the lab's answer does not end where it should, after {len(files)} files")
        yield files


def _next(stream: bytes, position: int) -> tuple[int, str, bytes, int]:
    torn = ForeignFileError(f"the lab's answer is cut short or foreign at byte {position} of {len(stream)}")
    body = position + _HEADER.size
    if len(stream) < body:
        raise torn
    magic, kind, name_length, content_length, packed_length, check = _HEADER.unpack_from(stream, position)
    end = body + name_length + packed_length
    if magic != MAGIC or kind not in {_FILE, _END} or end > len(stream) or content_length > _MAX_FILE_BYTES:
        raise torn
    if zlib.crc32(stream[body:end]) != check:
        raise ForeignFileError(f"the lab's answer is damaged: CRC mismatch in the frame at byte {position}")
    packed = stream[body + name_length : end]
    try:
        name = stream[body : body + name_length].decode()
        # One byte more than promised shows that it is wrong, and no frame makes the reader allocate without bound.
        content = zlib.decompressobj().decompress(packed, content_length + 1) if kind == _FILE else packed
    except (UnicodeDecodeError, zlib.error) as error:
        raise ForeignFileError(f"the lab's answer is damaged at byte {position}: {error}") from error
    if len(content) != content_length:
        raise ForeignFileError(f"{name!r} in the lab's answer has {len(content)} bytes, not {content_length}")
    return kind, name, content, end


def pack_order(order: bytes, node_id: NodeId = ONLY_NODE) -> bytes:
    """Return an order as the fixed-size area that that node's guest reads; raise ValueError when it does not fit."""
    packed = zlib.compress(order, 9)
    if _ORDER_HEADER.size + len(packed) > ORDER_AREA_BYTES:
        raise ValueError(f"an order of {len(packed)} packed bytes does not fit into {ORDER_AREA_BYTES}")
    check = _order_check(packed, node_id)
    area = _ORDER_HEADER.pack(ORDER_MAGIC, len(packed), check, node_id.node, node_id.nodes) + packed
    return area + b"\0" * (ORDER_AREA_BYTES - len(area))


def _order_check(packed: bytes, node_id: NodeId) -> int:
    return zlib.crc32(packed, zlib.crc32(struct.pack("<HH", node_id.node, node_id.nodes)))


def order_length(header: bytes) -> int:
    """Return how many bytes follow the header of an order's area; raise ForeignFileError when it is none."""
    if len(header) < _ORDER_HEADER.size:
        raise ForeignFileError(f"an order's header has {len(header)} bytes, not {_ORDER_HEADER.size}")
    magic, length, *_ = _ORDER_HEADER.unpack_from(header)
    if magic != ORDER_MAGIC or length > ORDER_AREA_BYTES - _ORDER_HEADER.size:
        raise ForeignFileError("the area for the order contains no order")
    return int(length)


def unpack_order(area: bytes) -> tuple[bytes, NodeId]:
    """Return the order that `pack_order` packed, and which node it is for; raise ForeignFileError for anything else.

    The padding need not be there.
    """
    length = order_length(area)
    packed = area[_ORDER_HEADER.size : _ORDER_HEADER.size + length]
    _, _, check, node, nodes = _ORDER_HEADER.unpack_from(area)
    if _order_check(packed, NodeId(node, nodes)) != check:
        raise ForeignFileError("the order is damaged: CRC mismatch")
    try:
        return zlib.decompress(packed), NodeId(node, nodes)
    except zlib.error as error:
        raise ForeignFileError(f"the order is damaged: {error}") from error
