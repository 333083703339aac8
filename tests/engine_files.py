"""Files of the engines, written and inspected for tests, with exactly the engines' bytes."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.workloads import fabric_file, sample_file
from nearmetal.workloads.framed_file import SAMPLE_FILE, padded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from nearmetal.workloads.fabric_file import FabricFile
    from nearmetal.workloads.framed_file import FileFormat
    from nearmetal.workloads.sample_file import SampleCell, SampleHeader

FLAG_WARMUP = 1
LATER_FIELDS = frozenset({"pace_ns", "seed", "compute_ns", "working_set_bytes", "buffers", "migrations", "calls"})
"""Fields of the sample file's header that older files do not have."""
_PREAMBLE = struct.Struct("<8sII")
_TRAILER = struct.Struct("<8sQII")


def iteration_values(cell: SampleCell) -> NDArray[np.int64]:
    """Return each good iteration's value in order: ns of its slowest value rank, the full round trip for pairs.

    Warm-up is left out, and so are iterations that any rank began too late for the time window.
    """
    durations_ns = (cell.end_ns - cell.begin_ns)[list(cell.value_ranks)].max(axis=0)
    good = ~cell.missed
    good[: cell.warmup] = False
    return np.asarray(durations_ns[good])


def start_spread_ns(header: SampleHeader, index: int, cell: SampleCell) -> NDArray[np.int64]:
    """Return how far apart the ranks began each iteration, on rank 0's clock: the error of the synchronization.

    It is off by at most twice the largest `header.clock_error_ns[index]`.
    """
    begun = cell.begin_ns - np.asarray(header.clock_offset_ns[index], np.int64)[:, None]
    return np.asarray(begun.max(axis=0) - begun.min(axis=0))


def close_frame(of: FileFormat, header: Mapping[str, object], blocks: Iterable[bytes]) -> bytes:
    """Return a whole file's bytes as the engines write them; each block is already padded."""
    text_bytes = json.dumps(header, separators=(",", ":")).encode()
    text_bytes = text_bytes.ljust(padded(len(text_bytes)))
    payload = b"".join([_PREAMBLE.pack(of.magic, of.version, len(text_bytes)), text_bytes, *blocks])
    return payload + _TRAILER.pack(b"NMTRAILR", len(payload), zlib.crc32(payload), 0)


def encode_sample_file(header: SampleHeader, cells: Sequence[SampleCell]) -> bytes:
    """Return a file's bytes as the engine writes them; the arrays have the shapes of SampleCell."""
    parts: list[bytes] = []
    for cell in cells:
        for rank in range(header.ranks):
            parts += [cell.begin_ns[rank].astype("<i8").tobytes(), cell.end_ns[rank].astype("<i8").tobytes()]
            parts.append(cell.flags[rank].tobytes().ljust(padded(cell.flags.shape[1]), b"\0"))
    return close_frame(SAMPLE_FILE, _header_fields(header), parts)


def _header_fields(header: SampleHeader) -> dict[str, object]:
    """Return the header's fields in the record's order; like the engine, without empty ones."""
    fields = {name: getattr(header, name) for name in sample_file.SampleHeader.__slots__}
    return {name: value for name, value in fields.items() if value or name not in LATER_FIELDS}


def encode_fabric_file(file: FabricFile) -> bytes:
    """Return a file's bytes as the engine writes them."""
    header = file.header
    partner = np.zeros((header.ranks, header.rounds), np.int32)
    partner[file.first, file.round] = file.second + 1
    partner[file.second, file.round] = -(file.first + 1)
    kept: list[list[bytes]] = [[] for _ in range(header.ranks)]
    rows = zip(file.first.tolist(), file.second.tolist(), strict=True)
    for row, (first, second) in enumerate(rows):
        kept[first] += [file.latency_ns[row].astype("<i8").tobytes(), file.there_ns[row].astype("<i8").tobytes()]
        kept[second].append(file.back_ns[row].astype("<i8").tobytes())
    blocks: list[bytes] = []
    for rank in range(header.ranks):
        column = partner[rank].astype("<i4").tobytes()
        blocks += [column.ljust(padded(len(column)), b"\0"), *kept[rank]]
    return close_frame(fabric_file.FORMAT, asdict(header), blocks)
