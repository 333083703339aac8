"""The simulator without Python and the engines' parsers under ASan and UBSan: fuzzing corpora, and more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nearmetal import process
from tests.compiled import compile_to

ROOT = Path(__file__).parents[2]
FLAGS = (
    *("-O0", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


def corpus_of(reader: str) -> list[str]:
    return sorted(map(str, (ROOT / "tests/data/fuzz" / reader).glob("*")))


def simulator(work: Path) -> Path:
    """Return the simulator with its drivers."""
    sim, drivers = ROOT / "native" / "sim", [ROOT / "tests/native/fuzz_sim.cpp", ROOT / "tests/native/sim_driver.cpp"]
    sources = [*sorted(path for path in sim.glob("*.cpp") if path.name != "module.cpp"), *drivers]
    whole = work / "whole.cpp"  # one unit compiles in a third of the time
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    compile_to(work / "sanitized-sim", [compiler("g++"), "-std=c++20", *FLAGS, f"-I{sim}", str(whole)])
    return work / "sanitized-sim"


def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    program, kept = simulator(tmp_path), corpus_of("simulator")
    assert kept
    finished = process.run([str(program), "60", *kept], timeout_s=600, check=True)
    assert int(finished.text.split()[0]) > 50_000
    assert not finished.stderr


COMMON = ROOT / "native" / "common"
PARTS = {
    "common": ("../common/clock.c", "../common/payload.c", "../common/sample_file.c", "../common/text.c"),
    "bench": ("options.c",),
    "fabric": ("options.c", "rounds.c"),
}
"""What of each room needs no MPI, beside the command line that all share."""


def build(program: Path, room: str, *others: str) -> None:
    """Build a program from a room's parts with the sanitizers; words of `others` that are no flags are sources."""
    folder = ROOT / "native" / room
    sources = [*(folder / name for name in PARTS[room]), COMMON / "arguments.c", *others]
    includes = [f"-I{folder}", f"-I{COMMON}", f"-I{COMMON / 'tests'}"]
    compile_to(program, [compiler("gcc"), "-std=c11", "-D_GNU_SOURCE", *FLAGS, *includes, *map(str, sources)])


@pytest.mark.parametrize("room", PARTS)
def test_the_parts_without_mpi_pass_their_tests(tmp_path: Path, room: str) -> None:
    program, test = tmp_path / "it", ROOT / "native" / room / "tests" / f"{room}_test.c"
    build(program, room, str(test), "-Wmissing-prototypes")
    finished = process.run([str(program), str(tmp_path)], timeout_s=600, check=True)
    assert not finished.stderr


@pytest.mark.parametrize("engine", ["bench", "fabric"])
def test_the_engines_parsers_are_clean_under_sanitizers(tmp_path: Path, engine: str) -> None:
    program, fuzzer = tmp_path / "replay", ROOT / "tests/native/fuzz_arguments.c"
    build(program, engine, str(fuzzer), "-DREPLAY")
    finished = process.run([str(program), *corpus_of(f"{engine}-arguments")], timeout_s=600, check=True)
    assert not finished.stderr
