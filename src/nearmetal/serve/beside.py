"""Files next to runs, as pages and as JSON: searches, traces, predictions, placements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.trace_view import view_trace
from nearmetal.report import prediction_html, prediction_json, schema, trace_html, trace_text, tuning_html, tuning_json
from nearmetal.report.prediction_json import PlacementFile, PredictionFile
from nearmetal.serve import pages
from nearmetal.serve.catalogue import SavedResult, SavedResultKind
from nearmetal.store.rundir import SearchDir
from nearmetal.tune.recall import recall

_READ: dict[SavedResultKind, Callable[[Path], Any]] = {
    SavedResultKind.SEARCH: lambda place: recall(SearchDir.open(place)),
    SavedResultKind.TRACE: lambda place: view_trace(read_trace(place)),
    SavedResultKind.PREDICTION: lambda place: prediction_json.read(place, PredictionFile),
    SavedResultKind.PLACEMENT: lambda place: prediction_json.read(place, PlacementFile),
}
_PAGE: dict[SavedResultKind, Callable[..., str]] = {
    SavedResultKind.SEARCH: tuning_html.as_html,
    SavedResultKind.TRACE: trace_html.as_html,
    SavedResultKind.PREDICTION: prediction_html.predicted,
    SavedResultKind.PLACEMENT: prediction_html.placed,
}


def as_page(one: SavedResult) -> str:
    """Return the page; raise what its reader raises for a damaged file."""
    return _PAGE[one.kind](_READ[one.kind](one.place), pages.over_beside(one))


def as_json(one: SavedResult) -> str:
    """Return the same for a program."""
    found = _READ[one.kind](one.place)
    if one.kind is SavedResultKind.TRACE:
        return trace_text.as_json(found)
    return schema.as_json(tuning_json.searched(found) if one.kind is SavedResultKind.SEARCH else found) + "\n"
