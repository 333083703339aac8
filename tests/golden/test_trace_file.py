"""Trace files of version 1 must stay readable, and are still written the same way."""

from __future__ import annotations

from pathlib import Path

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

GOLDEN = Path(__file__).parent / "trace-v1.nmtrace"

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


def test_a_file_of_version_1_is_read() -> None:
    assert decode_rank(GOLDEN.read_bytes()) == TRACE


def test_the_writer_still_writes_version_1() -> None:
    assert encode_rank(TRACE) == GOLDEN.read_bytes()
