"""`nearmetal fabric` as a command: on a made-up fabric for every outcome, and on namespaces with a real MPI."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from bench.support.made_up_fabric import Faults, MadeUpFabric, Noise

import fake_runs
from fake_fabric import STUDY, MadeUpHost
from fake_runs import list_anew, rewrite
from nearmetal.cli import fabric as verb
from nearmetal.cli.main import run
from nearmetal.paths.bridge import BRIDGE
from nearmetal.paths.table import PATHS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import Order, Outcome, PathOrder


@dataclass
class Workspace:
    """A folder with the study, and the host that carries it out."""

    folder: Path
    host: MadeUpHost
    capsys: pytest.CaptureFixture[str]

    def fabric(self, *words: str | Path) -> tuple[int, str, str]:
        code = run(["fabric", *map(str, words)])
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    @staticmethod
    def flat(text: str) -> str:
        return " ".join(text.split())

    @property
    def study(self) -> Path:
        return self.folder / "study.toml"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Workspace:
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    found = Workspace(tmp_path, MadeUpHost(), capsys)
    monkeypatch.setattr(verb, "open_host", lambda study, warn: found.host)
    return found


def test_a_healthy_fabric_exits_with_0(workspace: Workspace) -> None:
    code, out, err = workspace.fabric(workspace.study, "--out", "run")
    assert code == 0
    assert "No node or link stands out by more than 10 %." in out
    assert "28 pairs in 7 rounds" in out
    assert "bisection, n0..n3 against n4..n7: 4 pairs together, and each alone" in out
    assert "run: run" in err
    assert max(map(len, out.splitlines())) <= 80
    assert workspace.host.closed


_TUNED = '[[setting]]\nname = "tuned"\nknobs = { "host.cpu-governor" = "performance" }\n'


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            _TUNED,
            "a fabric is measured as found: the knobs of setting tuned are not set",
        ),
        (
            '[[workload]]\nname = "large"\nkind = "fabric"\nplacement = [0, 1]\n',
            "of 2 workloads of kind 'fabric' only fabric is measured",
        ),
        (_TUNED + '[[setting]]\nname = "plain"\n', ""),
    ],
    ids=["knobs", "workloads", "one without"],
)
def test_what_a_study_asks_for_and_a_fabric_leaves_out_is_said(workspace: Workspace, more: str, said: str) -> None:
    """A fabric under the only setting of its study was one of the machines as they were found."""
    workspace.study.write_text(STUDY + more)
    code, _, err = workspace.fabric(workspace.study, "--out", "run", "--no-bisection")
    assert code == 0
    assert (f"warning: {said}" if said else "") in err
    assert ("warning" in err) == bool(said)


def test_a_node_slow_both_ways_is_not_called_slow_one_way(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(Faults(senders={2: 2.1}, receivers={2: 1.5}))
    code, out, _ = workspace.fabric(workspace.study, "--out", "run")
    out = workspace.flat(out)
    assert code == 1
    assert re.search(
        r"node n2: what it sends takes 2\S* times as long as is typical; the reverse direction takes less", out
    )
    assert re.search(r"node n2: what it receives takes 1\.[45]\d* times as long as is typical 10 of 10 re-tests", out)


def test_a_slow_node_is_named_with_status_1_and_read_again(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(Faults(latency_nodes={5: 2.0}, senders={2: 1.6}, bandwidth_links={(6, 7): 1.8}))
    code, out, err = workspace.fabric(workspace.study, "--out", "run", "--html", "page.html")
    assert code == 1
    assert max(map(len, out.splitlines())) <= 80
    again = workspace.fabric("run")
    assert again[:2] == (1, out)
    out = workspace.flat(out)
    assert re.search(r"node n5: a message to or from it takes (1\.9|2)\S* times as long as is typical", out)
    assert re.search(r"node n2: what it sends takes 1\.\d+ times as long as is typical; the reverse direction", out)
    assert re.search(r"link n6 -> n7: takes 1\.\d+ times", out)
    assert "3 suspects stood out; measuring again 10 times, in 70 rounds" in err
    page = (workspace.folder / "page.html").read_text()
    assert "node n5: a message to or from it takes" in page
    assert "<script" not in page


def test_json_has_everything(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(Faults(latency_nodes={5: 2.0}))
    code, out, _ = workspace.fabric(workspace.study, "--out", "run", "--format", "json", "--no-bisection")
    read = json.loads(out)
    assert (code, read["fabric_format"], read["nodes"]) == (1, 1, [f"n{i}" for i in range(8)])
    (one,) = read["named"]
    assert (one["metric"], one["role"], one["nodes"]) == ("latency", "node", ["n5"])
    assert one["range"][0] <= one["ratio"] <= one["range"][1]
    assert one["beyond"] == one["retests"] >= 10
    assert read["latency_us"][5][5] is None
    assert read["latency_us"][5][0] == pytest.approx(4.0, rel=0.2)
    assert read["bisection_mb_per_s"] is None
    assert read["rounds"]["all"] == 7


def test_the_map_shows_the_results_of_the_retests(workspace: Workspace) -> None:
    shaky = Noise(hiccups=0.08, hiccup=2.0)
    workspace.host.fabrics[8] = MadeUpFabric(8, Faults(latency_links={(1, 6): 3.0}), seed=9, noise=shaky)
    code, out, _ = workspace.fabric(workspace.study, "--out", "run", "--format", "json")
    read = json.loads(out)
    assert code == 1
    assert read["suspected"]
    table = read["latency_us"]
    assert table[1][6] == table[6][1] == pytest.approx(6.0, rel=0.2)
    others = [us for i, row in enumerate(table) for j, us in enumerate(row) if us and {i, j} != {1, 6}]
    assert max(others) < 2.0 * 1.3, "hiccups are gone"


def test_the_bisection_adds_up(workspace: Workspace) -> None:
    _, out, _ = workspace.fabric(workspace.study, "--out", "run", "--format", "json")
    cut = json.loads(out)["bisection_mb_per_s"]
    assert cut["pairs"] == 4
    assert cut["there_alone"] == pytest.approx(4 * 4096 * 16 / 100, rel=0.1)
    assert cut["there_together"] == pytest.approx(cut["there_alone"], rel=0.1)


def test_a_dead_node_exits_with_4_and_its_reason(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(broken=frozenset({0}))
    code, out, err = workspace.fabric(workspace.study, "--out", "run")
    assert (code, out) == (4, "")
    assert "error: the fabric was not measured: n3 died\nhint: mend n3" in err
    assert workspace.fabric("run")[0] == 4
    assert workspace.host.closed


def test_lost_retests_name_no_node(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(Faults(latency_nodes={5: 2.0}), broken=frozenset({1}))
    assert workspace.fabric(workspace.study, "--out", "run")[0] == 4
    code, out, _ = workspace.fabric("run")
    assert code == 4
    assert "Nothing can be named: the suspects were not measured again." in out
    assert "Suspected, not measured again:" in out


def test_a_truncated_engine_file_is_a_failed_launch(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(torn=frozenset({0}))
    code, _, err = workspace.fabric(workspace.study, "--out", "run")
    assert code == 4
    assert "the fabric file is torn or damaged" in err


@pytest.mark.parametrize("harm", ["cut", "rubbish", "gone"])
def test_a_damaged_archive_is_an_error_with_a_hint(workspace: Workspace, harm: str) -> None:
    assert workspace.fabric(workspace.study, "--out", "run")[0] == 0
    archive = workspace.folder / "run" / "fabric" / "000000.zip"
    whole = archive.read_bytes()
    if harm == "gone":
        archive.unlink()
    else:
        archive.write_bytes(whole[: len(whole) // 2] if harm == "cut" else b"rubbish")
    code, out, err = workspace.fabric("run")
    assert (code, out) == (2, "")
    assert err.startswith("error: run")
    assert "hint: " in err


def test_two_fabrics_are_compared_node_by_node(workspace: Workspace) -> None:
    workspace.fabric(workspace.study, "--out", "base")
    workspace.host = MadeUpHost(slower=1.5, seed=50)
    code, out, _ = workspace.fabric(workspace.study, "--path", "guest", "--out", "guests", "--against", "base")
    assert code == 0
    assert "path guest against path bridge, 8 nodes paired by name" in out
    assert workspace.flat(out).count(MadeUpHost.label) == 1
    assert re.search(r"latency \(half a round trip\): ratio 1\.[456]\d* \[1\.\d+, 1\.\d+\], slower", out)
    assert "one launch each" in out
    assert "over nodes)" in out
    assert re.search(r"bandwidth, row to column: ratio 0\.6\d* \[0\.6\d*, 0\.[67]\d*\], slower", out)
    _, text, _ = workspace.fabric("guests", "--against", "base", "--format", "json")
    assert [json.loads(text)[key] for key in ("host", "base_host")] == [MadeUpHost.label] * 2
    latency, bandwidth = json.loads(text)["metrics"]
    assert latency["interval"][0] < latency["ratio"] < latency["interval"][1]
    assert [node["name"] for node in bandwidth["nodes"]] == [f"n{i}" for i in range(8)]
    workspace.host = MadeUpHost(slower=0.001, seed=51)
    _, out, _ = workspace.fabric(workspace.study, "--path", "guest", "--out", "fast", "--against", "base")
    assert re.search(r"n\d .* [\d,]{7,} against [\d,.]+ MB/s, ratio \d+$", out, re.MULTILINE), "1.234e+04 against ..."
    assert "e+0" not in out


@dataclass
class NamingHost(MadeUpHost):
    """Names its machines."""

    names: tuple[str, ...] = ()

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        named = {f"machine.{number}": name for number, name in enumerate(self.names)}
        return replace(super().carry_out(order, body), facts=named)


def test_nodes_of_the_same_names_are_paired_whatever_their_order(workspace: Workspace) -> None:
    def ratios(faults: Faults, names: str, out: str) -> str:
        workspace.host = NamingHost(faults, names=tuple(names))
        return workspace.fabric(workspace.study, "--out", out, *(["--against", "base"] if out != "base" else []))[1]

    ratios(Faults(latency_nodes={0: 3.0}), "abcdefgh", "base")
    out = ratios(Faults(latency_nodes={7: 3.0}), "hgfedcba", "turned")
    assert "8 nodes paired by name" in out
    assert all(0.9 < float(ratio) < 1.1 for ratio in re.findall(r"us, ratio (\S+)", out)), out
    out = ratios(Faults(latency_nodes={7: 3.0}), "stuvwxyz", "others")
    assert "8 nodes paired by their place" in out
    assert "z / h" in out


def test_fabrics_of_other_windows_are_refused(workspace: Workspace) -> None:
    workspace.fabric(workspace.study, "--out", "base")
    workspace.host = MadeUpHost(window=8)
    code, _, err = workspace.fabric(workspace.study, "--out", "other", "--against", "base")
    assert code == 2
    assert "windows of 8 messages, the other with 16" in err


def test_fabrics_that_cannot_be_paired_are_refused(workspace: Workspace) -> None:
    workspace.fabric(workspace.study, "--out", "base")
    workspace.fabric(workspace.study, "--nodes", "6", "--out", "other")
    code, _, err = workspace.fabric("base", "--against", "other")
    assert code == 2
    assert "one fabric has 8 nodes, the other 6" in err
    code, _, err = workspace.fabric(workspace.study, "--nodes", "6", "--out", "third", "--against", "base")
    assert (code, (workspace.folder / "third").exists()) == (2, False), "reported before anything is measured"
    assert "one fabric has 6 nodes, the other 8" in err


def test_a_fabric_is_not_compared_with_itself_or_a_copy(workspace: Workspace) -> None:
    workspace.fabric(workspace.study, "--out", "base")
    shutil.copytree(workspace.folder / "base", workspace.folder / "copy")
    for base in ("base", "copy"):
        code, out, err = workspace.fabric("base", "--against", base)
        assert (code, out) == (2, "")
        assert "compared with itself\nhint: measure the fabric again" in err


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_the_limits_of_few_nodes_are_reported(workspace: Workspace, nodes: int) -> None:
    code, out, _ = workspace.fabric(workspace.study, "--nodes", str(nodes), "--out", "run")
    assert code == 0
    assert ("it is impossible to say which node or link is slow" in workspace.flat(out)) == (nodes < 4)


QUIET = Noise(nodes=0.001, links=0.001, hiccups=0.0)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (Faults(senders=dict.fromkeys(range(4), 2.0)), "was suspected: sending nodes by bandwidth"),
        (Faults(senders=dict.fromkeys(range(6), 2.0)), "By bandwidth, 25 % of sending nodes are faster than is "),
        (
            Faults(latency_links={(a, b): 2.0 for a in range(4) for b in range(4, 8)}),
            "By latency, 43 % of links are faster than is typical: perhaps the rest is slow.",
        ),
    ],
    ids=["half of the nodes are slow", "most nodes are slow", "two halves are far apart"],
)
def test_what_cannot_be_seen_is_said_where_nothing_is_named(workspace: Workspace, faults: Faults, said: str) -> None:
    workspace.host.fabrics[8] = MadeUpFabric(8, faults, seed=3, noise=QUIET)
    code, out, _ = workspace.fabric(workspace.study, "--out", "run", "--html", "page.html")
    assert code == 0
    assert "No node or link stands out" in workspace.flat(out)
    assert said in workspace.flat(out)
    assert ("stands out by more than 10 %" in workspace.flat(out)) == ("was suspected" not in said)
    assert said in (workspace.folder / "page.html").read_text()
    assert said in str(json.loads(workspace.fabric("run", "--format", "json")[1])["unseen"])


def test_a_fabric_on_a_busy_machine_says_so_whenever_it_is_shown(workspace: Workspace) -> None:
    """A warning stood before the measurement alone, and the finished run had no word of it."""
    workspace.host = MadeUpHost(Faults(senders={2: 2.1}))
    workspace.fabric(workspace.study, "--out", "quiet", "--no-bisection")
    workspace.host = replace(workspace.host, seed=2, counters={"cpu.user": 100, "cpu.idle": 100, "others.cc1plus": 70})
    workspace.fabric(workspace.study, "--out", "busy", "--no-bisection")
    said = [f"The {launch} launch ran on a busy machine: cc1plus used 35 % of the processors." for launch in _LAUNCHES]
    for root, expected in (("quiet", []), ("busy", said)):
        _, out, _ = workspace.fabric(root)
        assert [line for line in said if line in workspace.flat(out)] == expected
        unseen = json.loads(workspace.fabric(root, "--format", "json")[1])["unseen"]
        assert [line for line in unseen if "busy" in line] == expected
    _, out, _ = workspace.fabric("quiet", "--against", "busy")
    assert f"Of the base: {said[0]}" in workspace.flat(out)
    compared = json.loads(workspace.fabric("quiet", "--against", "busy", "--format", "json")[1])
    assert (compared["disturbed"], compared["base_disturbed"]) == ([], said)


_LAUNCHES = ("first", "second")


def test_a_healthy_fabric_hides_nothing(workspace: Workspace) -> None:
    workspace.host.fabrics[8] = MadeUpFabric(8, Faults(), seed=3, noise=QUIET)
    workspace.fabric(workspace.study, "--out", "run")
    assert json.loads(workspace.fabric("run", "--format", "json")[1])["unseen"] == []


def test_links_that_were_not_measured_again_are_counted(workspace: Workspace) -> None:
    slow = dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7), (1, 2), (3, 4)], 2.0)
    workspace.host.fabrics[8] = MadeUpFabric(8, Faults(bandwidth_links=slow), seed=3, noise=QUIET)
    code, out, _ = workspace.fabric(workspace.study, "--out", "run")
    assert code == 1
    assert "2 more links stood out and had no test: too many did." in workspace.flat(out)


def test_without_bandwidth_two_nodes_have_no_directions_to_compare(workspace: Workspace) -> None:
    text = workspace.study.read_text().replace("bandwidth_iterations = 5", "bandwidth_iterations = 0")
    workspace.study.write_text(text)
    workspace.host.bandwidth = False
    code, out, _ = workspace.fabric(workspace.study, "--nodes", "2", "--out", "run", "--no-bisection")
    assert code == 0
    assert "No bandwidth was measured, so no direction of a pair can be named" in workspace.flat(out)


@dataclass
class HypervisorHost(MadeUpHost):
    """Builds all nodes on one machine, which it names."""

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        return replace(super().carry_out(order, body), facts={"machine.0": "hypervisor"})


def test_nodes_that_share_a_machine_have_their_own_names(workspace: Workspace) -> None:
    workspace.host = HypervisorHost(Faults(latency_nodes={0: 2.0}))
    _, out, _ = workspace.fabric(workspace.study, "--out", "run")
    assert "node n0: a message to or from it" in workspace.flat(out)
    assert "hypervisor" not in out


REFUSED = {
    "1 node has no pairs": ("study.toml", "--nodes", "1"),
    "100,000 nodes are too many": ("study.toml", "--nodes", "100000"),
    "nothing is not a run directory": ("study.toml", "--against", "nothing"),
    "the study has no path 'waltz'": ("study.toml", "--path", "waltz"),
    "cannot read the study nothing.toml": ("nothing.toml",),
    "is a finished run": (".", "--nodes", "4"),
    "is not a run directory": (".",),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_arguments_are_refused_with_2(workspace: Workspace, message: str) -> None:
    code, out, err = workspace.fabric(*REFUSED[message])
    assert (code, out) == (2, "")
    assert message in err


def test_an_interrupted_run_reports_that_nothing_was_measured(workspace: Workspace) -> None:
    assert workspace.fabric(workspace.study, "--nodes", "4", "--out", "run")[0] == 0
    (workspace.folder / "run" / "trials" / "000000.json").unlink()
    list_anew(workspace.folder / "run")
    code, _, err = workspace.fabric("run")
    assert code == 2
    assert "run contains no measured fabric" in err


def test_a_run_of_a_study_is_not_a_fabric(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(Faults(latency_nodes={1: 2.0}))
    workspace.fabric(workspace.study, "--out", "run")
    second = workspace.folder / "run" / "trials" / "000001.json"
    rewrite(second, lambda record: record["order"]["workload"]["options"].pop("rounds"))
    code, _, err = workspace.fabric("run")
    assert code == 2
    assert "not of one fabric" in err
    assert "nearmetal compare run" in err


OTHER_VERBS = {
    "compare": (["compare", "run"], 2),
    "report": (["report", "run"], 2),
    "explain": (["explain", "run"], 2),
    "osu": (["show", "run", "--as", "osu"], 2),
    "predict": (["predict", "ring.toml", "--on", "run"], 2),
    "resume": (["run", "--resume", "run"], 2),
    "history": (["history", "add", "h.duckdb", "run"], 2),
    "gate": (["gate", "run", "--against", "run"], 64),
}


@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_verbs_that_compare_trials_point_to_the_fabric(workspace: Workspace, verb: str) -> None:
    workspace.fabric(workspace.study, "--out", "run", "--no-bisection")
    before = sorted((workspace.folder / "run").rglob("*"))
    (workspace.folder / "ring.toml").write_text(
        '[pattern]\nkind = "alltoall"\nranks = 4\nsteps = 1\nmessage_bytes = 8\n'
    )
    argv, code = OTHER_VERBS[verb]
    assert run(argv) == code
    captured = workspace.capsys.readouterr()
    assert captured.out == ""
    assert "error: run is a fabric run" in captured.err
    assert "hint: `nearmetal fabric run` reads it" in workspace.flat(captured.err)
    assert sorted((workspace.folder / "run").rglob("*")) == before


def test_show_lists_its_launches_and_names_the_verb_that_reads_it(workspace: Workspace) -> None:
    workspace.fabric(workspace.study, "--out", "run")
    assert run(["show", "run"]) == 0
    assert "nearmetal fabric run" in workspace.capsys.readouterr().out


def test_names_in_a_foreign_run_cannot_inject_terminal_commands_or_markup(workspace: Workspace) -> None:
    workspace.host = MadeUpHost(Faults(latency_nodes={1: 2.0}), prefix="\x1b[2J<b>")
    _, out, _ = workspace.fabric(workspace.study, "--out", "run", "--html", "page.html")
    assert "node ?[2J<b>1:" in out
    assert "\x1b" not in out
    page = (workspace.folder / "page.html").read_text()
    assert "\x1b" not in page
    assert "?[2J&lt;b&gt;1" in page
    assert "<b>" not in page


def test_a_page_that_cannot_be_written_is_an_error(workspace: Workspace) -> None:
    workspace.fabric(workspace.study, "--out", "run")
    code, _, err = workspace.fabric("run", "--html", "no/such/page.html")
    assert code == 1
    assert "cannot write no/such/page.html" in err
    code, _, err = workspace.fabric(workspace.study, "--html", ".", "--out", "other")
    assert (code, (workspace.folder / "other").exists()) == (1, False), "reported before anything is measured"
    assert "cannot write .: it is a directory" in err


def test_a_large_fabric_fits_the_width_of_a_terminal(workspace: Workspace) -> None:
    _, out, _ = workspace.fabric(
        workspace.study, "--nodes", "96", "--out", "run", "--no-bisection", "--html", "page.html"
    )
    assert "each character is the worst of 1.5 x 1.5 pairs" in out
    assert max(map(len, out.splitlines())) <= 80
    assert (workspace.folder / "page.html").stat().st_size < 1_000_000


# ---- on a real fabric


def throttled(shell: Shell, order: PathOrder, nodes: Sequence[str]) -> Endpoints:
    """Make a bridge on which one node's sending is limited to 2 Mbit/s by a token bucket (tc-tbf(8))."""
    ends = BRIDGE.up(shell, order, nodes)
    words = ["root", "tbf", "rate", "2mbit", "burst", "2kb", "latency", "1s"]
    shell.run(["tc", "qdisc", "add", "dev", "eth0", *words], node=nodes[2])
    return ends


REAL = "{ latency_iterations = 10, bandwidth_bytes = 256, bandwidth_iterations = 3, bandwidth_warmup = 0 }"


@pytest.mark.netns
@pytest.mark.mpi
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_throttled_node_of_a_real_fabric_is_found(
    flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PATHS, "bridge", replace(BRIDGE, up=throttled))
    text = STUDY.replace("[trials]", f'[mpi]\nflavour = "{flavour}"\n[trials]').replace("10 %", "50 %")
    (tmp_path / "study.toml").write_text(re.sub(r"options = .*", f"options = {REAL}", text))
    words = [str(tmp_path / "study.toml"), "--nodes", "5", "--out", str(tmp_path / "run"), "--format", "json"]
    code = run(["fabric", *words, "--no-bisection"])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    read = json.loads(captured.out)
    assert max(rate for rate in read["bandwidth_mb_per_s"][2] if rate is not None) < 0.45, "4 KiB, less a full bucket"
    named = {(one["metric"], one["role"], *one["nodes"]) for one in read["named"]}
    # On a machine so busy that healthy windows take as long, n2 does not stand out; any finding must still be true.
    assert code == (1 if named else 0)
    assert all("n2" in nodes for _, _, *nodes in named), named
    assert run(["show", str(tmp_path / "run"), "--trial", "0"]) == 0
    assert "nmfabric" in capsys.readouterr().out


def test_a_host_that_measures_no_fabric_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fabric` on the fake host, which plays single paths, was a traceback."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(fake_runs.STUDY)
    assert run(["fabric", "s.toml", "--nodes", "2"]) == 4
    assert "error: host kind 'fake' measures no fabric\nhint: name another host" in capsys.readouterr().err
