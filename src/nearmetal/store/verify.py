"""Is a run still what was recorded? Every byte that figures come from is read and held against its recorded digest."""

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearmetal.errors import ForeignFileError, NearmetalError, listed
from nearmetal.store.listing import LIST, gone, replaced
from nearmetal.store.record import PLACES, TrialRecord, read_record, record_paths
from nearmetal.store.rundir import HOSTS, RunDir
from nearmetal.store.samples import part_sums, read_values
from nearmetal.store.sums import HINT_READABLE, agrees, hint_damaged
from nearmetal.units import format_size


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found: how many files agree and how many bytes they have, and a line for each that does not.

    `gone` are sentences of records that the run lists and that are not there. `without_sums` are files of which nothing
    was recorded, in runs of format 1; `unfinished` those of no finished trial, which a run in progress or a crash
    leaves and which no figure comes from.
    """

    trials: int
    files: int
    size_bytes: int
    problems: tuple[str, ...]
    gone: tuple[str, ...]
    without_sums: tuple[str, ...]
    unfinished: tuple[str, ...]


def verify(run: RunDir) -> Verification:
    """Read a whole run and hold it against what was recorded; problems are returned, not raised."""
    good: list[Path] = [run.root / run.MARKER]
    bare: list[Path] = [] if run.sealed else [run.root / run.MARKER]
    problems: list[str] = []
    records: list[TrialRecord] = []
    for read, name in ((run.study_text, "study.toml"), (run.hosts_text, HOSTS)):
        try:
            if read() is not None:
                good.append(run.root / name)
        except ForeignFileError as error:
            problems.append(error.message)
    try:
        paths = record_paths(run.root)
    except ForeignFileError as error:
        return _without_records(good, bare, [*problems, error.message])
    for path in paths:
        try:
            record = read_record(path)
        except NearmetalError as error:
            problems.append(error.message)
            continue
        records.append(record)
        (bare if record.sums is None else good).append(path)
        held = [_hold(run.root / place, recorded, good, problems) for place, recorded in (record.sums or {}).items()]
        if all(held) and record.parts:
            samples = run.root / PLACES["samples"](record.name)
            problems += _wrong_parts(samples, record) or _wrong_summaries(samples, record)
    finished = {path.stem for path in record_paths(run.root)}
    kept = sorted(path for place in PLACES.values() for path in run.root.glob(place("*")))
    lost = _hold_list(run, {record.name: record for record in records}, finished, good, problems)
    unsummed = {record.name for record in records if record.sums is None}
    bare += [path for path in kept if path.stem in unsummed]
    return Verification(
        len(records),
        len(good),
        sum(path.stat().st_size for path in good),
        tuple(problems),
        tuple(lost),
        tuple(str(path) for path in bare),
        tuple(str(path) for path in kept if path.stem not in finished),
    )


def _without_records(good: list[Path], bare: list[Path], problems: list[str]) -> Verification:
    """Return what there is to say of a run whose records nobody can read: which file belongs to which is not known."""
    size_bytes = sum(path.stat().st_size for path in good)
    return Verification(0, len(good), size_bytes, tuple(problems), (), tuple(map(str, bare)), ())


def _hold_list(
    run: RunDir, records: dict[str, TrialRecord], finished: set[str], good: list[Path], problems: list[str]
) -> list[str]:
    """Hold the records against their list; return a sentence for each that is gone."""
    try:
        listed = run.listed()
    except ForeignFileError as error:
        problems.append(error.message)
        return []
    if listed is None:
        return []
    good.append(run.root / LIST)
    if len(added := sorted(finished - listed.keys())) > 1:  # a crash, or a run in progress, leaves one
        problems.append(f"{run.root / LIST} lacks {len(added)} records, such as {added[0]}")
    problems += replaced(run.root, listed, records)
    return gone(run.root, listed, records)


def _hold(path: Path, recorded: str, good: list[Path], problems: list[str]) -> bool:
    """Hold one file against its recorded digest; return whether it agrees."""
    try:
        if agrees(path, recorded):
            good.append(path)
            return True
        problems.append(f"{path} has changed since it was recorded: its SHA-256 differs")
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    return False


def _wrong_parts(path: Path, record: TrialRecord) -> list[str]:
    """Return a sentence for each recorded sum that is not that of its part of a file."""
    try:
        found = part_sums(path, record.cells)
    except ForeignFileError as error:
        return [error.message]
    names = ["its directory", *(f"{cell.operation} of {format_size(cell.message_bytes)}" for cell in record.cells)]
    return [
        f"{path}: the sum of {name} is not the one in trials/{record.name}.json"
        for name, recorded, seen in zip(names, record.parts, found, strict=True)
        if recorded != seen
    ]


def _wrong_summaries(path: Path, record: TrialRecord) -> list[str]:
    """Return a sentence for each summary in a record that is not that of its samples.

    Looked at is what every version of nearmetal works out in the same way.
    """
    problems = []
    for cell in record.cells:
        if (kept := cell.summary) is None:
            continue
        ns = read_values(path, cell)
        found: dict[str, float] = {"n": ns.size}
        if ns.size:
            found |= {"min_ns": ns.min(), "max_ns": ns.max(), "mean_ns": ns.mean(), "median_ns": np.median(ns)}
        problems += [
            f"trials/{record.name}.json says {name} = {getattr(kept, name):.12g} of {cell.operation} of "
            f"{format_size(cell.message_bytes)}, its samples say {value:.12g}"
            for name, value in found.items()
            if not math.isclose(getattr(kept, name), value, rel_tol=1e-9)
        ]
    return problems


def refuse_damaged(run: RunDir, *, but_for_gone: bool = False) -> None:
    """Raise ForeignFileError before anything is added to a run that is not what was recorded.

    With `but_for_gone` a record may be gone: deleting one means that its trial is to be measured again.
    """
    run.study_text()
    found = verify(run)
    problems = found.problems if but_for_gone else found.problems + found.gone
    if problems:
        count = "1 file is" if len(problems) == 1 else f"{len(problems)} files are"
        denied = all(one.endswith(os.strerror(errno.EACCES)) for one in problems)
        raise ForeignFileError(
            f"{count} not what was recorded:\n  " + "\n  ".join(listed(problems)),
            hint=HINT_READABLE if denied else hint_damaged(run.root),
        )
