"""`nearmetal history` from end to end, and its file: killed writers, two at once, garbage, other formats."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import duckdb
import pytest

from fake_runs import list_anew, make_run, rewrite
from nearmetal.cli.main import run as nearmetal
from nearmetal.errors import NearmetalError, StoreError
from nearmetal.history import as_html, as_json, words
from nearmetal.history.collect import collect
from nearmetal.history.database import Database
from nearmetal.history.records import History, KeptRun, ListedRun, Origin, Point, RunEntry, Series
from nearmetal.history.view import _changed, build_history
from nearmetal.results.paths import build_view
from nearmetal.results.series import CellId, CellSeries, Metric
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.changes import Change
from nearmetal.stats.compare import LevelEstimate
from nearmetal.stats.equivalence import Better
from nearmetal.store.archive import unarchive
from nearmetal.store.rundir import RunDir, RunInfo
from tests.beside_runs import HISTORY_STUDY, make_history
from tests.unit.report.synthetic_run import ONE_SIZE, Recipe
from tests.unit.report.synthetic_run import make_run as make_synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_history(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def filled(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "h.duckdb"
    assert nearmetal(["history", "add", str(path), *map(str, runs)]) == 0
    return path


@pytest.fixture
def history(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copy(filled, "h.duckdb")
    return "h.duckdb"


def count(path: str | Path) -> int:
    with Database(Path(path), write=False) as database:
        return len(database.kept())


def test_the_same_run_added_twice_counts_once(
    history: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copytree(runs[0], tmp_path / "elsewhere")
    assert nearmetal(["history", "add", history, str(runs[0]), str(moved)]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["known", "known"]
    assert count(history) == 14


def test_a_continued_run_is_updated(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = shutil.copytree(runs[0], tmp_path / "part")
    for record in RunDir.open(part).trials():
        if record.order.block == 2:
            (part / "trials" / f"{record.order.trial:06d}.json").unlink()
    list_anew(part)
    path = tmp_path / "h.duckdb"
    for root, status in ((part, "added"), (runs[0], "updated"), (part, "known")):
        assert nearmetal(["history", "add", str(path), str(root)]) == 0
        assert capsys.readouterr().out == f"{status}: {root}\n"
    with Database(path, write=False) as database:
        shown = build_history(str(path), database.kept(), Metric.MEDIAN)
    assert [run.entry.blocks for run in shown.runs] == [3]
    assert {point.level.n for one in shown.series for point in one.points} == {3}


def test_a_run_whose_lost_trial_was_measured_again_is_updated(runs: list[Path], tmp_path: Path) -> None:
    """It has as many trials as before, so it was taken for known and the history kept the earlier figures."""
    kept = collect(runs[0])
    first, *others = kept.cells[Metric.MEAN]
    again = dataclasses.replace(first, ns={block: 2.0 * ns for block, ns in first.ns.items()})
    measured = dataclasses.replace(kept, cells={**kept.cells, Metric.MEAN: (again, *others)})
    with Database(tmp_path / "h.duckdb", write=True) as database:
        assert [database.add(one) for one in (kept, kept, measured, measured)] == [
            "added",
            "known",
            "updated",
            "known",
        ]
        (found,) = database.kept()
    assert found.cells[Metric.MEAN] == (again, *others)
    root = shutil.copytree(runs[1], tmp_path / "run")  # was there twice: its first trial identifies it
    with Database(tmp_path / "h.duckdb", write=True) as database:
        assert database.add(collect(root)) == "added"
        rewrite(root / "trials" / "000000.json", lambda raw: raw.update(started_utc="2026-12-01T00:00:00+00:00"))
        assert [database.add(collect(one)) for one in (root, root)] == ["updated", "known"]
        assert len(database.kept()) == 2


def test_show_finds_the_change_and_the_facts_that_changed_with_it(
    history: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearmetal(["history", "show", history]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "1 of 2 series shows a change of level" in " ".join(printed.split())
    assert printed.startswith("Figures from made up.")
    assert "of those marked, at most 5 % are expected to be false." in " ".join(printed.split())
    assert "kernel.release: 6.1 -> 6.8" in printed
    assert nearmetal(["history", "show", history, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_path = {one["path"]: one for one in found["series"]}
    assert [change["run"] for change in by_path["tap"]["changes"]] == [9]
    assert by_path["tap"]["changes"][0]["ratio"] == pytest.approx(28 / 24, rel=0.02)
    assert by_path["veth"]["changes"] == [], "one bad run is not a change"
    assert [run["changed"] for run in found["runs"]] == [[]] * 8 + [["kernel.release: 6.1 -> 6.8"]] + [[]] * 5


class FourteenRuns:
    """Runs of one cell, in memory: from the ninth on its p99 is a fifth longer, while its mean is unchanged."""

    def history(self, metric: Metric, *, path: str = "") -> History:
        cells = {one: self.cells(one) for one in Metric}
        kept = [
            KeptRun(
                entry,
                self.facts().get(entry.run_id, {}),
                {one: tuple(cell for run_id, cell in of if run_id == entry.run_id) for one, of in cells.items()},
            )
            for entry in self.runs()
        ]
        return build_history("memory", kept, metric, path=path)

    def runs(self) -> list[RunEntry]:
        made = [f"2026-03-{day:02d}T08:00:00+00:00" for day in range(1, 15)]
        return [RunEntry("s", "0", "fake", "made up", "0.1", at, f"{i}", f"r{i}", 9, 3) for i, at in enumerate(made)]

    def facts(self) -> dict[str, dict[str, str]]:
        return {}

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        cell, shown = (
            CellId("latency", "latency", "as-found", 8, "tap"),
            DisplayScale("time", "us", Better.SMALLER, 0.001),
        )
        longer = [1.2 if metric is Metric.P99 and number >= 8 else 1.0 for number in range(14)]
        levels = [10_000.0 * times * (1 + 0.001 * (number % 5)) for number, times in enumerate(longer)]
        return [(f"{i}", CellSeries(cell, shown, {0: level, 1: level}, "", 2, 1, {})) for i, level in enumerate(levels)]


def test_a_change_of_only_the_tail_is_reported_beside_the_mean() -> None:
    by_mean = FourteenRuns().history(Metric.MEAN)
    assert by_mean.marked == ()
    assert by_mean.further == ((Metric.P99, 1),)
    assert words.found(by_mean).startswith(
        "0 of 1 series show a change of level in the mean. 1 more shows one in the p99: `--metric p99`. Changes are"
    )
    assert "false" not in words.found(by_mean), "nothing is marked that could be"
    assert json.loads(as_json.render(by_mean))["further"] == {"p99": 1}
    by_p99 = FourteenRuns().history(Metric.P99)
    assert (len(by_p99.marked), by_p99.further) == (1, ())
    assert FourteenRuns().history(Metric.MEAN, path="veth").further == ()


class TwoShortSeries(FourteenRuns):
    """Eight runs of two cells: enough for one series, and too few for one of two."""

    def runs(self) -> list[RunEntry]:
        return super().runs()[:8]

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        one = super().cells(metric)[:8]
        other = [
            (run, dataclasses.replace(entry, cell=dataclasses.replace(entry.cell, path="vf"))) for run, entry in one
        ]
        return one + other


def test_how_many_runs_show_a_change_depends_on_how_many_series_there_are() -> None:
    said = words.found(TwoShortSeries().history(Metric.MEAN))
    assert said.endswith("The shortest series has 8 runs: fewer than 10 cannot show a change of one series alone.")
    alone = words.found(TwoShortSeries().history(Metric.MEAN, path="vf"))
    assert "cannot show a change" not in alone


class RunsOfTwoStudies(FourteenRuns):
    """Runs of two studies in turn, with the same cells: a ping-pong of 0 B and of 8 B, and a barrier."""

    def runs(self) -> list[RunEntry]:
        return [dataclasses.replace(run, study_name="st"[i % 2]) for i, run in enumerate(super().runs())]

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        several = [("latency", 0), ("latency", 8), ("barrier", 0)]
        return [
            (run, dataclasses.replace(entry, cell=CellId(name, name, "as-found", size, "tap")))
            for run, entry in super().cells(metric)
            for name, size in several
        ]


def test_no_two_series_have_one_name() -> None:
    history = RunsOfTwoStudies().history(Metric.MEAN)
    names = ["tap barrier as-found", "tap latency 0 B as-found", "tap latency 8 B as-found"]
    assert [row[0] for table in words.overviews(history) for row in table.rows] == names + names
    expected = [f"{study} on fake: {name}" for study in "st" for name in names]
    assert [history.title(one) for one in history.series] == expected
    page = as_html.render(history)
    assert all(f"<figcaption>{name}</figcaption>" in page for name in expected)
    (alone,) = FourteenRuns().history(Metric.MEAN).series
    assert FourteenRuns().history(Metric.MEAN).title(alone) == "tap latency 8 B as-found"


class RunsWithoutACell(FourteenRuns):
    """The ninth run, the first under a new kernel, lacks the cell."""

    def facts(self) -> dict[str, dict[str, str]]:
        return {f"{number}": {"kernel.release": "6.8" if number >= 8 else "6.1"} for number in range(14)}

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        return [one for one in super().cells(metric) if one[0] != "8"]


def test_a_fact_that_changed_in_a_run_without_the_cell_changed_before_the_next() -> None:
    history = RunsWithoutACell().history(Metric.P99)
    (series,) = history.marked
    assert [series.points[change.index].run for change in series.changes] == [10]
    ((_, run, _, _, why),) = words.changes(history).rows
    assert (run, why) == ("10", "kernel.release: 6.1 -> 6.8")
    assert [history.changed(series, index) for index in (7, 8, 9)] == [(), ("kernel.release: 6.1 -> 6.8",), ()]
    assert "kernel.release: 6.1 -&gt; 6.8" in str(as_html.chart(history, series))


def test_the_p99_of_a_rate_is_called_that_of_the_durations() -> None:
    """It read as the rate of the fastest hundredth."""
    history = FourteenRuns().history(Metric.P99)
    shown = [dataclasses.replace(one.shown, better=Better.LARGER) for one in history.series]
    series = [dataclasses.replace(one, shown=rate) for one, rate in zip(history.series, shown, strict=True)]
    rates = dataclasses.replace(history, series=tuple(series))
    told = "The p99 of a rate is that of the durations"
    assert (told in words.found(rates), told in words.found(history)) == (True, False)
    assert told not in words.found(dataclasses.replace(rates, metric=Metric.MEAN))


class CalmRuns(FourteenRuns):
    """Only the first run's level, in each run."""

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        first = super().cells(metric)[0][1]
        return [(f"{number}", first) for number in range(14)]


def test_a_page_says_in_a_sentence_that_no_series_or_every_series_changed() -> None:
    calm, marked = (as_html.render(runs.history(Metric.P99)) for runs in (CalmRuns(), FourteenRuns()))
    assert "No series shows a change of level." in calm
    assert "Every series shows a change of level." in marked
    assert "None." not in calm + marked


class TenChangedSeries(FourteenRuns):
    """The series that changes by its p99, ten times."""

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        return [
            (run, dataclasses.replace(entry, cell=dataclasses.replace(entry.cell, path=f"vf{number}")))
            for run, entry in super().cells(metric)
            for number in range(10)
        ]


def test_no_two_lines_of_a_chart_look_alike() -> None:
    history = TenChangedSeries().history(Metric.P99)
    assert len(history.marked) == 10
    legend = re.findall(r'class="series ([^"]*) line" d="M[^"]*h20"', as_html.together_chart(history))
    assert len(set(legend)) == len(legend) == 10


class TwoWindowRuns(FourteenRuns):
    """Runs of one bandwidth: from the ninth on a window has four times the messages, and takes four times as long."""

    def cells(self, metric: Metric) -> list[tuple[str, CellSeries]]:
        found = []
        for number, times in enumerate([1] * 8 + [4] * 6):
            shown = DisplayScale("bandwidth", "MB/s", Better.LARGER, 8_000.0 * times)
            level = 1_000.0 * times * (1 + 0.001 * (number % 5))
            cell = CellId("bw", "bw", "as-found", 8, "tap")
            found.append((f"{number}", CellSeries(cell, shown, {0: level, 1: level}, "", 2, 1, {})))
        return found


def test_another_window_size_is_not_a_change_of_bandwidth() -> None:
    (series,) = (found := TwoWindowRuns().history(Metric.MEAN)).series
    assert [round(point.level.value, 1) for point in series.points[:2] + series.points[8:10]] == [8.0, 8.0, 8.0, 8.0]
    assert found.marked == ()


def test_an_edited_study_is_called_so_and_not_by_its_sums() -> None:
    first = RunEntry("study", "0" * 64, "fake", "made up", "0", "2026-01-01T00:00:00+00:00", "a", "/a", 1, 3)
    second = dataclasses.replace(first, run_id="b", study_sha256="1" * 64, nearmetal_version="1")
    one, edited, same = (KeptRun(entry, {}, {}) for entry in (first, second, dataclasses.replace(first, run_id="c")))
    assert _changed(one, edited) == ("study: edited", "nearmetal: 0 -> 1")
    assert _changed(one, same) == ()


def test_a_long_series_is_drawn_completely() -> None:
    shown = DisplayScale("time", "us", Better.SMALLER, 0.001)
    cell = CellId("w", "w", "s", 8, "p")
    points = tuple(Point(n, LevelEstimate(3, 1.0 + (n > 70), None, IntervalMethod.NONE), 3, 1) for n in range(1, 101))
    series = Series(Origin("study", "fake"), cell, shown, points, (Change(70, 0.001, 2.0),), sized=True)
    entry = RunEntry("study", "0", "fake", "made up", "0", "2026-01-01T00:00:00+00:00", "id", "/r", 1, 3)
    runs = tuple(ListedRun(n, entry, ("kernel: a -> b",) if n in {1, 30} else ()) for n in range(1, 101))
    drawn = words.sparkline(History("h", Metric.MEDIAN, runs, (series,), 0.05), series)
    assert drawn == "▁" * 7 + "╎" + "▁" * 10 + "│" + "█" * 7


def test_the_page_is_self_contained(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearmetal(["history", "show", history, "--out", "h.html", "--path", "tap"]) == 0
    page = Path("h.html").read_text()
    body = ET.fromstring(page[page.index("<main>") : page.index("</main>") + len("</main>")])
    charts = [e for e in body.iter("svg") if e.get("class") == "chart"]
    assert len(charts) == 1
    assert len(list(charts[0].iter("circle"))) == 14
    assert [e.get("class") for e in charts[0].iter("line")].count("change") == 1
    assert [e.get("class") for e in charts[0].iter("line")].count("machine") == 1
    assert "<script" not in page
    assert "http:" not in page.replace("http://www.w3.org", "")


def test_missing_things_are_reported(history: str, capsys: pytest.CaptureFixture[str], runs: list[Path]) -> None:
    for argv, message in (
        (["show", "nowhere.duckdb"], "there is no history"),
        (["show", history, "--path", "nosuch"], "holds no mean of path 'nosuch'\nhint: its paths: veth, tap; its w"),
        (["show", history, "--metric", "p99"], "supports a p99\nhint: it holds --metric mean, --metric median"),
        (["add", str(runs[0]), str(runs[1])], "is a directory"),
        (["add", "no/such/h.duckdb", str(runs[1])], "is not a directory"),
        (["add", history, "nowhere"], "not a run directory"),
    ):
        assert nearmetal(["history", *argv]) == 2
        assert message in capsys.readouterr().err


def test_without_duckdb_the_error_names_what_to_install(
    history: str, runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for argv in (["show", history], ["add", "new.duckdb", str(runs[0])]):
        assert nearmetal(["history", *argv]) == 3
        assert "pip install 'nearmetal[history]'" in capsys.readouterr().err


def test_the_file_is_private(filled: Path) -> None:
    assert stat.S_IMODE(filled.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("CREATE TABLE other (a INTEGER)", "no history of nearmetal"),
        ("CREATE VIEW nearmetal_history AS SELECT 1 AS format", "no history of nearmetal"),
        ("CREATE TABLE nearmetal_history (format INTEGER); INSERT INTO nearmetal_history VALUES (3)", "has format 3"),
        ("CREATE TABLE nearmetal_history (format INTEGER); INSERT INTO nearmetal_history VALUES (1)", "to a new file"),
        ("CREATE TABLE nearmetal_history (format INTEGER)", "has format None"),
        (
            "CREATE TABLE nearmetal_history (format INTEGER); INSERT INTO nearmetal_history VALUES (2); "
            "CREATE VIEW runs AS SELECT 'a' AS run_id",
            "lacks cells, facts, figures, runs",
        ),
        (
            "CREATE TABLE nearmetal_history (format INTEGER); INSERT INTO nearmetal_history VALUES (2); "
            "CREATE TABLE runs (a INTEGER); CREATE TABLE facts (a INTEGER); CREATE TABLE cells (a INTEGER); "
            "CREATE TABLE figures (a INTEGER)",
            "cannot be read as a history",
        ),
    ],
)
def test_other_files_of_duckdb_are_refused(
    tmp_path: Path, make: str, message: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(make)
    for argv in (["show", str(path)], ["add", str(path), str(runs[0])]):
        assert nearmetal(["history", *argv]) == 2
        stderr = capsys.readouterr().err
        assert message in stderr
        assert "hint: " in stderr


@pytest.mark.parametrize("name", ["h.json", "h.csv", "h.duckdb"])
def test_a_file_that_is_not_a_database_is_refused_and_kept(
    tmp_path: Path, name: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """DuckDB opens JSON and CSV as in-memory tables."""
    path = tmp_path / name
    path.write_text('{"a": 1}\n')
    for argv in (["show", str(path)], ["add", str(path), str(runs[0])]):
        assert nearmetal(["history", *argv]) == 2
        assert f"{path} cannot be read as a history: it is no DuckDB file" in capsys.readouterr().err
    assert path.read_text() == '{"a": 1}\n'


def test_damaged_files_are_refused_and_never_crash(filled: Path, tmp_path: Path) -> None:
    drawn, refusals = random.Random(7), 0
    whole = filled.read_bytes()
    path = tmp_path / "d.duckdb"
    for round_ in range(24):
        data = bytearray(whole)
        if round_ % 3 == 0:
            data = data[: drawn.randrange(len(data))]
        elif round_ % 3 == 1:
            data[: drawn.randrange(1, 64)] = drawn.randbytes(1)
        else:
            for _ in range(200):
                data[drawn.randrange(len(data))] = drawn.randrange(256)
        path.write_bytes(data)
        try:
            with Database(path, write=False) as database:
                build_history("damaged", database.kept(), Metric.MEDIAN)
        except NearmetalError as refused:
            message = refused.render()
            refusals += str(path) in message and "hint: " in message
        else:
            refusals += 1
    assert refusals == 24


_KILLED = """
import os, signal, sys
from pathlib import Path
from nearmetal.history import database
left = [int(sys.argv[3])]
insert = database.Database._insert
def killed(self, table, rows):
    insert(self, table, rows)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
database.Database._insert = killed
from nearmetal.cli.main import main
main(["history", "add", sys.argv[1], *sys.argv[2].split()])
"""


@pytest.mark.parametrize(("after", "kept"), [(2, 0), (6, 1)])
def test_a_killed_writer_leaves_complete_runs(tmp_path: Path, runs: list[Path], after: int, kept: int) -> None:
    path = tmp_path / "h.duckdb"
    two = " ".join(map(str, runs[:2]))
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), two, str(after)], capture_output=True, timeout=600, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert count(path) == kept, "readable as it was left"
    assert nearmetal(["history", "add", str(path), *map(str, runs[:2])]) == 0
    assert count(path) == 2
    with Database(path, write=False) as database:
        found = build_history(str(path), database.kept(), Metric.MEDIAN)
    assert all(len(one.points) == 2 for one in found.series)


def test_two_concurrent_writers_both_succeed(tmp_path: Path, runs: list[Path]) -> None:
    path = tmp_path / "h.duckdb"
    program = "from nearmetal.cli.main import main; import sys; main(['history', 'add', *sys.argv[1:]])"
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), *map(str, share)], stdout=subprocess.DEVNULL)
        for share in (runs[:4], runs[2:6])
    ]
    assert [writer.wait(timeout=600) for writer in writers] == [0, 0]
    assert count(path) == 6
    assert [one.name for one in tmp_path.iterdir()] == ["h.duckdb"], "no lock, no half-made file"


def test_a_full_disk_is_not_reported_as_a_damaged_file(tmp_path: Path, runs: list[Path]) -> None:
    new, old = tmp_path / "new.duckdb", tmp_path / "old.duckdb"
    assert nearmetal(["history", "add", str(old), str(runs[0])]) == 0
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from nearmetal.cli.main import main\n"
        "main(['history', 'add', *sys.argv[1:]])\n"
    )
    for path in (new, old):
        argv = [sys.executable, "-B", "-c", program, str(path), str(runs[1])]  # -B: no partly written cache of a module
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 1, done.stderr
        assert "cannot write" in done.stderr
    assert [one.name for one in tmp_path.iterdir() if one.suffix != ".wal"] == ["old.duckdb"]
    assert count(old) == 1


def test_waiting_in_vain_for_the_lock_is_reported(tmp_path: Path, runs: list[Path]) -> None:
    path = tmp_path / "h.duckdb"
    holder = subprocess.Popen(
        [sys.executable, "-c", "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(flush=True); input()", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreError, match="in use by another process"):
            Database(path, write=True, wait_s=0.2)
    finally:
        holder.communicate(b"\n")


def test_a_run_without_a_valid_trial_is_refused(tmp_path: Path) -> None:
    failing = HISTORY_STUDY.format(seed=1, options='"fail.veth" = "x", "fail.veth-again" = "x", "fail.tap" = "x"')
    with pytest.raises(NearmetalError, match="no valid trial"):
        collect(make_run(tmp_path / "r", failing))


def test_runs_of_one_second_are_in_the_order_in_which_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs that were imported one after another stood in the order of their checksums."""
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        text = f"# OSU MPI Latency Test v7.4\n# Size         Avg Latency(us)\n8 {5 + number}.00\n"
        Path(f"{number}.txt").write_text(text)
        assert nearmetal(["import", f"bare={number}.txt", "--out", f"run{number}"]) == 0
    runs = [f"run{number}" for number in range(8)]
    assert nearmetal(["history", "add", "h.duckdb", *reversed(runs)]) == 0
    capsys.readouterr()
    assert nearmetal(["history", "show", "h.duckdb", "--format", "json"]) == 0
    (series,) = json.loads(capsys.readouterr().out)["series"]
    assert [round(point["level"]) for point in series["points"]] == [*range(5, 13)]


def test_each_occasion_counts_once_with_the_figures_of_the_report(tmp_path: Path) -> None:
    text = HISTORY_STUDY.format(seed=1, options='"base_ns.tap" = 24000').replace("iterations = 40", "iterations = 400")
    root = make_run(tmp_path / "r", text)
    assert nearmetal(["run", "--resume", str(root), "--occasions", "2"]) == 0
    kept = {(one.cell.path, metric): one for metric, of in collect(root).cells.items() for one in of}
    (cell,) = build_view(RunDir.open(root)).cells
    assert len(kept) == 2 * len(Metric)
    for (path, metric), one in kept.items():
        own = cell.of(path)
        assert own is not None
        assert len(one.ns) == own.levels[metric].occasions == 2
        assert one.blocks == own.levels[metric].blocks == 6
        assert len(own.trials) == 6
        mean_ns = math.exp(math.fsum(map(math.log, one.ns.values())) / 2)
        assert one.shown.value(mean_ns) == pytest.approx(own.levels[metric].value)
    json_points = points_like_the_report(root, tmp_path / "h.duckdb")
    assert {(point["blocks"], point["occasions"]) for point in json_points} == {(6, 2)}


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(study=ONE_SIZE, boots=(1.0, 1.05, 1.1)),
        Recipe(study=ONE_SIZE, blocks=24, hours=(1.0, 1.1, 1.2)),
    ],
)
def test_a_level_has_the_interval_of_the_report(tmp_path: Path, recipe: Recipe) -> None:
    """Blocks of one boot or one occasion share its random effect: an interval over all of them is too narrow."""
    points_like_the_report(make_synthetic_run(tmp_path / "run", recipe).root, tmp_path / "h.duckdb")


def points_like_the_report(root: Path, file: Path) -> list[dict[str, object]]:
    """Add a run to a new history, compare each level with the report's, and return the points of its JSON."""
    with Database(file, write=True) as database:
        database.add(collect(root))
    with Database(file, write=False) as database:
        found = build_history(str(file), database.kept(), Metric.MEDIAN)
    levels = {
        (cell.message_bytes, one.path): one.levels[Metric.MEDIAN]
        for cell in build_view(RunDir.open(root), distributions=False).cells
        for one in cell.paths
    }
    for series in found.series:
        (point,) = series.points
        level = levels[series.cell.message_bytes, series.cell.path]
        assert (point.blocks, point.occasions) == (level.blocks, level.occasions)
        assert point.level.method == level.method
        assert point.level.interval is not None
        assert level.interval is not None
        ours, theirs = (dataclasses.astuple(one) for one in (point.level.interval, level.interval))
        assert ours == pytest.approx(theirs)
    return [point for one in json.loads(as_json.render(found))["series"] for point in one["points"]]


def test_a_run_stays_in_its_series_when_the_hosts_label_is_reworded(tmp_path: Path) -> None:
    """This run was recorded when the lab's label still began with `instruction-counted figures of`."""
    unarchive(Path(__file__).parents[1] / "data" / "older-lab-run.zip", tmp_path / "example")
    raw = json.loads((tmp_path / "example" / "run.json").read_bytes())
    assert raw["host_label"].startswith("instruction-counted figures of")
    what = json.dumps({one.name: raw[one.name] for one in dataclasses.fields(RunInfo)}, sort_keys=True).encode()
    first = min((tmp_path / "example" / "trials").iterdir()).read_bytes()
    found = collect(tmp_path / "example").entry
    assert found.run_id == hashlib.sha256(what + b"\0" + first).hexdigest()
    assert found.host_label.startswith("an emulated machine")
