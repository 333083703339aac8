from __future__ import annotations

import datetime as dt
import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.api.comparison import of_paths
from nearmetal.errors import BadInputError
from nearmetal.report import as_html, as_json, charts, figure, tables, words
from nearmetal.report.words import blocks_sentence, noise_sentence
from nearmetal.results.comparisons import path_verdict, slower_beside
from nearmetal.results.evidence import (
    UNLIKE,
    cautions,
    cautions_of_levels,
    counter_rows,
    fact_rows,
    per_iteration,
    unlike_machines,
    went_elsewhere,
)
from nearmetal.results.paths import build_view
from nearmetal.results.records import Failure, PathCell, View
from nearmetal.results.series import block_ns, torn_blocks
from nearmetal.results.shown import shown_for
from nearmetal.stats.bootstrap import IntervalMethod
from nearmetal.stats.equivalence import Better, Verdict
from nearmetal.stats.interval import Interval
from nearmetal.stats.modes import Mode, Modes
from nearmetal.stats.summary import Metric
from nearmetal.study.facts import of_any_interface
from nearmetal.study.order import Order, Proof, WorkloadOrder
from tests.unit.report.synthetic_run import COST, ONE_SIZE, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.store.rundir import RunDir, TrialRecord

TWO_SETTINGS = ONE_SIZE + '[[setting]]\nname = "a"\n[[setting]]\nname = "b"\nknobs = { "mpi.bind" = "core" }\n'


def test_each_path_gets_the_verdict_of_its_cost(view: View) -> None:
    assert {one.path: one.verdict for one in view.verdicts} == {
        "bridge": Verdict.SLOWER,
        "macvlan": Verdict.NEAR_METAL,
        "tap": Verdict.SLOWER,
        "shm": Verdict.FASTER,
    }


@pytest.mark.parametrize(("placement", "warned"), [("[0, 1, 0, 1]", True), ("[0, 0, 1, 1]", False)])
def test_a_run_whose_pairs_shared_a_node_says_so(tmp_path: Path, placement: str, warned: bool) -> None:
    """Such a study is refused now; what was measured before says what its figures are of."""
    rates = ONE_SIZE.replace('name = "latency"', f'name = "rate"\noperation = "message_rate"\nplacement = {placement}')
    view = build_view(make_run(tmp_path / "run", Recipe(study=rates, blocks=2)), distributions=False)
    says = "pairs of ranks of rate were on one node: their messages did not take the path"
    assert view.cautions == ((says,) if warned else ())
    assert (f"CAUTION: {says}." in blocks_sentence(view)) == warned


def test_ratios_match_the_ones_the_samples_were_made_with(view: View) -> None:
    assert len(list(view.compared())) == 12
    for _, one, comparison in view.compared():
        interval = comparison.headline.interval
        assert interval is not None
        # 12 uncorrected comparisons: allow for values slightly outside the interval.
        assert interval.low * 0.99 < COST[one.path] < interval.high * 1.01


def test_the_baseline_against_itself_is_a_noise_floor_and_not_a_comparison(view: View) -> None:
    assert "veth-again" not in {one.path for _, one, _ in view.compared()}
    floors = [cell.noise.floor for cell in view.cells if cell.noise and cell.noise.floor]
    assert len(floors) == 3
    assert view.noise_floor == max(floors)
    assert 0 < max(floors) < 0.03


def test_a_latency_is_half_the_round_trip_of_the_stored_samples(run: RunDir, view: View) -> None:
    record = next(r for r in run.trials() if r.order.path.label == "veth")
    expected_us = float(np.median(run.values(record, record.cells[0]))) / 2000
    trial = view.cells[0].of("veth").trials[0]  # type: ignore[union-attr]
    assert trial.trial == record.order.trial
    assert view.cells[0].shown.value(trial.summary.median_ns) == pytest.approx(expected_us)


def test_a_rate_is_larger_when_the_duration_is_shorter_and_its_interval_stays_in_order() -> None:
    shown = shown_for(WorkloadOrder("bw", "engine", {"window": 10}), "bw", 1000)
    assert (shown.unit, shown.better) == ("MB/s", Better.LARGER)
    assert shown.value(1e6) == pytest.approx(10.0)  # 10 messages of 1000 B in 1 ms
    assert shown.ends(Interval(1e6, 2e6, 0.95)) == (pytest.approx(5.0), pytest.approx(10.0))


@pytest.mark.parametrize(
    ("ns", "unit", "value"), [(2.5e3, "us", 2.5), (2.5e6, "ms", 2.5), (9e10, "s", 90), (5, "us", 0.005)]
)
def test_a_workload_of_another_kind_is_shown_as_time_in_a_suitable_unit(ns: float, unit: str, value: float) -> None:
    shown = shown_for(WorkloadOrder("nbody", "application"), "step", 0, typical_ns=ns)
    assert (shown.unit, shown.value(ns)) == (unit, pytest.approx(value))


def test_ratios_of_times_and_of_rates_are_ranged_as_costs(tmp_path: Path) -> None:
    """The table said `2.39 to 2.41 (cost)` where JSON and notebooks had 0.42, of a rate, and 2.41, of a time."""
    study = f'{ONE_SIZE}[[workload]]\nname = "stream"\noperation = "bw"\nsizes = [1024]\niterations = 200\n'
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=5)), distributions=False)
    tap = next(one for one in view.verdicts if one.path == "tap")
    (told,) = (one for one in json.loads(as_json.render(view))["verdicts"] if one["path"] == "tap")
    (row,) = (one for one in of_paths(view).verdicts.to_dicts() if one["path"] == "tap")
    for one in (told, row):
        assert 2.2 < one["ratio_best"] <= one["ratio_worst"] < 2.6
        assert words.reach(tap) == f"{one['ratio_best']:.3f} to {one['ratio_worst']:.3f} (cost)"
    assert words.times(tap, "veth").endswith(" times veth in cost")


def test_another_build_of_the_engine_is_refused(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", Recipe(blocks=3, facts=lambda order: {"engine.build": f"nmbench-{min(order.block, 1)}"})
    )
    with pytest.raises(BadInputError, match=r"engine\.build \(workload latency\): nmbench-0 \| nmbench-1"):
        build_view(run)


def test_bandwidth_verdicts_point_the_right_way(tmp_path: Path) -> None:
    study = ONE_SIZE.replace('name = "latency"', 'name = "bw"')
    view = build_view(make_run(tmp_path / "run", Recipe(study=study)))
    assert {one.path: one.verdict for one in view.verdicts}["tap"] is Verdict.SLOWER
    ratios = {one.path: comparison.headline.ratio for _, one, comparison in view.compared()}
    assert ratios["tap"] == pytest.approx(1 / COST["tap"], rel=0.02)


def test_p99_of_short_trials_is_refused(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(study=ONE_SIZE, iterations=100)))
    assert view.cells
    for cell in view.cells:
        for one in cell.paths:
            assert (one.levels[Metric.P99].blocks, one.levels[Metric.P99].value) == (0, None)
            assert "n = 100 cannot support it" in one.levels[Metric.P99].refused
            assert one.comparison is None or Metric.P99 in one.comparison.refused


def _interval(view: View, path: str) -> Interval:
    one = view.cells[0].of(path)
    assert one is not None
    assert one.comparison is not None
    assert one.comparison.headline.interval is not None
    return one.comparison.headline.interval


def test_a_baseline_that_differs_from_itself_widens_every_interval(tmp_path: Path) -> None:
    plain, biased = (build_view(make_run(tmp_path / f"{more}", Recipe(again=more))) for more in (1.0, 1.03))
    assert "the two differ" not in noise_sentence(plain)
    sentence = noise_sentence(biased)
    assert "In 3 of them the two differ by up to 3" in sentence
    assert "drift, or an effect of the order" in sentence
    before, after = _interval(plain, "tap"), _interval(biased, "tap")
    assert math.log(after.high / after.low) > math.log(before.high / before.low) + 0.05
    assert all(cell.noise is not None and cell.noise.false_alarm for cell in biased.cells)


def test_intervals_for_another_occasion_are_not_said_to_be_widened(tmp_path: Path) -> None:
    study = ONE_SIZE.replace("max_blocks = 8", "max_blocks = 5")
    recipe = Recipe(study=study, blocks=25, again=1.05, hours=(1.0, 1.01, 0.99, 1.02, 1.0))
    sentence = noise_sentence(build_view(make_run(tmp_path / "run", recipe)))
    assert "more than the spread over occasions explains (expected by chance in 5 % of cells): drift, or" in sentence
    assert "widened" not in sentence


def test_boots_that_differ_widen_the_intervals(tmp_path: Path) -> None:
    boots = (0.98, 1.0, 1.02)
    fixed = ONE_SIZE.replace("min_blocks = 5", "min_blocks = 8")
    same = (1.0,) * 3
    plain, varied = (
        build_view(make_run(tmp_path / str(one[0]), Recipe(study=fixed, boots=one))) for one in (same, boots)
    )
    before, after = _interval(plain, "tap"), _interval(varied, "tap")
    # Three boots 2 % apart: Student's t of 2 degrees of freedom, 4.30, times their error, 0.0115.
    assert math.log(after.high / after.low) / 2 == pytest.approx(0.0115 * 4.30, rel=0.4)
    assert after.high - after.low > 2 * (before.high - before.low)


def test_a_slower_tail_is_reported_with_its_size(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(stalls=frozenset({"macvlan"}))))
    (verdict,) = (one for one in view.verdicts if one.path == "macvlan")
    assert verdict.verdict is Verdict.SLOWER_TAIL
    assert re.search(r"^slower tail in 3 of 3 cells: near-metal in the body, tail up to \d\d % slower$", verdict.reason)
    one = view.cells[0].of("macvlan")
    assert one is not None
    assert one.comparison is not None
    assert re.search(r"^near-metal in the body, tail \d\d % slower$", one.comparison.conclusion.reason)


def test_a_faster_mean_does_not_hide_a_slower_tail(tmp_path: Path) -> None:
    """`faster in 1 of 1 cell` was all that was said of a p99 of 1.15 times."""
    recipe = Recipe(study=ONE_SIZE, cost={**COST, "bridge": 0.92}, stalls=frozenset({"bridge"}))
    view = build_view(make_run(tmp_path / "run", recipe))
    verdict = view.verdicts[0]
    assert (verdict.path, verdict.verdict) == ("bridge", Verdict.FASTER)
    assert verdict.reason == "faster in 1 of 1 cell, but by the p99 slower in 1 of the faster"
    own = {one.path: one.comparison for one in view.cells[0].paths if one.comparison}
    assert {label: dict(slower_beside([own[label]])) for label in ("bridge", "tap")} == {
        "bridge": {Metric.P99: 1},
        "tap": {},
    }
    # Beside a cell that is near-metal such a path was near-metal, its p99 of 1.15 times included.
    near, quick = (
        build_view(make_run(tmp_path / f"{cost}", Recipe(study=ONE_SIZE, cost={**COST, "bridge": cost}))).cells
        for cost in (1.0, 0.92)
    )
    assert path_verdict("bridge", verdict.setting, [*near, *quick]).verdict is Verdict.NEAR_METAL
    assert path_verdict("bridge", verdict.setting, [*near, *view.cells]).verdict is Verdict.DIFFERS


def test_a_path_is_not_near_metal_of_which_a_workload_failed_everywhere(tmp_path: Path) -> None:
    """Of a workload that failed on the path alone a cell was missing; failing on the baseline, too, hid it."""
    study = ONE_SIZE.replace("[trials]", '[[workload]]\nname = "other"\noperation = "latency"\nsizes = [8]\n[trials]')
    recipe = Recipe(study=study, cost={**COST, "macvlan": 1.0})
    whole = {one.path: one for one in build_view(make_run(tmp_path / "whole", recipe)).verdicts}
    failing = replace(recipe, fails=lambda order, _: order.workload.label == "other")
    lost = {one.path: one for one in build_view(make_run(tmp_path / "lost", failing)).verdicts}
    assert (whole["macvlan"].verdict, whole["tap"].verdict) == (Verdict.NEAR_METAL, Verdict.SLOWER)
    assert (lost["macvlan"].verdict, lost["tap"].verdict) == (Verdict.UNDECIDED, Verdict.SLOWER), "a gap is proven"
    assert lost["macvlan"].reason == "near-metal in 1 of 1 cell; no valid trial of other"


def test_nothing_is_near_metal_without_evidence(tmp_path: Path) -> None:
    same = dict.fromkeys(COST, 1.0)
    view = build_view(make_run(tmp_path / "run", Recipe(blocks=5, cost=same, spread=0.2)))
    assert {one.verdict for one in view.verdicts} == {Verdict.UNDECIDED}


def test_a_path_that_never_came_up_is_undecided_with_the_reason(tmp_path: Path) -> None:
    def fails(order: Order, attempt: int) -> bool:
        return order.path.label == "tap" and attempt <= 2

    view = build_view(make_run(tmp_path / "run", Recipe(blocks=5, fails=fails)))
    tap = next(one for one in view.verdicts if one.path == "tap")
    assert (tap.verdict, tap.reason) == (Verdict.UNDECIDED, "not compared in 3 of 3 cells")
    assert {one.path for one in view.failures} == {"tap"}
    assert not any(one.mended for one in view.failures)


def test_failures_of_one_kind_share_a_row_that_shows_the_first_line(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(blocks=5)))
    alike = [
        Failure(n, 1, 0, "tap", "w", "s", f"stopped after 3{n}.5 s:\nmany\nlines", "", mended=False) for n in range(4)
    ]
    other = [Failure(7, 2, 0, "tap", "w", "s", "the cable is gone " * 20, "", mended=True)]
    table = tables.failures(replace(view, failures=(*alike, *other)))
    assert [row[0] for row in table.rows] == ["0, 1, 2, 3", "7 (again)"]
    assert table.rows[0][-1] == "stopped after 30.5 s"
    assert len(table.rows[1][-1]) < 170
    assert table.rows[1][-1].endswith("...")
    (said,) = words.failure_sentences((*other, *alike), "RUN")
    expected = "5 launches of w over tap failed, 4 trials lost: stopped after 30.5 s, and 1 other reason"
    assert said == f"{expected} (nearmetal show RUN --trial 0)"


def test_a_second_attempt_counts_for_its_block(tmp_path: Path) -> None:
    def fails(order: Order, attempt: int) -> bool:
        return order.path.label == "bridge" and attempt == 1 and order.block == 0

    view = build_view(make_run(tmp_path / "run", Recipe(blocks=5, fails=fails)))
    assert [(one.path, one.mended) for one in view.failures] == [("bridge", True)]
    assert len(view.cells[0].of("bridge").trials) == 5  # type: ignore[union-attr]


def test_mixed_kernels_are_refused_unless_allowed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(blocks=5, facts=lambda order: {"kernel.release": f"6.{order.block // 3}"}))
    with pytest.raises(BadInputError, match=r"kernel\.release: 6\.0 \| 6\.1"):
        build_view(run)
    assert build_view(run, allow_mixed=True).mixed == ("kernel.release: 6.0 | 6.1",)


def test_another_nic_on_the_same_path_is_refused(tmp_path: Path) -> None:
    def facts(order: Order) -> dict[str, str | int | float | bool]:
        return {"n0.nm0.driver": "ixgbevf" if order.block else "e1000"} if order.path.label == "tap" else {}

    with pytest.raises(BadInputError, match=r"n0\.nm0\.driver \(path tap\)"):
        build_view(make_run(tmp_path / "run", Recipe(blocks=5, facts=facts)))


def test_a_missing_version_counts_as_a_difference(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(blocks=5, facts=lambda o: {"extra.version": "2"} if o.block else {}))
    with pytest.raises(BadInputError, match="not recorded"):
        build_view(run)


def test_a_run_without_a_valid_trial_gives_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Recipe(blocks=3, fails=lambda order, attempt: True))
    with pytest.raises(BadInputError, match=r"none of the 36 trials .* did not end within 30 s"):
        build_view(run)


def test_settings_are_compared_with_the_first_path_by_path(tmp_path: Path) -> None:
    study = STUDY.replace("[trials]", '[[setting]]\nname = "a"\n[[setting]]\nname = "b"\n[trials]')
    study = study.replace('"1 KiB", "64 KiB"', '"1 KiB"')
    view = build_view(make_run(tmp_path / "run", Recipe(study=study)))
    assert len(view.groups) == 2
    assert {(one.setting, one.reference) for one in view.settings} == {("b", "a")}
    assert len(view.settings) == 5 * 2, "the baseline's second name does not count as a path"
    assert {one.comparison.verdict for one in view.settings} == {Verdict.NEAR_METAL}


def test_intervals_of_one_path_whose_blocks_are_fixed_are_not_those_of_looks(tmp_path: Path) -> None:
    """No look could end it, but settings had intervals of the first of twelve looks, wider by a twentieth."""
    study = re.sub(r'(?s)\[\[path\]\]\nname = "bridge".*?(?=\[\[workload)', "", TWO_SETTINGS)
    studies = {most: study.replace("max_blocks = 8", f"max_blocks = {most}") for most in ("5", "16")}
    views = [build_view(make_run(tmp_path / most, Recipe(study=text, blocks=5))) for most, text in studies.items()]
    fixed, open_ended = ({one.setting: one.comparison.headline.interval for one in view.settings} for view in views)
    assert fixed == open_ended
    assert views[1].plan is None


def test_a_baseline_that_differs_from_itself_widens_comparisons_of_settings(tmp_path: Path) -> None:
    study = STUDY.replace("[trials]", '[[setting]]\nname = "a"\n[[setting]]\nname = "b"\n[trials]')
    study = study.replace(', "1 KiB", "64 KiB"', "").replace("min_blocks = 5", "min_blocks = 8")
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, again=1.2, spread=0.001)), distributions=False)
    assert view.settings
    for one in view.settings:
        evidence = one.comparison.headline.evidence
        assert evidence
        assert evidence.offset == pytest.approx(math.log(1.2), abs=0.01)
        assert one.comparison.verdict is Verdict.UNDECIDED


def test_facts_are_shown_only_where_paths_differ(view: View) -> None:
    assert [row.name for row in view.facts] == ["interface.kind", "interface.qdisc"]
    switches = next(row for row in view.counters if row.name == "context switches")
    assert switches.values[0] == pytest.approx(14_500 / (3 * 1100))


@pytest.mark.parametrize("interface", ["eth0", "eth0.100"])
def test_facts_of_the_interfaces_of_both_nodes_stand_in_one_row(interface: str) -> None:
    assert of_any_interface(f"n1.{interface}.mtu") == "interface.mtu"


def test_the_cells_of_a_program_share_its_iterations(run: RunDir) -> None:
    record = next(one for one in run.trials() if one.valid)
    named = (("ft.S.total", 1), ("ft.S", 6), ("ft.S.communication", 6))
    cells = tuple(replace(record.cells[0], operation=name, iterations=count, warmup=0) for name, count in named)
    switches = record.outcome.counters["sched.context_switches"]
    assert per_iteration(replace(record, cells=cells), r"sched\.context_switches") == switches / 6


def test_the_total_of_interrupts_is_the_kernels_own_sum(run: RunDir, view: View) -> None:
    """`intr` of /proc/stat is the sum of /proc/interrupts without TLB."""
    record = next(one for one in run.trials() if one.valid)
    counted = {"irq.24.eth0": 2, "irq.LOC": 10, "irq.CAL": 5, "irq.TLB": 4, "tool.iterations": 1}
    one = replace(record, outcome=replace(record.outcome, counters=counted))
    rows = {row.name: row.values for row in counter_rows([one], view.paths)}
    assert 17 in rows["all interrupts"]


def test_what_a_tool_counts_is_of_the_trials_that_have_it(run: RunDir, view: View) -> None:
    """Fairness of streams beside latencies without any was the median of both: 0, or half of it."""
    record = next(one for one in run.trials() if one.valid)
    streams = replace(record.order.workload, label="streams")
    told = {"tool.fairness_ppm": 990_000, "tool.lost_datagrams": 0}
    outcome = replace(record.outcome, counters=record.outcome.counters | told)
    records = [record, replace(record, order=replace(record.order, workload=streams), outcome=outcome)]
    rows = {(row.name, row.unit): row.values for row in counter_rows(records, view.paths)}
    at = [path.label for path in view.paths if not path.again].index(record.order.path.label)
    assert rows["fairness between pairs (Jain's index)", "millionths of streams"][at] == 990_000
    assert not [name for name, unit in rows if name.startswith("fairness") and "streams" not in unit]


def test_facts_that_changed_during_the_run_keep_all_their_values(tmp_path: Path) -> None:
    """They change on every path alike, so no table of differences has them; only the last trial's value was shown."""
    clocks = ["tsc", "tsc", "hpet", "tsc"]
    recipe = Recipe(blocks=4, facts=lambda order: {"kernel.clocksource": clocks[order.block]})
    known = dict(build_view(make_run(tmp_path / "run", recipe)).provenance)
    assert known["kernel.clocksource"] == "tsc | hpet"
    assert known["cpu.count"] == 2


def test_the_view_is_deterministic(run: RunDir, view: View) -> None:
    assert as_json.render(build_view(run)) == as_json.render(view)


def test_imported_figures_are_said_to_have_one_baseline_and_not_all_to_be_trimmed(view: View) -> None:
    quiet = tuple(replace(cell, noise=None) for cell in view.cells)
    imported = replace(view, host_kind="import", cells=quiet)
    assert "imported files hold veth under one name only" in words._why_no_floor(imported)
    assert "(1 % trimmed at each end where the files hold samples)" in words.method_sentence(imported)
    assert "(1 % trimmed at each end), median" in words.method_sentence(view)


def test_intervals_that_are_none_are_not_called_by_a_method(view: View) -> None:
    by = words.method_sentence(view)
    assert "none (too few blocks)" not in by
    cells = [replace(cell, paths=tuple(map(_without_interval, cell.paths))) for cell in view.cells[:1]]
    mixed = replace(view, cells=(*cells, *view.cells[1:]))
    assert ", none where there are too few blocks. near-metal" in words.method_sentence(mixed)
    every = tuple(replace(cell, paths=tuple(map(_without_interval, cell.paths))) for cell in view.cells)
    assert "blocks, no intervals: too few blocks." in words.method_sentence(replace(view, cells=every))


def _without_interval(one: PathCell) -> PathCell:
    if one.comparison is None:
        return one
    bare = {key: replace(each, method=IntervalMethod.NONE) for key, each in one.comparison.estimates.items()}
    return replace(one, comparison=replace(one.comparison, estimates=bare))


def test_a_study_of_only_the_baseline_still_reports_its_noise(tmp_path: Path) -> None:
    study = STUDY[: STUDY.index('[[path]]\nname = "bridge"')] + STUDY[STUDY.index("[[workload]]") :]
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, blocks=5)))
    assert view.verdicts == ()
    assert view.noise_floor is not None


def test_a_run_interrupted_in_its_first_blocks_decides_nothing(tmp_path: Path) -> None:
    def fails(order: Order, attempt: int) -> bool:
        return order.block == 1 and order.path.label == "shm"

    view = build_view(make_run(tmp_path / "run", Recipe(blocks=2, fails=fails)))
    assert {one.verdict for one in view.verdicts} == {Verdict.UNDECIDED}
    assert view.noise_floor is None
    shm = view.cells[0].of("shm")
    assert shm is not None
    assert shm.comparison is not None
    assert shm.comparison.headline.n == 1


def test_a_block_that_was_interrupted_for_hours_is_reported(tmp_path: Path) -> None:
    """Its two halves ran hours apart, so its ratios do not depend on the paths alone."""
    view = build_view(make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=5, pause_h=6)), distributions=False)
    (caution,) = view.cautions
    assert caution.startswith("launches of 1 of 5 blocks began up to 6 h apart")
    whole = build_view(make_run(tmp_path / "whole", Recipe(study=ONE_SIZE, blocks=5)), distributions=False)
    assert whole.cautions == ()
    lab = Recipe(study=ONE_SIZE, blocks=5, pause_h=6, facts=lambda order: {"lab.virtual_time": True})
    assert build_view(make_run(tmp_path / "lab", lab), distributions=False).cautions == ()


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ((1, 1, 30), ""),
        ((1, 1, 31), "launches of 1 of 3 blocks began up to 31 min apart"),
        ((2, 2, 2, 40, 31), "launches of 2 of 5 blocks began up to 40 min apart"),
        ((10, 10, 100), ""),
        ((10, 10, 101), "launches of 1 of 3 blocks began up to 101 min apart"),
    ],
)
def test_a_torn_block_is_longer_than_half_an_hour_and_ten_others(
    run: RunDir, minutes: tuple[int, ...], said: str
) -> None:
    record = run.trials()[0]
    begin = dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)

    def began(block: int, minute: int) -> TrialRecord:
        at = (begin + dt.timedelta(days=block, minutes=minute)).isoformat()
        return replace(record, order=replace(record.order, block=block), started_utc=at)

    records = [began(block, minute) for block, span in enumerate(minutes) for minute in (0, span)]
    assert [one.partition(", because")[0] for one in torn_blocks(records)] == [said] * bool(said)


@pytest.mark.parametrize("facts", [{}, {"lab.virtual_time": True}])
def test_a_block_takes_what_is_between_its_launches_too(run: RunDir, facts: dict[str, bool]) -> None:
    """A launch of 0.2 s takes half a second: without the rest the next step was promised for half its time."""
    record, begin = run.trials()[0], dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)

    def began(block: int, seconds: float, elapsed_s: float) -> TrialRecord:
        outcome = replace(record.outcome, elapsed_ns=round(elapsed_s * 1e9), facts=facts)
        at = (begin + dt.timedelta(minutes=block, seconds=seconds)).isoformat()
        return replace(record, order=replace(record.order, block=block), outcome=outcome, started_utc=at)

    interrupted = [began(3, 0.0, 0.2), began(3, 7200.0, 0.2)]
    records = [began(block, at, 0.2) for block in range(3) for at in (0.0, 0.5, 1.0)] + interrupted
    assert block_ns(records) == pytest.approx(60e9 if facts else 1.2e9)
    assert block_ns([began(0, 0.0, 3.0), began(0, 0.0, 4.0)]) == (0.0 if facts else 7e9), "one after another"


@pytest.mark.parametrize(("late", "said"), [(112, True), (111, False)])
def test_iterations_without_a_value_are_cautioned_of(tmp_path: Path, late: int, said: bool) -> None:
    """The mean of 2 of 300 iterations, which alone had met their time window, stood as that of all."""
    made = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1)).trials()

    def missed(record: TrialRecord, n: int) -> TrialRecord:
        return replace(record, cells=tuple(replace(one, iterations=one.iterations + n) for one in record.cells))

    records = [missed(one, late if one.order.path.label == "tap" else 9) for one in made]
    told = (
        "in 1 trial of latency on tap iterations missed their time window and have no value, 112 of 1112 in the worst"
    )
    assert cautions(records, "local") == (f"{told}; a longer sync_window_us or sync = 'barrier' keeps them",) * said


@pytest.mark.parametrize(("packets", "weak"), [(229, True), (499, True), (500, False)])
def test_a_proof_by_few_packets_is_cautioned_of(tmp_path: Path, packets: int, weak: bool) -> None:
    """A launch of one message moved 229 packets: those of its launcher alone prove nothing."""
    made = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1)).trials()

    def moved(record: TrialRecord, n: int) -> TrialRecord:
        ends = {} if record.order.path.label == "shm" else {"n0.eth0": n, "n1.eth0": n + 2}
        return replace(record, outcome=replace(record.outcome, proof=Proof(ends, {})))

    records = [moved(one, packets if one.order.path.label.startswith("veth") else 9000) for one in made]
    said = [one for one in cautions(records, "local") if "proof" in one]
    told = f"the proof that latency took its path is weak on veth: {packets} packets crossed it in the weakest of "
    told += "2 such trials, and some 300 may be the launcher's own; more iterations prove it"
    assert said == [told] * weak
    assert not any("proof" in one for one in cautions(records, "lab")), "a lab's launchers have a network of their own"


def test_answers_that_may_come_back_by_another_interface_are_cautioned_of(tmp_path: Path) -> None:
    """On machines with two ports in one network, half of a small launch's packets crossed the other, and it counted."""
    made = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1)).trials()

    def told(of_ens2: int) -> list[str]:
        proof = Proof({"n0.ens1": 1228, "n1.ens1": 1228}, {"n0.lo": 9000, "n1.ens2": of_ens2, "n1.ens1.7": 400})
        return list(went_elsewhere([replace(made[0], outcome=replace(made[0].outcome, proof=proof))] * 2))

    path = made[0].order.path.name
    assert told(613) == []
    assert told(614) == [
        f"n1.ens2 carried 614 packets of a launch on {path}, and n1.ens1, the path, 1228: answers may come "
        "back another way, which `ip route get` on each machine shows"
    ]


def test_clocks_and_governors_that_change_figures_are_cautioned_of(tmp_path: Path) -> None:
    """They stood in the table of facts alone."""
    made = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1)).trials()
    path, other, *_ = dict.fromkeys(one.order.path.name for one in made)

    def told(*values: str) -> list[str]:
        facts = dict(zip((path, other), ({"kernel.clocksource": v, "cpu.governor": v} for v in values), strict=True))
        records = [
            replace(one, outcome=replace(one.outcome, facts=facts[one.order.path.name], proof=Proof({}, {})))
            for one in made
            if one.order.path.name in facts
        ]
        return list(cautions(records, "ssh"))

    asked = "the kernel asks a device at each reading, which every iteration includes"
    tail = "; tsc and kvm-clock are read by the program itself"
    assert told("tsc (n0); hpet (n1)", "kvm-clock")[1:] == [f"the kernel's clock is hpet (n1) on {path}: {asked}{tail}"]
    differ = f"cpu.governor is performance on {path}; powersave on {other}: a ratio of paths is not that of the network"
    assert told("performance", "powersave") == [f"{differ} alone"]
    assert told("performance", "not offered") == []
    ours = [replace(one, order=replace(one.order, path=replace(one.order.path, label="veth"))) for one in made[:2]]
    set_by_a_knob = [
        replace(one, outcome=replace(one.outcome, facts={"cpu.governor": governor}))
        for one, governor in zip(ours, ("powersave", "performance"), strict=True)
    ]
    assert unlike_machines(set_by_a_knob) == ()


def test_interfaces_of_an_existing_path_that_differ_are_cautioned_of(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1)).trials()[0]
    ends = {"n0.eth0.mtu": 9000, "n1.bond0.7.mtu": 1500, "n0.eth0.qdisc": "mq", "n1.bond0.7.qdisc": "mq"}
    order = replace(made.order, path=replace(made.order.path, kind="declared"))
    for facts, said in ((ends, "interface.mtu"), (ends | {UNLIKE: "cpu.model"}, "cpu.model, interface.mtu")):
        record = replace(made, order=order, outcome=replace(made.outcome, facts=facts))
        assert unlike_machines([record]) == (f"the nodes of {order.path.name} differ in {said}",)


def test_settings_that_may_not_have_been_in_effect_are_cautioned_of(tmp_path: Path) -> None:
    """Only `tune` said so: a verdict on a setting was given although its launches' interrupts contradicted it."""
    made = make_run(tmp_path / "run", Recipe(study=TWO_SETTINGS, blocks=1)).trials()
    number = sum(one.order.setting == "b" for one in made)
    facts = {
        "knob.effect.nic.rx-usecs.n0/eth0": "contradicts: 8197 interrupts/s",
        "knob.effect.nic.rx-usecs.n1/eth0": "contradicts: 8190 interrupts/s",
        "knob.rival.irqbalance": "nic.irq-affinity",
    }
    agreeing = {"knob.effect.nic.rx-usecs.n0/eth0": "agrees: 20000 interrupts/s"}
    of_b = iter([facts, facts, *[agreeing] * number])
    records = [
        replace(one, outcome=replace(one.outcome, facts=next(of_b) if one.order.setting == "b" else {})) for one in made
    ]
    said = [
        f"setting b may not have been in effect: interrupts contradict it in 2 of {number} trials, such as "
        "nic.rx-usecs.n0/eth0: 8197 interrupts/s",
        "irqbalance was running and may have changed nic.irq-affinity",
    ]
    assert [one for one in cautions(records, "fake") if "nic." in one] == said
    assert [one for one in cautions_of_levels(records, "fake") if "nic." in one] == said


@pytest.mark.parametrize("host", ["local", "lab"])
def test_ranks_that_share_a_node_of_a_network_are_cautioned_of(tmp_path: Path, host: str) -> None:
    """Memory was shown under the names of the paths, and more iterations were to prove that messages crossed them."""
    made = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1)).trials()

    def packed(record: TrialRecord) -> TrialRecord:
        ends = {} if record.order.path.label == "shm" else {"n0.eth0": 0}
        order = replace(record.order, workload=replace(record.order.workload, placement=(0, 0)))
        return replace(record, order=order, outcome=replace(record.outcome, proof=Proof(ends, {})))

    (said,) = cautions([packed(one) for one in made], host)
    names = ", ".join(dict.fromkeys(one.order.path.label.removesuffix("-again") for one in made))
    assert said == (
        f"all ranks of latency were on one node: no message crossed {names.replace(', shm', '')}; "
        "its figures are of that node alone"
    )
    alone = [packed(one) for one in made if one.order.path.label == "shm"]
    assert cautions(alone, host) == ()


def test_levels_agree_with_the_ratio_beside_them(tmp_path: Path) -> None:
    """The baseline's was of its first launches alone: 9.9 us stood against 12.5 us beside a ratio of 0.739."""
    recipe = Recipe(study=TWO_SETTINGS, again=1.5, setting_cost={"b": 0.8})
    view = build_view(make_run(tmp_path / "run", recipe))
    of = {(cell.group.setting, one.path): one for cell in view.cells for one in cell.paths}
    for (setting, path), one in of.items():
        if path.removesuffix("-again") != "veth":
            assert one.comparison is not None
            for metric, found in one.comparison.estimates.items():
                ours, theirs = (each.levels[metric].value for each in (one, of[setting, "veth"]))
                assert ours is not None
                assert theirs is not None
                assert found.ratio == pytest.approx(ours / theirs, rel=1e-12)
    for contrast in view.settings:
        ours, theirs = (of[setting, contrast.path].headline.value for setting in ("b", "a"))
        assert ours is not None
        assert theirs is not None
        assert contrast.comparison.headline.ratio == pytest.approx(ours / theirs, rel=1e-12)
    cell = view.cells[0]
    first, both, second = (
        of["a", "veth"].trials[0].summary.trimmed_mean_ns / 2000,
        of["a", "veth"].headline.value,
        of["a", "veth-again"].headline.value,
    )
    assert both == pytest.approx(first * math.sqrt(1.5), rel=0.02)
    assert second == pytest.approx(first * 1.5, rel=0.02), "the second name has its own level"
    tips = re.findall(r"veth(?:-again)?, block 1: ([+-][\d.]+) %", charts.drift_chart(view, cell))
    assert [float(tip) for tip in tips] == pytest.approx(
        [100 / math.sqrt(1.5) - 100, 100 * math.sqrt(1.5) - 100], abs=2
    )


def test_a_baseline_whose_first_launches_all_failed_has_the_figures_of_its_second(tmp_path: Path) -> None:
    """A dash stood beside ratios to it, its counters and what a setting gains on it were missing."""
    recipe = Recipe(study=TWO_SETTINGS, blocks=7, setting_cost={"b": 0.8})
    lacking = make_run(tmp_path / "run", replace(recipe, fails=lambda order, attempt: order.path.label == "veth"))
    view = build_view(lacking)
    for cell in view.cells:
        first, second, tap = (cell.of(path) for path in ("veth", "veth-again", "tap"))
        assert first is not None
        assert second is not None
        assert tap is not None
        assert tap.comparison is not None
        assert first.levels == second.levels
        assert (first.trials, first.iterations) == ((), 0), "they are of one name"
        assert cell.noise is None
        theirs, ours = first.headline.value, tap.headline.value
        assert theirs is not None
        assert ours is not None
        assert tap.comparison.headline.ratio == pytest.approx(ours / theirs, rel=1e-12)
    assert "veth" in {one.path for one in view.settings}
    assert next(row for row in view.counters if row.name == "context switches").values[0]
    page = as_html.render(view)
    assert "veth: p5 " in page, "its distribution is drawn"
    plotted = {(one.path, one.value) for one in figure.data(figure.ChartKind(view, view.groups[0], "mean"))}
    assert ("veth", view.cells[0].paths[0].headline.value) in plotted


def test_distributions_of_the_baseline_are_of_the_launches_that_its_figures_are_of(tmp_path: Path) -> None:
    """They were of its first name alone: 20 us were drawn beside a level of 28 us."""
    run = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, again=2.0))
    cell = build_view(run).cells[0]
    one = cell.of("veth")
    assert one is not None
    stored = [
        run.values(record, record.cells[0])
        for record in run.trials()
        if record.order.path.label in {"veth", "veth-again"}
    ]
    both = np.sort(np.concatenate(stored))
    assert one.drawn == both.size == 2 * one.iterations
    for curve in (one.ecdf, one.tail):
        assert [curve.ns[0], curve.ns[-1]] == [both[0], both[-1]]
        at = int(curve.fraction.searchsorted(0.5))
        assert curve.fraction[at] == np.count_nonzero(both <= curve.ns[at]) / both.size


@pytest.mark.parametrize(("iterations", "told"), [(5000, 4), (300, 3), (20, 1), (2, 0)])
def test_a_distribution_names_its_own_percentiles_and_none_that_is_refused(
    tmp_path: Path, iterations: int, told: int
) -> None:
    """The p99 of 40,000 iterations was their p99.5, twice as long: the nearest point of a curve of 200."""
    run = make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=1, iterations=iterations))
    view = build_view(run)
    cell = view.cells[0]
    (record,) = (one for one in run.trials() if one.order.path.label == "tap")
    exact = np.quantile(run.values(record, record.cells[0]), (0.05, 0.95, 0.5, 0.99), method="inverted_cdf") / 2000
    said = next(tip for tip in re.findall("<title>(tap: [^<]*)</title>", charts.ecdf_chart(view, cell)))
    named: dict[str, str] = dict(re.findall(r"(p\d+|median) (\S+?)(?:,|$)", said))
    assert len(named) == told
    assert told or said == "tap: 2 iterations"
    for name, value in zip(("p5", "p95", "median", "p99"), exact, strict=True):
        assert name not in named or named[name] == words.figure(value)


def test_counters_and_facts_of_the_baseline_are_of_both_its_launches(run: RunDir, view: View) -> None:
    records = [one for one in run.trials() if one.order.block == 0 and one.order.path.label.startswith("veth")]
    made = [
        replace(one, outcome=replace(one.outcome, counters={"cpu.steal": steal}, facts={"mtu": steal}))
        for one, steal in zip(records, (10, 20), strict=True)
    ]
    assert [row.values[0] for row in counter_rows(made, view.paths)] == [15]
    other = next(one for one in run.trials() if one.order.path.label == "tap")
    rows = fact_rows([*made, replace(other, outcome=replace(other.outcome, facts={"mtu": 10}))], view.paths)
    assert [row.values[0] for row in rows] == ["10 / 20"]


def test_a_ratio_of_launches_too_short_for_a_distribution_is_explained(view: View) -> None:
    """A path of one sample a launch has no p99: that is a dash, and why it has no ratio is said."""
    group, cell = view.groups[0], view.cells[0]
    one = cell.of("tap")
    assert one is not None
    assert one.comparison is not None
    none = replace(one.levels[Metric.P99], value=None, interval=None)
    estimates = {metric: found for metric, found in one.comparison.estimates.items() if metric is not Metric.P99}
    why = "n = 1, where other launches have 6 or more"
    lone = replace(
        one,
        levels={**one.levels, Metric.P99: none},
        comparison=replace(one.comparison, estimates=estimates, refused={Metric.P99: why}),
    )
    paths = tuple(lone if each is one else each for each in cell.paths)
    lacking = replace(view, cells=(replace(cell, paths=paths), *view.cells[1:]))
    assert tables.comparisons(lacking, group).note.endswith(f"p99 ratio refused, {words.size(cell)} tap: {why}.")
    shown = tables.levels(lacking, group, Metric.P99)
    assert shown.rows[0][shown.head.index("tap")] == words.NOTHING


def test_each_trial_refuses_what_its_comparison_refuses(view: View) -> None:
    """A median in the gap between modes is no figure of a launch, nor is the rate of no time at all."""
    cell = view.cells[0]
    one, trial = cell.paths[0], cell.paths[0].trials[0]
    at = trial.summary.median_ns
    modes = Modes((Mode(0.5, at / 3, at / 4, at / 2), Mode(0.5, at * 3, at * 2, at * 4)), "at random")
    odd = replace(trial.summary, modes=modes, min_ns=0, trimmed_mean_ns=0.0)
    lone = replace(one, trials=(replace(trial, summary=odd),))
    rate = replace(cell, paths=(lone,), shown=replace(cell.shown, better=Better.LARGER))
    table = tables.trials(view, rate)
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert (row["mean"], row["median"], row["most"]) == (words.REFUSED, words.REFUSED, words.NOTHING)
    assert "inf" not in table.rows[0]
    short = replace(lone, trials=(replace(trial, summary=replace(odd, n=1, trimmed_mean_ns=at)),))
    assert tables.trials(view, replace(cell, paths=(short,))).rows[0][4] == words.NOTHING
