"""Trials of a study as the `measure` of a search: one launch a workload, its cells as figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearmetal.errors import BadInputError, TrialError
from nearmetal.knobs import mpi
from nearmetal.knobs.table import find
from nearmetal.run.trial import carry_out
from nearmetal.stats.order import support
from nearmetal.study import plan
from nearmetal.study.order import TrialStatus
from nearmetal.study.spec import AGAIN, SettingSpec
from nearmetal.tune.space import AS_FOUND, Axis, Space
from nearmetal.units import format_size
from nearmetal.workloads.samples import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nearmetal.hosts.host import Host
    from nearmetal.study.order import Order, Scalar
    from nearmetal.study.spec import PathSpec, Study, TuneSpec
    from nearmetal.tune.search import Measure

_TAIL = 0.99


def tuned_path(study: Study, tune: TuneSpec) -> PathSpec:
    """Return the path that is tuned; raise BadInputError when the study has none of that name."""
    others = [path for path in study.path if path.name != study.baseline] or list(study.path)
    chosen = next((path for path in study.path if path.name == tune.path), None) if tune.path else others[0]
    if chosen is None:
        names = ", ".join(path.name for path in study.path)
        raise BadInputError(f"tune.path: {tune.path!r} is not a path of this study", hint=f"the paths are {names}")
    return chosen


def study_space(tune: TuneSpec) -> Space:
    """Return the space of a study: the values it names, and leaving a knob as it is found."""
    return Space.of([Axis(knob, (AS_FOUND, *_canonical(knob, values))) for knob, values in tune.knobs.items()])


def study_measure(study: Study, tune: TuneSpec, host: Host) -> Measure:
    """Return the function that carries out one trial of every workload and yields medians and, where n allows, p99s.

    Every setting of a block gets the same seed of the trial, so that they differ in the setting alone.
    """
    path = tuned_path(study, tune)

    def measure(setting: Mapping[str, str], block: int) -> Iterator[tuple[str, float]]:
        for order in _orders(study, path, setting, block):
            yield from _figures(host, order)

    return measure


def _canonical(knob: str, values: list[Scalar]) -> list[str]:
    kind = mpi.find(knob).kind if knob.startswith(mpi.PREFIX) else find(knob).kind
    try:
        return list(dict.fromkeys(kind.canon(value) for value in values))
    except ValueError as error:
        raise BadInputError(f"tune.knobs: {knob} {error}") from error


def _orders(study: Study, path: PathSpec, setting: Mapping[str, str], block: int) -> list[Order]:
    named = SettingSpec(name="tuned" if setting else AS_FOUND, knobs=dict(setting))
    alone = study.model_copy(update={"path": [path], "baseline": path.name, "setting": [named]})
    return [order for order in plan.block(alone, block) if not order.path.label.endswith(AGAIN)]


def _figures(host: Host, order: Order) -> Iterator[tuple[str, float]]:
    outcome = host.carry_out(order, carry_out)
    if outcome.status is not TrialStatus.VALID:
        raise TrialError(f"{order.workload.label}: {outcome.reason}", hint=outcome.hint)
    for cell in decode(outcome):
        values = cell.ns[list(cell.value_ranks), cell.warmup :].max(axis=0)
        size = format_size(cell.message_bytes)
        name = f"{order.workload.label}/{cell.operation}/{size}"
        yield f"{name}/median", float(np.median(values))
        if values.size >= support(_TAIL):
            yield f"{name}/p99", float(np.quantile(values, _TAIL))
