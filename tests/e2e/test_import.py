"""Existing output of other programs becomes a run that compares; a run is shown in OMB's columns."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from nearmetal.cli.main import run as cli
from nearmetal.errors import BadInputError
from nearmetal.report import as_json, as_osu
from nearmetal.results.osu import osu_tables
from nearmetal.results.paths import build_view
from nearmetal.serve.catalogue import Catalogue
from nearmetal.serve.pages import over_report
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder
from nearmetal.study.spec import digest
from nearmetal.workloads.figures import IMPORTED_MESSAGES
from nearmetal.workloads.samples import read_foreign
from nearmetal.workloads.tools import omb
from tests.unit.report.synthetic_run import ONE_SIZE, Recipe, make_run

DATA = Path(__file__).parents[1] / "data" / "tools"


def omb_file(path: Path, scale: float) -> Path:
    rows = "".join(f"{size:<10}{scale * us:>20.2f}\n" for size, us in ((8, 5.0), (1024, 8.0)))
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# OSU MPI Latency Test v7.4\n# Size         Avg Latency(us)\n{rows}")
    return path


def test_files_become_paths_and_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [omb_file(tmp_path / "native" / f"{i}.txt", 1 + i / 100) for i in range(5)]
    files += [omb_file(tmp_path / "vm" / f"{i}.txt", 1.5 + i / 100) for i in range(5)]
    root = tmp_path / "run"
    assert cli(["import", *map(str, files), "--out", str(root)]) == 0
    captured = capsys.readouterr()
    assert "no percentiles" in captured.err
    assert "10 valid trials in 5 blocks, one occasion" in captured.out, "nothing was planned"
    assert cli(["show", str(root)]) == 0
    assert re.search(r"as-found +- +valid\n", capsys.readouterr().out), "how long it took is not known: not 0 ns"
    view = build_view(RunDir.open(root))
    assert (view.baseline, view.blocks, view.host_kind) == ("native", 5, "import")
    (verdict,) = view.verdicts
    assert (verdict.path, str(verdict.verdict)) == ("vm", "slower")
    cell = view.cells[0].of("vm")
    assert cell is not None
    assert cell.levels["mean"].value == pytest.approx(5.0 * 1.52, rel=0.01)
    assert cell.levels["p99"].value is None, "a mean supports no percentile"
    assert json.loads(as_json.render(view))["study"]["mpi"] is None, "the files do not name it"


def test_what_is_noted_of_the_files_of_one_path_alone_is_a_caution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of ports with another MTU were compared without a word; what all paths share is told by the import."""
    text = (DATA / "perftest-4.5-ib_send_bw.txt").read_text()
    files = {"bare": text, "vf": text.replace("1024[B]", "4096[B]")}
    for name, of in files.items():
        (tmp_path / name).write_text(of)
    assert cli(["import", *(f"{name}={tmp_path / name}" for name in files), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert cli(["compare", str(tmp_path / "run")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ib-send-bw, the files of vf alone: measured with an MTU of 4096 B, chosen or not" in out
    assert "t_stdev" not in out


def test_figures_that_rounding_makes_equal_are_cautioned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0.25 and 0.26 us in all of 14 launches were shown to be equal within 5 %, though either may be 2 % off."""
    files = []
    for label, us in (("native", "0.25"), ("vm", "0.26")):
        (tmp_path / label).mkdir()
        for launch in range(14):
            files.append(tmp_path / label / f"{launch}.txt")
            files[-1].write_text(f"# OSU MPI Barrier Latency Test v5.9\n# Avg Latency(us)\n{us:>20}\n")
    assert cli(["import", *map(str, files), "--out", str(tmp_path / "run")]) == 0
    told = (
        "CAUTION: every launch of native omb-barrier/barrier as-found and of 1 more cell has the same figure: what the"
    )
    assert told in " ".join(capsys.readouterr().out.split())


def test_an_adopted_run_cannot_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = omb_file(tmp_path / "a" / "1.txt", 1.0)
    assert cli(["import", f"bare={file}", "--out", str(tmp_path / "run")]) == 0
    assert cli(["run", "--resume", str(tmp_path / "run")]) == 3
    assert "imported from files" in capsys.readouterr().err


def test_files_of_other_cells_do_not_move_a_launch_to_another_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One path has the small sizes first, the other alternates: only one of three launches had a partner."""
    for label, order in (("bare", "abcABC"), ("vm", "aAbBcC")):
        for number, name in enumerate(order):
            size = 8 if name.islower() else 64
            text = f"tcp_lat:\n    latency   =  9{number}{ord(name)} ns\n    msg_size  =  {size} bytes\n"
            place = tmp_path / label / f"{number}.txt"
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
    files = [str(tmp_path / label / f"{number}.txt") for label in ("bare", "vm") for number in range(6)]
    assert cli(["import", *files, "--out", str(tmp_path / "run")]) == 0
    assert cli(["compare", str(tmp_path / "run"), "--format", "json"]) == 0
    whole = json.loads(capsys.readouterr().out.partition("\n{")[2].join(("{", "")))
    assert whole["blocks"] == 3
    compared = [one["comparison"] for cell in whole["cells"] for one in cell["paths"] if one["comparison"]]
    assert [one["mean"]["blocks"] for one in compared] == [3, 3]


def test_a_name_longer_than_a_study_takes_is_shortened_and_stays_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Message rates of 16 pairs on GPUs were refused: the name of their workload had 43 letters."""
    head = (
        "# OSU MPI-CUDA Multiple Bandwidth / Message Rate Test v7.4\n# Send Buffer on DEVICE (D) and Receive Buffer on "
    )
    files = []
    for place in ("DEVICE (D)", "HOST (H)"):
        text = f"{head}{place}\n# [ pairs: 16 ] [ window size: 1 ]\n# Size   MB/s   Messages/s\n1  10.00  10000000.00\n"
        files.append(tmp_path / f"{len(files)}.txt")
        files[-1].write_text(text)
    assert cli(["import", *(f"a={file}" for file in files), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    names = [one.name for one in RunDir.open(tmp_path / "run").study().workload]
    assert len(set(names)) == 2
    assert all(name.startswith("omb-message_rate-cuda-d-") and len(name) == 40 for name in names)


def test_a_report_dates_the_import_and_not_the_measurement(tmp_path: Path) -> None:
    files = [omb_file(tmp_path / "bare" / f"{i}.txt", 1.0 + i / 100) for i in range(3)]
    assert cli(["import", *map(str, files), "--out", str(tmp_path / "run")]) == 0
    assert cli(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    created = RunDir.open(tmp_path / "run").info.created_utc
    dated = f"Study imported, imported {created[:16].replace('T', ' ')} UTC"
    text = (tmp_path / "page.html").read_text()
    assert dated in text
    assert "nearmetal cannot measure them again" in text
    assert "nearmetal run study.toml" not in text, "it would be refused"
    (entry,) = Catalogue(tmp_path).entries()
    assert "last trials" not in over_report(entry, [], traced=False).above, "files have no progress"


def test_actions_that_measure_are_refused_for_imported_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, scale in (("old", 1.0), ("new", 2.0)):
        files = [omb_file(tmp_path / name / f"{i}.txt", scale + i / 100) for i in range(4)]
        assert cli(["import", *(f"bare={file}" for file in files), "--out", str(tmp_path / f"run-{name}")]) == 0
    old, new = str(tmp_path / "run-old"), str(tmp_path / "run-new")
    assert cli(["gate", new, "--against", old, "--no-remeasure"]) == 1
    assert cli(["gate", new, "--against", old]) == 2
    stderr = capsys.readouterr().err
    assert "not measured again: this run was imported from files" in stderr
    assert "hint: --no-remeasure judges only the recorded blocks" in stderr
    assert cli(["plan", f"{new}/study.toml"]) == 3
    assert "imported from files" in capsys.readouterr().err
    assert cli(["advise", new]) == 2
    assert "without the counters" in capsys.readouterr().err


def test_another_number_of_files_is_no_change_of_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five files against four were `changed: study trials.max_blocks: 4 -> 5`, a mark in every series of a history."""
    roots = [str(tmp_path / f"run-{count}") for count in (4, 5)]
    for root, count in zip(roots, (4, 5), strict=True):
        files = [omb_file(tmp_path / f"of-{count}" / f"{i}.txt", 1.0 + count * i / 100) for i in range(count)]
        assert cli(["import", *(f"bare={file}" for file in files), "--out", root]) == 0
    assert cli(["gate", roots[1], "--against", roots[0], "--no-remeasure"]) != 1
    history = str(tmp_path / "many.history")
    assert cli(["history", "add", history, *roots]) == 0
    assert cli(["history", "show", history]) == 0
    shown = capsys.readouterr().out
    assert "edited" not in shown
    assert "changed: study" not in shown


def test_an_import_has_no_second_name_of_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reports said that both launches of the baseline in a block count, and JSON listed a path that no file is of."""
    files = [omb_file(tmp_path / name / f"{i}.txt", 1.0 + i / 100) for name in ("bare", "vm") for i in range(3)]
    root = str(tmp_path / "run")
    assert cli(["import", *map(str, files), "--out", root]) == 0
    assert "both launches" not in capsys.readouterr().out
    assert cli(["compare", root, "--format", "json"]) == 0
    assert [one["path"] for one in json.loads(capsys.readouterr().out)["paths"]] == ["bare", "vm"]


def test_with_one_bad_file_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = omb_file(tmp_path / "a" / "1.txt", 1.0), tmp_path / "a" / "2.txt"
    bad.write_text("hello\n")
    assert cli(["import", str(good), str(bad), "--out", str(tmp_path / "run")]) == 2
    assert "the format of this file is unknown" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_directory_a_glob_and_a_decimal_comma_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comma").write_text("# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n8  1,50\n")
    asked = [str(tmp_path), f"native={tmp_path}/*.txt", f"native={tmp_path}/comma"]
    assert cli(["import", *asked, "--out", str(tmp_path / "run")]) == 2
    stderr = capsys.readouterr().err
    assert f"it is a directory (name its files: {tmp_path}/*)" in stderr
    assert "after LABEL= the shell does not fill in a pattern" in stderr
    assert "'1,50' is not a number, but has a comma: run the program under LC_ALL=C" in stderr


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_launch_given_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], second: str) -> None:
    log = DATA / "imb-2021.11.txt"
    again = tmp_path / "again.txt"
    again.write_bytes(log.read_bytes() + b"\n")
    assert cli(["import", f"a={log}", f"{second}={again}", "--out", str(tmp_path / "run")]) == 2
    assert f"{again} ({second}) holds a launch of {log} (a): all figures are the same" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_launches_of_an_unknown_size_do_not_stand_beside_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They had a row of 0 B."""
    plain, sized = DATA / "netperf-2.7.0-tcp_rr.txt", tmp_path / "sized.txt"
    sized.write_text(plain.read_text() + "REQUEST_SIZE=64\n")
    assert cli(["import", f"a={sized}", f"b={plain}", "--out", str(tmp_path / "run")]) == 2
    told = f"{plain} does not say the size of its messages, as other files of netperf-tcp-round-trip do"
    assert told in capsys.readouterr().err
    assert cli(["import", f"a={plain}", f"a={DATA / 'netperf-2.7.0-udp_rr.txt'}", "--out", str(tmp_path / "run")]) == 0


def test_a_few_short_rates_may_agree(tmp_path: Path) -> None:
    """Counted are the digits that were printed, not those of the times that rates are stored as."""
    rows = "".join(f"{1 << power:<10}{1.24 * (1 << power):>20.2f}\n" for power in range(4))
    for launch in ("1", "2"):
        (tmp_path / launch).write_text(f"# OSU MPI Bandwidth Test v7.4\n# Size  Bandwidth (MB/s)\n{rows}")
    assert cli(["import", f"a={tmp_path / '1'}", f"a={tmp_path / '2'}", "--out", str(tmp_path / "run")]) == 0


def test_two_launches_of_a_size_or_two_may_agree_but_no_file_counts_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (omb_file(tmp_path / "a" / name, 1.0) for name in ("1.txt", "2.txt"))
    assert cli(["import", str(one), str(other), "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "link").symlink_to(one)
    assert cli(["import", f"a={one}", f"a={tmp_path / 'link'}", "--out", str(tmp_path / "twice")]) == 2
    assert "link is given twice" in capsys.readouterr().err


def test_more_than_a_run_holds_is_refused_in_words_of_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named `trials.max_blocks` and `path`, of a study that nobody wrote."""
    launch = omb_file(tmp_path / "a" / "1.txt", 1.0).read_text()
    (tmp_path / "a" / "log").write_text(launch * 10_001)
    (tmp_path / "a" / "rest").write_text(launch * 2)
    (tmp_path / "a" / "most").write_text(launch * 9_999)
    root = str(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "a")
    for files, where in (("log",), "log"), (("rest", "most"), "2 files, rest the first"):
        assert cli(["import", *(f"old={file}" for file in files), "--out", root]) == 2
        told = f"10001 launches of omb-latency under the label old (in {where}), but a run holds at most 10000"
        stderr = capsys.readouterr().err
        assert told in stderr
        assert "max_blocks" not in stderr
    labelled = [f"l{number}={omb_file(tmp_path / 'a' / f'{number}', 1 + number / 100)}" for number in range(257)]
    assert cli(["import", *labelled, "--out", root]) == 2
    assert "257 labels (l0, ..., l256), but a run holds at most 256" in capsys.readouterr().err
    assert not Path(root).exists()


READ = sorted(
    path
    for path in DATA.iterdir()
    if path.suffix != ".md" and "error" not in path.name and not path.name.startswith(("qperf", "netperf"))
)


@pytest.mark.parametrize("path", READ, ids=lambda path: path.name)
def test_every_recorded_file_is_recognized_by_its_own_reader(path: Path) -> None:
    expected = path.name.removeprefix("written-").split("-")[0]
    read = read_foreign(path.read_bytes())
    assert read
    for found in read:
        assert found.program.lower() == expected
        assert all((cell.ns > 0).all() for cell in found.cells)


def test_our_figures_in_the_columns_of_omb_read_back(tmp_path: Path) -> None:
    files = [f"a={DATA / name}" for name in ("written-omb-5.9-bw.txt", "written-omb-7.4-allreduce-fz.txt")]
    assert cli(["import", *files, "--out", str(tmp_path / "run")]) == 0
    blocks = as_osu.render(RunDir.open(tmp_path / "run")).split("\n\n")
    tables = {table.operation: table for table in (omb.parse(f"{block}\n".encode()) for block in blocks)}
    assert [(row.message_bytes, row.figure) for row in tables["bw"].rows] == [
        (1, 2.97),
        (1024, 1850.11),
        (4194304, 11022.80),
    ]
    assert [row.figure for row in tables["allreduce"].rows] == [2.11, 2.12]
    assert cli(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    durations = set(re.findall("duration of ([^<]+), us", (tmp_path / "page.html").read_text()))
    assert durations == {"6,400,000 messages"}, "not of an iteration"


def test_means_of_launches_are_no_iterations_in_the_columns_of_omb(tmp_path: Path) -> None:
    """Forty imported means had percentiles, and a least and a greatest rank, "of 40 iterations"."""
    table = DATA / "written-omb-7.4-allreduce-fz.txt"
    files = []
    for launch in range(40):
        files.append(f"a={tmp_path / str(launch)}")
        (tmp_path / str(launch)).write_text(table.read_text().replace(" 2.11", f" 2.{launch + 11}"))
    assert cli(["import", *files, "--out", str(tmp_path / "run")]) == 0
    (found,) = osu_tables(RunDir.open(tmp_path / "run"))
    mean, *others = found.rows[4]
    assert mean == pytest.approx(2.11 + 39 / 200)
    assert len(others) == len(found.columns) - 1
    assert all(map(math.isnan, others))


def test_the_window_of_imported_message_rates_is_that_of_the_file(tmp_path: Path) -> None:
    """They said "window size: 64", for which their durations are stored, and read back as another measurement."""
    written = (DATA / "written-omb-7.4-mbw_mr.txt").read_bytes()
    for window in (b"64", b"1"):
        file = tmp_path / f"{window.decode()}.txt"
        file.write_bytes(written.replace(b"window size: 64", b"window size: " + window))
        root = tmp_path / f"run-{window.decode()}"
        assert cli(["import", f"a={file}", "--out", str(root)]) == 0
        again, first = omb.parse(as_osu.render(RunDir.open(root)).encode()), omb.parse(file.read_bytes())
        assert again.window == first.window == window.decode()
        assert [row.figure for row in again.rows] == [row.figure for row in first.rows]


def test_a_gate_of_figures_that_rounding_makes_equal_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.25 us before and 0.27 us after were 8 % worse, give or take nothing: each may be 2 % off."""
    for name, us in (("old", "0.25"), ("new", "0.27")):
        files = []
        for launch in range(3):
            files.append(f"a={tmp_path / f'{name}-{launch}'}")
            Path(files[-1][2:]).write_text(f"# OSU MPI Barrier Latency Test v5.9\n# Avg Latency(us)\n{us:>20}\n")
        assert cli(["import", *files, "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    cli(["gate", str(tmp_path / "new"), "--against", str(tmp_path / "old")])
    told = " ".join(capsys.readouterr().out.split())
    assert "In 1 cell each run's launches are all alike: what was rounded off is in no interval." in told


def test_an_import_is_compared_with_one_whose_rates_have_fewer_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions stored a bandwidth for a window of 64 messages, in which its fifth digit was another."""
    for version, messages in (("new", IMPORTED_MESSAGES), ("old", 64)):
        monkeypatch.setattr("nearmetal.run.adopt.IMPORTED_MESSAGES", messages)
        monkeypatch.setattr("nearmetal.workloads.samples.IMPORTED_MESSAGES", messages)
        files = []
        for launch in range(3):
            files.append(f"a={tmp_path / f'{version}-{launch}'}")
            rate = 98.76 + launch / 100
            Path(files[-1][2:]).write_text(f"# OSU MPI Bandwidth Test v7.4\n# Size  Bandwidth (MB/s)\n8  {rate:.2f}\n")
        assert cli(["import", *files, "--out", str(tmp_path / version)]) == 0
    capsys.readouterr()
    assert cli(["gate", str(tmp_path / "new"), "--against", str(tmp_path / "old"), "--format", "json"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["run"] == pytest.approx(98.77, rel=1e-8)
    assert cell["base"] == pytest.approx(98.77, rel=1e-4)
    assert cell["base"] != pytest.approx(98.77, rel=1e-6)


STUDY = """
format = 1
name = "t"
baseline = "veth"
path = [{ name = "veth" }]
workload = [{ name = "allreduce", sizes = [8] }]
"""


def stored(
    root: Path, *, pace_us: int = 0, operation: str = "allreduce", us: tuple[int, ...] = (4, 2, 6), late: int = 0
) -> RunDir:
    """Store one trial whose ranks have these durations, all counted; `late` iterations missed their time window."""
    ranks = len(us)
    options: dict[str, Scalar | list[Scalar]] = {"operation": operation, "sizes": [8]} | (
        {"pace_us": pace_us} if pace_us else {}
    )
    order = Order(0, 0, PathOrder("veth", "veth"), WorkloadOrder(operation, "engine", options, (0, 1, 0, 1)[:ranks]))
    ns = np.repeat(1000 * np.array([us]).T, 20, axis=1)
    flags = np.zeros(ns.shape, np.uint8)
    flags[:, 20 - late :] = 2
    cell = CellSamples(operation, 8, 5, tuple(range(ranks)), ns * 0, ns, flags)
    info = RunInfo("t", digest(STUDY), "fake", "made up", "0", "2026-01-01T00:00:00+00:00")
    run = RunDir.create(root, info, STUDY)
    with run:
        run.append(order, Outcome(TrialStatus.VALID), [cell], attempt=1, started_utc="2026-01-01T00:00:00+00:00")
    return RunDir.open(root)


def test_a_collective_shows_the_slowest_rank_and_the_mean_but_osu_only_the_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(tmp_path / "run")
    assert cli(["show", str(run.root), "--trial", "0"]) == 0
    shown = capsys.readouterr().out
    assert "time, slowest rank: mean 6.000 us" in shown
    assert "; mean over ranks, untrimmed: 4.000 us" in shown
    (table,) = [omb.parse(as_osu.render(run).encode())]
    assert [row.figure for row in table.rows] == [4.0]


@pytest.mark.parametrize(
    ("operation", "us", "columns"),
    [
        ("latency", (4, 9), {"Avg Latency(us)": 2.0, "P50 Tail Lat(us)": 2.0, "P99 Tail Lat(us)": math.nan}),
        ("bw", (4, 9), {"Bandwidth (MB/s)": 64 * 8 / 4}),
        ("message_rate", (4, 9, 4, 9), {"MB/s": 2 * 64 * 8 / 4, "Messages/s": 2 * 64 / 4e-6}),
        (
            "allreduce",
            (4, 2, 6),
            {
                "Avg Latency(us)": 4.0,
                "Min Latency(us)": 2.0,
                "Max Latency(us)": 6.0,
                "Iterations": 15,
                "P50 Tail Lat(us)": 6.0,
                "P99 Tail Lat(us)": math.nan,
            },
        ),
    ],
)
def test_each_column_of_osu_is_exact(
    tmp_path: Path, operation: str, us: tuple[int, ...], columns: dict[str, float]
) -> None:
    (table,) = osu_tables(stored(tmp_path / "run", operation=operation, us=us))
    found = dict(zip(table.columns, table.rows[8], strict=True))
    assert {name: found[name] for name in columns} == pytest.approx(columns, rel=1e-12, nan_ok=True)
    assert set(found) - set(columns) <= {"P90 Tail Lat(us)"}
    assert (table.trials, table.has_size) == (1, True)
    assert (table.pairs, table.window) == ((2, "64") if operation == "message_rate" else (0, ""))


def test_osu_counts_the_iterations_of_its_mean(tmp_path: Path) -> None:
    (table,) = osu_tables(stored(tmp_path / "run", late=3))
    assert table.rows[8][table.columns.index("Iterations")] == 20 - 5 - 3


def test_osu_takes_both_launches_of_a_baseline(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=2, again=2.0))
    of = {one.path: one for one in osu_tables(run)}
    values = [
        run.values(one, one.cells[0]) for one in run.trials() if one.order.path.label.removesuffix("-again") == "veth"
    ]
    assert "veth-again" not in of
    assert of["veth"].trials == len(values) == 4
    assert of["veth"].rows[8][0] == pytest.approx(np.concatenate(values).mean() / 2000, rel=1e-12)


@pytest.mark.parametrize(("operation", "figure"), [("multi_latency", 2.0), ("message_rate", 2 * 64 / 4e-6)])
def test_osu_uses_the_time_of_the_first_of_several_pairs(operation: str, figure: float, tmp_path: Path) -> None:
    """osu_multi_lat and osu_mbw_mr print what rank 0 measured; the engine's value is the slowest pair's."""
    run = stored(tmp_path / "run", operation=operation, us=(4, 9, 4, 9))
    (table,) = [omb.parse(as_osu.render(run).encode())]
    assert [row.figure for row in table.rows] == [figure]


def test_a_random_pace_is_not_shown_in_osus_columns(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="back to back"):
        as_osu.render(stored(tmp_path / "run", pace_us=500))
