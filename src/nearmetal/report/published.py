"""Our figures next to the published ones, as tables."""

import json
from collections.abc import Mapping, Sequence

from nearmetal.report import words
from nearmetal.report.as_csv import table
from nearmetal.report.tables import Table
from nearmetal.report.words import size_of
from nearmetal.results.published import (
    MISSING,
    OPEN,
    OTHER,
    SAME,
    SIGNIFICANT_P,
    PublishedEffect,
    TableShape,
    crossovers,
)
from nearmetal.units import by_key, counted, format_size

_LEAST_PRINTED_P = 0.001
"""What a paper prints as "< 0.001" is read as this."""


def tables(found: TableShape) -> list[Table]:
    """Return what is printed: figures side by side, effects, order, crossovers."""
    if found.significances:
        return [_significance_table(found)]
    if found.figures.table.rows == "stated":
        return [_effect_table(found), _crossover_table(found)]
    return [_figure_table(found), _effect_table(found), _order_table(found), _crossover_table(found)]


def _figure_table(found: TableShape) -> Table:
    names = [column.name for column in found.figures.table.columns]
    sizes = sorted({size for name in names for size in found.figures.values[name]})
    rows = [
        (
            size_of(size),
            *(f"{_of(found.figures.values[name], size)} | {_of(found.ours.get(name, {}), size)}" for name in names),
        )
        for size in sizes
    ]
    theirs, ours = found.figures.table.unit, ", ".join(dict.fromkeys(found.units.values()))
    return Table(
        f"{found.figures.table.source}: published{f' ({theirs})' if theirs != ours else ''} | ours ({ours})",
        ("size", *names),
        tuple(rows),
        "Absolute figures come from different machines and are not judged; "
        f"{found.figures.table.note}{_of_means(found)}.",
    )


def _of_means(found: TableShape) -> str:
    """Return how our means differ from those of a report, empty where none is compared."""
    taken = {column.statistic for column in found.figures.table.columns}
    return "; our means are of all samples, none trimmed, as other programs take them" if "mean" in taken else ""


def _of(figures: Mapping[int, float], size: int) -> str:
    return words.figure(figures[size]) if figures.get(size) else words.NOTHING


def _effect_table(found: TableShape) -> Table:
    rows = [
        (
            f"{one.column} / {one.reference}",
            size_of(one.size_bytes),
            f"{one.bound} {words.ratio(one.published)}".strip(),
            words.ratio(one.ours.ratio) if one.ours else words.NOTHING,
            words.ratio_span(one.ours.interval) if one.ours else words.NOTHING,
            one.agrees,
        )
        for one in found.effects
        if one.ours
    ]
    tally = {name: sum(one.agrees == name for one in found.effects) for name in (SAME, OTHER, OPEN, MISSING)}
    text = ", ".join(f"{name} in {count}" for name, count in tally.items() if count)
    table = found.figures.table
    heading, note = "Effects", ""
    if table.rows == "stated":  # no table of figures stands above that says where they are from
        heading, note = table.source, f"; {table.note}{_of_means(found)}"
    return Table(
        f"{heading}: ratio published and ours, and whether the direction is the same",
        ("effect", "size", "published", "ours", "95 % interval", "direction"),
        tuple(rows),
        f"Direction: {text} of {len(found.effects)}{note}.{_taken(found)}",
        left=1,
    )


def _taken(found: TableShape) -> str:
    text = f" Ours of the workload {' and '.join(found.workloads)}." if found.workloads else ""
    if found.taken:
        text += f" Ours under the setting {' and '.join(found.taken)}; another: --map COLUMN=PATH/SETTING."
    if found.sizes:
        text += f" Ours at {' and '.join(map(format_size, found.sizes))}."
    return text


def _order_table(found: TableShape) -> Table:
    rows = [
        (size_of(size), " < ".join(theirs), " < ".join(ours), agrees) for size, theirs, ours, agrees in found.orders
    ]
    same = sum(agrees == SAME for *_, agrees in found.orders)
    return Table(
        "Order of the configurations, smallest figure first",
        ("size", "published", "ours", "order"),
        tuple(rows),
        f"The same order in {same} of {len(rows)} rows of both; undecided where the interval of our ratio holds 1.",
        left=4,
    )


def _crossover_table(found: TableShape) -> Table:
    rows = []
    for column, reference in found.figures.table.effects:
        mine = [one for one in found.effects if (one.column, one.reference) == (column, reference)]
        theirs = crossovers([(one.size_bytes, one.published) for one in mine])
        measured = [(one.size_bytes, one.ours) for one in mine if one.ours]
        shown = [(size, own.ratio) for size, own in measured if own.interval and not own.interval.contains(1)]
        ours = crossovers(shown)
        if measured and (theirs or ours):
            ends = f"{format_size(measured[0][0])} to {format_size(measured[-1][0])}"
            left = len(measured) - len(shown)
            undecided = f", undecided at {left} of {counted(len(measured), 'size')}" if left else ""
            rows.append((f"{column} / {reference}", _between(theirs), f"{_between(ours)} ({ends}{undecided})"))
    return Table("Where an effect changes sign over the sizes", ("effect", "published", "ours"), tuple(rows), left=3)


def _between(found: Sequence[tuple[int, int]]) -> str:
    return "; ".join(f"{format_size(a)} to {format_size(b)}" for a, b in found) or "nowhere"


def _significance_table(found: TableShape) -> Table:
    rows = []
    for column, size, published, ours in found.significances:
        agrees = MISSING if ours is None else SAME if (published < SIGNIFICANT_P) == (ours < SIGNIFICANT_P) else OTHER
        theirs = "< 0.001" if published <= _LEAST_PRINTED_P else f"{published:.3g}"
        rows.append((column, size_of(size), theirs, words.p_value(ours), agrees))
    return Table(
        f"{found.figures.table.source}: is there a difference?",
        ("column", "size", "published p", "our p", "answer at 0.05"),
        tuple(rows),
        f"{found.figures.table.note}.",
    )


# ---- A run next to a published table for other programs
# JSON with everything, CSV with one row a column and size.


COLUMNS = (
    "column",
    "message_bytes",
    "unit",
    "published",
    "ours",
    "reference",
    "bound",
    "ratio_published",
    "ratio",
    "ratio_low",
    "ratio_high",
    "direction",
    "published_unit",
    "figures_from",
)


def as_csv(found: TableShape) -> str:
    """Return the figures and effects, unrounded: a row a column and size, one an effect where a column has several.

    An effect's fields are empty for a column that others are measured against. `unit` is that of ours, `published_unit`
    that of `published`, `figures_from` says what kind of machine measured ours.

    A table of p-values has those in `published` and `ours`, and no effects.
    """
    rows = (row | {"figures_from": found.host_label} for row in _rows(found))
    return table(COLUMNS, ([row.get(column) for column in COLUMNS] for row in rows))


def as_json(found: TableShape) -> str:
    """Return the rows of the CSV, and the order of the paths at each size, as one object.

    `taken` are workloads, settings and sizes (bytes) that nobody named, of a run of several.
    """
    table = found.figures.table
    whole = {
        "format": 1,
        "published": table.name,
        "source": table.source,
        "figures_from": found.host_label,
        "taken": {"workloads": found.workloads, "settings": found.taken, "sizes": found.sizes},
        "rows": _rows(found),
        "orders": [
            {"message_bytes": size, "published": list(theirs), "ours": list(ours), "order": agrees}
            for size, theirs, ours, agrees in found.orders
        ],
    }
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _rows(found: TableShape) -> list[dict[str, str | int | float | None]]:
    if found.significances:
        return [
            {
                "column": name,
                "message_bytes": size,
                "unit": "p",
                "published": theirs,
                "ours": ours,
                "published_unit": "p",
            }
            for name, size, theirs, ours in found.significances
        ]
    effects = by_key(((one.column, one.size_bytes), one) for one in found.effects)
    return [
        {
            "column": column.name,
            "message_bytes": size,
            "unit": found.units.get(column.name),
            "published": figure,
            "ours": found.ours.get(column.name, {}).get(size),
            **effect,
            "published_unit": found.figures.table.unit,
        }
        for column in found.figures.table.columns
        for size, figure in sorted(found.figures.values[column.name].items())
        for effect in [_effect(one) for one in effects.get((column.name, size), ())] or [{}]
    ]


def _effect(one: PublishedEffect) -> dict[str, str | int | float | None]:
    ours = one.ours
    interval = ours.interval if ours else None
    return {
        "reference": one.reference,
        "bound": one.bound,
        "ratio_published": one.published,
        "ratio": ours.ratio if ours else None,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "direction": one.agrees,
    }
