"""What `nearmetal serve` shows beside runs: traces, predictions and placements, valid and hostile."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from fake_runs import list_anew
from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError
from nearmetal.report.prediction_json import PredictionFile, read
from nearmetal.report.prediction_text import figures
from nearmetal.serve.app import make_app
from nearmetal.serve.cache import RecentCache
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.guard import AccessPolicy
from nearmetal.store.searchdir import SearchDir
from nearmetal.units import format_duration
from tests.beside_runs import make_beside, make_history, make_search, make_traced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ATTACK = "<script>alert(1)</script> & \"'"
DOOR = AccessPolicy(8470)
SIGNED_IN = {"Authorization": f"Bearer {DOOR.token}"}
PAGES = ("traces/ring", "predictions/halo", "placements/halo")


@pytest.fixture(scope="module")
def over_time(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    make_history(folder)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    (folder / "r13" / "trials" / "000000.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    make_search(folder)
    return folder


def serving(folder: Path) -> TestClient:
    app = make_app(Catalogue(folder), DOOR)
    return TestClient(app, base_url="http://127.0.0.1:8470", headers=SIGNED_IN, follow_redirects=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside")
    make_beside(folder, command=ATTACK)
    return folder


@pytest.fixture(scope="module")
def client(made: Path) -> Iterator[TestClient]:
    with serving(made) as opened:
        yield opened


def kept(made: Path, kind: str = "prediction") -> dict[str, Any]:
    raw = json.loads((made / f"halo.{kind}.json").read_text())
    assert isinstance(raw, dict)
    return raw


def test_the_list_links_to_everything_beside_runs(client: TestClient) -> None:
    page = client.get("/").text
    for path in PAGES:
        assert f'href="/{path}"' in page
        assert client.get(f"/{path}").status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_a_page_begins_with_its_answer_and_one_chart(client: TestClient, path: str) -> None:
    page = client.get(f"/{path}").text
    start = page.partition("<main")[2]
    lead, chart, table = (start.find(one) for one in ('class="lead"', "<svg", "<table"))
    assert 0 < lead < chart < table
    assert page.count("<main") == 1
    assert page.count("<table") == len(re.findall('tabindex="0" role="region" aria-label="[^"]+"><table', page))
    assert "<script" not in page


def test_a_prediction_shows_the_figures_of_its_file(client: TestClient, made: Path) -> None:
    page, raw = client.get("/predictions/halo").text, kept(made)
    assert raw["decision"] in page
    assert raw["figures_from"] == "figures of a test"
    for of in (page, client.get("/placements/halo").text):
        assert "Where these figures come from: </strong>figures of a test." in of
    for row in raw["rows"]:
        assert f"{row['ratio']['median']:.3f}" in page
        for quantile in row["quantiles"]:
            assert format_duration(quantile["ns"]) in page
    assert client.get("/api/v1/predictions/halo").json() == raw


def test_quantiles_are_shown_below_their_names(made: Path) -> None:
    row = read(made / "halo.prediction.json", PredictionFile).rows[0]
    apart = tuple(replace(one, ns=1000.0 * number) for number, one in enumerate(row.quantiles, 1))
    table = figures("", [replace(row, quantiles=apart)], whole=True)
    shown = dict(zip(table.head, table.rows[0], strict=True))
    assert (shown["median"], shown["95th percentile"], shown["99th percentile"]) == ("1 us", "2 us", "3 us")


def test_a_placement_shows_gains_hosts_and_where_paths_are_equal(client: TestClient, made: Path) -> None:
    page, raw = client.get("/placements/halo").text, kept(made, "placement")
    best = raw["candidates"][0]
    assert f"{best['method']} on {best['name']} is the best one known" in page
    assert f"{100 * best['gain'][0]:+.1f} %" in page
    assert raw["break_even"]["said"][1:] in page
    assert "n1" in page
    assert client.get("/api/v1/placements/halo").json() == raw


def test_a_trace_shows_ranks_calls_sizes_and_the_traffic_matrix(client: TestClient) -> None:
    page = client.get("/traces/ring").text
    for text in ("rank 0, host0", "Allreduce", "Who sends to whom", "Message sizes", "% MPI", "&lt;script&gt;"):
        assert text in page
    assert client.get("/api/v1/traces/ring").json()["recorded_calls"] == (1 + 1000 + 1000 + 10 + 1) * 4


def test_a_reports_links_lead_to_the_pages_of_traced_messages_and_calls(tmp_path: Path) -> None:
    make_traced(tmp_path / "traced")
    with serving(tmp_path) as opened:
        report = opened.get("/runs/traced").text
        assert 'href="/runs/traced/waterfall"' in report
        assert 'href="/runs/traced/traces/1"' in report
        waterfall = opened.get("/runs/traced/waterfall").text
        assert "vf, default takes 78.8 us more than bridge: 84.8 us more in moderation wait." in waterfall
        calls = opened.get("/runs/traced/traces/1").text
        assert "cg on bridge, trial 1" in calls
        assert 'href="/runs/traced/traces/3">cg on vf, trial 3</a>' in calls
        for page in (waterfall, calls):
            start = page.partition("<main")[2]
            assert 0 < start.find('class="lead"') < start.find("<svg")
        assert opened.get("/runs/traced/traces/0").status_code == 404, "it left no calls"
        assert opened.get("/runs/traced/traces/../1").status_code == 404


def test_no_response_is_stale(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nearmetal.serve.answers.RecentCache", partial(RecentCache, 0.0)
    )  # otherwise the disk is checked once a second
    raw = kept(made)
    place = tmp_path / "one.prediction.json"
    place.write_text(json.dumps(raw))
    with serving(tmp_path) as opened:
        assert raw["decision"] in opened.get("/predictions/one").text
        place.write_text(json.dumps({**raw, "decision": "Another answer."}))
        assert "Another answer." in opened.get("/predictions/one").text


def spoilt(raw: dict[str, Any]) -> dict[str, bytes]:
    row = raw["rows"][0]
    return {
        "nothing": b"",
        "no object": b"[]",
        "torn": json.dumps(raw).encode()[:-40],
        "newer": json.dumps({**raw, "version": 2}).encode(),
        "other": json.dumps({**raw, "format": "nearmetal-placement"}).encode(),
        "infinite": json.dumps({**raw, "rows": [{**row, "inter_share": 1e999}]}).encode(),
        "below": json.dumps({**raw, "rows": [{**row, "parts_ns": {"compute": -1.0}}]}).encode(),
        "strange part": json.dumps({**raw, "rows": [{**row, "parts_ns": {ATTACK: 1.0}}]}).encode(),
        "half a letter": json.dumps({**raw, "program": "\ud800"}).encode(),
        "digits": json.dumps(raw).encode().replace(b'"ranks": 8', b'"ranks": ' + b"9" * 5000),
        "many": json.dumps({**raw, "remarks": ["x"] * 10_001}).encode(),
        "deep": b'{"rows":' + b"[" * 100_000,
    }


def test_invalid_files_are_refused_with_a_reason(made: Path, tmp_path: Path) -> None:
    for name, data in spoilt(kept(made)).items():
        (tmp_path / f"{name}.prediction.json").write_bytes(data)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "rank-000000.nmtrace").write_bytes((made / "ring" / "rank-000000.nmtrace").read_bytes()[:-9])
    with serving(tmp_path) as opened:
        assert opened.get("/").status_code == 200
        for path in (*(f"predictions/{name}" for name in spoilt(kept(made))), "traces/torn"):
            for page in (f"/{path}", f"/api/v1/{path}"):
                answer = opened.get(page)
                assert answer.status_code == 422, path
                assert len(answer.text) < 40_000


def test_text_of_a_valid_file_stays_text(made: Path, tmp_path: Path) -> None:
    """Text in a file cannot become markup, and empty rows cannot break a chart."""
    raw = kept(made)
    flat = {**raw["rows"][0], "path": ATTACK, "launches_ns": None, "quantiles": [], "parts_ns": {}}
    zero = {**raw["rows"][0], "parts_ns": {"compute": 0.0}, "launches_ns": [0.0, 0.0]}
    for name, rows in (
        ("attack", [{**one, "path": ATTACK} for one in raw["rows"]]),
        ("flat", [flat]),
        ("zero", [zero]),
    ):
        spoilt_file = {**raw, "program": ATTACK, "decision": ATTACK, "remarks": [ATTACK], "rows": rows}
        (tmp_path / f"{name}.prediction.json").write_text(json.dumps(spoilt_file))
    (tmp_path / "empty.prediction.json").write_text(json.dumps({**raw, "rows": [], "decision": ""}))
    placement = kept(made, "placement")
    placed = {**placement, "candidates": [], "hosts": [ATTACK], "host_of": [7, 0, 1], "launcher_file": ATTACK}
    (tmp_path / "none.placement.json").write_text(json.dumps(placed))
    with serving(tmp_path) as opened:
        for path in ("predictions/attack", "predictions/flat", "predictions/zero", "predictions/empty"):
            answer = opened.get(f"/{path}")
            assert answer.status_code == 200
            assert "<script" not in answer.text
        answer = opened.get("/placements/none")
        assert (answer.status_code, "<script" in answer.text) == (200, False)
        assert '<pre tabindex="0">' in answer.text, "a wide line must scroll by keyboard"


def test_links_and_pipes_are_not_read(made: Path, tmp_path: Path) -> None:
    (tmp_path / "link.prediction.json").symlink_to(made / "halo.prediction.json")
    os.mkfifo(tmp_path / "pipe.prediction.json")
    (tmp_path / "ring").symlink_to(made / "ring")
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "rank-000000.nmtrace")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "rank-000000.nmtrace").symlink_to(made / "ring" / "rank-000000.nmtrace")
    with serving(tmp_path) as opened:
        for path in ("predictions/link", "predictions/pipe", "traces/ring"):
            assert opened.get(f"/{path}").status_code == 404
        for path in ("traces/piped", "traces/linked"):
            assert opened.get(f"/{path}").status_code == 422


@pytest.mark.parametrize("path", ["traces/none", "predictions/..%2f..", "placements/halo%00", "traces/ring?x=1"])
def test_missing_pages_give_an_error(client: TestClient, path: str) -> None:
    for page in (f"/{path}", f"/api/v1/{path}"):
        assert client.get(page).status_code in {400, 404}


def test_a_file_name_that_serve_would_not_find_is_refused_before_the_replay(made: Path) -> None:
    argv = [str(made / "halo.toml"), "--on", "nowhere", "--save", f"{made}/mine.json"]
    result = CliRunner().invoke(predict, argv, standalone_mode=False)
    assert isinstance(result.exception, BadInputError)
    assert result.exception.hint.endswith("mine.prediction.json")


# ---- all runs over time


def test_runs_over_time_show_the_change_of_level(over_time: Path) -> None:
    with serving(over_time) as opened:
        assert 'href="/history"' in opened.get("/").text
        page = opened.get("/history").text
        answer = opened.get("/api/v1/history?path=tap&metric=mean").json()
        whole = opened.get("/api/v1/history").json()
    start = page.partition("<main")[2]
    assert 0 < start.find("1 of 2 series shows a change of level") < start.find("<svg") < start.find("<table")
    assert "kernel.release: 6.1 -&gt; 6.8" in page
    for told in (page, json.dumps(whole["left_out"])):
        assert "r13: " in told  # damaged, and reported as left out
        assert "damaged: " in told, "no word was said of it"
    assert [one["run"] for one in answer["series"][0]["changes"]] == [9]
    assert len(answer["runs"]) == 13


def test_a_history_covers_the_requested_runs(over_time: Path) -> None:
    with serving(over_time) as opened:
        some = opened.get("/api/v1/history?since=2026-03-05&until=2026-03-06").json()
        page = opened.get("/history?since=2026-03-05&metric=median").text
        for query, status in (("metric=p9", 400), ("since=x", 400), ("nothing=1", 400), ("study=none", 404)):
            assert opened.get(f"/history?{query}").status_code == status
            assert opened.get(f"/api/v1/history?{query}").status_code == status
    assert [one["created_utc"][:10] for one in some["runs"]] == ["2026-03-05", "2026-03-06"]
    assert 'href="/?since=2026-03-05"' in page


def test_a_history_follows_changes_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearmetal.serve.answers.RecentCache", partial(RecentCache, 0.0))
    first, second, *others = make_history(tmp_path)
    for one in others:
        shutil.rmtree(one)
    shutil.copytree(first, tmp_path / "copy")
    with serving(tmp_path) as opened:
        assert len(opened.get("/api/v1/history").json()["runs"]) == 2  # a copy counts as the same run
        shutil.rmtree(second)
        assert len(opened.get("/api/v1/history").json()["runs"]) == 1


# ---- searches


def test_a_search_shows_its_answer_its_race_and_its_confirmation(searched: Path) -> None:
    with serving(searched) as opened:
        assert 'href="/searches/search"' in opened.get("/").text
        page = opened.get("/searches/search").text
        answer = opened.get("/api/v1/searches/search").json()
    profile = json.loads(next(searched.glob("*.profile.json")).read_text())
    (found,) = answer["classes"]
    assert answer["ended"]
    assert found["winner"] == profile["setting"]
    assert found["proof"]["ratio"] == pytest.approx(profile["evidence"]["ratio"])
    start = page.partition("<main")[2]
    assert 0 < start.find("Better on fresh blocks: nic.mtu=9000") < start.find("<svg") < start.find("<table")
    for text in ("chosen", "dropped after block", "nic.gro=off", "winner against present, by cell"):
        assert text in page
    standing = [block["standing"] for block in found["blocks"]]
    assert standing == sorted(standing, reverse=True)
    assert standing[-1] < standing[0]
    assert len(SearchDir.open(searched / "search").trials()) == answer["launches"]


def test_an_unfinished_search_shows_its_progress(searched: Path, tmp_path: Path) -> None:
    shutil.copytree(searched / "search", tmp_path / "search")
    places = sorted((tmp_path / "search" / "trials").iterdir())
    unproven = (len(places) - 3, "Not proven yet: ")
    for kept, message in (unproven, (12, "Not ended: after "), (0, "So far only the start of the search")):
        for place in places[kept:]:
            place.unlink(missing_ok=True)
        list_anew(tmp_path / "search")
        with serving(tmp_path) as opened:
            answer = opened.get("/searches/search")
            assert (answer.status_code, message in answer.text) == (200, True)
            assert not opened.get("/api/v1/searches/search").json()["ended"]


@pytest.mark.parametrize("place", ["search.json", "study.toml", "trials/000003.json", "samples/000003.parquet"])
def test_a_damaged_search_is_refused(searched: Path, tmp_path: Path, place: str) -> None:
    root = tmp_path / "search"
    shutil.copytree(searched / "search", root)
    data = (root / place).read_bytes()
    (root / place).write_bytes(data.replace(b"1", b"2", 1) if b"1" in data else data[:-3])
    with serving(tmp_path) as opened:
        assert opened.get("/searches/search").status_code == 422
        (root / place).unlink()
        (root / place).symlink_to(searched / "search" / place)
    with serving(tmp_path) as opened:
        assert opened.get("/searches/search").status_code in {404, 422}
