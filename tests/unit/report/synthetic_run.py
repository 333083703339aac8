"""Run directories without a machine: seeded latencies of known medians, written through the real store."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.order import AGAIN, Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nearmetal.study.order import Order, Scalar

HOST_LABEL = "network namespaces of one machine: real kernel data paths, no wire and no NIC hardware between nodes"

STUDY = """
format = 1
name = "paths"
title = "Software data paths of this machine"
seed = 20261121
baseline = "veth"
rarest_mode = "35 %"

[[path]]
name = "veth"
[[path]]
name = "bridge"
[[path]]
name = "macvlan"
[[path]]
name = "tap"
[[path]]
name = "shm"

[[workload]]
name = "latency"
sizes = [8, "1 KiB", "64 KiB"]
iterations = 1000
warmup = 100

[trials]
min_blocks = 5
max_blocks = 8
"""

ONE_SIZE = STUDY.replace('[8, "1 KiB", "64 KiB"]', "[8]")
"""For tests that need many launches and no second size: each cell of a launch is written and summed up anew."""

COST = {"veth": 1.0, "bridge": 1.12, "macvlan": 1.004, "tap": 2.4, "shm": 0.06}
INTERFACES = {"veth": "veth", "bridge": "veth", "macvlan": "macvlan", "tap": "tun"}
FACTS: dict[str, Scalar] = {
    "cpu.model": "Example CPU @ 2.00GHz",
    "cpu.count": 2,
    "cpu.hypervisor": True,
    "cpu.governor": "not offered",
    "kernel.release": "6.1.0-40-amd64",
    "kernel.version": "#1 SMP Debian 6.1.153-1",
    "kernel.clocksource": "tsc",
    "mpi.version": "Open MPI 5.0.9",
    "engine.version": "1",
}


@dataclass(frozen=True)
class Recipe:
    """How to make a run: a base duration times `cost[path]`, the `spread` between blocks, what fails and what differs.

    `again` is the extra cost of the baseline under its second name, `boots` the extra cost of every other path in each
    boot. On the paths in `stalls`, 3 % of the iterations take 1.45 times as long. In the blocks in `busy`, other
    programs use a third of the processors. `hours[k]` is the extra cost of everything on occasion k. Durations below
    their quantile `idle` are 0. Block 2 is interrupted for `pause_h` hours.
    """

    study: str = STUDY
    blocks: int = 8
    cost: Mapping[str, float] = field(default_factory=lambda: COST)
    spread: float = 0.004
    seed: int = 7
    fails: Callable[[Order, int], bool] = lambda order, attempt: False
    facts: Callable[[Order], dict[str, Scalar]] = lambda order: {}
    iterations: int | None = None
    setting_cost: Mapping[str, float] = field(default_factory=dict)
    again: float = 1.0
    boots: tuple[float, ...] = ()
    stalls: frozenset[str] = frozenset()
    busy: int = 0
    hours: tuple[float, ...] = ()
    idle: float | None = None
    pause_h: int = 0


def make_run(root: Path, recipe: Recipe | None = None) -> RunDir:
    """Write a run and open it for reading."""
    recipe = recipe or Recipe()
    study = parse_study(recipe.study, "study.toml")
    info = RunInfo(study.name, digest(recipe.study), "local", HOST_LABEL, "0.1.0", "2026-11-21T09:00:00+00:00")
    run = RunDir.create(root, info, recipe.study)
    for number in range(recipe.blocks):
        for order in plan.block(study, number):
            _append(run, order, recipe)
    run.close()
    return RunDir.open(root)


def _append(run: RunDir, order: Order, recipe: Recipe) -> None:
    moment = crc32(run.root.name.encode()) % 10**6  # trials of two runs never start at the same time
    for attempt in (1, 2):
        hour = 9 + recipe.pause_h * ((order.block, order.trial % 4) > (2, 1))
        minute = f"2026-11-21T{hour:02d}:{order.block:02d}:{order.trial % 60:02d}.{moment:06d}+00:00"
        if not recipe.fails(order, attempt):
            run.append(order, _outcome(order, recipe), _cells(order, recipe), attempt=attempt, started_utc=minute)
            return
        failed = Outcome(
            TrialStatus.FAILED, reason="the launch did not end within 30 s; no output", hint="raise `trials.timeout`"
        )
        run.append(order, failed, [], attempt=attempt, started_utc=minute)


def _outcome(order: Order, recipe: Recipe) -> Outcome:
    label = order.path.label.removesuffix(AGAIN)
    networked = label in INTERFACES
    interface: dict[str, Scalar] = {}
    for node in ("n0", "n1"):
        if networked:
            interface |= {f"{node}.nm0.kind": INTERFACES[label], f"{node}.nm0.mtu": 1500}
            interface |= {f"{node}.nm0.qdisc": "fq_codel" if label == "tap" else "noqueue"}
    switches = {"veth": 14_500, "bridge": 14_800, "macvlan": 14_450, "tap": 41_000, "shm": 900}.get(label, 14_000)
    if recipe.boots:
        interface["lab.variant"] = order.block % len(recipe.boots)
    return Outcome(
        TrialStatus.VALID,
        launch_argv=("mpirun", "-n", "2", "--host", "n0,n1", "nmbench", "--operation", "latency"),
        elapsed_ns=1_500_000_000,
        facts={**FACTS, **interface, **recipe.facts(order)},
        counters={
            "sched.context_switches": switches,
            "softirq.NET_RX": 13_300 if networked else 12,
            "tcp.n0.RetransSegs": 2 if label == "tap" else 0,
            "link.n0.nm0.rx_packets": 6_700 if networked else 0,
            **({"cpu.user": 100, "cpu.idle": 100, "others.cc1plus": 70} if order.block < recipe.busy else {}),
        },
    )


def _cells(order: Order, recipe: Recipe) -> list[CellSamples]:
    options = order.workload.options
    assert isinstance(options["sizes"], list)
    return [_cell(order, int(str(size)), recipe) for size in options["sizes"] or [0]]


def _cell(order: Order, size: int, recipe: Recipe) -> CellSamples:
    options = order.workload.options
    warmup, iterations = int(str(options["warmup"])), recipe.iterations or int(str(options["iterations"]))
    label = order.path.label.removesuffix(AGAIN)
    cost = recipe.cost[label] * recipe.setting_cost.get(order.setting, 1.0)
    cost *= recipe.again if label != order.path.label else 1.0
    cost *= recipe.boots[order.block % len(recipe.boots)] if recipe.boots and label != "veth" else 1.0
    cost *= recipe.hours[order.block * len(recipe.hours) // recipe.blocks] if recipe.hours else 1.0
    seed, stalls = (recipe.seed, order.trial, size), label in recipe.stalls
    return _samples(str(options["operation"]), warmup, iterations, seed, cost, recipe.spread, stalls, recipe.idle)


@lru_cache(maxsize=2400)  # many runs of the tests share cells: make each one's samples and their summary once
def _samples(
    operation: str,
    warmup: int,
    iterations: int,
    seed: tuple[int, int, int],
    cost: float,
    spread: float,
    stalls: bool,
    idle: float | None,
) -> CellSamples:
    rng, size = np.random.default_rng(seed), seed[-1]
    typical = (42_000 + size * 2.1) * cost * np.exp(rng.normal(0.0, spread))
    count = warmup + iterations
    # Bimodal with a heavy tail, as latencies are: a second mode 15 % up, and rare stalls of a Pareto length.
    ns = typical * np.exp(rng.normal(0.0, 0.03, count)) * np.where(rng.random(count) < 0.1, 1.15, 1.0)
    ns *= np.where(rng.random(count) < 0.004, 1.0 + rng.pareto(1.4, count) * 3.0, 1.0)
    if stalls:
        ns *= np.where(np.arange(count) % 33 == 0, 1.45, 1.0)
    if idle is not None:
        ns = np.where(ns > np.quantile(ns, idle), ns, 0.0)
    whole = ns.astype(np.int64)
    begin, both = (np.broadcast_to(of, (2, count)) for of in (np.cumsum(whole) - whole, whole))
    initiators = (0,) if operation in {"latency", "bw"} else (0, 1)
    return CellSamples(operation, size, warmup, initiators, begin, both, np.broadcast_to(np.uint8(0), (2, count)))
