"""A run beside a published table for other programs: JSON with everything, CSV with one row a column and size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nearmetal.report.as_csv import table

if TYPE_CHECKING:
    from nearmetal.results.published import PublishedEffect, TableShape

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
)


def as_csv(found: TableShape) -> str:
    """Return the figures and effects, unrounded; an effect's fields are empty for the column it is measured against.

    A table of p-values has those in `published` and `ours`, and no effects.
    """
    return table(COLUMNS, ([row.get(column) for column in COLUMNS] for row in _rows(found)))


def as_json(found: TableShape) -> str:
    """Return the rows of the CSV, and the order of the paths at each size, as one object."""
    table = found.figures.table
    whole = {
        "format": 1,
        "published": table.name,
        "source": table.source,
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
            {"column": name, "message_bytes": size, "unit": "p", "published": theirs, "ours": ours}
            for name, size, theirs, ours in found.significances
        ]
    effects = {(one.column, one.size_bytes): one for one in found.effects}
    return [
        {
            "column": column.name,
            "message_bytes": size,
            "unit": found.unit,
            "published": figure,
            "ours": found.ours.get(column.name, {}).get(size),
            **_effect(effects.get((column.name, size))),
        }
        for column in found.figures.table.columns
        for size, figure in sorted(found.figures.values[column.name].items())
    ]


def _effect(one: PublishedEffect | None) -> dict[str, str | int | float | None]:
    if one is None:
        return {}
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
