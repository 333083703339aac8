"""Programs are built once, by the first to use them; a failed build reports the reason and leaves nothing behind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from nearmetal import native, process
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.workloads.build import build_program
from nearmetal.workloads.mpi.mpi import Mpi

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a separate checkout with one program, and a cache beside it."""
    room = tmp_path / "native" / "toy"
    room.mkdir(parents=True)
    (room / "toy.h").write_text("#define ANSWER 42\n")
    (room / "toy.c").write_text('#include "toy.h"\nint main(void) { return ANSWER; }\n')
    monkeypatch.setattr(native, "_ROOTS", (tmp_path / "native",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARMETAL_PREBUILT", raising=False)
    return tmp_path


def mpi(site: Path, version: str = "5.0", compiler_version: str = "1") -> Mpi:
    """Return an MPI whose compiler counts how often it compiles."""
    mpicc = site / f"mpicc-{compiler_version}"
    mpicc.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo cc {compiler_version} && exit\n'
        f'echo run >>"{site}/runs"\nexec cc "$@"\n'
    )
    mpicc.chmod(0o755)
    return Mpi("openmpi", version, "mpirun", str(mpicc))


def runs(site: Path) -> int:
    return len((site / "runs").read_text().split())


def test_a_program_is_built_once(site: Path) -> None:
    program = build_program(mpi(site), "toy", "toy")
    assert process.run([str(program)], timeout_s=600).exit_status == 42
    assert build_program(mpi(site), "toy", "toy") == program
    assert runs(site) == 1
    assert program.is_relative_to(site / "cache" / "nearmetal")


def test_every_input_that_could_change_it_triggers_a_rebuild(site: Path) -> None:
    programs = {build_program(mpi(site), "toy", "toy")}
    programs.add(build_program(mpi(site, version="5.1"), "toy", "toy"))
    programs.add(build_program(mpi(site, compiler_version="2"), "toy", "toy"))
    programs.add(build_program(mpi(site), "toy", "toy", extra_flags=("-DMORE",)))
    (site / "native" / "toy" / "toy.h").write_text("#define ANSWER 43\n")
    programs.add(build_program(mpi(site), "toy", "toy"))
    assert len(programs) == runs(site) == 5


def test_a_failed_build_shows_the_compiler_output_and_leaves_nothing(site: Path) -> None:
    (site / "native" / "toy" / "toy.c").write_text("int main(void) { return no_such_thing; }\n")
    with pytest.raises(NearmetalError, match="no_such_thing") as caught:
        build_program(mpi(site), "toy", "toy")
    assert caught.value.hint
    assert [path.name for path in (site / "cache" / "nearmetal" / "programs").iterdir()] == ["toy.lock"]


def test_a_compiler_that_does_not_end_is_not_taken_for_a_missing_one(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearmetal.native.BUILD_TIMEOUT_S", 0.2)
    recipe = native.Recipe("toy", "toy", compiler=("sh", "-c", "sleep 60"))
    with pytest.raises(NearmetalError, match=r"cannot build toy: sh was stopped after") as caught:
        native.build(recipe)
    assert "C11" not in caught.value.hint


def test_concurrent_builders_compile_once(site: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from nearmetal import native;"
        "from nearmetal.workloads.build import build_program; from nearmetal.workloads.mpi.mpi import Mpi;"
        "native._ROOTS = (Path(sys.argv[1]),);"
        "print(build_program(Mpi('openmpi', '5.0', 'mpirun', sys.argv[2]), 'toy', 'toy'))"
    )
    argv = [sys.executable, "-c", code, str(site / "native"), mpi(site).mpicc]
    builders = [process.spawn(argv, env=dict(os.environ)) for _ in range(4)]
    outputs = {builder.communicate(timeout=600)[0] for builder in builders}
    assert len(outputs) == 1
    assert outputs != {b""}
    assert runs(site) == 1


def test_an_mpi_without_a_compiler_is_unavailable_unless_programs_are_ready(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Mpi("openmpi", "5.0", "mpirun")
    with pytest.raises(UnavailableError, match="without mpicc"):
        build_program(bare, "toy", "toy")
    ready = site / "ready" / "toy-openmpi-5.0"
    ready.parent.mkdir()
    ready.touch()
    monkeypatch.setenv("NEARMETAL_PREBUILT", str(ready.parent))
    assert build_program(bare, "toy", "toy") == ready


def test_a_cache_that_cannot_be_written_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that is mounted read-only ended `run`, `tune` and `doctor` in a traceback."""
    (site / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(site / "file"))
    with pytest.raises(
        UnavailableError, match=r"cannot build programs in .*file/nearmetal/programs: Not a dir"
    ) as error:
        native.build(native.Recipe("toy", "toy"))
    assert error.value.hint == "XDG_CACHE_HOME can name another place"
