"""Compare predictions with a run that launched the same program: errors next to those of an oracle, order, coverage."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import class_of, errors_of, run_errors
from nearmetal.predict.conditions import conditions_of, mpi_of
from nearmetal.predict.doubt import Doubt
from nearmetal.predict.doubts import PROCESSOR, of_mixed_trials, same_condition
from nearmetal.predict.fit_run import LEAST_SIZES, fit_records, key_of
from nearmetal.predict.model_file import ModelFile
from nearmetal.predict.models import INTRA_KIND, MachineKey, MachineName, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.path_samples import PAIRED, is_back_to_back
from nearmetal.predict.schedule import OpKind, Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace, words_of
from nearmetal.predict.simulate import MARKS, Prediction, iterations_ps, simulate_launches
from nearmetal.predict.trace import DoCall, Trace, walk
from nearmetal.predict.trace_file import trace_of
from nearmetal.stats.summary import P99
from nearmetal.store.query import valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.fields import AS_FOUND
from nearmetal.study.order import PROFILE_OPTION
from nearmetal.units import by_key
from nearmetal.workloads.apps import PROGRAM, application_argv
from nearmetal.workloads.figures import unit_named

Times = NDArray[np.float64]

MOST_MARKS = 10_000_000
"""Iterations of all ranks and replicas that are kept for their 99th percentile: 480 MB."""
KINDS = ("application", "command")
TOLD_APART = 0.10
"""Paths count as different when their medians differ by more than this share and by more than the range of launches."""
_SPLITS = 400
"""Path, setting and progress."""
PARTS = ("computing", "messages")


@dataclass(frozen=True, slots=True)
class MeasuredLaunches(MachineName):
    """What a run measured of one program on a path: its nodes by rank, and one time a launch (ns)."""

    placement: tuple[int, ...]
    timed_part: bool
    ns: Times
    conditions: tuple[tuple[str, str], ...] = ()
    """What the times depend on beside the key (`conditions.conditions_of`), several of a kind where launches differ."""
    command: tuple[str, ...] = ()
    """The words of its command line but paths, as far as the study gives them."""
    wall: bool = False
    """The time is that of the whole launch, with the start-up of the MPI."""
    figures: int = 1
    """How many figures a launch of a command had at most: its time is their median."""
    p99_ns: tuple[float, ...] = ()
    """Of an application, the 99th percentile of the iterations of each launch."""

    def placed(self, named: NamedMachine) -> Placement:
        """Return where its ranks ran: nodes of a path inside a node are one."""
        nodes = [0] * len(self.placement) if named.kind == INTRA_KIND else self.placement
        return Placement.of_hosts(np.array(nodes, np.uint32))


@dataclass(frozen=True, slots=True)
class MeasuredParts:
    """Parts of a prediction as measured alongside the same launches.

    `computing` are traces of the program taken on the path itself, `messages` the path fitted from the same run.
    """

    computing: Mapping[MachineKey, Sequence[Schedule]] = field(default_factory=dict)
    messages: Mapping[MachineKey, NamedMachine] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Validated:
    """A prediction with its measurement (medians, ns); `oracle` is the error of a guess from the same launches."""

    launches: MeasuredLaunches
    predicted_ns: float
    interval_ns: tuple[float, float] | None
    case_class: str
    oracle: float
    parts_ns: Mapping[str, float] = field(default_factory=dict)
    """What is predicted with one part as it was measured beside the launches, by `PARTS`; those that were measured."""
    predicted_p99_ns: float | None = None
    """Of an application, the 99th percentile of a launch's iterations: the median of the replays."""

    @property
    def measured_ns(self) -> float:
        """Return the median of the measured launches."""
        return float(np.median(self.launches.ns))

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted_ns / self.measured_ns - 1

    @property
    def inside(self) -> float:
        """Return the share of measured launches inside the interval; NaN without one."""
        if self.interval_ns is None:
            return float("nan")
        return float(np.mean((self.launches.ns >= self.interval_ns[0]) & (self.launches.ns <= self.interval_ns[1])))


def program_trials(run: RunDir, workload: str = "") -> list[TrialRecord]:
    """Return the trials of a run's program, failed ones among them.

    Raise BadInputError where the run has no such workload, or several and none is named.
    """
    records = [record for record in run.trials() if record.order.workload.kind in KINDS]
    names = sorted({record.order.workload.label for record in records})
    if workload not in {"", *names} or not names or (not workload and len(names) > 1):
        raise BadInputError(
            f"{run.root} has {len(names)} workloads that are programs" + (f", not {workload!r}" if workload else ""),
            hint=f"name one with --workload: {', '.join(names)}" if names else "launch one: kind = 'command'",
        )
    return [record for record in records if record.order.workload.label == (workload or names[0])]


def measured_launches(run: RunDir, workload: str = "") -> list[MeasuredLaunches]:
    """Return the launches of a run's program by path, setting and progress; the baseline's two labels are one path.

    An application's time is its timed part (all iterations, the slowest rank's), a command's the figure it has. Raise
    BadInputError as `program_trials` does, and for one of 0 ns.
    """
    found: dict[tuple[str, str, str, tuple[int, ...], bool], list[tuple[float, TrialRecord, int]]] = defaultdict(list)
    for record in valid(program_trials(run, workload)):
        order = record.order
        whole = next((cell for cell in record.cells if cell.operation.endswith(".total")), None)
        cell = whole or record.cells[0]
        ns = run.rows(record, cell).column("ns").to_numpy()
        key = key_of(order)
        time = float(ns.max() if whole else np.median(ns))
        if time <= 0:
            text = f"a launch of {order.workload.label} on {order.path.name} took 0 s: nothing can be compared with it"
            raise BadInputError(text, hint="let the program print its time with more digits, or do more")
        found[*key, tuple(order.workload.placement), whole is not None].append((time, record, 1 if whole else ns.size))
    return [
        MeasuredLaunches(
            *key,
            np.array([time for time, *_ in launches]),
            tuple(dict.fromkeys(pair for _, record, _ in launches for pair in conditions_of(run, record).items())),
            *_program(run, launches[-1][1]),
            max(figures for *_, figures in launches),
            p99_ns=tuple(_p99_ns(run, record) for _, record, _ in launches) if key[-1] else (),
        )
        for key, launches in sorted(found.items(), key=lambda item: item[0])
    ]


def _p99_ns(run: RunDir, record: TrialRecord) -> float:
    """Return the 99th percentile of the iterations of an application, each the slowest rank's."""
    total = next(cell for cell in record.cells if cell.operation.endswith(".total"))
    iterations = next(cell for cell in record.cells if cell.operation == total.operation.removesuffix(".total"))
    return float(np.quantile(run.values(record, iterations), P99))


def _program(run: RunDir, record: TrialRecord) -> tuple[tuple[str, ...], bool]:
    """Return the words of a launch's command line, and whether the wall clock timed it."""
    workload = record.order.workload
    options = workload.options
    if workload.kind == "application":
        command, wall = (PROGRAM, *application_argv(record.order)), False
    else:
        argv = options.get("argv")
        command = words_of([str(word) for word in argv] if isinstance(argv, list) else [])
        wall = options.get("figure", "wall") == "wall"
        if unit_named(str(options.get("unit", "s"))).rate:
            raise BadInputError(
                f"workload {workload.label!r} of {run.root} measures a rate, {options['unit']}",
                hint="predictions are of run times: let its `pattern` match the seconds that the program prints",
            )
    return command, wall


def doubts_of_launches(
    schedules: Sequence[Schedule], named: NamedMachine, launches: MeasuredLaunches
) -> Iterator[Doubt]:
    """Say how the launches differ from what is predicted, besides the time."""
    yield from of_mixed_trials(launches.conditions, "the launches")
    told = Counter(how for how, _ in launches.conditions)
    alike = {how: words for how, words in launches.conditions if told[how] == 1}
    older = {"on the host": named.host, "with": named.mpi, "under the setting": named.knobs} if named.host else {}
    for how, model in (dict(named.conditions) or older).items():
        truth = alike.get(how, model)
        if not same_condition(model, truth):
            on = "on" if how == PROCESSOR else how
            text = f"the paths were measured {on} {model or 'as found'}, the launches {on} {truth or 'as found'}"
            yield Doubt(text, "compare predictions with launches under the conditions of the run", 1.0)
    traced, ordered = schedules[0].command, launches.command
    if traced and launches.timed_part:
        traced = (PROGRAM, *traced[1:])  # a build has its own name
    shorter = min(len(traced), len(ordered))
    if traced[:shorter] != ordered[:shorter]:
        text = f"the trace is of {' '.join(traced)!r:.80}, the launches are of {' '.join(ordered)!r:.80}"
        yield Doubt(text, "name the launched program with --workload, or trace that", 1.0)
    if launches.wall:
        text = "the launches were timed by the wall clock, which includes the start-up of the MPI; the prediction does "
        text += "not"
        yield Doubt(text, "let the study read the seconds that the program prints: figure = 'regex'", 1.0)
    elif launches.figures > 1:
        text = f"a launch has up to {launches.figures} figures, and its time is taken to be their median"
        yield Doubt(text, "let the study's `pattern` or `path` match one figure, the run time of the program", 1.0)
    if not (launches.wall or launches.timed_part):
        text = "the first message between two ranks opens a connection, which the program's own figure may include and "
        text += "the prediction does not"
        yield Doubt(text, "let ranks exchange a message before the program's clock starts", 1.0)


def measured_parts(run: RunDir, workload: str = "", machines: Sequence[NamedMachine] = ()) -> MeasuredParts:
    """Return what a run shows about the parts of a prediction: its own traces of the program, its own ping-pong.

    An MPI has the eager limit that it has on `machines`, which is predicted with.
    """
    records = valid(run.trials())
    computing: dict[MachineKey, list[Schedule]] = defaultdict(list)
    for record in records:
        if workload in {"", record.order.workload.label} and run.keeps("mpi", record):
            computing[key_of(record.order)].append(schedule_from_trace(_trace_of(run, record)))
    sizes: dict[MachineKey, set[int]] = defaultdict(set)
    for record in records:
        if is_back_to_back(record.order):
            sizes[key_of(record.order)] |= {one.message_bytes for one in record.cells if one.operation == PAIRED}
    paired = [record for record in records if len(sizes[key_of(record.order)]) >= LEAST_SIZES]
    mpis = {mpi_of(record) for record in paired}
    limits = (one.machine.inter.eager_up_to_bytes for one in machines if one.kind != INTRA_KIND and {one.mpi} == mpis)
    fitted = fit_records(run, paired, eager_up_to_bytes=next(limits, None)).machines if paired else ()
    return MeasuredParts(computing, {one.key: one for one in fitted})


def traced_launches(run: RunDir, workload: str) -> tuple[list[Schedule], list[str]]:
    """Return what a run's workload was traced to do, one a launch; raise BadInputError for a workload without.

    The launches are those of one path and setting, the first of the names that are returned too: how long ranks
    compute, and what they do while they wait, may differ between paths. The baseline as found is it, where it has any.
    """
    traced = [one for one in valid(run.trials()) if one.order.workload.options.get(PROFILE_OPTION) is True]
    found = by_key((key_of(one.order), one) for one in traced if one.order.workload.label == workload)
    if not found:
        known = ", ".join(sorted({one.order.workload.label for one in traced}))
        raise BadInputError(
            f"{run.root} has no traces of a workload {workload!r}",
            hint=f"it has traces of {known}" if known else "an application records one with options = { trace = true }",
        )
    baseline = run.study().baseline
    keys = sorted(found, key=lambda key: (key[0] != baseline, key[1] != AS_FOUND, key))
    processors = (conditions_of(run, one).get(PROCESSOR, "") for one in found[keys[0]])
    schedules = (schedule_from_trace(_trace_of(run, one)) for one in found[keys[0]])
    told = [replace(one, processor=processor) for one, processor in zip(schedules, processors, strict=True)]
    return told, [" / ".join(key) for key in keys]


def _trace_of(run: RunDir, record: TrialRecord) -> Trace:
    order = record.order
    return trace_of(run.profile(record), f"{order.workload.label} of {run.root.name}, trial {order.trial}")


def timed_part_ns(marks: NDArray[np.int64]) -> tuple[float, Times]:
    """Return the timed part and the iterations of one replica, the slowest rank's, from its marks (see Prediction)."""
    begins_ends = iterations_ps(marks)
    if begins_ends is None:
        text = "the trace does not mark iterations"
        raise BadInputError(text, hint="trace the application of the run with this version")
    begins, ends = begins_ends
    return float((ends[:, -1] - begins[:, 0]).max()) / 1000, (ends - begins).max(axis=0) / 1000


def marked_iterations(schedule: Schedule) -> int:
    """Return how many iterations all ranks mark, 0 where none are told apart."""
    begins = {pair[0] for pair in MARKS}
    ranks = [(program, schedule.ranks if schedule.shared else 1) for program in schedule.programs]
    return sum(
        times * count
        for program, count in ranks
        for step, times in walk(program.steps)
        if isinstance(step, DoCall)
        and program.ops[step.index].kind is OpKind.MARK
        and program.ops[step.index].tag in begins
    )


def p99_iterations_ns(found: Prediction) -> Times | None:
    """Return each replayed launch's 99th percentile of iterations; None without marks, or if they are no iterations."""
    if not found.marks or any(iterations_ps(marks) is None for marks in found.marks):
        return None
    return np.array([np.quantile(timed_part_ns(marks)[1], P99) for marks in found.marks])


@dataclass(frozen=True, slots=True)
class Replays:
    """How programs are replayed on paths: how often, the seed, and the parts that were measured alongside launches.

    With `parts` each case is also predicted with one part as it was measured: what is left then is not that part's.
    """

    model: ModelFile
    replicas: int
    seed: int
    parts: MeasuredParts = field(default_factory=MeasuredParts)

    def validated(self, schedules: Sequence[Schedule], named: NamedMachine, launches: MeasuredLaunches) -> Validated:
        """Return one measured case with its predictions."""
        placement = launches.placed(named)
        errors = self.model.validated or run_errors(named.host)
        case_class = class_of(named, placement, errors)
        found = self._found(schedules, named, launches, placement)
        times = _times(found, launches)
        interval = errors_of(errors, case_class).interval(times)
        own = self.parts.messages.get(launches.key)
        instead = {
            "computing": (self.parts.computing.get(launches.key), _at_scale(named, 1.0)),  # it was taken there
            "messages": (schedules, own and _at_scale(own, named.machine.compute_scale)),
        }
        parts_ns = {
            part: float(np.median(_times(self._found(its_schedules, its_path, launches, placement), launches)))
            for part, (its_schedules, its_path) in instead.items()
            if its_schedules and its_path
        }
        p99_ns = p99_iterations_ns(found)
        told = (interval, case_class, oracle_error(launches.ns), parts_ns)
        return Validated(launches, float(np.median(times)), *told, None if p99_ns is None else float(np.median(p99_ns)))

    def _found(
        self, schedules: Sequence[Schedule], named: NamedMachine, launches: MeasuredLaunches, placement: Placement
    ) -> Prediction:
        marked = launches.timed_part
        return simulate_launches(
            schedules, named.replayed, placement, replicas=self.replicas, seed=self.seed, keep_marks=marked
        )


def _at_scale(named: NamedMachine, compute_scale: float) -> NamedMachine:
    machine, *launches = (replace(one, compute_scale=compute_scale) for one in (named.machine, *named.launches))
    return replace(named, machine=machine, launches=tuple(launches))


def _times(found: Prediction, launches: MeasuredLaunches) -> Times:
    if launches.timed_part:
        return np.array([timed_part_ns(marks)[0] for marks in found.marks])
    return found.makespan_ns.astype(np.float64)


def validate(
    schedules: Sequence[Schedule],
    machines: Sequence[NamedMachine],
    measured: Sequence[MeasuredLaunches],
    replays: Replays,
) -> list[Validated]:
    """Return every measured case whose path, setting and progress mode is among the machines.

    Raise BadInputError when there is none, or when the program was launched with another number of ranks.
    """
    known = {one.key: one for one in reversed(machines)}
    cases = [one for one in measured if one.key in known]
    for launches in cases:
        if len(launches.placement) != schedules[0].ranks:
            text = f"the trace has {schedules[0].ranks} ranks, the measured launches {len(launches.placement)}"
            raise BadInputError(text, hint="trace the program as it was launched")
    if not cases:
        has = ", ".join(sorted({one.name for one in measured})) or "no valid launch"
        raise BadInputError("no measured case has a path, setting and progress mode of the model", hint=f"it has {has}")
    return [replays.validated(schedules, known[one.key], one) for one in cases]


def oracle_error(ns: Times) -> float:
    """Return the median error of predicting half of a case's launches from the other half; NaN for fewer than 4."""
    if ns.size < 4:
        return float("nan")
    rng = np.random.default_rng(0)
    half = ns.size // 2
    mixed = np.array([rng.permutation(ns) for _ in range(_SPLITS)])
    guess, truth = np.median(mixed[:, :half], axis=1), np.median(mixed[:, half:], axis=1)
    return float(np.median(np.abs(guess / truth - 1)))


def orders(cases: Sequence[Validated]) -> tuple[int, int]:
    """Return the number of pairs of cases with a measurable difference, and of those predicted the wrong way."""
    return wrong_orders(
        ((), one.measured_ns, float(np.ptp(one.launches.ns)) / one.measured_ns, one.predicted_ns) for one in cases
    )


def wrong_orders(cases: Iterable[tuple[Hashable, float, float, float]]) -> tuple[int, int]:
    """Return what `orders` does, comparing only cases of the same job.

    A case is its job, the measured median, the range of launches as a share of that, and the predicted median.
    """
    jobs = by_key((job, figures) for job, *figures in cases)
    apart = wrong = 0
    for one, other in (pair for job in jobs.values() for pair in combinations(job, 2)):
        difference = other[0] / one[0] - 1
        if abs(difference) > max(TOLD_APART, one[1], other[1]):
            apart += 1
            wrong += (other[2] > one[2]) != (difference > 0)
    return apart, wrong
