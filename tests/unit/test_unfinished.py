"""A run that was stopped, or is being measured, is said to be: by each verb that shows it, to people and programs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import nearmetal as nm
from fake_runs import edit_study, list_anew, make_run
from nearmetal.cli.main import run as nearmetal
from nearmetal.report.as_json import report
from nearmetal.report.progress import progress
from nearmetal.results.paths import build_view
from nearmetal.results.stopping import Unfinished, open_combinations, unfinished
from nearmetal.serve.overview import glance
from nearmetal.serve.pages import live_part
from nearmetal.store.record import record_paths
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.searchdir import SearchDir
from nearmetal.study.spec import digest
from tests.unit.report.synthetic_run import Recipe
from tests.unit.report.synthetic_run import make_run as synthetic_run

STUDY = """
format = 1
name = "small"
seed = 3
baseline = "veth"
host = { kind = "fake" }
path = [{ name = "veth" }, { name = "macvlan" }]
workload = [{ name = "latency", sizes = [8], iterations = 60, warmup = 5 }]
trials = { min_blocks = 3, max_blocks = 4 }
"""
"""Three trials a block; as near-metal needs 14 launches and nothing is slower, every block is measured."""
WHOLE = 12


def stopped(root: Path, after: int = WHOLE, seed: int = 3) -> Path:
    """Make a run that was killed after so many trials."""
    make_run(root, STUDY.replace("seed = 3", f"seed = {seed}"))
    for record in record_paths(root)[after:]:
        record.unlink()
    list_anew(root)
    return root


def lacks(root: Path) -> Unfinished | None:
    run = RunDir.open(root)
    return unfinished(run, run.trials())


def resume(root: Path) -> str:
    return f"nearmetal run --resume {root}"


@pytest.mark.parametrize(
    ("trials", "short", "says"),
    [
        (0, True, "it has 0 of at least 3 blocks"),
        (1, True, "it ended within block 1, 2 trials short of it"),
        (3, True, "it has 1 of at least 3 blocks"),
        (8, True, "it ended within block 3, 1 trial short of it"),
        (9, False, "block 4 would follow for macvlan, veth"),
        (11, True, "it ended within block 4, 1 trial short of it"),
    ],
)
def test_what_a_stopped_run_lacks_is_what_resume_would_measure(
    tmp_path: Path, trials: int, short: bool, says: str
) -> None:
    root = stopped(tmp_path / "run", trials)
    assert lacks(root) == Unfinished(running=False, short=short, says=says, resume=resume(root))
    assert nearmetal(["run", "--resume", str(root)]) == 0
    assert lacks(root) is None


def test_an_occasion_that_was_begun_counts_and_those_to_come_do_not(tmp_path: Path) -> None:
    root = stopped(tmp_path / "run")
    assert nearmetal(["run", "--resume", str(root), "--occasions", "2", "--blocks", "1"]) == 0
    found = lacks(root)
    assert found is not None
    assert found.says == "it has 1 of at least 3 blocks of occasion 2"


def test_fresh_blocks_of_another_run_have_no_schedule(tmp_path: Path) -> None:
    worse = STUDY.replace('kind = "fake" }', 'kind = "fake", options = { "base_ns.macvlan" = 20000 } }')
    base, run, again = stopped(tmp_path / "base"), make_run(tmp_path / "run", worse), tmp_path / "again"
    assert nearmetal(["gate", str(run), "--against", str(base), "--out", str(again)]) == 1
    assert lacks(again) is None


@pytest.mark.parametrize(
    ("before_block", "measured"),
    [(1, {"veth", "veth-again", "bridge"}), (2, {"veth", "veth-again"}), (3, set()), (4, {"veth", "veth-again"})],
)
def test_the_baseline_gets_its_least_blocks_at_each_occasion_when_the_others_are_given_up(
    tmp_path: Path, before_block: int, measured: set[str]
) -> None:
    recipe = Recipe(
        study=STUDY.replace("macvlan", "bridge"), blocks=3, fails=lambda order, _: order.path.label == "bridge"
    )
    run = synthetic_run(tmp_path / "run", recipe)
    found = open_combinations(run.study(), run, run.trials(), before_block=before_block)
    assert {path for path, _, _ in found} == measured


@pytest.mark.parametrize(
    ("kind", "host_kind", "of_fabric", "scheduled"),
    [
        (RunDir, "fake", False, True),
        (SearchDir, "fake", False, False),
        (RunDir, "import", False, False),
        (RunDir, "fake", True, False),
    ],
)
def test_searches_imported_figures_and_fabrics_have_no_schedule(
    tmp_path: Path, kind: type[RunDir], host_kind: str, *, of_fabric: bool, scheduled: bool
) -> None:
    info = RunInfo.now("small", digest(STUDY), host_kind, "made up")
    with kind.create(tmp_path / "run", info, STUDY, of_fabric=of_fabric) as run:
        assert (unfinished(run, []) is not None) == scheduled


def test_a_run_that_is_being_measured_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = stopped(tmp_path / "run", 3)
    with RunDir.open_for_writing(root) as writer:
        assert nearmetal(["compare", str(root)]) == 0
        out = capsys.readouterr().out
        assert "This run is being measured: its figures will change." in out
        assert "--resume" not in out
        view = build_view(writer)  # whoever writes it is not measuring it while it reads
        assert view.unfinished is not None
        assert not view.unfinished.running


class TestVerbs:
    @pytest.mark.parametrize("asked", [["compare"], ["compare", "--all"], ["show"], ["advise"]])
    def test_text_says_so_on_the_first_screen(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str]
    ) -> None:
        for trials, said in ((4, True), (WHOLE, False)):
            root = stopped(tmp_path / f"run-{trials}", trials)
            assert nearmetal([*asked, str(root)]) == 0
            first = capsys.readouterr().out.splitlines()[:6]
            assert ("NOT FINISHED: it ended within block 2, 2 trials short of it." in first) == said
            assert (f"To measure the rest: {resume(root)}" in first) == said

    @pytest.mark.parametrize("verb", ["compare", "show", "advise"])
    def test_json_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
        assert nearmetal([verb, str(root := stopped(tmp_path / "run", 4)), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["unfinished"] == {
            "running": False,
            "short": True,
            "says": "it ended within block 2, 2 trials short of it",
            "resume": resume(root),
        }
        assert nearmetal([verb, str(stopped(tmp_path / "whole")), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["unfinished"] is None

    def test_a_page_says_so_in_its_header(self, tmp_path: Path) -> None:
        for trials, said in ((4, True), (WHOLE, False)):
            root = stopped(tmp_path / f"run-{trials}", trials)
            assert nearmetal(["report", str(root)]) == 0
            header = (root / "report.html").read_text().partition("<main")[0]
            assert ("NOT FINISHED: it ended within block 2" in header) == said
            assert (resume(root) in header) == said

    @pytest.mark.parametrize(
        ("asked", "stream"),
        [
            (["compare", "--format", "markdown"], "out"),
            (["compare", "--format", "csv"], "err"),
            (["compare", "--format", "latex"], "err"),
            (["plot", "mean", "-o", "chart.svg"], "err"),
            (["show", "--as", "osu"], "err"),
        ],
    )
    def test_other_forms_say_so(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        asked: list[str],
        stream: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        stopped(Path("cut"), 4)
        assert nearmetal([asked[0], "cut", *asked[1:]]) == 0
        text = getattr(capsys.readouterr(), stream)
        assert "NOT FINISHED" in text
        assert "run --resume cut" in text.replace("\\", "")

    def test_a_published_table_is_set_beside_it_with_a_word_of_that(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nearmetal(["compare", str(stopped(tmp_path / "run", 4)), "--published", "nanos-table1"])
        assert capsys.readouterr().err.startswith("NOT FINISHED: ")

    def test_a_history_that_takes_a_run_before_its_end_says_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for trials, said in ((7, True), (9, False), (WHOLE, False)):
            root = stopped(tmp_path / f"run-{trials}", trials, seed=trials)
            assert nearmetal(["history", "add", str(tmp_path / "h.duckdb"), str(root)]) == 0
            assert (resume(root) in capsys.readouterr().err) == said

    def test_the_list_and_the_live_page_of_serve_say_so(self, tmp_path: Path) -> None:
        for trials, said in ((4, True), (9, False), (WHOLE, False)):
            run = RunDir.open(stopped(tmp_path / f"run-{trials}", trials))
            view = build_view(run, distributions=False)
            assert ("not finished: it ended within block 2, 2 trials short of it" in glance(view)) == said
            page = live_part(progress(run, run.trials()), view, "")
            assert ("NOT FINISHED: it ended within block 2" in page) == said
            assert (resume(run.root) in page) == (trials < WHOLE)
            assert resume(run.root) not in live_part(progress(run, run.trials(), running=True), view, "")

    def test_python_says_so_first(self, tmp_path: Path) -> None:
        cut, whole = (nm.open_run(stopped(tmp_path / f"run-{n}", n, seed=n)) for n in (4, WHOLE))
        assert cut.compare().says.startswith("NOT FINISHED: it ended within block 2, 2 trials short of it.")
        assert "NOT FINISHED" not in whole.compare().says
        assert whole.compare(cut).says.startswith(f"{cut.path} is NOT FINISHED: ")

    def test_show_lists_trials_of_an_edited_study_and_says_what_it_does_not_know(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = stopped(tmp_path / "run", 4)
        (root / "study.toml").write_text(STUDY.replace("max_blocks = 4", "max_blocks = 3"))
        assert nearmetal(["show", str(root)]) == 0
        captured = capsys.readouterr()
        assert "whether the run is finished is not known" in captured.err
        assert "macvlan" in captured.out

    def test_run_ends_with_what_a_report_of_it_says(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "s.toml").write_text(STUDY)
        root = tmp_path / "r"
        assert nearmetal(["run", str(tmp_path / "s.toml"), "--out", str(root), "--blocks", "3"]) == 0
        captured = capsys.readouterr()
        assert "NOT FINISHED" not in captured.out + (page := (root / "report.html").read_text())
        assert "More to measure: block 4 would follow for" in page
        assert report(build_view(RunDir.open(root))).unfinished == lacks(root)


class TestGate:
    ASKED = ("--margin", "100%", "--tail-margin", "100%", "--no-remeasure")

    def gate(self, run: Path, base: Path, *more: str) -> int:
        return nearmetal(["gate", str(run), "--against", str(base), *self.ASKED, *more])

    @pytest.mark.parametrize("which", ["run", "base"])
    def test_nothing_passes_where_a_run_was_cut_short(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
    ) -> None:
        trials = {"run": WHOLE, "base": WHOLE, which: 8}
        roots = [stopped(tmp_path / name, n, seed=4 + n + len(name)) for name, n in trials.items()]
        assert self.gate(*roots, "--junit", str(tmp_path / "gate.xml")) == 2
        out = capsys.readouterr().out
        cut = tmp_path / which
        assert f"{cut} is NOT FINISHED: it ended within block 3, 1 trial short of it." in out
        assert f"To measure the rest: {resume(cut)}" in out
        assert "; not finished; margin 100 %" in out
        suite = ET.parse(tmp_path / "gate.xml").getroot()
        assert suite.get("errors") == "1"
        assert [one.get("name") for one in suite.iter("testcase") if one.find("error") is not None] == [
            "both runs are finished"
        ]
        assert int(suite.get("tests", "")) == len([*suite.iter("testcase")])

    def test_a_run_with_its_least_blocks_passes_and_is_said_not_to_have_ended(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run, base = stopped(tmp_path / "run", 9, seed=4), stopped(tmp_path / "base", seed=5)
        assert self.gate(run, base) == 0
        assert f"{run} has more to measure: block 4 would follow for" in capsys.readouterr().out
        assert self.gate(run, base, "--format", "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["run"]["unfinished"]["short"] is False
        assert found["base"]["unfinished"] is None

    def test_a_run_that_is_worse_stays_worse(self, tmp_path: Path) -> None:
        worse = STUDY.replace('kind = "fake" }', 'kind = "fake", options = { "base_ns.macvlan" = 90000 } }')
        run, base = make_run(tmp_path / "run", worse), stopped(tmp_path / "base")
        record_paths(run)[-1].unlink()
        list_anew(run)
        assert self.gate(run, base) == 1

    def test_many_runs_are_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        runs = [stopped(tmp_path / f"run-{n}", n, seed=n) for n in (6, WHOLE)]
        base = stopped(tmp_path / "base", 9)
        assert nearmetal(["compare", *map(str, runs), "--against", str(base)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "NOT FINISHED: 1 of 3 runs (run-6); to measure the rest of one: nearmetal run --resume RUN" in text


def test_a_study_that_was_put_back_is_judged_by_its_own_schedule(tmp_path: Path) -> None:
    root = stopped(tmp_path / "run", 9)
    edit_study(root, lambda text: text.replace("max_blocks = 4", "max_blocks = 3"))
    assert lacks(root) is None
