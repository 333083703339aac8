"""A complete `nearmetal tune` on real namespaces, and trials with settings of the machine itself."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake_runs import SEARCH
from nearmetal.cli.main import run
from nearmetal.errors import QuarantinedError
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.local import LocalHost
from nearmetal.knobs import session
from nearmetal.run.trial import carry_out
from nearmetal.store.searchdir import SearchDir
from nearmetal.study.order import Order, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.tune.profile import Profile

if TYPE_CHECKING:
    from nearmetal.knobs.watchdog import WatchLimits

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

STREAM = """
name = "stream"
operation = "bw"
sizes = ["1 KiB"]
iterations = 4
warmup = 1
progress = "blocking"
"""
# The frames that node 1 cuts an answer of 60,000 bytes into: counted, not timed, so that no load changes the verdict.
FRAMES = r'''
name = "frames"
kind = "command"
[workload.options]
argv = ["sh", "-c", """
received() { awk '/eth0:/ { print $3 }' /proc/net/dev; }
before=$(received) && ping -q -c 1 -s 60000 {peer} && echo "received $(($(received) - before)) frames"
"""]
figure = "regex"
pattern = 'received (\d+) frames'
unit = "us"
'''
STUDY = f"""
name = "mtu"
baseline = "veth"
path = [{{ name = "veth" }}, {{ name = "tap" }}]
[[workload]]
{STREAM}
[trials]
min_blocks = 3
[tune]
path = "tap"
method = "one-at-a-time"
interfaces = ["eth1"]
[tune.knobs]
"nic.mtu" = [9000]
[[tune.classes]]
name = "bandwidth-bound"
"""
BUDGET = Path("/proc/sys/net/core/netdev_budget")
TRIAL = Order(
    0,
    0,
    PathOrder("veth", "veth"),
    WorkloadOrder("latency", "engine", {"operation": "latency", "sizes": [8], "iterations": 20, "warmup": 1}),
)


def test_a_better_setting_is_confirmed_on_fresh_trials_and_becomes_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "mtu.toml"
    study.write_text(STUDY.replace(STREAM, FRAMES).replace("[9000]", '[1500, 9000]\n"nic.lro" = ["on"]'))
    assert run(["tune", str(study), "--out", str(tmp_path / "profiles")]) == 0
    captured = capsys.readouterr()
    assert "better on fresh blocks" in captured.out, captured.out + captured.err
    assert "ratio to the baseline" in captured.out
    assert "Figures from network namespaces" in captured.out
    assert "left out: nic.lro is not there" in captured.err
    assert "2 settings of path tap" in captured.err, "1500 already exists"
    (kept,) = (tmp_path / "runs").iterdir()
    tuned = [trial for trial in SearchDir.open(kept).trials() if trial.order.knobs]
    assert {trial.outcome.facts["knob.end"] for trial in tuned} == {"restored"}
    profile = Profile.read(tmp_path / "profiles" / "mtu-bandwidth-bound.profile.json")
    assert profile.setting == {"nic.mtu": "9000"}
    assert profile.present == {"nic.mtu": "1500"}
    assert profile.workload_class == "bandwidth-bound"
    evidence = profile.evidence
    assert evidence is not None
    assert evidence.low <= evidence.ratio <= evidence.high < 1.0
    assert evidence.to_native[1] < evidence.to_native[0]
    assert "kernel.release" in evidence.machine
    assert "namespaces" in evidence.label
    assert not list((tmp_path / "state").rglob("*.journal")), "every trial ended restored"


def _needs_own_budget() -> str:
    if os.geteuid() != 0 or not os.access(BUDGET, os.W_OK):
        pytest.skip("needs root and a machine whose sysctls are its own")
    return BUDGET.read_text().strip()


def test_a_setting_of_the_machine_is_held_under_a_watchdog_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _needs_own_budget()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    armed: list[WatchLimits | None] = []

    def begin(*given: object, guard: WatchLimits | None) -> session.Session:
        armed.append(guard)
        return session.begin(*given, guard=guard)  # type: ignore[arg-type]

    monkeypatch.setattr(sys.modules["nearmetal.knobs.hold"], "begin", begin)
    order = dataclasses.replace(TRIAL, knobs={"host.netdev_budget": int(found) + 1})
    outcome = LocalHost().carry_out(order, carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert outcome.facts["knob.host.netdev_budget"] == str(int(found) + 1)
    assert outcome.facts["knob.was.host.netdev_budget"] == found
    assert outcome.facts["knob.end"] == "restored"
    assert armed, "nothing was written"
    assert armed[0] is not None, "a value that outlives the trial needs a watchdog"
    assert BUDGET.read_text().strip() == found
    assert not list(tmp_path.rglob("*.journal"))


def test_a_value_that_cannot_be_restored_ends_the_run_and_prints_the_undo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def stuck(*_: object) -> None:
        raise QuarantinedError("could not put back: nic.mtu of n0/eth0", "#!/bin/sh\nip link set", "the.journal")

    monkeypatch.setattr("nearmetal.knobs.session.end", stuck)
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "mtu.toml"
    study.write_text(STUDY)
    assert run(["tune", str(study)]) == 1
    captured = capsys.readouterr()
    assert "QUARANTINED" in captured.err
    assert "the.journal" in captured.err
    assert captured.out.startswith("#!/bin/sh")


def test_a_journal_that_cannot_be_written_ends_the_search_and_costs_no_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full disk every setting failed and left the search, also when the search was resumed later."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("nearmetal.knobs.session.new_journal", lambda folder: folder / "no disk" / "x.journal")
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "mtu.toml"
    study.write_text(STUDY)
    assert run(["tune", str(study), "--run", "search"]) == 1
    said = capsys.readouterr().err
    assert "x.journal: No such file or directory; no setting was changed" in said
    assert "hint: free some space, or name another place for journals with XDG_STATE_HOME" in said
    assert not [trial for trial in SearchDir.open(Path("search")).trials() if trial.order.knobs]


def test_an_unwritable_destination_is_refused_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "mtu.toml"
    study.write_text(STUDY)
    assert run(["tune", str(study), "--out", str(study / "profiles")]) == 2
    assert "for profiles" in capsys.readouterr().err


def test_a_wrong_knob_or_operation_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "mtu.toml"
    study.write_text(STUDY.replace("nic.mtu", "nic.mut").replace('"bw"', '"bandwidth"'))
    assert run(["tune", str(study)]) == 2
    stderr = capsys.readouterr().err
    assert "nic.mut" in stderr
    assert "bandwidth" in stderr


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('interfaces = ["a b"]', "'a b' is not the name of an interface"),
        ('classes = [{ name = "a" }, { name = "a" }]', "two of them have the name 'a'"),
        ('classes = [{ name = "a..b" }]', "'tuned-a..b' cannot name a profile"),
    ],
)
def test_values_that_no_profile_can_hold_are_refused_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, message: str
) -> None:
    study = tmp_path / "made.toml"
    study.write_text(SEARCH.replace("[tune]", f"[tune]\n{table}"))
    assert run(["tune", str(study), "--run", str(tmp_path / "search")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


def test_a_profile_can_have_long_names_of_study_class_and_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeHost, "label", ", ".join(f"machine{number}" for number in range(99)))
    monkeypatch.chdir(tmp_path)
    study, name = SEARCH.replace("tuned", "s" * 40), "c" * 40
    study = study.replace("[tune]", f'[tune]\nclasses = [{{ name = "{name}" }}]')
    study = study.replace('kind = "fake"', 'kind = "fake", options = { "times.nic.rx-usecs=10" = 0.5 }')
    (tmp_path / "made.toml").write_text(study)
    assert run(["tune", "made.toml"]) == 0, capsys.readouterr().err
    profile = Profile.read(tmp_path / f"{'s' * 40}-{name}.profile.json")
    assert profile.evidence
    assert profile.evidence.label.endswith(" ...")
