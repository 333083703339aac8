"""Our figures against the published ones: the same shape or not, never the same figures.

Three questions are asked of every table. Are the configurations in the same order, row by row? Has each effect (the
ratio of two configurations) the same direction, judged by our interval, and what is its size? Where does an effect
change its sign over the sizes? Absolute figures are of other machines and are not judged.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nearmetal.errors import BadInputError, meant
from nearmetal.results.published_tables import Bound, Column, Figures, group
from nearmetal.results.records import Cell, TrialSummary, View
from nearmetal.stats.compare import RatioEstimate, estimate_ratio
from nearmetal.stats.summary import block_means, by_occasion
from nearmetal.stats.widen import OCCASIONS, BlockContext, BlockFigures, voting
from nearmetal.study.order import labels_of
from nearmetal.units import by_key

NO_EFFECT = 0.02
"""Published differences below this share are taken as none: the tables print two or three digits."""
NEAR = 0.05
"""How far ours may be from 1 where the published effect is none."""
SIGNIFICANT_P = 0.05

_PERCENTILES = {"p90": 0.9, "p95": 0.95, "p99": 0.99}

SAME, OTHER, OPEN, MISSING = "same", "different", "undecided", "not measured"
Order = tuple[int, tuple[str, ...], tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class PublishedEffect:
    """One effect at one size: the published ratio, ours where both sides were measured, and whether they agree.

    `bound` is `<` or `>` where the text gives `published` as a bound only.
    """

    column: str
    reference: str
    size_bytes: int
    published: float
    ours: RatioEstimate | None
    agrees: str
    bound: Bound = ""


@dataclass(frozen=True, slots=True)
class TableShape:
    """What of a table's shape is found in ours.

    `orders` holds (size, published order, our order, whether they agree), `significances` (column, size, published p,
    our p or None). `units` are those of `ours`, by column. `taken` are settings of a run of several that were taken
    because nobody named one, `workloads` the same of workloads, `sizes` of sizes where the table has none. `host_label`
    says what kind of machine measured ours.
    """

    figures: Figures
    ours: Mapping[str, Mapping[int, float]]
    units: Mapping[str, str]
    orders: tuple[Order, ...]
    effects: tuple[PublishedEffect, ...]
    significances: tuple[tuple[str, int, float, float | None], ...] = ()
    taken: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    host_label: str = ""


def shape(view: View, figures: Figures, named: Mapping[str, tuple[str, str]]) -> TableShape:
    """Compare a run with a table; `named` maps columns to (path, setting) of the run where the names differ.

    Raises BadInputError when the run has nothing that the table could be compared with, or not what `named` names.
    """
    _check_named(view, named)
    table = figures.table
    sources = _sources(view, figures, named)
    if not any(sources.values()):
        raise _nothing(figures)
    ours = {name: {size: _middle(view, one.blocks) for size, one in by.items()} for name, by in sources.items()}
    if all(column.statistic == "p_value" for column in table.columns):
        found = tuple(_significances(view, figures, sources))
        return TableShape(figures, {}, {}, (), (), found, host_label=view.host_label)
    units = {name: next(iter(by.values())).cell.shown.unit for name, by in sources.items() if by}
    effects, stated = tuple(_effects(view, figures, sources)), table.rows == "stated"
    if stated and not any(one.ours for one in effects):  # effects are all that such a table shows
        raise _nothing(figures)
    orders = () if stated else tuple(_orders(view, figures, ours, sources))  # ratios to two references have none
    return TableShape(
        figures,
        ours,
        units,
        orders,
        effects,
        taken=_taken(view, figures, sources, named),
        workloads=_workloads(view, figures, sources),
        sizes=_sizes(view, figures, sources),
        host_label=view.host_label,
    )


def _nothing(figures: Figures) -> BadInputError:
    """Return the error for a run that has nothing to compare with a table."""
    table = figures.table
    columns = by_key((_needed(column), column.name) for column in table.columns)
    paths = [f"{path} ({', '.join(names)})" for path, names in columns.items()]
    return BadInputError(
        f"nothing in this run can be compared with {table.name}: it needs {' or '.join(table.operations)} on "
        f"{' and on '.join(paths)}",
        hint="name the path of a column: --map COLUMN=PATH or COLUMN=PATH/SETTING",
    )


def _needed(column: Column) -> str:
    return "/".join(column.paths) + (f" under {'/'.join(column.settings)}" if column.settings else "")


def _taken(view: View, figures: Figures, sources: _Sources, named: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the settings that stand for columns for which neither the table nor a person names one."""
    if len({group.setting for group in view.groups}) < 2:
        return ()
    free = [column.name for column in figures.table.columns if not _asked(column, named.get(column.name))]
    return tuple(dict.fromkeys(one.cell.group.setting for name in free for one in sources[name].values()))


def _workloads(view: View, figures: Figures, sources: _Sources) -> tuple[str, ...]:
    """Return the workloads that stand for columns for which the table names none, where the run has several."""
    free = [column.name for column in figures.table.columns if not column.workloads]
    taken = tuple(dict.fromkeys(one.cell.group.workload for name in free for one in sources[name].values()))
    known = {group.workload for group in view.groups if group.operation in figures.table.operations}
    return taken if len(known) > 1 else ()


def _sizes(view: View, figures: Figures, sources: _Sources) -> tuple[int, ...]:
    """Return the sizes that stand for columns without one, where the run has several."""
    free = [column.name for column in figures.table.columns if not _sized(figures, column)]
    taken = tuple(dict.fromkeys(one.cell.message_bytes for name in free for one in sources[name].values()))
    known = {cell.message_bytes for cell in view.cells if cell.group.operation in figures.table.operations}
    return taken if len(known) > 1 else ()


def _check_named(view: View, named: Mapping[str, tuple[str, str]]) -> None:
    paths, settings = [path.label for path in view.shown_paths], sorted({group.setting for group in view.groups})
    for column, (path, setting) in named.items():
        if path not in paths:
            raise BadInputError(f"{column} is mapped to {path!r}, no path of this run", hint=meant(path, paths))
        if setting and setting not in settings:
            text = f"{column} is mapped to {setting!r}, no setting of this run"
            raise BadInputError(text, hint=meant(setting, settings))


@dataclass(frozen=True, slots=True)
class _ColumnFigures:
    """Our figures of a column at one size: block -> figure in the shown unit.

    `twins`: block -> log ratio of the baseline's second launch to its first in the same cell.
    """

    cell: Cell
    blocks: Mapping[int, float]
    twins: Mapping[int, float]


_Sources = Mapping[str, Mapping[int, _ColumnFigures]]


def _sources(view: View, figures: Figures, named: Mapping[str, tuple[str, str]]) -> _Sources:
    """Return our figures of each column by size.

    Where several cells of the run stand for columns that name the same workloads, all are of the one cell that most of
    them have: figures of two workloads have no ratio. So are columns that name the same settings, or the same paths,
    and columns without sizes are all of one.
    """
    columns = figures.table.columns
    asked = {column.name: _asked(column, named.get(column.name)) for column in columns}
    cells = {column.name: _cells(view, figures, column, asked[column.name]) for column in columns}
    found: dict[str, dict[int, list[_ColumnFigures]]] = {}
    for paths, of_one in by_key((_paths(column, named), column) for column in columns).items():
        has = {path: sum(any(one.of(path) for one in cells[column.name]) for column in of_one) for path in paths}
        path = max(paths, key=has.__getitem__)  # of equals the first
        found |= {column.name: _candidates(view, figures, column, cells[column.name], path) for column in of_one}
    unsized = [found[column.name] for column in columns if not _sized(figures, column)]
    _keep_common(unsized, lambda cell: cell.message_bytes)
    for alike in by_key((column.workloads, column.name) for column in columns).values():
        _keep_common([found[name] for name in alike], _what)
    for alike in by_key(((column.workloads, asked[column.name]), column.name) for column in columns).values():
        _keep_common([found[name] for name in alike], lambda cell: cell.group.setting)
    return {name: {size: cells[0] for size, cells in by.items() if cells} for name, by in found.items()}


def _what(cell: Cell) -> tuple[str, str, int]:
    return (cell.group.workload, cell.group.operation, cell.message_bytes)


def _keep_common(columns: Sequence[dict[int, list[_ColumnFigures]]], what: Callable[[Cell], object]) -> None:
    """Leave of each size only the cells of one kind: that which most columns have, of equals the first."""
    for size in dict.fromkeys(itertools.chain(*columns)):
        kinds = [dict.fromkeys(what(one.cell) for one in column.get(size, ())) for column in columns]
        for kept, _ in Counter(itertools.chain(*kinds)).most_common(1):
            for column in columns:
                column[size] = [one for one in column.get(size, ()) if what(one.cell) == kept]


def _asked(column: Column, named: tuple[str, str] | None) -> tuple[str, ...]:
    """Return the settings any of which may stand for a column, none where all may: the table's unless one is named."""
    return named[1:] if named and named[1] else column.settings


def _paths(column: Column, named: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the paths any of which may stand for a column."""
    return (named[column.name][0],) if column.name in named else column.paths


def _cells(view: View, figures: Figures, column: Column, settings: Sequence[str]) -> list[Cell]:
    """Return the cells that may stand for a column, whatever the path."""
    return [
        cell
        for cell in view.cells
        if cell.group.operation in figures.table.operations
        and (not settings or cell.group.setting in settings)
        and (not column.workloads or cell.group.workload in column.workloads)
        and (not _sized(figures, column) or cell.message_bytes in figures.values[column.name])
    ]


def _sized(figures: Figures, column: Column) -> bool:
    return any(figures.values[column.name])  # tables without sizes have everything at 0


def _candidates(
    view: View, figures: Figures, column: Column, cells: Sequence[Cell], path: str
) -> dict[int, list[_ColumnFigures]]:
    """Return a path's figures that may stand for a column by size."""
    mine = [(cell, _ours(view, cell, path, column)) for cell in cells if cell.of(path)]
    sized = _sized(figures, column)
    return by_key((cell.message_bytes if sized else 0, ours) for cell, ours in mine if ours.blocks)


def _ours(view: View, cell: Cell, path: str, column: Column) -> _ColumnFigures:
    """Return a path's figures; both launches of a block count where it is the baseline."""
    first, again = (_launches(cell, name, column) for name in labels_of(view.baseline))
    blocks = block_means([first, again] if path == view.baseline else [_launches(cell, path, column)])
    return _ColumnFigures(
        cell, blocks, {block: math.log(again[block] / first[block]) for block in first.keys() & again.keys()}
    )


def _launches(cell: Cell, path: str, column: Column) -> dict[int, float]:
    one = cell.of(path)
    taken = {trial.block: _statistic(trial, column) for trial in one.trials} if one else {}
    return {block: cell.shown.value(ns) for block, ns in taken.items() if ns}


def _statistic(trial: TrialSummary, column: Column) -> float | None:
    own = trial.summary
    if column.statistic in _PERCENTILES:
        return own.percentile(_PERCENTILES[column.statistic]).value_ns
    return {"max": float(own.max_ns), "median": own.median_ns}.get(column.statistic, own.mean_ns)


def _over_occasions(view: View, blocks: Mapping[int, float]) -> dict[int, float]:
    """Return one figure an occasion; each has as many numbers of blocks (`occasion_of`)."""
    return by_occasion(blocks, lambda block: block // view.block_numbers)


def _middle(view: View, blocks: Mapping[int, float]) -> float:
    """Return a level as a report has it: the geometric mean over blocks, or over occasions where there are several."""
    return by_occasion(_over_occasions(view, blocks), lambda _: 0)[0]


def _orders(view: View, figures: Figures, ours: Mapping[str, Mapping[int, float]], sources: _Sources) -> list[Order]:
    """Return, by size, the order of the configurations that both have, from the least figure to the greatest."""
    found: list[Order] = []
    for statistic in dict.fromkeys(column.statistic for column in figures.table.columns):
        names = [column.name for column in figures.table.columns if column.statistic == statistic]
        for size in sorted({size for name in names for size in figures.values[name]}):
            both = [name for name in names if size in ours[name] and size in figures.values[name]]
            if len(both) > 1:
                theirs = tuple(sorted(both, key=lambda name: figures.values[name][size]))
                mine = tuple(sorted(both, key=lambda name: ours[name][size]))
                found.append((size, theirs, mine, _same_order(view, size, theirs, figures, sources)))
    return found


def _same_order(view: View, size: int, theirs: tuple[str, ...], figures: Figures, sources: _Sources) -> str:
    """Return whether ours are in their order; a pair that our interval cannot tell apart leaves it undecided.

    A pair that they print as equal has no order: there ours must be equal, too.
    """
    verdicts = []
    for low, high in itertools.combinations(theirs, 2):
        published = figures.values[high][size] / figures.values[low][size]
        ratio = _ratio(view, sources[high].get(size), sources[low].get(size))
        if published - 1 <= NO_EFFECT:
            verdicts.append(agreement(published, ratio))
            continue
        interval = ratio.interval if ratio else None
        verdicts.append(OPEN if not interval or interval.contains(1) else SAME if interval.low > 1 else OTHER)
    return next((one for one in (OTHER, OPEN, MISSING) if one in verdicts), SAME)


def _effects(view: View, figures: Figures, sources: _Sources) -> list[PublishedEffect]:
    effects = []
    for column, reference in figures.table.effects:
        for size, base in sorted(figures.values[reference].items()):
            if not base or not figures.values[column].get(size):
                continue
            published = figures.values[column][size] / base
            ours = _ratio(view, sources[column].get(size), sources[reference].get(size))
            bound = figures.bounds.get((column, size), "")
            agrees = agreement(published, ours, bound)
            effects.append(PublishedEffect(column, reference, size, published, ours, agrees, bound))
    return effects


def _ratio(view: View, one: _ColumnFigures | None, other: _ColumnFigures | None) -> RatioEstimate | None:
    """Return the ratio over the blocks that both sides have, as a report's; over occasions where there are several."""
    if one is None or other is None:
        return None
    blocks = sorted(one.blocks.keys() & other.blocks.keys())
    if not blocks:
        return None
    sides = [{block: side.blocks[block] for block in blocks} for side in (one, other)]
    rng = np.random.default_rng(len(blocks))
    if view.occasions == 1:
        figures = (np.array([*side.values()]) for side in sides)
        return estimate_ratio(
            BlockFigures(*figures, context=_context(view, blocks, one, other)), rng=rng, plan=view.plan
        )
    means = [np.array([*_over_occasions(view, side).values()]) for side in sides]
    return estimate_ratio(BlockFigures(*means, launches=len(blocks), context=OCCASIONS), rng=rng)


def _context(view: View, blocks: Sequence[int], one: _ColumnFigures, other: _ColumnFigures) -> BlockContext:
    """Return what else is known of the blocks; of two cells the one whose baseline differs more from itself votes."""
    boots = tuple(view.variants[block] for block in blocks) if view.variants else ()
    return voting((np.array([side.twins.get(block, math.nan) for block in blocks]) for side in (one, other)), boots)


def agreement(published: float, ours: RatioEstimate | None, bound: Bound = "") -> str:
    """Return whether our ratio has the published one's direction: `undecided` while our interval holds both.

    An effect that was published and that ours shows to be none is `different`, too. A bound is kept or not.
    """
    if ours is None or ours.interval is None:
        return MISSING if ours is None else OPEN
    low, high = ours.interval.low, ours.interval.high
    if bound:
        kept, broken = (high <= published, low > published) if bound == "<" else (low >= published, high < published)
        return SAME if kept else OTHER if broken else OPEN
    if abs(published - 1) <= NO_EFFECT:
        near = ours.equivalence_interval or ours.interval
        inside = near.low >= 1 - NEAR and near.high <= 1 + NEAR
        return SAME if inside else OTHER if low > 1 + NEAR or high < 1 - NEAR else OPEN
    if abs(published - 1) > NEAR and low >= 1 - NEAR and high <= 1 + NEAR:
        return OTHER
    if low <= 1 <= high:
        return OPEN
    return SAME if (low > 1) == (published > 1) else OTHER


def crossovers(points: Sequence[tuple[int, float]]) -> list[tuple[int, int]]:
    """Return the pairs of neighbouring sizes between which a ratio goes from one side of 1 to the other."""
    sided = [(size, ratio > 1) for size, ratio in points if abs(ratio - 1) > NO_EFFECT]
    return [(a, b) for (a, above), (b, also) in itertools.pairwise(sided) if above != also]


def _significances(view: View, figures: Figures, sources: _Sources) -> list[tuple[str, int, float, float | None]]:
    """Return p-values of native under its default against the tuned VM, size by size."""
    moderated, native = group("settings", "moderated"), group("paths", "native")
    from_default = {
        (cell.group.workload, cell.message_bytes): cell for cell in view.cells if cell.group.setting in moderated
    }
    found = []
    for column in figures.table.columns:
        for size, published in sorted(figures.values[column.name].items()):
            base = from_default.get((column.workloads[0], size))
            path = next((path for path in native if base and base.of(path)), None)
            theirs = _ours(view, base, path, column) if base and path else None
            ratio = _ratio(view, sources[column.name].get(size), theirs)
            p = ratio.t_test.p if ratio and ratio.t_test else None
            found.append((column.name, size, published, p))
    return found
