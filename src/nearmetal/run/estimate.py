"""How long a study will take, before anything has run: a rough answer to 'coffee or lunch?'."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scipy import special

from nearmetal.hosts.host import at_once
from nearmetal.hosts.lab.cluster import Cluster, nodes_of
from nearmetal.hosts.lab.lab import machine_of, slots_of
from nearmetal.results.stopping import criteria_of, stopping_plan
from nearmetal.stats.conclude import rarest_excluded
from nearmetal.stats.equivalence import ALPHA
from nearmetal.stats.order import quantile_ranks, support
from nearmetal.stats.summary import P99
from nearmetal.study.order import PathOrder, Scalar
from nearmetal.study.plan import block, combinations, longest_pause_ns
from nearmetal.study.spec import HostSpec, Study, WorkloadSpec
from nearmetal.units import NS_PER_S
from nearmetal.workloads.engine import LARGE_FROM_BYTES
from nearmetal.workloads.parallel import GUEST_KINDS

# ---- what a study can resolve, said before it runs
# Differences, percentiles, and the rarest mode that must show.
#
# - Modes are those that `stats.conclude` says so many launches cannot exclude.
# - The ratio of a path's launch and the two of the baseline differs from block to block by sqrt(1.5) times the sd of a
#   launch. A true difference is found with the power of the paired t-test, from the noncentral t distribution, at the
#   level that Holm's correction leaves to the hardest of a path's comparisons.
# - A percentile of one launch is stated where enough iterations enclose it by order statistics (`stats.order`).


POWER = 0.8
USUAL_SD = 0.03
LAUNCH_SDS = (0.01, USUAL_SD, 0.10)
"""By how much launches differ (sd of their logarithm): on a quiet machine, a usual one, a shared one."""
_PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_MOST_BLOCKS = 1000


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the cap of blocks can resolve.

    `differences` has (sd of launches, smallest difference found with `POWER`, blocks that the margin would need, None
    beyond 1,000). `percentile` is the highest that the engine's workload with the fewest `iterations`
    supports, 0 for none; `next_percentile` and `next_iterations` are the one above it and what it needs. `rarest_mode`
    is the share below which a mode may stay unseen, `blocks_for_mode` what `near-metal` needs in this study.
    `proposed_blocks` are enough for that and, on a usual machine, for a gap as large as the margin;
    `proposed_iterations` for a p99, 0 where the engine measures nothing.
    """

    blocks: int
    comparisons: int
    rarest_mode: float
    blocks_for_mode: int
    differences: tuple[tuple[float, float, int | None], ...]
    iterations: int
    percentile: float
    next_percentile: float
    next_iterations: int
    proposed_blocks: int
    proposed_iterations: int


def resolution(study: Study) -> Resolution:
    """Return what a study can resolve with the most blocks that it may run."""
    plan = stopping_plan(study)
    level = ALPHA / plan.comparisons
    iterations = min((one.iterations for one in study.workload if one.kind == "engine"), default=0)
    held = [p for p in _PERCENTILES if iterations and quantile_ranks(iterations, p) is not None]
    beyond = next((p for p in _PERCENTILES if iterations and p not in held), 0.0)
    return Resolution(
        blocks=plan.max_blocks,
        comparisons=plan.comparisons,
        rarest_mode=rarest_excluded(plan.max_blocks),
        blocks_for_mode=criteria_of(study).least_launches,
        differences=tuple(
            (sd, smallest_difference(plan.max_blocks, sd, level), blocks_for(study.margin, sd, level))
            for sd in LAUNCH_SDS
        ),
        iterations=iterations,
        percentile=max(held, default=0.0),
        next_percentile=beyond,
        next_iterations=support(beyond) if beyond else 0,
        proposed_blocks=max(criteria_of(study).least_launches, blocks_for(study.margin, USUAL_SD, level) or 0),
        proposed_iterations=support(P99) if iterations else 0,
    )


def power(blocks: int, difference: float, launch_sd: float, level: float) -> float:
    """Return how often a true difference (0.1: 10 %) is found by so many blocks, two-sided at `level`."""
    critical = float(special.stdtrit(blocks - 1, 1 - level / 2))
    shift = math.log1p(difference) * math.sqrt(blocks) / (math.sqrt(1.5) * launch_sd)
    return 1.0 - float(special.nctdtr(blocks - 1, shift, critical))


def smallest_difference(blocks: int, launch_sd: float, level: float) -> float:
    """Return the smallest difference that is found with `POWER`."""
    low, high = 0.0, 1.0
    while power(blocks, high, launch_sd, level) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power(blocks, middle, launch_sd, level) >= POWER else (middle, high)
    return high


def blocks_for(difference: float, launch_sd: float, level: float) -> int | None:
    """Return the fewest blocks that find a difference with `POWER`, None beyond 1,000."""
    enough = (n for n in range(3, _MOST_BLOCKS + 1) if power(n, difference, launch_sd, level) >= POWER)
    return next(enough, None)


# ---- estimate


# Orders of magnitude of a small machine, for an estimate that is labelled "about": one small message through two
# network stacks, bytes through a software path, and a program of one's own, of which nothing is known beforehand.
MESSAGE_NS = 30_000
BYTES_PER_US = 1_000
PROGRAM_S = {"application": 0.5, "command": 3.0}

GUEST_S = 20.0
"""A core's time for booting one guest in the lab: 9 trials of 4 guests each took 1,050 s with the boots of machines."""

_MACHINES_SHARE = 0.4
"""How much of a trial in the lab is spent on its machines and its path, which several launches may share."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What trials cost on a host: seconds beside the measuring, by how much that is drawn out, how many at once."""

    trial_s: float
    slowdown: float = 1.0
    side_by_side: int = 1


def _lab(host: HostSpec) -> Pace:
    machine = machine_of(host.options)
    machines = max(1, nodes_of(host.options))  # each keeps a processor busy, and there may be one for all
    shared = _MACHINES_SHARE / at_once(host.options, "launches", 1) + 1 - _MACHINES_SHARE
    return Pace(machine.trial_s * machines * shared, machine.slowdown * machines, slots_of(host.options))


PACES: dict[str, Callable[[HostSpec], Pace]] = {
    "local": lambda _: Pace(0.6),
    "lab": _lab,
    "ssh": lambda _: Pace(2.0),
    "kubectl": lambda _: Pace(2.0),
    "slurm": lambda host: Pace(2.0, side_by_side=at_once(host.options, "allocations", 1)),
    "fake": lambda _: Pace(0.0, 0.0),
    "import": lambda _: Pace(0.0, 0.0),
}


def estimate(study: Study) -> tuple[int, int]:
    """Return about how many ns the fewest and the most blocks take."""
    pace = PACES[study.host.kind](study.host)
    per_trial_s = (
        pace.trial_s + _guests_s(study.host, path, workload) + pace.slowdown * _measured_s(study, workload)
        for path, workload, _ in combinations(study)
    )
    per_block_s = sum(per_trial_s) / pace.side_by_side
    per_block_ns = int(per_block_s * NS_PER_S)
    return per_block_ns * study.trials.min_blocks, per_block_ns * study.trials.max_blocks


def _guests_s(host: HostSpec, path: PathOrder, workload: WorkloadSpec) -> float:
    """Return what a trial's share of booting guests takes; of those in the snapshot of their machines nothing."""
    if host.kind != "lab" or path.kind not in GUEST_KINDS:
        return 0.0
    nodes = len(set(workload.placed))
    machines = nodes_of(host.options)
    if not machines:
        return GUEST_S * (nodes - 1)
    if Cluster(machines, {}, host.options.get("standing_guests") is not False).has_guests(path):
        return 0.0
    booted = nodes if path.options.get("ends", "both") == "both" else nodes - 1
    return GUEST_S * booted / at_once(host.options, "launches", 1)


def _measured_s(study: Study, workload: WorkloadSpec) -> float:
    """Return about how long the measuring itself takes: as long as a tool was told to, else message by message."""
    if workload.kind in PROGRAM_S:
        return PROGRAM_S[workload.kind]
    if isinstance(seconds := workload.options.get("seconds"), int | float):
        runs = workload.options.get("runs", 1)
        return seconds * (runs if isinstance(runs, int) else 1)
    message_ns = MESSAGE_NS + longest_pause_ns(study, workload) // 2
    return (
        sum(_iterations(workload, size) * (message_ns + size * 1_000 // BYTES_PER_US) for size in workload.sizes or [0])
        / NS_PER_S
    )


def _iterations(workload: WorkloadSpec, size: int) -> int:
    """Return the iterations of a size, warm-up too: of large ones the engine may be told to make fewer."""
    told, usual = workload.options, workload.iterations + workload.warmup
    large_from = told.get("large_from", LARGE_FROM_BYTES)
    if not isinstance(large_from, int) or size < large_from:
        return usual
    few = told.get("iterations_large", workload.iterations), told.get("warmup_large", workload.warmup)
    return sum(one for one in few if isinstance(one, int))


# ---- `nearmetal plan --format json` as types; docs/reference/report-json.md says what each key means


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStudyJson:
    """The study that would run."""

    name: str
    title: str
    baseline: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHostJson:
    """Where it would run."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMostJson:
    """Two ends of what may come."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkloadJson:
    """One workload; entry r of `nodes_of_ranks` is the node of rank r."""

    name: str
    kind: str
    operation: str
    sizes: list[int]
    iterations: int
    warmup: int
    progress: str
    nodes_of_ranks: tuple[int, ...]
    longest_pause_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSettingJson:
    """One setting."""

    name: str
    knobs: dict[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrialJson:
    """One trial of the first block."""

    trial: int
    path: str
    workload: str
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJson:
    """What a study would run, for how long, and what it can resolve."""

    plan_format: Literal[1]
    study: PlannedStudyJson
    host: PlannedHostJson
    blocks: LeastMostJson
    trials_a_block: int
    about_ns: LeastMostJson
    workloads: list[PlannedWorkloadJson]
    settings: list[PlannedSettingJson]
    resolves: Resolution
    first_block: list[PlannedTrialJson]


def plan_json(spec: Study) -> PlanJson:
    """Return the plan as a record; docs/reference/report-json.md says what each key means."""
    shortest, longest = estimate(spec)
    return PlanJson(
        plan_format=1,
        study=PlannedStudyJson(name=spec.name, title=spec.title, baseline=spec.baseline, seed=spec.seed),
        host=PlannedHostJson(kind=spec.host.kind),
        blocks=LeastMostJson(least=spec.trials.min_blocks, most=spec.trials.max_blocks),
        trials_a_block=len(combinations(spec)),
        about_ns=LeastMostJson(least=shortest, most=longest),
        workloads=[_workload(spec, one) for one in spec.workload],
        settings=[PlannedSettingJson(name=one.name, knobs=one.knobs) for one in spec.setting],
        resolves=resolution(spec),
        first_block=[
            PlannedTrialJson(trial=one.trial, path=one.path.label, workload=one.workload.label, setting=one.setting)
            for one in block(spec, 0)
        ],
    )


def _workload(spec: Study, one: WorkloadSpec) -> PlannedWorkloadJson:
    return PlannedWorkloadJson(
        name=one.name,
        kind=one.kind,
        operation=one.operation or one.name,
        sizes=one.sizes,
        iterations=one.iterations,
        warmup=one.warmup,
        progress=one.progress,
        nodes_of_ranks=one.placed,
        longest_pause_ns=longest_pause_ns(spec, one),
    )
