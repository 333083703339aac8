"""A history as JSON; docs/reference/gate.md describes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearmetal.history.records import History, Point, Series

HISTORY_JSON_FORMAT = 1

_Json = dict[str, object]


def render(history: History) -> str:
    """Return one JSON object."""
    found: _Json = {
        "history_format": HISTORY_JSON_FORMAT,
        "metric": str(history.metric),
        "alpha": history.alpha,
        "runs": [{"run": run.number, **asdict(run.entry), "changed": list(run.changed)} for run in history.runs],
        "series": [_series(one) for one in history.series],
    }
    return json.dumps(found, indent=1, allow_nan=False)


def _series(one: Series) -> _Json:
    return {
        "study": one.study_name,
        "host_kind": one.host_kind,
        **asdict(one.cell),
        "figure": one.shown.name,
        "unit": one.shown.unit,
        "better": str(one.shown.better),
        "points": [_point(point) for point in one.points],
        "changes": [
            {"run": one.points[change.index].run, "ratio": change.ratio, "p": change.p_value} for change in one.changes
        ],
    }


def _point(point: Point) -> _Json:
    interval = point.level.interval
    ends = {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}
    return {"run": point.run, "level": point.level.value, **ends, "blocks": point.level.n}
