"""A figure that equals a timer is marked."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nearmetal.results.evidence import timers
from nearmetal.run.timers import timers_of
from nearmetal.store.samples import CellSamples

TICK = {"kernel.tick_ns": 4_000_000}


def cell(median_ns: int, operation: str = "latency") -> CellSamples:
    ns = np.full((2, 12), median_ns, np.int64)
    ns[:, :2] = 7  # the warm-up does not count
    ns[1] += 900_000_000  # nor does the rank that replies
    flags = np.zeros(ns.shape, np.uint8)
    ns[0, 2:5], flags[0, 2:5] = 1, 2  # nor what arrived too late
    return CellSamples(operation, 8, 2, (0,), ns * 0, ns, flags)


@pytest.mark.parametrize(
    ("median_ns", "facts", "name"),
    [
        (8_003_300, TICK, "2 ticks of the scheduler (4 ms each)"),
        (4_000_000, TICK, "1 tick of the scheduler (4 ms)"),
        (8_003_300, {}, ""),
        (8_200_000, TICK, ""),
        (16_000_000, TICK, "4 ticks of the scheduler (4 ms each)"),
        (16_160_000, TICK, "4 ticks of the scheduler (4 ms each)"),  # 1 % above, the maximum
        (16_160_001, TICK, ""),
        (20_000_000, TICK, ""),
        (40_100_000, {}, "TCP's shortest delay of an acknowledgement"),
        (203_000_000, {}, ""),
        (200_400_000, TICK, "TCP's shortest retransmission time"),
    ],
)
def test_a_median_that_equals_a_timer_is_named(median_ns: int, facts: dict[str, int], name: str) -> None:
    assert timers_of("engine", [cell(median_ns)], facts) == ({"timer.latency.8": name} if name else {})


def test_windows_and_unknown_operations_are_not_judged() -> None:
    assert timers_of("engine", [cell(8_000_000, "bw"), cell(8_000_000, "cg.A")], TICK) == {}


def test_a_command_that_is_called_like_an_operation_is_not_judged() -> None:
    assert timers_of("command", [cell(8_000_000)], TICK) == {}
    assert timers_of("omb", [cell(8_000_000)], TICK)


@pytest.mark.parametrize(
    ("fact", "cell"),
    [
        ("timer.latency.65536", "latency of 64 KiB"),
        ("timer.latency.0", "latency of 0 B"),
        ("timer.barrier.0", "barrier"),
        ("timer.latency.x", "latency"),
    ],
)
def test_a_caution_names_a_cell_as_tables_do(fact: str, cell: str) -> None:
    """They said `latency of 65536 B` and `barrier of 0 B`."""
    path, outcome = SimpleNamespace(label="tap"), SimpleNamespace(facts={fact: "1 tick"})
    record = SimpleNamespace(order=SimpleNamespace(path=path), outcome=outcome)
    (said,) = timers([record])  # type: ignore[list-item]
    assert said.startswith(f"{cell} takes 1 tick on tap, in 1 trial: ")
