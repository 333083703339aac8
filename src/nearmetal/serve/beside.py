"""Files next to runs, as pages and as JSON: searches, traces, predictions, placements."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearmetal.predict.trace_file import read_trace
from nearmetal.predict.trace_view import view_trace
from nearmetal.report import prediction_html, prediction_json, schema, trace_html, trace_text, tuning_html, tuning_json
from nearmetal.report.prediction_json import PlacementFile, PredictionFile
from nearmetal.serve import pages
from nearmetal.serve.catalogue import SavedResult, SavedResultKind
from nearmetal.store.searchdir import SearchDir
from nearmetal.tune.recall import recall

_KINDS: dict[SavedResultKind, tuple[Callable[[Path], Any], Callable[..., str]]] = {
    SavedResultKind.SEARCH: (lambda place: recall(SearchDir.open(place)), tuning_html.as_html),
    SavedResultKind.TRACE: (lambda place: view_trace(read_trace(place)), trace_html.as_html),
    SavedResultKind.PREDICTION: (lambda place: prediction_json.read(place, PredictionFile), prediction_html.predicted),
    SavedResultKind.PLACEMENT: (lambda place: prediction_json.read(place, PlacementFile), prediction_html.placed),
}
"""How each kind is read, and drawn as a page."""


def as_page(one: SavedResult) -> str:
    """Return the page; raise what its reader raises for a damaged file."""
    read, page = _KINDS[one.kind]
    return page(read(one.place), pages.over_beside(one))


def as_json(one: SavedResult) -> str:
    """Return the same for a program."""
    found = _KINDS[one.kind][0](one.place)
    if one.kind is SavedResultKind.TRACE:
        return trace_text.as_json(found)
    return schema.as_json(tuning_json.searched(found) if one.kind is SavedResultKind.SEARCH else found) + "\n"
