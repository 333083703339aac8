"""The file of a history: one DuckDB database, of a format that it states.

    nearmetal_history  one row: the format
    runs               one row a run, by its identity
    facts              what each run was measured with
    cells              how each cell of a run is shown
    figures            one figure a block of each cell, or one an occasion: what levels and intervals are made of

A run goes in within one transaction, so a writer that is killed leaves the runs before it and nothing of its own.
DuckDB lets one process write at a time: another waits for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal import scratch
from nearmetal.closing import Closing
from nearmetal.errors import BadInputError, ForeignFileError, StoreError, UnavailableError, command_line, os_errors_as
from nearmetal.history.records import KeptRun, RunEntry
from nearmetal.results.series import CellId, CellSeries
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.equivalence import Better
from nearmetal.stats.summary import Metric
from nearmetal.units import by_key

if TYPE_CHECKING:
    import duckdb

HISTORY_FORMAT = 2
WAIT_S = 30.0
_POLL_S = 0.05
_LOCKED = "Could not set lock on file"
_REFUSED = ("Could not write", "Could not sync", "Could not truncate", "No space left")

_SCHEMA = """
CREATE TABLE nearmetal_history (format INTEGER NOT NULL);
CREATE TABLE runs (
    run_id VARCHAR NOT NULL, study_name VARCHAR NOT NULL, study_sha256 VARCHAR NOT NULL, host_kind VARCHAR NOT NULL,
    host_label VARCHAR NOT NULL, nearmetal_version VARCHAR NOT NULL, created_utc VARCHAR NOT NULL,
    root VARCHAR NOT NULL, trials BIGINT NOT NULL, blocks BIGINT NOT NULL);
CREATE TABLE facts (run_id VARCHAR NOT NULL, fact VARCHAR NOT NULL, value VARCHAR NOT NULL);
CREATE TABLE cells (
    run_id VARCHAR NOT NULL, cell BIGINT NOT NULL, path VARCHAR NOT NULL, workload VARCHAR NOT NULL,
    operation VARCHAR NOT NULL, message_bytes BIGINT NOT NULL, setting VARCHAR NOT NULL, metric VARCHAR NOT NULL,
    figure VARCHAR NOT NULL, unit VARCHAR NOT NULL, better VARCHAR NOT NULL, factor DOUBLE NOT NULL,
    blocks BIGINT NOT NULL, occasions BIGINT NOT NULL);
CREATE TABLE figures (
    run_id VARCHAR NOT NULL, cell BIGINT NOT NULL, block BIGINT NOT NULL, ns DOUBLE NOT NULL, boot BIGINT);
"""
_TABLES = ("runs", "facts", "cells", "figures")
_COLUMNS = [one.name for one in fields(RunEntry)]
# A file from elsewhere may hold views that read other files: nothing but the file itself is opened.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


def _refuse_bytes(name: str) -> None:
    """Raise BadInputError for a name that is not UTF-8: DuckDB takes no other, and says so by an exception of C++."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadInputError(f"the name {name!r} is not UTF-8, as names in a history are", hint="rename it") from error


class Database(Closing):
    """An open history; use it as a context. Raises StoreError when another process keeps it beyond `wait_s`."""

    def __init__(self, path: Path, *, write: bool, wait_s: float = WAIT_S) -> None:
        self.path = path
        _refuse_bytes(str(path))
        if path.is_dir():
            text = f"{path} is a directory, not the file of a history"
            raise BadInputError(text, hint="name the file first: nearmetal history add HISTORY.duckdb RUN")
        new = not path.exists()
        if new and not write:
            text = f"there is no history {path}"
            raise BadInputError(text, hint=f"{command_line('history', 'add', path)} RUN makes one")
        if new:
            _make(path)
        elif not _is_of_duckdb(path):
            # DuckDB opens JSON and CSV as tables in memory, and would lose what is added to them.
            text = f"{path} cannot be read as a history: it is no DuckDB file"
            raise ForeignFileError(text, hint="name another file")
        self._connection = _connect(path, write=write, wait_s=wait_s)
        try:
            self._check()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add(self, kept: KeptRun) -> str:
        """Take a run in; return `added`, `updated` (it has more trials by now, or other figures) or `known`."""
        entry = kept.entry
        _refuse_bytes(entry.root)
        rows = _rows(kept)
        with _explained(self.path):
            held = self._selected("SELECT trials FROM runs WHERE run_id = ?", entry.run_id)
            others = self._others(entry)
            known = held and (held[0][0] > entry.trials or (held[0][0] == entry.trials and self._has(entry, rows)))
            if known and not others:
                return "known"
            self._connection.execute("BEGIN TRANSACTION")
            for table in _TABLES if held or others else ():
                for run_id in (entry.run_id, *others):
                    self._connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])  # noqa: S608 (ours)
            for table, of_table in rows.items():
                self._insert(table, of_table)
            self._connection.execute("COMMIT")
        return "updated" if held or others else "added"

    def _others(self, entry: RunEntry) -> list[str]:
        """Return other identities of a run, of which it had one until its first trial was lost and measured again."""
        same = ("root", "created_utc", "study_sha256")
        where = " AND ".join(f"{name} = ?" for name in same)
        values = [getattr(entry, name) for name in same]
        found = self._selected(f"SELECT run_id FROM runs WHERE {where} AND run_id <> ?", *values, entry.run_id)  # noqa: S608
        return [run_id for (run_id,) in found]

    def kept(self) -> list[KeptRun]:
        """Return the runs by date, then by identity, with all that is kept of them."""
        facts = by_key(
            (run_id, pair) for run_id, *pair in self._selected("SELECT run_id, fact, value FROM facts ORDER BY fact")
        )
        cells = by_key(self._cells())
        entries = self._selected(f"SELECT {', '.join(_COLUMNS)} FROM runs ORDER BY created_utc, run_id")  # noqa: S608
        return [
            KeptRun(
                entry,
                dict(facts.get(entry.run_id, [])),
                {metric: tuple(cells.get((entry.run_id, str(metric)), ())) for metric in Metric},
            )
            for entry in (RunEntry(*row) for row in entries)
        ]

    def _cells(self) -> Iterator[tuple[tuple[str, str], CellSeries]]:
        """Yield every cell after the identity of its run and the metric that its figures are of."""
        figures = by_key(
            ((run_id, cell), (block, ns, boot))
            for run_id, cell, block, ns, boot in self._selected(
                "SELECT run_id, cell, block, ns, boot FROM figures ORDER BY ALL"
            )
        )
        heads = self._selected(
            "SELECT run_id, cell, metric, figure, unit, better, factor, blocks, occasions, workload, operation, "
            "setting, message_bytes, path FROM cells ORDER BY run_id, cell"
        )
        for run_id, number, metric, figure, unit, better, factor, blocks, occasions, *of in heads:
            own = figures.get((run_id, number), [])
            ns = {block: value for block, value, _ in own}
            boots = {block: boot for block, _, boot in own if boot is not None}
            shown = DisplayScale(figure, unit, Better(better), factor)
            yield (run_id, metric), CellSeries(CellId(*of), shown, ns, "", blocks, occasions, boots)

    def _selected(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with _explained(self.path):
            return self._connection.execute(query, values).fetchall()

    def _has(self, entry: RunEntry, rows: Mapping[str, list[dict[str, object]]]) -> bool:
        """Return whether all that is kept of a run's trials is here: a lost one may have been measured again."""
        for table in ("facts", "cells", "figures"):
            found = self._connection.execute(f"SELECT * FROM {table} WHERE run_id = ?", [entry.run_id])  # noqa: S608
            names = [column for column, *_ in found.description]
            if Counter(found.fetchall()) != Counter(tuple(row[name] for name in names) for row in rows[table]):
                return False
        return True

    def _insert(self, table: str, rows: list[dict[str, object]]) -> None:
        if rows:
            columns, marks = ", ".join(rows[0]), ", ".join(["unnest(?)"] * len(rows[0]))  # Arrow would load pandas
            values = [[row[name] for row in rows] for name in rows[0]]
            self._connection.execute(f"INSERT INTO {table} ({columns}) SELECT {marks}", values)

    def _check(self) -> None:
        """Refuse a file that is no history, or one of a format that is not known."""
        kinds = self._selected("SELECT table_name, table_type FROM information_schema.tables ORDER BY ALL")
        if ("nearmetal_history", "BASE TABLE") not in kinds:
            text = f"{self.path} is a DuckDB file, but no history of nearmetal"
            raise ForeignFileError(text, hint="name another file")
        [[known]] = self._selected("SELECT max(format) FROM nearmetal_history")
        if known != HISTORY_FORMAT:
            older = known is not None and known < HISTORY_FORMAT
            raise ForeignFileError(
                f"{self.path} has format {known}, this nearmetal knows {HISTORY_FORMAT}",
                hint="an older nearmetal wrote it: add its runs to a new file"
                if older
                else "use the nearmetal that wrote it, or a newer one",
            )
        missing = {(name, "BASE TABLE") for name in _TABLES} - set(kinds)
        if missing:
            names = ", ".join(sorted(name for name, _ in missing))
            raise ForeignFileError(f"{self.path} lacks {names}", hint="restore it from a backup, or add the runs again")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what DuckDB raises into errors for people: a disk that refuses, or a file that is no history."""
    import duckdb  # noqa: PLC0415 (heavy, and optional)

    try:
        yield
    except duckdb.Error as error:
        text = str(error).partition("\n")[0]
        if any(words in text for words in _REFUSED):
            message = f"cannot write {path}: {text}"
            raise StoreError(message, hint="free some space; the history is as it was before this run") from error
        raise ForeignFileError(
            f"{path} cannot be read as a history: {text}",
            hint="use another file; to replace a damaged one, add its runs to a new file",
        ) from error


def _is_of_duckdb(path: Path) -> bool:
    """Return whether a file has the mark of DuckDB's format behind its checksum."""
    with os_errors_as(ForeignFileError, f"{path} cannot be read", hint="name another file"), path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def _make(path: Path) -> None:
    """Make an empty history; it appears under its name whole or not at all, and a second process finds it there."""
    if not path.absolute().parent.is_dir():
        raise BadInputError(f"{path} cannot be made: {path.absolute().parent} is not a directory")
    try:
        with scratch.folder(f".{path.name}", path.absolute().parent) as folder:
            part = folder / "new"
            connection = _connect(part, write=True, wait_s=0.0)
            with _explained(path):
                connection.execute(_SCHEMA)
                connection.execute("INSERT INTO nearmetal_history VALUES (?)", [HISTORY_FORMAT])
                connection.close()
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(part)
    except OSError as error:
        raise StoreError(f"cannot make {path}: {error.strerror or error}", hint="name another place") from error


def _connect(path: Path, *, write: bool, wait_s: float) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb  # noqa: PLC0415 (heavy, and optional)
    except ImportError as error:
        raise UnavailableError(f"a history needs duckdb: {error}", hint="pip install 'nearmetal[history]'") from error
    end = time.monotonic() + wait_s
    before = os.umask(0o077)  # facts of hosts are in it
    try:
        while True:
            with _explained(path):
                try:
                    return duckdb.connect(str(path), read_only=not write, config=_CONFIG)
                except duckdb.IOException as error:
                    if _LOCKED not in str(error):
                        raise
            if time.monotonic() >= end:
                text = f"{path} has been in use by another process for {wait_s:g} s"
                raise StoreError(text, hint="wait until it ends, then repeat the command")
            time.sleep(_POLL_S)
    finally:
        os.umask(before)


def _rows(kept: KeptRun) -> dict[str, list[dict[str, object]]]:
    entry = kept.entry
    cells: list[dict[str, object]] = []
    figures: list[dict[str, object]] = []
    every = [(metric, one) for metric, several in kept.cells.items() for one in several]
    for number, (metric, one) in enumerate(every):
        cells.append(
            {
                "run_id": entry.run_id,
                "cell": number,
                **asdict(one.cell),
                "metric": str(metric),
                **one.shown.labels,
                "factor": one.shown.factor,
                "blocks": one.blocks,
                "occasions": one.occasions,
            }
        )
        figures += [
            {"run_id": entry.run_id, "cell": number, "block": block, "ns": ns, "boot": one.boots.get(block)}
            for block, ns in sorted(one.ns.items())
        ]
    facts: list[dict[str, object]] = [
        {"run_id": entry.run_id, "fact": fact, "value": value} for fact, value in kept.facts.items()
    ]
    return {"runs": [asdict(entry)], "facts": facts, "cells": cells, "figures": figures}
