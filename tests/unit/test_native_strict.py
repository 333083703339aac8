"""Every C program builds without warnings with the compilers of this machine."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from nearmetal import native, process
from nearmetal.errors import UnavailableError
from nearmetal.hosts.lab.machine import CALLER
from nearmetal.paths.tap import RELAY
from nearmetal.predict import _sim
from nearmetal.workloads import build as workloads_build
from nearmetal.workloads.apps import build_apps
from nearmetal.workloads.build import build_engine, build_profiler
from nearmetal.workloads.fabric import build_fabric
from nearmetal.workloads.mpi.mpi import Mpi
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi


@pytest.mark.parametrize("recipe", [RELAY, CALLER], ids=lambda recipe: str(recipe.name))
def test_programs_without_mpi_build_without_warnings(
    recipe: native.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # its name in the cache tells sources, but no compiler
    assert native.build(dataclasses.replace(recipe, extra_flags=("-Werror",))).exists()


@pytest.mark.mpi
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("build", [build_apps, build_engine, build_fabric, build_profiler])
def test_programs_with_mpi_build_without_warnings(build: Callable[[Mpi], Path], flavour: str) -> None:
    """All tests use these builds, so there is no other for this one."""
    assert "-Werror" in workloads_build._FLAGS  # tests/conftest.py
    try:
        mpi = find_mpi(flavour)
    except UnavailableError as error:
        pytest.skip(error.render())
    assert build(mpi).exists()


@pytest.mark.parametrize("room", ["apps/common", "bench", "common", "fabric", "sim", "trace", "wire"])
def test_includes_have_no_cycles(room: str) -> None:
    needs: dict[str, set[str]] = {}
    for path in [path for path in native.source_dir(room).iterdir() if path.is_file()]:
        named = re.findall(r'^#include "(\w+)\.h', path.read_text(), re.MULTILINE)
        needs.setdefault(path.stem, set()).update({*named} - {path.stem})
    assert list(TopologicalSorter(needs).static_order())  # raises CycleError with the cycle


def test_the_simulator_prefetches() -> None:
    """A compiler may drop a function that only prefetches: with 131,072 ranks a message then takes twice as long."""
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump here")
    listing = process.run(["objdump", "-d", "--no-show-raw-insn", _sim.__file__], timeout_s=600, check=True).text
    assert len(re.findall(r"\tprefetch|\tprfm", listing)) >= 12
