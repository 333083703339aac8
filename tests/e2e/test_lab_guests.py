"""Guests under KVM inside the lab: they finish, their traffic takes the path, and their exits are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import labs
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.samples import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.lab.lab import LabHost

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("lab"), pytest.mark.timeout(900)]

ROUND_TRIPS = {"sizes": [64], "protocol": "tcp", "seconds": 1}
PING_PONG = {"operation": "latency", "sizes": [64], "iterations": 60, "warmup": 10}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("kvm") as host:
        yield host


def order(path: str, seed: int) -> Order:
    return of(path, seed, WorkloadOrder("round-trip", "sockperf", dict(ROUND_TRIPS)))


def of(path: str, seed: int, workload: WorkloadOrder) -> Order:
    return Order(0, 0, PathOrder(path, path, {"rx_usecs": 0}), workload, seed=seed, timeout_s=60.0)


def median_ns(outcome: Outcome) -> float:
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    return float(np.median(cell.ns[list(cell.value_ranks)][:, cell.warmup :]))


@pytest.fixture(scope="module")
def known(lab: LabHost) -> labs.CachedLab:
    return labs.CachedLab(lab)


# With these seeds guests hung for ever until each interrupt was delivered only once: docs/explanation/lab-stalls.md.
VHOST, FUNCTION = order("vhost", 6227893615960186515), order("guest-vf", 2)


# Blocking: a rank that polls inside a guest would keep the one virtual CPU from its peer for a time slice.
FEW = of("guest-vf", 2, WorkloadOrder("latency", "engine", dict(PING_PONG), progress="blocking"))


@pytest.mark.parametrize(
    ("wanted", "round_trips"),
    [(FEW, 70), pytest.param(FUNCTION, 1000, marks=labs.LONG), pytest.param(VHOST, 1000, marks=labs.LONG)],
    ids=["guest-vf", "guest-vf for a second", "vhost for a second"],
)
def test_a_guest_carries_messages_and_its_exits_are_counted(
    known: labs.CachedLab, wanted: Order, round_trips: int
) -> None:
    (outcome,) = known.outcomes(wanted)
    assert median_ns(outcome) > 0
    assert decode(outcome)[0].ns.shape[1] >= round_trips
    assert all(count > round_trips for count in outcome.proof.moved_packets.values())
    assert outcome.counters["kvm.exits"] > round_trips
    assert outcome.counters["kvm.irq_injections"] > round_trips


@labs.LONG
def test_the_function_in_a_guest_is_faster_than_vhost(known: labs.CachedLab) -> None:
    function, vhost = known.outcomes(FUNCTION, VHOST)
    assert median_ns(function) < median_ns(vhost)
