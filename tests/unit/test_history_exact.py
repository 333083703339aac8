"""What a history keeps of a run, and how it words it, exactly."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.history import as_json, words
from nearmetal.history.collect import _facts
from nearmetal.history.records import History, KeptRun, ListedRun, Origin, Point, RunEntry, Series
from nearmetal.history.view import MAX_RUNS, build_history
from nearmetal.report.terminal import Console
from nearmetal.results.series import CellId, CellSeries
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.changes import Change
from nearmetal.stats.compare import LevelEstimate
from nearmetal.stats.equivalence import Better
from nearmetal.stats.interval import Interval
from nearmetal.stats.summary import Metric

if TYPE_CHECKING:
    from nearmetal.study.order import Scalar

TIME = DisplayScale("time", "us", Better.SMALLER, 0.001)
RATE = DisplayScale("bandwidth", "MB/s", Better.LARGER, 8_000.0)
ENTRY = RunEntry("study", "0", "fake", "made up", "0.1", "2026-03-01T08:30:59+00:00", "id", "/r", 9, 3)


def cell(path: str = "tap", operation: str = "latency") -> CellId:
    return CellId(operation, operation, "as-found", 8, path)


# ---- facts


def record(path: str, **facts: Scalar) -> Any:
    named = {name.replace("__", "."): value for name, value in facts.items()}
    return SimpleNamespace(
        outcome=SimpleNamespace(facts=named), order=SimpleNamespace(path=SimpleNamespace(label=path))
    )


def test_facts_that_differ_by_path_or_workload_are_named_in_one_order() -> None:
    """Which trial was first decided it: a run whose first trial had failed stood on another machine."""
    records = [
        record("vf", kernel__release="6.8", n0__eth0__driver="iavf", openmpi__version="4.1", load__of="free"),
        record("native", kernel__release="6.1", n0__eth0__driver="ice", openmpi__version="5.0", guest__cpu__model="x"),
        record("vf", kernel__release="6.8", n0__eth0__driver="iavf", guest__load="free", guest__n0__eth0__driver="y"),
    ]
    expected = {
        "guest.cpu.model": "x",
        "kernel.release": "6.1 | 6.8",
        "native: n0.eth0.driver": "ice",
        "openmpi.version": "4.1 | 5.0",
        "vf: guest.n0.eth0.driver": "y",
        "vf: n0.eth0.driver": "iavf",
    }
    for seed in range(10):
        drawn = random.Random(seed).sample(records, 3)
        assert list(_facts(tuple(drawn)).items()) == list(expected.items())


# ---- words


@pytest.mark.parametrize(
    ("shown", "ratio", "said"),
    [(TIME, 1.2, "worse"), (TIME, 0.8, "better"), (RATE, 1.2, "better"), (RATE, 0.8, "worse")],
)
def test_a_change_is_worse_or_better(shown: DisplayScale, ratio: float, said: str) -> None:
    assert words.direction(shown, ratio) == said


@pytest.mark.parametrize(("ratio", "said"), [(1.25, "+25 %"), (0.75, "-25 %"), (1.0, "+0 %")])
def test_a_change_as_a_percentage(ratio: float, said: str) -> None:
    assert words.shift(ratio) == said


def levels_of(*values: float) -> tuple[Point, ...]:
    found = (LevelEstimate(3, one, Interval(one * 0.9, one * 1.1, 0.95), IntervalMethod.NONE) for one in values)
    return tuple(Point(number, level, 3, 1) for number, level in enumerate(found, 1))


def history_of(*values: float, changes: tuple[Change, ...] = (), changed: dict[int, str] | None = None) -> History:
    series = Series(Origin("study", "fake"), cell(), TIME, levels_of(*values), changes, sized=True)
    listed = [ListedRun(n, ENTRY, tuple((changed or {}).get(n, "").split())) for n in range(1, len(values) + 1)]
    return History("h", Metric.MEAN, tuple(listed), (series,), 0.05)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ((1.0, 1.0, 1.0), "▄▄▄"),
        ((1.0, 2.0), "▁█"),
        ((1.0, 1.5, 2.0), "▁▅█"),
        ((1.0, 1.01), "▄▅"),
        ((5.0,), "▄"),
    ],
)
def test_a_sparkline_spans_what_there_is_but_a_tenth_at_least(values: tuple[float, ...], drawn: str) -> None:
    history = history_of(*values)
    assert words.sparkline(history, history.series[0]) == drawn


def test_a_sparkline_marks_changes_of_level_and_of_facts_before_the_run() -> None:
    history = history_of(1, 1, 2, 2, changes=(Change(2, 0.01, 2.0),), changed={1: "a", 2: "b", 3: "c"})
    assert words.sparkline(history, history.series[0]) == "▁╎▁│██"


def test_the_tables_of_a_history() -> None:
    history = history_of(10, 10, 12, changes=(Change(2, 0.01, 1.2),), changed={3: "kernel:6.1->6.8"})
    (overview,) = words.overviews(history)
    assert overview.title == "study on fake: mean of each run"
    assert overview.rows == (("tap latency 8 B as-found", "▁▁│█", "12.00", "10.80..13.20", "us"),)
    older = replace(history, runs=(*history.runs, ListedRun(4, ENTRY, ())))  # 12.00 was the latest, of run 4 as well
    assert words.overviews(older)[0].rows[0][2] == "12.00 (run 3)"
    other = replace(ENTRY, study_name="other")
    assert words.overviews(replace(older, runs=(*history.runs, ListedRun(4, other, ()))))[0].rows == overview.rows
    assert words.changes(history).rows == (
        ("tap latency 8 B as-found", "3", "2026-03-01", "+20 % worse", "kernel:6.1->6.8"),
    )
    assert words.changes(replace(history, runs=history_of(1, 1, 1).runs)).rows[0][-1] == "no fact changed with it"
    assert words.runs(history).rows[1:] == (
        ("2", "2026-03-01 08:30", "study", "fake", "3", "-"),
        ("3", "2026-03-01 08:30", "study", "fake", "3", "kernel:6.1->6.8"),
    )


@pytest.mark.parametrize(("runs", "heading", "first"), [(12, "Runs", 1), (13, "The latest 12 of 13 runs", 2)])
def test_a_terminal_shows_the_latest_twelve_runs(runs: int, heading: str, first: int) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    words.as_text(history_of(*[1.0] * runs), console)
    lines = console.export_text().splitlines()
    assert lines[0] == "Figures from made up."
    (place,) = (number for number, line in enumerate(lines) if line.strip() == heading)
    numbers = [int(line.split()[0]) for line in lines[place:] if "2026-03-01" in line]
    assert numbers == list(range(first, runs + 1))


# ---- levels


def kept(number: int, cells: tuple[CellSeries, ...]) -> KeptRun:
    entry = replace(ENTRY, run_id=f"{number}", created_utc=f"2026-03-01T08:{number // 60:02d}:{number % 60:02d}+00:00")
    return KeptRun(entry, {}, dict.fromkeys(Metric, cells))


def measured(*ns: float, path: str = "tap") -> CellSeries:
    return CellSeries(cell(path), TIME, dict(enumerate(ns)), "", len(ns), 1, {})


def test_a_level_is_the_geometric_mean_over_blocks_with_an_interval_where_it_is_shown() -> None:
    runs = [kept(1, (measured(1000, 4000), measured(path="gone"))), kept(2, (measured(9000, 9000),))]
    (series,) = build_history("h", runs, Metric.MEAN, every_interval=False).series
    assert [point.level.value for point in series.points] == [pytest.approx(2.0), pytest.approx(9.0)]
    assert [(point.run, point.blocks, point.occasions) for point in series.points] == [(1, 2, 1), (2, 2, 1)]
    assert [point.level.interval is None for point in series.points] == [True, False]
    (series,) = build_history("h", runs, Metric.MEAN).series
    assert [point.level.interval is None for point in series.points] == [False, False]
    assert series.points[0].level.value == pytest.approx(2.0)


def test_another_figure_of_an_edited_study_is_a_series_of_its_own() -> None:
    """Earlier times were shown as rates, what was counted as bytes, and the slowest rank's time as that of all."""
    scales = (TIME, replace(TIME, unit="ms", factor=1e-6), RATE, replace(RATE, unit="1/s", factor=1e21))
    scales += (replace(TIME, name="time, slowest rank"),)
    runs = [kept(at, (replace(measured(2000, 2000), shown=shown),)) for at, shown in enumerate(scales, 1)]
    history = build_history("h", runs, Metric.MEAN)
    levels = {
        (history.title(one), one.shown.unit): [(point.run, pytest.approx(point.level.value)) for point in one.points]
        for one in history.series
    }
    assert levels == {
        ("tap latency 8 B as-found (time)", "ms"): [(1, 0.002), (2, 0.002)],
        ("tap latency 8 B as-found (bandwidth)", "1/s"): [(4, 5e17)],
        ("tap latency 8 B as-found (bandwidth)", "MB/s"): [(3, 4.0)],
        ("tap latency 8 B as-found (time, slowest rank)", "us"): [(5, 2.0)],
    }


def test_changes_are_sought_in_the_latest_runs_of_what_was_asked_for() -> None:
    many = [kept(number, (measured(1000, 1001), measured(5000, 5001, path="vf"))) for number in range(MAX_RUNS + 2)]
    (series,) = build_history("h", many, Metric.MEAN, path="vf", every_interval=False).series
    assert (series.cell.path, len(series.points), series.points[0].run) == ("vf", MAX_RUNS, 3)
    whole = build_history("h", many, Metric.MEAN, every_interval=False)
    assert whole.left_out == (f"the oldest runs of 2 series, which show the latest {MAX_RUNS}",)
    assert json.loads(as_json.render(whole))["left_out"] == list(whole.left_out), "no program was told"
    both = build_history("h", many[:2], Metric.MEAN, workload="latency", every_interval=False)
    assert [one.cell.path for one in both.series] == ["tap", "vf"]
    assert build_history("h", many[:2], Metric.MEAN, workload="other").series == ()
