"""The lab itself: it boots, its paths carry traffic, and the same seed gives the same bytes."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import labs
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.samples import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.lab.lab import LabHost
    from nearmetal.study.order import Progress

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("lab"), pytest.mark.timeout(900)]

ENGINE = {"operation": "latency", "sizes": [64], "warmup": 10}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("base") as host:
        yield host


@pytest.fixture(scope="module")
def known(lab: LabHost) -> labs.CachedLab:
    return labs.CachedLab(lab)


def order(
    path: str,
    *,
    seed: int = 1,
    rx_usecs: int = 0,
    timeout_s: float = 30.0,
    iterations: int = 100,
    progress: Progress = "polling",
) -> Order:
    workload = WorkloadOrder("latency", "engine", {**ENGINE, "iterations": iterations}, progress=progress)
    return Order(
        0, 0, PathOrder(path, path), workload, knobs={"nic.rx-usecs": rx_usecs}, seed=seed, timeout_s=timeout_s
    )


def median_ns(outcome: Outcome) -> float:
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    return float(np.median(cell.ns[list(cell.value_ranks)][:, cell.warmup :]))


@labs.LONG  # in `make test`: a machine of a cluster (test_lab_cluster.py)
def test_a_machine_killed_in_a_trial_costs_only_that_trial(lab: LabHost, known: labs.CachedLab) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(labs.carry_out(lab, order("native", seed=9))))
    thread.start()
    while not lab.running_pids:
        pass
    os.kill(lab.running_pids[0], signal.SIGKILL)
    thread.join()
    assert outcomes[0].status is TrialStatus.FAILED
    assert "the emulator ended" in outcomes[0].reason
    assert known.outcomes(order("native"))[0].status is TrialStatus.VALID


@labs.LONG  # in `make test`: machines of their own (test_lab_cluster.py)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(lab: LabHost, known: labs.CachedLab) -> None:
    (first,) = known.outcomes(order("vf"))
    again, other = labs.carry_out(lab, order("vf"), order("vf", seed=6))
    assert first.status is TrialStatus.VALID, first.reason
    assert first == again
    assert first.files["samples"] != other.files["samples"]


@labs.LONG
def test_moderation_dominates_the_function_and_tuning_closes_the_gap(known: labs.CachedLab) -> None:
    outcomes = known.outcomes(*(order(path, rx_usecs=usecs) for usecs in (3, 0) for path in ("native", "vf")))
    native_default, vf_default, native_tuned, vf_tuned = map(median_ns, outcomes)
    # At rx-usecs 3 both drivers adapt their moderation and have two modes each: this holds in all of them.
    assert vf_default - native_default > 3 * abs(vf_tuned - native_tuned)
    assert vf_tuned < 1.3 * native_tuned
    assert vf_tuned < vf_default / 2


# `make test` has one on machines of their own (test_lab_cluster.py), and all of them in namespaces.
@labs.LONG
@pytest.mark.parametrize("path", ["tap", "bridge", "macvlan"])
def test_every_path_crosses_the_wire(lab: LabHost, path: str) -> None:
    (outcome,) = labs.carry_out(lab, replace(order(path), knobs={}))
    assert median_ns(outcome) > 0
    assert all(count > 100 for count in outcome.proof.moved_packets.values())


@labs.LONG
def test_blocking_ranks_sleep_until_their_message_arrives(known: labs.CachedLab) -> None:
    ways: tuple[Progress, ...] = ("polling", "blocking")
    polling, blocking = known.outcomes(*(order("native", iterations=1000, progress=way) for way in ways))
    assert polling.status is blocking.status is TrialStatus.VALID, polling.reason or blocking.reason
    assert blocking.facts["mpi.progress"] == "blocking"
    # Ranks that poll take turns on the processor until a message is there, six of them in a round trip; others wait in
    # epoll, and take three. Starting MPI takes over a thousand either way.
    assert polling.counters["sched.context_switches"] > 1.5 * blocking.counters["sched.context_switches"]


def test_virtual_time_has_a_limit(lab: LabHost) -> None:
    (outcome,) = labs.carry_out(lab, order("native", timeout_s=0.01))
    assert outcome.status is TrialStatus.FAILED
    assert "limit" in outcome.reason or "did not end within" in outcome.reason
