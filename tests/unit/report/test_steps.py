from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.report import as_html, as_markdown, as_table, tables
from nearmetal.report.steps import blocks_to_settle, gains, next_step, next_steps, occasions_to_settle, open_cells
from nearmetal.report.terminal import Console
from nearmetal.report.words import cell_title, launches_sentence
from nearmetal.results.between import judge_runs
from nearmetal.results.paths import build_view
from nearmetal.results.stopping import Unfinished
from nearmetal.stats.compare import RatioEstimate, estimate_ratio
from nearmetal.stats.equivalence import Finding, Verdict
from nearmetal.stats.summary import Metric
from nearmetal.stats.widen import OCCASIONS, BlockContext, BlockFigures
from nearmetal.store.rundir import RunDir
from nearmetal.study.facts import VIRTUAL_TIME
from tests.unit.report.synthetic_run import COST, ONE_SIZE, STUDY, Recipe, make_run

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.results.records import View
    from nearmetal.study.order import Order

SAME = dict.fromkeys(COST, 1.0)


def steps(view: View) -> set[str]:
    return {next_step(view, cell, one) for cell in view.cells for one in cell.paths if one.comparison}


def test_a_settled_report_has_no_next_step(view: View) -> None:
    assert steps(view) == {""}
    assert open_cells(view).rows == ()


def test_missing_launches_are_counted_and_timed(tmp_path: Path) -> None:
    study = STUDY.replace('rarest_mode = "35 %"\n', "")
    view = build_view(make_run(tmp_path / "run", Recipe(study=study, cost=SAME)))
    assert {one.verdict for one in view.verdicts} == {Verdict.UNDECIDED}
    assert steps(view) == {"a new run with max_blocks = 14, about 2 min"}  # blocks of 6 launches of 1.5 s
    assert steps(replace(view, planned_blocks=(5, 14))) == {"a new run with min_blocks = 14, about 2 min"}, "it is over"
    longer = replace(view, planned_blocks=(5, 14), unfinished=Unfinished(False, False, "", ""))
    assert steps(longer) == {"6 more blocks, about 54 s"}, "--resume measures them"
    assert steps(replace(view, host_kind="import")) == {"6 more blocks, about 54 s"}, "of files there is no plan"
    assert "near-metal in 8 launches, which cannot exclude a mode rarer than 31 %" in open_cells(view).rows[0][2]


def test_launches_too_short_for_a_p99_ask_for_iterations(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(iterations=200, cost=SAME)))
    assert steps(view) == {"at least 368 iterations per launch"}
    assert "next for tap, latency, 8 B, 1 KiB and 64 KiB: at least 368 iterations per launch" in next_steps(view)


def test_steps_name_the_sizes_they_apply_to(view: View) -> None:
    """Many sizes are shortened to the first, the last and their number, many operations to the first few."""
    first = view.cells[0]
    cells = [replace(first, message_bytes=2**power) for power in range(6)]
    assert cell_title(view, *cells[:2]) == "latency, 1 B and 2 B"
    assert cell_title(view, *cells) == "latency, 6 sizes from 1 B to 32 B"
    assert cell_title(view, replace(first, message_bytes=0, sized=False)) == "latency"
    others = [replace(first, group=replace(first.group, operation=name)) for name in ("p", "q", "r", "s", "t")]
    named = "; ".join(f"latency ({name}), {{0}}" for name in ("p", "q", "r", "s")).format("8 B")
    assert cell_title(view, *others) == f"{named}; 1 more"


def test_blocks_before_the_first_look_are_counted(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(blocks=3)))
    assert steps(view) == {"2 more blocks, about 18 s, for a first interval"}
    later = replace(view, planned_blocks=(9, 12))
    assert steps(later) == {"6 more blocks, about 54 s, for a first interval"}


@pytest.mark.parametrize(("gap", "blocks"), [(1.0, 8), (1.03, 8), (1.2, 8)])
def test_the_blocks_asked_for_are_enough(gap: float, blocks: int) -> None:
    rng = np.random.default_rng(5)

    def pair(count: int) -> BlockFigures:
        noise = rng.normal(0.0, 0.05, count)
        return BlockFigures(gap * np.exp(noise - noise.mean()), np.ones(count))

    first = estimate_ratio(pair(blocks), rng=rng)
    more = blocks_to_settle(first)
    assert more is not None
    again = estimate_ratio(pair(blocks + more), rng=rng)
    assert again.evidence is not None
    interval = again.evidence.difference
    half = (interval.high - interval.low) / 2
    assert half <= 1.25 * abs(abs(np.log(gap)) - np.log(1.05))


def test_two_blocks_do_not_ask_for_what_their_students_t_would_take() -> None:
    """Blocks of +-5 % show 20 % from the fourth on; by the square root alone two of them asked for 44 more."""

    def found(blocks: int) -> RatioEstimate:
        noise = np.resize([-0.05, 0.05], blocks)
        return estimate_ratio(BlockFigures(1.2 * np.exp(noise), np.ones(blocks)), rng=np.random.default_rng(1))

    assert blocks_to_settle(found(2)) == 2
    assert (found(2).finding, found(4).finding) == (Finding.UNDECIDED, Finding.SLOWER)


def test_boots_that_differ_ask_for_boots_and_not_for_blocks(tmp_path: Path) -> None:
    recipe = Recipe(study=ONE_SIZE.replace("min_blocks = 5", "min_blocks = 8"), boots=(0.95, 1.0, 1.06), cost=SAME)
    found = steps(build_view(make_run(tmp_path / "run", recipe)))
    more = "more blocks of the same hardly narrow the interval"
    assert found == {f"a new run over more boots (`variants` in host.options): {more}"}


def test_no_number_of_blocks_settles_an_estimate_on_the_margin() -> None:
    noise = np.array([-0.02, 0.02, -0.01, 0.01, 0.0, 0.0])
    on = estimate_ratio(BlockFigures(1.05 * np.exp(noise), np.ones(6)), rng=np.random.default_rng(1))
    assert blocks_to_settle(on) is None


@pytest.mark.parametrize(
    ("gap", "spread", "more"), [(1.0, 0.015, 2), (1.0, 0.018, 4), (1.1, 0.016, 3), (1.0, 0.03, None)]
)
def test_a_run_of_several_occasions_asks_for_occasions(gap: float, spread: float, more: int | None) -> None:
    """Occasions have a spread of their own: with one of 3 %, no number of them shows less than 5 %."""

    def found(count: int) -> RatioEstimate:
        noise = np.linspace(-1.0, 1.0, count)
        noise *= spread / noise.std(ddof=1)
        pair = BlockFigures(gap * np.exp(noise), np.ones(count), context=OCCASIONS, launches=8 * count)
        return estimate_ratio(pair, rng=np.random.default_rng(1))

    assert found(3).finding in {Finding.UNDECIDED, Finding.DIFFERS}
    assert occasions_to_settle(found(3)) == more
    for count in range(4, 8):
        evidence = found(count).evidence
        assert evidence is not None
        bound, interval = evidence.margin_log, evidence.difference
        settled = interval.low > bound if gap > 1.0 else interval.inside(-bound, bound)
        assert settled == (more is not None and count >= 3 + more)


def test_more_blocks_do_not_shrink_the_difference_of_the_baseline_from_itself() -> None:
    """Twins differ by 4 %, which remains in a half-width of 6 %: instead of 27 blocks, none are asked for."""
    noise = np.array([-0.03, 0.03, -0.02, 0.02, 0.01, -0.01, 0.0, 0.0])
    pair = BlockFigures(1.012 * np.exp(noise), np.ones(8))
    alone = estimate_ratio(pair, rng=np.random.default_rng(1))
    beside = estimate_ratio(replace(pair, context=BlockContext(0.04 + noise / 9)), rng=np.random.default_rng(1))
    assert alone.evidence is not None
    assert beside.evidence is not None
    assert beside.evidence.offset == pytest.approx(0.04)
    assert blocks_to_settle(alone) is not None
    assert blocks_to_settle(beside) is None


def test_a_baseline_that_differs_from_itself_asks_for_pinned_ranks(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(cost=SAME, again=1.2)))
    assert all(
        re.fullmatch(r"pin ranks and interrupts; or set a margin of \d+ %, if you can accept it", s)
        for s in steps(view)
    )
    text = io.StringIO()
    as_table.answer(view, Console(file=text, width=80, color_system=None))
    line = " ".join(text.getvalue().split())
    assert "next for bridge, latency, 8 B and 1 KiB: pin ranks and interrupts; or set a margin of 33 %" in line
    assert f"steps not shown: {len(next_steps(view)) - 3}." in line
    assert text.getvalue().count("\n") <= 40


def test_on_a_busy_machine_quiet_is_advised_before_more_blocks(tmp_path: Path) -> None:
    recipe = Recipe(cost=SAME, spread=0.08, busy=4)
    assert not any("quieter" in step for step in steps(build_view(make_run(tmp_path / "half", recipe))))
    view = build_view(make_run(tmp_path / "most", replace(recipe, busy=5)))
    assert "measure on a quieter machine; else a new run with max_blocks = 45, about 7 min" in steps(view)
    assert {step for step in steps(view) if not step.startswith("measure on a quieter machine")} == {
        "a new run with max_blocks = 10, about 90 s"
    }, "missing launches are needed on any machine"


def test_launches_that_stay_in_one_of_two_modes_are_reported_and_need_no_more_launches(tmp_path: Path) -> None:
    view = build_view(make_run(tmp_path / "run", Recipe(cost=SAME, boots=(1.0, 1.0, 2.0))))
    assert view.causes[0] == (
        "latency 8 B over bridge, setting as-found: 2 of 8 launches have means of 42.5 to 42.6 us, the others of 21.2 "
        "to 21.4; each launch stays in one mode; no counter shows why"
    )
    assert len(view.causes) == 12
    first = 'pin ranks and interrupts, or set pace = "random": each launch keeps to one of several modes; else '
    assert all(step.startswith(first) for step in steps(view))
    assert not tables.modes(view).rows
    text = io.StringIO()
    as_table.render(view, Console(file=text, width=400, color_system=None))
    for written in (text.getvalue(), as_markdown.render(view), as_html.render(view)):
        assert "2 of 8 launches have means of 42.5 to 42.6 us" in written, "although no iterations fall into groups"


def test_occasions_that_differ_a_thousandfold_are_drawn_and_reported_as_inconclusive(tmp_path: Path) -> None:
    """Student's interval of two such values spans sixty decades: no axis has ticks for it."""
    view = build_view(make_run(tmp_path / "run", Recipe(study=ONE_SIZE, blocks=16, hours=(1.0, 1000.0))))
    assert view.occasions == 2
    assert "unbounded" in as_html.render(view)
    text = io.StringIO()
    as_table.render(view, Console(file=text, width=80, color_system=None))
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "0.000000" not in text.getvalue()


def test_where_cells_differ_the_fewest_launches_are_reported(tmp_path: Path) -> None:
    def fails(order: Order, attempt: int) -> bool:
        return order.path.label == "tap" and order.block == 3

    recipe = Recipe(study=ONE_SIZE, fails=fails)
    view = build_view(make_run(tmp_path / "run", replace(recipe, cost={**dict.fromkeys(COST, 1.5), "veth": 1.0})))
    assert launches_sentence(view).startswith(" Ratios rest on at least 7 launches of each path: a mode in fewer than")
    slower = replace(recipe, cost={**dict.fromkeys(COST, 1.5), "veth": 1.0})
    lost = replace(slower, fails=lambda order, _: order.path.label == "tap" and order.block > 1)
    undecided = make_run(tmp_path / "few", lost)
    said = launches_sentence(build_view(undecided))
    assert said.startswith(" Decided ratios rest on 8 launches of each path:"), "those of tap rest on two"
    study = ONE_SIZE.replace('"35 %"', '"45 %"')
    view = build_view(make_run(tmp_path / "same", replace(recipe, study=study, cost=SAME)))
    assert launches_sentence(view).startswith(" The weakest near-metal cell rests on 7 launches, which cannot rule out")


def test_missing_launches_over_several_occasions_are_counted_by_occasion(tmp_path: Path) -> None:
    """Each occasion has all the blocks that the study plans."""
    study = (
        ONE_SIZE.replace('rarest_mode = "35 %"\n', "").replace("= 5", "= 3").replace("max_blocks = 8", "max_blocks = 3")
    )
    calm = Recipe(study=study, blocks=9, spread=0.0005, hours=(1.0, 1.001, 1.0005), cost=SAME)
    assert steps(build_view(make_run(tmp_path / "run", calm))) == {"2 more occasions"}  # 14 - 9 launches, 3 at each
    one_lacks = replace(calm, fails=lambda order, attempt: order.path.label == "tap" and order.block > 2)
    view = build_view(make_run(tmp_path / "lacks", one_lacks))
    found = {one.path: next_step(view, cell, one) for cell in view.cells for one in cell.paths}
    assert found["tap"] == "1 more occasion, for a first interval"


def test_random_pauses_are_advised_only_for_workloads_that_take_them(tmp_path: Path) -> None:
    recipe = Recipe(cost=SAME, boots=(1.0, 1.0, 2.0))
    for name, line, offered in (
        ("engine", "", True),
        ("paced", 'pace = "random"\n', False),
        ("omb", 'kind = "omb"\n', False),
    ):
        study = ONE_SIZE.replace('name = "latency"\n', f'name = "latency"\n{line}')
        view = build_view(make_run(tmp_path / name, replace(recipe, study=study)))
        assert {'set pace = "random"' in step for step in steps(view)} == {offered}, name
        assert all(step.startswith("pin ranks and interrupts") for step in steps(view))


def test_near_metal_over_occasions_rests_on_all_their_launches(tmp_path: Path) -> None:
    study = ONE_SIZE.replace("min_blocks = 5", "min_blocks = 8")
    recipe = Recipe(study=study, blocks=24, spread=0.0005, hours=(1.0, 1.001, 1.0005), cost=SAME)
    view = build_view(make_run(tmp_path / "run", recipe))
    assert view.occasions == 3
    expected = "near-metal rests on 24 launches, which cannot rule out a slow mode rarer than 12 %."  # 1 - 0.05^(1/24)
    assert launches_sentence(view).strip() == expected
    view = build_view(make_run(tmp_path / "slow", replace(recipe, cost={**dict.fromkeys(COST, 1.5), "veth": 1.0})))
    assert launches_sentence(view).startswith(" Ratios rest on 24 launches of each path: a mode in fewer than 12 %")


def test_a_gate_over_occasions_asks_for_occasions(tmp_path: Path) -> None:
    """More blocks of the same occasions would not narrow an interval that is made of one figure per occasion."""
    study = ONE_SIZE.replace("min_blocks = 5", "min_blocks = 8")
    base = Recipe(study=study, blocks=24, hours=(1.0, 1.02, 0.98))
    make_run(tmp_path / "base", base)
    later = make_run(tmp_path / "run", replace(base, hours=(1.03, 0.99, 1.0), seed=8))
    gate = judge_runs(later, RunDir.open(tmp_path / "base"))
    reasons = [one.reason for one in gate.judged if "would settle it" in one.reason]
    assert reasons
    assert all(re.search(r"about \d+ occasions in each run", reason) for reason in reasons)


def test_the_gain_of_a_setting_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    study = STUDY.replace("[trials]", '[[setting]]\nname = "plain"\n[[setting]]\nname = "tuned"\n[trials]')
    recipe = Recipe(study=study, setting_cost={"tuned": 0.25})
    view = build_view(make_run(tmp_path / "run", recipe))
    sentences = gains(view)
    assert len(sentences) == 5
    for one in sentences:
        found = re.fullmatch(r"tuned against plain, latency over \w+: ([\d.]+)(?: to ([\d.]+))? times as fast\.", one)
        assert found, one
        assert 3.9 < float(found[1]) < 4.1
    assert {(one.path, one.setting) for one in view.verdicts} == {
        (path, setting) for path in COST if path != "veth" for setting in ("plain", "tuned")
    }
    text = io.StringIO()
    as_table.render(view, Console(file=text, width=80, color_system=None))
    assert "macvlan, tuned" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80
    short = io.StringIO()
    as_table.answer(view, Console(file=short, width=80, color_system=None))
    assert sentences[0] in short.getvalue(), "the short answer begins with it"
    assert "gains of settings not shown: 2." in short.getvalue()
    one_size = study.replace('[8, "1 KiB", "64 KiB"]', "[8]")
    same = build_view(make_run(tmp_path / "same", Recipe(study=one_size)))
    assert gains(same)[0] == "tuned against plain, latency over veth: shown to differ by less than 5 %."
    tail = same.settings[0].comparison.estimates[Metric.P99]
    slow = replace(tail, judgement=replace(tail.judgement, finding=Finding.SLOWER))
    estimates = {**same.settings[0].comparison.estimates, Metric.P99: slow}
    longer = replace(same.settings[0], comparison=replace(same.settings[0].comparison, estimates=estimates))
    (told,) = gains(replace(same, settings=(longer,)))
    assert told.endswith("shown to differ by less than 5 %, but by the p99 slower in 1 of 1 cell."), (
        "no word of the tail"
    )
    few = build_view(make_run(tmp_path / "few", Recipe(study=study, blocks=2)))
    assert gains(few)[0] == "tuned against plain, latency over veth: undecided in 3 cells."
    (told,) = gains(replace(same, settings=(same.settings[0], few.settings[0])))
    assert told.endswith("over veth: undecided in 1 of 2 cells, shown to differ by less than 5 % in the rest.")


def test_blocks_on_a_virtual_clock_are_timed_by_the_wall_clock(tmp_path: Path) -> None:
    recipe = Recipe(study=STUDY.replace('rarest_mode = "35 %"\n', ""), cost=SAME, facts=lambda _: {VIRTUAL_TIME: True})
    view = build_view(make_run(tmp_path / "run", recipe))
    view = replace(view, planned_blocks=(5, 16), unfinished=Unfinished(False, False, "", ""))
    assert steps(view) == {"6 more blocks, about 7 min"}  # each begins 66 s after the last
