"""Fit every path, setting and progress mode of a run directory."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import GUEST_KINDS, RELAY_KINDS, p99_errors, run_errors
from nearmetal.predict.conditions import conditions_of, mpi_of
from nearmetal.predict.crossing import crossed, fit_crossing, fit_single_copy
from nearmetal.predict.fit import Exchanges, Windows, fit_cold, fit_copy, fit_path, fit_port, fit_work, typical_times
from nearmetal.predict.model_file import MODEL_VERSION, ModelFile
from nearmetal.predict.models import (
    INTRA_KIND,
    REPLAYED_BY_NODES,
    SMALL_BYTES,
    UNBOUNDED,
    Cores,
    Distribution,
    Machine,
    MachineKey,
    MeasuredCollective,
    MeasuredName,
    MpiName,
    NamedMachine,
    PathModel,
    divides_by_nodes,
)
from nearmetal.predict.native import renumbered
from nearmetal.predict.residual import times_of
from nearmetal.predict.wire import KnownWire, Works, work_told, works_beside
from nearmetal.results.evidence import disturbed_launches, mostly_disturbed
from nearmetal.store.query import refuse_fabric, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.study.facts import COMPUTERS, PROCESSORS, TIMER
from nearmetal.study.order import PACE, TRACE_OPTION, Order, WorkloadOrder
from nearmetal.units import by_key, format_size
from nearmetal.workloads.engine import WORKING_SET_BYTES
from nearmetal.workloads.figures import COMMAND, IMPORTED, SUITES

PAIRED, STREAMING, BOTH_WAYS, EXCHANGED = "latency", ("bw", "message_rate"), "bibw", "exchange"
COLLECTIVES = frozenset(get_args(MeasuredName))
"""Those that no rank leaves before the last has come; of others one number a size would not tell who waits for whom."""
EAGER_BYTES = {("openmpi", INTRA_KIND): 4096, ("openmpi", ""): 65536}
"""Largest eager message of an MPI inside and between nodes, its header included: btl_sm_eager_limit and
btl_tcp_eager_limit of Open MPI. Others are not known: their messages go eagerly unless the limit is given."""
HELD = 0.01
"""TCP holds messages of a path back where more of those in its streams were."""
WAKEUP_GRANULARITY_PS = 1_000_000_000
"""CFS passes over a process that yields unless the next is so far ahead of it (1 ms on one processor)."""
_CARRIED_BY_KERNEL = frozenset({"bridge", "macvlan", "shm", "veth"})
"""Paths on which no port and no other process has a part: a message's way is work of the processors of its ends."""
_LOOK_PS = 12_000_000
"""This constant is fitted: predictions of LU, MG, SP and CG on 4 ranks and 2 processors are nearest with it. Open MPI
itself looks at its sockets each time that it yields, two polling ranks every 3 us."""
_SWITCH_PS = 1_300_000
"""Of Open MPI's ranks in shared memory, on one processor instead of two: a ping-pong takes so much longer each way."""
_UNEVEN_SHARE = 0.39
"""Of 428 launches of 4 ranks on 2 nodes and 2 processors, traced by the scheduler's events (Linux 6.18, a session for
each namespace): so many began with three ranks on one processor; of 238 on 4 nodes 0.27. A busy processor is balanced
seldom (`busy_factor` in kernel/sched/topology.c), and then by load averages of tens of ms."""
_HEADER_BYTES = 64
_ON_ONE_COMPUTER = ("local", "lab")
_AUTOGROUP = "kernel.autogroup"
_HELD = ".TCPAutoCorking"
LEAST_SIZES = 2
"""Sizes that the ping-pong of a path needs for a fit."""

Launch = tuple[str, int]
"""The path's label (the baseline has two) and the block."""


@dataclass(slots=True)
class _Samples:
    kind: str
    mpi: str
    mpi_label: str
    virtual: bool
    cores: Cores | None
    wire: KnownWire | None
    conditions: dict[tuple[str, str], None] = field(default_factory=dict)
    """Those of all trials that it is fitted from, in order; the same words begin several where the trials differ."""
    round_trips: dict[int, list[NDArray[np.int64]]] = field(default_factory=dict)
    windows: list[Windows] = field(default_factory=list)
    both_ways: list[Windows] = field(default_factory=list)
    exchanges: list[Exchanges] = field(default_factory=list)
    trials: dict[int, TrialRecord] = field(default_factory=dict)
    """Those that it is fitted from, by number."""
    timers: dict[int, str] = field(default_factory=dict)
    """Timers of the kernel that the ping-pong of a size shows, in any trial."""
    collectives: dict[tuple[MeasuredName, tuple[int, ...], int], list[NDArray[np.int64]]] = field(default_factory=dict)
    """By name, the node of each rank, and bytes: the slowest rank's ns, an array a launch."""
    streamed: int = 0
    """Messages in streams, each way; `held` of them TCP held back until the port had reported earlier ones as sent."""
    held: int = 0

    @property
    def one_processor(self) -> bool:
        """Return whether both ends ran on the same single processor: it, not a wire, limits what is streamed."""
        return self.cores is not None and self.cores.count == 1 and (self.cores.one_computer or self.kind == INTRA_KIND)

    @property
    def wire_of_single_processors(self) -> KnownWire | None:
        """Return the known wire between nodes of one processor each: nothing else works on a message, or waits."""
        apart = self.cores is not None and self.cores.count == 1 and not self.cores.one_computer
        return self.wire if apart and self.kind != INTRA_KIND else None

    @property
    def cells(self) -> set[tuple[str, int, int]]:
        """What was measured: a launch with less than all launches together is not a separate model."""
        streams = [("bw", one) for one in self.windows] + [("bibw", one) for one in self.both_ways]
        return {
            *(("latency", size, 2) for size in self.round_trips),
            *((name, one.message_bytes, one.pairs) for name, one in streams),
            *((EXCHANGED, one.message_bytes, one.computed_ns) for one in self.exchanges),
            *((name, size, len(nodes)) for name, nodes, size in self.collectives),
        }


@dataclass(frozen=True, slots=True)
class _FittedPath:
    """One path: what it was fitted from, all launches together, and each whole launch by itself."""

    samples: _Samples
    path: PathModel
    launches: tuple[tuple[_Samples, PathModel], ...]


def fit_run(run: RunDir, *, eager_up_to_bytes: int | None = None) -> ModelFile:
    """Return the machines of a run, one for each path, setting and progress mode with ping-pong samples."""
    return fit_records(run, run.trials(), eager_up_to_bytes=eager_up_to_bytes)


def fit_records(run: RunDir, records: Sequence[TrialRecord], *, eager_up_to_bytes: int | None = None) -> ModelFile:
    """Return the machines of some trials of a run; without an eager limit it is the MPI's own, where it is known.

    The baseline's two labels are one path. Beside the machine of all launches there is one for each block.

    `shm` of the same setting and progress becomes the path inside a node. A blocking run's wake-ups are part of
    its samples, so its machine has no further cost for them. Raise BadInputError when no ping-pong was measured.
    """
    refuse_fabric(run)
    groups: dict[MachineKey, _Samples] = {}
    launches: dict[MachineKey, dict[Launch, _Samples]] = {}
    for record in valid(records):
        order = record.order
        key = key_of(order)
        launch = (order.path.label, order.block)
        facts = record.outcome.facts
        virtual = facts.get("cpu.hypervisor") is True
        told = (virtual, _cores(run, record), KnownWire.of(facts))
        about = (order.path.kind, order.mpi, mpi_of(record), *told)
        for samples in (
            groups.setdefault(key, _Samples(*about)),
            launches.setdefault(key, {}).setdefault(launch, _Samples(*about)),
        ):
            _collect(run, record, samples)
    fitted: dict[MachineKey, _FittedPath] = {}
    for at, samples in groups.items():
        if samples.round_trips:
            how = (eager_up_to_bytes, _work_of_processors(at, groups))
            whole = (one for one in launches[at].values() if one.cells == samples.cells)
            try:
                fitted[at] = _FittedPath(samples, _path(samples, *how), tuple((one, _path(one, *how)) for one in whole))
            except BadInputError as error:
                raise BadInputError(f"{run.root}, {' / '.join(at)}: {error.message}", hint=error.hint) from error
    if not fitted:
        raise BadInputError(
            f"{run.root} has no back-to-back ping-pong samples between nodes",
            hint="for prediction, measure the operation `latency` without `pace` and `waterfall`, and with each rank "
            "on its own node",
        )
    intra = {key[1:]: found for key, found in fitted.items() if found.samples.kind == INTRA_KIND}
    machines = tuple(
        NamedMachine(
            *key,
            *_machines(found, intra.get(key[1:])),
            kind=found.samples.kind,
            mpi=found.samples.mpi_label,
            host=run.info.host_kind,
            virtual=found.samples.virtual,
            conditions=tuple(found.samples.conditions),
            pairs=max((window.pairs for window in found.samples.windows), default=0),
            held=found.samples.held > HELD * found.samples.streamed,
            busy=_busy(tuple(found.samples.trials.values())),
        )
        for key, found in sorted(fitted.items(), key=lambda item: item[0])
    )
    paths = (record.order.path for record in records)
    baseline = next((path.name for path in paths if path.again), "")
    return ModelFile(
        "nearmetal-model", MODEL_VERSION, str(run.root.name), machines, run_errors(), p99_errors(), baseline
    )


def failed_of(run: RunDir, model: ModelFile) -> dict[MachineKey, list[TrialRecord]]:
    """Return the failed ping-pong trials of each path, setting and progress mode that has no valid one."""
    fitted = {named.key for named in model.machines}
    failed = ((key_of(one.order), one) for one in run.trials() if not one.valid)
    return by_key(
        (key, one)
        for key, one in failed
        if key not in fitted and one.order.workload.options.get("operation", one.order.workload.label) == PAIRED
    )


def key_of(order: Order) -> MachineKey:
    """Return path, setting and progress mode of a trial; the baseline's two labels are one path."""
    return order.path.name, order.setting, order.workload.progress


@dataclass(frozen=True, slots=True)
class _Processors:
    """The processor time of both ends for a message of a path, in its wait and while computing (`work_ps`)."""

    works_ns: Works
    copying_fs: int
    work_ps: tuple[tuple[int, int], ...]
    moderated_fs: int
    """What copying a byte takes where interrupts find many packets."""


def _work_of_processors(key: MachineKey, groups: Mapping[MachineKey, _Samples]) -> _Processors | None:
    """Return what processors work for messages of a path where its wire is known.

    All settings of the path tell it: one that makes messages and streams wait, as moderation does, adds no work. It
    may save some, as each interrupt then finds more packets: the setting without, whose smallest messages are the
    quickest, copies as its own streams do.
    """
    wire = groups[key].wire_of_single_processors
    if wire is None:
        return None
    settings = {other: one for other, one in groups.items() if (other[0], other[2]) == (key[0], key[2])}
    streamed = ((other, one) for other, one in settings.items() if one.windows and one.both_ways)
    copying = {other: fit_copy(one.windows, one.both_ways) for other, one in streamed}
    paired = {other: one for other, one in settings.items() if one.round_trips}
    times = {other: typical_times(one.round_trips) for other, one in paired.items()}
    streams = [(times[other], fit_work(one.both_ways, one.round_trips)) for other, one in paired.items()]
    least_fs = min(copying.values(), default=0)
    smallest = max(float(sizes[0]) for sizes, _ in times.values())
    quickest = min(times, key=lambda other: float(np.interp(smallest, *times[other])))
    copying_fs = copying.get(key, least_fs) if key == quickest else least_fs
    return _Processors(works_beside(wire, [*times.values()]), copying_fs, work_told(streams), least_fs)


def _machines(found: _FittedPath, intra: _FittedPath | None) -> tuple[Machine, tuple[Machine, ...]]:
    """Return the machine of all launches and those of single ones, each with one launch inside a node."""
    inside = [path for _, path in intra.launches] or [intra.path] if intra else [None]
    single = tuple(
        replace(_machine(found.samples, path, inside[index % len(inside)]), measured=_measured(own))
        for index, (own, path) in enumerate(found.launches)
    )
    whole = _machine(found.samples, found.path, intra.path if intra else None)
    if found.samples.one_processor or found.samples.kind == INTRA_KIND:
        return whole, single
    if found.samples.wire_of_single_processors is not None:
        single_copy = fit_single_copy(found.samples.exchanges, whole)
        whole, *rest = (replace(one, inter=replace(one.inter, single_copy=single_copy)) for one in (whole, *single))
        single = tuple(rest)
    crossing = fit_crossing(found.samples.exchanges, whole)
    return crossed(whole, crossing), tuple(crossed(one, crossing) for one in single)


def _cores(run: RunDir, record: TrialRecord) -> Cores | None:
    """Return the cores that ranks share, from what the trial found (`facts.inventory.sharing_facts`).

    Trials of older versions did not look: the nodes of this machine and of the lab are always on one computer. A
    guest, and with autogroups a namespace, is one session to the kernel that shares the processors out.
    """
    facts = record.outcome.facts
    known = COMPUTERS in facts
    count = facts.get(PROCESSORS if known else "cpu.count")
    one = facts[COMPUTERS] == 1 if known else run.info.host_kind in _ON_ONE_COMPUTER
    if not isinstance(count, int) or count < 1:
        return None
    kind = record.order.path.kind
    by_node = one and (kind in GUEST_KINDS or str(facts.get(_AUTOGROUP)) == "1")
    if not by_node:
        return Cores(count, one, lead_ps=_lead_ps(count, str(facts.get("kernel.release", ""))))
    if kind in GUEST_KINDS:
        return Cores(count, one, by_node)
    lead_ps = _lead_ps(count, str(facts.get("kernel.release", ""))) or 0
    if count == 1:
        return Cores(count, one, by_node, lead_ps=lead_ps)
    cores = Cores(count, one, by_node, switch_ps=_SWITCH_PS, lead_ps=lead_ps, uneven_share=_UNEVEN_SHARE)
    if kind in RELAY_KINDS:
        return cores
    look_ps = _LOOK_PS if record.order.mpi == "openmpi" else 0
    return replace(cores, look_ps=look_ps, way_is_work=kind in _CARRIED_BY_KERNEL)


def _lead_ps(count: int, kernel: str) -> int | None:
    """Return `Cores.lead_ps` of one processor under a kernel whose fair scheduler was CFS, as up to Linux 6.5."""
    release = re.match(r"(\d+)\.(\d+)", kernel)
    known = count == 1 and release is not None and (int(release[1]), int(release[2])) < (6, 6)
    return WAKEUP_GRANULARITY_PS if known else None


def _path(samples: _Samples, eager_up_to_bytes: int | None, told: _Processors | None) -> PathModel:
    known = EAGER_BYTES.get((samples.mpi, INTRA_KIND if samples.kind == INTRA_KIND else ""))
    eager = known - _HEADER_BYTES if known else UNBOUNDED
    if eager_up_to_bytes is not None and not (known and samples.kind == INTRA_KIND):
        eager = eager_up_to_bytes
    one, works_ns = samples.one_processor, told.works_ns if told else None
    path = fit_path(
        samples.round_trips, samples.windows, eager, samples.both_ways, one_processor=one, works_ns=works_ns
    )
    path = replace(path, timers=tuple(sorted(samples.timers.items())))
    if samples.one_processor:
        return path
    copying = told.copying_fs if told else fit_copy(samples.windows, samples.both_ways)
    work_ps = told.work_ps if told else _work_of_carriers(samples)  # of processors that do nothing else
    path = replace(path, copy_fs_per_byte=copying, work_ps=work_ps, cold=fit_cold(samples.exchanges, eager))
    return replace(path, moderated_copy_fs_per_byte=told.moderated_fs) if told else path


def _work_of_carriers(samples: _Samples) -> tuple[tuple[int, int], ...]:
    """Return the processor time of a message while computing where the kernel carries it: streams both ways tell it."""
    if samples.cores is None or not samples.cores.way_is_work or samples.kind == INTRA_KIND:
        return ()
    return work_told([(typical_times(samples.round_trips), fit_work(samples.both_ways, samples.round_trips))])


def _machine(samples: _Samples, path: PathModel, intra: PathModel | None) -> Machine:
    collectives: MpiName = "mpich" if samples.mpi == "mpich" else "openmpi"
    divided = divides_by_nodes(samples.mpi_label, REPLAYED_BY_NODES)
    base = Machine(
        intra, path, collectives=collectives, by_nodes=divided, cores=samples.cores, measured=_measured(samples)
    )
    if samples.kind == INTRA_KIND:
        return replace(base, intra=path)
    streamed = any(w.message_bytes for w in samples.windows) and not samples.one_processor
    return replace(base, port_fs_per_byte=fit_port(samples.windows)) if streamed else base


def _measured(samples: _Samples) -> tuple[MeasuredCollective, ...]:
    """Return what collectives took; where the smallest size is a packet, fewer bytes take as long."""
    found: dict[tuple[MeasuredName, tuple[int, ...]], dict[int, Distribution]] = {}
    for (name, nodes, size), launches in sorted(samples.collectives.items()):
        times = found.setdefault((name, nodes), {})
        if not times and 1 < size <= SMALL_BYTES:
            times[1] = times_of(np.concatenate(launches))
        times[size] = times_of(np.concatenate(launches))
    return tuple(MeasuredCollective(*key, tuple(times.items())) for key, times in found.items())


def is_back_to_back(order: Order) -> bool:
    """Return whether a trial holds samples of messages that follow each other at once.

    A suite's mean, imported or not, is no sample of what its launch spread over, and a command's figure is of whatever
    it printed; after a pause a message is a cold one, and meets other interrupts; the kernel's tracepoints delay it.
    """
    traced = order.workload.options.get(TRACE_OPTION)
    return order.workload.kind not in (*SUITES, IMPORTED, COMMAND) and not (traced or order.workload.number(PACE))


def _collect(run: RunDir, record: TrialRecord, samples: _Samples) -> None:
    workload = record.order.workload
    if not is_back_to_back(record.order):
        return
    if any(cell.operation in {BOTH_WAYS, *STREAMING} for cell in record.cells):
        samples.held += sum(n for name, n in record.outcome.counters.items() if name.endswith(_HELD))
    inside = samples.kind == INTRA_KIND
    for cell in record.cells:
        name, size = cell.operation, cell.message_bytes
        over_the_path = name in {PAIRED, BOTH_WAYS, EXCHANGED, *STREAMING} and (
            inside or _pairs_are_apart(workload.placement)
        )
        if not (over_the_path or name in COLLECTIVES) or (name != EXCHANGED and workload.number("compute_us")):
            continue
        samples.conditions |= dict.fromkeys([*conditions_of(run, record).items(), *_how_measured(workload, name)])
        samples.trials[record.order.trial] = record
        if name == EXCHANGED:
            samples.exchanges.append(_exchange(run, record, cell))
            continue
        ns = run.values(record, cell)
        if ns.size == 0:
            continue
        if name in COLLECTIVES:
            nodes = renumbered([0] * len(workload.placement) if inside else workload.placement)
            samples.collectives.setdefault((name, nodes, size), []).append(ns)  # type: ignore[arg-type]  # one of them
        elif name == PAIRED:
            samples.round_trips.setdefault(size, []).append(ns)
            if timer := record.outcome.facts.get(f"{TIMER}{PAIRED}.{size}"):
                samples.timers[size] = str(timer)
        else:
            windows = Windows(size, workload.number("window", 64), max(1, cell.ranks // 2), ns)
            samples.streamed += ns.size * windows.window_messages * windows.pairs * (1 + (name == BOTH_WAYS))
            (samples.both_ways if name == BOTH_WAYS else samples.windows).append(windows)


def _how_measured(workload: WorkloadOrder, name: str) -> Iterator[tuple[str, str]]:
    """Return conditions that options of an operation make, beside those of the trial."""
    how = ", ".join(f"{one} = {workload.options[one]}" for one in ("buffers", "sync") if one in workload.options)
    yield f"with {name} under", how or "the defaults"
    if workload.number("compute_us"):
        yield f"{name} after computing on", format_size(workload.number("working_set", WORKING_SET_BYTES))


def _busy(records: Sequence[TrialRecord]) -> str:
    """Return how many launches met a busy machine, if so many that medians cannot leave them out; else nothing."""
    return disturbed_launches(records)[0] if mostly_disturbed(records) else ""


def _pairs_are_apart(placement: Sequence[int]) -> bool:
    """Return whether the messages of every pair went between nodes: rank i of the first half and i of the second."""
    half = len(placement) // 2
    return all(first != second for first, second in zip(placement[:half], placement[half:], strict=True))


def _exchange(run: RunDir, record: TrialRecord, cell: StoredCell) -> Exchanges:
    """Return the exchanges of a cell: an end that begins earlier waits as much longer as the other waits shorter."""
    rows = run.rows(record, cell)
    rank, warm, ns = (rows[name].to_numpy() for name in ("rank", "warmup", "ns"))
    ends = [ns[(rank == one) & ~warm] for one in range(cell.ranks)]
    computed_us = record.order.workload.number("compute_us", 0)
    return Exchanges(cell.message_bytes, computed_us * 1000, np.mean(ends, axis=0))
