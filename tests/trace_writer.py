"""Trace files written from what a reader returns, independently of `native/trace`, for tests of their readers.

The layout (docs/reference/trace-file.md) is implemented here a second time, so that an error in the reader is detected.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nearmetal.predict.trace import (
    NONE,
    Call,
    CallFlag,
    CallTime,
    CommKind,
    Communicator,
    DoCall,
    RankTrace,
    Repeat,
    Step,
    Trace,
    call_count,
)

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<8sHHIIIQQQ12xI")
_SECTION = struct.Struct("<4sIQ")
_COMM = struct.Struct("<QIHHIIII")
_CALL = struct.Struct("<HHIiiQiiQIIII")
_TIME = struct.Struct("<QQQ")
_END = struct.Struct("<IQ")
_U32 = struct.Struct("<I")
_TAGS = (b"META", b"LIST", b"COMM", b"CALL", b"TIME", b"GAPS", b"SEQU", b"PROG")
_CALL_TOKEN, _GAP_TOKEN, _REPEAT_TOKEN, _STOP_TOKEN = range(4)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


def _runs(values: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Cut a list into arithmetic runs (count, first, stride), greedily."""
    runs: list[tuple[int, int, int]] = []
    start = 0
    while start < len(values):
        stop = start + 1
        stride = values[stop] - values[start] if stop < len(values) else 0
        while stop < len(values) and values[stop] - values[stop - 1] == stride:
            stop += 1
        if stop - start == 1:
            stride = 0
        runs.append((stop - start, values[start], stride))
        start = stop
    return runs


def _pack_lists(lists: tuple[tuple[int, ...], ...]) -> bytes:
    parts = [_varint(len(lists))]
    for values in lists:
        runs = _runs(values)
        parts.append(_varint(len(runs)))
        parts += [_varint(count) + _varint(first) + _varint(_zigzag(stride)) for count, first, stride in runs]
    return b"".join(parts)


def _pack_communicators(trace: RankTrace, intern: dict[tuple[int, ...], int]) -> bytes:
    parts = [_U32.pack(len(trace.communicators))]
    for comm in trace.communicators:
        dims = intern[comm.dims] if comm.dims else NONE
        periods = intern[comm.periods] if comm.dims else NONE
        parts.append(_COMM.pack(comm.uid, comm.parent, comm.kind, 0, intern[comm.members], comm.my_rank, dims, periods))
    return b"".join(parts)


def _pack_call(call: Call) -> bytes:
    return _CALL.pack(
        call.kind,
        call.flags,
        call.comm,
        call.peer,
        call.tag,
        call.message_bytes,
        call.recv_peer,
        call.recv_tag,
        call.recv_bytes,
        call.request,
        call.list_a,
        call.list_b,
        call.type_bytes,
    )


def _pack_gaps(trace: RankTrace) -> bytes:
    points = len(trace.gap_probabilities)
    parts = [struct.pack(f"<II{points}d", len(trace.gaps), points, *trace.gap_probabilities)]
    parts += [struct.pack(f"<QQ{points}Q", gap.visits, gap.total_ns, *gap.quantiles_ns) for gap in trace.gaps]
    return b"".join(parts)


def _pack_program(program: tuple[Step, ...]) -> bytes:
    parts: list[bytes] = []
    for step in program:
        if isinstance(step, Repeat):
            parts += [_varint(step.count << 2 | _REPEAT_TOKEN), _pack_program(step.body), _varint(_STOP_TOKEN)]
        else:
            token = _CALL_TOKEN if isinstance(step, DoCall) else _GAP_TOKEN
            parts.append(_varint(step.index << 2 | token))
    return b"".join(parts)


def _section(tag: bytes, payload: bytes) -> bytes:
    return _SECTION.pack(tag, zlib.crc32(payload), len(payload)) + payload


def encode_rank(trace: RankTrace) -> bytes:
    """Return the bytes of one rank's file: version 3 if a wait cancels, else 2 if a gap has an order, else 1."""
    cancels = any(call.flags & CallFlag.CANCELLED for call in trace.calls)
    ordered = cancels or any(gap.order for gap in trace.gaps)
    intern: dict[tuple[int, ...], int] = {}
    lists = list(trace.lists)
    for position, values in enumerate(lists):
        intern.setdefault(values, position)
    for comm in trace.communicators:
        for values in (comm.members, *((comm.dims, comm.periods) if comm.dims else ())):
            if values not in intern:
                intern[values] = len(lists)
                lists.append(values)
    head = _HEADER.pack(
        b"NMTR\r\n\x1a\n",
        3 if cancels else 2 if ordered else 1,
        _HEADER.size,
        trace.rank,
        trace.world_ranks,
        len(_TAGS) + ordered,
        trace.trace_id,
        trace.elapsed_ns,
        call_count(trace),
        0,
    )[:-4]
    meta = "".join(f"{key}={value}\n" for key, value in trace.meta.items())
    payloads = (
        meta.encode(),
        _pack_lists(tuple(lists)),
        _pack_communicators(trace, intern),
        _U32.pack(len(trace.calls)) + b"".join(map(_pack_call, trace.calls)),
        b"".join(_TIME.pack(time.calls, time.total_ns, time.max_ns) for time in trace.times),
        _pack_gaps(trace),
        b"".join(_U32.pack(len(gap.order) // 2) + gap.order for gap in trace.gaps),
        _pack_program(trace.program),
    )
    body = head + _U32.pack(zlib.crc32(head))
    body += b"".join(
        _section(tag, payload) for tag, payload in zip(_TAGS, payloads, strict=True) if ordered or tag != b"SEQU"
    )
    return body + _section(b"END ", _END.pack(zlib.crc32(body), len(body)))


def made_rank(rank: int, ranks: int, calls: Sequence[Call], *comms: Communicator, **other: object) -> RankTrace:
    """Return the trace of a rank that makes its calls one after another; `comms` follow the two predefined ones."""
    made = RankTrace(
        rank=rank,
        world_ranks=ranks,
        trace_id=7,
        elapsed_ns=1000,
        meta={},
        lists=(),
        communicators=(
            Communicator(1, CommKind.WORLD, NONE, tuple(range(ranks)), rank),
            Communicator(2 + rank, CommKind.SELF, NONE, (rank,), 0),
            *comms,
        ),
        calls=tuple(calls),
        times=(CallTime(),) * len(calls),
        gap_probabilities=(0.0, 1.0),
        gaps=(),
        program=tuple(map(DoCall, range(len(calls)))),
    )
    return replace(made, **other)  # type: ignore[arg-type]


def rank_file_name(rank: int) -> str:
    """Return the name of a rank's file in the directory of its run."""
    return f"rank-{rank:06d}.nmtrace"


def write_trace(trace: Trace, directory: Path) -> None:
    """Write one file per rank into `directory`, which must exist; each file appears complete or not at all."""
    for rank in trace.ranks:
        path = directory / rank_file_name(rank.rank)
        part = path.with_name(path.name + ".part")
        part.write_bytes(encode_rank(rank))
        part.replace(path)
