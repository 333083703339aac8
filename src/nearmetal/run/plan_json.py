"""`nearmetal plan --format json` as types; docs/reference/report-json.md says what each key means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearmetal.run.estimate import estimate
from nearmetal.run.resolve import Resolution, resolution
from nearmetal.study.order import Scalar
from nearmetal.study.plan import block, combinations, longest_pause_ns
from nearmetal.study.spec import Study, WorkloadSpec


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
