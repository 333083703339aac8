"""Guests under KVM inside the lab: they finish, their traffic takes the path, and what they cost is counted."""

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
LEAST_ROUND_TRIPS = 1000


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("kvm") as host:
        yield host


def order(path: str, seed: int) -> Order:
    # Blocking: a rank that polls inside a guest would keep the one virtual CPU from its peer for a time slice.
    workload = WorkloadOrder("round-trip", "sockperf", dict(ROUND_TRIPS))
    return Order(0, 0, PathOrder(path, path, {"rx_usecs": 0}), workload, seed=seed, timeout_s=60.0)


def median_ns(outcome: Outcome) -> float:
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    assert cell.ns.shape[1] > LEAST_ROUND_TRIPS
    return float(np.median(cell.ns))


@pytest.fixture(scope="module")
def known(lab: LabHost) -> labs.Known:
    return labs.Known(lab)


# With these seeds guests hung for ever before interrupts were delivered once: docs/explanation/lab-stalls.md.
VHOST, FUNCTION = order("vhost", 6227893615960186515), order("guest-vf", 2)


@pytest.mark.parametrize("wanted", [FUNCTION, pytest.param(VHOST, marks=labs.LONG)], ids=lambda one: one.path.kind)
def test_a_guest_carries_messages_and_its_exits_are_counted(known: labs.Known, wanted: Order) -> None:
    (outcome,) = known.outcomes(wanted)
    assert median_ns(outcome) > 0
    assert all(count > LEAST_ROUND_TRIPS for count in outcome.proof.moved_packets.values())
    assert outcome.counters["kvm.exits"] > LEAST_ROUND_TRIPS
    assert outcome.counters["kvm.irq_injections"] > LEAST_ROUND_TRIPS


@labs.LONG
def test_the_function_in_a_guest_is_faster_than_vhost(known: labs.Known) -> None:
    function, vhost = known.outcomes(FUNCTION, VHOST)
    assert median_ns(function) < median_ns(vhost)
