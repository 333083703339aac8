"""What the JSON endpoints take and give, as an OpenAPI 3.1 document; the test suite holds the server to it."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import TypeAdapter

import nearmetal
from nearmetal.history.as_json import HistoryJson
from nearmetal.report import schema
from nearmetal.report.fabric_json import FabricJson
from nearmetal.report.prediction_json import PlacementFile, PredictionFile
from nearmetal.report.progress import RunProgress
from nearmetal.report.trace_text import TraceJson
from nearmetal.report.tuning_json import SearchJson
from nearmetal.serve.catalogue import SavedResultKind
from nearmetal.serve.overview import COLUMNS, Filter
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.typed import adapter

API_VERSION = "1"
"""Raised, with the paths, when a key goes or changes its meaning; new keys may come within a version."""

_Object = dict[str, Any]  # JSON schema has no narrower type worth writing down
_OUT: Literal["serialization"] = "serialization"
_ANSWERS = {
    "Error": schema.ErrorJson,
    "Runs": schema.RunsJson,
    "Progress": RunProgress,
    "Fabric": FabricJson,
    "Gate": schema.GateJson,
    "Report": schema.ReportJson,
    "History": HistoryJson,
    "Search": SearchJson,
    "Trace": TraceJson,
    "Prediction": PredictionFile,
    "Placement": PlacementFile,
}


def _schemas() -> _Object:
    """Return the schema of every answer, and of what they are made of."""
    adapters = [adapter(kind) for kind in _ANSWERS.values()]
    kinds = [(number, _OUT, one) for number, one in enumerate(adapters)]
    _, whole = TypeAdapter.json_schemas(kinds, ref_template="#/components/schemas/{model}")
    return dict(whole["$defs"])


_NAME: _Object = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "A run's name, from the list of runs.",
    "schema": {"type": "string", "minLength": 1},
}
_THING: _Object = {**_NAME, "description": "Its name, from the list at /."}
_BESIDE = {
    SavedResultKind.SEARCH: "Search",
    SavedResultKind.TRACE: "Trace",
    SavedResultKind.PREDICTION: "Prediction",
    SavedResultKind.PLACEMENT: "Placement",
}


def _choice(name: str, values: list[str], default: str, about: str) -> _Object:
    schema = {"type": "string", "enum": values, "default": default}
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _narrowed(name: str) -> _Object:
    about = f"Only runs of this {name}; empty for all."
    schema: _Object = {"type": "string", "default": ""}
    if name in {"since", "until"}:
        about = f"Only runs {name} this day (UTC), which is included; empty for all."
        schema["anyOf"] = [{"format": "date"}, {"const": ""}]
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _run(name: str, about: str) -> _Object:
    return {"name": name, "in": "query", "required": True, "description": about, "schema": _NAME["schema"]}


_MIXED = _choice(
    "allow_mixed", ["true", "false"], "false", "Compare trials even if kernel, MPI, NIC or code differ between them."
)
_REFUSALS = {
    "400": "The query is not understood.",
    "401": "There is no valid token.",
    "404": "The list has nothing of this name, or nothing that the query selects.",
    "405": "Only GET and HEAD are served.",
    "421": "The Host header is not this server's.",
    "422": "The run is damaged, foreign, of another kind, or has nothing to compare yet.",
}


def _get(name: str, about: str, answer: str, *parameters: _Object) -> _Object:
    refusals = {
        status: {"description": why, "content": _json("Error")}
        for status, why in _REFUSALS.items()
        if status not in ({"404", "422"} if name == "runs" else set())
    }
    return {
        "get": {
            "operationId": name,
            "summary": about,
            "parameters": list(parameters),
            "responses": {"200": {"description": about, "content": _json(answer)}, **refusals},
        }
    }


def _json(answer: str) -> _Object:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{_ANSWERS[answer].__name__}"}}}


def document() -> _Object:
    """Return the OpenAPI document."""
    by = _choice("sort", list(COLUMNS), "name", "The column to sort by.")
    narrowed = [_narrowed(name) for name in asdict(Filter())]
    metric = _choice("metric", [str(one) for one in Metric], HEADLINE, "The figure of each run.")
    order = _choice("order", ["asc", "desc"], "asc", "Ascending or descending.")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nearmetal serve",
            "version": API_VERSION,
            "description": f"Runs, read only. Served by nearmetal {nearmetal.__version__}.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/api/v1/runs": _get("runs", "List the runs", "Runs", by, order, *narrowed),
            "/api/v1/runs/{name}": _get("report", "Report on a run", "Report", _NAME, _MIXED),
            "/api/v1/runs/{name}/fabric": _get("fabric", "Show what stands out in a fabric", "Fabric", _NAME),
            "/api/v1/runs/{name}/progress": _get("progress", "Show the progress of a run", "Progress", _NAME),
            "/api/v1/history": _get("history", "Show runs over time", "History", metric, *narrowed),
            **{
                f"/api/v1/{kind}/{{name}}": _get(answer.lower(), f"Show a {answer.lower()}", answer, _THING)
                for kind, answer in _BESIDE.items()
            },
            "/api/v1/compare": _get(
                "compare", "Compare two runs", "Gate", _run("run", "The run."), _run("base", "Its base."), _MIXED
            ),
        },
        "components": {"schemas": _schemas(), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }
