"""Lines and segments of message times, exactly: what the fit is made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from nearmetal.predict.models import UNBOUNDED, Segment
from nearmetal.predict.segments import (
    MAX_SEGMENTS,
    OWN_RESIDUAL,
    cut_by_protocol,
    end_of_segment,
    far_from_its_protocol,
    line_through,
    segment_of,
    sizes_beside,
    with_residuals,
    without_handshake,
)

LINE = Segment(UNBOUNDED, 10_000, 1000, 1000, 0, 0, 1_000_000)
SIZES = np.array([8.0, 64, 256, 512, 1024])


@pytest.mark.parametrize(
    ("sizes", "times", "line"),
    [
        ((8,), (30,), (30, 0)),
        ((8, 8), (10, 30), (20, 0)),
        ((8, 64), (18, 130), (2, 2)),
        ((8, 64, 512), (30, 30, 30), (30, 0)),
        ((1, 2), (1, 4), (0, 1.2)),  # the least relative error of a line from 0: 3 / 2.5
        ((1, 2), (4, 1), (1.25 / 1.0625, 0)),  # and of a level
    ],
)
def test_a_line_has_the_least_relative_error(
    sizes: tuple[float, ...], times: tuple[float, ...], line: tuple[float, float]
) -> None:
    assert line_through(np.array(sizes, float), np.array(times, float)) == pytest.approx(line)


@pytest.mark.parametrize(("limit", "apart"), [(256, True), (512, False), (64, True), (8, False), (4096, False)])
def test_sizes_of_two_protocols_are_never_on_one_line(limit: int, apart: bool) -> None:
    """A line needs two sizes; where a protocol has one, it shares that of the other."""
    found = cut_by_protocol(SIZES, 100 + SIZES, limit)
    assert found[0][0] == 0
    assert found[-1][1] == SIZES.size
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert (np.searchsorted(SIZES, limit, side="right") in {first for first, _ in found[1:]}) is apart


def test_a_step_at_every_second_size_makes_as_many_segments_as_allowed() -> None:
    steps = 2 * MAX_SEGMENTS
    sizes = 2.0 ** np.arange(2 * steps)
    times = np.repeat(10.0 ** np.arange(steps), 2)
    found = cut_by_protocol(sizes, times, UNBOUNDED)
    assert len(found) == MAX_SEGMENTS
    assert (found[0][0], found[-1][1]) == (0, sizes.size)
    few = cut_by_protocol(sizes[:6], times[:6], UNBOUNDED)
    assert few == [(0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize(
    ("stop", "limit", "end"),
    [
        (1, 63, 63),
        (1, 64, 8),
        (2, 64, 64),
        (2, 63, 64),
        (2, 255, 255),
        (2, 256, 64),
        (4, UNBOUNDED, 512),
        (5, 256, UNBOUNDED),
    ],
)
def test_a_segment_ends_at_the_eager_limit_or_its_largest_size(stop: int, limit: int, end: int) -> None:
    assert end_of_segment(SIZES, stop, limit) == end


@pytest.mark.parametrize(
    ("cut", "limit", "beside"),
    [(0, 4096, None), (1, 4096, (8, 64)), (4, 4096, (512, 1024)), (5, 4096, None), (2, 64, None), (2, 63, (64, 256))],
)
def test_a_cut_has_sizes_on_both_sides_within_a_protocol(cut: int, limit: int, beside: tuple[int, int] | None) -> None:
    assert sizes_beside(SIZES, cut, limit) == beside


def test_sizes_far_from_the_line_of_their_protocol_are_found() -> None:
    measured = SIZES.astype(np.int64)  # 8, 64, 256 eager; 512, 1024 not
    sizes = np.array([4, 512, 513, 600])
    assert far_from_its_protocol(measured, sizes, 2.0, 300).tolist() == [False] * 4
    assert far_from_its_protocol(measured[[0, 1, 3, 4]], np.array([128, 129, 255, 256]), 2.0, 200).tolist() == [
        *(False, True),  # eager, within twice 64 B and beyond
        *(True, False),  # the others, below half of 512 B and not
    ]
    assert not far_from_its_protocol(measured[[0, 3, 4]], sizes, 2.0, 300).any(), "one size makes no line"


@pytest.mark.parametrize(("samples", "own"), [(OWN_RESIDUAL - 1, False), (OWN_RESIDUAL, True)])
def test_a_size_with_enough_samples_has_a_residual_of_its_own(samples: int, own: bool) -> None:
    spread = np.arange(samples)
    parts = with_residuals(LINE, {8: 1000 + spread, 64: 1000 + 9 * spread}, {8: 1000.0, 64: 1100.0}, None, None)
    assert (parts[0].residual != parts[-1].residual) is own


@pytest.mark.parametrize(
    ("busier", "total", "gap", "overheads"),
    [
        (300.0, None, 8000.0, (300, 300)),
        (3000.0, None, 8000.0, (500, 500)),  # half of the way at most
        (3000.0, None, 800.0, (200, 200)),  # a quarter of the gap at most
        (None, None, 8000.0, (0, 0)),
        (300.0, 400.0, 8000.0, (300, 100)),
        (300.0, 900.0, 8000.0, (300, 300)),
        (3000.0, 4000.0, 8000.0, (1000, 0)),  # the whole way at most
        (None, 400.0, 8000.0, (0, 0)),
    ],
)
def test_overheads_are_within_the_way(
    busier: float | None, total: float | None, gap: float, overheads: tuple[int, int]
) -> None:
    found = segment_of(up_to_bytes=64, smallest=(8.0, gap), intercept=1000.0, slope=0.5, busier=busier, total=total)
    assert (found.send_overhead_ps, found.recv_overhead_ps) == tuple(1000 * ns for ns in overheads)
    assert found.latency_ps == 1000 * (1000 - sum(overheads))
    assert (found.up_to_bytes, found.latency_fs_per_byte, found.fs_per_byte) == (64, 500_000, 500_000)


def one_way_ns(parts: list[Segment], size: int) -> float:
    return next(part for part in parts if size <= part.up_to_bytes).one_way_ps(size) / 1000


@pytest.mark.parametrize(
    ("times", "between"),
    [
        ({100: 102.0, 400: 252.0}, {150: 127.0, 200: 152.0, 300: 202.0}),  # on the line through both
        ({100: 20.0, 400: 10.0}, {150: 20.0, 200: 20.0, 201: 10.0, 300: 10.0}),  # a step down half-way
        ({100: 20.0, 400: 402.0}, {150: 29.0, 200: 38.0, 201: 203.0, 300: 302.0}),  # from the overheads
        ({1: 3.0, 400: 1202.0}, {15: 17.0, 300: 902.0}),
    ],
)
def test_times_between_measured_sizes_stay_between_theirs(times: dict[int, float], between: dict[int, float]) -> None:
    samples = {size: np.full(200, round(ns)) for size, ns in times.items()}
    parts = with_residuals(LINE, samples, times, None, None)
    assert {size: one_way_ns(parts, size) for size in times} == pytest.approx(times, abs=0.01)
    assert {size: one_way_ns(parts, size) for size in between} == pytest.approx(between, abs=0.3)


@pytest.mark.parametrize(("fetched", "less_ns"), [(True, 12), (False, 23)])
def test_a_large_message_takes_its_handshake_less(fetched: bool, less_ns: int) -> None:
    large = replace(LINE, latency_ps=30_000)
    small = replace(LINE, up_to_bytes=512)
    cut = without_handshake([small, large], 1000, fetched=fetched)
    assert [part.up_to_bytes for part in cut] == [512, 1000, UNBOUNDED]
    assert [part.latency_ps for part in cut] == [10_000, 30_000, 30_000 - 1000 * less_ns]
    assert without_handshake([small, large], 512, fetched=fetched)[1].latency_ps == 30_000 - 1000 * less_ns
    assert without_handshake([small, large], UNBOUNDED, fetched=fetched) == (small, large)
    # What the way does not hold is taken from both ends alike, and none of them has less than nothing.
    short = without_handshake([small, replace(large, latency_ps=less_ns * 1000 - 1000)], 512, fetched=fetched)[1]
    assert (short.latency_ps, short.send_overhead_ps, short.recv_overhead_ps) == (0, 500, 500)
