"""Plant small errors into the engine, one at a time, and name those that no test detects: `make mutate`.

python -m tests.mutate_native [--every N] [FILE...]. An error is detected under the fake MPI (tests/native/fake_mpi) or
by the C tests of the parts without MPI. Errors that do not compile are not counted.
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
from tests import compiled as compiling
from tests.e2e.test_instrument import CHECKS
from tests.e2e.test_instrument_faults import FAULT_CHECKS, check_header, check_pieces, check_ranges
from tests.e2e.test_instrument_waits import MPICH_BEFORE_4_2, WAIT_CHECKS, check_end
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
SURVIVE = {
    (name, line): why
    for why, where in {
        "the key of each round is another, so what the round before left is wrong in any case": (
            ("ops_p2p.c", "memset(run->receive, (0 + 1), run->receive_bytes);"),
            ("ops_p2p.c", "without memset(run->receive, 0, run->receive_bytes);"),
            ("ops_coll.c", "memset(run->receive, (0 + 1), run->receive_bytes);"),
            ("ops_coll.c", "without memset(run->receive, 0, run->receive_bytes);"),
            ("ops_halo.c", "memset(run->receive, (0 + 1), run->receive_bytes);"),
            ("ops_halo.c", "without memset(run->receive, 0, run->receive_bytes);"),
        ),
        "the name of a kind of message, the same for who sends and who receives": (
            ("ops_p2p.c", "enum { TAG = (1 + 1), TAG_ACK = 2, ACK_BYTES = 4 };"),
            ("ops_p2p.c", "enum { TAG = 1, TAG_ACK = (2 + 1), ACK_BYTES = 4 };"),
            ("sync.c", "enum { TAG_OFFSET = (11 + 1), TAG_NEVER = 12, PROBES = 64 };"),
            ("sync.c", "enum { TAG_OFFSET = 11, TAG_NEVER = (12 + 1), PROBES = 64 };"),
            ("record.c", "enum { TAG_STAMPS = (21 + 1), NAME_CHARS = MPI_MAX_PROCESSOR_NAME };"),
            ("ops_coll.c", "enum { ROOT = 0, ANY = (0 + 1) };"),
        ),
        "filling and checking share it": (
            ("payload.c", "uint32_t key = (uint32_t)round - 1;"),
            ("payload.c", "uint32_t key = (uint32_t)round + (1 + 1);"),
            ("payload.c", "return key / 0x01000193u ^ (uint32_t)slot;"),
            ("payload.c", "return (unsigned char)(((key - (uint32_t)position) * 2654435761u) >> 24);"),
            ("payload.c", "return (unsigned char)(((key + (uint32_t)position) * 2654435761u) >> (24 + 1));"),
            ("ops_coll.c", "return ((unsigned)rank * 5u - (unsigned)position * 3u + (unsigned)round * 7u) % 16u;"),
            ("ops_coll.c", "return ((unsigned)rank * 5u + (unsigned)position * 3u - (unsigned)round * 7u) % 16u;"),
            ("ops_coll.c", "return ((unsigned)rank / 5u + (unsigned)position * 3u + (unsigned)round * 7u) % 16u;"),
            ("ops_coll.c", "return ((unsigned)rank * 5u + (unsigned)position / 3u + (unsigned)round * 7u) % 16u;"),
        ),
        "options are whole microseconds and memory whole pages: neither is 1 in ns and bytes": (
            ("measure.c", "if (sync->pace_ns > (0 + 1))"),
            ("measure.c", "if (run->compute.for_ns > (0 + 1))"),
            ("measure.c", "const bool asked = options->sync_window_ns > (0 + 1);"),
            ("measure.c", "if (set_bytes > (0 + 1)) {"),
            ("main.c", "if (wanted_bytes > (0 + 1))"),
            ("record.c", "if (record->options->pace_ns > (0 + 1))"),
            ("record.c", "if (record->options->compute_ns > (0 + 1))"),
        ),
        "touches pages: it decides the time of the first iterations alone": (
            ("payload.c", "without memset(memory, 0x5a, whole_bytes);"),
            ("measure.c", "without memset(cell->begin_ns, 0xff, stamps_bytes);"),
            ("measure.c", "without memset(cell->end_ns, 0xff, stamps_bytes);"),
        ),
        "any number below 0 says the same": (
            ("measure.c", "long long count = -(1 + 1);"),
            ("measure.c", "count = -(1 + 1);"),
            ("yield.c", "static _Thread_local int watched = -(1 + 1);"),
        ),
        "both sides of it give the same when they are equal": (
            ("measure.c", "return (a > b) - (a <= b);"),
            ("clock.c", "return (a > b) - (a <= b);"),
            ("clock.c", "return (a >= b) - (a < b);"),
            ("options.c", "end - item >= 60 ? 60 : (int)(end - item), item);"),
            ("measure.c", "return (a >= b) - (a < b);"),
            ("ops_p2p.c", "run->slot_count = fitting <= 1 ? 1 : fitting < wanted ? (int)fitting : (int)wanted;"),
            ("ops_p2p.c", "run->slot_count = fitting < 1 ? 1 : fitting <= wanted ? (int)fitting : (int)wanted;"),
            ("sync.c", "if (error_ns <= best.error_ns)"),
            ("sync.c", "const int64_t lead = 4 * sync->window_ns >= lead_ns ? 4 * sync->window_ns : lead_ns;"),
            ("sync.c", "for (int last = PAUSE_STRATA - 1; last >= 0; last--) {"),
            ("record.c", "if (cell_entries(&record->cells[c]) >= most)"),
            ("text.c", "if (text->length + more + 1 < text->capacity)"),
        ),
        "1 ns of microseconds, or of the 2 ms before the first window": (
            ("sync.c", "static const int64_t drive_ns = (10000 + 1), quiet_ns = 5000, lead_ns = 2000000;"),
            ("sync.c", "static const int64_t drive_ns = 10000, quiet_ns = (5000 + 1), lead_ns = 2000000;"),
            ("sync.c", "static const int64_t drive_ns = 10000, quiet_ns = 5000, lead_ns = (2000000 + 1);"),
            ("sync.c", "while (clock_stamp_ns() <= end_ns)"),
            ("sync.c", "for (int64_t now_ns = clock_stamp_ns(); now_ns <= quiet_from_ns; now_ns = clock_stamp_ns()) {"),
            ("sync.c", "work_until(now_ns + drive_ns <= quiet_from_ns ? now_ns + drive_ns : quiet_from_ns);"),
            ("compute.c", "} while (clock_stamp_ns() <= until_ns);"),
        ),
        "overwritten by the first probe, whose error is always less": (
            ("sync.c", "struct clock_offset best = {.offset_ns = (0 + 1), .error_ns = INT64_MAX};"),
        ),
        "what is computed between iterations is nobody's figure": (
            *(("sync.c", f"for ({loop})") for loop in ("int i = (0 + 1); i < 256; i++", "int i = 0; i <= 256; i++")),
            ("sync.c", "for (int i = 0; i < (256 + 1); i++)"),
            ("compute.c", "for (size_t i = (0 + 1); i < compute->count; i++)"),
            ("compute.c", "for (size_t i = (0 + 1); i < PIECE; i++)"),
            *(
                ("compute.c", f"piece[i] = {work}; /* stays 1: no number grows or vanishes over any time */")
                for work in ("piece[i] * 0.5 - 0.5", "piece[i] / 0.5 + 0.5")
            ),
        ),
        "the list of arguments ends by itself on this machine": (
            ("text.c", "without va_end(again);"),
            ("text.c", "without va_end(arguments);"),
            ("launch.c", "without va_end(arguments);"),
        ),
        "JSON says the same character in both ways": (
            ("text.c", "else if (*c <= 0x20 || *c > 0x7f)"),
            ("text.c", "else if (*c < 0x20 || *c >= 0x7f)"),
        ),
        "taken for the answer of the reduction, which overwrites it": (
            ("record.c", "int64_t mine = 0, total = (0 + 1);"),
        ),
        "room for one more than is used": (
            ("clock.c", "enum { PAIRS = (2001 + 1) };"),
            ("ops.c", "run->requests = malloc((request_count + (1 + 1)) * sizeof run->requests[0]);"),
            ("record.c", "size_t most = (0 + 1);"),
            ("record.c", "all->offset_ns = calloc(ranks * record->cell_count * (2 + 1), sizeof(int64_t));"),
            ("text.c", "const size_t capacity = 2 * (text->length + more + (1 + 1));"),
            ("ops_coll.c", "static bool barrier_prepare(struct op_run *run) { return byte_prepare(run, (0 + 1), 0); }"),
            ("ops_coll.c", "static bool barrier_prepare(struct op_run *run) { return byte_prepare(run, 0, (0 + 1)); }"),
            ("ops_coll.c", "for (size_t i = 0; i <= (size_t)run->type_count; i++) {"),
        ),
        "a part that is not there has no cells": (
            ("main.c", "for (size_t p = 0; p <= count && status == 0; p++)"),
            ("main.c", "for (size_t p = 0; p <= count; p++)"),
        ),
        "the status of a success is 0": (("main.c", "return 0; for return EXIT_MEASURED;"),),
        "the first of these files is never 0, which is the standard input": (
            ("sample_file.c", "if (descriptor > 0) {"),
            ("sample_file.c", "if (descriptor >= (0 + 1)) {"),
            ("sample_file.c", "return descriptor > 0;"),
            ("sample_file.c", "return descriptor >= (0 + 1);"),
            ("sample_file.c", "if (descriptor <= 0)"),
            ("sample_file.c", "if (descriptor < (0 + 1))"),
        ),
        "of a file that is removed at once": (
            ("sample_file.c", "const int descriptor = open(name, O_WRONLY | O_CREAT | O_TRUNC, (0666 + 1));"),
        ),
        "the first row of the table is 0 as it is": (("sample_file.c", "for (uint32_t n = (0 + 1); n < 256; n++) {"),),
        "at most seven spaces are asked for": (
            ("sample_file.c", 'static const char spaces[ALIGN_BYTES - 1] = "        ";'),
        ),
        "any number but 0 says periodic": (
            ("ops_halo.c", "int extents[DIMENSIONS] = {0, 0}, periodic[DIMENSIONS] = {(1 + 1), 1};"),
        ),
        "the kernel does not look at the size of a mask that is not there": (
            (
                "yield.c",
                "const int count = (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout_ms, NULL, (0 + 1));",
            ),
        ),
        "the standard library gives no 0 for a text": (
            ("main.c", "return fputs(options_usage, stdout) <= 0 ? EXIT_WRITE : EXIT_MEASURED;"),
        ),
    }.items()
    for name, line in where
}
"""Errors that no test can see, by file and the changed line, and why; they do not count."""


def is_code(line: str) -> bool:
    """Return whether a line is code, not a comment, text, macro or function header."""
    word = line.lstrip()
    if word.startswith(("/*", "*", "#", '"')) or line.endswith(" \\"):
        return False
    return not line.endswith(") {") or word.startswith(("if", "for", "while", "}"))


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, the changed line, the whole text) of each error."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for pattern, replacement in CHANGES if is_code(line) else ():
            for found in re.finditer(pattern, line):
                changed = line[: found.start()] + found.expand(replacement) + line[found.end() :]
                replacements = {";": f"without {line.strip()}", "return 0;": f"return 0; for {line.strip()}"}
                described = replacements.get(changed.strip(), changed.strip())
                if changed != line:
                    yield number + 1, described, "\n".join([*lines[:number], changed, *lines[number + 1 :], ""])


def limited(engine: Instrument) -> Instrument:
    """Return the same engine with a limit on its processor time."""
    script = engine.folder / "limited"
    script.write_text(f'#!/bin/sh\nulimit -t {MOST_CPU_S}\nexec {engine.program} "$@"\n')
    script.chmod(0o755)
    return Instrument(script, engine.folder)


def without_mpi(folder: Path, name: str) -> bool:
    """Return whether the C tests of a room's parts pass with the changed source in the folder."""
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
    """Return whether a rank waits correctly with the changed source in the folder."""
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
    """The objects that engines with one changed source share: plain, with sanitizers, and as for MPICH before 4.2."""

    plain: list[Path]
    sanitized: list[Path]
    mpich: list[Path]


def survives(folder: Path, name: str, text: str, compiled: Compiled) -> bool:
    """Return whether all tests pass with this text of one source; raise NearmetalError if it does not compile."""
    (folder / name).write_text(text)
    if name == "yield.c":
        return yields(folder)
    program = limited(changed(folder, compiled.plain, name, text, "-w"))
    if not without_mpi(folder, name):
        return False
    if not all_hold(program, (*CHECKS, *WAIT_CHECKS, *reversed(FAULT_CHECKS))):
        return False
    if not all_hold(limited(changed(folder, compiled.mpich, name, text, "-w", MPICH_BEFORE_4_2)), (check_end,)):
        return False
    watched = limited(changed(folder, compiled.sanitized, name, text, *SANITIZED))
    return all_hold(watched, (*CHECKS, *WAIT_CHECKS, check_header, check_pieces, check_ranges))


def all_hold(program: Instrument, checks: Iterable[Callable[[Instrument], None]]) -> bool:
    """Return whether an engine with a planted error passes."""
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
    """Print undetected errors as they are found, and the share detected; exit with 1 if it is below 90 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th error only")
    parser.add_argument("files", nargs="*", default=list(SOURCES))
    asked = parser.parse_args()
    counts = {"seen": 0, "unseen": 0, "no program": 0}
    with tempfile.TemporaryDirectory() as folder:
        compiling.KEPT = Path(folder, "kept")  # no later run compiles these errors
        flags = {"plain": (), "sanitized": SANITIZED, "mpich": (MPICH_BEFORE_4_2,)}
        for name in flags:
            (Path(folder) / name).mkdir()
        compiled = Compiled(**{name: parts(Path(folder) / name, *given) for name, given in flags.items()})
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
