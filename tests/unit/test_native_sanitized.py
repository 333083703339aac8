"""The simulator without Python and what the engines read, under ASan and UBSan: what a fuzzer kept, and more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nearmetal import process

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


def kept_for(reader: str) -> list[str]:
    return sorted(map(str, (ROOT / "tests/data/fuzz" / reader).glob("*")))


def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    sim, program = ROOT / "native" / "sim", tmp_path / "driver"
    sources = sorted(path for path in sim.glob("*.cpp") if path.name != "module.cpp")
    whole = tmp_path / "whole.cpp"  # one unit compiles in a third of the time
    drivers = (ROOT / "tests/native/fuzz_sim.cpp", ROOT / "tests/native/sim_driver.cpp")
    whole.write_text("".join(f'#include "{source}"\n' for source in (*sources, *drivers)))
    build = [compiler("g++"), "-std=c++20", *FLAGS, f"-I{sim}", str(whole), "-o", str(program)]
    process.run(build, timeout_s=600, check=True)
    kept = kept_for("simulator")
    assert kept
    finished = process.run([str(program), "150", *kept], timeout_s=600, check=True)
    assert int(finished.text.split()[0]) > 100_000
    assert not finished.stderr


@pytest.mark.parametrize(("engine", "sources"), [("bench", ["options.c"]), ("fabric", ["options.c", "rounds.c"])])
def test_what_the_engines_read_is_clean_under_sanitizers(tmp_path: Path, engine: str, sources: list[str]) -> None:
    folder, program = ROOT / "native" / engine, tmp_path / "replay"
    files = [*(str(folder / name) for name in sources), str(ROOT / "tests/native/fuzz_arguments.c")]
    flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-DREPLAY", *FLAGS, f"-I{folder}"]
    process.run([compiler("gcc"), *flags, *files, "-o", str(program)], timeout_s=600, check=True)
    finished = process.run([str(program), *kept_for(f"{engine}-arguments")], timeout_s=600, check=True)
    assert not finished.stderr
