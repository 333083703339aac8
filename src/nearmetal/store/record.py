"""The documents of a run, sealed JSON: what it is (`run.json`), and a record a finished trial with its files' SHA-256.

Format 4 is sealed, has sums, also of what each cell's values are made of, and the summary of each cell; its run has a
list of records. Format 5 is that of a `run.json` which holds the study's hosts file, too. Older runs are read as they
are: format 3 has no summaries, format 2 no list and no sums of cells either, format 1 no seal and no sums.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

import nearmetal
from nearmetal import limits
from nearmetal.errors import ForeignFileError
from nearmetal.reading import is_text, parse_json, read_bytes
from nearmetal.store.samples import StoredCell
from nearmetal.store.sums import HINT_RESTORE, SEAL, check_seal, resume_command, seal_of, sealed, unread
from nearmetal.study.order import ORDER_FORMAT, Order, Outcome, TrialStatus, upgraded_outcome
from nearmetal.typed import adapter, read_typed

RUN_FORMAT, FORMAT_WITH_HOSTS = 4, 5
"""Of today's documents, and of `run.json` where the study names a hosts file, which it holds."""
STUDY, HOSTS = "study.toml", "hosts.toml"
FORMAT_WITHOUT_SUMS, FORMAT_WITHOUT_LIST = 1, 2
_OF_TODAY = f'\n "run_format": {RUN_FORMAT},\n'.encode()
"""Stands in a record of today's format alone: text in JSON has no bare line ends."""
_OF_OLD_LABELS = "instruction-counted figures of "
"""What the lab's label began with until November 2026; every sentence with a label says that it is about figures."""
PLACES = {
    "samples": "samples/{}.parquet".format,
    "traces": "traces/{}.zip".format,
    "mpi": "mpi/{}.zip".format,
    "fabric": "fabric/{}.zip".format,
}
"""Where a trial's files are in the run directory, by kind and the trial's name."""


def utc_now() -> str:
    """Return the time as documents keep it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def started_now() -> str:
    """Return the time as runs and trials keep it: to the microsecond, so that no two are one, or in another order."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is; `host_label` says where its figures are from and is shown with them."""

    study_name: str
    study_sha256: str
    host_kind: str
    host_label: str
    nearmetal_version: str
    created_utc: str

    @classmethod
    def now(cls, study_name: str, study_sha256: str, host_kind: str, host_label: str) -> RunInfo:
        """Return what a run is that this nearmetal begins now."""
        return cls(study_name, study_sha256, host_kind, host_label, nearmetal.__version__, started_now())


def encode_info(info: RunInfo, study_text: str, hosts_text: str | None = None) -> bytes:
    """Return the document of a run of today's format."""
    if hosts_text is None:
        return sealed({"run_format": RUN_FORMAT, **asdict(info), "study": study_text})
    return sealed({"run_format": FORMAT_WITH_HOSTS, **asdict(info), "study": study_text, "hosts": hosts_text})


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """What a run was given, to the byte: its study (None in format 1), and its hosts file (None where it has none)."""

    study: str | None
    hosts: str | None

    def study_in(self, root: Path, marker: str, sha256: str, verb: str) -> str:
        """Return the study; raise ForeignFileError when it is gone or was edited, and say where."""
        path = root / STUDY
        try:
            data = read_bytes(path, limits.TEXT)
            text = data.decode()
        except OSError as error:
            kept = "" if self.study is None else f"; field `study` of {root}/{marker} has it"
            raise unread(path, error, HINT_RESTORE + kept) from error
        except ValueError as error:
            raise ForeignFileError(f"{path}: {error}", hint=HINT_RESTORE) from error
        if hashlib.sha256(data).hexdigest() != sha256:
            lines = ["runs of format 1 do not keep the original"]
            if self.study is not None:
                from nearmetal.study.changes import changes  # noqa: PLC0415 (of an edited study alone)

                lines = changes(self.study, text)
            raise ForeignFileError(
                f"{path} is no longer the study of this run:\n  " + "\n  ".join(lines),
                hint=f"to measure the edited study: {verb} {quote(str(path))}; to use this one, put the study "
                f"back{'' if self.study is None else f' (field `study` of {marker})'}",
            )
        return text

    def hosts_in(self, root: Path, marker: str) -> str | None:
        """Return the hosts file, None in a run without; raise ForeignFileError when it is gone or was edited."""
        if self.hosts is None:
            return None
        path, hint = root / HOSTS, f"{HINT_RESTORE}; field `hosts` of {root}/{marker} has it"
        try:
            same = read_bytes(path, limits.TEXT) == self.hosts.encode()
        except OSError as error:
            raise unread(path, error, hint) from error
        if not same:
            raise ForeignFileError(f"{path} is no longer the hosts file of this run", hint=hint)
        return self.hosts


def read_info(path: Path, what: str, verb: str) -> tuple[RunInfo, KeptTexts, int]:
    """Return what a run is, what it was given, and its format.

    Raise ForeignFileError when it is damaged, or the folder is not `what` the `verb` makes.
    """
    try:
        data = read_bytes(path, limits.TEXT)
        raw = parse_json(data)
    except PermissionError as error:
        raise unread(path, error) from error
    except OSError as error:
        from nearmetal.store.misnamed import misnamed  # noqa: PLC0415 (only for an error)

        hint = misnamed(path.parent, path.name, verb)
        raise ForeignFileError(f"{path.parent} is not a {what}: {error.strerror} ({path.name})", hint=hint) from error
    except ValueError as error:
        raise ForeignFileError(f"{path} is damaged: {error}", hint=HINT_RESTORE) from error
    if not isinstance(raw, dict):
        raise ForeignFileError(f"{path} is damaged: not a JSON object", hint=HINT_RESTORE)
    wanted = {field.name for field in fields(RunInfo)}
    run_format = _take_format(raw, data, path, FORMAT_WITH_HOSTS)
    if run_format > FORMAT_WITHOUT_SUMS:
        wanted.add("study")
    if run_format == FORMAT_WITH_HOSTS:
        wanted.add("hosts")
    if raw.keys() != wanted or not all(isinstance(v, str) and is_text(v) for v in raw.values()):
        raise ForeignFileError(f"{path} lacks or misnames a field", hint=HINT_RESTORE)
    kept = KeptTexts(raw.pop("study", None), raw.pop("hosts", None))
    raw["host_label"] = raw["host_label"].removeprefix(_OF_OLD_LABELS)
    return RunInfo(**raw), kept, run_format


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A finished trial: what was asked, what came of it, which cells its samples hold.

    `sums` holds the SHA-256 of its files by place in the run directory; it is None in runs made before there were any.
    `parts` are those of `samples.part_sums`, () where there are none. `seal` is the SHA-256 that the record's document
    carries.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    order: Order
    outcome: Outcome
    attempt: int
    started_utc: str
    cells: tuple[StoredCell, ...]
    sums: dict[str, str] | None = None
    parts: tuple[str, ...] = ()
    seal: Annotated[str, Field(validation_alias=SEAL)] = field(default="", compare=False, repr=False)

    @property
    def valid(self) -> bool:
        """Return whether its samples may be compared."""
        return self.outcome.status is TrialStatus.VALID

    @property
    def keys(self) -> dict[str, int | str]:
        """Return what says which trial this is, wherever trials are listed."""
        order = self.order
        return {
            "trial": order.trial,
            "attempt": self.attempt,
            "block": order.block,
            "path": order.path.label,
            "workload": order.workload.label,
            "setting": order.setting,
        }

    @property
    def name(self) -> str:
        """Return the stem of its files' names."""
        return trial_name(self.order.trial, self.attempt)


def trial_name(trial: int, attempt: int) -> str:
    """Return the file name stem of a trial's record and samples."""
    return f"{trial:06d}" if attempt == 1 else f"{trial:06d}.{attempt}"


def record_paths(root: Path) -> list[Path]:
    """Return where the records of a run are; raise ForeignFileError where their folder cannot be read."""
    try:
        return sorted(path for path in (root / "trials").iterdir() if path.suffix == ".json")
    except OSError as error:
        raise unread(root / "trials", error) from error


def encode(record: TrialRecord) -> bytes:
    """Return a record as stored."""
    # Ten times as fast as `asdict`.
    raw = adapter(TrialRecord).dump_python(record, exclude={"seal": True, "outcome": {"files"}}, warnings=False)
    return sealed({"run_format": RUN_FORMAT, **raw})


def read_record(path: Path) -> TrialRecord:
    """Read what `encode` returned; raise ForeignFileError for what is damaged, foreign or another trial's."""
    try:
        data = read_bytes(path, limits.TEXT)
        today = _OF_TODAY in data
        if today and check_seal(data, path):
            record = read_typed(TrialRecord, data)
        else:
            record = read_typed(TrialRecord, json.dumps(_upgraded(path, data)))
    except OSError as error:
        raise unread(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(path, str(error)) from error
    name = record.name
    if name != path.stem:
        raise ForeignFileError(f"{path} is the record of another trial: {name}", hint="restore its name")
    if foreign := (record.sums or {}).keys() - {place(name) for place in PLACES.values()}:
        raise ForeignFileError(f"{path} names a file that does not belong to its trial: {min(foreign)!r}")
    if record.sums is None and today:
        raise _foreign(path, "it lists no checksums of its files")
    if not all(map(_is_sane, record.cells)):
        raise _foreign(path, "a summary does not fit the samples of its cell")
    if record.parts and len(record.parts) != 1 + len(record.cells):
        raise ForeignFileError(f"{path} has {len(record.parts)} sums of the parts of {len(record.cells)} cells")
    return record


def _is_sane(cell: StoredCell) -> bool:
    """Return whether figures can be made of a cell's summary; `verify` holds it against the samples."""
    of = cell.summary
    return of is None or (
        1 <= of.n <= cell.iterations - cell.warmup
        and 0 <= of.min_ns <= of.median_ns <= of.max_ns
        and all(0.999 * of.min_ns <= mean <= 1.001 * of.max_ns for mean in (of.mean_ns, of.trimmed_mean_ns))
        and (of.modes is None or all(one.centre_ns > 0 for one in of.modes.modes))
    )


def _foreign(path: Path, why: str) -> ForeignFileError:
    return ForeignFileError(
        f"{path} is not the record of a trial: {why}",
        hint=f"{HINT_RESTORE}, or delete it and measure the trial again: {resume_command(path.parent.parent)}",
    )


def _upgraded(path: Path, data: bytes) -> dict[str, Any]:
    """Return a record of an older format as today's would be; raise ForeignFileError, or what foreign JSON makes."""
    raw: dict[str, Any] = parse_json(data)
    if _take_format(raw, data, path) == FORMAT_WITHOUT_SUMS:
        raw["sums"] = None
    elif raw["sums"] is None:
        raise ForeignFileError(f"{path} lists no checksums of its files", hint=HINT_RESTORE)
    for part in ("order", "outcome"):
        if raw[part].pop("order_format", None) != ORDER_FORMAT:
            raise ForeignFileError(f"{path} is not the record of a trial: its {part} is of another format")
    return {**raw, "outcome": upgraded_outcome(raw["outcome"]), SEAL: seal_of(data)}


def _take_format(raw: dict[str, Any], data: bytes, path: Path, newest: int = RUN_FORMAT) -> int:
    """Take format and seal out of a run's document and return the format; raise ForeignFileError for a wrong one."""
    version = raw.pop("run_format", None)
    if type(version) is not int or not FORMAT_WITHOUT_SUMS <= version <= newest:
        raise ForeignFileError(f"{path} is of a format that this nearmetal does not know (it knows 1 to {newest})")
    if check_seal(data, path) != (version > FORMAT_WITHOUT_SUMS):
        message = f"{path} has changed since it was written: its SHA-256 is not where it was"
        raise ForeignFileError(message, hint=HINT_RESTORE)
    raw.pop(SEAL, None)
    return version
