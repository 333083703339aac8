"""A gate's finding on a terminal, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nearmetal.gate import words as gate_words
from nearmetal.report import as_table, words
from nearmetal.report.tables import Table
from nearmetal.results.gated import Gate, GateCell

if TYPE_CHECKING:
    from nearmetal.report.terminal import Console

_MOST_CHANGES = 12


def render(gate: Gate, console: Console) -> None:
    """Print what changed, every cell, why cells failed, and the verdict last."""
    console.print(f"{gate.run.root} against {gate.base.root}", style="bold")
    for line in gate_words.unfinished(gate):
        console.print(line, style="yellow", soft_wrap=True)
    console.print(gate_words.figures_from(gate))
    for line in (*gate_words.mixed(gate), *gate_words.cautions(gate)):
        console.print(line)
    for change in gate.changes[:_MOST_CHANGES]:
        console.print(f"changed: {change}")
    if len(gate.changes) > _MOST_CHANGES:
        console.print(f"changed: {len(gate.changes) - _MOST_CHANGES} more, see --format json")
    as_table.draw(console, tables(gate))
    console.print()
    for line in _told(gate):
        console.print(line)
    console.print(f"verdict: {gate_words.verdict(gate)}", style="bold")


def _told(gate: Gate) -> Iterator[str]:
    """Yield why cells are not within, those that decide first, and what is known besides the cells."""
    for one in (*gate.judged, *gate.against):
        if one.first or not one.standing.passes:
            yield f"{gate.title(one)}: {gate_words.cell(one)}"
    for one in gate.parts:
        if not one.standing.passes:
            yield f"part, not judged: {one.name}: {gate_words.cell(one)}"
    said = (gate_words.not_in_base, gate_words.others, gate_words.remeasured, gate_words.noise)
    yield from filter(None, (say(gate) for say in said))


def tables(gate: Gate) -> list[Table]:
    """Return a table a workload, operation and setting: sizes and paths down, both runs across."""
    groups = dict.fromkeys((one.cell.workload, one.cell.operation, one.cell.setting) for one in gate.cells)
    return [_table(gate, group) for group in groups]


def many(gates: Sequence[Gate], names: Sequence[str], base_name: str) -> Table:
    """Return one table of several runs against the same base: cells down, the ratio and standing of each run across."""
    by_cell = [{one.cell: one for one in gate.cells} for gate in gates]
    first = {cell: one for cells in reversed(by_cell) for cell, one in cells.items()}
    rows = []
    for cell in dict.fromkeys(cell for cells in by_cell for cell in cells):
        one = first[cell]
        level = words.NOTHING if one.base_level is None else f"{words.figure(one.base_level)} {one.shown.unit}"
        rows.append((one.name, level, *(_standing(cells.get(cell)) for cells in by_cell)))
    note = (
        f"Ratio of the {gates[0].metric} to the base's, with its 95 % interval; above 1 is worse for times, better for "
    )
    note += "rates."
    return Table(f"Every cell against {base_name}", ("cell", base_name, *names), tuple(rows), note)


def _standing(one: GateCell | None) -> str:
    if one is None:
        return words.NOTHING
    stands = _stands(one)
    return f"{words.ratio(one.found.ratio)} {stands}\n{words.ratio_span(one.found.interval)}" if one.found else stands


def _stands(one: GateCell) -> str:
    return "control" if one.control else f"{one.standing} (part)" if one.part else str(one.standing)


def _table(gate: Gate, group: tuple[str, str, str]) -> Table:
    cells = [one for one in gate.cells if (one.cell.workload, one.cell.operation, one.cell.setting) == group]
    workload, operation, setting = group
    shown = cells[0].shown
    several = len({one.cell.setting for one in gate.cells}) > 1
    better = "larger" if shown.rate else "smaller"
    measured = words.measured(workload, operation, setting if several else "")
    return Table(
        f"{measured}: {words.metric(gate.metric, shown)}, {shown.name}, {shown.unit} ({better} is better)",
        ("size", "path", "base", "run", "ratio", "95 % interval", "verdict"),
        tuple(map(_row, cells)),
        left=2,
    )


def _row(one: GateCell) -> tuple[str, ...]:
    levels = (words.NOTHING if level is None else words.figure(level) for level in (one.base_level, one.run_level))
    found = one.found
    ratio = (words.ratio(found.ratio), words.ratio_span(found.interval)) if found else (words.NOTHING, words.NOTHING)
    return (words.size_of(one.cell.message_bytes, sized=one.sized), one.cell.path, *levels, *ratio, _stands(one))
