"""Parts of a program: which cells are parts, and where their noise counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nearmetal.cli.main import run as nearmetal
from nearmetal.report.steps import gains, next_steps
from nearmetal.report.tables import settings
from nearmetal.report.words import launches_sentence, noise_sentence, reach, reached
from nearmetal.results.paths import build_view
from nearmetal.results.series import is_part
from nearmetal.results.stopping import decided, open_combinations
from nearmetal.stats.equivalence import Verdict
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.order import AGAIN, Order, Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study

STUDY = """
format = 1
name = "program"
seed = 1
baseline = "veth"

[[path]]
name = "veth"
[[path]]
name = "tap"

[[workload]]
name = "turbulence"
kind = "application"
operation = "ft"

[trials]
min_blocks = 5
max_blocks = 9
floor = "2 %"
"""

LOUD = (1.0, 1.3, 0.8, 1.25, 0.75)
"""What a block costs more under the baseline's second name."""


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("ft.W.communication", True),
        ("ft.W", True),
        ("ft.W.total", False),
        ("ft.WX.communication", False),
        ("cg.W", False),
        ("latency", False),
    ],
)
def test_a_part_has_a_whole_in_the_same_launch(operation: str, expected: bool) -> None:
    measured = {("w", "ft.W.total"), ("w", operation), ("another", "cg.W.total")}
    assert is_part("w", operation, measured) is expected


def cell(operation: str, ms: float) -> CellSamples:
    ns = np.full((1, 1), round(ms * 1e6), dtype=np.int64)
    return CellSamples(operation, 0, 0, (0,), np.zeros_like(ns), ns, np.zeros_like(ns, dtype=np.uint8))


def launch(order: Order, loud: str, wild: str) -> list[CellSamples]:
    """Return a launch of a program of 100 ms.

    The operation `loud` differs between the baseline's two names, the operation `wild` over tap from block to block.
    """
    again = order.path.label.endswith(AGAIN)
    cost = 2.0 if order.path.label == "tap" else 1.0 + 0.001 * again * order.block
    wilder = {wild: 4.0 if order.block % 2 else 0.3} if order.path.label == "tap" else {}
    usual = {"ft.W.total": 100.0, "ft.W": 16.0, "ft.W.communication": 4.0} | ({wild: 16.0} if wild else {})
    return [
        cell(name, ms * cost * wilder.get(name, 1.0) * (LOUD[order.block] if again and name == loud else 1.0))
        for name, ms in usual.items()
    ]


def measured(folder: Path, loud: str, text: str = STUDY, wild: str = "") -> RunDir:
    study = parse_study(text, "study.toml")
    info = RunInfo(study.name, digest(text), "local", "here", "0.1.0", "2026-11-23T09:00:00+00:00")
    with RunDir.create(folder, info, text) as run:
        for order in (one for number in range(len(LOUD)) for one in plan.block(study, number)):
            cells = launch(order, loud, wild)
            run.append(order, Outcome(TrialStatus.VALID), cells, attempt=1, started_utc=info.created_utc)
    return RunDir.open(folder)


@pytest.mark.parametrize(("loud", "ends"), [("ft.W.communication", True), ("ft.W", True), ("ft.W.total", False)])
def test_a_study_continues_for_the_noise_of_a_program_but_not_of_its_parts(
    tmp_path: Path, loud: str, ends: bool
) -> None:
    with measured(tmp_path / "run", loud) as run:
        found = decided(parse_study(STUDY, "study.toml"), run, run.trials())
    assert found == ({("tap", "turbulence", "as-found")} if ends else set())


@pytest.mark.parametrize(("spread", "ends"), [(0.12, True), (0.16, False)])
def test_a_program_stops_on_what_the_correction_over_its_cells_leaves(
    tmp_path: Path, spread: float, ends: bool
) -> None:
    """One workload without sizes has three cells: the report corrects for three, and so does the end of the study."""
    text = STUDY.replace('floor = "2 %"\n', "")
    study = parse_study(text, "study.toml")
    info = RunInfo(study.name, digest(text), "local", "here", "0.1.0", "2026-11-23T09:00:00+00:00")
    costs = np.exp(0.25 + spread * np.array([-0.9, 0.4, 0.8, -0.6, 0.3]))
    with RunDir.create(tmp_path / "run", info, text) as run:
        for order in (one for number in range(costs.size) for one in plan.block(study, number)):
            cost = costs[order.block] if order.path.label == "tap" else 1.0 + 0.0001 * order.block
            cells = [cell(f"ft.W{part}", 10.0 * cost) for part in ("", ".total", ".communication")]
            run.append(order, Outcome(TrialStatus.VALID), cells, attempt=1, started_utc=info.created_utc)
        assert (decided(study, run, run.trials()) == {("tap", "turbulence", "as-found")}) == ends
    (verdict,) = build_view(RunDir.open(tmp_path / "run"), distributions=False).verdicts
    assert (verdict.verdict is Verdict.SLOWER) == ends, "a study does not end with what its report does not say"


@pytest.mark.parametrize(("loud", "ends"), [("ft.W", True), ("ft.W.total", False)])
def test_a_study_of_only_the_baseline_continues_until_it_is_quiet(tmp_path: Path, loud: str, ends: bool) -> None:
    text = STUDY.replace('[[path]]\nname = "tap"\n', "")
    with measured(tmp_path / "run", loud, text) as run:
        found = open_combinations(parse_study(text, "study.toml"), run, run.trials(), before_block=5)
    names = () if ends else ("veth", "veth" + AGAIN)
    assert found == {(name, "turbulence", "as-found") for name in names}


def test_the_noise_of_parts_is_reported_beside_that_of_programs(tmp_path: Path) -> None:
    with measured(tmp_path / "run", "ft.W.communication") as run:
        view = build_view(run)
    assert view.noise_floor is not None
    assert view.noise_of_parts is not None
    assert view.noise_floor < 0.02
    assert view.noise_of_parts > 0.2
    sentence = noise_sentence(view)
    assert "veth measured against itself, worst of 1 cell)" in sentence
    assert sentence.endswith(
        f"Of parts, such as a program's communication: {view.noise_of_parts:.0%}.".replace("%", " %")
    )


def test_verdicts_report_which_modes_so_few_launches_may_have_missed(tmp_path: Path) -> None:
    with measured(tmp_path / "run", "ft.W.communication") as run:
        sentence = launches_sentence(build_view(run))
    assert sentence == " Ratios rest on 5 launches of each path: a mode in fewer than 45 % of launches may be unseen."
    with measured(tmp_path / "alone", "", STUDY.replace('[[path]]\nname = "tap"\n', "")) as run:
        assert launches_sentence(build_view(run)) == ""


def test_a_verdict_covers_the_decided_cells(tmp_path: Path) -> None:
    with measured(tmp_path / "run", "", wild="is.W") as run:
        view = build_view(run)
    (verdict,) = view.verdicts
    assert verdict.counts == ((Verdict.SLOWER, 1), (Verdict.UNDECIDED, 1))
    wild = next(found for at, _, found in view.compared() if at.group.operation == "is.W")
    assert wild.headline.ratio < 1.9
    assert (reach(verdict), reached(view, verdict)[:33]) == ("1.998 where decided", ", 1.998 times veth where decided ")


def test_the_verdict_on_a_path_rests_on_programs_and_names_their_parts(tmp_path: Path) -> None:
    with measured(tmp_path / "run", "", wild="ft.W.communication") as run:
        view = build_view(run)
    (verdict,) = view.verdicts
    assert verdict.counts == ((Verdict.SLOWER, 1),)
    assert verdict.verdict is Verdict.SLOWER
    assert verdict.reason == "slower in 1 of 1 cell; of parts: slower in 1, undecided in 1 of 2"
    assert "(ft.W.communication): " in next_steps(view)[-1]


def test_the_gain_of_a_setting_is_that_of_the_whole_program(tmp_path: Path) -> None:
    two = '[[setting]]\nname = "plain"\n[[setting]]\nname = "tuned"\n[trials]'
    study = parse_study(text := STUDY.replace("[trials]", two), "study.toml")
    info = RunInfo(study.name, digest(text), "local", "here", "0.1.0", "2026-11-23T09:00:00+00:00")
    with RunDir.create(tmp_path / "run", info, text) as run:
        for order in (one for number in range(5) for one in plan.block(study, number)):
            speed = 1.2 if order.setting == "tuned" else 1.0
            cells = [cell("ft.W.total", 100.0 / speed), cell("ft.W.communication", 4.0 / speed**9)]
            run.append(order, Outcome(TrialStatus.VALID), cells, attempt=1, started_utc=info.created_utc)
        view = build_view(run)
    assert gains(view) == [
        f"tuned against plain, turbulence over {path}: 1.20 times as fast." for path in ("veth", "tap")
    ]
    # 0.194 of the communication stood beside the program's 0.833, both by the name of the workload alone.
    ratios = {row[0]: row[2].partition("\n")[0] for row in settings(view).rows}
    assert ratios == {
        f"{path}\nturbulence (ft.W.{part})": ratio
        for part, ratio in (("communication", "0.194"), ("total", "0.833"))
        for path in ("veth", "tap")
    }


def judged(folder: Path, slow: str, by: float, *more: str) -> int:
    """Gate a run in which one operation of the program takes `by` times as long over tap."""

    def made(name: str, cost: float) -> Path:
        study = parse_study(STUDY, "study.toml")
        info = RunInfo(study.name, digest(STUDY), "local", "here", "0.1.0", "2026-11-23T09:00:00+00:00")
        with RunDir.create(folder / name, info, STUDY) as run:
            for order in (one for number in range(5) for one in plan.block(study, number)):
                noise = 1.0 + 0.001 * order.block
                usual = {"ft.W.total": 100.0, "ft.W": 16.0, "ft.W.communication": 4.0}
                costs = {one: cost if one == slow and order.path.label == "tap" else 1.0 for one in usual}
                cells = [cell(one, ms * noise * costs[one]) for one, ms in usual.items()]
                started = f"2026-11-23T09:00:{order.trial:02d}.{len(name)}00000+00:00"
                run.append(order, Outcome(TrialStatus.VALID), cells, attempt=1, started_utc=started)
        return folder / name

    base, run = made("base", 1.0), made("after", by)
    return nearmetal(["gate", str(run), "--against", str(base), "--no-remeasure", *more])


@pytest.mark.parametrize(("slow", "code"), [("ft.W.total", 1), ("ft.W", 0), ("ft.W.communication", 0)])
def test_a_gate_judges_the_program_and_names_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slow: str, code: int
) -> None:
    assert judged(tmp_path, slow, 2.0, "--junit", str(tmp_path / "gate.xml")) == code
    out = " ".join(capsys.readouterr().out.split())
    if code:
        assert "verdict: worse (1 worse, 1 within; of parts: 4 within;" in out
    else:
        assert "verdict: within (2 within; of parts: 1 worse, 3 within;" in out
        assert f"part, not judged: tap turbulence/{slow} as-found: worse: 2" in out
        assert "worse (part)" in out
    junit = (tmp_path / "gate.xml").read_text()
    assert ("<failure" in junit) == bool(code)
    assert "communication" not in junit


def test_json_of_a_gate_marks_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(tmp_path, "ft.W", 2.0, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["operation"]: one["part"] for one in found["cells"]} == {
        "ft.W.total": False,
        "ft.W": True,
        "ft.W.communication": True,
    }
