"""What the JSON endpoints take and give, as an OpenAPI 3.1 document; the test suite holds the server to it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import nearmetal
from nearmetal.serve.overview import COLUMNS, Filter

API_VERSION = "1"
"""Raised, with the paths, when a key goes or changes its meaning; new keys may come within a version."""

_Object = dict[str, Any]  # JSON schema has no narrower type worth writing down
_TEXT: _Object = {"type": "string"}
_ANY: _Object = {"type": "object"}
_LIST: _Object = {"type": "array"}
_COUNT: _Object = {"type": "integer", "minimum": 0}


def _maybe(kind: str) -> _Object:
    return {"type": [kind, "null"]}


def _record(properties: _Object, about: str) -> _Object:
    return {"type": "object", "description": about, "properties": properties, "required": list(properties)}


_SCHEMAS: _Object = {
    "Error": _record(
        {"error": _record({"message": _TEXT, "hint": _TEXT}, "What was seen, and the next step; it may be empty.")},
        "Why a request was refused.",
    ),
    "Run": _record(
        {
            "name": _TEXT,
            "study": _maybe("string"),
            "host_kind": _maybe("string"),
            "host_label": _maybe("string"),
            "created_utc": _maybe("string"),
            "nearmetal_version": _maybe("string"),
            "trials": {**_COUNT, "description": "Records on disk, valid and failed."},
            "changed_ns": {**_COUNT, "description": "When the last trial was added: Unix time in nanoseconds."},
            "running": {"type": "boolean", "description": "A nearmetal of this machine is writing it."},
            "of_fabric": {"type": "boolean", "description": "It is a whole fabric's: all pairs, no trials to compare."},
            "paths": {"type": "array", "items": _TEXT, "description": "The paths of its study."},
            "problem": {**_maybe("string"), "description": "Why it cannot be read; then most else is null."},
        },
        "One run of the directory.",
    ),
    "Runs": _record({"runs": {"type": "array", "items": {"$ref": "#/components/schemas/Run"}}}, "The list of runs."),
    "Trial": _record(
        {
            **dict.fromkeys(("trial", "attempt", "block", "elapsed_ns"), _COUNT),
            **dict.fromkeys(("path", "workload", "setting", "reason", "started_utc"), _TEXT),
            "status": {"enum": ["valid", "failed"]},
        },
        "One attempt at one trial.",
    ),
    "Progress": _record(
        {
            "running": {"type": "boolean"},
            "planned_blocks": {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2},
            **dict.fromkeys(("block", "block_done", "block_most", "valid", "failed"), _COUNT),
            "trial_ns": {**_maybe("integer"), "description": "Median time of a trial, null before the first."},
            "last": {"type": "array", "items": {"$ref": "#/components/schemas/Trial"}},
        },
        "How far a run has come; `planned_blocks` is least and most.",
    ),
    "Fabric": _record(
        {
            "fabric_format": {"const": 1},
            **dict.fromkeys(("study", "host", "created_utc", "path"), _TEXT),
            "margin": {"type": "number"},
            "nodes": {"type": "array", "items": _TEXT},
            "complete": {"type": "boolean"},
            **dict.fromkeys(("named", "suspected", "latency_us"), _LIST),
            "bandwidth_mb_per_s": _maybe("array"),
        },
        "A fabric as `nearmetal fabric --format json` prints it: docs/reference/fabric-json.md.",
    ),
    "Gate": _record(
        {
            "gate_format": {"const": 1},
            "verdict": {"enum": ["within", "worse", "undecided"]},
            "says": _TEXT,
            "margin": {"type": "number"},
            **dict.fromkeys(("run", "base"), _ANY),
            **dict.fromkeys(("changes", "mixed", "cells"), _LIST),
        },
        "One run against another as `nearmetal gate --format json` prints it, without anything measured again.",
    ),
    "Report": _record(
        {
            "report_format": {"const": 2},
            "study": _ANY,
            "host": _ANY,
            **dict.fromkeys(("created_utc", "nearmetal_version"), _TEXT),
            **dict.fromkeys(("blocks", "valid_trials"), _COUNT),
            **dict.fromkeys(("paths", "verdicts", "cells", "settings", "failures"), _LIST),
            "noise_floor": _maybe("number"),
        },
        "A run's report as `nearmetal compare --format json` prints it: docs/reference/report-json.md.",
    ),
}

_NAME: _Object = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "A run's name, from the list of runs.",
    "schema": {"type": "string", "minLength": 1},
}


def _choice(name: str, values: list[str], default: str, about: str) -> _Object:
    schema = {"type": "string", "enum": values, "default": default}
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _narrowed(name: str) -> _Object:
    about = f"Only runs of this {name}; empty for all."
    if name in {"since", "until"}:
        about = f"Only runs {name} this day (UTC), which is included; empty for all."
    schema = {"type": "string", "default": ""}
    if name in {"since", "until"}:
        schema["pattern"] = "^([0-9]{4}-[0-9]{2}-[0-9]{2})?$"
    return {"name": name, "in": "query", "description": about, "schema": schema}


def _run(name: str, about: str) -> _Object:
    return {"name": name, "in": "query", "required": True, "description": about, "schema": _NAME["schema"]}


_MIXED = _choice(
    "allow_mixed", ["true", "false"], "false", "Compare trials although kernel, MPI, NIC or code differ between them."
)
_REFUSALS = {
    "400": "The query is not understood.",
    "401": "There is no valid token.",
    "404": "No run of this name is on the list.",
    "405": "Only GET and HEAD are served.",
    "421": "The Host header is not this server's.",
    "422": "The run is damaged, foreign, of another kind, or has nothing to compare yet.",
}


def _get(name: str, about: str, schema: str, *parameters: _Object) -> _Object:
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
            "responses": {"200": {"description": about, "content": _json(schema)}, **refusals},
        }
    }


def _json(schema: str) -> _Object:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def document() -> _Object:
    """Return the OpenAPI document."""
    by = _choice("sort", list(COLUMNS), "name", "The column to sort by.")
    narrowed = [_narrowed(name) for name in asdict(Filter())]
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
            "/api/v1/runs/{name}/fabric": _get("fabric", "Say what stands out in a fabric", "Fabric", _NAME),
            "/api/v1/runs/{name}/progress": _get("progress", "Say how far a run has come", "Progress", _NAME),
            "/api/v1/compare": _get(
                "compare", "Compare two runs", "Gate", _run("run", "The run."), _run("base", "Its base."), _MIXED
            ),
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
