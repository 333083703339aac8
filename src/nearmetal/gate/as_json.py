"""A gate's finding as JSON; docs/reference/gate.md says what each key means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.gate import words
from nearmetal.report import schema
from nearmetal.report.schema import finite, interval

if TYPE_CHECKING:
    from nearmetal.results.gated import Gate, GateCell
    from nearmetal.stats.between import Difference


def render(gate: Gate) -> str:
    """Return one JSON object."""
    found = schema.GateJson(
        gate_format=1,
        verdict=gate.verdict,
        exit_code=int(gate.exit_code),
        says=words.verdict(gate),
        metric=str(gate.metric),
        margin=gate.margin,
        tail_margin=gate.tail_margin,
        alpha=gate.alpha,
        noise_floor_between_runs=gate.floor,
        run=gate.run,
        base=gate.base,
        changes=gate.changes,
        mixed=list(gate.mixed),
        remeasured=gate.remeasured,
        cells=[_cell(one) for one in gate.cells],
        others=[_cell(one) for one in gate.others],
    )
    return schema.as_json(found)


def _cell(one: GateCell) -> schema.GateCellJson:
    return schema.GateCellJson(
        path=one.cell.path,
        workload=one.cell.workload,
        operation=one.cell.operation,
        message_bytes=one.cell.message_bytes,
        setting=one.cell.setting,
        metric=str(one.metric),
        stands=str(one.standing),
        reason=one.reason,
        control=one.control,
        figure=one.shown.name,
        unit=one.shown.unit,
        better=str(one.shown.better),
        base=one.base_level,
        run=one.run_level,
        difference=_difference(one.found),
        at_first=_difference(one.first),
    )


def _difference(one: Difference | None) -> schema.DifferenceJson | None:
    if one is None:
        return None
    return schema.DifferenceJson(
        ratio=one.ratio,
        interval=interval(one.interval),
        run_blocks=one.run_blocks,
        base_blocks=one.base_blocks,
        p_worse=one.p_worse,
        resolution=finite(one.resolution),
        floor=one.floor,
        stands=str(one.standing),
    )
