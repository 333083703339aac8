"""`nearmetal doctor` names a fix that works on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.cli import doctor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("installer", "message"),
    [
        ("apt-get", "sudo apt-get install --no-install-recommends gcc libc6-dev"),
        ("dnf", "sudo dnf install gcc glibc-devel"),
        ("zypper", "sudo zypper install gcc glibc-devel"),
        ("apk", "install gcc libc6-dev (apt) or gcc glibc-devel (dnf, zypper)"),
    ],
)
def test_a_missing_program_gets_a_fix_for_this_package_manager(
    monkeypatch: pytest.MonkeyPatch, installer: str, message: str
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **_: name if name == installer else None)
    (line,) = [one for one in doctor._programs() if one.what == "cc"]
    assert not line.ok
    assert line.fix == message


def test_a_home_where_nothing_can_be_built_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every needed check passed on a read-only home, where no study can run."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    line = doctor.attempted("programs", doctor._built)
    assert (line.ok, line.needed) == (False, True)
    assert "cannot build programs in" in line.detail


@pytest.mark.parametrize("prebuilt", ["", "/opt/ready"])
def test_an_mpi_without_a_compiler_runs_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prebuilt: str
) -> None:
    """As without its development package: each study ended for want of mpicc, and this MPI was in order."""
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NEARMETAL_PREBUILT", prebuilt)
    found = {one.what: one for one in doctor._mpi()}
    assert found["mpi openmpi"].ok == bool(prebuilt)
    assert ("mpi" in found, "comes without mpicc" in found["mpi openmpi"].detail) == (not prebuilt,) * 2


def test_hosts_elsewhere_are_reported_by_what_their_own_programs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> dict[str, tuple[bool, str, bool]]:
        return {one.what: (one.ok, one.detail, one.needed) for one in doctor._far_hosts()}

    monkeypatch.setenv("PATH", str(tmp_path))
    assert lines()["host slurm"] == (False, "sbatch is not installed", False)
    assert lines()["host kubectl"] == (False, "kubectl is not installed", False)
    for name in ("sbatch", "scontrol", "scancel", "sinfo", "srun", "kubectl"):
        (tmp_path / name).write_text("#!/bin/sh\necho Slurmctld is UP\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho 'connection refused' >&2; exit 1\n")
    found = lines()
    assert found["host slurm"] == (True, "Slurmctld is UP", False)
    assert not found["host kubectl"][0]
    assert "connection refused" in found["host kubectl"][1]
    (hint,) = (one.fix for one in doctor._far_hosts() if one.what == "host kubectl")
    assert hint == "`kubectl get --raw /readyz` must work first", "what was asked, not what may work all the same"
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho Slurmctld is DOWN\n")
    assert lines()["host slurm"] == (False, "Slurmctld is DOWN", False)
