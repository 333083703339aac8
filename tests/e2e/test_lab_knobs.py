"""Knobs on igb and igbvf in the lab: held during a trial, read back, and restored before the trial counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import labs
from nearmetal.study.order import Order, PathOrder, TrialStatus, WorkloadOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.lab.lab import LabHost
    from nearmetal.study.order import Scalar

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("lab"), pytest.mark.timeout(900)]

ENGINE = {"operation": "latency", "sizes": [64], "iterations": 20, "warmup": 2}
# Every value differs from the drivers' defaults.
ON_BOTH: dict[str, Scalar] = {
    "nic.ring-rx": 512,
    "nic.gro": "off",
    "nic.mtu": 1400,
    "nic.irq-affinity": "0",
    "nic.rx-usecs": 0,
}
OF_THE_KERNEL: dict[str, Scalar] = {
    "nic.napi-defer-hard-irqs": 2,
    "nic.gro-flush-timeout-ns": 20000,
    "host.busy_read": 50,
}
IGBVF_READS_BACK = {"nic.rx-usecs": "1"}
"""igbvf reads 1 back for 0 (`igbvf_get_coalesce`, Linux 6.1)."""


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("base") as host:
        yield host


@pytest.mark.parametrize(
    ("path", "knobs", "reads_back"),
    [
        ("native", ON_BOTH | OF_THE_KERNEL, {}),
        pytest.param("vf", ON_BOTH | OF_THE_KERNEL, IGBVF_READS_BACK, marks=labs.LONG),
    ],
    ids=["igb", "igbvf"],
)
def test_settings_are_held_and_restored(
    lab: LabHost, path: str, knobs: dict[str, Scalar], reads_back: dict[str, str]
) -> None:
    workload = WorkloadOrder("latency", "engine", dict(ENGINE))
    order = Order(0, 0, PathOrder(path, path), workload, knobs=knobs, seed=1, timeout_s=30.0)
    (outcome,) = labs.carry_out(lab, order)
    # A knob that could not be restored would have failed the trial.
    assert outcome.status is TrialStatus.VALID, outcome.reason
    for name, value in knobs.items():
        assert outcome.facts[f"knob.{name}"] == reads_back.get(name, str(value)), name
        assert f"knob.was.{name}" in outcome.facts
    # The read-back of igbvf is inconclusive, and the trial records it.
    assert ("knob.unproven.nic.rx-usecs" in outcome.facts) == (path == "vf")
    assert not str(outcome.facts.get("knob.effect.nic.rx-usecs.n0/eth0", "")).startswith("contradicts")
