"""Parsing Slurm's output and writing its input."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.hosts.batch import allocations, slurm
from nearmetal.hosts.batch.host import BatchHost
from nearmetal.hosts.batch.scheduler import JobState, Phase, Request
from nearmetal.hosts.batch.slurm import NodeShells, Slurm, SrunStarter, parse_job, parse_time_s, submit_argv
from nearmetal.hosts.far.stream import LostError, Stream, open_program
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder

RUNNING = (
    "JobId=7 ArrayJobId=6 ArrayTaskId=1 JobName=nearmetal UserId=u(1) JobState=RUNNING Reason=None Dependency=(null) "
    "Requeue=1 Restarts=2 BatchFlag=1 RunTime=00:03:10 TimeLimit=00:10:00 NodeList=n[0-1] BatchHost=n0\n"
)
PENDING = (
    "JobId=6 ArrayJobId=6 ArrayTaskId=0-3 JobState=PENDING Reason={} RunTime=00:00:00 TimeLimit=00:10:00 NodeList=\n"
)


def test_a_running_array_task_has_its_remaining_time_and_restarts() -> None:
    state, nodes = parse_job("6_1", PENDING.format("None") + RUNNING)
    assert (state.job, state.phase, state.left_s, state.restarts, nodes) == ("7", "running", 410, 2, "n[0-1]")


def test_a_task_that_is_still_part_of_its_array_waits() -> None:
    state, _ = parse_job("6_2", PENDING.format("Priority"))
    assert (state.job, state.phase) == ("6_2", "waiting")


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail,_UnavailableNodes:n1",
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
        "PartitionTimeLimit",
        "PartitionDown",
        "JobHeldUser",
        "job_requeued_in_held_state",
        "launch_failed_requeued_held",
    ],
)
def test_permanent_reasons_for_waiting_are_recognized(reason: str) -> None:
    state, _ = parse_job("6", PENDING.format(reason))
    assert state.phase == "stuck"
    message, hint = Slurm().explain(state)
    assert reason.replace("_", " ") in message
    assert hint


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("TIMEOUT", "time limit"),
        ("PREEMPTED", "preempted"),
        ("NODE_FAIL", "lost a node"),
        ("FAILED", "ended as FAILED"),
    ],
)
def test_job_endings_are_distinguished(word: str, message: str) -> None:
    state, _ = parse_job("7", RUNNING.replace("JobState=RUNNING", f"JobState={word}"))
    assert state.phase == "ended"
    assert message in Slurm().explain(state)[0]


@pytest.mark.parametrize("word", ["NODE_FAIL", "CANCELLED"])
def test_a_lost_job_is_not_said_to_be_made_up_for_by_the_same_command(word: str) -> None:
    """`nearmetal run STUDY` begins another run, and refuses the directory of this one."""
    state, _ = parse_job("7", RUNNING.replace("JobState=RUNNING", f"JobState={word}"))
    assert "finished trials are kept: nearmetal run --resume RUN" in Slurm().explain(state)[1]


def test_a_completing_job_may_be_requeued() -> None:
    state, _ = parse_job("7", RUNNING.replace("JobState=RUNNING", "JobState=COMPLETING"))
    assert state.phase == "ending"


def test_a_foreign_answer_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="cannot parse"):
        parse_job("7", "nothing of the kind")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1-02:03:04", 93784), ("00:10:00", 600), ("UNLIMITED", 31536000), ("Partition", 0)]
)
def test_time_limits_are_parsed(text: str, seconds: int) -> None:
    assert parse_time_s(text) == seconds


def test_the_arguments_of_sbatch() -> None:
    argv = submit_argv(Request(nodes=2, time_limit_s=601, tasks=3, choices=(("partition", "fast"), ("exclude", "n7"))))
    assert {"--nodes=2", "--time=11", "--array=0-2", "--requeue", "--partition=fast", "--exclude=n7"} < set(argv)
    assert "--exclusive" in argv


@pytest.mark.parametrize(
    ("ranks", "word"),
    [("01", "block"), ("0011", "block"), ("0101", "cyclic"), ("012012", "cyclic"), ("00", "block"), ("22", "block")],
)
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_ranks_in_a_regular_order_use_a_slurm_distribution(ranks: str, word: str, flavour: str) -> None:
    nodes = [f"n{rank}" for rank in ranks]
    used = sorted(set(nodes))
    argv, env = SrunStarter("7", ("n0", "n1", "n2")).command(flavour, nodes, "/s/ranks")
    assert {"--jobid=7", f"--nodes={len(used)}", f"--ntasks={len(ranks)}", f"--distribution={word}"} < set(argv)
    assert {f"--nodelist={','.join(used)}", f"--ntasks-per-node={len(ranks) // len(used)}"} < set(argv)
    assert env == {}


@pytest.mark.parametrize("ranks", ["010", "10", "0110"])
def test_ranks_in_any_other_order_are_placed_one_by_one(ranks: str) -> None:
    nodes = [f"n{rank}" for rank in ranks]
    argv, env = SrunStarter("7", ("n0", "n1")).command("openmpi", nodes, "/s/ranks")
    assert {"--mpi=pmix", "--nodes=2", f"--ntasks={len(ranks)}", "--distribution=arbitrary"} < set(argv)
    assert env == {"SLURM_HOSTFILE": "/s/ranks"}


def test_an_order_in_which_mpich_would_misplace_neighbours_is_refused() -> None:
    starter = SrunStarter("7", ("n0", "n1"))
    assert "--mpi=pmi2" in starter.command("mpich", ["n1", "n0"], "/s/ranks")[0]
    with pytest.raises(UnavailableError, match="share a node") as raised:
        starter.command("mpich", ["n0", "n1", "n1", "n0"], "/s/ranks")
    assert "in turns" in raised.value.hint
    assert "--mpi=pmix" in SrunStarter("7", ("n0", "n1"), "pmix").command("mpich", ["n0", "n1", "n0"], "")[0]


@dataclass
class Scripted:
    """A batch system whose jobs go through the scripted states; a job's nodes are local shells."""

    states: list[JobState]
    kind: str = "scripted"
    submitted: int = 0

    def submit(self, request: Request) -> list[str]:
        self.submitted += request.tasks
        return [str(self.submitted)]

    def look(self, job: str) -> JobState:
        return replace(self.states.pop(0) if len(self.states) > 1 else self.states[0], job=job)

    def wanted(self, request: Request, state: JobState) -> frozenset[str] | None:
        del request, state
        return frozenset()

    def around(self) -> frozenset[str]:
        return frozenset()

    def cancel(self, *jobs: str) -> None:
        del jobs

    def open_shell(self, job: str, node: str) -> Stream:
        del job, node
        return open_program(["sh"])

    def starter(self, state: JobState) -> SrunStarter:
        return SrunStarter(state.job, state.nodes)

    def explain(self, state: JobState) -> tuple[str, str]:
        return f"job {state.job} is {state.phase}", ""


@pytest.mark.parametrize("meanwhile", ["waiting", "stuck"])
def test_a_requeued_job_is_awaited_and_no_second_one_is_submitted(meanwhile: Phase) -> None:
    """Even if it waits for the node that was lost."""
    runs = JobState("", "running", "RUNNING", nodes=("n0", "n1"), left_s=1000)
    scheduler = Scripted([runs, JobState("", meanwhile, "PENDING"), replace(runs, restarts=1)])
    seen: list[object] = []

    def once(shell: object, order: Order) -> Outcome:
        del order
        seen.append(shell)
        if len(seen) == 1:
            raise LostError("lost n1")
        return Outcome(TrialStatus.VALID)

    order = Order(0, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", placement=(0, 1)))
    host = BatchHost(scheduler, {})
    outcome = host.carry_out(order, once)
    host.close()
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert (scheduler.submitted, outcome.facts["scripted.restarts"]) == (1, 1)


@pytest.mark.parametrize("raises", [True, False])
def test_a_job_past_its_limit_is_awaited_until_slurm_ends_it(monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    """Slurm starts nothing in it, but calls it running for up to half a minute more."""
    monkeypatch.setattr("nearmetal.hosts.batch.host._ATTEMPTS", 1)
    monkeypatch.setattr("nearmetal.hosts.batch.allocations._POLL_S", (0.0, 0.0))
    runs = JobState("", "running", "RUNNING", nodes=("n0", "n1"), left_s=1000)
    scheduler = Scripted([runs, replace(runs, left_s=-1), replace(runs, left_s=-2), JobState("", "ended", "TIMEOUT")])

    def late(shell: object, order: Order) -> Outcome:
        if raises:
            raise LostError("lost n1")
        return Outcome(TrialStatus.FAILED, reason="a program ended")

    order = Order(0, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", placement=(0, 1)))
    host = BatchHost(scheduler, {})
    outcome = host.carry_out(order, late)
    host.close()
    assert outcome.reason == "job 1 is ended during the trial"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (JobState("", "ended", "FAILED"), "3 jobs ended before a trial could start; the last: job 3 is ended"),
        (
            JobState("", "running", "RUNNING", nodes=("n0", "n1"), left_s=60),
            "the last with 60 s; one trial may take",
        ),
    ],
)
def test_useless_jobs_are_not_submitted_for_ever(state: JobState, message: str) -> None:
    scheduler = Scripted([state])
    order = Order(0, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", placement=(0, 1)))
    host = BatchHost(scheduler, {})
    outcome = host.carry_out(order, lambda shell, order: Outcome(TrialStatus.VALID))
    host.close()
    assert (outcome.status, scheduler.submitted) == (TrialStatus.FAILED, 3)
    assert message in outcome.reason


def test_a_job_that_sbatch_may_have_submitted_is_not_reported_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(slurm, "_TIMEOUT_S", 0.01)
    with pytest.raises(UnavailableError, match="may be in the queue") as refused:
        Slurm().submit(Request(nodes=1, time_limit_s=60))
    assert "squeue" in refused.value.hint


def test_a_restarting_controller_is_queried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/asked ] && {{ echo '{PENDING.format('Resources').strip()}'; exit; }}\n"
        f"touch {tmp_path}/asked\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("nearmetal.hosts.batch.slurm._ASK_PAUSE_S", 0.01)
    assert Slurm().look("6").phase == "waiting"


@pytest.mark.parametrize(
    ("word", "phase"),
    [("SIGNALING", "running"), ("STAGE_OUT", "ending"), ("STOPPED", "waiting"), ("FAILED", "ended")],
)
def test_transient_states_are_not_endings(word: str, phase: Phase) -> None:
    assert parse_job("7_1", RUNNING.replace("JobState=RUNNING", f"JobState={word}"))[0].phase is phase


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time_limit_s", "30 min"),
        ("blocks", 0),
        ("nodes", 2.5),
        ("queue_timeout_s", "1 h"),
        ("queue_timeout_s", 0),
        ("exclusive", "false"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_before_a_job_is_submitted(name: str, value: Scalar) -> None:
    with pytest.raises(BadInputError, match=f"the host's option '{name}' must be .*, not {value!r}"):
        BatchHost(Slurm(), {name: value})


class Shared(Scripted):
    """Jobs that all want `nodes`, which one of them holds at a time; `wants` says which a waiting one may get."""

    def __init__(self, wants: frozenset[str] | None) -> None:
        super().__init__([])
        self.wants = wants
        self.queue: list[str] = []
        self.looks = 0

    def submit(self, request: Request) -> list[str]:
        (job,) = super().submit(request)
        self.queue.append(job)
        return [job]

    def look(self, job: str) -> JobState:
        self.looks += job != self.queue[0]
        if job == self.queue[0]:
            return JobState(job, "running", "RUNNING", nodes=("n0", "n1"), left_s=1000)
        return JobState(job, "waiting", "PENDING", reason="Resources")

    def wanted(self, request: Request, state: JobState) -> frozenset[str] | None:
        del request, state
        return self.wants

    def cancel(self, *jobs: str) -> None:
        self.queue = [job for job in self.queue if job not in jobs]


def _of(partition: str) -> Order:
    path = PathOrder(partition, "declared", {"partition": partition})
    return Order(0, 0, path, WorkloadOrder("l", "engine", placement=(0, 1)))


@pytest.mark.parametrize(
    ("wants", "given_back"),
    [
        (frozenset({"n0", "n1"}), True),
        (frozenset({"n1", "n2", "n3"}), False),
        (frozenset({"n2", "n3"}), False),
        (None, True),
        (frozenset(), False),
    ],
)
def test_what_is_kept_is_given_back_where_a_job_waits_for_it_alone(
    monkeypatch: pytest.MonkeyPatch, wants: frozenset[str] | None, given_back: bool
) -> None:
    """A limit of the user's jobs is `None`; a job that can get other nodes in time is awaited."""
    monkeypatch.setattr("nearmetal.hosts.batch.allocations._POLL_S", (0.0, 0.0))
    clock = iter(range(10**6))
    monkeypatch.setattr(allocations, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    scheduler = Shared(wants)
    host = BatchHost(scheduler, {"queue_timeout_s": 5})
    assert host.carry_out(_of("a"), lambda shell, order: Outcome(TrialStatus.VALID)).status is TrialStatus.VALID
    seen = scheduler.looks
    outcome = host.carry_out(_of("b"), lambda shell, order: Outcome(TrialStatus.VALID))
    host.close()
    if given_back:
        assert (outcome.status, scheduler.looks - seen) == (TrialStatus.VALID, 1)
    elif wants and wants & {"n0", "n1"}:
        assert outcome.status is TrialStatus.VALID, "given back when half of the time was over"
        assert scheduler.looks - seen > 1
    else:
        assert outcome.reason == "job 2 is waiting"


def test_waiting_for_trials_of_the_own_run_costs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.hosts.batch.allocations._POLL_S", (0.0, 0.0))
    scheduler = Shared(frozenset({"n0", "n1"}))
    host = BatchHost(scheduler, {"queue_timeout_s": 1e-9, "allocations": 2})

    def long(shell: object, order: Order) -> Outcome:
        del shell, order
        second.append(pool.submit(host.carry_out, _of("b"), lambda shell, order: Outcome(TrialStatus.VALID)))
        while scheduler.looks < 5 and not second[0].done():
            pass
        return Outcome(TrialStatus.VALID)

    second: list[Future[Outcome]] = []
    with ThreadPoolExecutor(2) as pool:
        assert host.carry_out(_of("a"), long).status is TrialStatus.VALID
        assert second[0].result().status is TrialStatus.VALID, second[0].result()
    host.close()


@pytest.mark.parametrize(
    ("reason", "phase", "wanted"),
    [
        ("QOSMaxJobsPerUserLimit", "waiting", None),
        ("AssocMaxJobsLimit", "waiting", None),
        ("AssocGrpNodeLimit", "waiting", None),
        ("QOSMaxNodePerJobLimit", "stuck", frozenset()),
        ("AssocMaxWallDurationPerJobLimit", "stuck", frozenset()),
        ("AssocGrpCPUMinutesLimit", "stuck", frozenset()),
        ("QOSMinCpuNotSatisfied", "stuck", frozenset()),
        ("BeginTime", "waiting", frozenset()),
        ("None", "waiting", frozenset()),
    ],
)
def test_limits_on_other_jobs_are_told_from_limits_of_one_job(
    reason: str, phase: Phase, wanted: frozenset[str] | None
) -> None:
    state, _ = parse_job("6", PENDING.format(reason))
    assert state.phase == phase
    assert Slurm().wanted(Request(nodes=2, time_limit_s=60), state) == wanted
    assert ("squeue --me" in Slurm().explain(state)[1]) == (wanted is None)


def test_a_prolog_may_print_before_the_shell_says_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    printed = "echo welcome; echo; echo nearmetal-job=7; exec cat"
    monkeypatch.setattr(slurm, "open_program", lambda _, env: open_program(["sh", "-c", printed], env))
    shells = NodeShells(Slurm(), "", "n1", {})
    stream = shells()
    try:
        stream.write(b"first of the shell\n")
        assert stream.inbox.take_line(20.0) == "first of the shell"
        assert shells._jobs == ["7"]
    finally:
        stream.close()
