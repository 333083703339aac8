"""Allocations that are lost, refused or never come."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING

import pytest

import slurm
from nearmetal.errors import TrialError
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.slurm import Slurm, SrunStarter
from nearmetal.hosts.far.shell import MachinesShell
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

DECLARED = Order(
    0,
    0,
    PathOrder("p", "declared"),
    WorkloadOrder("l", "engine", {"operation": "latency", "sizes": [8], "iterations": 30}),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory):
    with slurm.host(tmp_path_factory.mktemp("slurm"), mpi="mpich", allocations=2) as made:
        yield made


def tool(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout


def look(shell: Shell, order: Order) -> Outcome:
    """Carry out no launch: say which job this is."""
    del order
    shell.add_node("n0")
    return Outcome(TrialStatus.VALID, said=shell.run(["hostname"], node="n0").text.strip())


def test_trials_share_an_allocation_until_its_blocks_are_over(host: BatchHost) -> None:
    jobs = [
        host.carry_out(dataclasses.replace(DECLARED, block=block, mpi="mpich"), look).facts["slurm.job"]
        for block in (0, 3, 4)
    ]
    assert jobs[0] == jobs[1] != jobs[2]


def test_an_allocation_that_is_cancelled_is_replaced_and_the_trial_goes_on(host: BatchHost) -> None:
    seen: list[str] = []

    def cancelled_once(shell: Shell, order: Order) -> Outcome:
        if not seen:
            assert isinstance(shell, MachinesShell)
            assert isinstance(shell.site.starter, SrunStarter)
            seen.append(shell.site.starter.job)
            tasks = dict(line.split()[::-1] for line in tool("squeue", "-h", "-o", "%i %A").splitlines())
            tool("scancel", tasks[seen[0]])
            for _ in range(200):  # Slurm takes its time; the shell is lost in the end
                shell.run(["sleep", "0.1"])
        return carry_out(shell, order)

    outcome = host.carry_out(dataclasses.replace(DECLARED, block=100, mpi="mpich"), cancelled_once)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] != seen[0]
    assert outcome.facts["mpi.flavour"] == "mpich"


def test_what_fails_because_its_allocation_ends_is_tried_in_another(host: BatchHost) -> None:
    seen: list[str] = []

    def ended_first(shell: Shell, order: Order) -> Outcome:
        if not seen:
            assert isinstance(shell, MachinesShell)
            assert isinstance(shell.site.starter, SrunStarter)
            seen.append(shell.site.starter.job)
            tasks = dict(line.split()[::-1] for line in tool("squeue", "-h", "-o", "%i %A").splitlines())
            tool("scancel", tasks[seen[0]])
            raise TrialError("sleep ended with status 143")  # Slurm ends programs before it ends the shell
        return look(shell, order)

    outcome = host.carry_out(dataclasses.replace(DECLARED, block=104, mpi="mpich"), ended_first)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] != seen[0]


def test_a_time_limit_below_one_trial_is_said_before_anything_is_submitted() -> None:
    outcome = BatchHost(Slurm(), {"time_limit_s": 90}).carry_out(DECLARED, carry_out)
    assert outcome.status is TrialStatus.FAILED
    assert "one trial may take 60 s" in outcome.reason


def test_a_job_that_slurm_refuses_is_said_in_its_words(host: BatchHost) -> None:
    wrong = dataclasses.replace(DECLARED, path=PathOrder("p", "declared", {"partition": "nowhere"}))
    outcome = host.carry_out(wrong, carry_out)
    assert "invalid partition" in outcome.reason
    assert "`partition`" in outcome.hint


def test_drained_nodes_are_said(host: BatchHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.hosts.batch.host._STUCK_S", 0.5)
    tool("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    try:
        drained = dataclasses.replace(DECLARED, path=PathOrder("q", "declared", {"nodelist": "n0,n1"}))
        outcome = host.carry_out(drained, carry_out)
    finally:
        tool("scontrol", "update", "nodename=n1", "state=resume")
    assert outcome.status is TrialStatus.FAILED
    assert "does not start" in outcome.reason or "not available" in outcome.reason
    assert "exclude" in outcome.hint or "decide" in outcome.hint


def test_nothing_is_left_in_the_queue(host: BatchHost) -> None:
    host.close()
    assert not tool("squeue", "-h", "-o", "%A", "-t", "PENDING,RUNNING").split()
