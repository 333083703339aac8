"""What a published table is, and its figures read from the file that ships."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from nearmetal.errors import BadInputError, ForeignFileError, meant
from nearmetal.study.spec import parse_toml
from nearmetal.typed import adapter

Statistic = Literal["mean", "median", "p90", "p95", "p99", "max", "p_value"]
Bound = Literal["", "<", ">"]


def _meant(kind: Literal["paths", "settings"], value: object) -> object:
    """Return what a name stands for; a list stands for itself."""
    return group(kind, value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Column:
    """One configuration of a table: the paths and settings of ours, any of which stand for it.

    No settings are any; `workloads` narrow it where a table's columns are workloads. `statistic` is the one of ours
    that is compared with it.
    """

    name: str
    paths: Annotated[tuple[str, ...], BeforeValidator(partial(_meant, "paths"))]
    settings: Annotated[tuple[str, ...], BeforeValidator(partial(_meant, "settings"))] = ()
    statistic: Statistic = "mean"
    workloads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """One table. `effects` are the pairs (column, reference) whose ratio is looked at; `operations` are ours.

    Its rows are sizes, runs of one configuration, or configurations, in `unit`; `stated` are ratios that a text states
    in words.
    """

    name: str
    file: str
    source: str
    operations: tuple[str, ...]
    columns: tuple[Column, ...]
    effects: tuple[tuple[str, str], ...] = ()
    rows: Literal["sizes", "runs", "configurations", "stated"] = "sizes"
    unit: str = "us"
    note: str = "ratios that the text states; a bound holds where all of our interval is on its side"


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
    text = (files("nearmetal") / "published" / table.file).read_text(encoding="utf-8")
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
        raise ForeignFileError(f"{table.file} is not the expected table: {error!r}") from error


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


# ---- the published tables that ship
# `published/tables.toml` says what each is, and which of ours each column stands for.


@cache
def _shipped() -> dict[str, Any]:
    return parse_toml((files("nearmetal") / "published" / "tables.toml").read_text(encoding="utf-8"))


def group(kind: Literal["paths", "settings"], name: str) -> tuple[str, ...]:
    """Return the paths or settings of ours that a name in the file stands for."""
    return tuple(_shipped()[kind][name])


@cache
def every_table() -> dict[str, Published]:
    """Return the tables by name."""
    made: tuple[Published, ...] = adapter(tuple[Published, ...]).validate_python(_shipped()["table"])
    return {table.name: table for table in made}


def published_named(name: str) -> Published:
    """Return a table; raise BadInputError with the known names otherwise."""
    if name not in every_table():
        raise BadInputError(f"there is no published table {name!r}", hint=meant(name, every_table()))
    return every_table()[name]
