"""From a study to the trials of each block, in an order that the seed alone decides."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

from nearmetal.study.order import AGAIN, PACE, TRACE_OPTION, Order, PathOrder, Scalar, SharedOrder, WorkloadOrder
from nearmetal.study.spec import PathSpec, Study, WorkloadSpec
from nearmetal.units import NS_PER_S, NS_PER_US, by_key, is_whole


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

    Block k is the same whatever came before it, so a run that is continued requests the same trials.
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
            workload=_workload_order(study, workload),
            setting=setting,
            knobs=dict(knobs[setting]),
            mpi=study.mpi.flavour,
            seed=_seed(study.seed, "trial", first + index),
            timeout_s=study.trials.timeout / NS_PER_S,
            watch=_watch(study),
        )
        for position, (index, (path, workload, setting)) in enumerate(shuffled)
    ]


def by_launch(study: Study, orders: Sequence[Order]) -> list[Order]:
    """Return what is launched for trials of a block: each by itself, or those that share a launch as one order.

    A launch measures its workloads in the order of the study, so that each follows the same ones in every block.
    """
    if not study.trials.share_launches:
        return list(orders)
    place = {workload.name: number for number, workload in enumerate(study.workload)}
    launches: list[Order] = []
    for alike in by_key((_launch_of(order), order) for order in orders).values():
        in_order = sorted(alike, key=lambda order: place[order.workload.label])
        for first in range(0, len(in_order), MOST_IN_LAUNCH):
            of_launch = in_order[first : first + MOST_IN_LAUNCH]
            launches.append(SharedOrder.of(of_launch) if len(of_launch) > 1 else of_launch[0])
    return launches


MOST_IN_LAUNCH = 8
"""As many as nmbench measures in a launch (`PARTS_MAX`)."""


def _launch_of(order: Order) -> object:
    """Return what trials have in common that may share a launch; the engine measures several workloads in a row."""
    workload = order.workload
    if workload.kind != "engine" or workload.options.get(TRACE_OPTION):
        return order.trial
    waiting = WorkloadOrder("", workload.kind, {}, workload.placement, workload.progress)
    return replace(order, trial=0, seed=0, workload=waiting).to_json()


def occasion_of(study: Study, number: int) -> int:
    """Return the occasion of a block, from 0: each has as many numbers as the study has blocks at most."""
    return number // study.trials.max_blocks


def _watch(study: Study) -> dict[str, Scalar]:
    asked: dict[str, Scalar] = {"probe": study.trials.probe, "storm": study.trials.storm}
    return {name: value for name, value in asked.items() if value}


def _path_order(path: PathSpec, suffix: str = "") -> PathOrder:
    return PathOrder(path.name + suffix, path.recipe, dict(path.options))


def longest_pause_ns(study: Study, workload: WorkloadSpec) -> int:
    """Return the range of a workload's random pauses, 0 where its iterations follow each other back to back.

    Where it is not given it is the longest interrupt moderation that the study names, and at least `_LONGEST_ITR_NS`.
    """
    if workload.pace == "back-to-back":
        return 0
    if workload.pace_range is not None:
        return workload.pace_range
    asked = [setting.knobs.get(name, 0) for setting in study.setting for name in _MODERATION]
    asked += [usecs for name in _MODERATION if study.tune for usecs in study.tune.knobs.get(name, [])]
    asked += [path.options.get("rx_usecs", 0) for path in study.path]
    known = (text for usecs in asked if is_whole(text := str(usecs).strip()))  # a knob takes a number as text, too
    return max(_LONGEST_ITR_NS, *(int(usecs) * NS_PER_US for usecs in known))


_MODERATION = ("nic.rx-usecs", "nic.tx-usecs")
_LONGEST_ITR_NS = 500 * NS_PER_US
"""Adaptive moderation of Intel's ports goes down to 4,000 interrupts a second, and a ping-pong meets two of them."""


def _workload_order(study: Study, workload: WorkloadSpec) -> WorkloadOrder:
    options: dict[str, Scalar | list[Scalar]] = {
        **workload.options,
        "operation": workload.operation or workload.name,
        "sizes": list(workload.sizes),
        "iterations": workload.iterations,
        "warmup": workload.warmup,
    }
    if pause_ns := longest_pause_ns(study, workload):
        options[PACE] = -(-pause_ns // NS_PER_US)
    return WorkloadOrder(workload.name, workload.kind, options, workload.placed, workload.progress)


def _seed(*parts: object) -> int:
    """Return 63 bits that depend on all parts and on nothing else, on any machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8]) >> 1
