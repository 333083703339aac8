"""A run or search as one file, and back: a ZIP of stored files in order of name, with the SHA-256 of each.

The first entry is a sealed list of all others; the bytes are the same for the same run, wherever it is archived. What a
foreign archive may hold is what a run holds and nothing else: every name is held against a pattern, so that there is no
way out of the folder, no link, and no other file.
"""

import contextlib
import hashlib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nearmetal import limits, scratch
from nearmetal.errors import BadInputError, ForeignFileError, StoreError, os_errors_as
from nearmetal.reading import parse_json, timed
from nearmetal.store.bundle import MALFORMED, NO_DATE
from nearmetal.store.disk import Disk, is_being_written
from nearmetal.store.listing import LIST as RECORDS
from nearmetal.store.record import PLACES, RUN_FORMAT
from nearmetal.store.rundir import HOSTS, RunDir
from nearmetal.store.searchdir import open_either
from nearmetal.store.sums import check_seal, file_sha256, resume_command, sealed
from nearmetal.store.verify import refuse_damaged

LIST = "nearmetal-archive.json"
ARCHIVE_FORMAT = 1
MAX_FILES = 1_000_000
_NAME = re.compile(
    r"(?:run|search)\.json|(?:study|hosts)\.toml|profiles-go-to|records\.sums"
    r"|trials/\d{6,9}(?:\.\d)?\.json|samples/\d{6,9}(?:\.\d)?\.parquet|(?:traces|mpi|fabric)/\d{6,9}(?:\.\d)?\.zip"
)
_PIECE_BYTES = 1_048_576


def archive(root: Path, file: Path) -> int:
    """Write a run into one new file, and return how many files of it that holds.

    Raise ForeignFileError when the run is not what was recorded, BadInputError when the file exists or the run is being
    written, StoreError when the disk refuses.
    """
    if file.exists():
        raise BadInputError(f"{file} exists", hint="choose another file name, or remove it")
    run = open_either(root)
    if is_being_written(root):
        raise _growing(root)
    refuse_damaged(run)
    names = _names(run)
    listed: dict[str, dict[str, Any]] = {
        name: {"bytes": (root / name).stat().st_size, "sha256": file_sha256(root / name)} for name in names
    }
    if _names(open_either(root)) != names:  # by another machine, whose lock this one does not see
        raise _growing(root)
    head = sealed({"archive_format": ARCHIVE_FORMAT, "run_format": RUN_FORMAT, "files": listed})

    def write(part: Path) -> None:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as made:
            made.writestr(zipfile.ZipInfo(LIST, NO_DATE), head)
            for name in names:
                entry = zipfile.ZipInfo(name, NO_DATE)
                entry.file_size = listed[name]["bytes"]
                with (root / name).open("rb") as source, made.open(entry, "w") as target:
                    _copy(source, target, name, listed[name])

    Disk().put(file, write)
    return len(names)


def _growing(root: Path) -> BadInputError:
    """Return the error for a run that gets trials: an archive would list some that it does not hold."""
    hint = f"wait until it ends, or interrupt it and continue it later: {resume_command(root)}"
    return BadInputError(f"{root} is being written", hint=hint)


def unarchive(file: Path, root: Path) -> int:
    """Make a run directory of an archive; it appears whole and verified, or not at all. Return how many files it has.

    Raise ForeignFileError for what is no archive, holds anything but a run, or is damaged; BadInputError when the
    directory exists.
    """
    if root.exists():
        raise BadInputError(f"{root} exists", hint="name a new directory")
    with os_errors_as(ForeignFileError, f"{file} cannot be read", hint="`nearmetal archive` writes archives"):
        file.open("rb").close()
    with _fresh(root) as fresh:
        try:
            with timed(zipfile.ZipFile)(file) as opened:
                listed = _listed(file, opened)
                for name, about in listed.items():
                    _unpack(opened, name, about, fresh)
        except (*MALFORMED, LookupError, TypeError, AttributeError) as error:
            message = f"{file} is not a complete archive of a run: {error}"
            raise ForeignFileError(message, hint="copy it again") from error
        except OSError as error:
            raise StoreError(f"cannot unpack {file} to {root}: {error.strerror or error}") from error
        for folder in ("trials", "fabric" if any(name.startswith("fabric/") for name in listed) else "samples"):
            (fresh / folder).mkdir(exist_ok=True)
        refuse_damaged(open_either(fresh))
        fresh.rename(root)
    return len(listed)


@contextlib.contextmanager
def _fresh(root: Path) -> Iterator[Path]:
    """Yield a folder next to the future run; raise StoreError where none can be made."""
    with contextlib.ExitStack() as stack:
        with os_errors_as(StoreError, f"cannot make {root}", hint="name another directory"):
            root.absolute().parent.mkdir(parents=True, exist_ok=True)
            fresh = stack.enter_context(scratch.folder(f".{root.name}", root.absolute().parent))
        yield fresh


def _names(run: RunDir) -> list[str]:
    """Return the places of all files of a run that are finished: no lock, and no report, which is drawn again."""
    names = [one for one in (run.MARKER, "study.toml", HOSTS, "profiles-go-to", RECORDS) if (run.root / one).exists()]
    for record in run.trials():
        kept = [place(record.name) for place in PLACES.values()] if record.sums is None else list(record.sums)
        names += [f"trials/{record.name}.json", *(one for one in kept if (run.root / one).exists())]
    return sorted(names)


@timed
def _listed(file: Path, opened: zipfile.ZipFile) -> dict[str, dict[str, Any]]:
    """Return the list of an archive, checked against what a run may hold and against the archive's own directory."""
    if len(opened.infolist()) > MAX_FILES or opened.getinfo(LIST).file_size > limits.TEXT.value():
        raise ForeignFileError(f"{file} has more files than any run", hint=limits.TEXT.hint)
    head = opened.read(LIST)
    raw = parse_json(head)
    if not check_seal(head, file) or raw.get("archive_format") != ARCHIVE_FORMAT:
        raise ForeignFileError(f"{file} is an archive of a format that this nearmetal does not know (it knows 1)")
    listed: dict[str, dict[str, Any]] = raw["files"]
    foreign = sorted(name for name in listed if not _NAME.fullmatch(name))
    if foreign:
        raise ForeignFileError(f"{file} holds {foreign[0]!r}, which no run does")
    if sorted(opened.namelist()) != sorted([LIST, *listed]):
        raise ForeignFileError(f"{file} contains other files than it lists")
    sizes = [about["bytes"] for about in listed.values()]
    if any(type(size) is not int or size < 0 for size in sizes):
        raise ForeignFileError(f"{file} lists a file whose size is not a number of bytes")
    if sum(sizes) > file.stat().st_size:
        raise ForeignFileError(f"{file} would unpack to more than its own size")
    return listed


@timed
def _unpack(opened: zipfile.ZipFile, name: str, about: dict[str, Any], folder: Path) -> None:
    if opened.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ForeignFileError(f"{name} is compressed, but files in an archive never are")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    Disk().make(path)
    with opened.open(name) as source, path.open("wb") as target:
        _copy(source, target, name, about)


def _copy(source: IO[bytes], target: IO[bytes], name: str, about: dict[str, Any]) -> None:
    """Copy a file of the listed size and digest, and not a byte more."""
    left, found = about["bytes"], hashlib.sha256()
    while piece := source.read(min(_PIECE_BYTES, left + 1)):
        left -= len(piece)
        if left < 0:
            break
        found.update(piece)
        target.write(piece)
    if left or found.hexdigest() != about["sha256"]:
        raise ForeignFileError(f"{name} is not the file that the archive lists: its size or SHA-256 differs")
