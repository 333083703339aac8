"""The simulator without Python, under ASan and UBSan: random programs end, and so does what a fuzzer kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nearmetal import process

ROOT = Path(__file__).parents[2]
FLAGS = (
    *("-std=c++20", "-O0", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    sim, program = ROOT / "native" / "sim", tmp_path / "driver"
    sources = sorted(path for path in sim.glob("*.cpp") if path.name != "module.cpp")
    whole = tmp_path / "whole.cpp"  # one unit compiles in a third of the time
    drivers = (ROOT / "tests/native/fuzz_sim.cpp", ROOT / "tests/native/sim_driver.cpp")
    whole.write_text("".join(f'#include "{source}"\n' for source in (*sources, *drivers)))
    process.run([compiler, *FLAGS, f"-I{sim}", str(whole), "-o", str(program)], timeout_s=300, check=True)
    kept = sorted(map(str, (ROOT / "tests/data/fuzz/simulator").glob("*")))
    assert kept
    finished = process.run([str(program), "150", *kept], timeout_s=120, check=True)
    assert int(finished.text.split()[0]) > 100_000
    assert not finished.stderr
