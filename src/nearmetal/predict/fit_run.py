"""Fit every path, setting and progress mode of a run directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError
from nearmetal.predict.fit import RoundTrips, Windows, fit_path, fit_port
from nearmetal.predict.models import UNBOUNDED, Machine, ModelFile, NamedMachine, PathModel, Progress
from nearmetal.store.query import valid

if TYPE_CHECKING:
    from nearmetal.store.rundir import RunDir, TrialRecord

INTRA_KIND = "shm"
"""The recipe whose two ranks share a node."""
PAIRED = ("latency",)
STREAMING = ("bw", "message_rate")

Key = tuple[str, str, str]


@dataclass(slots=True)
class _Samples:
    kind: str
    round_trips: list[RoundTrips] = field(default_factory=list)
    windows: list[Windows] = field(default_factory=list)


def fit_run(run: RunDir, *, eager_up_to_bytes: int = UNBOUNDED) -> ModelFile:
    """Return the machines of a run, one for each path (but `shm`), setting and progress mode with ping-pong samples.

    `shm` of the same setting and progress becomes the path inside a node. A blocking run's wake-ups are part of
    its samples, so its machine has no further cost for them. Raise BadInputError when the run measured no ping-pong.
    """
    groups: dict[Key, _Samples] = {}
    for record in valid(run.trials()):
        order = record.order
        key = (order.path.label, order.setting, order.workload.progress)
        _collect(run, record, groups.setdefault(key, _Samples(order.path.kind)))
    fitted = {
        key: (samples, fit_path(samples.round_trips, samples.windows, eager_up_to_bytes))
        for key, samples in groups.items()
        if samples.round_trips
    }
    if not fitted:
        raise BadInputError(
            f"{run.root} has no ping-pong samples", hint="a study for prediction measures the operation `latency`"
        )
    intra = {key[1:]: path for key, (samples, path) in fitted.items() if samples.kind == INTRA_KIND}
    machines = tuple(
        NamedMachine(*key, _machine(samples, path, intra.get(key[1:])))
        for key, (samples, path) in sorted(fitted.items(), key=lambda item: item[0])
    )
    return ModelFile("nearmetal-model", 1, str(run.root.name), machines)


def _machine(samples: _Samples, path: PathModel, intra: PathModel | None) -> Machine:
    if samples.kind == INTRA_KIND:
        return Machine(intra=path, inter=path)
    port = fit_port(samples.windows).fs_per_byte if any(w.message_bytes for w in samples.windows) else 0
    return Machine(intra=intra, inter=path, port_fs_per_byte=port, progress=Progress())


def _collect(run: RunDir, record: TrialRecord, samples: _Samples) -> None:
    window = record.order.workload.number("window", 64)
    for cell in record.cells:
        if cell.operation not in {*PAIRED, *STREAMING}:
            continue
        ns = run.values(record, cell)
        if ns.size == 0:
            continue
        if cell.operation in PAIRED:
            samples.round_trips.append(RoundTrips(cell.message_bytes, ns))
        else:
            samples.windows.append(Windows(cell.message_bytes, window, max(1, cell.ranks // 2), ns))
