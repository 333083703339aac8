"""What the lab's cache holds, and what of it this nearmetal would not use: folders that `image` has made."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import ForeignFileError, UnavailableError
from nearmetal.hosts.lab.image import LOCK, code_key, fitting_roots, folders, image_key
from nearmetal.hosts.lab.manifest import Manifest

_KINDS = ("root", "image", "snapshot", "unfinished")
_SHOWN_FACTS = {"codename", "distribution", "emulator", "guest", "kernel", "machine", "variant"}


@dataclass(frozen=True, slots=True)
class Cached:
    """A folder of the cache, for people."""

    folder: Path
    about: str
    size_bytes: int
    serves: bool
    """Whether this nearmetal would use it; others are of other sources, packages or emulators."""


def cached(makes: Mapping[str, str], *, verify: bool) -> tuple[Cached, ...]:
    """Return what is in the cache, newest first; `verify` reads every file.

    A snapshot serves if its facts do not contradict `makes`, those of snapshots that are made here now.
    """
    serving = _serving(makes)
    return tuple(
        _described(folder, verify=verify, serves=serving(folder)) for kind in _KINDS for folder in folders(kind)
    )


def say_old(makes: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Say how much of the disk is held by what is no longer used, and how to free it."""
    if old := old_of(cached(makes, verify=False)):
        say(old)


def old_of(entries: tuple[Cached, ...]) -> str:
    """Return a sentence about the folders that are no longer used, empty if there are none."""
    sizes = [entry.size_bytes for entry in entries if not entry.serves]
    if not sizes:
        return ""
    holders = "1 folder" if len(sizes) == 1 else f"{len(sizes)} folders"
    verb, them = ("holds", "it") if len(sizes) == 1 else ("hold", "them")
    return (
        f"{holders} of other sources, packages or emulators {verb} {sum(sizes) / 2**30:.1f} GiB: "
        f"`nearmetal lab clean --old` removes {them}"
    )


def _described(folder: Path, *, verify: bool, serves: bool) -> Cached:
    size_bytes = sum(512 * path.stat().st_blocks for path in folder.iterdir() if path.is_file())  # memory has holes
    try:
        manifest = Manifest.load(folder)
    except ForeignFileError:
        return Cached(folder, "unknown, unfinished or damaged", size_bytes, serves=False)
    about = [f"{name} {value}" for name, value in sorted(manifest.facts.items()) if name in _SHOWN_FACTS]
    if verify:
        damaged = manifest.damaged(folder)
        about.append(f"damaged: {', '.join(damaged)}" if damaged else "whole")
    return Cached(folder, ", ".join(about), size_bytes, serves)


def _serving(makes: Mapping[str, str]) -> Callable[[Path], bool]:
    """Return whether a folder is the root, the image or a snapshot that this nearmetal starts from.

    Every folder is, where the image cannot be named because its programs cannot be compiled here.
    """
    for root in fitting_roots():
        with contextlib.suppress(ForeignFileError, KeyError):
            try:
                key = image_key(Manifest.load(root), code_key())
            except UnavailableError:
                return lambda _: True
            return lambda folder: folder == root or _starts_from(folder, key, makes)
    return lambda _: False


def _starts_from(folder: Path, key: str, makes: Mapping[str, str]) -> bool:
    kind, _, keys = folder.name.partition("-")
    if kind == "image":
        return keys == key
    if kind != "snapshot" or keys.partition("-")[0] != key:
        return False
    try:
        facts = Manifest.load(folder).facts
    except ForeignFileError:
        return False
    return all(facts.get(name, value) == value for name, value in makes.items())


def clean(makes: Mapping[str, str], *, everything: bool, old_only: bool) -> tuple[Path, ...]:
    """Remove images, snapshots and unfinished work; `everything` removes the root layers too.

    `old_only` removes what this nearmetal would not use (`makes` as for `cached`), root layers included. Returns what
    was removed.
    """
    keeps = _serving(makes) if old_only else lambda _: False
    kinds = _KINDS if everything or old_only else _KINDS[1:]
    removed = tuple(folder for kind in kinds for folder in folders(kind) if not keeps(folder))
    for folder in removed:
        shutil.rmtree(folder)
        folder.with_name(f"{LOCK}-{folder.name}").unlink(missing_ok=True)
    return removed
