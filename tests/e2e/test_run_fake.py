"""The whole tool on the fake host: the same study gives the same bytes, whatever happens during the run."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.cli.plan import blocks
from nearmetal.hosts.fake import FakeHost
from nearmetal.results.stopping import FAILURES_TO_GIVE_UP
from nearmetal.run import schedule
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.order import Order, Outcome, TrialStatus, upgraded_outcome
from nearmetal.study.spec import TrialsSpec, digest, parse_study
from nearmetal.units import NS_PER_S

STUDY = """
format = 1
name = "made-up"
title = "A made-up study"
seed = 7
baseline = "veth"
rarest_mode = "50 %"
[host]
kind = "fake"
[[path]]
name = "veth"
[[path]]
name = "tap"
[[path]]
name = "macvlan"
[[workload]]
name = "latency"
sizes = [8, "1 KiB"]
iterations = 400
warmup = 20
[trials]
min_blocks = 5
max_blocks = 9
"""


GOLDEN = Path(__file__).parents[1] / "golden"


class Silent:
    def __init__(self) -> None:
        self.trials: list[int] = []

    def block_started(self, number: int, trials: int, open_paths: object) -> None: ...

    def trial_ended(self, record: object) -> None:
        self.trials.append(record.order.trial)  # type: ignore[attr-defined]


def start(root: Path, text: str = STUDY) -> RunDir:
    return RunDir.create(root, RunInfo("t", digest(text), "fake", "made up", "0", "2026-01-01T00:00:00+00:00"), text)


def contents(root: Path) -> dict[str, bytes]:
    """Return every file of a run without its times."""
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    del files["lock"]
    # The seal of a document covers these times, too, and the list of records contains seals.
    del files["records.sums"]
    moments = rb'"(started|created)_utc": "[^"]*"|\A{\n "sha256": "[^"]*"'
    return {name: re.sub(moments, b"", data) for name, data in files.items()}


def test_the_same_study_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    printed = []
    for name in ("a", "b"):
        assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / name)]) == 0
        printed.append(capsys.readouterr().out.replace(str(tmp_path / name), "RUN"))
    assert printed[0] == printed[1]
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    del a["report.html"], b["report.html"]  # it contains its run directory and its date
    assert a == b


def test_the_output_of_a_run_matches_the_golden_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("nearmetal.cli.progress._LEAST_SHOWN_S", math.inf)  # on a slow machine a block takes long
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(STUDY)
    assert nearmetal(["run", "s.toml", "--out", "r"]) == 0
    printed = capsys.readouterr()
    lines = [line.rstrip() for line in printed.out.splitlines()]
    assert lines == (GOLDEN / "run-fake.txt").read_text().splitlines()
    assert printed.err.splitlines() == (GOLDEN / "run-fake-progress.txt").read_text().splitlines()


def test_verdicts_match_the_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert nearmetal(["compare", str(tmp_path / "r"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = json.dumps(found)
    assert '"near-metal"' in verdicts, "macvlan is 1 % slower by formula: within the margin"
    assert '"slower"' in verdicts, "tap is more than twice as slow by formula"
    assert "the fake host" in verdicts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Yield a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "s.toml").write_text(STUDY)
    assert nearmetal(["run", str(folder / "s.toml"), "--out", str(folder / "whole")]) == 0
    return folder / "whole"


@pytest.mark.parametrize(
    ("number", "after"),
    [(signal.SIGKILL, 13), (signal.SIGTERM, 5), (signal.SIGHUP, 1)],
)
def test_resume_after_a_signal_loses_and_repeats_nothing(
    tmp_path: Path, whole: Path, number: signal.Signals, after: int
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    program = (
        "import os, signal, sys\n"
        "from nearmetal.store.disk import Disk\n"
        f"left = [{after} * 9 + 14]\n"
        "def step(self, name, path):\n"
        "    left[0] -= 1\n"
        f"    if left[0] == 0: os.kill(os.getpid(), {number})\n"
        "Disk.step = step\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # under nohup it would be ignored here, too
        "from nearmetal.cli.main import main\n"
        f"main(['run', {str(tmp_path / 's.toml')!r}, '--out', {str(tmp_path / 'cut')!r}])\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=600, check=False)
    if number == signal.SIGKILL:
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    else:
        assert killed.returncode == 130, killed.stderr
        stderr = killed.stderr.decode().splitlines()
        assert f"interrupted; continue with: nearmetal run --resume {tmp_path / 'cut'}" in stderr, (
            "a command is one line"
        )
        assert stderr[-1] == f"error: ended by {number.name}"
    before = {r.order.trial: r.started_utc for r in RunDir.open(tmp_path / "cut").trials()}
    assert 0 < len(before) < len(RunDir.open(whole).trials())
    assert nearmetal(["run", "--resume", str(tmp_path / "cut")]) == 0
    after_resume = {r.order.trial: r.started_utc for r in RunDir.open(tmp_path / "cut").trials()}
    assert before.items() <= after_resume.items(), "a finished trial was repeated"
    ours, theirs = contents(tmp_path / "cut"), contents(whole)
    del ours["report.html"], theirs["report.html"]
    assert ours == theirs


def test_resuming_a_finished_run_measures_nothing(tmp_path: Path) -> None:
    run, study = start(tmp_path / "r"), parse_study(STUDY, "t")
    with run:
        schedule.run_study(study, FakeHost({}), run, Silent())
        again = Silent()
        schedule.run_study(study, FakeHost({}), run, again)
        assert again.trials == []


def test_a_run_stops_when_decided_or_at_the_cap(tmp_path: Path) -> None:
    with start(tmp_path / "r") as run:
        ending = schedule.run_study(parse_study(STUDY, "t"), FakeHost({}), run, Silent())
        assert 5 <= ending.blocks <= 9
        blocks = {r.order.path.label: r.order.block for r in run.trials()}
    assert blocks["tap"] == 4, "tap is decided at the first look"


@pytest.mark.parametrize(("floor", "blocks"), [("50 %", 5), ("0.65 %", 7), ("0.01 %", 9)])
def test_all_paths_continue_until_the_baseline_agrees_with_itself(tmp_path: Path, floor: str, blocks: int) -> None:
    study = parse_study(STUDY.replace("[trials]", f'[trials]\nfloor = "{floor}"'), "t")
    with start(tmp_path / "r", STUDY) as run:
        ending = schedule.run_study(study, FakeHost({}), run, Silent())
        last = {r.order.path.label: r.order.block + 1 for r in run.trials()}
    assert ending.blocks == blocks
    assert set(last.values()) == {blocks}


@pytest.mark.parametrize("failing", ["veth", "veth-again"])
def test_a_baseline_without_its_second_launch_is_not_quiet(tmp_path: Path, failing: str) -> None:
    study = parse_study(STUDY.replace("[trials]", '[trials]\nfloor = "50 %"'), "t")
    with start(tmp_path / "r", STUDY) as run:
        ending = schedule.run_study(study, FakeHost({f"fail.{failing}": "the cable is gone"}), run, Silent())
    assert ending.blocks == 9, "nothing shows how far it differs from itself"


def test_blocks_of_several_invocations_equal_those_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "whole")]) == 0
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "parts"), "--blocks", "3"]) == 0
    stderr = capsys.readouterr().err.splitlines()
    assert stderr[-2:] == ["3 of at most 9 blocks are done; to continue:", f"nearmetal run --resume {tmp_path}/parts"]
    assert nearmetal(["run", "--resume", str(tmp_path / "parts")]) == 0
    ended = capsys.readouterr().err
    assert "to continue" not in ended
    assert "nothing was left" not in ended
    assert nearmetal(["run", "--resume", str(tmp_path / "parts"), "--blocks", "2"]) == 0
    blocks = 1 + max(one.order.block for one in RunDir.open(tmp_path / "parts").trials())
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"nothing was left to measure: the study ended after {blocks} blocks; to repeat it at another hour, boot or "
        "allocation:",
        f"nearmetal run --resume {tmp_path}/parts --occasions 2",
    ]
    whole, parts = contents(tmp_path / "whole"), contents(tmp_path / "parts")
    del whole["report.html"], parts["report.html"]
    assert whole == parts


def test_one_path_alone_is_told_the_blocks_that_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is compared that more of them could decide."""
    (tmp_path / "s.toml").write_text(re.sub(r'\[\[path\]\]\nname = "(?!veth).*\n', "", STUDY))
    out = str(tmp_path / "r")
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", out, "--blocks", "1"]) == 0
    said = capsys.readouterr().err
    assert "block 1 of 1 (max 5): 2 trials" in said
    assert "1 of at most 5 blocks is done" in said
    assert nearmetal(["run", "--resume", out]) == 0
    assert [line.partition(",")[0].partition(":")[0] for line in capsys.readouterr().err.splitlines()][:4] == [
        f"block {number} of 5" for number in range(2, 6)
    ]


def test_copies_that_were_resumed_separately_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", one, "--blocks", "3"]) == 0
    for copy in (one, shutil.copytree(one, other)):
        assert nearmetal(["run", "--resume", copy]) == 0
    capsys.readouterr()
    assert nearmetal(["gate", one, "--against", other]) == 64
    assert f"{one} and {other} are copies of one run: they share 12 trials of 20 and 20" in capsys.readouterr().err


def test_a_path_that_always_fails_is_given_up_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace('kind = "fake"', 'kind = "fake"\noptions = { "fail.tap" = "the cable is gone" }')
    (tmp_path / "s.toml").write_text(text)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r")]) == 4
    captured = capsys.readouterr()
    assert "the cable is gone" in captured.err
    assert "gave up" in captured.err
    records = RunDir.open(tmp_path / "r").trials()
    assert sum(r.order.path.label == "tap" for r in records) == FAILURES_TO_GIVE_UP
    assert "macvlan" in captured.out


def test_a_path_without_a_valid_trial_is_a_part_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path is given up after two blocks; of one block it was all that failed, and the run exited with 0."""
    text = STUDY.replace('kind = "fake"', 'kind = "fake"\noptions = { "fail.tap" = "the cable is gone" }')
    (tmp_path / "s.toml").write_text(text)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r"), "--blocks", "1"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "no trial is valid: tap / latency / as-found (see `nearmetal show" in said
    assert "gave up" not in said


def test_a_launch_that_timed_out_gets_one_more_attempt_and_both_are_kept(tmp_path: Path) -> None:
    class Hiccup(FakeHost):
        seen: set[int] = set()

        def carry_out(self, order: Order, body: object) -> Outcome:  # type: ignore[override]
            if order.trial == 2 and order.trial not in self.seen:
                self.seen.add(order.trial)
                return Outcome(TrialStatus.FAILED, reason="too late", timed_out=True)
            return super().carry_out(order, body)  # type: ignore[arg-type]

    with start(tmp_path / "r") as run:
        schedule.run_study(parse_study(STUDY, "t"), Hiccup({}), run, Silent())
        attempts = [(r.attempt, r.valid) for r in run.trials() if r.order.trial == 2]
    assert attempts == [(1, False), (2, True)]


def test_a_record_without_the_timeout_field_is_recognized_by_its_reason() -> None:
    old = json.loads(Outcome(TrialStatus.FAILED, reason="the launch did not end within 1 s").to_json())
    del old["timed_out"]
    assert upgraded_outcome(old)["timed_out"]
    assert not upgraded_outcome(old | {"reason": "the cable is gone"})["timed_out"]


def test_a_truncated_sample_file_fails_only_its_trial(tmp_path: Path) -> None:
    class Torn(FakeHost):
        def carry_out(self, order: Order, body: object) -> Outcome:  # type: ignore[override]
            outcome = super().carry_out(order, body)  # type: ignore[arg-type]
            if order.trial == 1:
                known = {"launch_argv": ("bench",), "facts": {"cpu.model": "x"}, "counters": {"irq.1": 7}}
                return Outcome(TrialStatus.VALID, files={"samples": b"NMSAMPLE torn"}, **known)  # type: ignore[arg-type]
            return outcome

    with start(tmp_path / "r") as run:
        schedule.run_study(parse_study(STUDY, "t"), Torn({}), run, Silent())
        records = {r.order.trial: r for r in run.trials()}
    assert not records[1].valid
    assert records[1].outcome.reason
    assert records[1].outcome.launch_argv == ("bench",)
    assert records[1].outcome.facts["cpu.model"] == "x"
    assert records[1].outcome.counters == {"irq.1": 7}
    assert records[0].valid


def test_a_full_disk_ends_the_run_with_every_finished_trial_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)

    def step(self: Disk, name: str, path: Path) -> None:
        if "000003" in path.name and name == "write":
            raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Disk, "step", step)
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "r")]) == 1
    assert "no space left" in capsys.readouterr().err
    assert len(RunDir.open(tmp_path / "r").trials()) == 3
    monkeypatch.undo()
    assert nearmetal(["run", "--resume", str(tmp_path / "r")]) == 0


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["run"], 2, "name a study"),
        (["run", "gone.toml"], 2, "cannot read the study"),
        (["run", "--resume", "gone"], 2, "is not a run directory"),
        (["compare", "gone"], 2, "is not a run directory"),
        (["rnu"], 2, "did you mean `nearmetal run`?"),
        (["run", "--resumee", "x"], 2, "No such option"),
    ],
)
def test_wrong_usage_is_reported_with_the_next_step(
    argv: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearmetal(argv) == code
    streams = capsys.readouterr()
    assert message in streams.err
    assert streams.out == ""


@pytest.mark.parametrize("argv", [[], ["history"], ["lab"]])
def test_without_a_verb_the_verbs_are_listed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: nearmetal")


def test_an_invalid_command_line_is_reported_with_where_to_find_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["predict", "x"]) == 2
    assert capsys.readouterr().err.splitlines() == ["error: Missing option '--on'.", "hint: nearmetal predict --help"]


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        (TrialsSpec(min_blocks=250, max_blocks=250), "250 blocks: about 17 min"),
        (TrialsSpec(min_blocks=5, max_blocks=8), "5 to 8 blocks, stopping as soon as every comparison is decided: a"),
        (TrialsSpec(min_blocks=5, max_blocks=8, floor="2 %"), "is decided and no noise floor is above 2 %: about 20 s"),
        (TrialsSpec(min_blocks=9999, max_blocks=9999), "about 11 h"),
    ],
)
def test_plan_gives_the_duration_in_readable_units(trials: TrialsSpec, message: str) -> None:
    ns_a_block = 4 * NS_PER_S
    assert message in blocks(trials, trials.min_blocks * ns_a_block, trials.max_blocks * ns_a_block)


def test_each_invocation_carries_out_one_occasion_and_the_report_covers_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    out = tmp_path / "r"
    assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(out), "--occasions", "3"]) == 0
    first = capsys.readouterr()
    assert "one occasion: the intervals say" in first.out
    assert (
        f"occasion 1 of 3 is done; to continue at another hour, boot or allocation:\nnearmetal run --resume {out}"
        in first.err
    )
    trials, summaries = [len(RunDir.open(out).trials())], []
    cap = parse_study(STUDY, "t").trials.max_blocks
    for _ in range(3):  # the last one has nothing left to do
        assert nearmetal(["run", "--resume", str(out), "--occasions", "3"]) == 0
        trials.append(len(RunDir.open(out).trials()))
        last = capsys.readouterr()
        summaries.append([line for line in last.err.splitlines() if "trials on" in line])
    assert [lines[0].partition(":")[0] for lines in summaries[:2]] == [
        f"occasion {number}, block 1 of at most {cap}" for number in (2, 3)
    ], "no line for blocks of earlier occasions"
    assert summaries[2] == []
    assert trials == [trials[0], 2 * trials[0], 3 * trials[0], 3 * trials[0]]
    assert "planned at each), 3 occasions; the intervals are for another one" in " ".join(last.out.split())
    assert "occasion 3 of 3" not in last.err
    for record in RunDir.open(out).trials():
        assert record.outcome.facts["run.occasion"] == 1 + record.order.block // cap
