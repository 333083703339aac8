"""The figures in reports, from durations worked out by hand."""

from __future__ import annotations

import pytest

from nearmetal.errors import BadInputError
from nearmetal.workloads.operations import OPERATIONS, Shape, operation_named


def shown(name: str, ns: float, shape: Shape) -> float:
    return operation_named(name).shown(ns, shape)


def test_a_latency_is_half_the_round_trip() -> None:
    assert shown("latency", 3000, Shape(8)) == 1.5
    assert operation_named("latency").unit == "us"


def test_a_bandwidth_counts_the_whole_window() -> None:
    shape = Shape(message_bytes=1_000_000, window_messages=64)
    assert shown("bw", 64_000_000, shape) == 1000.0
    assert shown("bibw", 64_000_000, shape) == 2000.0


def test_a_message_rate_counts_all_pairs() -> None:
    assert shown("message_rate", 64_000, Shape(8, window_messages=64, pairs=2)) == 2e6


def test_a_collective_is_its_duration() -> None:
    assert shown("allreduce", 2500, Shape(8)) == 2.5


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [("latency", 4, "exactly 2"), ("message_rate", 3, "an even number"), ("bcast", 1, "at least 2")],
)
def test_unsupported_numbers_of_ranks_are_refused(name: str, ranks: int, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        operation_named(name).check_ranks(ranks)


def test_supported_numbers_of_ranks_are_accepted() -> None:
    for operation in OPERATIONS.values():
        operation.check_ranks(2)


def test_an_unknown_operation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInputError, match="'waltz'") as caught:
        operation_named("waltz")
    assert "allreduce" in caught.value.hint
