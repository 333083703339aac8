from __future__ import annotations

import asyncio
import html
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pytest
from bench.support.made_up_fabric import Faults
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from fake_fabric import MadeUpHost, make_fabric
from fake_runs import list_anew
from nearmetal.report import fabric_html
from nearmetal.report.progress import last_trials, progress, sentence
from nearmetal.results.paths import build_view
from nearmetal.serve import openapi, overview, pages
from nearmetal.serve.answers import Answers, live_part
from nearmetal.serve.app import make_app
from nearmetal.serve.cache import RecentCache
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.guard import AccessPolicy
from nearmetal.store.rundir import RunDir
from tests.unit.report.synthetic_run import HOST_LABEL, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


SMALL = STUDY.replace('sizes = [8, "1 KiB", "64 KiB"]', "sizes = [8]")
ATTACK = "<script>alert(1)</script> & \"'"
DOOR = AccessPolicy(8470)
SIGNED_IN = {"Authorization": f"Bearer {DOOR.token}"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "first", Recipe(study=SMALL, blocks=5))
    attack = SMALL.replace('"Software data paths of this machine"', f"'''{ATTACK}'''")
    make_run(folder / ATTACK.replace("/", "|"), Recipe(study=attack, blocks=5))
    mixed = Recipe(study=SMALL, blocks=5, facts=lambda order: {"kernel.release": f"6.{order.block}"})
    make_run(folder / "mixed", mixed)
    empty = make_run(folder / "empty", Recipe(study=SMALL, blocks=0))
    assert empty.trials() == []
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    (folder / "other").mkdir()
    make_fabric(folder / "fabric", MadeUpHost(Faults(latency_nodes={5: 2.0})))
    make_fabric(folder / "fabric-slower", MadeUpHost(slower=1.5, seed=50))
    return folder


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[TestClient]:
    app = make_app(Catalogue(runs), DOOR)
    with TestClient(app, base_url="http://127.0.0.1:8470", headers=SIGNED_IN, follow_redirects=False) as opened:
        yield opened


# ---- who may read


@pytest.mark.parametrize("host", ["127.0.0.1:8470", "localhost:9000", "[::1]:8470", "127.9.8.7", "LOCALHOST"])
def test_loopback_hosts_are_answered(host: str) -> None:
    assert AccessPolicy(8470).knows_host(host)


@pytest.mark.parametrize("host", [None, "", "evil.example", "127.0.0.1.evil.example:8470", "10.0.0.1", "[::1", "a:b:c"])
def test_other_hosts_are_not(host: str | None) -> None:
    assert not AccessPolicy(8470).knows_host(host)


def test_beyond_loopback_addresses_are_answered_but_foreign_names_are_not() -> None:
    access = AccessPolicy(8470, frozenset({"node1"}), beyond_loopback=True)
    assert access.knows_host("10.0.0.1:8470")
    assert access.knows_host("node1:8470")
    assert not access.knows_host("evil.example:8470")


def test_dns_rebinding_is_refused_even_with_the_token(client: TestClient) -> None:
    for path in ("/", "/api/v1/runs", f"/?token={DOOR.token}"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {DOOR.token[:-1]}"},
        {"Authorization": f"Basic {DOOR.token}"},
        {"Cookie": f"{DOOR.cookie}={DOOR.token}"},
        {"Cookie": f"{DOOR.cookie}="},
        {"Cookie": "\xff=\xfe; a\tb"},
        {"Authorization": "Bearer \xe9"},
    ],
)
def test_without_the_token_nothing_is_served(headers: dict[str, str]) -> None:
    assert not DOOR.admits(Headers(raw=[(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()]))


@pytest.mark.parametrize("path", ["/", "/runs/first", "/runs/nope", "/static/live.js", "/openapi.json", "/api/v1/runs"])
def test_every_path_requires_the_token(runs: Path, path: str) -> None:
    stranger = TestClient(make_app(Catalogue(runs), DOOR), base_url="http://127.0.0.1:8470", follow_redirects=False)
    for query in ("", "?token=", f"?token={DOOR.token}x"):
        answer = stranger.get(path + query)
        assert answer.status_code == 401
        assert "first" not in answer.text.rpartition("</head>")[2]  # the style sheet has a test of its own
    assert stranger.post(path).status_code == 405


def test_the_token_is_exchanged_for_a_cookie_and_removed_from_the_url(runs: Path) -> None:
    stranger = TestClient(make_app(Catalogue(runs), DOOR), base_url="http://127.0.0.1:8470", follow_redirects=False)
    welcome = stranger.get(f"/runs/first/live?token={DOOR.token}")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/runs/first/live")
    cookie = welcome.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert DOOR.token not in cookie
    assert DOOR.token not in repr(DOOR)
    assert DOOR.session not in repr(DOOR)
    assert stranger.get("/runs/first/live").status_code == 200


def test_the_exchange_never_redirects_elsewhere(client: TestClient) -> None:
    answer = client.get(f"http://127.0.0.1:8470//evil.example/%0d%0aSet-Cookie:x?token={DOOR.token}&sort=name")
    assert answer.headers["location"].startswith("/evil.example/")
    assert "\r" not in answer.headers["location"]
    assert answer.headers["location"].endswith("?sort=name")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    answer = client.request(method, "/api/v1/runs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert client.head("/api/v1/runs").status_code == 200


def test_every_response_has_restrictive_headers(client: TestClient) -> None:
    for path in ("/", "/runs/first", "/runs/first/live", "/runs/nope", "/api/v1/runs", "/static/live.js", "/nope"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert ("script-src" in policy) == (path == "/runs/first/live")
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


# ---- what is served


def test_the_list_shows_all_runs_and_the_error_of_a_damaged_one(client: TestClient) -> None:
    page = client.get("/").text
    assert ATTACK not in page
    assert "&lt;script&gt;alert(1)&lt;|script&gt;" in page
    assert re.search(r"damaged.*cannot be read: .*run.json is damaged", page)
    assert "other" not in re.findall(r'href="/runs/([^"]*)"', page)
    names = [one["name"] for one in client.get("/api/v1/runs").json()["runs"]]
    assert names == sorted(names)
    assert len(names) == 7
    backwards = client.get("/api/v1/runs", params={"sort": "name", "order": "desc"}).json()["runs"]
    assert [one["name"] for one in backwards] == names[::-1]


@pytest.mark.parametrize("column", overview.COLUMNS)
def test_the_list_sorts_by_every_column(client: TestClient, column: str) -> None:
    page = client.get("/", params={"sort": column, "order": "asc"}).text
    assert page.count('aria-sort="ascending"') == 1
    assert f"/?sort={column}&amp;order=desc" in page


def test_the_list_shows_each_runs_findings_and_reads_new_runs_between_requests(runs: Path) -> None:
    with TestClient(make_app(Catalogue(runs), DOOR), base_url="http://127.0.0.1:8470", headers=SIGNED_IN) as fresh:
        page = fresh.get("/").text
        while "being read" in page:
            assert re.search(r"\d runs are being read", page)
            page = fresh.get("/").text
    assert "are being read" not in page
    row = re.search(r'href="/runs/first".*?</tr>', page)
    assert row
    assert '<span class="verdict slower">slower</span> bridge; tap' in row[0]
    assert re.search(
        r'class="spark".*<title>bridge [\d.]+ times veth; macvlan', row[0].replace("><", ">\n<"), re.DOTALL
    )
    assert "follow" not in row[0]
    assert "holds no finished trial yet" in page


def test_a_run_in_progress_can_be_followed_from_the_list(runs: Path) -> None:
    with (
        RunDir.open_for_writing(runs / "first"),
        TestClient(make_app(Catalogue(runs), DOOR), base_url="http://127.0.0.1:8470", headers=SIGNED_IN) as fresh,
    ):
        assert '<a href="/runs/first/live">running: follow it</a>' in fresh.get("/").text


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ("study=paths", lambda one: one["study"] == "paths"),
        ("study=nope", lambda one: False),
        ("host=local", lambda one: one["host_kind"] == "local"),
        ("path=tap", lambda one: "tap" in one["paths"]),
        ("path=tap&since=2026-11-21&until=2026-11-21", lambda one: "tap" in one["paths"]),
        ("study=paths&since=2026-11-22", lambda one: False),
        ("until=2020-01-01", lambda one: False),
        ("", lambda one: True),
    ],
)
def test_the_list_is_filtered_by_study_host_path_and_date(
    client: TestClient, query: str, holds: Callable[[dict[str, object]], bool]
) -> None:
    everything = client.get("/api/v1/runs").json()["runs"]
    assert {one["study"] for one in everything} > {None, "paths"}
    wanted = [one["name"] for one in everything if holds(one)]
    assert [one["name"] for one in client.get(f"/api/v1/runs?{query}").json()["runs"]] == wanted
    assert f"{len(wanted)} of {len(everything)} runs" in client.get(f"/?{query}").text
    assert client.get("/?since=yesterday").status_code == 400


def test_a_run_is_shown_as_the_report_shows_it(client: TestClient) -> None:
    page = client.get("/runs/first")
    assert page.status_code == 200
    assert "Each trial" in page.text
    assert 'href="/runs/first/live"' in page.text
    assert "<script" not in page.text
    shown = client.get("/api/v1/runs/first").json()
    assert {one["path"]: one["verdict"] for one in shown["verdicts"]}["tap"] == "slower"


def test_a_fabric_is_listed_and_shown_with_its_heat_maps(client: TestClient) -> None:
    assert re.search(r'href="/runs/fabric".*?a whole fabric', client.get("/").text)
    page = client.get("/runs/fabric").text
    assert "node n5: a message to or from it takes" in page
    assert page.count("Heat map of") == 2
    assert 'href="/api/v1/runs/fabric/fabric"' in page
    shown = client.get("/api/v1/runs/fabric/fabric").json()
    assert [one["nodes"] for one in shown["named"]] == [["n5"]]
    found = {one["name"] for one in client.get("/api/v1/runs").json()["runs"] if one["of_fabric"]}
    assert found == {"fabric", "fabric-slower"}


@pytest.mark.parametrize("where", ["/", "/runs/first", "/runs/first/live", "/runs/fabric", "/runs/none"])
def test_a_page_has_one_main_part_and_its_tables_scroll_by_keyboard(client: TestClient, where: str) -> None:
    page = client.get(where).text
    assert page.count("<main") == 1
    assert page.count('class="scroll"') == page.count('class="scroll" tabindex="0" role="region" aria-label=')


def test_a_heat_map_can_be_read_and_has_a_scale(client: TestClient) -> None:
    page = client.get("/runs/fabric").text
    assert page.count("times the median</title>") == 2 * 8 * 7, "every pair in both maps has its figure"
    assert re.search(r"<title>n0 to n5: [\d.]+ us, [\d.]+ times the median</title>", page)
    assert page.count(">below 1.1</text>") == page.count(">from 2</text>") == 2


def test_nodes_of_a_heat_map_are_grouped_by_cluster() -> None:
    racks = np.array([0, 1, 0, 1, 0, 1, 1, 0])
    times = np.where(racks[:, None] == racks, 1.0, 1.3) * np.random.default_rng(1).uniform(1, 1.02, (8, 8))
    np.fill_diagonal(times, np.nan)
    assert fabric_html.node_order(times) == [0, 2, 4, 7, 1, 3, 5, 6]
    alike = np.where(np.eye(8) > 0, np.nan, 1.0)
    assert fabric_html.node_order(alike) == list(range(8))
    alike[2, :] = alike[:, 2] = 1.5
    assert fabric_html.node_order(alike)[-1] == 2


def test_two_fabrics_are_compared_node_by_node(client: TestClient) -> None:
    page = client.get("/compare?run=fabric-slower&base=fabric").text
    # One node alone was slower before, so the interval of latency is wide and that of bandwidth is not.
    assert re.search(r"ratio 1\.[345]\d* \[0\.\d+, 1\.\d+\], undecided", page)
    assert re.search(r"ratio 0\.6\d* \[0\.6\d+, 0\.6\d+\], slower", page)
    assert page.count('<th scope="row">n3</th>') == 2


def test_a_fabric_that_claims_too_much_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_fabric(tmp_path / "run", MadeUpHost())
    monkeypatch.setattr("nearmetal.serve.answers.MAX_FABRIC_BYTES", 1000)
    client = TestClient(make_app(Catalogue(tmp_path), DOOR), base_url="http://127.0.0.1:8470", headers=SIGNED_IN)
    answer = client.get("/runs/run")
    assert answer.status_code == 422
    assert "at most 1000 are served" in answer.text


def test_names_are_escaped_and_links_to_them_work(client: TestClient) -> None:
    name = ATTACK.replace("/", "|")
    for path in (pages.run_path(name), pages.run_path(name, "/live"), pages.run_path(name, "/live/part")):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/nope", 404),
        ("/runs/..%2Ffirst", 404),
        ("/runs/%2e%2e", 404),
        ("/runs/first%00", 404),
        ("/runs/%ff", 404),
        ("/runs/other", 404),
        ("/static/..%2f..%2fapp.py", 404),
        ("/runs/damaged", 422),
        ("/runs/empty", 422),
        ("/runs/mixed", 422),
        ("/runs/mixed?allow_mixed=true", 200),
        ("/runs/mixed?allow_mixed=yes", 400),
        ("/runs/first?nope=1", 400),
        ("/runs/empty/live", 200),
        ("/runs/damaged/live", 422),
        ("/?sort=nope", 400),
        ("/?since=2026-13-45", 400),
        ("/history?until=2026-1-1", 400),
        ("/?path=veth&path=tap", 400),  # had the runs of the last
        ("/?path=veth&path=veth", 200),
        ("/api/v1/runs/nope", 404),
        ("/api/v1/runs/damaged", 422),
        ("/api/v1/runs/empty/progress", 200),
        ("/runs/fabric/live", 422),
        ("/api/v1/runs/fabric", 422),
        ("/api/v1/runs/fabric/progress", 422),
        ("/api/v1/runs/first/fabric", 422),
    ],
)
def test_status_codes(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    if status >= 400 and path.startswith("/api"):
        assert set(answer.json()["error"]) == {"message", "hint"}


def test_mixed_provenance_offers_to_show_the_run_anyway(client: TestClient) -> None:
    page = client.get("/runs/mixed").text
    assert "kernel.release" in page
    assert 'href="/runs/mixed?allow_mixed=true"' in page


def test_figures_of_mixed_provenance_are_marked_where_nobody_asked_for_them(runs: Path) -> None:
    """Verdicts of trials on five kernels stood on the list and on the live page as any others."""
    view = build_view(RunDir.open(runs / "mixed"), allow_mixed=True, distributions=False)
    assert "mixed provenance: kernel.release" in overview.glance(view)
    part = pages.live_part(progress(RunDir.open(runs / "mixed"), []), view, "")
    assert f"Mixed provenance: {html.escape(view.mixed[0])}" in part
    first = build_view(RunDir.open(runs / "first"), distributions=False)
    assert "provenance" not in overview.glance(first)


def test_the_live_page_says_what_kind_of_machine_its_figures_are_from_and_what_disturbed_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(study=SMALL, blocks=5, busy=3))
    part = pages.live_part(progress(run, run.trials()), build_view(run, distributions=False), "")
    assert f"Figures from {HOST_LABEL}." in part
    assert "CAUTION: 18 of 30 launches ran on a busy machine" in part


def test_the_link_to_show_a_run_anyway_works_for_any_name(tmp_path: Path) -> None:
    mixed = Recipe(study=SMALL, blocks=5, facts=lambda order: {"kernel.release": f"6.{order.block}"})
    make_run(tmp_path / "a b?c#", mixed)
    with TestClient(make_app(Catalogue(tmp_path), DOOR), base_url="http://127.0.0.1", headers=SIGNED_IN) as client:
        refused = client.get(f"/runs/{quote('a b?c#')}")
    assert refused.status_code == 422
    assert f'href="/runs/{quote("a b?c#")}?allow_mixed=true"' in refused.text


def test_the_live_page_follows_a_run_as_trials_arrive(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(study=SMALL, blocks=5))
    last = max((tmp_path / "run" / "trials").iterdir())
    hidden = last.rename(tmp_path / last.name)
    list_anew(tmp_path / "run")
    answers = Answers(Catalogue(tmp_path))
    answers._states = RecentCache(seconds=0.0)

    async def look() -> tuple[str, str]:
        part = await answers.of_run(live_part, "run")
        return part.content.decode(), part.tag

    before, tag = asyncio.run(look())
    assert asyncio.run(look()) == (before, tag)
    hidden.rename(last)
    after, tag_after = asyncio.run(look())
    assert tag_after != tag
    assert "5 of at most 6 trials" in before
    assert "6 of at most 6 trials" in after
    assert "cost, times veth" in after
    assert len(run.trials()) == 30


def test_the_script_sends_the_etag_and_gets_not_modified(client: TestClient) -> None:
    first = client.get("/runs/first/live/part")
    assert f'data-tag="{html.escape(first.headers["etag"])}"' in client.get("/runs/first/live").text
    assert client.get("/runs/first/live/part", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    page = client.get("/runs/first/live").text
    assert 'src="/static/live.js"' in page


def test_progress_is_described_in_words(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "empty", Recipe(study=SMALL, blocks=0))
    assert sentence(progress(empty, [])) == "No trial has ended yet; 5 to 8 blocks of 6 trials are planned."
    fails = Recipe(study=SMALL, blocks=2, fails=lambda order, attempt: order.path.label == "tap")
    run = make_run(tmp_path / "run", fails)
    so_far = progress(run, run.trials())
    assert (so_far.block, so_far.block_done, so_far.valid, so_far.failed) == (2, 6, 10, 4)
    took = {row[4].partition(":")[0]: row[5] for row in last_trials(so_far).rows}
    assert took == {"valid": "1.5 s", "failed": "-"}, "how long a failed launch took is not recorded"
    valid, *_ = (one for one in run.trials() if one.valid)
    lost = progress(run, [valid, *(one for one in run.trials() if not one.valid)])
    assert sentence(lost).endswith("A trial takes 1.5 s.")
    assert "10 valid in all, 4 failed" in sentence(so_far)


def test_progress_counts_blocks_of_each_occasion(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(study=SMALL, blocks=10, hours=(1.0, 1.1)))
    so_far = progress(run, run.trials())
    assert (so_far.occasion, so_far.block, so_far.most_trials) == (2, 2, 2 * 8 * 6)
    assert sentence(so_far).startswith("Occasion 2, block 2 (5 to 8 planned): 6 of at most 6 trials; 60 valid in all.")
    part = pages.live_part(so_far, None, "")
    assert "valid at every look" not in part
    assert "before the last one&#x27;s end they are preliminary" in part


def test_progress_of_fresh_blocks_counts_no_occasions(tmp_path: Path) -> None:
    """Numbered from 9 on, the fifth of a study of at most 8 was "Occasion 2, block 6 (5 to 8 planned)"."""
    run = make_run(tmp_path / "run", Recipe(study=SMALL, blocks=14))
    so_far = progress(run, [one for one in run.trials() if one.order.block >= 9])
    assert (so_far.occasion, so_far.block, so_far.planned_blocks, so_far.fresh) == (1, 5, (5, 5), True)
    assert sentence(so_far).startswith("Fresh block 5 of another run: 6 of at most 6 trials; 30 valid in all.")
    part = pages.live_part(so_far, None, "")
    assert "These are fresh blocks of another run" in part
    assert "occasion" not in part


# ---- two runs


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("run=first", 400),
        ("run=first&base=nope", 404),
        ("run=first&base=first", 422),
        ("run=first&base=damaged", 422),
        ("run=first&base=empty", 422),
        ("run=mixed&base=first", 422),
        ("run=mixed&base=first&allow_mixed=true", 200),
        ("run=first&base=first&margin=5", 400),
        ("run=first&base=mixed&base=first", 400),  # was against the last
        ("run=first&base=fabric", 422),
        ("run=fabric&base=first", 422),
    ],
)
def test_status_codes_of_comparisons(client: TestClient, query: str, status: int) -> None:
    page = client.get(f"/compare?{query}")
    assert page.status_code == status
    assert client.get(f"/api/v1/compare?{query}").status_code == status
    if query == "run=mixed&base=first":
        assert 'href="/compare?run=mixed&amp;base=first&amp;allow_mixed=true"' in page.text


def test_serving_a_run_directory_lists_only_that_run(runs: Path) -> None:
    assert [one.name for one in Catalogue(runs / "first").entries()] == ["first"]


# ---- the document


def test_the_openapi_document_lists_exactly_the_json_paths(client: TestClient, runs: Path) -> None:
    document = client.get("/openapi.json").json()
    assert document == openapi.document()
    app = make_app(Catalogue(runs), DOOR)._app  # type: ignore[attr-defined]
    assert set(document["paths"]) == {one.path for one in app.routes if one.path.startswith("/api/")}
