"""The trace file: written traces are read back, and anything else is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.errors import ForeignFileError
from nearmetal.predict.trace import (
    NONE,
    Call,
    CallFlag,
    CallKind,
    CallTime,
    DoCall,
    DoGap,
    Gap,
    RankTrace,
    Repeat,
    Trace,
)
from nearmetal.predict.trace_file import decode_rank, read_trace
from tests.golden.test_trace_file import TRACE
from tests.trace_writer import encode_rank, made_rank, rank_file_name, write_trace

if TYPE_CHECKING:
    from pathlib import Path

U64 = st.integers(0, 2**64 - 1)
LISTS = ((0, 1, 2, 3), (1,), (1, 2), (7, 7, 7, 100, 50, 0), (2, 2), (1, 0))

calls = st.builds(
    Call,
    kind=st.sampled_from(CallKind),
    flags=st.sampled_from([CallFlag.NONE, CallFlag.NONBLOCKING, CallFlag.ANY_SOURCE | CallFlag.ANY_TAG]),
    comm=st.sampled_from([0, 2]),
    peer=st.integers(-1, TRACE.world_ranks - 1),
    tag=st.integers(-(2**31), 2**31 - 1),
    message_bytes=U64,
    recv_bytes=U64,
    request=st.integers(0, len(LISTS) - 1),
    list_a=st.sampled_from([NONE, 0, 3]),
).map(lambda call: replace(call, request=2) if call.kind.creates else call)
gaps = st.builds(
    lambda ns, order: Gap(len(ns), sum(ns) % 2**64, tuple(sorted(ns)), order[: len(order) // 2 * 2]),
    st.lists(U64, min_size=3, max_size=3),
    st.binary(max_size=6),
)


@st.composite
def traces(draw: st.DrawFn) -> RankTrace:
    table = draw(st.lists(calls, min_size=1, max_size=4))
    sites = draw(st.lists(gaps, min_size=1, max_size=3))
    leaf = st.integers(0, len(table) - 1).map(DoCall) | st.integers(0, len(sites) - 1).map(DoGap)
    step = st.recursive(
        leaf,
        lambda inner: st.builds(Repeat, st.integers(1, 9), st.lists(inner, min_size=1, max_size=3).map(tuple)),
        max_leaves=8,
    )
    return replace(
        TRACE,
        trace_id=draw(U64),
        elapsed_ns=draw(U64),
        meta={"node": "n1", "command": draw(st.text(st.characters(exclude_characters="\n", codec="utf-8")))},
        lists=LISTS,
        calls=tuple(table),
        times=tuple(CallTime(i, draw(U64), draw(U64)) for i in range(len(table))),
        gap_probabilities=(0.0, 0.5, 1.0),
        gaps=tuple(sites),
        program=tuple(draw(st.lists(step, max_size=4))),
    )


def with_defaults(rank: int) -> RankTrace:
    return made_rank(
        rank,
        2,
        [Call(CallKind.BARRIER)],
        meta={"node": f"n{rank}"},
        times=(CallTime(10_000, 5, 5),),
        program=(Repeat(10_000, (DoCall(0),)),),
    )


@given(traces())
def test_a_trace_round_trips(trace: RankTrace) -> None:
    assert decode_rank(encode_rank(trace)) == trace


def test_more_ordered_durations_than_visits_are_refused() -> None:
    trace = replace(with_defaults(0), gaps=(Gap(1, 5, (5, 5), b"\5\0\5\0"),))
    with pytest.raises(ForeignFileError, match="2 durations of a gap that was visited 1 times"):
        decode_rank(encode_rank(trace))


def test_a_flag_that_is_not_known_is_refused() -> None:
    """It may change what the call does: readers of version 2 waited for what a program had cancelled."""
    file = encode_rank(made_rank(0, 1, [Call(CallKind.BARRIER, cast("CallFlag", 1 << 15))]))
    with pytest.raises(ForeignFileError, match="a call has flags 0x8000; this reader knows 0x7ff"):
        decode_rank(file)


@given(traces(), st.data())
def test_a_truncated_file_is_refused(trace: RankTrace, data: st.DataObject) -> None:
    whole = encode_rank(trace)
    keep = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ForeignFileError, match="not a complete trace file"):
        decode_rank(whole[:keep])


@given(traces(), st.data())
def test_a_changed_bit_is_refused(trace: RankTrace, data: st.DataObject) -> None:
    damaged = bytearray(encode_rank(trace))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ForeignFileError):
        decode_rank(bytes(damaged))


@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with contextlib.suppress(ForeignFileError):
        pytest.fail(f"read {decode_rank(data)}")


def test_ten_thousand_equal_steps_take_a_few_bytes() -> None:
    once = replace(with_defaults(0), program=(DoCall(0),))
    assert len(encode_rank(with_defaults(0))) - len(encode_rank(once)) < 8


def test_a_call_outside_the_tables_is_refused() -> None:
    trace = with_defaults(0)
    for broken in (
        replace(trace, program=(DoCall(1),)),
        replace(trace, program=(DoGap(0),)),
        replace(trace, calls=(Call(CallKind.SEND, peer=2),)),
        replace(trace, calls=(Call(CallKind.SEND, comm=2),)),
        replace(trace, calls=(Call(CallKind.WAIT, request=9),)),
        replace(trace, calls=(Call(CallKind.COMM_SPLIT, tag=1, request=2),)),
    ):
        with pytest.raises(ForeignFileError):
            decode_rank(encode_rank(broken))


def test_a_run_is_read_in_rank_order(tmp_path: Path) -> None:
    write_trace(Trace((with_defaults(1), with_defaults(0))), tmp_path)
    assert [rank.node for rank in read_trace(tmp_path).ranks] == ["n0", "n1"]


def test_missing_ranks_and_mixed_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match="holds no trace"):
        read_trace(tmp_path)
    write_trace(Trace((with_defaults(0),)), tmp_path)
    with pytest.raises(ForeignFileError, match="1 of 2 ranks"):
        read_trace(tmp_path)
    (tmp_path / rank_file_name(1)).write_bytes(encode_rank(replace(with_defaults(1), trace_id=8)))
    with pytest.raises(ForeignFileError, match="mixes 2 runs"):
        read_trace(tmp_path)
    write_trace(Trace((with_defaults(0), with_defaults(1))), tmp_path)
    (tmp_path / rank_file_name(5)).write_bytes(encode_rank(with_defaults(1)))
    with pytest.raises(ForeignFileError, match="holds rank 1 in 2 files"):
        read_trace(tmp_path)
