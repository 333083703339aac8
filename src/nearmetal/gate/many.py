"""Any number of runs against one base: which are worse, and on which path; the same on a terminal and on a page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from nearmetal.gate import words as gate_words
from nearmetal.reading import shown_name
from nearmetal.report import words
from nearmetal.report.tables import Table
from nearmetal.results.gated import Gate, GateCell, GatedRun
from nearmetal.stats.between import Standing
from nearmetal.units import by_key

MOST_IN_CELLS = 12
"""How many runs one table shows cell by cell."""
_MOST_NAMED = 6
_MARKS = {Standing.WORSE: "▼", Standing.UNDECIDED: "?", Standing.BETTER: "▲", Standing.WITHIN: "≈"}
NOTE = (
    "Each field is the path's costliest cell, as times the base's cost: by the mean, or by median or p99 where that is "
    "worse. Its mark is that of the path's worst cell."
)


def name(side: GatedRun) -> str:
    """Return a run's name as pages and addresses can hold it: the last part of its path."""
    return shown_name(PurePath(side.root).name)


def names(gates: Sequence[Gate]) -> dict[str, str]:
    """Return what each run and the base are called, by their paths: those of one name by the whole path."""
    sides = {side.root: name(side) for gate in gates for side in (gate.run, gate.base)}
    shared = {one for one, times in Counter(sides.values()).items() if times > 1}
    return {root: shown_name(root) if one in shared else one for root, one in sides.items()}


def ranked(gates: Sequence[Gate]) -> list[Gate]:
    """Return the runs, the worst first."""

    def key(gate: Gate) -> tuple[int, float, str]:
        return (
            gate_words.WORST_FIRST.index(gate.verdict),
            -max(map(_cost, (*gate.judged, *gate.against)), default=0.0),
            gate.run.root,
        )

    return sorted(gates, key=key)


def standings(gates: Sequence[Gate]) -> Iterator[tuple[Standing, str]]:
    """Yield how many runs stand how, and which, the worst first."""
    called = names(gates)
    for standing in gate_words.WORST_FIRST:
        if named := [called[gate.run.root] for gate in gates if gate.verdict is standing]:
            yield standing, f"{len(named)} of {len(gates)} ({_named(named)})"


def warnings(gates: Sequence[Gate]) -> list[str]:
    """Return of which runs, the base among them, figures are not to be relied on, and what is mixed or not compared."""
    called, base = names(gates), gates[0].base.root
    sides = dict.fromkeys([*(gate.run for gate in gates), *(gate.base for gate in gates)])
    early = [called[side.root] for side in sides if side.unfinished and side.unfinished.premature]
    doubtful = [called[side.root] for side in sides if side.cautions]
    mixed = by_key((line, called[gate.run.root]) for gate in gates for line in gate_words.mixed(gate))
    not_in_base = by_key((line, called[gate.run.root]) for gate in gates if (line := gate_words.not_in_base(gate)))
    found = [
        (early, "NOT FINISHED", "to measure the rest of one: nearmetal run --resume RUN"),
        (doubtful, "CAUTION", "why, of one: nearmetal compare RUN"),
    ]
    return [
        *(f"{what}: {len(of)} of {len(sides)} runs ({_named(of)}); {then}" for of, what, then in found if of),
        *(f"{line} ({_named(of)} against {called[base]})" for line, of in mixed.items()),
        *(f"{_named(of)}: {line}" for line, of in not_in_base.items()),
    ]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


@dataclass(frozen=True, slots=True)
class PathStanding:
    """One run on one path under one setting: `text` to show, `tip` to read about it, None where nothing was found."""

    standing: Standing | None
    text: str
    tip: str


def matrix(gates: Sequence[Gate]) -> tuple[tuple[str, ...], list[tuple[PathStanding, ...]]]:
    """Return the titles of the columns, a path and setting each, and a row of fields a run."""
    keys = list(dict.fromkeys((one.cell.path, one.cell.setting) for gate in gates for one in gate.judged))
    several = len({setting for _, setting in keys}) > 1
    titles = tuple(f"{path}, {setting}" if several else path for path, setting in keys)
    rows = [tuple(_field(gate, key) for key in keys) for gate in gates]
    return titles, rows


def table(gates: Sequence[Gate]) -> Table:
    """Return the same for a terminal."""
    called = names(gates)
    titles, rows = matrix(gates)
    drawn = [
        (called[gate.run.root], str(gate.verdict), *(field.text for field in row))
        for gate, row in zip(gates, rows, strict=True)
    ]
    return Table(f"Runs against {called[gates[0].base.root]}", ("run", "verdict", *titles), tuple(drawn), NOTE)


def _field(gate: Gate, key: tuple[str, str]) -> PathStanding:
    cells = [one for one in gate.judged if (one.cell.path, one.cell.setting) == key]
    further = [one for one in gate.against if (one.cell.path, one.cell.setting) == key]
    known = [one for one in (*cells, *further) if one.found]
    if not known:
        return PathStanding(None, words.NOTHING, "nothing to compare")
    worst = max(known, key=_cost)
    standing = min((one.standing for one in (*cells, *further)), key=gate_words.WORST_FIRST.index)
    tally = ((sum(cell.standing is one for cell in cells), one) for one in gate_words.WORST_FIRST)
    counts = ", ".join(f"{count} {one}" for count, one in tally if count)
    counts += f"; {len(further)} worse by median or p99" if further else ""
    text = f"{gate.title(worst)}: {gate_words.cell(worst)}. Of {len(cells)} cells: {counts}"
    return PathStanding(standing, f"{_MARKS[standing]} {words.ratio(_cost(worst))}", text)


def _cost(one: GateCell) -> float:
    """Return the cost ratio of a cell, above 1 where the run is worse; 0 where nothing was found."""
    return float(one.found.ratio**one.shown.better.sign) if one.found else 0.0
