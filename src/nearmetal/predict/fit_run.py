"""Fit every path, setting and progress mode of a run directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import p99_errors, run_errors
from nearmetal.predict.conditions import mpi_of
from nearmetal.predict.crossing import crossed, fit_crossing, fit_single_copy, fit_trailing
from nearmetal.predict.fit import fit_beside, fit_cold, fit_copy, fit_path, fit_port, fit_work, typical_times
from nearmetal.predict.model_file import MODEL_VERSION, ModelFile
from nearmetal.predict.models import (
    INTRA_KIND,
    REPLAYED_BY_NODES,
    SMALL_BYTES,
    UNBOUNDED,
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
from nearmetal.predict.path_samples import PAIRED, PathSamples, collect, cores_of
from nearmetal.predict.residual import times_of
from nearmetal.predict.wire import KnownWire, Works, work_told, works_beside
from nearmetal.results.evidence import disturbed_launches, mostly_disturbed
from nearmetal.store.query import refuse_fabric, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.order import Order
from nearmetal.units import by_key
from nearmetal.workloads.engine import AFTER_EXCHANGE, ONE_WAY

EAGER_BYTES = {("openmpi", INTRA_KIND): 4096, ("openmpi", ""): 65536}
"""Largest eager message of an MPI inside and between nodes, its header included: btl_sm_eager_limit and
btl_tcp_eager_limit of Open MPI. Others are not known: their messages go eagerly unless the limit is given."""
HELD = 0.01
"""TCP holds messages of a path back where more of those in its streams were."""
_HEADER_BYTES = 64
LEAST_SIZES = 2
"""Sizes that the ping-pong of a path needs for a fit."""

Launch = tuple[str, int]
"""The path's label (the baseline has two) and the block."""


@dataclass(frozen=True, slots=True)
class _FittedPath:
    """One path: what it was fitted from, all launches together, and each whole launch by itself."""

    samples: PathSamples
    path: PathModel
    launches: tuple[tuple[PathSamples, PathModel], ...]


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
    groups: dict[MachineKey, PathSamples] = {}
    launches: dict[MachineKey, dict[Launch, PathSamples]] = {}
    for record in valid(records):
        order = record.order
        key = key_of(order)
        launch = (order.path.label, order.block)
        facts = record.outcome.facts
        virtual = facts.get("cpu.hypervisor") is True
        told = (virtual, cores_of(run, record), KnownWire.of(facts))
        about = (order.path.kind, order.mpi, mpi_of(record), *told)
        for samples in (
            groups.setdefault(key, PathSamples(*about)),
            launches.setdefault(key, {}).setdefault(launch, PathSamples(*about)),
        ):
            collect(run, record, samples)
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
        _named(run, key, found, intra.get(key[1:])) for key, found in sorted(fitted.items(), key=lambda item: item[0])
    )
    paths = (record.order.path for record in records)
    baseline = next((path.name for path in paths if path.again), "")
    known = run_errors(run.info.host_kind), p99_errors(run.info.host_kind)
    return ModelFile(
        "nearmetal-model",
        MODEL_VERSION,
        run.root.name,
        machines,
        *known,
        baseline,
        figures_from=run.info.host_label,
    )


def _named(run: RunDir, key: MachineKey, found: _FittedPath, intra: _FittedPath | None) -> NamedMachine:
    """Return a machine with what its samples were measured on and under."""
    samples = found.samples
    return NamedMachine(
        *key,
        *_machines(found, intra),
        kind=samples.kind,
        mpi=samples.mpi_label,
        host=run.info.host_kind,
        virtual=samples.virtual,
        conditions=tuple(samples.conditions),
        pairs=max((window.pairs for window in samples.windows), default=0),
        held=samples.held > HELD * samples.streamed,
        busy=_busy(tuple(samples.trials.values())),
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


def _work_of_processors(key: MachineKey, groups: Mapping[MachineKey, PathSamples]) -> _Processors | None:
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


def _path(samples: PathSamples, eager_up_to_bytes: int | None, told: _Processors | None) -> PathModel:
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
    path = replace(path, trailing_ps=fit_trailing(samples.interruptions[AFTER_EXCHANGE], eager))
    times = typical_times(samples.round_trips)
    send_ps, receive_ps = fit_beside(samples.interruptions[ONE_WAY], times, eager, work_ps)
    path = replace(path, send_work_ps=send_ps, receive_work_ps=receive_ps)
    return replace(path, moderated_copy_fs_per_byte=told.moderated_fs) if told else path


def _work_of_carriers(samples: PathSamples) -> tuple[tuple[int, int], ...]:
    """Return the processor time of a message while computing where the kernel carries it: streams both ways tell it."""
    if samples.cores is None or not samples.cores.way_is_work or samples.kind == INTRA_KIND:
        return ()
    return work_told([(typical_times(samples.round_trips), fit_work(samples.both_ways, samples.round_trips))])


def _machine(samples: PathSamples, path: PathModel, intra: PathModel | None) -> Machine:
    collectives: MpiName = "mpich" if samples.mpi == "mpich" else "openmpi"
    divided = divides_by_nodes(samples.mpi_label, REPLAYED_BY_NODES)
    base = Machine(
        intra, path, collectives=collectives, by_nodes=divided, cores=samples.cores, measured=_measured(samples)
    )
    if samples.kind == INTRA_KIND:
        return replace(base, intra=path)
    streamed = any(w.message_bytes for w in samples.windows) and not samples.one_processor
    return replace(base, port_fs_per_byte=fit_port(samples.windows)) if streamed else base


def _measured(samples: PathSamples) -> tuple[MeasuredCollective, ...]:
    """Return what collectives took; where the smallest size is a packet, fewer bytes take as long."""
    found: dict[tuple[MeasuredName, tuple[int, ...]], dict[int, Distribution]] = {}
    for (name, nodes, size), launches in sorted(samples.collectives.items()):
        times = found.setdefault((name, nodes), {})
        if not times and 1 < size <= SMALL_BYTES:
            times[1] = times_of(np.concatenate(launches))
        times[size] = times_of(np.concatenate(launches))
    return tuple(MeasuredCollective(*key, tuple(times.items())) for key, times in found.items())


def _busy(records: Sequence[TrialRecord]) -> str:
    """Return how many launches met a busy machine, if so many that medians cannot leave them out; else nothing."""
    return disturbed_launches(records)[0] if mostly_disturbed(records) else ""
