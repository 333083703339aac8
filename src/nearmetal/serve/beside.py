"""What lies beside runs, as pages and as JSON: searches, traces, predictions, placements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.trace_view import view_trace
from nearmetal.report import prediction_html, prediction_json, schema, trace_html, trace_text, tuning_html, tuning_json
from nearmetal.report.prediction_json import PlacementFile, PredictionFile
from nearmetal.serve import pages
from nearmetal.serve.catalogue import BesideKind
from nearmetal.store.rundir import SearchDir
from nearmetal.tune.recall import recall

if TYPE_CHECKING:
    from nearmetal.serve.catalogue import Beside
    from nearmetal.tune.recall import RecalledSearch


def as_page(one: Beside) -> str:
    """Return the page; raise what its reader raises for a damaged file."""
    above, may = pages.over_beside(one), pages.PLAIN
    match one.kind:
        case BesideKind.SEARCH:
            return tuning_html.render(_recalled(one), above=above, may=may)
        case BesideKind.TRACE:
            return trace_html.as_html(view_trace(read_trace(one.place)), above=above, may=may)
        case BesideKind.PREDICTION:
            return prediction_html.predicted(prediction_json.read(one.place, PredictionFile), above=above, may=may)
        case _:
            return prediction_html.placed(prediction_json.read(one.place, PlacementFile), above=above, may=may)


def as_json(one: Beside) -> str:
    """Return the same for a program."""
    match one.kind:
        case BesideKind.SEARCH:
            return schema.as_json(tuning_json.searched(_recalled(one))) + "\n"
        case BesideKind.TRACE:
            return trace_text.as_json(view_trace(read_trace(one.place)))
        case BesideKind.PREDICTION:
            return schema.as_json(prediction_json.read(one.place, PredictionFile)) + "\n"
        case _:
            return schema.as_json(prediction_json.read(one.place, PlacementFile)) + "\n"


def _recalled(one: Beside) -> RecalledSearch:
    return recall(SearchDir.open(one.place))
