"""Simulated studies resolve what a plan promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nearmetal.cli.plan import resolves
from nearmetal.results.stopping import stopping_plan
from nearmetal.run.preflight import limits
from nearmetal.run.resolve import LAUNCH_SDS, asked_power, blocks_for, power, resolution, smallest_difference
from nearmetal.stats.compare import compare
from nearmetal.stats.equivalence import Verdict
from nearmetal.stats.summary import Metric
from nearmetal.stats.widen import BlockContext, BlockFigures
from nearmetal.study.spec import parse_study
from tests.unit.test_spec import GOOD


def test_near_metal_needs_enough_blocks_for_the_rarest_mode() -> None:
    found = resolution(parse_study('rarest_mode = "50 %"\n' + GOOD, "t"))
    assert found.blocks_for_mode == 5
    assert (1 - found.rarest_mode) ** found.blocks == pytest.approx(0.05)
    assert resolution(parse_study(GOOD, "t")).blocks_for_mode == 14


@pytest.mark.parametrize(("blocks", "sd", "level"), [(5, 0.03, 0.05), (12, 0.03, 0.025), (10, 0.1, 0.05)])
def test_the_smallest_difference_is_found_as_often_as_promised(blocks: int, sd: float, level: float) -> None:
    true = np.log1p(smallest_difference(blocks, sd, level, asked_power(blocks)))
    rng = np.random.default_rng(1)
    both_names = rng.normal(0, sd, (4000, blocks, 2)).mean(axis=2)
    ratios = rng.normal(true, sd, (4000, blocks)) - both_names
    found = stats.ttest_1samp(ratios, 0.0, axis=1).pvalue < level
    assert found.mean() == pytest.approx(asked_power(blocks), abs=0.025)


@pytest.mark.parametrize("sd", LAUNCH_SDS)
@pytest.mark.parametrize("level", [0.05, 0.025, 0.004])
def test_fewer_blocks_or_noisier_launches_never_resolve_more(sd: float, level: float) -> None:
    """Sixteen blocks of two comparisons once resolved 1 % at an sd of 1 %, but 52 % at 3 %."""
    found = [smallest_difference(blocks, sd, level, asked_power(blocks)) for blocks in range(3, 60)]
    assert found == sorted(found, reverse=True)
    assert [power(n, one, sd, level) for n, one in enumerate(found, 3)] == pytest.approx(
        [asked_power(n) for n in range(3, 60)]
    )


@pytest.mark.parametrize("sd", [0.03, 0.10])
def test_the_proposed_blocks_are_the_fewest_that_suffice(sd: float) -> None:
    needed = blocks_for(0.05, sd, lambda _: 0.05)
    assert needed is not None
    assert power(needed, 0.05, sd, 0.05) >= asked_power(needed)
    assert power(needed - 1, 0.05, sd, 0.05) < asked_power(needed - 1)
    assert blocks_for(0.001, 0.3, lambda _: 0.05) is None


@pytest.mark.parametrize(("least", "most"), [(5, 5), (6, 6), (7, 7), (5, 16), (16, 16)])
def test_studies_find_the_difference_that_a_plan_names(least: int, most: int) -> None:
    """It was found in a tenth of the studies of 5 blocks and in half of those of 5 to 16, not in 80 %, then in 65 %.

    What drift and skewness add to an interval takes some power, too, and so does the bootstrap of a fixed number.
    """
    text = f"{GOOD}[trials]\nmin_blocks = {least}\nmax_blocks = {most}\n"
    study = parse_study(text.replace('[8, "1 KiB"]', "[8]"), "t")
    sd, difference, _ = resolution(study).differences[2]  # clear of the margin, within which it is near-metal
    plan, rng, found = stopping_plan(study) if least < most else None, np.random.default_rng(1), 0
    for _ in range(400):
        ours, first, again = rng.normal(0, sd, (3, most))
        context = BlockContext(twins=again - first)
        both = BlockFigures((1 + difference) * np.exp(ours), np.exp((first + again) / 2), context=context)
        found += compare({Metric.MEAN: both}, rng=rng, plan=plan).verdict in {Verdict.SLOWER, Verdict.DIFFERS}
    assert found / 400 == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("blocks", [5, 10])
def test_studies_of_the_lab_find_the_difference_that_a_plan_names(blocks: int) -> None:
    """Of three boots in turn; it was found in 57 to 66 % of them."""
    text = f'{GOOD}[trials]\nmin_blocks = {blocks}\nmax_blocks = {blocks}\n[host]\nkind = "lab"\n'
    sd, difference, _ = resolution(parse_study(text.replace('[8, "1 KiB"]', "[8]"), "t")).differences[2]
    rng, found, boots = np.random.default_rng(1), 0, tuple(block % 3 for block in range(blocks))
    for _ in range(400):
        ours, first, again = rng.normal(0, sd, (3, blocks))
        context = BlockContext(again - first, boots)
        both = BlockFigures((1 + difference) * np.exp(ours), np.exp((first + again) / 2), context=context)
        found += compare({Metric.MEAN: both}, rng=rng).verdict in {Verdict.SLOWER, Verdict.DIFFERS}
    assert found / 400 == pytest.approx(0.75, abs=0.06)


def test_blocks_of_the_lab_find_small_differences_although_they_are_few() -> None:
    text = GOOD + "[trials]\nmin_blocks = 5\nmax_blocks = 5\n"
    elsewhere, lab = (resolution(parse_study(t, "t")) for t in (text, text + '[host]\nkind = "lab"\n'))
    assert [one[2] for one in elsewhere.differences[:2]] == [10, 15]
    assert lab.differences[0][2] == 4
    assert lab.differences[0][1] < 0.04
    assert elsewhere.differences[0][1] > 0.05


def test_a_gap_that_no_number_of_blocks_finds_is_not_said_to_be_found() -> None:
    """It said: enough for a gap of 0.1 %."""
    found = resolution(parse_study('margin = "0.1 %"\n' + GOOD, "t"))
    *_, said, more = resolves(found, 0.001)[1]
    assert said == "enough for near-metal and its p99"
    assert more == "not even 1,000 blocks find a gap of 0.1 % if launches differ by 3 %"


@pytest.mark.parametrize(
    ("sizes", "percentile", "asks"), [('[8, "64 KiB"]', 0.5, "iterations_large = 368"), ("[8]", 0.99, "")]
)
def test_iterations_of_large_sizes_count(sizes: str, percentile: float, asks: str) -> None:
    """With 20 iterations of 64 KiB it promised a p99 of a launch, with 1000 iterations."""
    text = GOOD.replace('[8, "1 KiB"]', sizes) + "options = { iterations_large = 20 }\n[trials]\nmax_blocks = 40\n"
    found = resolution(parse_study(text, "t"))
    assert found.percentile == percentile
    held = "a launch of 20 iterations supports percentiles up to p50; p90 needs"
    assert any(one.startswith(held) for one in resolves(found, 0.05)[1]) is bool(asks)
    assert resolves(found, 0.05)[1][-1].endswith(asks)
    assert bool(asks) == any(" = 20 is too few" in one for one in limits(parse_study(text, "t")))


def test_a_plan_proposes_blocks_and_iterations() -> None:
    """Enough for near-metal and for a gap as large as the margin on a usual machine; nothing if the study has both."""
    margin = 0.05
    found = resolution(parse_study(GOOD, "t"))
    assert (found.proposed_blocks, found.proposed_iterations) == (15, 368)
    assert found.iterations_by == {"iterations": 1000}
    goal = "near-metal, its p99, and a gap of 5 % if launches differ by 3 %"
    for blocks, iterations, expected in (
        (15, 368, f"enough for {goal}"),
        (14, 368, f"proposed, for {goal}: max_blocks = 15"),
        (15, 367, f"proposed, for {goal}: iterations = 368"),
        (5, 100, f"proposed, for {goal}: max_blocks = 15, iterations = 368"),
    ):
        assert (
            resolves(replace(found, blocks=blocks, iterations_by={"iterations": iterations}), margin)[1][-1] == expected
        )
    wide = resolution(parse_study('rarest_mode = "50 %"\n' + GOOD, "t"))
    assert wide.proposed_blocks == wide.differences[1][2]


def test_a_plan_promises_no_p99_of_a_program_that_gives_one_figure() -> None:
    command = """name = "x"\nbaseline = "a"\npath = [{ name = "a", kind = "veth" }, { name = "b", kind = "bridge" }]
        workload = [{ name = "w", kind = "command", options = { argv = ["true"], figure = "wall" } }]"""
    found = resolution(parse_study(command, "t"))
    assert resolves(replace(found, blocks=5), 0.05)[1][-1].startswith("proposed, for near-metal and a gap of 5 % if ")
    assert resolves(replace(found, blocks=20, proposed_blocks=None), 0.05)[1][1] == "enough for near-metal"


def test_an_application_is_three_comparisons() -> None:
    """Its total, its iterations and its communication: the report corrects for each."""
    program = GOOD + '[[workload]]\nname = "cg"\nkind = "application"\n'
    one, more = (resolution(parse_study(text, "t")).comparisons for text in (GOOD, program))
    assert more == one + 3


@pytest.mark.parametrize(
    ("workload", "comparisons"),
    [
        ('kind = "nuttcp"', 1),
        ('kind = "nuttcp"\nplacement = [0, 1, 0, 1, 0, 1]', 4),  # a cell a pair, and their sum
        ('kind = "nuttcp"\nplacement = [0, 1, 0, 1]\nsizes = [8, 64]', 6),
        ('kind = "fabric"\nplacement = [0, 1, 2, 3]', 2),
        ('kind = "command"\noptions = { argv = ["true"] }', 1),
    ],
)
def test_a_plan_counts_the_cells_of_pairs_and_fabrics(workload: str, comparisons: int) -> None:
    text = GOOD[: GOOD.index("[[workload]]")] + f'[[workload]]\nname = "latency"\n{workload}\n'
    assert resolution(parse_study(text, "t")).comparisons == comparisons


def test_more_comparisons_resolve_less() -> None:
    one = resolution(parse_study(GOOD.replace('[8, "1 KiB"]', "[8]"), "t"))
    two = resolution(parse_study(GOOD, "t"))
    assert (one.comparisons, two.comparisons) == (1, 2)
    assert all(a[1] < b[1] for a, b in zip(one.differences, two.differences, strict=True))
    assert (two.iterations, two.percentile, two.next_percentile, two.next_iterations) == (1000, 0.99, 0.999, 3688)
