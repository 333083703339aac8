"""Slurm 20.11 and newer, through sbatch, scontrol, scancel and srun."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nearmetal import process
from nearmetal.errors import UnavailableError
from nearmetal.hosts.batch.scheduler import JobState, LimitError, Phase, Request
from nearmetal.hosts.far.stream import Stream, open_program
from nearmetal.process import Finished
from nearmetal.study.order import Scalar

_TIMEOUT_S = 60.0
_IMMEDIATE_S = 20
_HOLD = b"#!/bin/sh\n# Holds the nodes of a nearmetal run; its steps do the work.\nexec sleep 100000000\n"
# A step's own variables would be orders to an srun that is started inside it.
_CLEAN_SHELL = """for name in $(env | sed -n 's/^\\(S[LR]U[RN][A-Z]*_[A-Z0-9_]*\\)=.*/\\1/p')
do [ "$name" = SLURM_CONF ] || unset "$name"; done
exec /bin/sh"""
_SHARED = ("--overlap", "--cpu-bind=none", "--quiet")
_JOB_IS = "nearmetal-job="
_SAYING_ITS_JOB = 'echo "nearmetal-job=$SLURM_JOB_ID"\n' + _CLEAN_SHELL
_PLUGINS = {"openmpi": "pmix", "mpich": "pmi2"}
_MEANT = frozenset({"CONF", "CONF_SERVER", "CLUSTERS", "JWT", "ACCOUNT", "PARTITION", "QOS", "RESERVATION"})
"""Variables of Slurm that a person sets for all commands; others are those of a job that nearmetal itself runs in."""
_OF_A_JOB = re.compile(r"(SLURMD?|SRUN|SINFO|PMIX?)_(\w+)")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/]*)=(\S*)")
_PHASES: dict[str, Phase] = {
    "RUNNING": "running",
    "SIGNALING": "running",
    "COMPLETING": "ending",
    "STAGE_OUT": "ending",
}
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "RESIZING"})
_WAITING |= {"RESV_DEL_HOLD", "SPECIAL_EXIT", "STOPPED"}
_NOT_ASKED = re.compile(rb"[Uu]nable to contact slurm controller|Connection refused")
_NO_ANSWER = re.compile(_NOT_ASKED.pattern + rb"|Socket timed out|Zero Bytes were transm")
_NO_ANSWER_S, _ASK_PAUSE_S = 120.0, 2.0
"""How long a controller that does not answer is asked again: others start it anew, and jobs go on meanwhile."""
_UNKNOWN = re.compile(r"Invalid job id|Job \S+ not found")
"""The latter of a task of an array that was cancelled before it ran."""
_OF_ONE_JOB = r"(Assoc|QOS)(Grp|Max|Min)\w*(PerJob|PerNode|NotSatisfied|Minutes)"
_STUCK = re.compile(
    r"ReqNodeNotAvail|DOWN|DRAIN|PartitionDown|PartitionInactive|Partition\w*Limit|BadConstraints|InvalidAccount"
    rf"|InvalidQOS|{_OF_ONE_JOB}|Held|held|REQUEUE_HOLD"
)
_FOR_OWN_JOBS = re.compile(rf"(?!{_OF_ONE_JOB})(Assoc|QOS)(Grp|Max)")
_FOR_NODES = re.compile(r"Resources|Priority|ReqNodeNotAvail|Nodes_required|Reservation")
_NEVER_GIVEN = re.compile(r"down|drain|drng|fail|inval|unk|\w+\*")
"""States of nodes, as `sinfo` abbreviates them; of a node that does not answer, with a star."""
_TOO_MANY = re.compile(r"SubmitLimit|SubmitJob\w*Limit|job submit limit")
_ENDS = {
    "TIMEOUT": ("reached its time limit", "raise the host's option `time_limit_s`"),
    "PREEMPTED": (
        "was preempted by a job of higher priority",
        "use another partition or QOS; finished trials are kept",
    ),
    "NODE_FAIL": ("lost a node", "check `sinfo -R`; finished trials are kept: nearmetal run --resume RUN"),
    "CANCELLED": ("was cancelled", "finished trials are kept: nearmetal run --resume RUN"),
    "OUT_OF_MEMORY": ("ran out of memory", "ask for whole nodes, or for fewer ranks"),
    "DEADLINE": ("passed its deadline", "ask your site's support about job deadlines"),
    "BOOT_FAIL": ("could not boot its nodes", "look at `sinfo -R`, and name the nodes in `exclude`"),
}


@dataclass(frozen=True, slots=True)
class Slurm:
    """The Slurm of this machine; `mpi` overrides the plugin of `srun --mpi`."""

    mpi: str = ""
    kind: str = "slurm"

    def submit(self, request: Request) -> list[str]:
        """Submit with sbatch; the job may be put back into the queue after a preemption."""
        finished = _ask_again(submit_argv(request), stdin=_HOLD, until=_NOT_ASKED)
        if finished.timed_out or (not finished.ok and _NO_ANSWER.search(finished.stderr)):
            raise UnavailableError(
                f"sbatch had no answer within {_TIMEOUT_S:.0f} s; the job may be in the queue nevertheless",
                hint="`squeue --me --name=nearmetal` lists it, `scancel JOB` removes it",
            )
        if not finished.ok:
            what = LimitError if _TOO_MANY.search(finished.stderr.decode(errors="replace")) else UnavailableError
            raise what(
                f"sbatch refused the job: {finished.complaint()}",
                hint="the host's options `partition`, `account`, `nodes` and `time_limit_s` decide what is asked for",
            )
        # Sites greet on the same stream, before the number or behind it.
        numbers = re.findall(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?$", finished.text, re.MULTILINE)
        if len(numbers) != 1:
            raise UnavailableError(
                f"sbatch submitted a job but did not say which: {finished.text.strip()!r}",
                hint="`squeue --me --name=nearmetal` lists it, `scancel JOB` removes it",
            )
        number = numbers[0]
        return [number] if request.tasks == 1 else [f"{number}_{task}" for task in range(request.tasks)]

    def look(self, job: str) -> JobState:
        """Ask scontrol, and have it expand the list of nodes."""
        finished = _ask_again(["scontrol", "--oneliner", "show", "job", job])
        if not finished.ok:
            if _UNKNOWN.search(finished.text + finished.stderr.decode(errors="replace")):
                return JobState(job, "ended", "GONE", "slurmctld no longer knows it")
            raise UnavailableError(f"cannot ask Slurm about job {job}: {finished.complaint()}")
        state, nodes = parse_job(job, finished.text)
        if state.phase != "running":
            return state
        return replace(state, nodes=_expanded(nodes))

    def wanted(self, request: Request, state: JobState) -> frozenset[str] | None:
        """Return the nodes of its partition that work and that the request allows."""
        if _FOR_OWN_JOBS.match(state.reason):
            return None
        if not _FOR_NODES.match(state.reason):
            return frozenset()
        choices = dict(request.choices)
        feature = choices.get("constraint", "")
        asked = f"--partition={state.partition}"
        told = _ask_again(["sinfo", "--noheader", "--Node", asked, "--format=%N %t %b"])
        if not told.ok:
            raise UnavailableError(f"cannot ask Slurm about partition {state.partition}: {told.complaint()}")
        rows = [line.split() for line in told.text.splitlines()]
        # Of several features and the signs between them, Slurm alone knows what they mean.
        one_feature = re.fullmatch(r"[\w.-]+", feature)
        wanted = {
            name
            for name, word, features in rows
            if not _NEVER_GIVEN.match(word) and (feature in features.split(",") or not one_feature)
        }
        wanted -= set(_expanded(choices.get("exclude", "")))
        wanted &= set(_expanded(choices.get("nodelist", ""))) or wanted
        return frozenset(wanted) if len(wanted) >= request.nodes else frozenset()

    def around(self) -> frozenset[str]:
        """Return the nodes of the job that the environment names."""
        return frozenset(self.look(job).nodes) if (job := os.environ.get("SLURM_JOB_ID", "")) else frozenset()

    def cancel(self, *jobs: str) -> None:
        """Call scancel; a job that has ended already is what was wanted."""
        finished = _ask_again(["scancel", "--quiet", *jobs])
        if finished.ok:
            return
        if left := [job for job in jobs if self.look(job).phase not in {"ending", "ended"}]:
            again = f"scancel {' '.join(left)}"
            raise UnavailableError(f"cannot cancel job {left[0]}: {finished.complaint()}", hint=again)

    def open_shell(self, job: str, node: str) -> Stream:
        """Start an overlapping step of one task, without MPI and unbuffered."""
        return open_program([*_step(job), *_alone(node), "/bin/sh", "-c", _CLEAN_SHELL], _environment())

    def starter(self, state: JobState) -> SrunStarter:
        """Return srun inside that job."""
        return SrunStarter(state.job, state.nodes, self.mpi)

    def explain(self, state: JobState) -> tuple[str, str]:
        """Return a sentence for a job that does not start, or did not end as it should."""
        if state.phase in {"waiting", "stuck"}:
            restarted = " after it was put back into the queue" if state.restarts else ""
            hint = "`sinfo -R` names drained nodes; name others with `nodelist`, or leave some out with `exclude`"
            if _FOR_OWN_JOBS.match(state.reason):
                hint = "`squeue --me` lists the jobs that count; wait for them, or name another `account` or `qos`"
            elif re.search("(?i)held", state.reason):
                hint = "it was held by hand or after a failed start; the next trial submits another"
            elif state.phase == "waiting":
                hint = "`squeue` shows what is before it; raise the host's option `queue_timeout_s` to wait longer"
            return f"Slurm job {state.job} does not start{restarted}: {state.reason.replace('_', ' ')}", hint
        what, hint = _ENDS.get(
            state.word, (f"ended as {state.word} ({state.reason})", f"scontrol show job {state.job}")
        )
        return f"Slurm job {state.job} {what}", hint


class NodeShells:
    """Starts shells on a node that a trial was on: in its job as long as that runs, else in one job for all of them.

    That job ends with its first shell. With a job for each shell, the second would wait for the first wherever jobs
    get whole nodes. `choices` are options of srun without which the node may not be given.
    """

    def __init__(self, slurm: Slurm, job: str, node: str, choices: Mapping[str, Scalar]) -> None:
        self._slurm = slurm
        self._node = node
        self._choices = choices
        self._jobs = [one for one in (job, os.environ.get("SLURM_JOB_ID", "")) if one]

    def __call__(self) -> Stream:
        """Start a shell; raise LostError where the node is not given within 20 s, UnavailableError without Slurm."""
        for job in self._jobs:
            if self._node in self._slurm.look(job).nodes:
                return self._slurm.open_shell(job, self._node)
        stream = open_program(self._argv(), _environment())
        try:
            while not (line := stream.inbox.take_line(_IMMEDIATE_S + _TIMEOUT_S)).startswith(_JOB_IS):
                pass  # of a prolog
        except BaseException:
            stream.close()
            raise
        self._jobs = [line.removeprefix(_JOB_IS)]
        return stream

    def _argv(self) -> list[str]:
        argv = ["srun", "--job-name=nearmetal", f"--immediate={_IMMEDIATE_S}", *_SHARED]
        argv += [f"--{name}={value}" for name, value in self._choices.items()]
        return [*argv, *_alone(self._node), "/bin/sh", "-c", _SAYING_ITS_JOB]


@dataclass(frozen=True, slots=True)
class SrunStarter:
    """Starts ranks with srun, each on the node that the placement says; `nodes` are the job's, in Slurm's order.

    Ranks node by node or in turns have a word of Slurm's own, any other order is `arbitrary`. Of an arbitrary order
    Slurm 22.05 tells PMI-2 that each rank has a node to itself (`PMI_process_mapping` is `(vector,(0,RANKS,1))`), and
    MPICH then keeps ranks of one node from shared memory: refused, because it would measure something else.
    """

    job: str
    nodes: tuple[str, ...]
    mpi: str = ""

    def command(self, flavour: str, nodes: Sequence[str], hostfile: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return srun and its options, and SLURM_HOSTFILE where the order is arbitrary."""
        plugin = self.mpi or _PLUGINS.get(flavour, "pmix")
        used = [node for node in self.nodes if node in nodes]
        argv = [*_step(self.job), f"--mpi={plugin}", f"--nodes={len(used)}", f"--ntasks={len(nodes)}"]
        if word := _regular(nodes, used):
            each = len(nodes) // len(used)
            argv += [f"--nodelist={','.join(used)}", f"--ntasks-per-node={each}", f"--distribution={word}"]
            return tuple(argv), {}
        if plugin == "pmi2" and len(used) < len(nodes):
            raise UnavailableError(
                f"Slurm does not tell {flavour} which of the ranks {', '.join(nodes)} share a node",
                hint="give `placement` node by node ([0, 0, 1, 1]) or in turns ([0, 1, 0, 1]), with as many ranks on "
                "each node, or use Open MPI",
            )
        return (*argv, "--distribution=arbitrary"), {"SLURM_HOSTFILE": hostfile}


def _regular(nodes: Sequence[str], used: Sequence[str]) -> str:
    """Return Slurm's word for ranks on `nodes`, in the order of `used`; '' where there is none."""
    each, rest = divmod(len(nodes), len(used))
    if rest:
        return ""
    if list(nodes) == [node for node in used for _ in range(each)]:
        return "block"
    return "cyclic" if list(nodes) == [*used] * each else ""


def submit_argv(request: Request) -> list[str]:
    """Return the sbatch command for a request; the script comes on standard input."""
    minutes = -(-request.time_limit_s // 60)
    argv = ["sbatch", "--parsable", "--job-name=nearmetal", f"--nodes={request.nodes}", f"--time={minutes}"]
    argv += ["--requeue", "--output=/dev/null", "--error=/dev/null", "--input=none", "--chdir=/"]
    if request.tasks > 1:
        argv.append(f"--array=0-{request.tasks - 1}")
    if request.exclusive:
        argv.append("--exclusive")
    return [*argv, *(f"--{name}={value}" for name, value in request.choices)]


def parse_job(job: str, text: str) -> tuple[JobState, str]:
    """Read `scontrol --oneliner show job`; return the state (without nodes) and the compressed node list."""
    task = job.partition("_")[2]
    lines = [dict(_FIELD.findall(line)) for line in text.splitlines() if "JobState=" in line]
    own = [fields for fields in lines if not task or fields.get("ArrayTaskId") == task]
    # A task that was not yet split off its array is in the array's own record.
    fields = (own or lines or [{}])[0]
    word = fields.get("JobState", "")
    reason = fields.get("Reason", "")
    phase: Phase = "ended"
    if word in _PHASES:
        phase = _PHASES[word]
    elif word in _WAITING:
        phase = "stuck" if _STUCK.search(reason) else "waiting"
    elif not word:
        raise UnavailableError(f"cannot parse Slurm's answer about job {job}: {text[:200]!r}")
    left_s = parse_time_s(fields.get("TimeLimit", "")) - parse_time_s(fields.get("RunTime", ""))
    number = fields.get("JobId", job) if own else job
    suspended = fields.get("SuspendTime", "")
    state = JobState(number, phase, word, reason, left_s=left_s, restarts=int(fields.get("Restarts", 0)))
    state = replace(state, partition=fields.get("Partition", ""), suspended="" if suspended == "None" else suspended)
    return state, fields.get("NodeList", "")


def parse_time_s(text: str) -> int:
    """Read Slurm's `[days-]hours:minutes:seconds`; UNLIMITED is a year, anything else 0."""
    if text == "UNLIMITED":
        return 365 * 86400
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if not found:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _step(job: str) -> list[str]:
    return ["srun", f"--jobid={job}", *_SHARED]


def _alone(node: str) -> list[str]:
    return ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mpi=none", "--unbuffered"]


def _expanded(nodes: str) -> tuple[str, ...]:
    """Return the names in a list of nodes as Slurm compresses it."""
    if not nodes:
        return ()
    expanded = _ask_again(["scontrol", "show", "hostnames", nodes])
    if not expanded.ok:
        raise UnavailableError(f"cannot expand the node list {nodes!r}: {expanded.complaint()}")
    return tuple(expanded.text.split())


def _environment() -> dict[str, str]:
    """Return this process's environment without what a job around it left there: that would be orders to a step."""
    found = {name: _OF_A_JOB.fullmatch(name) for name in os.environ}
    return {name: os.environ[name] for name, match in found.items() if not match or match[2] in _MEANT}


def _ask_again(argv: Sequence[str], stdin: bytes = b"", until: re.Pattern[bytes] = _NO_ANSWER) -> Finished:
    """Ask what may be asked twice, until the controller answers or `_NO_ANSWER_S` are over."""
    deadline = time.monotonic() + _NO_ANSWER_S
    while True:
        finished = _ask(argv, stdin)
        if finished.ok or not until.search(finished.stderr) or time.monotonic() > deadline:
            return finished
        time.sleep(_ASK_PAUSE_S)


def _ask(argv: Sequence[str], stdin: bytes) -> Finished:
    return process.run(argv, timeout_s=_TIMEOUT_S, stdin=stdin, env=_environment())
