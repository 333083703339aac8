"""What the verb `run` prints besides its tables."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from fake_runs import STUDY
from nearmetal.cli.main import run
from nearmetal.cli.progress import _DisturbanceWatch, _RemainingTime, virtual_words, watcher
from nearmetal.cli.run import virtual_time_ns
from nearmetal.hosts.host import ClockProgress
from nearmetal.report.progress import progress, sentence
from nearmetal.report.terminal import Console
from nearmetal.results.evidence import disturbed, disturbed_launches
from nearmetal.results.paths import build_view
from nearmetal.store.rundir import RunDir
from nearmetal.study.facts import SHARED, VIRTUAL_TIME
from nearmetal.study.shipped import find_study, read_study

if TYPE_CHECKING:
    from nearmetal.hosts.host import Host


def trial(elapsed_ns: int, **facts: object) -> SimpleNamespace:
    order = SimpleNamespace(workload=SimpleNamespace(label="latency"))
    return SimpleNamespace(order=order, outcome=SimpleNamespace(elapsed_ns=elapsed_ns, facts=facts))


def test_only_launches_in_the_lab_have_virtual_time() -> None:
    inside, outside = trial(7, **{VIRTUAL_TIME: True}), trial(100)
    assert virtual_time_ns([inside, inside, outside]) == 14  # type: ignore[list-item]
    assert virtual_time_ns([outside]) == 0  # type: ignore[list-item]


def test_trials_that_shared_a_launch_have_its_virtual_time_together() -> None:
    shared = trial(9, **{VIRTUAL_TIME: True, SHARED: "latency, paced, bw"})
    assert virtual_time_ns([shared] * 3) == 9  # type: ignore[list-item]


def test_an_interrupted_run_is_continued_at_as_many_occasions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nearmetal.run.schedule.keep", interrupted)
    (tmp_path / "s.toml").write_text(STUDY)
    out = tmp_path / "out"
    assert run(["run", str(tmp_path / "s.toml"), "--out", str(out), "--occasions", "2"]) == 130
    assert f"continue with: nearmetal run --resume {out} --occasions 2\n" in capsys.readouterr().err


def test_a_run_whose_trials_all_failed_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It exited with 2, which says that the study is wrong and nothing was started."""
    failing = ", ".join(f'"fail.{path}" = "no cable"' for path in ("veth", "veth-again", "tap"))
    (tmp_path / "s.toml").write_text(STUDY.replace('kind = "fake"', f'kind = "fake"\noptions = {{ {failing} }}'))
    out = tmp_path / "out"
    assert run(["run", str(tmp_path / "s.toml"), "--out", str(out)]) == 1
    assert "none of the 6 trials" in capsys.readouterr().err
    assert run(["run", "--resume", str(out)]) == 1
    assert run(["compare", str(out)]) == 2


@pytest.mark.parametrize("settings", [1, 2])
def test_a_plan_of_one_path_has_the_blocks_that_its_run_takes(
    settings: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said 3 to 16 blocks, until every comparison is decided; the run ended after 3, its settings undecided."""
    text = STUDY.replace('[[path]]\nname = "tap"\n', "").replace("max_blocks = 3", "max_blocks = 16")
    text += '[[setting]]\nname = "a"\n[[setting]]\nname = "b"\nknobs = { "nic.mtu" = 9000 }\n' * (settings - 1)
    (tmp_path / "s.toml").write_text(text)
    assert run(["plan", str(tmp_path / "s.toml")]) == 0
    planned = capsys.readouterr().out
    assert "\n3 blocks: about " in planned
    assert ("nothing is compared" in planned, "min_blocks = " in planned) == (settings == 1, settings == 2)
    assert run(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out")]) == 0
    assert "in 3 blocks (3 planned)" in " ".join(capsys.readouterr().out.split())
    assert run(["run", "--resume", str(tmp_path / "out"), "--occasions", "2"]) == 0
    again = capsys.readouterr()
    assert "\noccasion 2, block 3 of 3: " in again.err
    assert "in 6 blocks (3 planned at each)" in " ".join(again.out.split())
    so_far = progress(made := RunDir.open(tmp_path / "out"), made.trials())
    assert sentence(so_far).startswith("Occasion 2, block 3 (3 planned)")
    assert so_far.most_trials == len(made.trials()), "it is whole"
    assert build_view(made).block_numbers == 16, "its blocks are 0 to 2 and 16 to 18"


def test_progress_shows_the_block_and_the_time_left_in_this_invocation() -> None:
    whole = _RemainingTime(10, None)
    assert whole.words(4, 1000.0) == "block 5 of at most 10", "the time of an earlier invocation is unknown"
    assert whole.words(5, 1120.0) == "block 6 of at most 10, about 10 min left at most"
    assert whole.words(9, 1400.0) == "block 10 of at most 10, about 80 s left at most"
    again = _RemainingTime(10, None)
    again.words(20, 0.0)
    assert again.words(25, 300.0) == "occasion 3, block 6 of at most 10, about 5 min left at most"
    cut = _RemainingTime(10, 3)
    assert cut.words(4, 0.0) == "block 5 of 7 (max 10)"
    assert cut.words(5, 120.0) == "block 6 of 7 (max 10), about 4 min left at most"
    near_the_cap = _RemainingTime(6, 3)
    assert near_the_cap.words(4, 0.0) == "block 5 of at most 6"
    assert near_the_cap.words(5, 120.0) == "block 6 of at most 6, about 2 min left at most"
    fixed = _RemainingTime(3, None, least_blocks=3)
    assert fixed.words(0, 0.0) == "block 1 of 3", "none of them can be left out"
    quick = _RemainingTime(3, None)
    quick.words(0, 0.0)
    assert quick.words(1, 5.0) == "block 2 of at most 3", "a few seconds are not worth showing"


class ClockedHost:
    """A host whose machines advanced 0.84 s in 27 s."""

    def reached(self) -> ClockProgress:
        return ClockProgress(840_000_000, since_s=time.monotonic() - 27.0)


def test_the_machines_clock_is_shown_with_its_speed() -> None:
    assert virtual_words(ClockProgress(840_000_000, since_s=73.0), 100.0) == "0.84 virtual s, 0.031 a second"
    assert virtual_words(ClockProgress(0, since_s=73.0), 100.0) == "", "they have not started"
    assert virtual_words(None, 100.0) == ""


@pytest.mark.parametrize(("host", "shown"), [(ClockedHost(), True), (object(), False)])
def test_a_terminal_of_80_columns_has_room_for_the_clock(host: Host, shown: bool) -> None:
    study, _ = read_study(find_study(Path("sriov-gap")))
    screen = io.StringIO()
    with watcher(study, Console(file=screen, force_terminal=True, width=80), host) as watching:
        watching.block_started(0, 6, ["native", "vf"])
    assert ("0.84 virtual s, 0.031 a second" in screen.getvalue()) == shown
    assert f"block 1 of at most {study.trials.max_blocks}" in screen.getvalue()


QUIET = {"cpu.user": 100, "cpu.idle": 100, "others.bash": 20, "cpu.steal": 4}
BUSY = QUIET | {"others.cc1plus": 60}
STOLEN = QUIET | {"cpu.steal": 10}


def record(counters: dict[str, int], trial: int = 0, shared: str = "") -> SimpleNamespace:
    named = SimpleNamespace(label="veth")
    order = SimpleNamespace(trial=trial, block=trial, path=named, setting="", workload=SimpleNamespace(label="latency"))
    facts = {SHARED: shared} if shared else {}
    return SimpleNamespace(order=order, outcome=SimpleNamespace(counters=counters, facts=facts))


def test_a_launch_is_disturbed_by_other_programs_and_by_stolen_time() -> None:
    assert disturbed(QUIET).why == "", "the limits themselves still count as quiet"
    assert disturbed(BUSY).why == "cc1plus, bash used 39 % of the processors"
    assert disturbed(STOLEN).why == "the hypervisor gave 5 % of the processors' time to others"
    assert disturbed({"others.cc1plus": 30, "cpu.user": 39}).why == "", "the launch is too short to tell"
    assert disturbed({}).why == ""


def test_a_report_counts_the_disturbed_launches() -> None:
    assert disturbed_launches([record(QUIET)] * 3) == ()  # type: ignore[list-item]
    launched = [record(QUIET, 0), record(STOLEN, 1), record(BUSY, 2, "latency, bw"), record(BUSY, 2, "latency, bw")]
    (sentence,) = disturbed_launches(launched)  # type: ignore[arg-type]
    assert (
        sentence
        == "2 of 3 launches ran on a busy machine; in the worst of them cc1plus, bash used 39 % of the processors"
    )


def test_a_busy_machine_is_reported_once_and_again_after_three_quiet_launches() -> None:
    quiet = _DisturbanceWatch()
    reported = [
        bool(quiet.words(record(counters, number)))  # type: ignore[arg-type]
        for number, counters in enumerate([QUIET, BUSY, BUSY, QUIET, QUIET, BUSY, QUIET, QUIET, QUIET, STOLEN])
    ]
    assert reported == [False, True, False, False, False, False, False, False, False, True]
    assert "busy from trial 7 on: cc1plus" in _DisturbanceWatch().words(record(BUSY, 7))  # type: ignore[arg-type]
