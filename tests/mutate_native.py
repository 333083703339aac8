"""Plant small errors into the engine, one at a time, and name those that the fake MPI does not see: `make mutate`.

python -m tests.mutate_native [--every N] [FILE...]. A mutant that does not compile is not counted. Some survivors
change nothing (a limit that is never met), some only what tests with a real MPI see (payloads, memory): read them.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import NearmetalError
from tests.e2e.test_instrument import BENCH, CHECKS, Instrument, changed, parts

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_CPU_S = 5
"""What one start of an engine may use; an endless loop is an error that was seen."""
FILES = ("measure.c", "sync.c", "ops_p2p.c", "ops_coll.c", "ops_halo.c")
CHANGES = (
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" == ", " != "),
    (r"\bMPI_MAX\b", "MPI_MIN"),
    (r"\|=", "="),
    (r"\b([2-9]|[1-9]\d+)\b(?=[;,)])", r"(\1 + 1)"),
    (r"^( +)(MPI_\w+|sync_\w+|memset|op->\w+|cell_clear|timed_loop|check_rounds)\(.*\);$", r"\1;"),
    (r"^( +)return (?!;)(.+);$", r"\1return 0;"),
)


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, changed line, whole text) of each error; comments and declarations are left alone."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("/*", "*", "#", "static ", "enum", "const struct")):
            continue
        for pattern, replacement in CHANGES:
            for found in re.finditer(pattern, line):
                changed = line[: found.start()] + found.expand(replacement) + line[found.end() :]
                if changed != line:
                    yield number + 1, changed.strip(), "\n".join([*lines[:number], changed, *lines[number + 1 :], ""])


def limited(engine: Instrument) -> Instrument:
    """Return the same engine with an end to its processor time."""
    script = engine.folder / "limited"
    script.write_text(f'#!/bin/sh\nulimit -t {MOST_CPU_S}\nexec {engine.program} "$@"\n')
    script.chmod(0o755)
    return Instrument(script, engine.folder)


def outcome(name: str, text: str, compiled: list[Path]) -> str:
    """Return `killed`, `survived`, or `no program`."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            program = limited(changed(Path(scratch), compiled, name, text, "-w"))
        except NearmetalError:
            return "no program"
        for check in CHECKS:
            try:
                check(program)
            except (AssertionError, NearmetalError):
                return "killed"
    return "survived"


def main() -> int:
    """Print survivors as they are found, and the share that was killed; end with 1 where it is below 90 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th error only")
    parser.add_argument("files", nargs="*", default=FILES)
    asked = parser.parse_args()
    counts = {"killed": 0, "survived": 0, "no program": 0}
    with tempfile.TemporaryDirectory() as folder:
        compiled = parts(Path(folder))
        for name in asked.files:
            made = list(mutants(next(path for path in BENCH if path.name == name).read_text()))
            for line, error, text in made[:: asked.every]:
                found = outcome(name, text, compiled)
                counts[found] += 1
                if found == "survived":
                    sys.stdout.write(f"{name}:{line}: {error}\n")
                    sys.stdout.flush()
    tried = counts["killed"] + counts["survived"]
    sys.stdout.write(f"{counts['killed']} of {tried} killed; {counts['no program']} did not compile\n")
    return 0 if counts["killed"] >= 0.9 * tried else 1


if __name__ == "__main__":
    sys.exit(main())
