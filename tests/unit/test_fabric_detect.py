"""Detection on made-up fabrics: planted faults are found, and nothing healthy is named."""

from __future__ import annotations

import math
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from bench.support.made_up_fabric import Faults, MadeUpFabric, Noise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nearmetal.fabric import detect, measure
from nearmetal.fabric.detect import ALPHA, FEW_NODES, REPEATS, RetestedSuspect, Role, confirm, screen, unconfirmed
from nearmetal.fabric.figures import Pairs, latency_table, window_table
from nearmetal.fabric.measure import again_rounds, edge_colouring
from nearmetal.stats.two_way import (
    EXACT_NODES,
    least_absolute_fit,
    median_polish,
    off_diagonal,
    robust_spread,
    two_way_fit,
)
from nearmetal.workloads.rounds import all_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.stats.two_way import TwoWay

MARGIN = 0.1
Named = set[tuple[str, Role, int, int]]


def judge(fabric: MadeUpFabric, nodes: int, seed: int = 1) -> tuple[RetestedSuspect, ...]:
    found = screen(fabric.measure(all_pairs(nodes)), MARGIN)
    if not found.suspects:
        return ()
    plan = again_rounds(nodes, found.suspected_links, found.suspected_nodes, repeats=REPEATS, seed=seed)
    return confirm(found, fabric.measure(plan))


def named(findings: tuple[RetestedSuspect, ...]) -> Named:
    return {(f.suspect.metric, f.suspect.role, f.suspect.a, f.suspect.b) for f in findings if f.named}


# ---- the split


@settings(max_examples=40)
@given(st.integers(3, 12), st.booleans(), st.integers(0, 1000))
def test_the_fit_recovers_the_effects_of_a_clean_table(n: int, symmetric: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(size=n)
    column = row if symmetric else rng.normal(size=n)
    table = 3.0 + row[:, None] + column
    found = least_absolute_fit(table, symmetric=symmetric)
    back = found.overall + found.row[:, None] + found.column + found.residual
    assert np.allclose(off_diagonal(back), off_diagonal(table))
    assert np.median(found.row) == pytest.approx(0.0, abs=1e-12)
    assert np.median(found.column) == pytest.approx(0.0, abs=1e-12)
    assert np.abs(found.residual).max() < 1e-6
    if n > 3:
        assert np.allclose(found.row, row - np.median(row), atol=1e-6)


def test_medians_leave_small_residuals_of_a_large_clean_table() -> None:
    rng = np.random.default_rng(1)
    row, column = rng.normal(0.0, 0.05, (2, EXACT_NODES + 1))
    assert np.abs(two_way_fit(row[:, None] + column).residual).max() < 0.02


@pytest.mark.parametrize("fit", [least_absolute_fit, median_polish])
def test_a_slow_link_among_four_nodes_does_not_implicate_the_other_two(fit: Callable[..., TwoWay]) -> None:
    table = np.zeros((4, 4))
    table[0, 1] = table[1, 0] = 1.0
    assert np.allclose(fit(table, symmetric=True).residual, table)


def test_of_equally_good_fits_the_one_with_the_most_equal_nodes_is_taken() -> None:
    """In whatever order the nodes are; without `TIE` the effects of these add up to one of two sums."""
    table = np.random.default_rng(6).normal(size=(4, 4))
    table += table.T
    fits = [least_absolute_fit(table[np.ix_(order, order)], symmetric=True) for order in permutations(range(4))]
    assert np.ptp([np.abs(fit.row).sum() for fit in fits]) < 1e-6


@pytest.mark.parametrize("fit", [least_absolute_fit, median_polish])
def test_the_fit_keeps_a_symmetric_table_symmetric(fit: Callable[..., TwoWay]) -> None:
    table = np.random.default_rng(1).normal(size=(7, 7))
    found = fit(table + table.T, symmetric=True)
    assert np.array_equal(found.row, found.column)
    assert np.allclose(found.residual, found.residual.T)


@pytest.mark.parametrize("fit", [least_absolute_fit, median_polish])
def test_one_outlier_moves_no_effect(fit: Callable[..., TwoWay]) -> None:
    table = np.zeros((8, 8))
    table[2, 5] = 50.0
    found = fit(table)
    assert np.abs(found.row).max() < 1e-9
    assert np.abs(found.column).max() < 1e-9
    assert found.residual[2, 5] == pytest.approx(50.0)


@pytest.mark.parametrize("fit", [least_absolute_fit, median_polish])
def test_the_diagonal_is_ignored(fit: Callable[..., TwoWay]) -> None:
    table = np.arange(25.0).reshape(5, 5)
    other = table.copy()
    np.fill_diagonal(other, np.nan)
    assert np.array_equal(fit(table).residual, fit(other).residual)
    assert off_diagonal(table)[1].tolist() == [5.0, 7.0, 8.0, 9.0]


def test_the_robust_spread_of_normal_noise_is_its_standard_deviation() -> None:
    values = np.random.default_rng(2).normal(5.0, 3.0, 100_000)
    values[:10_000] = 1e9
    assert robust_spread(values) == pytest.approx(3.0, rel=0.2)


# ---- planted faults

FAULTS = Faults(
    latency_nodes={3: 1.3, 40: 1.5},
    senders={7: 1.5, 12: 1.3},
    receivers={12: 1.3, 99: 2.0},
    latency_links={(5, 60): 1.6, (100, 101): 1.4},
    bandwidth_links={(8, 9): 1.5, (9, 8): 1.5, (70, 20): 1.7},
)
PLANTED: Named = {
    ("latency", "node", 3, -1),
    ("latency", "node", 40, -1),
    ("bandwidth", "send", 7, -1),
    ("bandwidth", "send", 12, -1),
    ("bandwidth", "receive", 12, -1),
    ("bandwidth", "receive", 99, -1),
    ("latency", "link", 5, 60),
    ("latency", "link", 100, 101),
    ("bandwidth", "link", 8, 9),
    ("bandwidth", "link", 9, 8),
    ("bandwidth", "link", 70, 20),
}
ONE_SIDED = {("send", 7), ("receive", 99), ("link", 70)}


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_planted_faults_are_named(seed: int) -> None:
    findings = judge(MadeUpFabric(128, FAULTS, seed=seed), 128)
    assert named(findings) == PLANTED
    lopsided = {(f.suspect.role, f.suspect.a) for f in findings if f.named and f.one_sided}
    assert lopsided == ONE_SIDED


def test_a_finding_reports_how_slow_it_is() -> None:
    findings = judge(MadeUpFabric(64, Faults(senders={7: 1.5}), seed=1), 64)
    (one,) = [f for f in findings if f.named]
    assert one.low < one.ratio < one.high
    assert one.ratio == pytest.approx(1.5, rel=0.05)
    assert one.beyond == one.retests >= REPEATS


@pytest.mark.parametrize("nodes", [4, 5, 6, 7, 8])
def test_few_nodes_suffice_to_find_one_slow_node(nodes: int) -> None:
    slow = nodes - 2
    quiet = Noise(hiccups=0.0)
    fabric = MadeUpFabric(nodes, Faults(latency_nodes={slow: 2.0}), seed=nodes, noise=quiet)
    assert named(judge(fabric, nodes)) == {("latency", "node", slow, -1)}


def test_several_slow_nodes_do_not_mask_each_other() -> None:
    slow = dict.fromkeys(range(24), 1.5)
    fabric = MadeUpFabric(64, Faults(latency_nodes=slow), seed=3)
    assert named(judge(fabric, 64)) == {("latency", "node", node, -1) for node in slow}


@pytest.mark.parametrize("nodes", [4, 6, 8])
def test_very_different_nodes_implicate_no_link(nodes: int) -> None:
    uneven = Noise(nodes=0.2, links=0.01, hiccups=0.0)
    for seed in range(8):
        findings = judge(MadeUpFabric(nodes, Faults(), seed=seed, noise=uneven), nodes)
        assert {role for _, role, _, _ in named(findings)} <= {"node", "send", "receive"}


# ---- false alarms


@pytest.mark.parametrize(("nodes", "fabrics"), [(FEW_NODES, 30), (FEW_NODES + 4, 100)])
def test_healthy_fabrics_rarely_raise_false_alarms(nodes: int, fabrics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether re-tests are whole passes, each with a fit, or single pairs; the sign test would hide a wrong p-value."""
    monkeypatch.setattr(detect, "SIGN_LEVEL", 1.0)
    rough = Noise(nodes=0.02, links=0.05, hiccups=0.05)
    accused = sum(bool(named(judge(MadeUpFabric(nodes, Faults(), seed=s, noise=rough), nodes))) for s in range(fabrics))
    assert accused <= stats.binom.ppf(0.999, fabrics, ALPHA)


@pytest.mark.parametrize(("nodes", "links"), [(4, 0.1), (4, 0.3), (6, 0.3)])
def test_the_noise_of_a_few_nodes_is_named_as_rarely_as_that_of_many(
    nodes: int, links: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without whole passes, 15 to 30 of 100 such fabrics are accused."""
    monkeypatch.setattr(detect, "SIGN_LEVEL", 1.0)
    fabrics = 20
    rough = Noise(links=links)
    accused = sum(bool(named(judge(MadeUpFabric(nodes, Faults(), seed=s, noise=rough), nodes))) for s in range(fabrics))
    assert accused <= stats.binom.ppf(0.99, fabrics, ALPHA)


def test_retests_of_few_nodes_that_are_no_whole_passes_are_judged_pair_by_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = MadeUpFabric(8, Faults(latency_nodes={5: 2.0}), seed=2, noise=Noise(hiccups=0.0))
    found = screen(fabric.measure(all_pairs(8)), MARGIN)
    whole = fabric.measure(again_rounds(8, found.suspected_links, found.suspected_nodes, repeats=REPEATS, seed=1))
    monkeypatch.setattr(measure, "FEW_NODES", 0)
    single = fabric.measure(again_rounds(8, found.suspected_links, found.suspected_nodes, repeats=REPEATS, seed=1))
    assert (whole.first.size, single.first.size) == (REPEATS * 28, REPEATS * 4)
    assert named(confirm(found, whole)) == named(confirm(found, single)) == {("latency", "node", 5, -1)}


def test_a_permanent_slowdown_within_the_margin_is_not_named() -> None:
    for seed in range(10):
        links = {(node, node + 1): 1.085 for node in range(0, 28, 2)}
        assert named(judge(MadeUpFabric(32, Faults(bandwidth_links=links), seed=seed), 32)) == set()


def test_noise_beyond_the_margin_is_not_a_finding() -> None:
    wild = Noise(nodes=0.0, links=0.5, hiccups=0.2)
    accused = sum(bool(named(judge(MadeUpFabric(8, Faults(), seed=seed, noise=wild), 8))) for seed in range(40))
    assert accused <= stats.binom.ppf(0.999, 40, ALPHA)


def test_a_fault_that_has_disappeared_is_not_named() -> None:
    sick, well = (MadeUpFabric(32, faults, seed=4) for faults in (Faults(latency_nodes={5: 2.0}), Faults()))
    found = screen(sick.measure(all_pairs(32)), MARGIN)
    assert found.suspected_nodes == {5}
    plan = again_rounds(32, found.suspected_links, found.suspected_nodes, repeats=REPEATS, seed=1)
    assert named(confirm(found, well.measure(plan))) == set()
    assert named(unconfirmed(found)) == set()


def test_a_launch_that_is_slower_as_a_whole_names_nothing() -> None:
    fabric = MadeUpFabric(32, Faults(latency_nodes={5: 2.0}), seed=5)
    found = screen(fabric.measure(all_pairs(32)), MARGIN)
    plan = again_rounds(32, found.suspected_links, found.suspected_nodes, repeats=REPEATS, seed=1)
    again = fabric.measure(plan)
    slower = Pairs(32, again.first, again.second, again.latency_ns * 3, again.there_ns * 3, again.back_ns * 3)
    assert named(confirm(found, slower)) == named(confirm(found, again)) == {("latency", "node", 5, -1)}


def test_nodes_that_are_off_in_one_launch_implicate_no_link() -> None:
    """Re-tests were set against the nodes' times of the first launch: links were named in half of these fabrics."""
    restarted = Noise(restarted=0.05)
    healthy = (MadeUpFabric(32, Faults(), seed=seed, noise=restarted) for seed in range(6))
    assert [named(judge(fabric, 32)) for fabric in healthy] == [set()] * 6
    slow = MadeUpFabric(32, Faults(bandwidth_links={(8, 9): 1.5}), seed=1, noise=restarted)
    assert named(judge(slow, 32)) == {("bandwidth", "link", 8, 9)}


# ---- two and three nodes


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_slower_direction_is_named_where_nodes_cannot_be(nodes: int) -> None:
    fabric = MadeUpFabric(nodes, Faults(bandwidth_links={(1, 0): 1.5}, latency_nodes={0: 3.0}), seed=6)
    (one,) = judge(fabric, nodes)
    assert one.named
    assert (one.suspect.role, one.suspect.a, one.suspect.b) == ("direction", 1, 0)
    assert judge(MadeUpFabric(nodes, Faults(), seed=6), nodes) == ()


def test_without_bandwidth_only_latency_is_judged() -> None:
    pairs = MadeUpFabric(8, Faults(latency_nodes={2: 2.0}), seed=7).measure(all_pairs(8))
    pings = Pairs(8, pairs.first, pairs.second, pairs.latency_ns, np.empty(0), np.empty(0))
    assert [fit.metric for fit in screen(pings, MARGIN).fits] == ["latency"]
    two = Pairs(2, pairs.first[:1] * 0, pairs.second[:1] * 0 + 1, pairs.latency_ns[:1], np.empty(0), np.empty(0))
    assert screen(two, MARGIN).suspects == ()


def test_only_the_worst_links_of_a_broken_fabric_are_retested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "MOST_LINKS", 0.001)
    links = {(a, b): 1.5 + a / 100 for a, b in pairwise(range(0, 60, 2))}
    found = screen(MadeUpFabric(64, Faults(bandwidth_links=links), seed=8).measure(all_pairs(64)), MARGIN)
    assert sum(one.role == "link" and one.metric == "bandwidth" for one in found.suspects) == 4
    assert found.dropped >= len(links) - 4


# ---- the rounds of the re-tests


@settings(max_examples=60)
@given(st.integers(4, 24), st.data())
def test_retests_cover_everything_often_enough_in_disjoint_pairs(nodes: int, data: st.DataObject) -> None:
    node = st.integers(0, nodes - 1)
    links = data.draw(st.lists(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), max_size=8))
    doubtful = data.draw(st.sets(node, max_size=nodes // 2 - 1))
    plan = again_rounds(nodes, links, doubtful, repeats=3, seed=data.draw(st.integers(0, 9)))
    met: dict[frozenset[int], int] = {}
    for pairs in plan:
        present = [one for pair in pairs for one in pair]
        assert len(present) == len(set(present)) == nodes - nodes % 2
        for pair in pairs:
            met[frozenset(pair)] = met.get(frozenset(pair), 0) + 1
    wanted = {frozenset(pair) for pair in links}
    for link in wanted:
        assert met[link] >= 3
    for one in doubtful:
        trusted = [k for pair, k in met.items() if one in pair and not (pair & doubtful - {one}) and pair not in wanted]
        partners = [other for other in range(nodes) if other not in doubtful and frozenset((one, other)) not in wanted]
        assert sum(trusted) >= (3 if partners else 0)


def test_links_share_rounds_where_they_can() -> None:
    assert edge_colouring(6, [(0, 1), (2, 3), (4, 5), (0, 2)]) == [[(0, 1), (2, 3), (4, 5)], [(0, 2)]]
    assert len(again_rounds(64, [(0, 1), (2, 3)], {9}, repeats=REPEATS, seed=1)) == 2 * REPEATS
    assert len(again_rounds(64, [], {9}, repeats=REPEATS, seed=1)) == REPEATS
    assert again_rounds(8, [], [], repeats=REPEATS, seed=1) == []


# ---- tables


def test_tables_have_each_direction_in_its_place() -> None:
    pairs = Pairs(3, np.array([0]), np.array([2]), np.array([5.0]), np.array([7.0]), np.array([9.0]))
    assert latency_table(pairs)[0, 2] == latency_table(pairs)[2, 0] == 5.0
    assert (window_table(pairs)[0, 2], window_table(pairs)[2, 0]) == (7.0, 9.0)
    assert math.isnan(window_table(pairs)[1, 1])
