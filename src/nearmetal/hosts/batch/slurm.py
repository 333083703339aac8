"""Slurm 20.11 and newer, through sbatch, scontrol, scancel and srun."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nearmetal import process
from nearmetal.errors import UnavailableError
from nearmetal.hosts.batch.scheduler import JobState, Phase, Request
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
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/]*)=(\S*)")
_PHASES: dict[str, Phase] = {
    "RUNNING": "running",
    "SIGNALING": "running",
    "COMPLETING": "ending",
    "STAGE_OUT": "ending",
}
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "RESIZING"})
_WAITING |= {"RESV_DEL_HOLD", "SPECIAL_EXIT", "STOPPED"}
_NO_ANSWER = re.compile(
    rb"[Uu]nable to contact slurm controller|Socket timed out|Connection refused|Zero Bytes were transm"
)
_NO_ANSWER_S, _ASK_PAUSE_S = 120.0, 2.0
"""How long a controller that does not answer is asked again: others start it anew, and jobs go on meanwhile."""
_STUCK = re.compile(
    r"ReqNodeNotAvail|DOWN|DRAIN|PartitionDown|PartitionInactive|Partition\w*Limit|BadConstraints|InvalidAccount"
    r"|InvalidQOS|AssocMax|QOSMax|JobHeld|REQUEUE_HOLD|launch_failed"
)
_ENDS = {
    "TIMEOUT": ("reached its time limit", "raise the host's option `time_limit_s`"),
    "PREEMPTED": (
        "was preempted by a job of higher priority",
        "use another partition or QOS; finished trials are kept",
    ),
    "NODE_FAIL": ("lost a node", "check `sinfo -R`; finished trials are kept, so run the same command again"),
    "CANCELLED": ("was cancelled", "run the same command again to continue the run"),
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
        finished = _ask(submit_argv(request), stdin=_HOLD)
        if finished.timed_out:
            raise UnavailableError(
                f"sbatch did not answer within {_TIMEOUT_S:.0f} s; the job may be in the queue nevertheless",
                hint="`squeue --me --name=nearmetal` lists it, `scancel JOB` removes it",
            )
        number = finished.text.strip().split(";")[0]
        if not finished.ok or not number.isdecimal():
            raise UnavailableError(
                f"sbatch refused the job: {finished.complaint()}",
                hint="the host's options `partition`, `account`, `nodes` and `time_limit_s` decide what is asked for",
            )
        return [number] if request.tasks == 1 else [f"{number}_{task}" for task in range(request.tasks)]

    def look(self, job: str) -> JobState:
        """Ask scontrol, and have it expand the list of nodes."""
        finished = _ask_again(["scontrol", "--oneliner", "show", "job", job])
        if not finished.ok:
            if "Invalid job id" in finished.stderr.decode(errors="replace"):
                return JobState(job, "ended", "GONE", "slurmctld no longer knows it")
            raise UnavailableError(f"cannot ask Slurm about job {job}: {finished.complaint()}")
        state, nodes = parse_job(job, finished.text)
        if state.phase != "running":
            return state
        expanded = _ask_again(["scontrol", "show", "hostnames", nodes])
        if not expanded.ok:
            raise UnavailableError(f"cannot expand the node list {nodes!r}: {expanded.complaint()}")
        return replace(state, nodes=tuple(expanded.text.split()))

    def cancel(self, job: str) -> None:
        """Call scancel; a job that has ended already is what was wanted."""
        finished = _ask_again(["scancel", "--quiet", job])
        if not finished.ok and self.look(job).phase not in {"ending", "ended"}:
            raise UnavailableError(f"cannot cancel job {job}: {finished.complaint()}", hint=f"scancel {job}")

    def shell_argv(self, job: str, node: str) -> list[str]:
        """Return an overlapping step of one task, without MPI and unbuffered."""
        return [*_step(job), *_alone(node), "/bin/sh", "-c", _CLEAN_SHELL]

    def starter(self, state: JobState) -> SrunStarter:
        """Return srun inside that job."""
        return SrunStarter(state.job, state.nodes, self.mpi)

    def explain(self, state: JobState) -> tuple[str, str]:
        """Return a sentence for a job that does not start, or did not end as it should."""
        if state.phase in {"waiting", "stuck"}:
            restarted = " after it was put back into the queue" if state.restarts else ""
            return (
                f"Slurm job {state.job} does not start{restarted}: {state.reason.replace('_', ' ')}",
                "`sinfo -R` names drained nodes; name others with `nodelist`, or leave some out with `exclude`",
            )
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
        self._jobs = [job] if job else []

    def __call__(self) -> Stream:
        """Start a shell; raise LostError where the node is not given within 20 s, UnavailableError without Slurm."""
        for job in self._jobs:
            if self._node in self._slurm.look(job).nodes:
                return open_program(self._slurm.shell_argv(job, self._node))
        stream = open_program(self._argv())
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
    return JobState(number, phase, word, reason, (), left_s, int(fields.get("Restarts", 0))), fields.get("NodeList", "")


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


def _ask(argv: Sequence[str], stdin: bytes = b"") -> Finished:
    return process.run(argv, timeout_s=_TIMEOUT_S, stdin=stdin)


def _ask_again(argv: Sequence[str]) -> Finished:
    """Ask what may be asked twice, until the controller answers or `_NO_ANSWER_S` are over."""
    deadline = time.monotonic() + _NO_ANSWER_S
    while _NO_ANSWER.search((finished := _ask(argv)).stderr) and time.monotonic() < deadline:
        time.sleep(_ASK_PAUSE_S)
    return finished
