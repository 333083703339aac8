"""Runs against each other: two cell by cell, any number path by path, in the browser and on the terminal."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from nearmetal.cli.main import run as nearmetal
from nearmetal.gate import many
from nearmetal.report.overview import between_runs
from nearmetal.results.between import judge_runs
from nearmetal.serve.app import make_app
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.guard import AccessPolicy
from nearmetal.stats.between import Standing
from nearmetal.store.rundir import RunDir
from tests.unit.report.synthetic_run import COST, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

SMALL = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [8]")
DOOR = AccessPolicy(8470)
SIGNED_IN = {"Authorization": f"Bearer {DOOR.token}"}


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, 26 runs like it, two that are slower on one path, and one of another study."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "base", Recipe(study=SMALL, blocks=5))
    same = make_run(folder / "r00", Recipe(study=SMALL, blocks=5, seed=8))
    for number in range(1, 27):
        shutil.copytree(same.root, folder / f"r{number:02d}")
    make_run(folder / "slow-tap", Recipe(study=SMALL, blocks=5, cost={**COST, "tap": 4.8}))
    make_run(folder / "slow-bridge", Recipe(study=SMALL, blocks=5, cost={**COST, "bridge": 1.5}))
    make_run(folder / "other", Recipe(study=SMALL.replace('"latency"', '"bandwidth"'), blocks=5))
    return folder


def test_the_page_of_two_runs_calls_an_unfinished_one_by_its_name(tmp_path: Path) -> None:
    """It said `/home/someone/runs/part is NOT FINISHED`; the command that continues it needs the path."""
    for name, blocks in (("base", 5), ("part", 3)):
        make_run(tmp_path / name, Recipe(study=SMALL, blocks=blocks))
    with serving(tmp_path) as client:
        text = client.get("/compare?run=part&base=base").text
    assert "<p>part is NOT FINISHED: " in text
    assert f"nearmetal run --resume {tmp_path}/part</p>" in text


def serving(folder: Path) -> TestClient:
    return TestClient(make_app(Catalogue(folder), DOOR), base_url="http://127.0.0.1:8470", headers=SIGNED_IN)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name != "base")


def test_differences_between_runs_are_named_with_both_values(tmp_path: Path) -> None:
    edited = SMALL.replace("iterations = 1000", "iterations = 900") + "# edited\n"
    assert edited.count("900") == 1
    base = make_run(tmp_path / "base", Recipe(study=SMALL, blocks=3))
    run = make_run(
        tmp_path / "run", Recipe(study=edited, blocks=3, facts=lambda order: {"kernel.release": "6.12.1-cloud"})
    )
    study, kernel = sorted(judge_runs(run, base).changes, key=lambda one: -len(one.fact))
    assert (kernel.fact, kernel.base, kernel.run) == ("kernel.release", "6.1.0-40-amd64", "6.12.1-cloud")
    assert str(study) == "study workload[latency].iterations: 1000 -> 900"


def test_two_runs_have_a_chart_of_what_each_path_costs(tmp_path: Path) -> None:
    rates = STUDY.replace('name = "latency"', 'name = "bw"')
    base = make_run(tmp_path / "base", Recipe(study=rates, blocks=5))
    run = make_run(tmp_path / "run", Recipe(study=rates, blocks=5, seed=8, cost={**COST, "tap": 2 * COST["tap"]}))
    chart = str(between_runs(judge_runs(run, base), "base"))
    assert "cost, times base" in chart
    marks = dict(re.findall(r'<use class="[^"]*mark[^"]*" href="#m\d" x="[\d.]+" y="([\d.]+)"><title>([^:]+):', chart))
    heights = {title: float(y) for y, title in marks.items()}
    assert len(re.findall("<title>", chart)) == 15, "five paths at three sizes"
    tap = [y for title, y in heights.items() if title.startswith("tap ")]
    assert max(tap) < min(y for title, y in heights.items() if not title.startswith("tap ")), "a lower rate costs more"
    told = re.findall(r"<title>tap [^:]+: ([\d.]+) \[([\d.]+)\.\.([\d.]+)\], worse", chart)
    assert len(told) == 3
    assert all(1.9 < float(low) < float(at) < float(high) < 2.1 for at, low, high in told), "on the axis' scale"


def test_thirty_runs_are_listed_in_one_table_with_the_worst_first(thirty: Path) -> None:
    page = serving(thirty).get("/compare", params={"run": names(thirty), "base": "base"})
    assert page.status_code == 200
    lead = re.sub("<[^>]+>", "", page.text.partition('class="lead">')[2].partition("</p>")[0])
    assert "worse 2 of 29 (slow-tap, slow-bridge)" in lead
    rows = re.findall(r'<tr><th scope="row"><a href="/compare\?run=([^&]+)&amp;base=base">.*?</tr>', page.text)
    assert rows[:2] == ["slow-tap", "slow-bridge"]
    assert len(rows) == 29
    tap = re.search(
        r'<td title="tap latency 8 B[^"]*worse: [12][.]\d+ times the base[^"]*" class="slower">▼ ([12][.]\d+)<',
        page.text,
    )
    assert tap
    assert 1.9 < float(tap[1]) < 2.1
    assert "other is left out" in page.text
    assert "Cells of at most 12 runs" in page.text


def test_the_terminal_compares_the_same_runs_and_names_what_it_leaves_out(
    thirty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compare", *(str(thirty / one) for one in names(thirty)), "--against", str(thirty / "base")]
    assert nearmetal(argv) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("worse: 2 of 29 (slow-tap, slow-bridge)\n")
    assert captured.out.count("Figures from ") == 1
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if " worse " in line] == ["slow-tap", "slow-bridge"]
    assert captured.err.startswith(f"left out: {thirty}/other: ")
    assert nearmetal(["compare", str(thirty / "r00"), str(thirty / "r01")]) == 2
    assert "--against RUN" in capsys.readouterr().err
    assert nearmetal(["compare", str(thirty / "other"), "--against", str(thirty / "base")]) == 2


def test_a_path_that_the_base_lacks_is_not_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gate` and the page of one run said that it is not compared; the terminal, and the page of several, did not."""
    make_run(tmp_path / "base", Recipe(study=SMALL.replace('[[path]]\nname = "tap"\n', ""), blocks=5))
    for name in ("one", "two"):
        make_run(tmp_path / name, Recipe(study=SMALL, blocks=5, seed=8))
    runs = [str(tmp_path / name) for name in ("one", "two")]
    said = "one, two: Not compared, for the base has no valid trial of it: tap (1 cell)."
    assert nearmetal(["compare", *runs, "--against", str(tmp_path / "base")]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in serving(tmp_path).get("/compare?run=one&run=two&base=base").text


def test_runs_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both rows were called `nightly`, and so was the base: which of them is worse could not be told."""
    monkeypatch.chdir(tmp_path)
    runs = [f"{month}/nightly" for month in ("jan", "feb", "mar")]
    for seed, (run, tap) in enumerate(zip(runs, (2.4, 4.8, 2.4), strict=True), 7):
        make_run(tmp_path / run, Recipe(study=SMALL, blocks=5, cost={**COST, "tap": tap}, seed=seed))
    assert nearmetal(["compare", *runs[1:], "--against", runs[0]]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("worse: 1 of 2 (feb/nightly)\nwithin: 1 of 2 (mar/nightly)\n")
    assert [line.split()[0] for line in printed.splitlines() if " worse " in line] == ["feb/nightly"]
    assert "Runs against jan/nightly" in printed
    shutil.copytree(runs[0], "base")
    assert nearmetal(["compare", runs[1], "--against", "base"]) == 0
    assert "worse: 1 of 1 (nightly)" in capsys.readouterr().out


def test_a_page_reads_each_run_once(thirty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    records = RunDir._records

    def counted(self: RunDir) -> list[object]:
        read.append(self.root.name)
        return records(self)  # type: ignore[return-value]

    monkeypatch.setattr(RunDir, "_records", counted)
    client = serving(thirty)
    assert client.get("/runs/slow-tap").status_code == 200
    assert client.get("/compare?run=r00&run=r01&base=base").status_code == 200
    assert sorted(read) == ["base", "r00", "r01", "slow-tap"]


def test_a_lower_rate_is_shown_as_a_cost_above_one(tmp_path: Path) -> None:
    study = SMALL.replace('name = "latency"', 'name = "bw"')
    make_run(tmp_path / "base", Recipe(study=study, blocks=5))
    make_run(tmp_path / "slow", Recipe(study=study, blocks=5, cost={**COST, "tap": 4.8}))
    make_run(tmp_path / "quick", Recipe(study=study, blocks=5, cost={**COST, "tap": 1.2}))
    page = serving(tmp_path).get("/compare?run=quick&run=slow&base=base").text
    assert re.findall(r'base=base">(\w+)</a>', page) == ["slow", "quick"], "the worst first"
    assert re.search(r'class="slower">▼ (2\.0|1\.9)', page)
    assert re.search(r'class="faster">▲ 0\.(50|49)', page)


def test_a_table_entry_shows_the_costliest_cell_and_the_worst_standing(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", Recipe(blocks=5))
    slow, same = (
        judge_runs(make_run(tmp_path / name, Recipe(blocks=5, seed=8, cost={**COST, "tap": cost})), base)
        for name, cost in (("slow", 4.8), ("same", COST["tap"]))
    )
    mixed = [one if one.cell.message_bytes == 1024 else two for one, two in zip(slow.cells, same.cells, strict=True)]
    titles, (row,) = many.matrix([replace(slow, cells=tuple(mixed), others=())])
    found = row[titles.index("tap")]
    assert found.standing is Standing.WORSE
    assert re.fullmatch(r"▼ (2\.0|1\.9)\d+", found.text)
    assert "tap latency 1 KiB" in found.tip
    assert found.tip.endswith("Of 3 cells: 1 worse, 2 within")


def test_runs_of_mixed_provenance_can_be_shown_anyway(tmp_path: Path) -> None:
    make_run(tmp_path / "base", Recipe(study=SMALL, blocks=5))
    for name in ("first", "second"):
        facts = Recipe(study=SMALL, blocks=5, facts=lambda order: {"kernel.release": f"6.{order.block}"})
        make_run(tmp_path / name, facts)
    refused = serving(tmp_path).get("/compare?run=first&run=second&base=base")
    assert refused.status_code == 422
    assert 'href="/compare?run=first&amp;run=second&amp;base=base&amp;allow_mixed=true"' in refused.text


def test_a_longer_tail_is_in_the_first_sentence(tmp_path: Path) -> None:
    make_run(tmp_path / "base", Recipe(study=SMALL, blocks=5))
    make_run(tmp_path / "stalls", Recipe(study=SMALL, blocks=5, stalls=frozenset({"tap"}), seed=8))
    page = serving(tmp_path).get("/compare", params={"run": "stalls", "base": "base"}).text
    assert ">worse</span>: of 5 cells, by mean, 5 within; 1 worse by p99." in page


def test_two_runs_are_compared_as_in_the_gate(tmp_path: Path) -> None:
    make_run(tmp_path / "first", Recipe(study=SMALL, blocks=5))
    make_run(tmp_path / "slower", Recipe(study=SMALL, blocks=5, cost={**COST, "bridge": 1.5}, seed=8))
    client = serving(tmp_path)
    compared = client.get("/api/v1/compare", params={"run": "slower", "base": "first"}).json()
    assert compared["verdict"] == "worse"
    assert {one["path"]: one["stands"] for one in compared["cells"]}["bridge"] == "worse"
    page = client.get("/compare", params={"run": "slower", "base": "first"})
    assert page.status_code == 200
    assert "slower against first" in page.text
    assert '<span class="verdict slower">worse</span>' in page.text
    assert client.get("/compare", params={"run": "first", "base": "slower"}).text.count("better") >= 1


def test_a_few_runs_are_shown_cell_by_cell(tmp_path: Path) -> None:
    make_run(tmp_path / "first", Recipe(study=SMALL, blocks=5))
    make_run(tmp_path / "slower2", Recipe(study=SMALL, blocks=5, cost={**COST, "tap": 4.8}))
    make_run(tmp_path / "same", Recipe(study=SMALL, blocks=5, seed=8))
    page = serving(tmp_path).get("/compare?run=slower2&run=same&run=first&base=first")
    assert page.status_code == 200
    assert "Ratio of the mean to the base" in page.text
    head = re.search(r"Every cell against first</caption>(.*?)</thead>", page.text)
    assert head
    assert re.findall(r">([^<>]+)</th>", head[1]) == ["cell", "first", "slower2", "same"]
    tap = re.search(r">tap latency 8 B[^<]*</th>(.*?)</tr>", page.text)
    assert tap
    assert re.search(r"(1\.9|2\.0)\d+ worse", tap[1])
    assert "/compare?run=same&amp;base=first" in page.text
    assert serving(tmp_path).get("/api/v1/compare?run=a&run=b&base=first").status_code == 400


def test_margins_of_several_runs_that_differ_are_both_named(tmp_path: Path) -> None:
    """That of the worst run stood for all: `30 % more still counts as equal` of a run judged by 5 %."""
    wide = SMALL.replace('baseline = "veth"', 'baseline = "veth"\nmargin = "30 %"')
    for name, study in (("base", SMALL), ("strict", SMALL), ("wide", wide)):
        make_run(tmp_path / name, Recipe(study=study, blocks=5, seed=len(name)))
    with serving(tmp_path) as client:
        said = client.get("/compare?run=strict&run=wide&base=base").text
        assert "where 5 % to 30 % more still counts as equal" in said
        assert "where 5 % more" in client.get("/compare?run=strict&base=base").text


def test_runs_whose_names_are_no_text_are_compared(tmp_path: Path) -> None:
    """Every comparison with one failed, as its link could not be written."""
    odd = os.fsdecode(b"a\xff\n\x1b[31m")
    for name in ("base", "other", "odd"):
        make_run(tmp_path / name, Recipe(study=SMALL, blocks=5, seed=len(name)))
    (tmp_path / "odd").rename(tmp_path / odd)
    with serving(tmp_path) as client:
        (named,) = {one["name"] for one in client.get("/api/v1/runs").json()["runs"]} - {"base", "other"}
        for runs, base in (
            ([named], "base"),
            (["other"], named),
            ([named, "other"], "base"),
            (["other", "base"], named),
        ):
            answer = client.get("/compare", params={"run": runs, "base": base})
            assert answer.status_code == 200
            links = set(re.findall(r'href="(/[^"]*)"', answer.text))
            assert {client.get(unescape(link)).status_code for link in links} == {200}, links
