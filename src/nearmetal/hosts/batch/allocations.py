"""The allocations of a run: those that its trials are in, and those that are kept for later ones.

Paths may want allocations of several kinds (partitions, accounts) whose jobs get the same nodes. What is kept for one
would then keep another's job waiting: it is given back.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from nearmetal.errors import UnavailableError
from nearmetal.hosts.batch.scheduler import JobState, LimitError, Request, Scheduler
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.stream import LostError
from nearmetal.hosts.host import Way

REACHING = ("partition", "account", "qos", "reservation")
"""Without which a node that is known by name may not be given."""
SPARE_S = 60
"""How much longer than a trial may take an allocation must last."""
Measuring = Callable[[Iterable[str]], contextlib.AbstractContextManager[None]]
"""What marks machines as measured on, by name, for the length of a `with`."""

_STARTS = 3
"""New allocations that may be of no use, one after another, before a trial is given up."""
_STUCK_S = 20.0
_SETTLE_S = 180.0
"""How long a job may take to end: slurmctld looks for jobs past their limit every 30 s, their processes get 30 s more
(`KillWait`), and those that cannot be killed 60 s (`UnkillableStepTimeout`; defaults of slurm.conf)."""
_POLL_S = (0.2, 2.0)


@dataclass(slots=True, eq=False)
class Allocation:
    """Nodes that are, or will be, held for some blocks; one that is `kept` has no trial in it."""

    job: str
    request: Request
    state: JobState
    batch: int | None = None
    kept: bool = True
    machines: dict[str, FarMachine] = field(default_factory=dict)
    restarts: int = 0
    marks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def disconnect(self) -> None:
        """Close the shells on its nodes."""
        for machine in self.machines.values():
            with contextlib.suppress(LostError):  # the allocation is over either way
                machine.close()
        self.machines.clear()
        self.marks.close()


class Allocations:
    """Submits jobs, waits for them and keeps them; `say` is told what a person should know of."""

    def __init__(self, scheduler: Scheduler, queue_timeout_s: float, say: Callable[[str], object]) -> None:
        self.measuring: Measuring = lambda _: contextlib.nullcontext()
        self.times_closed = 0
        self._scheduler = scheduler
        self._queue_timeout_s = queue_timeout_s
        self._say = say
        self._said: set[object] = set()
        self._lock = threading.Lock()
        self._all: list[Allocation] = []

    def take(self, request: Request, batch: int, trial_s: float, times_closed: int) -> Allocation:
        """Return a running allocation with enough time left for a trial; submit and wait where there is none.

        Raise UnavailableError where none is to be had, or these were closed since `times_closed` was read.
        """
        own, useless = set[Allocation](), 0
        while True:
            try:
                one = self._next(request, own, times_closed)
            except LimitError as error:
                if not self._give_back_all(error):
                    raise
                continue
            try:
                self._await(one)
            except BaseException:
                self.release(one)
                raise
            if one.state.phase in {"waiting", "stuck"}:  # another one is there before it
                self.put_back(one)
                continue
            enough = one.state.left_s >= trial_s + SPARE_S / 2
            if one.state.phase == "running" and enough and one.batch in {None, batch}:
                one.batch = batch
                return one
            self.release(one)
            useless += one in own
            if useless == _STARTS:
                raise self._unusable(one.state, trial_s)

    def put_back(self, one: Allocation) -> None:
        """Keep an allocation for the next trial that wants one of its kind."""
        with self._lock:
            one.kept = True

    def release(self, one: Allocation) -> None:
        """Give an allocation back."""
        one.disconnect()
        self._scheduler.cancel(one.job)
        with self._lock, contextlib.suppress(ValueError):  # closed meanwhile
            self._all.remove(one)

    def settled(self, job: str) -> JobState:
        """Return a job's state once its nodes are cleaned up: one that was preempted may then wait again."""
        deadline = time.monotonic() + _SETTLE_S
        while (state := self._scheduler.look(job)).ending and time.monotonic() < deadline:
            time.sleep(_POLL_S[0])
        return state

    def close(self) -> None:
        """Give every allocation back; calling twice does nothing more."""
        with self._lock:
            left, self._all = self._all, []
            self.times_closed += 1
        for one in left:
            if one.kept:
                one.disconnect()
        if left:
            self._scheduler.cancel(*(one.job for one in left))

    def _next(self, request: Request, own: set[Allocation], times_closed: int) -> Allocation:
        """Return an allocation that was kept, or one that is submitted now; `own` are those of this caller's."""
        with self._lock:
            if self.times_closed != times_closed:  # a job that is submitted now would stay in the queue
                raise UnavailableError("the run was ended during the trial")
            kept = self._kept(request)
            if not kept:
                jobs = self._scheduler.submit(request)
                kept = [Allocation(job, request, JobState(job, "waiting", "")) for job in jobs]
                self._all += kept
                own.update(kept)
            one = next((one for one in kept if one.state.phase == "running"), kept[0])
            one.kept = False
            return one

    def _kept(self, request: Request) -> list[Allocation]:
        return [one for one in self._all if one.kept and one.request == request]

    def _await(self, one: Allocation) -> None:
        """Wait until an allocation runs or has ended, or another of its kind runs and has no trial.

        Raise UnavailableError when it will not start. Time in which trials of this run are in its nodes does not count.
        """
        begun, stuck_since, pause_s = time.monotonic(), 0.0, _POLL_S[0]
        while True:
            one.state = state = self._scheduler.look(one.job)
            if state.phase == "ended":
                return
            if state.phase == "running":
                self._connect(one)
                return
            with self._lock:
                if any(other.state.phase == "running" for other in self._kept(one.request)):
                    return
            now = time.monotonic()
            if self._make_room(one, late=now > begun + self._queue_timeout_s / 2):
                begun, stuck_since = now, 0.0
            stuck_since = (stuck_since or now) if state.phase == "stuck" else 0.0
            if now > begun + self._queue_timeout_s or (stuck_since and now - stuck_since > _STUCK_S):
                message, hint = self._scheduler.explain(state)
                raise UnavailableError(message, hint=hint)
            time.sleep(pause_s)
            pause_s = min(_POLL_S[1], pause_s * 1.3)

    def _make_room(self, waiting: Allocation, *, late: bool) -> bool:
        """Give back what is kept of other kinds and in a job's way; return whether trials of this run are in its way.

        As long as it can get other nodes, only what is `late` is worth another wait in the queue.
        """
        with self._lock:
            others = [one for one in self._all if one is not waiting]
        around = self._scheduler.around()
        wanted = self._scheduler.wanted(waiting.request, waiting.state) if others or around else frozenset()
        if wanted is not None and not wanted:
            return False
        if wanted is not None and waiting.request.exclusive and len(wanted - around) < waiting.request.nodes:
            missing = " ".join(sorted(wanted & around))
            raise UnavailableError(
                f"job {waiting.job} waits for {missing}, which the job around this nearmetal has",
                hint="run nearmetal on a login node, in no job: it asks for nodes itself",
            )
        holding = {one: nodes for one in others if (nodes := self._nodes_of(one))}
        in_way = [one for one, nodes in holding.items() if wanted is None or nodes & wanted]
        if wanted is not None and not late:
            elsewhere = wanted.difference(*holding.values())
            in_way = in_way if len(elsewhere) < waiting.request.nodes else []
        for one in in_way:
            if one.request != waiting.request and self._claim(one):
                self.release(one)
                self._say_once(one, waiting)
        return any(not one.kept for one in in_way)

    def _nodes_of(self, one: Allocation) -> frozenset[str]:
        """Return the nodes that an allocation holds; one that is kept may have got or lost them meanwhile."""
        if not one.kept:
            return frozenset(one.state.nodes)
        state = self._scheduler.look(one.job)
        with self._lock:
            if one.kept:
                one.state = state
        return frozenset(state.nodes)

    def _claim(self, one: Allocation) -> bool:
        """Take a certain allocation; return False where a trial has taken it meanwhile."""
        with self._lock:
            claimed, one.kept = one.kept and one in self._all, False
        return claimed

    def _give_back_all(self, error: LimitError) -> bool:
        """Give back all that is kept where no more may be submitted, and await its end; return whether it was any."""
        with self._lock:
            kept = [one for one in self._all if one.kept]
        given_back = [one for one in kept if self._claim(one)]
        for one in given_back:
            self.release(one)
            self._say(f"job {one.job} ({one.request}) is given back, because of a limit: {error.message}")
        for one in given_back:
            self.settled(one.job)
        return bool(given_back)

    def _say_once(self, given_back: Allocation, waiting: Allocation) -> None:
        """Tell of two kinds of jobs that want the same nodes, once for each two."""
        two = frozenset({given_back.request, waiting.request})
        if two not in self._said:
            self._said.add(two)
            self._say(
                f"job {given_back.job} ({given_back.request}) is given back, because job {waiting.job} "
                f"({waiting.request}) cannot start beside it: trials of the two take turns and wait in the queue each "
                "time; where each path has nodes of its own (`partition`, `nodelist`), jobs are kept"
            )

    def _unusable(self, state: JobState, trial_s: float) -> UnavailableError:
        """Return the error for allocations that all end, or have too little time, before a trial can start."""
        if state.phase == "running":
            return UnavailableError(
                f"{_STARTS} jobs started with too little time left, the last with {state.left_s} s; one trial may take "
                f"{trial_s:g} s and {SPARE_S} s more",
                hint="the batch system cut `time_limit_s`: name another `partition` or `qos`, or lower trials.timeout",
            )
        message, hint = self._scheduler.explain(state)
        return UnavailableError(f"{_STARTS} jobs ended before a trial could start; the last: {message}", hint=hint)

    def _connect(self, one: Allocation) -> None:
        """Make machines of the nodes; a job that came back from the queue may have others."""
        state = one.state
        if state.restarts != one.restarts or set(one.machines) != set(state.nodes):
            one.disconnect()
            one.restarts = state.restarts
            one.marks.enter_context(self.measuring(state.nodes))
            open_shell = self._scheduler.open_shell
            one.machines = {
                node: FarMachine(node, partial(open_shell, state.job, node), self._way(one, node))
                for node in state.nodes
            }

    def _way(self, one: Allocation, node: str) -> Way:
        options = {name: value for name, value in one.request.choices if name in REACHING}
        return {"kind": self._scheduler.kind, "node": {"name": node}, "options": {"job": one.state.job, **options}}
