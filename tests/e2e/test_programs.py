"""The studies of real programs, one trial each, where the program is installed: `make verify-programs` installs all."""

import shutil
from pathlib import Path

import pytest

from nearmetal.errors import UnavailableError
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.plan import block
from nearmetal.study.shipped import read_study
from nearmetal.workloads.samples import decode

STUDIES = Path(__file__).parents[2] / "studies"
PROGRAMS = {"nasa-hpl": "hpcc", "lockwood-espresso": "pw.x", "lockwood-lammps": "lmp"}

pytestmark = [pytest.mark.netns, pytest.mark.mpi, pytest.mark.timeout(330)]


def first_trial(name: str) -> Outcome:
    study, _ = read_study(STUDIES / f"{name}.toml")
    order = next(one for one in block(study, 0) if one.path.kind == "bridge")
    try:
        with NamespaceShell():
            pass
    except UnavailableError as error:
        pytest.skip(error.render())
    return LocalHost().carry_out(order, carry_out)


@pytest.mark.parametrize(("name", "program"), PROGRAMS.items())
def test_a_real_program_is_measured_and_verified(name: str, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: `make programs`")
    outcome = first_trial(name)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    assert cell.ns.shape == (1, 1)
    assert min(outcome.proof.moved_packets.values()) >= 100


@pytest.mark.parametrize(("name", "program"), PROGRAMS.items())
def test_a_missing_program_is_named_with_how_to_install_it(
    name: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shutil.which
    folders = [f for f in ("/usr/sbin", "/usr/bin", "/sbin", "/bin") if shown(program, path=f) is None]
    if "/usr/bin" not in folders:
        pytest.skip(f"{program} is in a directory that PATH needs")
    monkeypatch.setenv("PATH", ":".join(folders))
    outcome = first_trial(name)
    assert outcome.status is TrialStatus.FAILED
    assert f"{program} is not on the PATH" in outcome.reason
    assert "make programs" in outcome.hint
