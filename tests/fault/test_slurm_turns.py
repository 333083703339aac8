"""Jobs of one run that want the same nodes, and are kept for later trials meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import slurm
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.scheduler import JobState, Request
from nearmetal.hosts.batch.slurm import Slurm
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from slurm import look, tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.host import Shell

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

Making = "Callable[..., BatchHost]"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory):
    with slurm.host(tmp_path_factory.mktemp("slurm"), mpi="mpich") as made:
        yield made._options


@pytest.fixture
def make(options: dict[str, str]) -> Iterator[Making]:
    """Yield a constructor of hosts; they leave nothing in the queue."""
    made: list[BatchHost] = []

    def host(**given: str | float) -> BatchHost:
        made.append(BatchHost(Slurm(), {**options, **given}))
        return made[-1]

    yield host
    for one in made:
        one.close()
    assert not tool("squeue", "-h", "-o", "%A", "-t", "PENDING,RUNNING").split()


def order(trial: int = 0, nodes: int = 2, **path: str) -> Order:
    workload = WorkloadOrder("l", "engine", placement=tuple(range(nodes)))
    return Order(trial, 0, PathOrder("p", "declared", path), workload, timeout_s=600.0, mpi="mpich")


def test_paths_whose_jobs_want_the_same_whole_nodes_take_turns(
    make: Making, capsys: pytest.CaptureFixture[str]
) -> None:
    host = make(partition="whole")
    outcomes = [host.carry_out(order(**path), look) for path in ({}, {"partition": "test"}, {}, {})]
    assert [outcome.status for outcome in outcomes] == [TrialStatus.VALID] * 4, outcomes
    jobs = [outcome.facts["slurm.job"] for outcome in outcomes]
    assert len(set(jobs[:3])) == 3
    assert jobs[2] == jobs[3], "what nothing waits for is kept"
    said = capsys.readouterr().err
    assert said.count("is given back") == 1, "said once for two kinds"
    assert "(2 nodes, partition whole) is given back, because job" in said
    assert "(2 nodes, partition test) cannot start beside it" in said


def test_paths_with_nodes_of_their_own_keep_their_jobs(make: Making, capsys: pytest.CaptureFixture[str]) -> None:
    host = make(nodes=1, partition="whole")
    jobs = [host.carry_out(order(nodes=1, nodelist=node), look).facts["slurm.job"] for node in ("n0", "n1") * 2]
    assert jobs[:2] == jobs[2:]
    assert len(set(jobs)) == 2
    assert not capsys.readouterr().err


def test_an_array_of_which_one_job_fits_at_a_time_is_used_up(make: Making) -> None:
    """The second job starts when the first is given back: until then, trials are carried out in the first."""
    host = make(partition="whole", allocations=2)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda number: host.carry_out(order(number), look), range(4)))
    assert [outcome.status for outcome in outcomes] == [TrialStatus.VALID] * 4, outcomes


def test_jobs_of_an_array_that_no_trial_took_are_given_back_too(make: Making) -> None:
    host = make(nodes=1, partition="whole", allocations=2)
    assert host.carry_out(order(nodes=1), look).status is TrialStatus.VALID
    with ThreadPoolExecutor(2) as pool:
        wanting = [order(number, nodes=1, partition="test") for number in range(2)]
        outcomes = list(pool.map(lambda one: host.carry_out(one, look), wanting))
    assert [outcome.status for outcome in outcomes] == [TrialStatus.VALID] * 2, outcomes


def test_an_array_that_is_cancelled_before_all_of_it_ran_is_replaced(make: Making) -> None:
    """Of its jobs that waited Slurm keeps no record of their own."""
    host = make(partition="whole", allocations=3)
    first = host.carry_out(order(), look).facts["slurm.job"]
    tool("scancel", "--name=nearmetal")
    outcome = host.carry_out(order(), look)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] != first


def test_a_run_that_is_ended_submits_nothing_more(make: Making) -> None:
    host = make(partition="whole", allocations=2)

    seen: list[Shell] = []

    def ends(shell: Shell, order: Order) -> Outcome:
        seen.append(shell)
        host.close()
        while True:
            shell.run(["sleep", "0.1"], timeout_s=600)

    outcome = host.carry_out(order(), ends)
    assert outcome.status is TrialStatus.FAILED
    assert len(seen) == 1
    assert not tool("squeue", "-h", "-o", "%A", "-t", "PENDING,RUNNING").split()


def test_the_time_that_a_job_was_suspended_is_in_no_sample(make: Making) -> None:
    host = make()
    seen: list[str] = []

    def suspended_once(shell: Shell, order: Order) -> Outcome:
        if not seen:
            seen.append(shell.site.starter.job)  # type: ignore[attr-defined]  # a MachinesShell in a step
            tool("scontrol", "suspend", seen[0])
            tool("scontrol", "resume", seen[0])
        else:
            seen.append("again")
        return look(shell, order)

    outcome = host.carry_out(order(), suspended_once)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["slurm.job"] == seen[0]
    assert seen[1:] == ["again"]


def test_a_job_that_is_suspended_over_and_over_is_reported(make: Making) -> None:
    def suspended(shell: Shell, order: Order) -> Outcome:
        job = shell.site.starter.job  # type: ignore[attr-defined]  # a MachinesShell in a step
        before = _suspended(job)
        while _suspended(job) == before:  # Slurm notes whole seconds
            tool("scontrol", "suspend", job)
            tool("scontrol", "resume", job)
        return look(shell, order)

    outcome = make().carry_out(order(), suspended)
    assert outcome.status is TrialStatus.FAILED
    assert "was suspended during the trial" in outcome.reason


def _suspended(job: str) -> str:
    return tool("scontrol", "show", "job", job).partition("SuspendTime=")[2].split()[0]


@pytest.mark.parametrize(
    ("choices", "nodes", "wanted"),
    [
        ({}, 2, "n0 n1"),
        ({"nodelist": "n[00-01],n[0]"}, 1, "n0"),
        ({"exclude": "n[1,03],m[1-2]x[3-4]"}, 1, "n0"),
        ({"exclude": "n[1,03]"}, 2, ""),
        ({"constraint": "gpu"}, 1, ""),
        ({"constraint": "gpu|ib"}, 1, "n0 n1"),
    ],
)
def test_which_nodes_a_job_may_get(make: Making, choices: dict[str, str], nodes: int, wanted: str) -> None:
    del make  # the programs of the cluster are on PATH
    request = Request(nodes, 60, choices=tuple(choices.items()))
    state = JobState("1", "waiting", "PENDING", reason="Resources", partition="whole")
    assert " ".join(sorted(Slurm().wanted(request, state) or ())) == wanted


def test_a_job_waits_for_no_drained_node(make: Making) -> None:
    del make
    tool("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    try:
        state = JobState("1", "waiting", "PENDING", reason="Resources", partition="whole")
        assert Slurm().wanted(Request(1, 60), state) == {"n0"}
    finally:
        tool("scontrol", "update", "nodename=n1", "state=resume")
