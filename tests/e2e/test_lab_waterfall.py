"""A traced trial in the lab: the parts of every message add up to what the engine measured beside the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import labs
from nearmetal.facts.ftrace import read_trace
from nearmetal.facts.waterfall import RoundTrip, mean_ns, round_trips
from nearmetal.results.waterfalls import windows_of
from nearmetal.study.order import Order, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.sample_file import read_sample_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.lab.lab import LabHost
    from nearmetal.study.order import Scalar

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("lab"), pytest.mark.timeout(900)]

ITERATIONS = 60


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("base") as host:
        yield host


def traced(lab: LabHost, path: str, rx_usecs: int) -> list[RoundTrip]:
    options: dict[str, Scalar | list[Scalar]] = {"operation": "latency", "sizes": [64], "iterations": ITERATIONS}
    workload = WorkloadOrder("traced", "engine", {**options, "warmup": 10, "waterfall": True})
    order = Order(0, 0, PathOrder(path, path), workload, knobs={"nic.rx-usecs": rx_usecs}, seed=1, timeout_s=30)
    (outcome,) = labs.carry_out(lab, order)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    windows = windows_of(read_sample_file(outcome.files["samples"]).cells[0])
    return round_trips(read_trace(outcome.files), windows, message_bytes=64, shaped_wire=False)


@labs.LONG  # in `make test`: a message between two machines (test_lab_cluster.py)
@pytest.mark.parametrize("path", ["native", "vf"])
def test_the_parts_add_up_and_tuning_removes_the_moderation(lab: LabHost, path: str) -> None:
    held, free = traced(lab, path, 3), traced(lab, path, 0)
    for trips in (held, free):
        assert len(trips) == ITERATIONS
        assert max(trip.residue for trip in trips) <= 0.05
    assert mean_ns(held, "moderation wait") > 5 * mean_ns(free, "moderation wait")
