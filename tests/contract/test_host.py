"""What every host must do, whatever carries its trials out."""

import dataclasses

import pytest

from nearmetal.errors import UnavailableError
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.host import Host
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.mpi.table import find_mpi
from nearmetal.workloads.samples import decode


@pytest.fixture(params=["fake", "local"])
def host(request: pytest.FixtureRequest):
    """Every host that works here, opened; the others skip with their reason."""
    if request.param == "fake":
        made: Host = FakeHost({"fail.broken": "it was asked to fail"})
    else:
        try:
            find_mpi("openmpi")
            with NamespaceShell():
                pass
        except UnavailableError as error:
            pytest.skip(error.render())
        made = LocalHost()
    yield made
    made.close()


def order(**changes: object) -> Order:
    options = {"operation": "latency", "sizes": [8, 1024], "iterations": 30, "warmup": 5}
    base = Order(7, 1, PathOrder("veth", "veth"), WorkloadOrder("latency", "engine", options), seed=11)  # type: ignore[arg-type]
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_it_says_what_it_is(host: Host) -> None:
    assert host.kind
    assert host.label
    assert host.slots >= 1


def test_a_trial_gives_samples_facts_and_counters(host: Host) -> None:
    outcome = host.carry_out(order(), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    cells = decode(outcome)
    assert [cell.message_bytes for cell in cells] == [8, 1024]
    assert all(cell.ns.shape == (2, 35) and cell.warmup == 5 for cell in cells)
    assert all((cell.ns > 0).all() for cell in cells)
    assert outcome.facts["cpu.model"]
    assert outcome.facts["mpi.flavour"] == "openmpi"
    assert outcome.counters["sched.context_switches"] > 0
    assert min(outcome.proof.moved_packets.values()) >= 60
    assert outcome.launch_argv


def test_a_trial_that_cannot_be_carried_out_is_an_outcome_not_an_error(host: Host) -> None:
    broken = order(path=PathOrder("broken", "no-such-path"))
    outcome = host.carry_out(broken, carry_out)
    assert outcome.status is TrialStatus.FAILED
    assert outcome.reason
    assert outcome.hint
    assert not outcome.files


def test_trials_after_a_failed_one_are_not_touched_by_it(host: Host) -> None:
    host.carry_out(order(path=PathOrder("broken", "no-such-path")), carry_out)
    assert host.carry_out(order(), carry_out).status is TrialStatus.VALID


def test_closing_twice_does_nothing_more(host: Host) -> None:
    host.close()
    host.close()
