"""What a published table is, and its figures read from the file that ships (`published_rows` lists them)."""

from __future__ import annotations

import csv
import importlib.resources
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from nearmetal.errors import ForeignFileError

Statistic = Literal["mean", "median", "p90", "p95", "p99", "max", "p_value"]
Bound = Literal["", "<", ">"]


@dataclass(frozen=True, slots=True)
class Column:
    """One configuration of a table: the paths and settings of ours, any of which stand for it.

    No settings are any; `workloads` narrow it where a table's columns are workloads. `statistic` is the one of ours
    that is put beside it.
    """

    name: str
    paths: tuple[str, ...]
    settings: tuple[str, ...] = ()
    statistic: Statistic = "mean"
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """One table. `effects` are the pairs (column, reference) whose ratio is looked at; `operations` are ours.

    Its rows are sizes, runs of one configuration, or configurations; `stated` are ratios that a text states in words.
    """

    name: str
    file: str
    source: str
    operations: tuple[str, ...]
    columns: tuple[Column, ...]
    effects: tuple[tuple[str, str], ...]
    rows: Literal["sizes", "runs", "configurations", "stated"] = "sizes"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a table: column -> size in bytes (0 where the table has no sizes) -> figure as printed.

    Of stated ratios the reference is 1, and `bounds[column, size]` says where a text gives a bound only.
    """

    table: Published
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    bounds: Mapping[tuple[str, int], Bound] = field(default_factory=dict)


def load(table: Published) -> Figures:
    """Read a shipped table; raise ForeignFileError when the file is not what the table of tables says."""
    text = (importlib.resources.files("nearmetal") / "published" / table.file).read_text(encoding="utf-8")
    return parse(table, text)


def parse(table: Published, text: str) -> Figures:
    """Read the text of a table's CSV; raise ForeignFileError when a column or a number is not one."""
    rows = list(csv.DictReader(text.splitlines()))
    try:
        if table.rows == "configurations":
            return Figures(table, {row["path"]: {0: _number(row["total"])} for row in rows})
        if table.rows == "runs":
            return Figures(table, {c.name: {0: median(_number(row[_mbps(c)]) for row in rows)} for c in table.columns})
        if table.rows == "stated":
            return _stated(table, rows)
        return Figures(
            table, {c.name: {int(row["bytes"]): _number(row[c.name]) for row in rows} for c in table.columns}
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ForeignFileError(f"{table.file} is not the table that it should be: {error!r}") from error


def _stated(table: Published, rows: list[dict[str, str]]) -> Figures:
    values: dict[str, dict[int, float]] = {column.name: {} for column in table.columns}
    bounds: dict[tuple[str, int], Bound] = {}
    for row in rows:
        text, size = row["ratio"], int(row["bytes"])
        values[row["column"]][size] = _number(text.lstrip("<>"))
        values[row["reference"]][size] = 1.0
        bounds[row["column"], size] = "<" if text[:1] == "<" else ">" if text[:1] == ">" else ""
    return Figures(table, values, bounds)


def _mbps(column: Column) -> str:
    return f"{column.name}_mbps"


def _number(word: str) -> float:
    """Return a printed figure; '< 0.001' is taken as 0.001."""
    value = float(word.removeprefix("<"))
    if not math.isfinite(value) or value < 0:
        raise ValueError(word)
    return value
