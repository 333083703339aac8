"""One directory a run; the trial's record is the commit point of a trial.

    run.json            what this is: format, study and its digest, versions, host (written once, sealed)
    study.toml          the study as it was given, to the byte
    hosts.toml          so is its hosts file, if it names one
    trials/000042.json  one record a finished trial, valid or failed (sealed), with the SHA-256 of its files below
    samples/000042.parquet
    traces/000042.zip   of a trial that was traced: the kernel's trace and the engine's file, as they were
    mpi/000042.zip      of an application that was traced: its files, a trace of MPI calls for each rank among them
    fabric/000042.zip   of a trial that measured a whole fabric: the engine's file, as it was

The run of a whole fabric (`nearmetal fabric`) has the folder `fabric` from the beginning, and none for samples.

A trial's samples (and files) become permanent first, then its record. What is there without a record was never
finished: `open_for_writing` removes it. Records are only ever added.

Nothing is used before it was seen to be as it was recorded: documents by their seal, files by the sums in the record
(`sums.py`), the study by the digest in run.json, the hosts file by its copy there, the records by their list
(`listing.py`). Runs of format 1 have no sums, but the study's digest.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from shlex import quote
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nearmetal import limits
from nearmetal.closing import Closing
from nearmetal.errors import BadInputError, ForeignFileError, StoreError, os_errors_as
from nearmetal.reading import read_bytes
from nearmetal.stats.summary import Summary, summarize
from nearmetal.store.bundle import MAX_FILE_BYTES, declared_bytes, read_bundle, write_bundle
from nearmetal.store.disk import TEMPORARY_SUFFIX, Disk, confirm_lock, is_being_written, take_lock
from nearmetal.store.listing import LIST, chain_of, gone, line_after, read_list, replaced, whole_list
from nearmetal.store.record import (
    FORMAT_WITHOUT_LIST,
    FORMAT_WITHOUT_SUMS,
    HOSTS,
    PLACES,
    RUN_FORMAT,
    KeptTexts,
    RunInfo,
    TrialRecord,
    encode,
    encode_info,
    read_info,
    read_record,
    record_paths,
    trial_name,
)
from nearmetal.store.samples import (
    CellSamples,
    StoredCell,
    describe,
    part_sums,
    read_rows,
    read_table,
    read_values,
    write_samples,
)
from nearmetal.store.sums import (
    HINT_RESTORE,
    check_unchanged,
    file_sha256,
    hint_damaged,
    resume_command,
    seal_of,
    unread,
)
from nearmetal.study.order import FABRIC_FOLDER, PROFILE_FOLDER, TRACE_FOLDER, Order, Outcome
from nearmetal.study.spec import Study, parse_study, with_machines

# What was always found here.
__all__ = ["HOSTS", "RunDir", "RunInfo", "TrialRecord", "is_of_fabric"]

_PREFIXES = {"traces": TRACE_FOLDER, "mpi": PROFILE_FOLDER, "fabric": FABRIC_FOLDER}
"""What the names of files in an outcome begin with, by the folder that keeps them."""
MAX_FABRIC_BYTES = 1 << 32
"""Of a fabric's file: 1,024 nodes take a third of a gigabyte with the defaults, 2,048 four times that."""


class RunDir(Closing):
    """A run on disk. Reading needs no lock; writing takes the run's lock until `close`."""

    MARKER: ClassVar[str] = "run.json"
    WHAT: ClassVar[str] = "run directory"
    VERB: ClassVar[str] = "nearmetal run"
    OPTION: ClassVar[str] = "--out"

    def __init__(
        self,
        root: Path,
        info: RunInfo,
        disk: Disk,
        lock: TextIOWrapper | None = None,
        *,
        kept: KeptTexts,
        run_format: int = RUN_FORMAT,
    ) -> None:
        self.root = root
        self.info = info
        self.run_format = run_format
        self.lost: tuple[str, ...] = ()
        """Names of finished trials whose records were gone when it was opened for writing."""
        self._disk = disk
        self._lock = lock
        self._kept = kept
        self._last_line = ""
        self._summaries: dict[tuple[int, int, StoredCell], Summary] = {}
        self._held: list[TrialRecord] | None = None

    @classmethod
    def create(
        cls,
        root: Path,
        info: RunInfo,
        study_text: str,
        disk: Disk | None = None,
        *,
        hosts_text: str | None = None,
        of_fabric: bool = False,
    ) -> Self:
        """Make a new run directory and lock it; raise BadInputError when it already holds something."""
        disk = disk or Disk()
        cls.refuse_used(root)
        with os_errors_as(StoreError, f"cannot make {root}", hint=f"name another directory with {cls.OPTION}"):
            for folder in ("trials", "fabric" if of_fabric else "samples"):
                disk.make_folder(root / folder)
        lock = take_lock(root)
        disk.put_bytes(root / "study.toml", study_text.encode())
        if hosts_text is not None:
            disk.put_bytes(root / HOSTS, hosts_text.encode())
        disk.put_bytes(root / LIST, b"")
        disk.put_bytes(root / cls.MARKER, encode_info(info, study_text, hosts_text))
        return cls(root, info, disk, lock, kept=KeptTexts(study_text, hosts_text))

    @classmethod
    def refuse_used(cls, root: Path) -> None:
        """Raise BadInputError for a place that cannot become a new run directory: a file, or one that holds something.

        What cannot be written is refused too, as StoreError, where the machine says so beforehand.
        """
        if root.exists() and not root.is_dir():
            raise BadInputError(f"{root} is a file, not a directory", hint=f"name another directory with {cls.OPTION}")
        if root.exists() and any(root.iterdir()):
            again = f"{cls.VERB} --resume {quote(str(root))}"
            known = (root / cls.MARKER).exists()
            text = f"{root} is not empty"
            raise BadInputError(text, hint=f"name another directory{f', or continue it: {again}' if known else ''}")
        above = next(one for one in (root, *root.absolute().parents) if one.exists())
        if not os.access(above, os.W_OK):
            message = f"cannot make {root}: {above} cannot be written"
            raise StoreError(message, hint=f"name another directory with {cls.OPTION}")

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open a run for reading; raise ForeignFileError when it is not one."""
        info, kept, run_format = read_info(root / cls.MARKER, cls.WHAT, cls.VERB)
        return cls(root, info, Disk(), kept=kept, run_format=run_format)

    @classmethod
    def open_for_writing(cls, root: Path, disk: Disk | None = None) -> Self:
        """Open a run to continue it: lock it, see that all is as recorded, remove what a crash left half done.

        A record that is gone is taken off the list: its trial is to be measured again. Raise ForeignFileError when the
        study was edited or a file has changed, StoreError when another one writes.
        """
        from nearmetal.store.verify import refuse_damaged  # noqa: PLC0415 (readers need none of it)

        run = cls.open(root)
        run._disk, run._lock = disk or Disk(), take_lock(root)  # noqa: SLF001 (of this class)
        try:
            refuse_damaged(run, but_for_gone=True)
            run._list_anew()  # noqa: SLF001
            run._remove_unfinished()  # noqa: SLF001
        except BaseException:
            run.close()
            raise
        return run

    def _remove_unfinished(self) -> None:
        """Remove what no record names, and make the folder of samples where a copy lost it for want of any."""
        finished = {path.stem for path in record_paths(self.root)}
        left = [path for place in PLACES.values() for path in self.root.glob(place("*"))]
        for path in [*self.root.rglob(f"*{TEMPORARY_SUFFIX}"), *left]:
            if path.suffix == TEMPORARY_SUFFIX or path.stem not in finished:
                self._disk.remove(path)
        if not self.of_fabric:
            self._disk.make_folder(self.root / "samples")

    def close(self) -> None:
        """Release the lock; calling twice does nothing more."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def written_elsewhere(self) -> bool:
        """Return whether another process of this machine is writing it at this moment."""
        return self._lock is None and is_being_written(self.root)

    @property
    def sealed(self) -> bool:
        """Return whether it is of a format that has sums."""
        return self.run_format > FORMAT_WITHOUT_SUMS

    def listed(self) -> dict[str, str] | None:
        """Return the seals of all records by name, None in a run that lists none; raises as `read_list` does."""
        return read_list(self.root / LIST) if self.run_format > FORMAT_WITHOUT_LIST else None

    def _list_anew(self) -> None:
        """Write the list again where it is not that of the records that are there."""
        if (listed := self.listed()) is None:
            return
        records = {record.name: record for record in self._records()}
        self.lost = tuple(name for name in listed if name not in records)
        kept = [records.pop(name) for name in listed if name in records]
        data = whole_list([*kept, *records.values()])
        if data != read_bytes(self.root / LIST, limits.TEXT):
            self._disk.put_bytes(self.root / LIST, data)
        self._last_line = data.decode().rpartition("\n")[0].rpartition("\n")[2]

    @property
    def of_fabric(self) -> bool:
        """Return whether this is the run of a whole fabric: one launch for all pairs, no trials to compare."""
        return is_of_fabric(self.root)

    def study(self) -> Study:
        """Return the study, with the machines of its hosts file if the run keeps that.

        Raise BadInputError where this version cannot read them, and as `study_text` does.
        """
        study = parse_study(self.study_text(), f"{self.root}/study.toml", measured=True)
        hosts = self.hosts_text()
        return study if hosts is None else with_machines(study, hosts, f"{self.root}/{HOSTS}")

    def hosts_text(self) -> str | None:
        """Return the hosts file as it was given, None in a run without; raise ForeignFileError as `study_text` does."""
        return self._kept.hosts_in(self.root, self.MARKER)

    def study_text(self) -> str:
        """Return the study as it was given; raise ForeignFileError when it is gone or was edited, and say where."""
        return self._kept.study_in(self.root, self.MARKER, self.info.study_sha256, self.VERB)

    def append(
        self, order: Order, outcome: Outcome, cells: Sequence[CellSamples], *, attempt: int, started_utc: str
    ) -> TrialRecord:
        """Make a finished trial permanent: its samples, then its record.

        Raise StoreError when the disk refuses, or when another run has taken the directory's place.
        """
        if self._lock is None:
            raise StoreError(f"{self.root} is open for reading only")
        confirm_lock(self._lock, self.root, self.OPTION)
        name = trial_name(order.trial, attempt)
        sums: dict[str, str] = {}
        for folder, prefix in _PREFIXES.items():
            if not outcome.left(prefix):
                continue
            (self.root / folder).mkdir(exist_ok=True)
            self._put(sums, PLACES[folder](name), lambda part: write_bundle(part, outcome.files))
        if cells:
            self._put(sums, PLACES["samples"](name), lambda part: write_samples(part, cells))
        described = describe(cells)
        parts = part_sums(self.root / PLACES["samples"](name), described) if cells else ()
        record = TrialRecord(order, outcome, attempt, started_utc, described, sums, parts)
        data = encode(record)
        record = replace(record, seal=seal_of(data))
        self._disk.put_bytes(self.root / "trials" / f"{name}.json", data)
        if self.run_format > FORMAT_WITHOUT_LIST:
            self._last_line = line_after(chain_of(self._last_line), record)
            self._disk.append(self.root / LIST, self._last_line.encode())
        return record

    def _put(self, sums: dict[str, str], place: str, write: Callable[[Path], None]) -> None:
        """Make a file permanent, and note its sum before it is."""

        def write_and_sum(part: Path) -> None:
            write(part)
            sums[place] = file_sha256(part)

        self._disk.put(self.root / place, write_and_sum)

    def held(self) -> Self:
        """Return itself, with the trials as they are now: several questions get answers of one state, read once."""
        self._held = self.trials()
        return self

    def trials(self) -> list[TrialRecord]:
        """Return every finished trial in the order of the plan.

        Raise ForeignFileError for a record that is damaged or gone.
        """
        if self._held is not None:
            return [*self._held]
        records, listed = self._records(), self.listed() or {}
        by_name = {record.name: record for record in records}
        if problems := [*gone(self.root, listed, by_name), *replaced(self.root, listed, by_name)]:
            hint = f"{HINT_RESTORE}, or measure the trial of a lost record again: {resume_command(self.root)}"
            raise ForeignFileError(problems[0], hint=hint)
        return records

    def _records(self) -> list[TrialRecord]:
        records = [read_record(path) for path in record_paths(self.root)]
        return sorted(records, key=lambda record: (record.order.trial, record.attempt))

    def sum_of(self, record: TrialRecord, path: Path) -> str:
        """Return the recorded SHA-256 of a trial's file, '' in a run that has none; raise ForeignFileError."""
        place = path.relative_to(self.root).as_posix()
        if record.sums is None:
            return ""
        if place not in record.sums:
            raise ForeignFileError(f"the record of {path} does not name it", hint="restore the run from a backup")
        return record.sums[place]

    def values(self, record: TrialRecord, cell: StoredCell) -> NDArray[np.int64]:
        """Return one cell's values (ns) of a trial, in the order of measurement."""
        path = self.samples_path(record)
        parts = None  # of a cell as it was recorded; reading other ranks hashes the whole file
        if record.parts and cell in record.cells:
            parts = (record.parts[0], record.parts[1 + record.cells.index(cell)])
        return read_values(path, cell, self.sum_of(record, path), parts)

    def samples(self, record: TrialRecord) -> pa.Table:
        """Return all samples of a trial, as they are on disk."""
        path = self.samples_path(record)
        return read_table(path, self.sum_of(record, path))

    def rows(self, record: TrialRecord, cell: StoredCell) -> pa.Table:
        """Return everything that was stamped for a cell of a trial: all ranks, warm-up and flagged iterations too."""
        path = self.samples_path(record)
        return read_rows(path, cell, self.sum_of(record, path))

    def summary(self, record: TrialRecord, cell: StoredCell) -> Summary:
        """Return the summary of one cell of a trial, from its record, or from its samples where that has none.

        Raise BadInputError for samples that say nothing, ForeignFileError for samples that are not as recorded: what
        nobody could check again is not shown.
        """
        if cell.summary is not None:
            path = self.samples_path(record)
            try:
                check_unchanged(path, self.sum_of(record, path))
            except OSError as error:
                raise unread(path, error, hint_damaged(self.root)) from error
            return cell.summary
        key = (record.order.trial, record.attempt, cell)
        if key not in self._summaries:
            self._summaries[key] = summarize(self.values(record, cell))
        return self._summaries[key]

    def files(self, folder: str, record: TrialRecord) -> dict[str, bytes]:
        """Return a trial's files of a kind, a key of `PLACES`, by name; raise ForeignFileError for damaged ones."""
        path = self._archive(folder, record)
        most_bytes = MAX_FABRIC_BYTES if folder == "fabric" else MAX_FILE_BYTES
        return read_bundle(path, most_bytes, self.sum_of(record, path)) if self.keeps(folder, record) else {}

    def profile(self, record: TrialRecord) -> dict[str, bytes]:
        """Return the trace files of an MPI program by rank's file name; raises as `files` does."""
        files = self.files("mpi", record)
        return {
            name.removeprefix(PROFILE_FOLDER): data for name, data in files.items() if name.startswith(PROFILE_FOLDER)
        }

    def fabric_bytes(self, record: TrialRecord) -> int:
        """Return how large the largest file of a whole fabric says that it is."""
        return declared_bytes(self._archive("fabric", record))

    def _archive(self, folder: str, record: TrialRecord) -> Path:
        return self.root / PLACES[folder](record.name)

    def keeps(self, folder: str, record: TrialRecord) -> bool:
        """Return whether a trial left files of a kind, a key of `PLACES`; a record that was read does not hold them."""
        path = self._archive(folder, record)
        return path.exists() if record.sums is None else path.relative_to(self.root).as_posix() in record.sums

    def samples_path(self, record: TrialRecord) -> Path:
        """Return the path of a trial's samples."""
        return self._archive("samples", record)


def is_of_fabric(root: Path) -> bool:
    """Return whether a run directory is that of a whole fabric."""
    return (root / "fabric").is_dir() and not (root / "samples").exists()
