"""The report as JSON: everything but the curves, unrounded; docs/reference/report-json.md says what each key means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearmetal.report import schema
from nearmetal.report.schema import finite, interval
from nearmetal.report.steps import next_step
from nearmetal.stats.summary import Metric

if TYPE_CHECKING:
    from nearmetal.results.records import Cell, FactRow, Level, PathCell, PathVerdict, TrialSummary, View
    from nearmetal.stats.compare import CellComparison, NoiseFloor, RatioEstimate
    from nearmetal.stats.paired import Significance
    from nearmetal.stats.summary import Summary


def render(view: View) -> str:
    """Return the report as one indented JSON object that ends in a line feed."""
    return schema.as_json(report(view)) + "\n"


def report(view: View) -> schema.ReportJson:
    """Return what the report says of a run."""
    return schema.ReportJson(
        report_format=2,
        study=schema.StudyJson(
            name=view.name,
            title=view.title,
            sha256=view.repeat.study_sha256,
            seed=view.repeat.seed,
            baseline=view.baseline,
            margin=view.criteria.margin,
            tail_margin=view.criteria.tail_margin,
            rarest_mode=view.criteria.rarest_mode,
            alpha=view.criteria.alpha,
            mpi=view.mpi,
        ),
        host=schema.HostJson(kind=view.host_kind, label=view.host_label),
        created_utc=view.created_utc,
        nearmetal_version=view.nearmetal_version,
        blocks=view.blocks,
        occasions=view.occasions,
        valid_trials=view.valid_trials,
        paths=[
            schema.PathJson(path=one.label, recipe=one.recipe, baseline=one.baseline, again=one.again)
            for one in view.paths
        ],
        verdicts=[_verdict(one) for one in view.verdicts],
        noise_floor=view.noise_floor,
        cells=[_cell(view, cell) for cell in view.cells],
        settings=[
            schema.ContrastJson(
                path=one.path,
                setting=one.setting,
                reference=one.reference,
                workload=one.workload,
                operation=one.operation,
                message_bytes=one.message_bytes,
                **_comparison(one.comparison),
            )
            for one in view.settings
        ],
        provenance=dict(view.provenance),
        mixed_provenance=list(view.mixed),
        facts_that_differ=_rows(view, view.facts),
        counters=_rows(view, view.counters),
        causes_of_modes=list(view.causes),
        failures=list(view.failures),
    )


def _verdict(one: PathVerdict) -> schema.VerdictJson:
    return schema.VerdictJson(
        path=one.path,
        setting=one.setting,
        verdict=str(one.verdict),
        cells=one.cells,
        counts={str(verdict): count for verdict, count in one.counts},
        ratio_best=one.best[1].headline.ratio if one.best else None,
        ratio_worst=one.worst[1].headline.ratio if one.worst else None,
    )


def _cell(view: View, cell: Cell) -> schema.CellJson:
    return schema.CellJson(
        workload=cell.group.workload,
        operation=cell.group.operation,
        setting=cell.group.setting,
        message_bytes=cell.message_bytes,
        figure=cell.shown.name,
        unit=cell.shown.unit,
        better=str(cell.shown.better),
        noise=_noise(cell.noise) if cell.noise else None,
        paths=[_path(one, next_step(view, cell, one)) for one in cell.paths],
    )


def _path(one: PathCell, step: str) -> schema.PathCellJson:
    return schema.PathCellJson(
        path=one.path,
        iterations=one.iterations,
        mean=_level(one.levels[Metric.MEAN]),
        median=_level(one.levels[Metric.MEDIAN]),
        p99=_level(one.levels[Metric.P99]),
        comparison=schema.ComparisonJson(**_comparison(one.comparison)) if one.comparison else None,
        next_step=step,
        uncompared=one.uncompared,
        trials=[_trial(trial) for trial in one.trials],
    )


def _trial(one: TrialSummary) -> schema.TrialJson:
    return schema.TrialJson(
        trial=one.trial,
        attempt=one.attempt,
        block=one.block,
        started_utc=one.started_utc,
        **_said(one.summary),
    )


def _level(one: Level) -> schema.LevelJson:
    return schema.LevelJson(
        blocks=one.blocks,
        value=one.value,
        interval=interval(one.interval),
        method=str(one.method),
        refused=one.refused,
    )


def summary(own: Summary) -> schema.SummaryJson:
    """Return what the samples of one launch say by themselves."""
    return schema.SummaryJson(**_said(own))


def _said(own: Summary) -> dict[str, Any]:
    same = ("n", "mean_ns", "trimmed_mean_ns", "sd_ns", "median_ns", "mad_ns", "min_ns", "max_ns")
    return {
        **{name: getattr(own, name) for name in (*same, "lag1_autocorrelation", "effective_n")},
        "median_interval_ns": interval(own.median_interval_ns),
        "modes": schema.ModesJson(order=own.modes.order, list=own.modes.modes) if own.modes else None,
        "percentiles": [
            schema.PercentileJson(
                probability=one.probability,
                value_ns=one.value_ns,
                interval_ns=interval(one.interval_ns),
                refused=one.reason,
            )
            for one in own.percentiles
        ],
    }


def _comparison(one: CellComparison) -> dict[str, Any]:
    return {
        "verdict": str(one.verdict),
        "reason": one.conclusion.reason,
        **{str(metric): _estimate(found) if (found := one.estimates.get(metric)) else None for metric in Metric},
    }


def _estimate(one: RatioEstimate) -> schema.EstimateJson:
    return schema.EstimateJson(
        blocks=one.n,
        ratio=one.ratio,
        interval=interval(one.interval),
        equivalence_interval=interval(one.equivalence_interval),
        method=str(one.method),
        finding=str(one.finding),
        reason=one.judgement.reason,
        p_difference_holm=one.judgement.p_difference,
        p_equivalence_holm=one.judgement.p_equivalence,
        p_beyond_holm=one.judgement.p_beyond,
        paired_t_test=_test(one.t_test),
        wilcoxon_signed_rank=_test(one.wilcoxon),
        cohens_dz=one.cohens_dz,
        hedges_gz=one.hedges_gz,
        rank_biserial=one.rank_biserial,
    )


def _test(one: Significance | None) -> schema.TestJson | None:
    return schema.TestJson(statistic=finite(one.statistic), p=one.p_value, n=one.n) if one else None


def _noise(one: NoiseFloor) -> schema.NoiseJson:
    return schema.NoiseJson(
        floor=one.floor,
        block_spread=one.block_spread,
        false_alarm=one.false_alarm,
        hides_margin=one.hides_margin,
        estimate=_estimate(one.estimate),
    )


def _rows(view: View, rows: tuple[FactRow, ...]) -> list[schema.RowJson]:
    paths = [path.label for path in view.shown_paths]
    return [
        schema.RowJson(name=row.name, unit=row.unit, by_path=dict(zip(paths, row.values, strict=True))) for row in rows
    ]
