"""How long a schedule takes on a machine: replicas, their distribution, and what it depends on."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import special

from nearmetal import limits
from nearmetal.errors import BadInputError, NearmetalError, UnavailableError
from nearmetal.hosts.processors import own_processors
from nearmetal.predict import _sim
from nearmetal.predict.models import Machine, PathModel, Segment
from nearmetal.predict.native import Placement, native_job
from nearmetal.predict.schedule import OpKind, Schedule
from nearmetal.predict.trace import named_calls

_FINISHED, _DEADLOCK, _UNMATCHED, _STEPS, _MEMORY, _TIME = range(6)
INTERVAL_LEVEL = 0.95
MOST_REPLICAS = 1_000_000
_BUDGETS = {
    _STEPS: ("the replay did not end within its limit of steps", limits.STEPS),
    _MEMORY: ("the replay needs more memory than its limit", limits.MEMORY),
    _TIME: ("the program runs for more than 13 days", None),
}
MARKS = ((1001, 1002), (3, 4))
"""Levels of MPI_Pcontrol around each iteration of nearmetal's applications, and of those of older traces."""
_STEP = 0.1


class DeadlockError(NearmetalError):
    """The program cannot end: some ranks wait for what never comes."""


class BudgetError(UnavailableError):
    """The program needs more steps, memory or simulated time than a replay may take."""


class UnmatchedError(NearmetalError):
    """The program ends with messages that nobody received, or receives that nobody answered."""


@dataclass(frozen=True, slots=True)
class RunTimeQuantile:
    """A quantile of the run time over replicas with a 95 % interval; None bounds: too few replicas for one."""

    probability: float
    value_ns: float
    low_ns: float | None
    high_ns: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Run times of all replicas (shape (replicas,), int64 ns) and what happened in the first of them.

    `rank_compute_ns` and `rank_overhead_ns` are means over ranks and the fifth of the replicas around the median:
    computing, and what sends and receives take of the processor; the rest of that median is waiting. `moderation_ns` is
    what an added interrupt stage costs.
    `collectives_as_measured` counts collectives that took the time measured of them, not that of their messages.
    `machines` is the place of each replica's machine, fitted from one launch of the path, among those given.
    """

    makespan_ns: NDArray[np.int64]
    machines: NDArray[np.int64]
    messages: int
    inter_messages: int
    message_bytes: int
    compute_ns: int
    rank_compute_ns: float
    rank_overhead_ns: float
    moderation_ns: float = 0.0
    collectives_as_measured: int = 0
    marks: tuple[NDArray[np.int64], ...] = ()
    """Of each replica, when asked for: shape (marks, 3), each row a rank, a level (MPI_Pcontrol) and a time in ps."""

    def quantile(self, probability: float) -> RunTimeQuantile:
        """Return a quantile of the run time.

        The interval is that of order statistics (distribution-free; David and Nagaraja, Order Statistics, 7.1): the
        ranks l < u with P(l <= Binomial(n, p) < u) >= 95 %.
        """
        ordered = np.sort(self.makespan_ns)
        n = ordered.size
        half = (1 - INTERVAL_LEVEL) / 2
        low = math.ceil(special.bdtrik(half, n, probability)) - 1
        high = math.ceil(special.bdtrik(1 - half, n, probability))
        return RunTimeQuantile(
            probability,
            float(np.quantile(ordered, probability)),
            float(ordered[low]) if low >= 0 else None,
            float(ordered[high]) if high < n else None,
        )

    @property
    def inter_share(self) -> float:
        """Return the share of messages that leave their domain."""
        return self.inter_messages / self.messages if self.messages else 0.0


def simulate(
    schedule: Schedule, machine: Machine, placement: Placement, *, seed: int = 0, replicas: int = 1
) -> Prediction:
    """Replay a schedule `replicas` times and return the distribution of its run time.

    Raise DeadlockError or UnmatchedError with the ranks and calls involved, BudgetError with where it was when it had
    used what a replay may (`nearmetal.limits`).
    """
    return simulate_launches([schedule], [machine], placement, seed=seed, replicas=replicas)


@cache
def _processors() -> int:
    """Return how many threads replay; asked once, because a short replay takes less time than the answer."""
    return own_processors()


def simulate_launches(
    schedules: Sequence[Schedule],
    machines: Sequence[Machine],
    placement: Placement,
    *,
    seed: int = 0,
    replicas: int = 1,
    threads: int | None = None,
    keep_marks: bool = False,
) -> Prediction:
    """Replay several traced launches of a program on machines fitted from single launches, all pairs in turn.

    Differences between launches (which cores, which cache lines) then show in the distribution, as they do when the
    program is launched again and again. The answer depends on the arguments only, not on `threads` (default: the
    processors this process may use). Everything else is as in `simulate`.
    """
    if not 1 <= replicas <= MOST_REPLICAS or not 0 <= seed < 1 << 64:
        raise BadInputError(
            f"{replicas} replicas with seed {seed}",
            hint=f"1 to {MOST_REPLICAS} replicas, and a seed from 0 to 2^64 - 1; a hundred replicas are usual",
        )
    if len({schedule.ranks for schedule in schedules}) != 1 or not machines:
        text = f"traces of {sorted(schedule.ranks for schedule in schedules)} ranks on {len(machines)} machines"
        raise BadInputError(text, hint="several traces are launches of the same program with the same number of ranks")
    pairs = _pairs(schedules, machines)[:replicas]
    results: dict[int, _sim.Result] = {}
    for index, (schedule, at_machine) in enumerate(pairs):
        own = range(index, replicas, len(pairs))
        job = native_job(schedule, machines[at_machine], placement)
        # Replicas are numbered by launch, so that no two of them share random numbers.
        first = index * -(-replicas // len(pairs))
        found = _sim.simulate(
            job,
            seed,
            first,
            len(own),
            threads or _processors(),
            keep_marks,
            max_steps=limits.STEPS.value(),
            max_bytes=limits.MEMORY.value(),
        )
        for at, result in zip(own, found, strict=True):
            if result.outcome != _FINISHED:
                _explain(schedule, result)
            results[at] = result
    launched = np.resize([at_machine for _, at_machine in pairs], replicas)
    return _prediction([results[at] for at in range(replicas)], launched, schedules[0].ranks, keep_marks=keep_marks)


def _pairs(schedules: Sequence[Schedule], machines: Sequence[Machine]) -> list[tuple[Schedule, int]]:
    """Return every pair once, the machine by its place; neighbours have as little in common as can be.

    So a few replicas see many launches.
    """
    both = math.lcm(len(schedules), len(machines))
    return [
        (schedules[index % len(schedules)], (index + index // both) % len(machines))
        for index in range(len(schedules) * len(machines))
    ]


def _prediction(
    results: Sequence[_sim.Result], machines: NDArray[np.int64], ranks: int, *, keep_marks: bool
) -> Prediction:
    first = results[0]
    makespan_ns = np.array([result.makespan_ps // 1000 for result in results], dtype=np.int64)
    outside = 2 * len(results) // 5
    usual = [results[at] for at in np.argsort(makespan_ns, kind="stable")[outside : len(results) - outside]]
    return Prediction(
        makespan_ns=makespan_ns,
        machines=machines,
        messages=first.messages,
        inter_messages=first.inter_messages,
        message_bytes=first.bytes,
        compute_ns=first.compute_ps // 1000,
        collectives_as_measured=first.collectives_as_measured,
        rank_compute_ns=float(np.mean([result.compute_ps for result in usual])) / 1000 / ranks,
        rank_overhead_ns=float(np.mean([result.overhead_ps for result in usual])) / 1000 / ranks,
        marks=tuple(result.marks() for result in results) if keep_marks else (),
    )


def iterations_ps(marks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return begin and end of each iteration, shape (ranks, iterations); None where marks are no iterations.

    A program's own levels may be numbers of phases: they are iterations where all ranks that have them begin and end
    equally often, in turn.
    """
    levels = next((pair for pair in MARKS if (marks[:, 1] == pair[0]).any()), None)
    if levels is None:
        return None
    own = marks[np.isin(marks[:, 1], levels)]
    of_ranks = [own[own[:, 0] == rank] for rank in np.unique(own[:, 0])]
    count = len(of_ranks[0]) // 2
    if not all(np.array_equal(one[:, 1], np.tile(levels, count)) for one in of_ranks):
        return None
    times = np.stack([one[:, 2] for one in of_ranks])
    return times[:, ::2], times[:, 1::2]


def _explain(schedule: Schedule, result: _sim.Result) -> NoReturn:
    count = result.stuck_count
    more = f"; and {count - len(result.stuck)} more" if count > len(result.stuck) else ""
    if result.outcome == _DEADLOCK:
        told = "; ".join(_describe(schedule, stuck) for stuck in result.stuck)
        raise DeadlockError(
            f"deadlock: {count} of {schedule.ranks} ranks cannot continue: {told}{more}",
            hint=_lacking(schedule)
            or _of_threads(schedule)
            or "the trace is incomplete, or relies on buffering beyond the model's eager limit",
        )
    if result.outcome in _BUDGETS:
        used, limit = _BUDGETS[result.outcome]
        hint = limit.hint if limit else "check --compute-scale, --hop and --delivery; otherwise the trace is damaged"
        raise BudgetError(f"{used}, {_describe(schedule, result.stuck[0])}", hint=hint)
    told = "; ".join(
        f"rank {stuck.rank}: {'message' if stuck.bytes else 'message or receive'} from "
        f"{stuck.peer if stuck.peer >= 0 else 'any'} tag {stuck.tag} ({stuck.bytes} B)"
        for stuck in result.stuck
    )
    text = f"{count} messages or receives have no partner: {told}{more}"
    raise UnmatchedError(text, hint=_lacking(schedule) or "the trace is incomplete: trace the program again to its end")


def _lacking(schedule: Schedule) -> str:
    """Return what to do where a program cannot end because its trace lacks calls; empty where it lacks none."""
    if not schedule.opaque_share:
        return ""
    if schedule.opaque_names == ("Cancel",):
        return "a trace does not say which requests MPI_Cancel ended: measure the program itself on each path"
    calls = named_calls(schedule.opaque_names)
    return f"the trace lacks calls that others wait for ({calls}): measure the program itself on each path"


def _of_threads(schedule: Schedule) -> str:
    """Return what to do where threads of a rank may wait for each other in a replay; empty where one calls MPI."""
    if schedule.calling_threads < 2:
        return ""
    threads = f"the {schedule.calling_threads} threads of a rank that call MPI"
    return f"a replay makes the calls of {threads} one after another: measure the program itself on each path"


def _describe(schedule: Schedule, stuck: _sim.Stuck) -> str:
    ops = schedule.program(stuck.rank).ops
    if stuck.op >= len(ops):
        return f"rank {stuck.rank} after its last call"
    op = ops[stuck.op]
    if op.kind is OpKind.COLLECTIVE:
        return f"rank {stuck.rank} in {op.collective.name.lower()} on communicator {op.comm}"
    if op.kind is OpKind.WAIT:
        return f"rank {stuck.rank} in wait for requests {list(schedule.program(stuck.rank).slot_sets[op.slots])}"
    peer = str(stuck.peer) if stuck.peer >= 0 else "any"
    return f"rank {stuck.rank} in {op.kind.name.lower()} with {peer}, tag {stuck.tag}, {stuck.bytes} B"


# ---------------------------------------------------------------- sensitivity


def _scale_path(path: PathModel, change: Callable[[Segment], Segment], name: str, factor: float) -> PathModel:
    def longer(times_ps: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        return tuple((at, round(ps * factor)) for at, ps in times_ps)

    if name == "overhead":
        path = dataclasses.replace(path, cold=longer(path.cold), crossing_ps=longer(path.crossing_ps))
        path = dataclasses.replace(path, work_ps=longer(path.works()), trailing_ps=longer(path.trailing_ps))
        ends = longer(path.send_work_ps), longer(path.receive_work_ps)
        path = dataclasses.replace(path, send_work_ps=ends[0], receive_work_ps=ends[1])
    if name == "bandwidth":
        (single,) = longer((path.single_copy,))
        path = dataclasses.replace(path, copy_fs_per_byte=round(path.copy_fs_per_byte * factor), single_copy=single)
    return dataclasses.replace(path, segments=tuple(map(change, path.segments)))


def _scaled(machine: Machine, parameter: str, factor: float) -> Machine:
    if parameter == "compute":
        return dataclasses.replace(machine, compute_scale=machine.compute_scale * factor)
    if parameter == "port":
        return dataclasses.replace(machine, port_fs_per_byte=round(machine.port_fs_per_byte * factor))
    which, name = parameter.split(".")

    def change(segment: Segment) -> Segment:
        if name == "residual":
            if segment.residual is None:
                return segment
            values = tuple(round(v * factor) for v in segment.residual.values_ps)
            return dataclasses.replace(segment, residual=dataclasses.replace(segment.residual, values_ps=values))
        fields = {
            "latency": ("latency_ps",),
            "overhead": ("send_overhead_ps", "recv_overhead_ps", "overhead_fs_per_byte"),
            "gap": ("gap_ps",),
            "bandwidth": ("fs_per_byte", "latency_fs_per_byte"),
        }[name]
        return dataclasses.replace(segment, **{field: round(getattr(segment, field) * factor) for field in fields})

    if which == "intra":
        intra = _scale_path(machine.intra, change, name, factor) if machine.intra else None
        return dataclasses.replace(machine, intra=intra)
    return dataclasses.replace(machine, inter=_scale_path(machine.inter, change, name, factor))


SENSITIVITY_PARAMETERS = (
    "compute",
    "port",
    *(
        f"{which}.{name}"
        for which in ("intra", "inter")
        for name in ("latency", "overhead", "gap", "bandwidth", "residual")
    ),
)


def sensitivity(
    schedules: Sequence[Schedule], machine: Machine, placement: Placement, *, seed: int = 0, replicas: int = 1
) -> dict[str, float]:
    """Return the elasticity of the median run time of launches for each parameter, largest first.

    Elasticity: relative change of the run time over relative change of the parameter, from a step of 10 % in each
    direction with the same random numbers; 1 means the time is proportional to it, 0 that it does not matter.
    Collectives are played as their messages here, for a measured time says nothing about parameters.
    """
    machine = dataclasses.replace(machine, measured=())

    def median_ns(changed: Machine) -> float:
        found = simulate_launches(schedules, [changed], placement, seed=seed, replicas=replicas)
        return float(np.median(found.makespan_ns))

    base = median_ns(machine)
    if base <= 0:
        raise BadInputError("the program takes no time on this machine", hint="a sensitivity needs a run time above 0")
    found = {
        parameter: (
            median_ns(_scaled(machine, parameter, 1 + _STEP)) - median_ns(_scaled(machine, parameter, 1 - _STEP))
        )
        / (2 * _STEP * base)
        for parameter in SENSITIVITY_PARAMETERS
    }
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))
