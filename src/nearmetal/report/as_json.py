"""The report as JSON: everything but the curves, unrounded; docs/reference/report-json.md says what each key means."""

from typing import Any

from nearmetal.report import schema
from nearmetal.report.schema import made
from nearmetal.report.steps import next_step
from nearmetal.results.records import Cell, FactRow, PathCell, PathVerdict, View
from nearmetal.stats.compare import CellComparison, RatioEstimate
from nearmetal.stats.equivalence import ALPHA
from nearmetal.stats.summary import Metric, Summary
from nearmetal.store.record import TrialRecord


def render(view: View) -> str:
    """Return the report as one indented JSON object that ends in a line feed."""
    return schema.as_json(report(view)) + "\n"


def report(view: View) -> schema.ReportJson:
    """Return what the report says of a run."""
    return made(
        schema.ReportJson,
        view,
        report_format=2,
        study=made(schema.StudyJson, view, view.criteria, view.repeat, sha256=view.repeat.study_sha256, alpha=ALPHA),
        host=schema.HostJson(kind=view.host_kind, label=view.host_label),
        paths=[made(schema.PathJson, one, path=one.label) for one in view.paths],
        verdicts=[_verdict(one) for one in view.verdicts],
        cells=[_cell(view, cell) for cell in view.cells],
        settings=[made(schema.ContrastJson, one, **_comparison(one.comparison)) for one in view.settings],
        provenance=dict(view.provenance),
        mixed_provenance=view.mixed,
        facts_that_differ=_rows(view, view.facts),
        counters=_rows(view, view.counters),
        causes_of_modes=view.causes,
    )


def _verdict(one: PathVerdict) -> schema.VerdictJson:
    return made(
        schema.VerdictJson,
        one,
        counts={str(verdict): count for verdict, count in one.counts},
        ratio_best=one.ends[0] if one.ends else None,
        ratio_worst=one.ends[-1] if one.ends else None,
    )


def _cell(view: View, cell: Cell) -> schema.CellJson:
    return made(
        schema.CellJson,
        cell,
        cell.group,
        **cell.shown.labels,
        noise=made(schema.NoiseJson, cell.noise, estimate=_estimate(cell.noise.estimate)) if cell.noise else None,
        paths=[_path(one, next_step(view, cell, one)) for one in cell.paths],
    )


def _path(one: PathCell, step: str) -> schema.PathCellJson:
    return made(
        schema.PathCellJson,
        one,
        **{str(metric): one.levels[metric] for metric in Metric},
        comparison=schema.ComparisonJson(**_comparison(one.comparison)) if one.comparison else None,
        next_step=step,
        trials=[made(schema.TrialJson, trial, trial.summary, **_of_samples(trial.summary)) for trial in one.trials],
    )


def attempt(record: TrialRecord) -> schema.AttemptJson:
    """Return one attempt at a trial, and what came of it."""
    return made(schema.AttemptJson, record.outcome, record, **record.keys)


def summary(own: Summary) -> schema.SummaryJson:
    """Return what the samples of one launch say by themselves."""
    return made(schema.SummaryJson, own, **_of_samples(own))


def _of_samples(own: Summary) -> dict[str, Any]:
    return {
        "modes": schema.ModesJson(order=own.modes.order, list=own.modes.modes) if own.modes else None,
        "percentiles": [made(schema.PercentileJson, one, refused=one.reason) for one in own.percentiles],
    }


def _comparison(one: CellComparison) -> dict[str, Any]:
    return {
        "verdict": str(one.verdict),
        "reason": one.conclusion.reason,
        **{str(metric): _estimate(found) if (found := one.estimates.get(metric)) else None for metric in Metric},
    }


def _estimate(one: RatioEstimate) -> schema.EstimateJson:
    return made(
        schema.EstimateJson,
        one,
        reason=one.judgement.reason,
        p_difference_holm=one.judgement.p_difference,
        p_equivalence_holm=one.judgement.p_equivalence,
        p_beyond_holm=one.judgement.p_beyond,
        paired_t_test=one.t_test,
        wilcoxon_signed_rank=one.wilcoxon,
    )


def _rows(view: View, rows: tuple[FactRow, ...]) -> list[schema.RowJson]:
    paths = [path.label for path in view.shown_paths]
    return [
        schema.RowJson(name=row.name, unit=row.unit, by_path=dict(zip(paths, row.values, strict=True))) for row in rows
    ]
