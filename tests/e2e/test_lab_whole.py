"""Every path, machine and wire of the real lab once: minutes each, so only with `make verify-lab`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import labs
from nearmetal.study.order import AGAIN, Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder
from nearmetal.study.plan import block
from nearmetal.study.shipped import read_study
from nearmetal.workloads.samples import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [
    pytest.mark.lab,
    pytest.mark.xdist_group("lab"),
    pytest.mark.timeout(1800),
    labs.LONG,
]

STUDIES = Path(__file__).parents[2] / "studies"
ROUND_TRIP = WorkloadOrder("round-trip", "sockperf", {"sizes": [64], "protocol": "tcp", "seconds": 1})
MPI = WorkloadOrder("latency", "engine", {"operation": "latency", "sizes": [64], "iterations": 100, "warmup": 10})
FOUR_GUESTS = (0, 1, 0, 2, 0, 3, 0, 4)


def verbs(operation: str, **options: Scalar) -> WorkloadOrder:
    size = 8 if "atomic" in operation else 64
    shared = {"operation": operation, "sizes": [size], "iterations": 200, "gid_index": 1, "pin": True}
    return WorkloadOrder(operation, "perftest", {**shared, **options})


def carried_out(machine: str, path: str, workload: WorkloadOrder, options: Mapping[str, Scalar]) -> Outcome:
    order = Order(0, 0, PathOrder(path, path, {"rx_usecs": 0, **options}), workload, seed=3, timeout_s=90.0)
    with labs.opened(machine) as host:
        (outcome,) = labs.carry_out(host, order)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    return outcome


def median_ns(outcome: Outcome) -> float:
    return float(np.median(decode(outcome)[0].ns))


@pytest.mark.parametrize("path", ["native", "guest-vf", "passthrough", "vhost", "virtio", "e1000"])
def test_every_path_carries_round_trips(path: str) -> None:
    outcome = carried_out("kvm", path, ROUND_TRIP, {})
    assert (outcome.counters.get("kvm.exits", 0) > outcome.counters["tool.iterations"]) == (path != "native")


@pytest.mark.parametrize("path", ["guest-vf", "vhost"])
def test_four_guests_share_a_port(path: str) -> None:
    workload = WorkloadOrder("stream", "nuttcp", {"seconds": 1, "line_rate_mbit": 2000}, placement=FOUR_GUESTS)
    outcome = carried_out("kvm", path, workload, {"wire_rate_mbit": 2000})
    assert outcome.counters["tool.fairness_ppm"] > 900_000
    assert 0 < outcome.counters["tool.line_rate_ppm"] < 1_050_000


@pytest.mark.parametrize("path", ["native", "vf"])
def test_two_ranks_poll_on_a_virtual_cpu_each(path: str) -> None:
    assert median_ns(carried_out("smp2", path, MPI, {})) < 100_000  # a shared CPU would show its time slice, 4 ms


@pytest.mark.parametrize("path", ["native-roce", "vf-roce"])
@pytest.mark.parametrize("operation", ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"])
def test_verbs_with_polling_are_measured(path: str, operation: str) -> None:
    assert median_ns(carried_out("smp2", path, verbs(operation), {})) < 200_000


@pytest.mark.parametrize("srq", [False, True])
@pytest.mark.parametrize("operation", ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"])
def test_bandwidth_of_verbs_is_measured(operation: str, srq: bool) -> None:
    if srq and operation != "ib_send_bw":
        pytest.skip("only sends take from a shared receive queue")
    outcome = carried_out("smp2", "vf-roce", verbs(operation, srq=srq), {})
    (cell,) = decode(outcome)
    assert (cell.operation, cell.ns.shape) == (operation, (1, 1))


def test_verbs_with_events_are_measured() -> None:
    assert median_ns(carried_out("base", "vf-roce", verbs("ib_send_lat", events=True, pin=False), {})) < 200_000


def test_mpich_ends_every_launch_between_guests_of_moderated_ports() -> None:
    """Its version in the image hung in half of them before the engine let all ranks enter MPI_Finalize together."""
    first = Order(0, 0, PathOrder("guest-vf", "guest-vf"), MPI, knobs={"nic.rx-usecs": 3}, mpi="mpich", timeout_s=30.0)
    with labs.opened("kvm", nodes=2) as host:
        outcomes = labs.carry_out(host, *(replace(first, seed=seed) for seed in range(6)))
    assert [outcome.reason for outcome in outcomes] == [""] * 6
    assert all(outcome.status is TrialStatus.VALID for outcome in outcomes)


def test_the_wire_has_a_delay() -> None:
    near = median_ns(carried_out("base", "native", ROUND_TRIP, {}))
    far = median_ns(carried_out("base", "native", ROUND_TRIP, {"wire_delay_us": 50}))
    assert 2 * 50_000 <= far - near < 2 * 65_000  # two ways; tc-netem adds some microseconds of its own


def shipped() -> Iterator[tuple[str, str]]:
    """Yield every workload of the studies that run in the lab."""
    for file in sorted(STUDIES.glob("*.toml")):
        study, _ = read_study(file)
        if study.host.kind == "lab":
            yield from ((file.stem, workload.name) for workload in study.workload)


@pytest.mark.parametrize(("name", "workload"), [*shipped()])
def test_every_workload_of_a_shipped_study_is_measured(name: str, workload: str) -> None:
    study, _ = read_study(STUDIES / f"{name}.toml")
    # MPI runs over TCP in the lab: it has no shared receive queue, as the study states.
    orders = [one for one in block(study, 0) if one.workload.label == workload and "mpi.srq-limit" not in one.knobs]
    order = min(orders, key=lambda one: one.path.label in {study.baseline, study.baseline + AGAIN})  # traces: no other
    with labs.opened(**{"machine": "base", **study.host.options}) as host:
        (outcome,) = labs.carry_out(host, order)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert max(int(cell.ns.max()) for cell in decode(outcome)) > 0, "communication may be 0, the total may not"


def test_a_whole_fabric_of_virtual_functions() -> None:
    options: dict[str, Scalar | list[Scalar]] = {
        "latency_iterations": 10,
        "bandwidth_bytes": 1024,
        "bandwidth_window": 4,
    }
    workload = WorkloadOrder("fabric", "fabric", {**options, "bandwidth_iterations": 3}, (0, 1, 2, 3))
    outcome = carried_out("base", "vf", workload, {})
    assert [cell.operation for cell in decode(outcome)] == ["fabric.latency", "fabric.bandwidth"]
    assert min(outcome.proof.moved_packets.values()) >= 3 * 10
