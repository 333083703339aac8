"""`apply` sees that a run measures on the host whose settings it would change."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.main import run
from nearmetal.errors import TrialError
from nearmetal.knobs import places
from nearmetal.knobs.folder import measured, refuse_measured
from nearmetal.run.guests import measuring
from nearmetal.study.spec import parse_study
from nearmetal.tune.profile import Profile

if TYPE_CHECKING:
    from pathlib import Path

PATH = 'name = "s"\nbaseline = "p"\n[[path]]\nname = "p"\nkind = "{}"\n[[workload]]\nname = "latency"\nsizes = [8]\n'
FAR = PATH.format("declared") + (
    '[host]\nkind = "ssh"\n'
    '[[host.node]]\nname = "vm1"\naddress = "10.0.0.1"\nuser = "root"\n[[host.node]]\nname = "vm2"\n'
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/nearmetal/journal"


def test_a_full_disk_stops_no_measurement(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may be on another disk than the mark, and the lock keeps changes away without a name."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nearmetal.knobs.folder.os.write", full)
    with measured(state), pytest.raises(TrialError, match="another process measures on far now"):
        refuse_measured(state, "far")


def test_runs_share_a_host_and_keep_changes_away_until_the_last_has_ended(state: Path) -> None:
    with measured(state):
        with measured(state), pytest.raises(TrialError, match=f"process {os.getpid()} measures on far now"):
            refuse_measured(state, "far")
        with pytest.raises(TrialError, match=f"process {os.getpid()}"):
            refuse_measured(state, "far")
    refuse_measured(state, "far")


def test_where_nothing_can_be_written_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with measured(tmp_path / "file" / "journal"):
        pass


@pytest.mark.parametrize("name", ["vm1", "10.0.0.1", "root@vm1", "root@10.0.0.1", "vm2"])
def test_a_far_machine_is_known_by_each_of_its_names(name: str) -> None:
    with measuring(parse_study(FAR, "s.toml")), pytest.raises(TrialError, match=f"measures on {name} now"):
        refuse_measured(places.folder_of(name), name)


def test_this_machine_gets_no_folder_by_a_run(state: Path) -> None:
    local = parse_study(PATH.format("veth"), "s.toml")
    with measuring(local):
        assert not state.exists()
    state.mkdir(parents=True, mode=0o700)
    with measuring(local), pytest.raises(TrialError):
        refuse_measured(state, "local")


def test_apply_changes_nothing_of_a_machine_that_is_measured_on(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearmetal.cli.apply.open_shell", lambda _: pytest.fail("the machine was opened"))
    (profile := tmp_path / "p.json").write_text(Profile("p", "any", (), {"host.busy_read": "50"}).to_json())
    with measured(state):
        assert run(["apply", str(profile)]) == 1
    said = capsys.readouterr().err
    assert f"error: process {os.getpid()} measures on this machine now" in said
    assert "hint: wait until it ends" in said
