"""Allocations that are lost, refused or never come."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import slurm
from nearmetal.cli.main import run
from nearmetal.errors import TrialError
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.slurm import Slurm, SrunStarter
from nearmetal.hosts.far.shell import MachinesShell
from nearmetal.knobs import session
from nearmetal.knobs.folder import journal_folder, survey
from nearmetal.knobs.hold import hold
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.paths.table import find_path
from nearmetal.run.guests import open_host
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import parse_study
from slurm import look, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nearmetal.hosts.host import Shell

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

STUDY = """
format = 1
name = "far"
baseline = "p"
host = { kind = "slurm" }
path = [{ name = "p", kind = "declared" }]
workload = [{ name = "latency", sizes = [8] }]
"""
DECLARED = Order(
    0,
    0,
    PathOrder("p", "declared"),
    WorkloadOrder("l", "engine", {"operation": "latency", "sizes": [8], "iterations": 30}),
    timeout_s=600.0,
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory):
    with slurm.host(tmp_path_factory.mktemp("slurm"), mpi="mpich", allocations=2) as made:
        yield made


def test_trials_share_an_allocation_until_its_blocks_are_done(host: BatchHost) -> None:
    jobs = [
        host.carry_out(dataclasses.replace(DECLARED, block=block, mpi="mpich"), look).facts["slurm.job"]
        for block in (0, 3, 4)
    ]
    assert jobs[0] == jobs[1] != jobs[2]


@pytest.mark.parametrize("placement", [(0, 0, 1, 1), (0, 1, 0, 1)])
def test_ranks_of_one_node_use_its_shared_memory(host: BatchHost, placement: tuple[int, ...]) -> None:
    options = {"operation": "barrier", "iterations": 200, "warmup": 5}
    workload = WorkloadOrder("b", "engine", options, placement, progress="blocking")  # type: ignore[arg-type]
    outcome = host.carry_out(dataclasses.replace(DECLARED, workload=workload, mpi="mpich"), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.proof.stray_packets["n1.lo"] < 200, "they used the loopback instead"


def cancel_allocation_of(shell: Shell) -> str:
    """Cancel the allocation in which a trial runs; return its job."""
    assert isinstance(shell, MachinesShell)
    assert isinstance(shell.site.starter, SrunStarter)
    job = shell.site.starter.job
    tasks = dict(line.split()[::-1] for line in tool("squeue", "-h", "-o", "%i %A").splitlines())
    tool("scancel", tasks[job])
    return job


def test_a_cancelled_allocation_is_replaced_and_the_trial_continues(host: BatchHost) -> None:
    seen: list[str] = []

    def cancelled_once(shell: Shell, order: Order) -> Outcome:
        if not seen:
            seen.append(cancel_allocation_of(shell))
            while True:  # Slurm takes some time; eventually the shell is lost
                shell.run(["sleep", "0.1"])
        return carry_out(shell, order)

    outcome = host.carry_out(dataclasses.replace(DECLARED, block=100, mpi="mpich"), cancelled_once)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] != seen[0]
    assert outcome.facts["mpi.flavour"] == "mpich"


def test_a_trial_that_fails_because_its_allocation_ends_is_repeated_in_another(host: BatchHost) -> None:
    seen: list[str] = []

    def ended_first(shell: Shell, order: Order) -> Outcome:
        if not seen:
            seen.append(cancel_allocation_of(shell))
            raise TrialError("sleep ended with status 143")  # Slurm ends programs before it ends the shell
        return look(shell, order)

    outcome = host.carry_out(dataclasses.replace(DECLARED, block=104, mpi="mpich"), ended_first)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] != seen[0]


def test_nothing_is_measured_on_nodes_that_a_killed_trial_left_changed(
    host: BatchHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal_folder().mkdir(mode=0o700, parents=True)

    def die(shell: Shell, order: Order) -> Outcome:
        """Die in the middle of a setting; the watchdog goes with the job."""
        outcome = look(shell, order)
        assert shell.way("n0")["options"]["partition"] == "whole"  # which may be the only one that has the node
        intended = plan(shell, {"nic.mtu": 1400}, [Target("n0", "eth0")], allow_management=True)
        begun = session.begin(shell, intended, journal_folder())
        begun.apply()
        begun.journal.close()
        return outcome

    # Jobs get whole nodes, as at most sites: a second one would wait for the first.
    host.close()
    order = dataclasses.replace(
        DECLARED, block=104, mpi="mpich", path=PathOrder("p", "declared", {"partition": "whole"})
    )
    assert host.carry_out(order, die).status is TrialStatus.VALID
    refused = host.carry_out(order, carry_out)
    assert refused.status is TrialStatus.FAILED
    assert "nic.mtu of eth0, which was 1500 (on n0)" in refused.reason
    assert "nearmetal rollback n0" in refused.hint
    # In the job that still holds the node, as after a run that was killed, then in one of its own.
    assert run(["rollback", "n0"]) == 0
    assert host.carry_out(order, carry_out).status is TrialStatus.VALID
    assert host.carry_out(order, die).status is TrialStatus.VALID
    host.close()
    assert run(["rollback", "n0"]) == 0
    assert host.carry_out(order, carry_out).status is TrialStatus.VALID
    host.close()  # other tests want the nodes, too


def test_an_allocation_that_ends_while_a_setting_is_held_costs_no_trial(
    host: BatchHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("nearmetal.hosts.table.open_host", lambda _: host)
    opened = open_host(parse_study(STUDY, "s"))
    seen: list[str] = []

    def ended_first(shell: Shell, order: Order) -> Outcome:
        if seen:
            return carry_out(shell, order)
        for node in ("n0", "n1"):
            shell.add_node(node)
        ends = find_path("declared").up(shell, order.path, ["n0", "n1"])
        guard = WatchLimits(look_ms=100)
        with hold(shell, ends, order.knobs, journal_folder(), guard=guard, allow_management=True):
            seen.append(cancel_allocation_of(shell))
            while True:
                shell.run(["sleep", "0.1"])
        raise AssertionError("the allocation was not lost")

    outcome = opened.carry_out(
        dataclasses.replace(DECLARED, block=108, mpi="mpich", knobs={"nic.mtu": 1400}), ended_first
    )
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] != seen[0]
    assert not survey(journal_folder()).waiting()


def test_a_time_limit_below_one_trial_is_refused_before_anything_is_submitted() -> None:
    outcome = BatchHost(Slurm(), {"time_limit_s": 90}).carry_out(DECLARED, carry_out)
    assert outcome.status is TrialStatus.FAILED
    assert "one trial may take 600 s" in outcome.reason


def test_a_job_refused_by_slurm_is_reported_with_its_message(host: BatchHost) -> None:
    wrong = dataclasses.replace(DECLARED, path=PathOrder("p", "declared", {"partition": "nowhere"}))
    outcome = host.carry_out(wrong, carry_out)
    assert "invalid partition" in outcome.reason
    assert "`partition`" in outcome.hint


def test_drained_nodes_are_reported(host: BatchHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.hosts.batch.allocations._STUCK_S", 0.5)
    tool("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    try:
        drained = dataclasses.replace(DECLARED, path=PathOrder("q", "declared", {"nodelist": "n0,n1"}))
        outcome = host.carry_out(drained, carry_out)
    finally:
        tool("scontrol", "update", "nodename=n1", "state=resume")
    assert outcome.status is TrialStatus.FAILED
    assert "does not start" in outcome.reason or "not available" in outcome.reason
    assert "exclude" in outcome.hint or "decide" in outcome.hint


ALONE = dataclasses.replace(DECLARED, workload=dataclasses.replace(DECLARED.workload, placement=(0, 0)))
"""A trial on one node."""


@contextlib.contextmanager
def another(host: BatchHost, **options: str | float) -> Iterator[BatchHost]:
    """Yield a host with other options on the same cluster, after the module's host has released its nodes."""
    host.close()
    made = BatchHost(Slurm(), {**host._options, **options})
    try:
        yield made
    finally:
        made.close()


def until_lost(shell: Shell) -> None:
    """Work until the allocation is gone; Slurm takes some time, on a loaded machine more than a command may."""
    while True:
        shell.run(["sleep", "0.1"], timeout_s=600)


def test_a_wide_study_runs_concurrently_as_an_array(host: BatchHost) -> None:
    both = threading.Barrier(2, timeout=600)

    def together(shell: Shell, order: Order) -> Outcome:
        both.wait()
        return look(shell, order)

    with another(host, nodes=1, allocations=2) as wide, ThreadPoolExecutor(2) as pool:
        orders = [dataclasses.replace(ALONE, trial=number, block=200) for number in range(2)]
        facts = [outcome.facts for outcome in pool.map(lambda order: wide.carry_out(order, together), orders)]
    assert {str(one["slurm.array_task"]).partition("_")[2] for one in facts} == {"0", "1"}
    assert {one["slurm.nodes"] for one in facts} == {"n0", "n1"}
    assert len({one["slurm.job"] for one in facts}) == 2


@pytest.mark.parametrize(("excluded", "left"), [("n0", "n1"), ("n1", "n0")])
def test_an_excluded_node_is_not_used(host: BatchHost, excluded: str, left: str) -> None:
    with another(host, nodes=1, allocations=1, exclude=excluded) as careful:
        assert careful.carry_out(ALONE, look).facts["slurm.nodes"] == left


def preempt(shell: Shell) -> None:
    """Let a job of a higher-priority partition take the nodes for a moment."""
    words = ["--nodes=2", "--exclusive", "--output=/dev/null", "--error=/dev/null", "--chdir=/", "--wrap=sleep 1"]
    tool("sbatch", "--partition=urgent", *words)
    until_lost(shell)


def lose_a_node(shell: Shell) -> None:
    """Take a node down, and bring it back once Slurm has noticed the end of the job there.

    Slurm 22.05 does not wait for a node that is down, and takes the end of the old run for the end of the new one if
    the node is back too early: the job then runs without the node, and the node gets no further jobs.
    """
    job = shell.site.starter.job  # type: ignore[attr-defined]  # a MachinesShell in a step
    tool("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    try:
        until_lost(shell)
    finally:
        slurm.await_end_of_job(job, "n1")
        tool("scontrol", "update", "nodename=n1", "state=resume")


@pytest.mark.parametrize("happens", [preempt, lose_a_node])
def test_a_requeued_job_starts_again_and_repeats_its_trial(host: BatchHost, happens: Callable[[Shell], None]) -> None:
    seen: list[str] = []

    def once(shell: Shell, order: Order) -> Outcome:
        if not seen:
            seen.append(shell.site.starter.job)  # type: ignore[attr-defined]  # a MachinesShell in a step
            happens(shell)
        return look(shell, order)

    with another(host, allocations=1) as patient:
        outcome = patient.carry_out(dataclasses.replace(DECLARED, block=300), once)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert (outcome.facts["slurm.job"], outcome.facts["slurm.restarts"]) == (seen[0], 1)


def test_a_job_at_its_time_limit_is_reported(host: BatchHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.hosts.batch.host._ATTEMPTS", 1)

    def late(shell: Shell, order: Order) -> Outcome:
        tool("scontrol", "update", f"jobid={shell.site.starter.job}", "timelimit=0")  # type: ignore[attr-defined]
        until_lost(shell)
        return look(shell, order)

    with another(host, allocations=1) as hurried:
        outcome = hurried.carry_out(DECLARED, late)
    assert outcome.status is TrialStatus.FAILED
    assert "reached its time limit during the trial" in outcome.reason
    assert "time_limit_s" in outcome.hint


def test_nothing_is_left_in_the_queue(host: BatchHost) -> None:
    host.close()
    assert not tool("squeue", "-h", "-o", "%A", "-t", "PENDING,RUNNING").split()
