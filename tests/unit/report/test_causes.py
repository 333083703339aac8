"""Why launches fall into modes: on a run recorded in the lab, and with parts of its evidence removed or changed."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from nearmetal.report import as_html, as_json, as_markdown, as_table, tables
from nearmetal.report.steps import gains
from nearmetal.report.terminal import Console
from nearmetal.results.causes import LaunchModes, causes, rank_correlation
from nearmetal.results.evidence import counter_rows
from nearmetal.results.paths import build_view
from nearmetal.results.records import TrialSummary, View
from nearmetal.results.shown import DisplayScale
from nearmetal.stats.equivalence import Better
from nearmetal.stats.summary import HEADLINE, Metric, summarize
from nearmetal.store.rundir import RunDir
from nearmetal.study.facts import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearmetal.results.records import Cell
    from nearmetal.store.rundir import TrialRecord

GOLDEN = Path(__file__).parents[2] / "golden" / "alternating-v3.zip"
ALTERNATE = (
    "latency 8 B over native, setting default: launches alternate between 35.2 and 97.1 us (lag-1 -0.99), in step with "
    "a timer; "
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    root = tmp_path_factory.mktemp("alternating")
    with zipfile.ZipFile(GOLDEN) as files:
        files.extractall(root)
    return RunDir.open(root)


@pytest.fixture(scope="module")
def shown(recorded: RunDir) -> View:
    return build_view(recorded)


def counted(record: TrialRecord, **counters: int) -> TrialRecord:
    changed = {name.replace("__", "."): count for name, count in counters.items()}
    return replace(record, outcome=replace(record.outcome, counters=record.outcome.counters | changed))


def default(shown: View) -> Cell:
    return next(c for c in shown.cells if (c.group.workload, c.group.setting) == ("latency", "default"))


def test_alternation_is_traced_to_interrupt_moderation(shown: View) -> None:
    assert shown.causes == (
        ALTERNATE + "interrupt moderation sets the pace: 6.7 device interrupts per iteration at nic.rx-usecs = 3; with "
        "nic.rx-usecs = 0 (tuned) no such modes and 8.7 interrupts; with random pauses (latency-random) "
        "no such modes and 9.3 interrupts",
    )


def test_a_setting_is_reported_as_requested_and_as_the_driver_reads_it_back(recorded: RunDir, shown: View) -> None:
    records = [
        replace(r, outcome=replace(r.outcome, facts=r.outcome.facts | {"knob.nic.rx-usecs": "1"}))
        if r.order.setting == "tuned"
        else r
        for r in recorded.trials()
    ]
    (cause,) = causes(shown.cells, records)
    assert "at nic.rx-usecs = 3; with nic.rx-usecs = 0 (tuned, reads back as 1) no such modes" in cause


def test_the_pace_decides_what_moderation_costs(shown: View) -> None:
    """The figures of the table in docs/reference/engine.md."""
    assert gains(shown) == [
        "tuned against default, latency over native: 1.84 times as fast.",
        "tuned against default, latency-random over native: 1.13 times as fast.",
    ]
    native = {(c.group.workload, c.group.setting): c.of("native") for c in shown.cells}
    figures = {
        key: [
            f"{value:.1f}" if (value := one.levels[metric].value) else "refused" for metric in (HEADLINE, Metric.MEDIAN)
        ]
        for key, one in native.items()
        if one
    }
    assert figures == {
        ("latency", "default"): ["66.5", "refused"],
        ("latency", "tuned"): ["36.2", "35.6"],
        ("latency-random", "default"): ["40.9", "35.2"],
        ("latency-random", "tuned"): ["36.1", "36.1"],
    }


def test_a_refused_median_is_reported_once_with_its_cell(shown: View) -> None:
    notes = [tables.levels(shown, group, Metric.MEDIAN).note for group in shown.groups]
    assert [note.count("the median") for note in notes] == [1, 0, 0, 0]
    assert notes[0].startswith("median refused: ")


def test_a_refusal_of_some_cells_names_them(shown: View) -> None:
    known = shown.cells[0].of("native")
    assert known is not None
    fine = replace(known, path="vf", levels={**known.levels, Metric.MEDIAN: known.levels[HEADLINE]})
    cells = tuple(replace(one, paths=(*one.paths, fine)) for one in shown.cells)
    paths = (*shown.paths, replace(shown.paths[0], label="vf"))
    note = tables.levels(replace(shown, cells=cells, paths=paths), shown.groups[0], Metric.MEDIAN).note
    assert note.startswith("median refused: 8 B native: the median")


def test_every_report_format_gives_the_cause(shown: View) -> None:
    for draw in (as_table.render, as_table.answer):
        text = io.StringIO()
        draw(shown, Console(file=text, width=80, color_system=None))
        assert "interrupt moderation sets the pace" in " ".join(text.getvalue().split())
        lines = text.getvalue().splitlines()
        assert max(len(line) for line in lines if "run --resume" not in line) <= 80  # a command can be copied
    for written in (as_markdown.render(shown), as_html.render(shown), as_json.render(shown)):
        assert "interrupt moderation sets the pace" in written


def test_without_a_cell_to_compare_with_no_timer_is_named(recorded: RunDir, shown: View) -> None:
    assert causes([default(shown)], recorded.trials()) == (ALTERNATE + "no counter shows whose",)


def test_without_device_interrupts_no_timer_is_named(recorded: RunDir, shown: View) -> None:
    silent = [
        replace(one, outcome=replace(one.outcome, counters={"sched.context_switches": 9})) for one in recorded.trials()
    ]
    assert causes(shown.cells, silent) == (ALTERNATE + "no counter shows whose",)


@pytest.mark.parametrize("workload", ["latency", "latency-random"])
def test_a_workload_with_another_placement_is_not_evidence(recorded: RunDir, shown: View, workload: str) -> None:
    def placed_otherwise(record: TrialRecord) -> TrialRecord:
        order = record.order
        if order.workload.label != workload or (order.setting == "default" and workload == "latency"):
            return record
        return replace(record, order=replace(order, workload=replace(order.workload, placement=(0, 0, 1, 1))))

    (cause,) = causes(shown.cells, [placed_otherwise(record) for record in recorded.trials()])
    assert ("(tuned)" in cause, "(latency-random)" in cause) == (workload != "latency", workload == "latency")


def test_a_suite_is_not_evidence_that_modes_are_gone(recorded: RunDir, shown: View) -> None:
    """OSU's `latency` under another setting gives one mean a launch, which cannot fall into modes."""
    records = [
        replace(one, order=replace(one.order, workload=replace(one.order.workload, kind="omb")))
        if one.order.setting == "tuned"
        else one
        for one in recorded.trials()
    ]
    (cause,) = causes(shown.cells, records)
    assert ("(tuned)" in cause, "(latency-random)" in cause) == (False, True)


def sharing(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    together = {SHARED: "latency, latency-random"}
    return [replace(one, outcome=replace(one.outcome, facts=one.outcome.facts | together)) for one in records]


def test_interrupts_of_shared_launches_are_not_those_of_one_pace(recorded: RunDir, shown: View) -> None:
    (cause,) = causes(shown.cells, sharing(recorded.trials()))
    assert "nic.rx-usecs = 0 (tuned) no such modes and 8.7 interrupts; with random pauses (latency-random) no" in cause
    assert cause.endswith("(latency-random) no such modes")


def test_workloads_that_share_launches_have_one_row_of_each_counter(recorded: RunDir, shown: View) -> None:
    rows = [row.unit for row in counter_rows(sharing(recorded.trials()), shown.paths) if row.name == "all interrupts"]
    assert rows == [f"per iteration of latency, latency-random under {setting}" for setting in ("default", "tuned")]


def test_a_launch_that_workloads_share_counts_once_in_rows_of_launches(recorded: RunDir, shown: View) -> None:
    """It counted once for each of them, "per trial", and so more than a launch of one workload."""
    alike = [one for one in recorded.trials() if one.order.setting == "default" and one.order.path.label == "native"]
    together, alone = sharing(one for one in alike if not one.order.block), [one for one in alike if one.order.block]
    moved = [*(counted(one, sched__migrations=6) for one in together), counted(alone[0], sched__migrations=1)]
    assert len(moved) == 3
    rows = {row.name: (row.unit, row.values) for row in counter_rows(moved, shown.paths)}
    unit, values = rows["moves of ranks between processors"]
    assert (unit, [one for one in values if one]) == ("per launch", [3.5])


@pytest.mark.parametrize(("usecs", "named"), [(124, True), (130, True), (200, False), (62, False)])
def test_modes_one_moderation_timer_apart_name_the_timer(
    recorded: RunDir, shown: View, usecs: int, *, named: bool
) -> None:
    records = [
        replace(r, outcome=replace(r.outcome, facts={**r.outcome.facts, "knob.nic.rx-usecs": str(usecs)}))
        for r in recorded.trials()
    ]
    (cause,) = causes([default(shown)], records)
    assert cause.endswith("the modes are 124 us apart, the value of nic.rx-usecs") == named


@pytest.mark.parametrize(
    ("counter", "follows", "message"),
    [
        ("sched__context_switches", 1, "ranks that sleep and are woken"),
        ("sched__migrations", 1, "the scheduler moves ranks; pin them"),
        (
            "tcp__n0__TCPAutoCorking",
            1,
            "it waits until the port has reported what was sent before; try host.tcp_autocorking = 0",
        ),
        ("sched__context_switches", -1, ""),
        ("sched__migrations", 0, ""),
    ],
)
def test_modes_that_correlate_with_a_counter_get_its_cause(
    recorded: RunDir, shown: View, counter: str, follows: int, message: str
) -> None:
    """Eight launches with a growing share of iterations in a slow mode."""
    rng = np.random.default_rng(1)
    cell = default(shown)
    own = next(one for one in cell.paths if one.path == "native")
    record = next(r for r in recorded.trials() if r.order.trial == own.trials[0].trial)
    trials, records = [], []
    for launch in range(8):
        slow = rng.random(400) < 0.2 + 0.05 * launch
        ns = (np.where(slow, 2.0, 1.0) * 40_000 * np.exp(rng.normal(0.0, 0.02, 400))).astype(np.int64)
        trials.append(TrialSummary(launch, 1, launch, "", summarize(ns)))
        rank = {1: launch, -1: 8 - launch, 0: (3 * launch) % 8}[follows]
        moved = replace(record, order=replace(record.order, trial=launch), attempt=1)
        records.append(counted(moved, **{counter: 1000 + 100 * rank}))
    path = replace(own, trials=tuple(trials))
    found = causes([replace(cell, paths=(path,))], records)
    assert [one.rpartition(": ")[2] for one in found] == ([message] if message else [])


@pytest.mark.parametrize(
    ("of_one_other", "why"),
    [
        (
            {},
            "their packets interrupt through eth0-rx-1, those of the others through eth0-rx-0: another queue, whose "
            "interrupts may go to another processor; try nic.channels-combined = 1",
        ),
        (
            {"irq__28__eth0-rx-1": 199},
            "their packets interrupt through eth0-rx-1, those of the others through eth0-rx-0: another queue, whose "
            "interrupts may go to another processor; try nic.channels-combined = 1",
        ),
        ({"irq__28__eth0-rx-1": 200}, "no counter shows why"),
        ({"irq__27__eth0-rx-0": 0}, "no counter shows why"),
    ],
)
def test_launches_whose_packets_took_another_queue_are_told_apart_by_it(
    recorded: RunDir, shown: View, of_one_other: dict[str, int], why: str
) -> None:
    """As soft-RoCE in the lab, whose card hashes the same flow to another queue in one boot of three."""
    cell = default(shown)
    own = next(one for one in cell.paths if one.path == "native")
    record = next(r for r in recorded.trials() if r.order.trial == own.trials[0].trial)
    idle = {name: 0 for name in record.outcome.counters if name.startswith("irq.")}
    trials, records = [], []
    for launch in range(8):
        one = launch in {3, 5}
        ns = np.full(400, 30_000 if one else 40_000) + np.arange(400) + launch
        trials.append(TrialSummary(launch, 1, launch, "", summarize(ns.astype(np.int64))))
        moved = replace(record, order=replace(record.order, trial=launch), attempt=1)
        number, queue = (28, 1) if one else (27, 0)  # a boot may number the lines otherwise
        lines = {f"irq__{number}__eth0-rx-{queue}": 1998, f"irq__{number + 2}__eth0-tx-{queue}": 290}
        lines |= {"irq__32__eth1-rx-0": 1998} | (of_one_other if launch == 7 else {})
        records.append(counted(moved, **idle, **lines))
    (found,) = causes([replace(cell, paths=(replace(own, trials=tuple(trials)),))], records)
    assert found.endswith(f"means of 15.1 us, the others of 20.1; each launch stays in one mode; {why}")


def test_launches_that_stand_apart_by_a_rate_have_no_exponent() -> None:
    """64 messages of 64 KiB in 2.1 or 2.6 ms, and in 3.4 ms."""
    rate = DisplayScale("bandwidth", "MB/s", Better.LARGER, 64 * 65536 * 1e3)
    apart = LaunchModes(np.array([2.6e6, 2.1e6]), np.array([3.4e6, 5.2e6]))
    assert apart.told(rate) == "2 of 4 launches have means of 1997 to 1613 MB/s, the others of 1234 to 807"


def test_rank_correlation_is_spearman() -> None:
    rng = np.random.default_rng(2)
    for n in (6, 9, 20):
        first = rng.normal(size=n)
        second = np.round(first + rng.normal(size=n))
        rho, p = rank_correlation(first, second)
        wanted = stats.spearmanr(first, second)
        assert (rho, p) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert rank_correlation(np.arange(6.0), np.arange(6.0)) == pytest.approx((1.0, 2 / 720))
    assert rank_correlation(np.arange(5.0), np.arange(5.0)) == (0.0, 1.0)
    assert rank_correlation(np.arange(6.0) / 5, np.arange(6.0) / -5) == pytest.approx((-1.0, 2 / 720))
    assert rank_correlation(np.ones(8), np.arange(8.0)) == (0.0, 1.0)
    assert rank_correlation(np.arange(8.0), np.ones(8)) == (0.0, 1.0)
