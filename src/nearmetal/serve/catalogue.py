"""The runs of a directory as an explicit list: what is not on it cannot be asked for.

A directory may have been unpacked from anywhere, so nothing in it is believed: links and special files make a run
foreign (a link could name any file of this account, a pipe could block a reader for ever), and so do files of
absurd size.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, command_line, os_errors_as
from nearmetal.predict.trace_file import FIRST_RANK
from nearmetal.predict.trace_file import SUFFIX as TRACE_SUFFIX
from nearmetal.reading import read_text, shown_name
from nearmetal.report.prediction_json import PLACEMENT_SUFFIX, PREDICTION_SUFFIX
from nearmetal.store.disk import is_being_written
from nearmetal.store.listing import LIST
from nearmetal.store.rundir import HOSTS, RunDir, RunInfo, is_of_fabric
from nearmetal.store.searchdir import SearchDir
from nearmetal.study.spec import parse_toml

MAX_RUNS = 10_000
MAX_FILES = 200_000
"""A run with more files than this is not read: a study has thousands of trials at most."""
_MAX_TEXT_BYTES = 16 << 20
"""Records and study files are kilobytes; samples and traces may be of any size."""
_FOLDERS = {"trials": ".json", "samples": ".parquet", "traces": ".zip", "mpi": ".zip", "fabric": ".zip"}
MAX_TRACE_BYTES = 256 << 20
"""Of the files of all ranks of a traced program; larger ones are looked at in a terminal."""


class SavedResultKind(StrEnum):
    """Kinds of files next to runs: the first word of the path of their pages."""

    SEARCH = "searches"
    TRACE = "traces"
    PREDICTION = "predictions"
    PLACEMENT = "placements"


_DIRECTORIES = {SearchDir.MARKER: SavedResultKind.SEARCH, FIRST_RANK: SavedResultKind.TRACE}
_SUFFIXES = {PREDICTION_SUFFIX: SavedResultKind.PREDICTION, PLACEMENT_SUFFIX: SavedResultKind.PLACEMENT}


@dataclass(frozen=True, slots=True)
class SavedResult:
    """A search, a trace, a prediction or a placement next to runs; `changed_ns` is Unix time."""

    kind: SavedResultKind
    name: str
    place: Path
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One directory that holds a run, or claims to.

    `info` is None where `problem` says why it cannot be read. `trials` counts records, `changed_ns` is when the last
    one was added (Unix time), `running` says that a nearmetal of this machine is writing it, `of_fabric` that it is a
    whole fabric's. `paths` are the names of its study's paths.
    """

    name: str
    root: Path
    info: RunInfo | None
    problem: str = ""
    trials: int = 0
    changed_ns: int = 0
    running: bool = False
    of_fabric: bool = False
    paths: tuple[str, ...] = ()


class Catalogue:
    """The runs directly below `root`, or `root` itself when it is a run."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise BadInputError(
                f"{root} is not a directory",
                hint="name the directory that holds your runs; `nearmetal run` makes them in runs/",
            )
        self.root = root.resolve()

    def entries(self) -> tuple[Entry, ...]:
        """Return the runs by name, at most `MAX_RUNS`; raise ForeignFileError when the directory cannot be read."""
        return tuple(_entry(name, root) for name, root in sorted(self._places().items())[:MAX_RUNS])

    def beside(self) -> tuple[SavedResult, ...]:
        """Return what else the directory holds, newest first, at most `MAX_RUNS`; raises as `entries` does."""
        if (self.root / RunDir.MARKER).exists():
            return ()
        with os_errors_as(ForeignFileError, f"{self.root} cannot be read"), os.scandir(self.root) as found:
            known = [_beside(one, kind) for one in found if (kind := _kind(one))]
        return tuple(sorted(known, key=lambda one: (-one.changed_ns, one.name))[:MAX_RUNS])

    def _places(self) -> dict[str, Path]:
        if (self.root / "run.json").exists():
            return {shown_name(self.root.name): self.root}
        with os_errors_as(ForeignFileError, f"{self.root} cannot be read"), os.scandir(self.root) as found:
            return {
                shown_name(one.name): Path(one.path)
                for one in found
                if one.is_dir(follow_symlinks=False) and _claims(one.path)
            }


def _claims(path: str) -> bool:
    return os.path.lexists(f"{path}/run.json")


def _kind(one: os.DirEntry[str]) -> SavedResultKind | None:
    """Return what a thing in the directory is by its name and by what it holds, None for runs and all else."""
    if one.is_file(follow_symlinks=False):
        return next((kind for suffix, kind in _SUFFIXES.items() if one.name.endswith(suffix)), None)
    if not one.is_dir(follow_symlinks=False) or _claims(one.path):
        return None
    return next((kind for name, kind in _DIRECTORIES.items() if os.path.lexists(f"{one.path}/{name}")), None)


def _beside(one: os.DirEntry[str], kind: SavedResultKind) -> SavedResult:
    changed_ns = one.stat(follow_symlinks=False).st_mtime_ns
    if kind is SavedResultKind.SEARCH:
        with contextlib.suppress(OSError):
            changed_ns = os.lstat(f"{one.path}/trials").st_mtime_ns
    suffix = next((suffix for suffix, of in _SUFFIXES.items() if of is kind), "")
    return SavedResult(kind, shown_name(one.name.removesuffix(suffix)), Path(one.path), changed_ns)


def state_beside(one: SavedResult) -> str:
    """Return a digest as `state` does, of a file next to runs; raise ForeignFileError as that does."""
    if one.kind is SavedResultKind.SEARCH:
        return state(one.place, SearchDir.MARKER)
    paths = sorted(_files(one.place, TRACE_SUFFIX)) if one.kind is SavedResultKind.TRACE else [one.place]
    if len(paths) > MAX_FILES:
        raise ForeignFileError(f"{one.place} holds more than {MAX_FILES} files")
    checked = [(path, _check_file(path, text=one.kind is not SavedResultKind.TRACE)) for path in paths]
    if sum(size for _, (size, _, _) in checked) > MAX_TRACE_BYTES:
        message = f"{one.place} has more than {MAX_TRACE_BYTES} bytes"
        raise ForeignFileError(message, hint=command_line("trace", "show", one.place))
    return _digest([_line(path, *known) for path, known in checked])


def _entry(name: str, root: Path) -> Entry:
    try:
        _check_file(root / "run.json")
        info = RunDir.open(root).info
        folder = root / "trials"
        with os.scandir(folder) as found:
            trials = sum(one.name.endswith(".json") for one in found)
        changed_ns = folder.stat().st_mtime_ns
        known = _check_file(root / "study.toml")
        paths = _paths(root / "study.toml", known)
        return Entry(name, root, info, "", trials, changed_ns, is_being_written(root), is_of_fabric(root), paths)
    except NearmetalError as error:
        return Entry(name, root, None, error.message)
    except OSError as error:
        return Entry(name, root, None, f"{root} cannot be read: {error.strerror}")


@lru_cache(maxsize=MAX_RUNS)
def _paths(study: Path, _: tuple[int, int, int]) -> tuple[str, ...]:
    """Return the names of a study's paths; a file whose size, time and inode are the same is not read again."""
    try:
        raw = parse_toml(read_text(study)).get("path", [])
    except ValueError as error:
        raise ForeignFileError(f"{study} is damaged: {error}") from error
    tables = raw if isinstance(raw, list) else []
    return tuple(str(one["name"]) for one in tables if isinstance(one, dict) and "name" in one)


def state(root: Path, marker: str = RunDir.MARKER) -> str:
    """Return a digest that changes whenever a run's files do: names, sizes, times of change and inodes, no contents.

    Raise ForeignFileError for a run that holds anything but plain files where files belong.
    """
    kept = [root / marker, root / "study.toml", *root.glob(HOSTS), *root.glob(LIST)]
    lines = [_line(path, *_check_file(path)) for path in kept]
    for folder, suffix in _FOLDERS.items():
        for path in _files(root / folder, suffix):
            lines.append(_line(path, *_check_file(path, text=suffix == ".json")))
            if len(lines) > MAX_FILES:
                raise ForeignFileError(f"{root} holds more than {MAX_FILES} files")
    return _digest(lines)


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    try:
        if folder.is_symlink():
            raise ForeignFileError(f"{folder} is a link, which no run has")
        with os.scandir(folder) as found:
            yield from (Path(one.path) for one in found if one.name.endswith(suffix))
    except FileNotFoundError:
        return  # a run without a traced trial has no traces
    except OSError as error:
        raise ForeignFileError(f"{folder} cannot be read: {error.strerror}") from error


def _line(path: Path, size: int, changed_ns: int, inode: int) -> str:
    return f"{path.parent.name}/{path.name} {size} {changed_ns} {inode}"


def _check_file(path: Path, *, text: bool = True) -> tuple[int, int, int]:
    """Return size, time of change and inode of a plain file.

    Not when its contents were written: a copy from a backup, as from `cp -p`, and new permissions leave that as it was.
    """
    with os_errors_as(ForeignFileError, f"{path} cannot be read"):
        found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ForeignFileError(f"{path} is not a plain file")
    if text and found.st_size > _MAX_TEXT_BYTES:
        raise ForeignFileError(f"{path} has {found.st_size} bytes, at most {_MAX_TEXT_BYTES} are read")
    return found.st_size, found.st_ctime_ns, found.st_ino
