"""Trace files of every version must stay readable, and are still written the same way."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from nearmetal.predict.trace import (
    NONE,
    Call,
    CallFlag,
    CallKind,
    CallTime,
    CommKind,
    Communicator,
    DoCall,
    DoGap,
    Gap,
    RankTrace,
    Repeat,
)
from nearmetal.predict.trace_file import decode_rank
from tests.trace_writer import encode_rank

HERE = Path(__file__).parent

TRACE = RankTrace(
    rank=1,
    world_ranks=4,
    trace_id=0x0123_4567_89AB_CDEF,
    elapsed_ns=123_456_789,
    meta={"node": "n1", "command": "./halo 10", "library": "Open MPI v5.0.8", "threads": "single"},
    lists=((0, 1, 2, 3), (1,), (0, 1), (2, 2), (1, 0), (100, 200, 300, 7)),
    communicators=(
        Communicator(1, CommKind.WORLD, NONE, (0, 1, 2, 3), 1),
        Communicator(3, CommKind.SELF, NONE, (1,), 0),
        Communicator(0xFEDC_BA98, CommKind.CART, 0, (0, 1, 2, 3), 1, (2, 2), (1, 0)),
    ),
    calls=(
        Call(CallKind.CART_CREATE, request=2),
        Call(CallKind.RECV, CallFlag.NONBLOCKING | CallFlag.ANY_SOURCE, 2, -1, 5, 8192, request=0, type_bytes=8),
        Call(CallKind.SEND, CallFlag.NONBLOCKING, 2, 3, 5, 8192, request=1, type_bytes=8),
        Call(CallKind.WAIT, request=2),
        Call(CallKind.ALLTOALL, CallFlag.VECTOR, message_bytes=607, list_a=5, list_b=5),
    ),
    times=(
        CallTime(1, 90_000, 90_000),
        CallTime(10_000, 4_000_000, 9_000),
        CallTime(10_000, 5_000_000, 9_100),
        CallTime(10_000, 80_000_000, 700_000),
        CallTime(1, 50_000, 50_000),
    ),
    gap_probabilities=(0.0, 0.5, 0.99, 1.0),
    gaps=(Gap(10_000, 31_000_000, (2000, 3000, 5000, 900_000)),),
    program=(DoCall(0), Repeat(10_000, (DoGap(0), DoCall(1), DoCall(2), DoCall(3))), DoCall(4)),
)


CANCELLED = replace(
    TRACE,
    calls=(*TRACE.calls[:3], Call(CallKind.WAIT, CallFlag.CANCELLED, request=1), TRACE.calls[4]),
    gaps=(replace(TRACE.gaps[0], order=b"\1\0\2\0"),),
)
"""What version 3 has more: the order of a gap, as version 2, and a wait that cancels."""


@pytest.mark.parametrize(("version", "trace"), [(1, TRACE), (3, CANCELLED)])
def test_a_file_is_read_and_still_written_so(version: int, trace: RankTrace) -> None:
    golden = (HERE / f"trace-v{version}.nmtrace").read_bytes()
    assert decode_rank(golden) == trace
    assert encode_rank(trace) == golden
    assert struct.unpack_from("<H", golden, 8) == (version,)
