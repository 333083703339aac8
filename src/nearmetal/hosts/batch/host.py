"""Host of a batch system: one allocation for a batch of blocks, trials in steps inside it.

A trial never starts in an allocation that has less time left than the trial may take. An allocation that is lost
(preemption, a node that fails) fails no trial at once: the trial is run again in the next one.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nearmetal.errors import BadInputError, NearmetalError, QuarantinedError, StoreError, UnavailableError
from nearmetal.hosts.batch.scheduler import CHOICES, JobState, Request, Scheduler
from nearmetal.hosts.far.host import BoundTrial, bind, check_options, refreshed
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.namespaces import FarNamespaceShell
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.far.stream import LostError, open_program
from nearmetal.hosts.host import Shell, Way, is_on, seconds, whole_number
from nearmetal.study.order import Order, Outcome, Scalar, TrialStatus

OF_ALLOCATION = dict.fromkeys(CHOICES, "as in the batch system")
"""What a path may ask for itself, too: native nodes and guests are often two partitions."""
OPTIONS = {
    "nodes": "number of nodes in an allocation (2)",
    "time_limit_s": "time limit of an allocation (1800)",
    "queue_timeout_s": "how long to wait for nodes (3600)",
    "blocks": "number of blocks that share an allocation (4)",
    "allocations": "number of allocations side by side, as an array job (1)",
    "exclusive": "allocate whole nodes (true)",
    "mpi": "plugin of the launcher, such as `pmix` or `pmi2` (chosen by the MPI's flavour)",
    "mpi_prefix": "directory of the MPI on the nodes (found on PATH)",
    "cache": "directory for programs built there (`~/.cache/nearmetal`)",
    "interface": "the nodes' interface on the measured path; a path may name a different one",
    **OF_ALLOCATION,
}
REACHING = ("partition", "account", "qos", "reservation")
"""Without which a node that is known by name may not be given."""
Measuring = Callable[[Iterable[str]], contextlib.AbstractContextManager[None]]
"""What marks machines as measured on, by name, for the length of a `with`."""

_ATTEMPTS = 2
_STARTS = 3
"""New allocations that may be of no use, one after another, before a trial is given up."""
_SPARE_S = 60
_STUCK_S = 20.0
_SETTLE_S = 180.0
"""How long a job may take to end: slurmctld looks for jobs past their limit every 30 s, their processes get 30 s more
(`KillWait`), and those that cannot be killed 60 s (`UnkillableStepTimeout`; defaults of slurm.conf)."""
_POLL_S = (0.2, 2.0)


@dataclass(slots=True)
class _Allocation:
    """Nodes that are, or will be, held for some blocks."""

    job: str
    batch: int
    state: JobState
    request: Request
    machines: dict[str, FarMachine] = field(default_factory=dict)
    restarts: int = 0
    marks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class BatchHost:
    """Carries trials out in the allocations of a batch system."""

    def __init__(self, scheduler: Scheduler, options: Mapping[str, Scalar]) -> None:
        check_options(scheduler.kind, options, OPTIONS)
        self.kind = scheduler.kind
        self.label = f"allocations of {scheduler.kind}, launched by its own launcher"
        self.slots = whole_number(options, "allocations", 1)
        self._nodes = whole_number(options, "nodes", 2)
        self._blocks = whole_number(options, "blocks", 4)
        self._time_limit_s = whole_number(options, "time_limit_s", 1800)
        self._queue_timeout_s = seconds(options, "queue_timeout_s", 3600)
        self._exclusive = is_on(options, "exclusive", default=True)
        self._scheduler = scheduler
        self._options = dict(options)
        self._memory = Memory()
        self._lock = threading.Lock()
        self._submitted: dict[Request, list[str]] = {}
        self._idle: dict[Request, list[_Allocation]] = {}
        self._jobs: set[str] = set()
        self._measuring: Measuring = lambda _: contextlib.nullcontext()

    def mark(self, measuring: Measuring) -> str:
        """Mark the nodes of each allocation, by the batch system's names, for as long as it is held."""
        self._measuring = measuring
        return ""

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Carry a trial out in an allocation, in a second one when the first is lost on the way."""
        lost: tuple[str, str] = ("", "")
        for _ in range(_ATTEMPTS):
            try:
                allocation = self._take(self._request(order), order)
            except NearmetalError as error:
                return Outcome.of_error(error)
            try:
                outcome = self._outcome_in(allocation, order, body)
            except LostError as error:
                lost = self._after_loss(allocation, error)
            except BaseException:
                self._release(allocation)
                raise
            else:
                if outcome.status is TrialStatus.VALID or self._goes_on(allocation.job):
                    self._put_back(allocation)
                    return outcome
                lost = self._after_loss(allocation, LostError(outcome.reason))
            if allocation.state.phase in {"waiting", "stuck"}:  # back in the queue: it comes, or is given up
                self._put_back(allocation)
        return Outcome(TrialStatus.FAILED, reason=lost[0], hint=lost[1])

    def _outcome_in(self, allocation: _Allocation, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Carry a trial out; what a person can act on is a failed outcome; what ends a run, and a loss, is raised."""
        try:
            return self._carry_out_in(allocation, order, body)
        except (LostError, QuarantinedError, StoreError):
            raise
        except NearmetalError as error:
            return Outcome.of_error(error)

    def _carry_out_in(self, allocation: _Allocation, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        interface = str(order.path.options.get("interface", self._options.get("interface", "")))
        options = {name: value for name, value in order.path.options.items() if name not in OF_ALLOCATION}
        nodes = allocation.state.nodes
        bound = bind(replace(order, path=replace(order.path, options=options)), dict.fromkeys(nodes, interface))
        machines = [allocation.machines[name] for name in bound.machines]
        with self._shell(allocation, machines, bound) as shell:
            outcome = body(shell, bound.order)
        facts: dict[str, Scalar] = {
            f"{self.kind}.job": allocation.state.job,
            f"{self.kind}.nodes": " ".join(nodes),
            f"{self.kind}.restarts": allocation.state.restarts,
        }
        if "_" in allocation.job:
            facts[f"{self.kind}.array_task"] = allocation.job
        return replace(outcome, facts={**outcome.facts, **facts})

    def _shell(
        self, allocation: _Allocation, machines: list[FarMachine], bound: BoundTrial
    ) -> MachinesShell | FarNamespaceShell:
        site = refreshed(machines, self._options)
        if bound.built:
            return FarNamespaceShell(machines[0], site, self._memory, own_network=bound.own_network)
        site = replace(site, starter=self._scheduler.starter(allocation.state))
        return MachinesShell(machines, [machine.name for machine in machines], site, self._memory)

    def _request(self, order: Order) -> Request:
        time_limit_s = self._time_limit_s
        if time_limit_s < order.timeout_s + _SPARE_S:
            raise BadInputError(
                f"time_limit_s is {time_limit_s}, and one trial may take {order.timeout_s:.0f} s and {_SPARE_S} s more",
                hint="raise the host's option `time_limit_s`, or lower `trials.timeout`",
            )
        asked = {name: str(value) for name, value in {**self._options, **order.path.options}.items()}
        return Request(
            nodes=max(self._nodes, order.nodes),
            time_limit_s=time_limit_s,
            tasks=self.slots,
            choices=tuple((name, asked[name]) for name in OF_ALLOCATION if asked.get(name)),
            exclusive=self._exclusive,
        )

    def _take(self, request: Request, order: Order) -> _Allocation:
        """Return a running allocation with enough time left; submit and wait where there is none."""
        batch, own, useless = order.block // self._blocks, set[str](), 0
        while True:
            allocation = self._next(request, batch, own)
            try:
                self._await(allocation)
            except BaseException:
                self._release(allocation)
                raise
            enough = allocation.state.left_s >= order.timeout_s + _SPARE_S / 2
            if allocation.state.phase == "running" and enough and allocation.batch == batch:
                return allocation
            self._release(allocation)
            useless += allocation.job in own
            if useless == _STARTS:
                raise self._unusable(allocation.state, order)

    def _next(self, request: Request, batch: int, own: set[str]) -> _Allocation:
        """Return an idle allocation, or one that was or is submitted now; `own` are those of this caller's."""
        with self._lock:
            if idle := self._idle.setdefault(request, []):
                return idle.pop()
            waiting = self._submitted.setdefault(request, [])
            if not waiting:
                waiting += self._scheduler.submit(request)
                self._jobs.update(waiting)
                own.update(waiting)
            job = waiting.pop(0)
            return _Allocation(job, batch, JobState(job, "waiting", ""), request)

    def _unusable(self, state: JobState, order: Order) -> UnavailableError:
        """Return the error for allocations that all end, or have too little time, before a trial can start."""
        if state.phase == "running":
            return UnavailableError(
                f"{_STARTS} jobs started with too little time left, the last with {state.left_s} s; one trial may take "
                f"{order.timeout_s:.0f} s and {_SPARE_S} s more",
                hint="the batch system cut `time_limit_s`: name another `partition` or `qos`, or lower trials.timeout",
            )
        message, hint = self._scheduler.explain(state)
        return UnavailableError(f"{_STARTS} jobs ended before a trial could start; the last: {message}", hint=hint)

    def _await(self, allocation: _Allocation) -> None:
        """Wait until an allocation runs or has ended; raise UnavailableError when it will not start."""
        deadline = time.monotonic() + self._queue_timeout_s
        stuck_since, pause_s = 0.0, _POLL_S[0]
        while True:
            allocation.state = state = self._scheduler.look(allocation.job)
            if state.phase == "ended":
                return
            if state.phase == "running":
                self._connect(allocation)
                return
            now = time.monotonic()
            stuck_since = (stuck_since or now) if state.phase == "stuck" else 0.0
            if now > deadline or (stuck_since and now - stuck_since > _STUCK_S):
                message, hint = self._scheduler.explain(state)
                raise UnavailableError(message, hint=hint)
            time.sleep(pause_s)
            pause_s = min(_POLL_S[1], pause_s * 1.3)

    def _connect(self, allocation: _Allocation) -> None:
        """Make machines of the nodes; a job that came back from the queue may have others."""
        state = allocation.state
        if state.restarts != allocation.restarts or set(allocation.machines) != set(state.nodes):
            self._disconnect(allocation)
            allocation.restarts = state.restarts
            allocation.marks.enter_context(self._measuring(state.nodes))
            argv = self._scheduler.shell_argv
            allocation.machines = {
                node: FarMachine(node, partial(open_program, argv(state.job, node)), self._way(allocation, node))
                for node in state.nodes
            }

    def _way(self, allocation: _Allocation, node: str) -> Way:
        options = {name: value for name, value in allocation.request.choices if name in REACHING}
        return {"kind": self.kind, "node": {"name": node}, "options": {"job": allocation.state.job, **options}}

    def _after_loss(self, allocation: _Allocation, error: LostError) -> tuple[str, str]:
        """Return why an allocation was lost, in the batch system's words where it has some."""
        self._disconnect(allocation)
        allocation.state = state = self._settled(allocation.job)
        if state.phase == "running":
            self._release(allocation)
            return error.message, error.hint
        if state.phase in {"ending", "ended"}:
            self._release(allocation)
        message, hint = self._scheduler.explain(state)
        return f"{message} during the trial", hint

    def _goes_on(self, job: str) -> bool:
        state = self._scheduler.look(job)
        return state.phase == "running" and not state.ending

    def _settled(self, job: str) -> JobState:
        """Return a job's state once its nodes are cleaned up: one that was preempted may then wait again."""
        deadline = time.monotonic() + _SETTLE_S
        while (state := self._scheduler.look(job)).ending and time.monotonic() < deadline:
            time.sleep(_POLL_S[0])
        return state

    def _put_back(self, allocation: _Allocation) -> None:
        with self._lock:
            self._idle.setdefault(allocation.request, []).append(allocation)

    def _release(self, allocation: _Allocation) -> None:
        self._disconnect(allocation)
        self._scheduler.cancel(allocation.job)
        with self._lock:
            self._jobs.discard(allocation.job)

    @staticmethod
    def _disconnect(allocation: _Allocation) -> None:
        for machine in allocation.machines.values():
            with contextlib.suppress(LostError):  # the allocation is over either way
                machine.close()
        allocation.machines.clear()
        allocation.marks.close()

    def close(self) -> None:
        """Give every allocation back; calling twice does nothing more."""
        with self._lock:
            idle = [one for allocations in self._idle.values() for one in allocations]
            jobs, self._jobs = self._jobs, set()
            self._idle.clear()
            self._submitted.clear()
        for allocation in idle:
            self._disconnect(allocation)
        for job in sorted(jobs):
            self._scheduler.cancel(job)
