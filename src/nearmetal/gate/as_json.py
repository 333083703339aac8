"""A gate's finding as JSON; docs/reference/gate.md describes it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from nearmetal.gate import words

if TYPE_CHECKING:
    from nearmetal.results.gated import Gate, GateCell
    from nearmetal.results.series import CellId
    from nearmetal.stats.between import Difference
    from nearmetal.stats.interval import Interval

GATE_FORMAT = 1

_Json = dict[str, object]


def render(gate: Gate) -> str:
    """Return one JSON object."""
    found: _Json = {
        "gate_format": GATE_FORMAT,
        "verdict": str(gate.verdict),
        "exit_code": int(gate.exit_code),
        "says": words.verdict(gate),
        "metric": str(gate.metric),
        "margin": gate.margin,
        "alpha": gate.alpha,
        "noise_floor_between_runs": gate.floor,
        "run": asdict(gate.run),
        "base": asdict(gate.base),
        "changes": [asdict(one) for one in gate.changes],
        "mixed": list(gate.mixed),
        "remeasured": _remeasured(gate),
        "cells": [_cell(one) for one in gate.cells],
    }
    return json.dumps(found, indent=1, allow_nan=False)


def _remeasured(gate: Gate) -> _Json | None:
    done = gate.remeasured
    if done is None:
        return None
    return {"root": done.root, "blocks": done.blocks, "why_not": done.why_not, "cells": [_id(c) for c in done.cells]}


def _id(cell: CellId) -> _Json:
    return {
        "path": cell.path,
        "workload": cell.workload,
        "operation": cell.operation,
        "message_bytes": cell.message_bytes,
        "setting": cell.setting,
    }


def _cell(one: GateCell) -> _Json:
    return {
        **_id(one.cell),
        "stands": str(one.standing),
        "reason": one.reason,
        "control": one.control,
        "figure": one.shown.name,
        "unit": one.shown.unit,
        "better": str(one.shown.better),
        "base": one.base_level,
        "run": one.run_level,
        "difference": _difference(one.found),
        "at_first": _difference(one.first),
    }


def _difference(one: Difference | None) -> _Json | None:
    if one is None:
        return None
    return {
        "ratio": one.ratio,
        "interval": _interval(one.interval),
        "run_blocks": one.run_blocks,
        "base_blocks": one.base_blocks,
        "p_worse": one.p_worse,
        "resolution": _finite(one.resolution),
        "floor": one.floor,
        "stands": str(one.standing),
    }


def _interval(one: Interval) -> _Json:
    return {"low": _finite(one.low), "high": _finite(one.high), "level": one.level}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
