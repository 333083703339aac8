"""A gate's finding as JSON; docs/reference/gate.md says what each key means."""

from dataclasses import asdict

from nearmetal.gate import words
from nearmetal.report import schema
from nearmetal.report.schema import made
from nearmetal.results.gated import Gate, GateCell
from nearmetal.stats.between import Difference
from nearmetal.stats.equivalence import ALPHA


def render(gate: Gate) -> str:
    """Return one JSON object."""
    found = made(
        schema.GateJson,
        gate,
        gate_format=2,
        alpha=ALPHA,
        exit_code=int(gate.exit_code),
        says=words.verdict(gate),
        noise_floor_between_runs=gate.floor,
        cells=[_cell(one) for one in gate.cells],
        others=[_cell(one) for one in gate.others],
    )
    return schema.as_json(found)


def _cell(one: GateCell) -> schema.GateCellJson:
    return made(
        schema.GateCellJson,
        one,
        one.cell,
        **one.shown.labels,
        stands=one.standing,
        base=one.base_level,
        run=one.run_level,
        difference=_difference(one.found),
        at_first=_difference(one.first),
    )


def _difference(one: Difference | None) -> schema.DifferenceJson | None:
    if one is None:
        return None
    counts = {
        f"{side}_{name}": count
        for side, of in (("run", one.run), ("base", one.base))
        for name, count in asdict(of).items()
    }
    return made(schema.DifferenceJson, one, stands=one.standing, **counts)
