"""A table of figures: Arrow inside, a data frame of pandas or polars on request, and a picture of itself."""

from __future__ import annotations

import importlib
import io
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.report import as_html, as_table, words
from nearmetal.report.markup import element
from nearmetal.report.tables import Table
from nearmetal.report.terminal import Console
from nearmetal.units import rounded

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

SHOWN_ROWS = 10
_WIDTH = 100


class Frame:
    """A read-only table: `len(frame)` rows, `frame.columns` by name.

    It carries its data as one Arrow table and speaks Arrow's stream protocol, so `pa.table(frame)`,
    `pl.DataFrame(frame)`, DuckDB and others that understand it read it without a copy. Durations are
    nanoseconds in columns that end in `ns`, sizes are bytes; a figure that does not exist is null.
    """

    def __init__(self, title: str, table: pa.Table) -> None:
        self.title = title
        self._table = table

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self._table.column_names)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, column: str) -> np.ndarray:
        """Return one column as an array of shape (rows,); nulls of numbers become NaN, of text None.

        Raise BadInputError when there is no such column.
        """
        if column not in self.columns:
            raise BadInputError(f"there is no column {column!r}", hint=f"the columns: {', '.join(self.columns)}")
        return self._table.column(column).to_numpy()

    def to_arrow(self) -> pa.Table:
        """Return the table itself, without a copy."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame; raise UnavailableError when pandas is not installed."""
        _need("pandas")
        return self._table.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame, mostly without a copy; raise UnavailableError when polars is not installed."""
        return _need("polars").from_arrow(self._table)  # type: ignore[no-any-return]

    def to_dicts(self) -> list[dict[str, object]]:
        """Return the rows as dictionaries of plain Python values."""
        return self._table.to_pylist()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return Arrow's stream of the table (the Arrow PyCapsule interface)."""
        stream: object = self._table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return stream

    def __repr__(self) -> str:
        if not len(self):
            return f"{self.title}: no rows"
        text = io.StringIO()
        as_table.draw(Console(file=text, width=_WIDTH, no_color=True), [self.shown()], ".to_dicts()")
        return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, all text escaped; notebooks call this."""
        return str(as_html.table_region(self.shown()) or element("p", f"{self.title}: no rows"))

    def shown(self) -> Table:
        """Return the first rows as text."""
        rows = self._table.slice(0, SHOWN_ROWS).to_pylist()
        more = len(self) - len(rows)
        note = f"{more} more rows" if more > 0 else ""
        return Table(
            self.title, self.columns, tuple(tuple(_entry(row[name]) for name in self.columns) for row in rows), note
        )


def _entry(value: object) -> str:
    if value is None:
        return words.NOTHING
    return rounded(value, 5) if isinstance(value, float) else str(value)


def _need(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            f"{name} is not installed here: {error}",
            hint=f"pip install {name}, or 'nearmetal[notebook]'; frame.to_arrow() needs neither",
        ) from error
