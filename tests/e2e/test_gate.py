"""`nearmetal gate` from end to end on the fake host, and once on real namespaces."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from fake_runs import RunCache, edit_study, rewrite
from nearmetal.cli.main import run as nearmetal
from nearmetal.hosts.fake import FakeHost
from nearmetal.results.between import Question, judge, read_figures, read_pair, suspects
from nearmetal.results.paths import build_view
from nearmetal.stats.between import Standing
from nearmetal.stats.summary import Metric
from nearmetal.store.rundir import RunDir
from nearmetal.store.samples import CellSamples, describe, part_sums, write_samples
from nearmetal.store.sums import file_sha256
from nearmetal.study.order import AGAIN
from tests.unit.report.synthetic_run import COST, ONE_SIZE, Recipe, make_run

STUDY = """
format = 1
name = "made-up"
seed = {seed}
baseline = "veth"
path = [{{ name = "veth" }}, {{ name = "tap" }}]
trials = {{ min_blocks = 5, max_blocks = 5 }}
[host]
kind = "fake"
options = {{ {options} }}
[[workload]]
name = "latency"
sizes = [8, "1 KiB"]
iterations = 60
[[workload]]
name = "bw"
sizes = ["64 KiB"]
iterations = 60
"""


@pytest.fixture
def made(kept: RunCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that makes a run with a name, in a separate working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def make(name: str, options: str = "", seed: int = 1, change: tuple[str, str] = ("", "")) -> str:
        kept.copy(Path(name), STUDY.format(options=options, seed=seed).replace(*change))
        return name

    return make


def gate(*argv: str) -> int:
    return nearmetal(["gate", *argv])


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_another_run_of_the_same_state_is_within(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(made("new", seed=2), "--against", made("old")) == 0
    printed = capsys.readouterr()
    assert "verdict: within (6 within; margin 5 %" in printed.out
    assert "is not known" in printed.out, "one run of each state gives no noise between runs"
    assert max(map(len, printed.out.splitlines())) <= 80
    assert not list(Path().glob("new-again-*"))


def test_what_a_study_only_writes_otherwise_is_no_change(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A default that was written out was listed as `changed: study margin: missing -> "5 %"`."""
    base = made("old")
    spelled = 'margin = "5 %"\ntail_margin = 0.1\nmpi = { flavour = "openmpi" }\npath ='
    assert gate(made("spelled", change=("path =", spelled)), "--against", base) == 0
    assert "changed: study" not in capsys.readouterr().out
    assert gate(made("out", change=('["64 KiB"]', "[65536]")), "--against", base) == 0
    assert "changed: study" not in capsys.readouterr().out
    assert gate(made("new", change=("min_blocks = 5", "min_blocks = 4")), "--against", base) == 0
    assert "changed: study trials.min_blocks: 5 -> 4" in capsys.readouterr().out
    assert gate(made("wide", change=("path =", 'margin = "30 %"\npath =')), "--against", base) == 0
    assert 'changed: study margin: 0.05 (default) -> "30 %"' in capsys.readouterr().out, "and not `missing`"


def test_a_run_is_not_compared_with_itself(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(shutil.copytree(made("old"), "copy"), "--against", "old") == 64
    assert "copy and old are copies of one run: they share 30 trials of 30 and 30" in capsys.readouterr().err
    for record in Path("copy", "trials").iterdir():
        rewrite(record, lambda raw: raw["outcome"].update(status="failed"))
    assert gate("copy", "--against", "old") == 64
    assert "copy and old have no cell in common" in capsys.readouterr().err, "an empty run is not part of another"
    anew = made("alike", change=("format = 1", "format = 1  # measured anew"))
    assert gate(anew, "--against", "old") == 0, "equal results, even from the same second, are another run"


def test_margins_are_stated_as_they_were_asked_for(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """12.5 % read as 12 %, and 0.125 % as 0.12 %."""
    exact = 'margin = "12.5 %"\ntail_margin = "17.5 %"\npath ='
    run = made("exact", change=("path =", exact))
    assert nearmetal(["compare", run, "--all"]) == 0
    assert "mean and median within 12.5 % and p99 within 17.5 %" in " ".join(capsys.readouterr().out.split())
    assert nearmetal(["plan", str(Path(run, "study.toml"))]) == 0
    assert "12.5 %" in capsys.readouterr().out
    assert gate(run, "--against", made("old"), "--margin", "0.125%", "--no-remeasure") in {0, 1, 2}
    assert "margin 0.125 %" in capsys.readouterr().out


def test_worse_is_reported_only_if_fresh_blocks_confirm_it(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    before = sorted(Path(new).rglob("*"))
    assert gate(new, "--against", base, "--format", "json", "--out", "again") == 1
    printed = capsys.readouterr()
    assert re.findall(r"block \d+ of [a-z ]*\d+", printed.err) == [f"block {one} of 5" for one in range(1, 6)]
    gated = json.loads(printed.out)
    assert gated["verdict"] == "worse"
    stands = {(c["path"], c["workload"]): c["stands"] for c in gated["cells"]}  # type: ignore[attr-defined]
    assert stands == {
        ("veth", "latency"): "within",
        ("tap", "latency"): "worse",
        ("veth", "bw"): "within",
        ("tap", "bw"): "worse",
    }
    assert sorted(Path(new).rglob("*")) == before, "fresh blocks are not part of the run"
    records = RunDir.open(Path("again")).trials()
    assert {r.order.block for r in records} == {5, 6, 7, 8, 9}
    assert {r.order.path.label for r in records} == {"tap", "veth", "veth-again"}, "the baseline's figures are of both"
    assert gated["remeasured"]["blocks"] == 5  # type: ignore[index]
    assert 0 < gated["noise_floor_between_runs"] < 0.02  # type: ignore[operator]
    assert gate(new, "--against", base, "--no-remeasure", "--format", "json") == 1
    first = found(capsys)
    levels, at_first = (
        {(cell["path"], cell["workload"]): cell["run"] for cell in one["cells"]}  # type: ignore[index]
        for one in (gated, first)
    )
    fresh = {cell for cell, level in levels.items() if level != at_first[cell]}
    assert fresh == {("tap", "latency"), ("tap", "bw")}, "only what looked worse is judged by fresh blocks"
    # the same directory again: everything exists, nothing is measured twice
    assert gate(new, "--against", base, "--out", "again") == 1
    assert len(RunDir.open(Path("again")).trials()) == len(records)


def test_fresh_blocks_are_of_one_occasion_however_many_they_are(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve fresh blocks of a run of at most five counted as three occasions, though all were measured at once."""
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    assert gate(new, "--against", base, "--format", "json", "--out", "again", "--blocks", "12") == 1
    fresh = [cell["difference"] for cell in found(capsys)["cells"] if cell["at_first"]]  # type: ignore[attr-defined]
    assert {(one["run_blocks"], one["run_occasions"]) for one in fresh} == {(12, 1)}
    view = build_view(RunDir.open(Path("again")), distributions=False)
    assert (view.occasions, view.blocks, view.planned_blocks) == (1, 12, (12, 12))
    compared = [one.comparison for cell in view.cells for one in cell.paths if one.comparison]
    assert {one.launches for one in compared} == {12}, "a report on them used the first five"


def test_all_fresh_blocks_that_decide_are_counted(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of a directory with five of them, three were asked for: five decided, and `3 fresh blocks` were said to."""
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    assert gate(new, "--against", base, "--out", "again", "--blocks", "5") == 1
    capsys.readouterr()
    assert gate(new, "--against", base, "--out", "again", "--blocks", "3", "--format", "json") == 1
    told = found(capsys)
    assert {cell["difference"]["run_blocks"] for cell in told["cells"] if cell["at_first"]} == {5}  # type: ignore[attr-defined]
    assert told["remeasured"]["blocks"] == 5  # type: ignore[index]


def test_runs_of_several_occasions_are_compared_by_occasion(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = made("old"), made("new", seed=2)
    for run in (new, new, new):
        assert nearmetal(["run", "--resume", run, "--occasions", "3"]) == 0
    capsys.readouterr()
    assert gate(new, "--against", base, "--format", "json") == 0
    gated = found(capsys)
    assert (gated["run"]["occasions"], gated["base"]["occasions"]) == (3, 1)  # type: ignore[index]
    cell = gated["cells"][0]  # type: ignore[index]
    counts = {name: cell["difference"][name] for name in cell["difference"] if name.endswith(("_blocks", "_occasions"))}
    assert counts == {"run_blocks": 15, "base_blocks": 5, "run_occasions": 3, "base_occasions": 1}
    assert gate(new, "--against", base, "--openmetrics", "m.prom") == 0
    families = {one.name: one for one in openmetrics(Path("m.prom").read_text())}
    assert {one.value for one in families["nearmetal_gate_cell_blocks"].samples} == {15.0}
    assert {one.value for one in families["nearmetal_gate_cell_occasions"].samples} == {3.0}
    assert 0 < cell["difference"]["floor"] < 0.02, "the occasions of one run are measurements of one state"
    run = RunDir.open(Path(new))
    logs: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for record in run.trials():
        if (record.order.path.label.removesuffix(AGAIN), record.order.workload.label) == (
            cell["path"],
            cell["workload"],
        ):
            (kept,) = (one for one in record.cells if one.message_bytes == cell["message_bytes"])
            logs[record.order.block // 5].append(math.log(run.summary(record, kept).trimmed_mean_ns))
    means = [sum(one) / len(one) for one in logs.values()]
    assert cell["difference"]["floor"] == pytest.approx(math.expm1(max(means) - min(means)))


def test_a_run_that_only_looked_worse_is_not_called_worse(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    monkeypatch.setattr(FakeHost, "__init__", lambda self, options: setattr(self, "_options", {}))
    assert gate(new, "--against", base, "--no-remeasure") == 1
    capsys.readouterr()
    assert gate(new, "--against", base) == 0
    printed = capsys.readouterr().out
    assert "3 cells looked worse" in printed
    assert "the run's own blocks gave 1.1" in " ".join(printed.split())


def test_a_size_of_0_b_is_named_where_there_are_others(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    zero = ("sizes = [8,", "sizes = [0,")
    base, new = made("old", change=zero), made("new", '"base_ns.tap" = 28000', change=zero)
    assert gate(new, "--against", base, "--no-remeasure", "--junit", "j.xml", "--reframe", "p.log") == 1
    assert "tap latency 0 B as-found: worse" in capsys.readouterr().out
    cases = [case.get("name") for case in ET.parse("j.xml").getroot().iter("testcase")]
    assert "tap latency 0 B as-found" in cases
    assert "tap_latency_0_B_as-found_value" in Path("p.log").read_text().partition("\n")[0].split("|")


def test_a_regression_that_the_floor_covers_is_undecided(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 40000')
    monkeypatch.setattr(FakeHost, "__init__", lambda self, options: setattr(self, "_options", {"base_ns.tap": 28000}))
    assert gate(new, "--against", base) == 2
    assert "not beyond the difference between runs of one state" in " ".join(capsys.readouterr().out.split())


def test_without_its_host_nothing_is_called_worse(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    for name in (base, new):
        edit_study(Path(name), lambda t: t.replace('kind = "fake"', 'kind = "import"').replace("options", "#options"))
    assert gate(new, "--against", base) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("not measured again: this run was imported from files"), (
        "and not `measuring 5 blocks`"
    )
    assert "could not be measured again" in printed.out
    assert gate(new, "--against", base, "--no-remeasure") == 1


def test_fresh_blocks_of_another_state_confirm_nothing(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    carry_out = FakeHost.carry_out

    def updated(self: FakeHost, order, body):  # type: ignore[no-untyped-def]
        outcome = carry_out(self, order, body)
        outcome.facts["kernel.release"] = "6.99"
        return outcome

    monkeypatch.setattr(FakeHost, "carry_out", updated)
    assert gate(new, "--against", base, "--out", "again") == 2
    assert "kernel.release: 0 in the run, 6.99 now" in capsys.readouterr().err
    assert {r.order.block for r in RunDir.open(Path("again")).trials()} == {5}, "seen after the first block"


def test_a_failing_path_does_not_pass(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(made("new", '"fail.tap" = "link is down"'), "--against", made("old")) == 2
    printed = capsys.readouterr().out.replace("\n", " ")
    assert "no valid trial in the run: " in printed
    assert "link is down" in printed


def test_a_baseline_without_a_valid_trial_counts_the_failures_of_both_its_names(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = made("old"), made("new", '"fail.veth" = "down", "fail.veth-again" = "down"', seed=2)
    assert gate(new, "--against", base, "--no-remeasure", "--format", "json") == 2
    reasons = {cell["reason"] for cell in found(capsys)["cells"] if cell["path"] == "veth"}  # type: ignore[attr-defined]
    failed = [one for one in RunDir.open(Path(new)).trials() if one.order.workload.label == "latency" and not one.valid]
    assert {one.order.path.label for one in failed} == {"veth", "veth-again"}
    assert reasons == {f"no valid trial in the run: {len(failed)} failed, the last one with: down"}


def test_what_the_base_could_not_measure_is_named(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    base, new = made("old", '"fail.tap" = "link is down"'), made("new", seed=2)
    assert gate(new, "--against", base, "--no-remeasure") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "By median, margin 5 %: 3 within. By p99: no cell has launches of enough samples." in out
    assert "Not compared, for the base has no valid trial of it: tap (3 cells)." in out
    assert gate(new, "--against", base, "--no-remeasure", "--format", "json") == 0
    named = found(capsys)["not_in_base"]
    assert [(one["path"], one["message_bytes"]) for one in named] == [  # type: ignore[attr-defined]
        ("tap", 8),
        ("tap", 1024),
        ("tap", 65536),
    ]


def test_what_neither_run_could_measure_is_named(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    """A path whose trials failed before the change and after it passed without a word."""
    fails = '"fail.tap" = "link is down"'
    base, new = made("old", fails), made("new", fails, seed=2)
    assert gate(new, "--against", base, "--no-remeasure", "--format", "json") == 0
    says = "no trial of bw as-found, latency as-found over tap is valid, here or in the base: it is not judged"
    assert found(capsys)["run"]["cautions"] == [says]  # type: ignore[index]
    assert gate(new, "--against", base, "--no-remeasure") == 0
    assert f"CAUTION: in the run, {says}." in " ".join(capsys.readouterr().out.split())


def test_launches_too_short_for_a_figure_are_not_called_no_blocks(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    base, short = made("old"), made("short", change=("iterations = 60", "iterations = 4"))
    assert gate(short, "--against", base, "--metric", "median", "--no-remeasure", "--format", "json") == 2
    reasons = {one["reason"] for one in found(capsys)["cells"]}  # type: ignore[attr-defined]
    assert reasons == {"no median: launches of the run have fewer than 6 samples"}


def test_the_control_gives_the_noise_between_runs(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    base = made("old")
    both = made("both", '"base_ns.tap" = 28000, "base_ns.veth" = 16000')
    assert gate(both, "--against", base, "--no-remeasure") == 1
    capsys.readouterr()
    assert gate(both, "--against", base, "--no-remeasure", "--control", "veth", "--format", "json") == 2
    gated = found(capsys)
    assert gated["noise_floor_between_runs"] > 0.15  # type: ignore[operator]
    assert {c["control"] for c in gated["cells"] if c["path"] == "veth"} == {True}  # type: ignore[attr-defined]
    assert gate(both, "--against", base, "--control", "nosuch") == 64


def test_a_control_without_figures_is_no_silent_one(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trials had failed after the change: the gate was as without it, and said that no noise is known."""
    three = ('{ name = "tap" }', '{ name = "tap" }, { name = "macvlan" }')
    base = made("old", change=three)
    new = made("new", '"base_ns.tap" = 28000, "fail.macvlan" = "link is down"', seed=2, change=three)
    asked = [new, "--against", base, "--no-remeasure", "--format", "json", "--control"]
    gate(*asked, "macvlan")
    (told,) = found(capsys)["run"]["cautions"]  # type: ignore[index]
    assert told == "the control macvlan has no figure in both runs beside 6 of 6 cells: they are judged without it"
    gate(*asked, "veth")
    assert found(capsys)["run"]["cautions"] == []  # type: ignore[index]


def test_what_is_not_measured_again_still_has_to_exceed_its_floor(tmp_path: Path) -> None:
    """With fresh blocks of other cells, a tail as much longer on the control path was a finding."""
    made = [
        make_run(tmp_path / name, Recipe(ONE_SIZE, cost={**COST, **costs}, stalls=frozenset(stalls)))
        for name, costs, stalls in (
            ("old", {}, ()),
            ("new", {"bridge": 1.4}, ("veth", "tap")),
            ("again", {"bridge": 1.4}, ("veth", "tap")),
        )
    ]
    question = Question(0.05, control="veth")
    pair = read_pair(made[1], made[0], question)
    first = judge(pair)
    assert first.against == ()
    cells = suspects(first)
    assert [cell.path for cell in cells] == ["bridge"]
    gate = judge(pair, read_figures(made[2], question), suspects=cells)
    assert gate.against == ()
    assert {one.cell.path for one in gate.judged if one.standing is Standing.WORSE} == {"bridge"}
    floors = {one.cell.path: one.found.floor for one in gate.others if one.found and one.metric is Metric.P99}
    assert floors["tap"] is not None
    assert floors["tap"] > 0.2


def test_what_the_control_does_in_the_fresh_blocks_counts_as_noise(tmp_path: Path) -> None:
    """They decide, so their control does, too: of it only the run's own blocks counted, and the path was worse."""
    old, new, again = (
        make_run(tmp_path / name, Recipe(ONE_SIZE, cost={**COST, "bridge": bridge, "macvlan": control}))
        for name, bridge, control in (("old", 1.0, 1.0), ("new", 1.12, 1.0), ("again", 1.12, 1.15))
    )
    for control, stands in (("shm", Standing.WORSE), ("macvlan", Standing.UNDECIDED)):
        question = Question(0.05, control=control)
        pair = read_pair(new, old, question)
        cells = [cell for cell in suspects(judge(pair)) if cell.path == "bridge"]
        gate = judge(pair, read_figures(again, question), suspects=cells)
        (bridge,) = (one for one in gate.judged if one.cell.path == "bridge")
        assert bridge.standing is stands
    assert bridge.found
    assert bridge.found.floor == pytest.approx(0.15, abs=0.01)


def test_a_disturbed_run_is_not_judged_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a run's own report said so; a machine that is busy in one run looks like a change."""
    new, base = str(tmp_path / "new"), str(tmp_path / "old")
    make_run(tmp_path / "old", Recipe(ONE_SIZE, blocks=5))
    make_run(tmp_path / "new", Recipe(ONE_SIZE, blocks=5, busy=5, facts=lambda order: {"kernel.release": order.block}))
    argv, junit = ["--against", base, "--allow-mixed", "--no-remeasure"], tmp_path / "junit.xml"
    assert gate(new, *argv, "--format", "json", "--junit", str(junit)) == 0
    gated = found(capsys)
    disturbed = "30 of 30 launches ran on a busy machine; in the worst of them cc1plus used 35 % of the processors"
    assert (gated["base"]["cautions"], gated["run"]["cautions"]) == ([], [disturbed])  # type: ignore[index]
    assert gate(new, *argv) == 0
    for said in (" ".join(capsys.readouterr().out.split()), junit.read_text()):
        assert f"CAUTION: in the run, {disturbed}." in said
        assert "MIXED PROVENANCE, compared on request: kernel.release: 0 | 1 | 2 | 3 | 4" in said
    assert nearmetal(["compare", new, *argv[:3]]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "CAUTION: 1 of 2 runs (new); why, of one: nearmetal compare RUN" in said
    assert "MIXED PROVENANCE, compared on request: kernel.release: 0 | 1 | 2 | 3 | 4 (new against old)" in said
    assert nearmetal(["history", "add", str(tmp_path / "h.duckdb"), new, "--allow-mixed"]) == 0
    assert f"CAUTION: {disturbed}\n" in capsys.readouterr().err


def test_p99_needs_enough_samples(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    many = ("iterations = 60", "iterations = 400")
    base = made("old", change=many)
    assert gate(made("new", seed=5, change=many), "--against", base, "--metric", "p99") == 0
    capsys.readouterr()
    assert gate(made("short"), "--against", base, "--metric", "p99") == 2
    assert "n = 60 cannot support it" in capsys.readouterr().out.replace("\n", " ")


def test_a_median_that_no_launch_supports_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Most durations of one run were 0 ns, and nothing said that its median was not compared."""
    for name, idle in (("old", None), ("new", 0.6)):
        make_run(tmp_path / name, Recipe(ONE_SIZE, blocks=5, idle=idle))
    gate(str(tmp_path / "new"), "--against", str(tmp_path / "old"), "--no-remeasure")
    said = " ".join(capsys.readouterr().out.split())
    assert "By p99, margin 10 %: 5 within. By median: no cell has one in both runs." in said


def test_a_longer_tail_is_worse_though_the_mean_is_within(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, stalls in (("old", frozenset[str]()), ("new", frozenset({"tap"}))):
        make_run(tmp_path / name, Recipe(stalls=stalls))
    files = [argument for kind in ("junit", "openmetrics") for argument in (f"--{kind}", str(tmp_path / kind))]
    runs = [str(tmp_path / "new"), "--against", str(tmp_path / "old"), "--no-remeasure"]
    assert gate(*runs, "--format", "json", *files) == 1
    gated = found(capsys)
    assert {one["stands"] for one in gated["cells"]} == {"within"}  # type: ignore[attr-defined]
    worse = {(one["path"], one["metric"]) for one in gated["others"] if one["stands"] == "worse"}  # type: ignore[attr-defined]
    assert worse == {("tap", "p99")}
    assert "worse (15 within; 3 worse by p99; margin 5 %" in gated["says"]  # type: ignore[operator]
    suite = ET.parse(tmp_path / "junit").getroot()
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert (suite.get("failures"), len(failed)) == ("3", 3)
    assert "tap latency 8 B as-found, p99" in failed
    exposed = (tmp_path / "openmetrics").read_text()
    for metric, stands, count in (("mean", "worse", 0.0), ("mean", "within", 15.0), ("p99", "worse", 3.0)):
        assert re.search(rf'_gate_cells{{.*metric="{metric}",stands="{stands}"}} {count}$', exposed, re.MULTILINE)
    assert gate(*runs) == 1
    assert "By median, margin 5 %: 15 within. By p99, margin 10 %: 3 worse" in capsys.readouterr().out
    assert gate(*runs, "--tail-margin", "40%") == gate(*runs, "--metric", "mean") == 0
    for options, says in (
        (("--metric", "p99", "--tail-margin", "40%"), "--tail-margin has no effect with --metric p99"),
        (("--margin", "20%", "--tail-margin", "10%"), "--tail-margin has no effect below --margin"),
    ):
        assert gate(*runs, *options) == 64
        assert says in capsys.readouterr().err
    assert gate(*runs, "--tail-margin", "much") == 64
    assert "--tail-margin 'much' is not a percentage" in capsys.readouterr().err


def test_differing_boots_of_the_lab_are_not_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, boots in (("old", (0.97, 1.0, 1.03)), ("new", (1.05, 1.08, 1.11))):
        study = ONE_SIZE.replace("min_blocks = 5", "min_blocks = 12").replace("max_blocks = 8", "max_blocks = 12")
        make_run(tmp_path / name, Recipe(study=study, blocks=12, boots=boots))
    runs = [str(tmp_path / "new"), "--against", str(tmp_path / "old"), "--no-remeasure"]
    assert gate(*runs, "--metric", "mean", "--format", "json") == 2
    cells = [one for one in found(capsys)["cells"] if one["path"] != "veth"]  # type: ignore[attr-defined]
    assert {one["stands"] for one in cells} == {"undecided"}
    for one in cells:
        difference = one["difference"]
        assert (difference["run_boots"], difference["base_boots"]) == (3, 3)
        # Three boots 3 % apart in each run: Student's t of 4 degrees of freedom, 2.78, times their error.
        error = math.sqrt(2) * 0.03 / math.sqrt(3)
        assert difference["interval"]["low"] == pytest.approx(1.08 * math.exp(-2.78 * error), rel=0.01)
        assert "more boots of the machine would narrow it" in one["reason"]


def test_runs_of_different_things_are_refused(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    base = made("old")
    other = made("new", change=('name = "bw"', 'name = "bw"\noptions = { window = 8 }'))
    assert gate(other, "--against", base) == 64
    assert "workload bw: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["r", "--agianst", "x"], 64, "--against"),
        (["r"], 64, "Missing option"),
        (["r", "--against", "x", "--margin", "much"], 64, "is not a percentage"),
        (["r", "--against", "x", "--margin", "5"], 64, "--margin '5' is not a percentage\nhint: write --margin 5%"),
        (["r", "--against", "x", "--tail-margin", "1"], 64, "is not a percentage"),
        (["r", "--against", "x", "--margin", "0%"], 64, "not between"),
        (["r", "--against", "x", "--no-remeasure", "--blocks", "9"], 64, "--blocks has no effect with"),
        (["r", "--against", "x", "--no-remeasure", "--out", "y"], 64, "--out has no effect with"),
        (["nowhere", "--against", "old"], 64, "not a run directory"),
        (["old", "--against", "old", "--junit", "no/such/place.xml"], 64, "is not a directory"),
    ],
)
def test_errors_have_codes_of_their_own(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], argv: list[str], code: int, message: str
) -> None:
    made("old")
    assert gate(*argv) == code
    assert message in capsys.readouterr().err


def test_a_bug_is_not_a_verdict(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = made("old"), made("new", seed=2)
    monkeypatch.setattr("nearmetal.cli.gate.judge", lambda pair: 1 / 0)
    assert gate(new, "--against", base) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_interrupted_gate_can_be_continued(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    carry_out, left = FakeHost.carry_out, [7]

    def interrupted(self: FakeHost, order, body):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return carry_out(self, order, body)

    monkeypatch.setattr(FakeHost, "carry_out", interrupted)
    assert gate(new, "--against", base, "--out", "again") == 130
    assert "repeat the command with --out again" in " ".join(capsys.readouterr().err.split())
    before = {r.order.trial: r.started_utc for r in RunDir.open(Path("again")).trials()}
    assert len(before) == 6
    assert gate(new, "--against", base, "--out", "again") == 1
    after = {r.order.trial: r.started_utc for r in RunDir.open(Path("again")).trials()}
    assert before.items() <= after.items()
    assert len(after) == 30


def test_fresh_blocks_of_an_earlier_run_decide_nothing(
    made: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeline with one --out for all builds let those of one build decide the next."""
    base, first = made("old"), made("first", '"base_ns.tap" = 28000')
    assert gate(first, "--against", base, "--out", "again") == 1
    shutil.copytree(first, "next")
    for record in Path("next", "trials").iterdir():
        rewrite(record, lambda raw: raw.update(started_utc=f"2100{raw['started_utc'][4:]}"))
    capsys.readouterr()
    assert gate("next", "--against", base, "--out", "again") == 64
    said = " ".join(capsys.readouterr().err.split())
    assert "the fresh blocks in again were begun before the last trial of next (2100-" in said
    assert nearmetal(["run", "--resume", first, "--occasions", "2"]) == 0
    capsys.readouterr()
    assert gate(first, "--against", base, "--out", "again") == 64
    said = " ".join(capsys.readouterr().err.split())
    assert "the fresh blocks in again were begun before the last trial of first (" in said, "not of another run"


@pytest.mark.parametrize("talk", ["--no-remeasure", "2>&1"])
def test_a_closed_pipe_does_not_change_the_exit_code(made: Callable[..., str], talk: str) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    command = f"set -o pipefail; {sys.executable} -m nearmetal gate {new} --against {base} {talk} | true"
    program = "from nearmetal.cli.main import main; main()"
    command = command.replace("-m nearmetal", f"-c '{program}'")
    done = subprocess.run(["bash", "-c", command], check=False, timeout=600)
    assert done.returncode == 1


# ---- files for other programs

_CHILDREN = {
    "testsuites": ["testsuite"],
    "testsuite": ["properties", "testcase", "system-out", "system-err"],
    "properties": ["property"],
    "testcase": ["skipped", "error", "failure", "system-out", "system-err"],
}
_ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "disabled", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id"},
    "testcase": {"name", "assertions", "time", "classname", "status", "class", "file", "line"},
    "property": {"name", "value"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "system-out": set(),
    "properties": set(),
}
"""What junit-10.xsd of Jenkins' xUnit plug-in allows."""


def check_junit(element: ET.Element) -> None:
    assert set(element.attrib) <= _ATTRIBUTES[element.tag], element.tag
    assert {child.tag for child in element} <= set(_CHILDREN.get(element.tag, []))
    for child in element:
        check_junit(child)


def test_files_for_other_programs_are_written(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    base, new = made("old"), made("new", '"base_ns.tap" = 28000')
    files = ["--junit", "j.xml", "--openmetrics", "m.prom", "--reframe", "p.log", "--no-remeasure"]
    assert gate(new, "--against", base, *files) == 1
    junit = ET.parse("j.xml").getroot()
    check_junit(junit)
    suite = junit.find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (
        "12",
        "6",
        "0",
    )  # each cell by mean and by median
    assert len(suite.findall("testcase/failure")) == 6

    text = Path("m.prom").read_text()
    for parse in (openmetrics, prometheus):
        samples = {
            (s.name, s.labels.get("path"), s.labels.get("message_bytes"), s.labels.get("verdict")): s.value
            for family in parse(text)
            for s in family.samples
        }
        assert samples["nearmetal_gate_verdict", None, None, "worse"] == 1.0
        assert samples["nearmetal_gate_verdict", None, None, "within"] == 0.0
        assert 1.1 < samples["nearmetal_gate_cell_ratio", "tap", "8", None] < 1.3

    dashboard = json.loads((Path(__file__).parents[2] / "packaging/monitoring/grafana.json").read_text())
    asked = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    names = {name for one in asked for name in re.findall(r"nearmetal_\w+", one)}
    labels = {label for one in asked for label in re.findall(r"(\w+)=~?\"", one)}
    assert len(asked) >= 8
    assert names <= {family.name for family in openmetrics(text)}
    assert labels <= {label for family in openmetrics(text) for s in family.samples for label in s.labels}

    assert gate(made("calm", seed=4), "--against", base, *files) == 0
    header, first, second = Path("p.log").read_text().splitlines()
    rows = [dict(zip(header.split("|"), line.split("|"), strict=True)) for line in (first, second)]
    assert [row["result"] for row in rows] == ["fail", "pass"]
    assert rows[0]["tap_latency_8_B_as-found_unit"] == "us"
    assert float(rows[0]["tap_latency_8_B_as-found_value"]) > 1.1 * float(rows[0]["tap_latency_8_B_as-found_ref"])
    assert header.split("|")[:2] == ["result", "job_completion_time"]


def ci_jobs() -> dict[str, tuple[list[str], list[str]]]:
    """Return for each pipeline in the docs its scripts with their shells, and the files that it keeps."""
    page = (Path(__file__).parents[2] / "docs/how-to/gate-a-driver-upgrade.md").read_text()
    gitlab, github = (
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    )
    of_gitlab = gitlab["network-gate"]
    assert of_gitlab["allow_failure"]["exit_codes"] == [2]
    steps = github["jobs"]["network-gate"]["steps"]
    kept = [str(step["with"]["path"]) for step in steps if "upload" in step.get("uses", "")]
    artifacts = of_gitlab["artifacts"]
    return {
        "gitlab": (["\n".join(of_gitlab["script"])], [*artifacts["paths"], artifacts["reports"]["junit"]]),
        "github": ([step["run"] for step in steps if "run" in step], kept),
    }


@pytest.mark.parametrize(("service", "tap_ns", "code"), [("gitlab", 28_000, 1), ("github", 0, 0)])
def test_the_pipelines_in_the_docs_run_the_gate(made: Callable[..., str], service: str, tap_ns: int, code: int) -> None:
    """Each script runs in a fresh shell that exits at the first failure, as on the services, with an empty HOME."""
    made("baseline/run")
    scripts, kept = ci_jobs()[service]
    options = f'"base_ns.tap" = {tap_ns}' if tap_ns else ""
    Path("studies").mkdir()
    Path("studies/sriov.toml").write_text(STUDY.format(options=options, seed=1))
    home = Path("home").resolve()
    home.mkdir()
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home), "CI": "true"}
    done = 0
    for script in scripts:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(shell, env=env, capture_output=True, timeout=600, check=False).returncode
        if done:
            break
    assert done == code
    assert json.loads(Path("gate.json").read_text())["verdict"] == {0: "within", 1: "worse"}[code]
    for name in kept:
        assert list(Path().glob(name.rstrip("/"))), f"the pipeline keeps {name}"
    assert not list(home.rglob("*.toml")), "HOME is neither read nor written"


def test_a_perf_log_with_other_columns_is_moved_aside(made: Callable[..., str]) -> None:
    base, new = made("old"), made("new", seed=2)
    for number in range(2):
        Path("p.log").write_text(f"other|columns{number}\n1|2\n")
        assert gate(new, "--against", base, "--reframe", "p.log") == 0
        assert Path(f"p.log.h{number}").read_text().startswith(f"other|columns{number}")


def test_names_cannot_inject_markup(made: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    base = made("old")
    nasty = 'x"\\\n<&]]>\x00|\u202e'
    new = made("new", f'"fail.tap" = {json.dumps(nasty)}')
    assert gate(new, "--against", base, "--junit", "j.xml", "--openmetrics", "m.prom", "--reframe", "p.log") == 2
    junit = ET.parse("j.xml").getroot()
    assert any("<&]]>" in (e.get("message") or "") or 'x"' in (e.get("message") or "") for e in junit.iter("error"))
    assert list(openmetrics(Path("m.prom").read_text()))
    assert len(Path("p.log").read_text().splitlines()) == 2


def make_faster(run: Path, copy: Path) -> None:
    """Copy a run, every duration divided by a hundred."""
    shutil.copytree(run, copy)
    opened = RunDir.open(copy)
    for record in opened.trials():
        (cell,) = record.cells
        ns = opened.values(record, cell)[None, :] // 100
        fast = CellSamples(cell.operation, cell.message_bytes, 0, (0,), ns, ns, np.zeros(ns.shape, np.uint8))
        write_samples(opened.samples_path(record), [fast])
        sums = {f"samples/{record.name}.parquet": file_sha256(opened.samples_path(record))}
        cells = describe([fast])
        parts = part_sums(opened.samples_path(record), cells)
        new = {"cells": [asdict(one) for one in cells], "sums": sums, "parts": parts}
        rewrite(copy / "trials" / f"{record.name}.json", lambda raw, new=new: raw.update(new))


@pytest.mark.netns
def test_a_gate_on_real_namespaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real launches against a base that is a hundred times as fast: fresh blocks are measured."""
    study = """
format = 1
name = "small"
baseline = "a"
[host]
kind = "local"
[[path]]
name = "a"
kind = "veth"
[[workload]]
name = "ping"
kind = "command"
[workload.options]
argv = ["ping", "-c", "20", "-i", "0.002", "{peer}"]
figure = "regex"
pattern = "time=([0-9.]+) ms"
unit = "ms"
packets = 20
[trials]
min_blocks = 3
max_blocks = 3
"""
    (tmp_path / "s.toml").write_text(study)
    monkeypatch.chdir(tmp_path)
    if nearmetal(["run", "s.toml", "--out", "old"]) == 3:
        pytest.skip(capsys.readouterr().err)
    make_faster(Path("old"), Path("fast"))
    capsys.readouterr()
    assert gate("old", "--against", "fast", "--out", "again") in {1, 2}
    assert "fresh blocks" in capsys.readouterr().err
    fresh = RunDir.open(Path("again")).trials()
    assert {r.order.block for r in fresh} == {3, 4, 5}
    assert all(r.valid for r in fresh)
