"""Plant small errors into the engine, one at a time, and name those that no test sees: `make mutate`.

python -m tests.mutate_native [--every N] [FILE...]. An error is seen under the fake MPI (tests/native/fake_mpi) or by
the tests in C of what needs no MPI. One that does not compile is not counted.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal import process
from nearmetal.errors import NearmetalError
from nearmetal.native import source_dir
from tests.e2e.test_instrument import CHECKS
from tests.e2e.test_instrument_faults import FAULT_CHECKS, check_header, check_pieces
from tests.e2e.test_instrument_waits import WAIT_CHECKS
from tests.instrument import BENCH, SANITIZED, Instrument, changed, parts
from tests.unit import test_native_yield
from tests.unit.test_native_sanitized import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MOST_CPU_S = 2
"""What one start of an engine may use; an endless loop is an error that was seen."""
SOURCES = {path.name: path for path in (*BENCH, source_dir("common") / "yield.c")}
CHANGES = (
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " / "),
    (r" / ", " * "),
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r"\bMPI_MAX\b", "MPI_MIN"),
    (r"\|=", "="),
    (r"(?<![\w.])(\d+)\b(?=[;,)]| })", r"(\1 + 1)"),
    (r"^( +)[\w>-]+\([^=]*\);$", r"\1;"),
    (r"\breturn (?!;|0;|false;|NULL;)(.+?);( }|$)", r"return 0;\2"),
)
SEEN_BY = (AssertionError, NearmetalError, ValueError, LookupError, OSError)
"""A spoiled engine may leave anything."""
SURVIVE: dict[tuple[str, str], str] = {}
"""Errors that no test can see, by file and changed line, and why; they do not count."""


def is_code(line: str) -> bool:
    """Return whether a line is no comment, text, macro, or head of a function."""
    word = line.lstrip()
    if word.startswith(("/*", "*", "#", '"')) or line.endswith(" \\"):
        return False
    return not line.endswith(") {") or word.startswith(("if", "for", "while", "}"))


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, what it says then, whole text) of each error."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for pattern, replacement in CHANGES if is_code(line) else ():
            for found in re.finditer(pattern, line):
                changed = line[: found.start()] + found.expand(replacement) + line[found.end() :]
                said = f"without {line.strip()}" if changed.strip() == ";" else changed.strip()
                if changed != line:
                    yield number + 1, said, "\n".join([*lines[:number], changed, *lines[number + 1 :], ""])


def limited(engine: Instrument) -> Instrument:
    """Return the same engine with an end to its processor time."""
    script = engine.folder / "limited"
    script.write_text(f'#!/bin/sh\nulimit -t {MOST_CPU_S}\nexec {engine.program} "$@"\n')
    script.chmod(0o755)
    return Instrument(script, engine.folder)


def without_mpi(folder: Path, name: str) -> bool:
    """Return whether the tests in C of a room's parts hold, with the changed source in the folder."""
    for room, listed in PARTS.items():
        sources = [(source_dir(room) / one).resolve() for one in (*listed, "../common/arguments.c")]
        if room == "fabric" or name not in {path.name for path in sources}:
            continue
        taken = [str(folder / name if path.name == name else path) for path in sources]
        test, program = source_dir(room) / "tests" / f"{room}_test.c", folder / "parts"
        includes = [f"-I{source_dir(one)}" for one in (room, "common", "common/tests")]
        argv = ["cc", "-std=c11", "-w", "-D_GNU_SOURCE", *includes, *taken, str(test), "-o", str(program)]
        process.run(argv, timeout_s=600, check=True)
        (folder / "empty").mkdir(exist_ok=True)
        limit = f'ulimit -t {MOST_CPU_S}; exec "$@"'
        if not process.run(["sh", "-c", limit, "sh", str(program), str(folder / "empty")], timeout_s=600).ok:
            return False
    return True


def yields(folder: Path) -> bool:
    """Return whether a rank waits as it should, with the changed source in the folder."""
    program = str(folder / "yields")
    sources = (folder / "yield.c", Path(__file__).parent / "native/yields.c")
    argv = ["cc", "-std=c11", "-D_GNU_SOURCE", "-w", *map(str, sources), "-o", program]
    process.run(argv, timeout_s=600, check=True)
    for name, test in vars(test_native_yield).items():
        if name.startswith("test_"):
            try:
                test(program)
            except SEEN_BY:
                return False
    return True


@dataclass(frozen=True)
class Compiled:
    """What engines with one changed source share, as it is and with the sanitizers in it."""

    plain: list[Path]
    sanitized: list[Path]


def survives(folder: Path, name: str, text: str, compiled: Compiled) -> bool:
    """Return whether all tests hold with this text of one source; raise NearmetalError where it is no program."""
    (folder / name).write_text(text)
    if name == "yield.c":
        return yields(folder)
    program = limited(changed(folder, compiled.plain, name, text, "-w"))
    if not without_mpi(folder, name):
        return False
    if not all_hold(program, (*CHECKS, *WAIT_CHECKS, *reversed(FAULT_CHECKS))):
        return False
    watched = limited(changed(folder, compiled.sanitized, name, text, *SANITIZED))
    return all_hold(watched, (*CHECKS, *WAIT_CHECKS, check_header, check_pieces))


def all_hold(program: Instrument, checks: Iterable[Callable[[Instrument], None]]) -> bool:
    """Return whether an engine passes, with the error that it may have."""
    for check in checks:
        try:
            check(program)
        except SEEN_BY:
            return False
    return True


def outcome(name: str, text: str, compiled: Compiled) -> str:
    """Return `seen`, `unseen`, or `no program`."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return "unseen" if survives(Path(scratch), name, text, compiled) else "seen"
        except NearmetalError:
            return "no program"


def main() -> int:
    """Print errors that are not seen as they are found, and the share that is; end with 1 where it is below 90 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th error only")
    parser.add_argument("files", nargs="*", default=list(SOURCES))
    asked = parser.parse_args()
    counts = {"seen": 0, "unseen": 0, "no program": 0}
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / name for name in ("plain", "sanitized")]
        for one in folders:
            one.mkdir()
        compiled = Compiled(parts(folders[0]), parts(folders[1], *SANITIZED))
        for name in asked.files:
            whole = SOURCES[name].read_text()
            if outcome(name, whole, compiled) != "unseen":
                raise RuntimeError(f"the tests of {name} fail without any error")
            for line, error, text in list(mutants(whole))[:: asked.every]:
                if (name, error) in SURVIVE:
                    continue
                found = outcome(name, text, compiled)
                counts[found] += 1
                if found == "unseen":
                    sys.stdout.write(f"{name}:{line}: {error}\n")
                    sys.stdout.flush()
            tried = counts["seen"] + counts["unseen"]
            sys.stdout.write(f"{name}: {counts['seen']} of {tried} so far\n")
            sys.stdout.flush()
    return 0 if counts["seen"] >= 0.9 * tried else 1


if __name__ == "__main__":
    sys.exit(main())
