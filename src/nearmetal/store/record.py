"""A finished trial, and its record on disk: sealed JSON that names the SHA-256 of every file of the trial.

Format 3 is sealed and has sums, also of what each cell's values are made of, and its run has a list of records. Older
runs are read as they are: format 2 has no list and no sums of cells, format 1 no seal and no sums.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from nearmetal import limits
from nearmetal.errors import ForeignFileError
from nearmetal.reading import parse_json, read_bytes
from nearmetal.store.samples import Cell
from nearmetal.store.sums import SEAL, check_seal, seal_of, sealed
from nearmetal.study.order import Order, Outcome, TrialStatus

if TYPE_CHECKING:
    from pathlib import Path

RUN_FORMAT = 3
FORMAT_WITHOUT_SUMS = 1
PLACES = {
    "samples": "samples/{}.parquet".format,
    "traces": "traces/{}.zip".format,
    "fabric": "fabric/{}.zip".format,
}
"""Where a trial's files are in the run directory, by kind and the trial's name."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A finished trial: what was asked, what came of it, which cells its samples hold.

    `sums` holds the SHA-256 of its files by place in the run directory; it is None in runs made before there were any.
    `parts` are those of `samples.part_sums`, () where there are none. `seal` is the SHA-256 that the record's document
    carries.
    """

    order: Order
    outcome: Outcome
    attempt: int
    started_utc: str
    cells: tuple[Cell, ...]
    sums: dict[str, str] | None = None
    parts: tuple[str, ...] = ()
    seal: str = field(default="", compare=False, repr=False)

    @property
    def valid(self) -> bool:
        """Tell whether its samples may be compared."""
        return self.outcome.status is TrialStatus.VALID

    @property
    def name(self) -> str:
        """Return the stem of its files' names."""
        return trial_name(self.order.trial, self.attempt)


def trial_name(trial: int, attempt: int) -> str:
    """Return the file name stem of a trial's record and samples."""
    return f"{trial:06d}" if attempt == 1 else f"{trial:06d}.{attempt}"


def encode(record: TrialRecord) -> bytes:
    """Return a record as it is kept."""
    return sealed(
        {
            "run_format": RUN_FORMAT,
            "order": json.loads(record.order.to_json()),
            "outcome": json.loads(record.outcome.to_json()),
            "attempt": record.attempt,
            "started_utc": record.started_utc,
            "cells": [asdict(cell) for cell in record.cells],
            "sums": record.sums,
            "parts": record.parts,
        }
    )


def read_record(path: Path) -> TrialRecord:
    """Read what `encode` returned; raise ForeignFileError for what is damaged, foreign or another trial's."""
    try:
        data = read_bytes(path, limits.TEXT)
        raw: dict[str, Any] = parse_json(data)
        if take_format(raw, data, path) == FORMAT_WITHOUT_SUMS:
            raw["sums"] = None
        elif raw["sums"] is None:
            raise ForeignFileError(f"{path} names no sums of its files", hint="restore it from a backup")
        _check_types(path, raw)
        record = TrialRecord(
            Order.from_json(json.dumps(raw["order"])),
            Outcome.from_json(json.dumps(raw["outcome"]), {}),
            raw["attempt"],
            raw["started_utc"],
            tuple(Cell(**{**cell, "value_ranks": tuple(cell["value_ranks"])}) for cell in raw["cells"]),
            raw["sums"],
            tuple(raw.get("parts", ())),
            seal_of(data),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignFileError(
            f"{path} is not the record of a trial: {error}",
            hint="restore it from a backup; deleting it makes `nearmetal run --resume` repeat the trial",
        ) from error
    if record.name != path.stem:
        raise ForeignFileError(f"{path} is the record of another trial: {record.name}", hint="restore its name")
    if foreign := (record.sums or {}).keys() - {place(record.name) for place in PLACES.values()}:
        raise ForeignFileError(f"{path} names a file that is not of its trial: {min(foreign)!r}")
    if record.parts and len(record.parts) != 1 + len(record.cells):
        raise ForeignFileError(f"{path} has {len(record.parts)} sums of the parts of {len(record.cells)} cells")
    return record


def take_format(raw: dict[str, Any], data: bytes, path: Path) -> int:
    """Take format and seal out of a run's document and return the format; raise ForeignFileError for a wrong one."""
    version = raw.pop("run_format", None)
    if type(version) is not int or not FORMAT_WITHOUT_SUMS <= version <= RUN_FORMAT:
        raise ForeignFileError(f"{path} is of a format that this nearmetal does not know (it knows 1 to {RUN_FORMAT})")
    if check_seal(data, path) != (version > FORMAT_WITHOUT_SUMS):
        raise ForeignFileError(
            f"{path} has changed since it was written: its SHA-256 is not where it was", hint="restore it from a backup"
        )
    raw.pop(SEAL, None)
    return version


@cache
def _types() -> TypeAdapter[TrialRecord]:
    return TypeAdapter(TrialRecord)


def _check_types(path: Path, raw: dict[str, Any]) -> None:
    """Raise ForeignFileError when a record's field is of another type: a file may hold anything."""
    try:
        _types().validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ForeignFileError(
            f"{path} is not the record of a trial: {place}: {first['msg']}", hint="restore it from a backup"
        ) from error
