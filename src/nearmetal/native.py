"""Native programs: where their sources are, and how they are built at first use.

Sources travel with the package. A program is compiled on the machine that runs it, with the compiler that its
MPI brings, and cached by everything that could change it. A machine without a compiler (the lab's guest) names
a directory of ready programs in `NEARMETAL_PREBUILT`. Standard library only.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.packages import fix_here

BUILD_TIMEOUT_S = 120.0
LATE_HINT = "the machine is busy, or its compiler waits for a file system or a licence: try again"
# Warnings are errors in the test suite, not on a user's machine: a newer compiler knows new ones.
_FLAGS = ("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Wmissing-prototypes")
_ROOTS = (Path(__file__).parent / "native", Path(__file__).parents[2] / "native")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one program.

    `name` is the program's; `room` the folder under native/ with its sources, `shares` those of which it uses sources
    and headers too: every .c file of them all, or `files` of the room alone.
    `compiler` the argv prefix, `compiler_id` what identifies the compiler and its libraries (an MPI's version).
    `toolchain` is what else decides the outcome, such as the version of the compiler behind an MPI's wrapper.
    """

    name: str
    room: str
    files: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    compiler: tuple[str, ...] = ("cc",)
    compiler_id: str = ""
    toolchain: str = ""
    extra_flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("-lm",)


def source_dir(room: str) -> Path:
    """Return native/`room` in the installed package or in the checkout."""
    for root in _ROOTS:
        if (root / room).is_dir():
            return root / room
    raise NearmetalError(
        f"the sources native/{room} are in neither {_ROOTS[0]} nor {_ROOTS[1]}", hint="the installation is damaged"
    )


def cache_dir() -> Path:
    """Return the directory for things that can be made again: ${XDG_CACHE_HOME:-~/.cache}/nearmetal."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "nearmetal"


def build(recipe: Recipe) -> Path:
    """Return the program, building it when it is not in the cache.

    Two builders at once do the work once; a build that fails leaves nothing. Raise UnavailableError without a
    compiler and NearmetalError, with the compiler's last words, when the build fails.
    """
    prebuilt = os.environ.get("NEARMETAL_PREBUILT")
    if prebuilt:
        return _prebuilt(Path(prebuilt), recipe)
    program = cache_dir() / "programs" / f"{recipe.name}-{fingerprint(recipe)}"
    if program.exists():
        return program
    with _opened(program.parent / f"{recipe.name}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _compile(recipe, program)
    return program


def _opened(lock: Path) -> IO[str]:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("w")
    except OSError as error:
        raise UnavailableError(
            f"cannot build programs in {lock.parent}: {error.strerror}", hint="XDG_CACHE_HOME can name another place"
        ) from error


def _prebuilt(folder: Path, recipe: Recipe) -> Path:
    program = folder / (f"{recipe.name}-{recipe.compiler_id}" if recipe.compiler_id else recipe.name)
    if not program.exists():
        raise UnavailableError(
            f"{program} is missing", hint="NEARMETAL_PREBUILT names a directory that must hold every program"
        )
    return program


def fingerprint(recipe: Recipe) -> str:
    """Hash all that decides what the compiler builds: recipe, sources, and every header next to them."""
    digest = hashlib.sha256(repr((recipe, _FLAGS)).encode())
    for name, path in all_files(recipe).items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_argv(recipe: Recipe, folder_of: Callable[[str], str], program: str) -> list[str]:
    """Return the compiler's command line; `folder_of` says where the sources of a room are for the compiler."""
    includes = [f"-I{folder_of(room)}" for room in (recipe.room, *recipe.shares)]
    sources = [f"{folder_of(room)}/{name}" for room, name in _sources(recipe)]
    return [*recipe.compiler, *_FLAGS, *recipe.extra_flags, *includes, "-o", program, *sources, *recipe.libraries]


def all_files(recipe: Recipe) -> dict[str, Path]:
    """Return every source and header that a recipe needs, by its place below native/ such as `bench/main.c`."""
    needed = [*_found(recipe, "*.h"), *_sources(recipe)]
    return {f"{room}/{name}": source_dir(room) / name for room, name in needed}


def _sources(recipe: Recipe) -> list[tuple[str, str]]:
    return [(recipe.room, name) for name in recipe.files] or _found(recipe, "*.c")


def _found(recipe: Recipe, pattern: str) -> list[tuple[str, str]]:
    """Return room and name of each such file in the rooms of a recipe."""
    rooms = (recipe.room, *recipe.shares)
    return [(room, path.name) for room in rooms for path in sorted(source_dir(room).glob(pattern))]


def _compile(recipe: Recipe, program: Path) -> None:
    with scratch.folder("unfinished", program.parent) as work:
        made = work / recipe.name
        argv = compile_argv(recipe, lambda room: str(source_dir(room)), str(made))
        finished = process.run(argv, timeout_s=BUILD_TIMEOUT_S)
        if not finished.ok:
            needed = f"a C11 compiler with headers is needed: `{fix_here('cc')}`"
            hint = LATE_HINT if finished.timed_out else needed
            raise NearmetalError(f"cannot build {recipe.name}: {finished.complaint()}", hint=hint)
        made.replace(program)
