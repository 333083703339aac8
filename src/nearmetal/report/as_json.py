"""The report as JSON: everything but the curves, unrounded; docs/reference/report-json.md is its schema."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from nearmetal.report.steps import next_step
from nearmetal.stats.summary import Metric

if TYPE_CHECKING:
    from nearmetal.results.records import Cell, FactRow, Level, PathCell, PathVerdict, View
    from nearmetal.stats.compare import CellComparison, RatioEstimate
    from nearmetal.stats.interval import Interval
    from nearmetal.stats.modes import Modes
    from nearmetal.stats.noise import NoiseFloor
    from nearmetal.stats.paired import Significance
    from nearmetal.stats.summary import Summary

REPORT_FORMAT = 2
"""Raised when a key goes or changes its meaning; new keys may come within a format."""

_Json = str | int | float | bool | None | dict[str, "_Json"] | list["_Json"]
_Object = dict[str, _Json]


def render(view: View) -> str:
    """Return the report as one indented JSON object that ends in a line feed."""
    return json.dumps(as_object(view), indent=1, allow_nan=False) + "\n"


def as_object(view: View) -> _Object:
    """Return the report as plain values; what does not exist is null, what is infinite too."""
    return {
        "report_format": REPORT_FORMAT,
        "study": {
            "name": view.name,
            "title": view.title,
            "sha256": view.repeat.study_sha256,
            "seed": view.repeat.seed,
            "baseline": view.baseline,
            "margin": view.criteria.margin,
            "tail_margin": view.criteria.tail_margin,
            "rarest_mode": view.criteria.rarest_mode,
            "alpha": view.criteria.alpha,
            "mpi": view.mpi,
        },
        "host": {"kind": view.host_kind, "label": view.host_label},
        "created_utc": view.created_utc,
        "nearmetal_version": view.nearmetal_version,
        "blocks": view.blocks,
        "occasions": view.occasions,
        "valid_trials": view.valid_trials,
        "paths": [{"path": p.label, "recipe": p.recipe, "baseline": p.baseline, "again": p.again} for p in view.paths],
        "verdicts": [_verdict(one) for one in view.verdicts],
        "noise_floor": view.noise_floor,
        "cells": [_cell(cell, view.block_ns) for cell in view.cells],
        "settings": [
            {
                "path": one.path,
                "setting": one.setting,
                "reference": one.reference,
                "workload": one.workload,
                "operation": one.operation,
                "message_bytes": one.message_bytes,
                **_comparison(one.comparison),
            }
            for one in view.settings
        ],
        "provenance": dict(view.provenance),
        "mixed_provenance": list(view.mixed),
        "facts_that_differ": _rows(view, view.facts),
        "counters": _rows(view, view.counters),
        "causes_of_modes": list(view.causes),
        "failures": [
            {
                "trial": one.trial,
                "attempt": one.attempt,
                "block": one.block,
                "path": one.path,
                "workload": one.workload,
                "setting": one.setting,
                "reason": one.reason,
                "hint": one.hint,
                "mended": one.mended,
            }
            for one in view.failures
        ],
    }


def _verdict(one: PathVerdict) -> _Object:
    return {
        "path": one.path,
        "setting": one.setting,
        "verdict": str(one.verdict),
        "cells": one.cells,
        "counts": {str(verdict): count for verdict, count in one.counts},
        "ratio_best": one.best[1].headline.ratio if one.best else None,
        "ratio_worst": one.worst[1].headline.ratio if one.worst else None,
    }


def _cell(cell: Cell, block_ns: float) -> _Object:
    return {
        "workload": cell.group.workload,
        "operation": cell.group.operation,
        "setting": cell.group.setting,
        "message_bytes": cell.message_bytes,
        "figure": cell.shown.name,
        "unit": cell.shown.unit,
        "better": str(cell.shown.better),
        "noise": _noise(cell.noise) if cell.noise else None,
        "paths": [_path(one, next_step(cell, one, block_ns)) for one in cell.paths],
    }


def _path(one: PathCell, step: str) -> _Object:
    return {
        "path": one.path,
        "iterations": one.iterations,
        **{str(metric): _level(level) for metric, level in one.levels.items()},
        "comparison": _comparison(one.comparison) if one.comparison else None,
        "next_step": step,
        "uncompared": one.uncompared,
        "trials": [
            {
                "trial": trial.trial,
                "attempt": trial.attempt,
                "block": trial.block,
                "started_utc": trial.started_utc,
                **summary(trial.summary),
            }
            for trial in one.trials
        ],
    }


def _level(level: Level) -> _Object:
    return {
        "blocks": level.blocks,
        "value": level.value,
        "interval": _interval(level.interval),
        "method": str(level.method),
        "refused": level.refused,
    }


def summary(own: Summary) -> _Object:
    """Return what the samples of one launch say by themselves."""
    return {
        "n": own.n,
        "mean_ns": own.mean_ns,
        "trimmed_mean_ns": own.trimmed_mean_ns,
        "sd_ns": own.sd_ns,
        "median_ns": own.median_ns,
        "median_interval_ns": _interval(own.median_interval_ns),
        "mad_ns": own.mad_ns,
        "min_ns": own.min_ns,
        "max_ns": own.max_ns,
        "lag1_autocorrelation": own.lag1_autocorrelation,
        "effective_n": own.effective_n,
        "modes": _modes(own.modes) if own.modes else None,
        "percentiles": [
            {
                "probability": q.probability,
                "value_ns": q.value_ns,
                "interval_ns": _interval(q.interval_ns),
                "refused": q.reason,
            }
            for q in own.percentiles
        ],
    }


def _modes(found: Modes) -> _Object:
    return {
        "order": found.order,
        "list": [
            {"share": one.share, "centre_ns": one.centre_ns, "low_ns": one.low_ns, "high_ns": one.high_ns}
            for one in found.modes
        ],
    }


def _comparison(one: CellComparison) -> _Object:
    return {
        "verdict": str(one.verdict),
        "reason": one.conclusion.reason,
        **{str(metric): _estimate(found) if (found := one.estimates.get(metric)) else None for metric in Metric},
    }


def _estimate(one: RatioEstimate) -> _Object:
    return {
        "blocks": one.n,
        "ratio": one.ratio,
        "interval": _interval(one.interval),
        "equivalence_interval": _interval(one.equivalence_interval),
        "method": str(one.method),
        "finding": str(one.finding),
        "reason": one.judgement.reason,
        "p_difference_holm": one.judgement.p_difference,
        "p_equivalence_holm": one.judgement.p_equivalence,
        "p_beyond_holm": one.judgement.p_beyond,
        "paired_t_test": _test(one.t_test),
        "wilcoxon_signed_rank": _test(one.wilcoxon),
        "cohens_dz": one.cohens_dz,
        "hedges_gz": one.hedges_gz,
        "rank_biserial": one.rank_biserial,
    }


def _test(one: Significance | None) -> _Json:
    return {"statistic": _finite(one.statistic), "p": one.p_value, "n": one.n} if one else None


def _noise(one: NoiseFloor) -> _Object:
    return {
        "floor": one.floor,
        "block_spread": one.block_spread,
        "false_alarm": one.false_alarm,
        "hides_margin": one.hides_margin,
        "estimate": _estimate(one.estimate),
    }


def _interval(one: Interval | None) -> _Json:
    return {"low": _finite(one.low), "high": _finite(one.high), "level": one.level} if one else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rows(view: View, rows: tuple[FactRow, ...]) -> list[_Json]:
    paths = [path.label for path in view.shown_paths]
    return [{"name": row.name, "unit": row.unit, "by_path": dict(zip(paths, row.values, strict=True))} for row in rows]
