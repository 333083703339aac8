"""From a study to the trials of each block, in an order that the seed alone decides."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.study.spec import AGAIN
from nearmetal.units import NS_PER_S

if TYPE_CHECKING:
    from nearmetal.study.order import Scalar
    from nearmetal.study.spec import PathSpec, Study, WorkloadSpec


def combinations(study: Study) -> list[tuple[PathOrder, WorkloadSpec, str]]:
    """Return every (path, workload, setting name) of a block in study order.

    The baseline stands in it twice, under its name and under its name with `AGAIN`: the A/A pair.
    """
    again = [_path_order(path, AGAIN) for path in study.path if path.name == study.baseline]
    paths = [_path_order(path) for path in study.path] + again
    return [
        (path, workload, setting.name) for path in paths for workload in study.workload for setting in study.setting
    ]


def block(study: Study, number: int) -> list[Order]:
    """Return the trials of block `number` (from 0): every combination once, in seeded random order.

    Block k is the same whatever came before it, so a run that is continued asks for the same trials.
    """
    chosen = combinations(study)
    shuffled = list(enumerate(chosen))
    random.Random(_seed(study.seed, "order", number)).shuffle(shuffled)
    knobs = {setting.name: setting.knobs for setting in study.setting}
    first = number * len(chosen)
    return [
        Order(
            trial=first + position,
            block=number,
            path=path,
            workload=_workload_order(workload),
            setting=setting,
            knobs=dict(knobs[setting]),
            mpi=study.mpi.flavour,
            seed=_seed(study.seed, "trial", first + index),
            timeout_s=study.trials.timeout / NS_PER_S,
            watch=_watch(study),
        )
        for position, (index, (path, workload, setting)) in enumerate(shuffled)
    ]


def _watch(study: Study) -> dict[str, Scalar]:
    asked: dict[str, Scalar] = {"probe": study.trials.probe, "storm": study.trials.storm}
    return {name: value for name, value in asked.items() if value}


def _path_order(path: PathSpec, suffix: str = "") -> PathOrder:
    return PathOrder(path.name + suffix, path.recipe, dict(path.options))


def _workload_order(workload: WorkloadSpec) -> WorkloadOrder:
    options: dict[str, Scalar | list[Scalar]] = {
        **workload.options,
        "operation": workload.operation or workload.name,
        "sizes": list(workload.sizes),
        "iterations": workload.iterations,
        "warmup": workload.warmup,
    }
    return WorkloadOrder(workload.name, workload.kind, options, workload.placed, workload.progress)


def _seed(*parts: object) -> int:
    """Return 63 bits that depend on all parts and on nothing else, on any machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8]) >> 1
