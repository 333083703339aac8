"""One directory a run; the trial's record is the commit point of a trial.

    run.json            what this is: format, study digest, versions, host (written once)
    study.toml          the study as it was given, to the byte
    trials/000042.json  one record a finished trial, valid or failed
    samples/000042.parquet
    traces/000042.zip   of a trial that was traced: the kernel's trace and the engine's file, as they were
    fabric/000042.zip   of a trial that measured a whole fabric: the engine's file, as it was

The run of a whole fabric (`nearmetal fabric`) has the folder `fabric` from the beginning, and none for samples.

A trial's samples (and files) become permanent first, then its record. What is there without a record was never
finished: `open_for_writing` removes it. Records are only ever added.

A search of settings keeps its launches in the same way (`SearchDir`), with `search.json` in place of `run.json`: its
trials differ in settings that no study names, and must not be compared as those of a run.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import TypeAdapter, ValidationError

from nearmetal.errors import BadInputError, ForeignFileError, StoreError
from nearmetal.reading import parse_json, read_text
from nearmetal.store.bundle import MAX_FILE_BYTES, declared_bytes, read_bundle, write_bundle
from nearmetal.store.disk import TEMPORARY_SUFFIX, Disk
from nearmetal.store.samples import Cell, CellSamples, describe, read_values, write_samples
from nearmetal.study.order import Order, Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import TextIOWrapper
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

RUN_FORMAT = 1
_PLACE = "profiles-go-to"
MAX_FABRIC_BYTES = 1 << 32
"""Of a fabric's file: 1,024 nodes take a third of a gigabyte with the defaults, 2,048 four times that."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is; `host_label` says what its figures are and is shown with them."""

    study_name: str
    study_sha256: str
    host_kind: str
    host_label: str
    nearmetal_version: str
    created_utc: str


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A finished trial: what was asked, what came of it, which cells its samples hold."""

    order: Order
    outcome: Outcome
    attempt: int
    started_utc: str
    cells: tuple[Cell, ...]

    @property
    def valid(self) -> bool:
        """Tell whether its samples may be compared."""
        return self.outcome.status is TrialStatus.VALID


class RunDir:
    """A run on disk. Reading needs no lock; writing takes the run's lock until `close`."""

    MARKER: ClassVar[str] = "run.json"
    WHAT: ClassVar[str] = "run directory"
    VERB: ClassVar[str] = "nearmetal run"

    def __init__(self, root: Path, info: RunInfo, disk: Disk, lock: TextIOWrapper | None = None) -> None:
        self.root = root
        self.info = info
        self._disk = disk
        self._lock = lock

    @classmethod
    def create(
        cls, root: Path, info: RunInfo, study_text: str, disk: Disk | None = None, *, of_fabric: bool = False
    ) -> Self:
        """Make a new run directory and lock it; raise BadInputError when it already holds something."""
        disk = disk or Disk()
        if root.exists() and any(root.iterdir()):
            raise BadInputError(
                f"{root} is not empty", hint=f"name another directory, or continue it: {cls.VERB} --resume {root}"
            )
        try:
            for folder in ("trials", "fabric" if of_fabric else "samples"):
                (root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make {root}: {error.strerror}", hint="name another directory with --out"
            ) from error
        lock = _take_lock(root)
        disk.put_bytes(root / "study.toml", study_text.encode())
        disk.put_bytes(root / cls.MARKER, json.dumps({"run_format": RUN_FORMAT, **asdict(info)}, indent=1).encode())
        return cls(root, info, disk, lock)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open a run for reading; raise ForeignFileError when it is not one."""
        try:
            raw = parse_json(read_text(root / cls.MARKER))
        except OSError as error:
            hint = f"`{cls.VERB}` makes one"
            if (root / SearchDir.MARKER).exists():
                hint = f"it holds a search; `nearmetal show {root}` lists its trials"
            raise ForeignFileError(f"{root} is not a {cls.WHAT}: {error.strerror} ({cls.MARKER})", hint=hint) from error
        except ValueError as error:
            raise ForeignFileError(
                f"{root}/{cls.MARKER} is damaged: {error}", hint="restore it from a backup"
            ) from error
        if not isinstance(raw, dict) or raw.pop("run_format", None) != RUN_FORMAT:
            raise ForeignFileError(f"{root} is a run of a format that this nearmetal does not know (it knows 1)")
        if raw.keys() != {field.name for field in fields(RunInfo)} or not all(isinstance(v, str) for v in raw.values()):
            raise ForeignFileError(f"{root}/{cls.MARKER} lacks or misnames a field", hint="restore it from a backup")
        return cls(root, RunInfo(**raw), Disk())

    @classmethod
    def open_for_writing(cls, root: Path, disk: Disk | None = None) -> Self:
        """Open a run to continue it: lock it and remove what a crash left half done."""
        info = cls.open(root).info
        run = cls(root, info, disk or Disk(), _take_lock(root))
        finished = {path.stem for path in (root / "trials").glob("*.json")}
        left = [
            *(root / "samples").glob("*.parquet"),
            *(root / "traces").glob("*.zip"),
            *(root / "fabric").glob("*.zip"),
        ]
        for path in [*root.rglob(f"*{TEMPORARY_SUFFIX}"), *left]:
            if path.suffix == TEMPORARY_SUFFIX or path.stem not in finished:
                path.unlink()
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; calling twice does nothing more."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def of_fabric(self) -> bool:
        """Tell whether this is the run of a whole fabric: one launch for all pairs, no trials to compare."""
        return is_of_fabric(self.root)

    def study_text(self) -> str:
        """Return the study as it was given; raise ForeignFileError when it is gone or is not text."""
        try:
            return read_text(self.root / "study.toml")
        except (OSError, ValueError) as error:
            raise ForeignFileError(f"{self.root}/study.toml: {error}", hint="restore it from a backup") from error

    def append(
        self, order: Order, outcome: Outcome, cells: Sequence[CellSamples], *, attempt: int, started_utc: str
    ) -> TrialRecord:
        """Make a finished trial permanent: its samples, then its record. Raise StoreError when the disk refuses."""
        if self._lock is None:
            raise StoreError(f"{self.root} is open for reading only")
        name = trial_name(order.trial, attempt)
        record = TrialRecord(order, outcome, attempt, started_utc, describe(cells))
        for folder in _kept_in(outcome):
            (self.root / folder).mkdir(exist_ok=True)
            self._disk.put(self.root / folder / f"{name}.zip", lambda part: write_bundle(part, outcome.files))
        if cells:
            self._disk.put(self.root / "samples" / f"{name}.parquet", lambda part: write_samples(part, cells))
        self._disk.put_bytes(self.root / "trials" / f"{name}.json", _encode(record))
        return record

    def trials(self) -> list[TrialRecord]:
        """Return every finished trial in the order of the plan; raise ForeignFileError for a damaged record."""
        records = [_decode(path) for path in (self.root / "trials").glob("*.json")]
        return sorted(records, key=lambda record: (record.order.trial, record.attempt))

    def values(self, record: TrialRecord, cell: Cell) -> NDArray[np.int64]:
        """Return one cell's values (ns) of a trial, in the order of measurement."""
        return read_values(self.samples_path(record), cell)

    def trace(self, record: TrialRecord) -> dict[str, bytes]:
        """Return the files of a traced trial by name, none when it was not traced.

        Raise ForeignFileError when they are damaged.
        """
        return self._bundle("traces", record, MAX_FILE_BYTES)

    def fabric(self, record: TrialRecord) -> dict[str, bytes]:
        """Return the files of a trial that measured a whole fabric, none when it did not; raises as `trace` does."""
        return self._bundle("fabric", record, MAX_FABRIC_BYTES)

    def fabric_bytes(self, record: TrialRecord) -> int:
        """Return how large the largest file of `fabric` says that it is."""
        return declared_bytes(self._archive("fabric", record))

    def _archive(self, folder: str, record: TrialRecord) -> Path:
        return self.root / folder / f"{trial_name(record.order.trial, record.attempt)}.zip"

    def _bundle(self, folder: str, record: TrialRecord, most_bytes: int) -> dict[str, bytes]:
        path = self._archive(folder, record)
        return read_bundle(path, most_bytes) if path.exists() else {}

    def samples_path(self, record: TrialRecord) -> Path:
        """Return the path of a trial's samples."""
        return self.root / "samples" / f"{trial_name(record.order.trial, record.attempt)}.parquet"


class SearchDir(RunDir):
    """The launches of a search, numbered in the order in which it asked for them."""

    MARKER: ClassVar[str] = "search.json"
    WHAT: ClassVar[str] = "search directory"
    VERB: ClassVar[str] = "nearmetal tune"

    def keep_out(self, place: Path) -> None:
        """Keep where the profiles go."""
        self._disk.put_bytes(self.root / _PLACE, str(place.absolute()).encode())

    def kept_out(self) -> Path:
        """Return where the profiles go; raise ForeignFileError when that is not told."""
        try:
            return Path((self.root / _PLACE).read_text())
        except (OSError, ValueError) as error:
            raise ForeignFileError(f"{self.root}/{_PLACE}: {error}", hint="name the place with --out") from error


def open_either(root: Path) -> RunDir:
    """Open a run or a search for reading."""
    return SearchDir.open(root) if (root / SearchDir.MARKER).exists() else RunDir.open(root)


def trial_name(trial: int, attempt: int) -> str:
    """Return the file name stem of a trial's record and samples."""
    return f"{trial:06d}" if attempt == 1 else f"{trial:06d}.{attempt}"


def is_of_fabric(root: Path) -> bool:
    """Tell whether a run directory is that of a whole fabric."""
    return (root / "fabric").is_dir() and not (root / "samples").exists()


def is_being_written(root: Path) -> bool:
    """Tell whether a process of this machine holds the run's lock, without taking it for a moment.

    Taking it, even shared, could make a `nearmetal run` that starts in this moment fail. The kernel lists locks in
    /proc/locks (proc_locks(5)), with the inode as the last part of the sixth column.
    """
    try:
        inode = (root / "lock").stat().st_ino
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in held)


def _kept_in(outcome: Outcome) -> list[str]:
    """Return the folders that keep an outcome's files as they were."""
    return ["traces"] * outcome.traced + ["fabric"] * outcome.of_fabric


def _take_lock(root: Path) -> TextIOWrapper:
    lock = os.fdopen(os.open(root / "lock", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise StoreError(f"{root} is in use by another nearmetal", hint="wait for it, or name another run") from error
    return lock


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


def _encode(record: TrialRecord) -> bytes:
    raw = {
        "run_format": RUN_FORMAT,
        "order": json.loads(record.order.to_json()),
        "outcome": json.loads(record.outcome.to_json()),
        "attempt": record.attempt,
        "started_utc": record.started_utc,
        "cells": [asdict(cell) for cell in record.cells],
    }
    return (json.dumps(raw, indent=1, sort_keys=True) + "\n").encode()


def _decode(path: Path) -> TrialRecord:
    try:
        raw: dict[str, Any] = parse_json(read_text(path))
        if raw.pop("run_format") != RUN_FORMAT:
            raise ForeignFileError(f"{path} has a format that this nearmetal does not know (it knows {RUN_FORMAT})")
        _check_types(path, raw)
        return TrialRecord(
            Order.from_json(json.dumps(raw["order"])),
            Outcome.from_json(json.dumps(raw["outcome"]), {}),
            raw["attempt"],
            raw["started_utc"],
            tuple(Cell(**{**cell, "value_ranks": tuple(cell["value_ranks"])}) for cell in raw["cells"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignFileError(
            f"{path} is not the record of a trial: {error}",
            hint="restore it from a backup; deleting it makes `nearmetal run --resume` repeat the trial",
        ) from error
