"""A trace file of version 1 is read for ever, and the recorder still writes it to the byte."""

from __future__ import annotations

from pathlib import Path

from nearmetal.predict.trace import NONE, Call, CallKind, CallTime, DoCall, DoGap, Repeat
from nearmetal.predict.trace_file import decode_rank, encode_rank
from tests.trace_recorder import Event, drive, script

GOLDEN = Path(__file__).parent / "trace-v1.nmtrace"
TURN = [
    Event(1, peer=2, message_bytes=4096, code=1, gap_ns=1000, inside_ns=30),
    Event(2, peer=0, message_bytes=4096, code=2, gap_ns=5, inside_ns=700),
]
EVENTS = [Event(16, code=9), *TURN * 10_000, Event(23, message_bytes=21, list_length=3, code=4)]


def test_version_1_is_read() -> None:
    trace = decode_rank(GOLDEN.read_bytes())
    assert (trace.rank, trace.world_ranks, trace.trace_id, trace.node) == (1, 4, 42, "n1")
    assert trace.calls == (
        Call(CallKind.BARRIER),
        Call(CallKind.SEND, peer=2, message_bytes=4096),
        Call(CallKind.RECV, peer=0, message_bytes=4096),
        Call(CallKind.ALLTOALL, message_bytes=21, list_a=2, request=NONE),
    )
    assert trace.lists == ((0, 1, 2, 3), (1,), (7, 7, 7))
    assert trace.times[2] == CallTime(10_000, 7_000_000, 700)
    turn = (DoGap(1), DoCall(2), DoGap(2), DoCall(1))
    assert trace.program == (
        DoCall(0),
        DoGap(0),
        DoCall(1),
        Repeat(9999, turn),
        DoGap(1),
        DoCall(2),
        DoGap(3),
        DoCall(3),
    )
    assert [(gap.visits, gap.total_ns) for gap in trace.gaps] == [
        (1, 1000),
        (10_000, 50_000),
        (9999, 9_999_000),
        (1, 10),
    ]


def test_the_recorder_writes_version_1(tmp_path: Path) -> None:
    assert drive(tmp_path, script(EVENTS)).ok
    assert (tmp_path / "rank.nmtrace").read_bytes() == GOLDEN.read_bytes()


def test_the_python_writer_agrees_with_the_recorder() -> None:
    assert encode_rank(decode_rank(GOLDEN.read_bytes())) == GOLDEN.read_bytes()
