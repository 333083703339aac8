"""Figures and judgements of a fabric on tables without noise, where each is known exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from nearmetal.fabric.against import _compare as compare_metric
from nearmetal.fabric.detect import (
    ALPHA,
    SIGN_LEVEL,
    RetestedSuspect,
    Screen,
    Suspect,
    confirm,
    screen,
    unconfirmed,
)
from nearmetal.fabric.figures import Pairs, bisection_of, pairs_of
from nearmetal.fabric.survey import METRICS
from nearmetal.stats.interval import FloatArray
from nearmetal.workloads.fabric_file import FabricFile, FabricHeader, read_fabric_file
from nearmetal.workloads.rounds import ALL, ALONE, CUT, all_pairs, whole
from tests.unit.test_decode import fabric_of_three

MARGIN = 0.1


def pairs(nodes: int, ends: list[tuple[int, int]], times: dict[tuple[int, int], float], round_trip: float) -> Pairs:
    """Return pairs whose windows take 1000 ns, or what `times` says of a direction."""
    first, second = np.array(ends, np.int64).T
    there, back = ([times.get(way, 1000.0) for way in ways] for ways in (ends, [(b, a) for a, b in ends]))
    return Pairs(nodes, first, second, np.full(len(ends), round_trip), np.array(there), np.array(back))


def test_the_slower_of_two_directions_by_its_retests() -> None:
    found = screen(pairs(2, [(1, 0)], {(1, 0): 1500.0}, 50.0), MARGIN)
    (one,) = found.suspects
    assert one == Suspect("bandwidth", "direction", 1, 0, pytest.approx(math.log(1.5)))
    assert screen(pairs(2, [(1, 0)], {(0, 1): 1500.0}, 50.0), MARGIN).suspects[0].a == 0
    assert screen(pairs(2, [(1, 0)], {(0, 1): 1099.0}, 50.0), MARGIN).suspects == ()
    forth = pairs(2, [(1, 0)] * 4, {(1, 0): 1500.0}, 50.0)
    again = Pairs(
        *(2, np.array([1, 1, 1, 1, 0, 0]), np.array([0, 0, 0, 0, 1, 1]), np.full(6, 50.0)),
        np.array([*forth.there_ns[:3], 1050.0, 1000.0, 1000.0]),
        np.array([*forth.back_ns, 2000.0, 1400.0]),
    )
    (tested,) = confirm(found, again)
    assert (tested.retests, tested.beyond, tested.one_sided) == (6, 5, True)
    assert (tested.ratio, tested.low, tested.high) == pytest.approx((1.5, 1.05, 2.0))
    assert tested.p_value == tested.p_sign == pytest.approx(7 / 64), "5 or 6 of 6 coins"
    assert not tested.named


def test_a_suspect_without_a_retest_is_not_named() -> None:
    """Of a lost launch, or where every partner is suspected as well."""
    for one in (Suspect("bandwidth", "direction", 1, 0, 0.5), Suspect("latency", "node", 5, -1, 0.5)):
        nodes = 3 if one.role == "direction" else 16
        ends = [pair for turn in all_pairs(nodes) for pair in turn]
        fits = screen(pairs(nodes, ends, {}, 50.0), MARGIN).fits
        others = [pair for pair in ends if one.a not in pair]
        (tested,) = confirm(Screen(nodes, MARGIN, fits, (one,)), pairs(nodes, others, {}, 50.0))
        assert (tested.retests, tested.beyond, tested.ratio, tested.p_value, tested.named) == (0, 0, 1.0, 1.0, False)
        assert unconfirmed(Screen(nodes, MARGIN, fits, (one,))) == (RetestedSuspect(one),)


@pytest.mark.parametrize(("nodes", "links", "sends"), [(6, 180, 50), (16, 2080, 2080)])
def test_the_chance_of_a_suspect_is_that_of_all_above_suspicion(nodes: int, links: int, sends: int) -> None:
    """Ten times the directions between nodes above suspicion that are no suspected link, or the nodes in whole passes.

    Holm's factor of the smallest of three is 3.
    """
    times = {(2, other): 1500.0 for other in range(nodes)} | {(4, 5): 3000.0, (5, 4): 3000.0}
    ends = [pair for turn in all_pairs(nodes) for pair in turn]
    found = screen(pairs(nodes, ends, times, 50.0), MARGIN)
    tested = {(one.suspect.role, one.suspect.a): one for one in confirm(found, pairs(nodes, ends * 10, times, 50.0))}
    send, link = tested["send", 2], tested["link", 4]
    assert (send.p_value, link.p_value) == pytest.approx(
        ((1 + sends) ** -float(send.retests), 3 * (1 + links) ** -10.0)
        if nodes == 6
        else (3 * (1 + sends) ** -float(send.retests), 2 * (1 + links) ** -10.0),
        rel=1e-6,
        abs=0,
    )


@pytest.mark.parametrize(("nodes", "controls"), [(6, 140), (16, 1190)])
def test_a_ping_counts_once_whichever_end_it_is_seen_from(nodes: int, controls: int) -> None:
    ends = [pair for turn in all_pairs(nodes) for pair in turn]
    slow = np.array([100.0 if set(pair) == {1, 3} else 50.0 for pair in ends])
    made = replace(pairs(nodes, ends, {}, 50.0), latency_ns=slow)
    again = replace(pairs(nodes, ends * 10, {}, 50.0), latency_ns=np.tile(slow, 10))
    (one,) = confirm(screen(made, MARGIN), again)
    assert (one.suspect.role, one.suspect.a, one.suspect.b, one.one_sided) == ("link", 1, 3, False)
    assert (one.retests, one.beyond, one.ratio) == (10, 10, pytest.approx(2.0))
    assert one.p_value == pytest.approx((1 + controls) ** -10.0, rel=1e-6, abs=0)


def test_retests_without_a_control_show_a_ratio_and_name_nothing() -> None:
    """Nothing says how far that launch as a whole is off, nor how often a healthy pair exceeds the limit."""
    ends = [pair for turn in all_pairs(16) for pair in turn]
    slow = np.array([100.0 if 5 in pair else 50.0 for pair in ends])
    found = screen(replace(pairs(16, ends, {}, 50.0), latency_ns=slow), MARGIN)
    again = pairs(16, [pair for pair in ends if 5 in pair], {}, 100.0)
    (one,) = confirm(found, again)
    assert (one.suspect.role, one.suspect.a, one.retests, one.beyond) == ("node", 5, 15, 15)
    assert (one.ratio, one.p_value, one.named) == (pytest.approx(2.0), 1.0, False)


def test_what_is_named_is_beyond_both_levels() -> None:
    one = RetestedSuspect(Suspect("latency", "node", 5, -1, 0.5), p_value=ALPHA, p_sign=SIGN_LEVEL)
    assert one.named
    assert not replace(one, p_value=ALPHA * 1.001).named
    assert not replace(one, p_sign=SIGN_LEVEL * 1.001).named


@pytest.mark.parametrize("nodes", [6, 16])
def test_a_slow_sender_and_a_slow_link_by_exact_ratios(nodes: int) -> None:
    """By whole passes, and pair by pair: both directions of the link, of which one is slower."""
    times = {(2, other): 1500.0 for other in range(nodes)} | {(4, 5): 3000.0, (5, 4): 1500.0}
    ends = [pair for turn in all_pairs(nodes) for pair in turn]
    found = screen(pairs(nodes, ends, times, 50.0), MARGIN)
    assert {(one.role, one.a, one.b) for one in found.suspects} == {("send", 2, -1), ("link", 4, 5), ("link", 5, 4)}
    assert (found.suspected_nodes, found.suspected_links) == ({2}, {(4, 5)})
    tested = {(one.suspect.role, one.suspect.a): one for one in confirm(found, pairs(nodes, ends * 10, times, 50.0))}
    for key, ratio, one_sided in ((("send", 2), 1.5, True), (("link", 4), 3.0, True), (("link", 5), 1.5, False)):
        one = tested[key]
        assert (one.ratio, one.low, one.high) == pytest.approx((ratio,) * 3)
        assert (one.beyond == one.retests, one.one_sided, one.named) == (True, one_sided, True)
    assert tested["link", 4].retests == 10
    assert tested["send", 2].retests == 10 * (1 if nodes == 6 else nodes - 1)


def test_which_suspects_are_two_directions_of_one() -> None:
    send, receive = Suspect("bandwidth", "send", 1, -1, 0.5), Suspect("bandwidth", "receive", 1, -1, 0.5)
    link, back = Suspect("bandwidth", "link", 1, 2, 0.5), Suspect("bandwidth", "link", 2, 1, 0.5)
    assert send.is_reverse_of(receive)
    assert link.is_reverse_of(back)
    for one, other in (
        (send, send),
        (send, replace(receive, a=2)),
        (send, replace(receive, metric="latency")),
        (link, link),
        (link, replace(back, a=3)),
        (link, replace(back, role="direction")),
    ):
        assert not one.is_reverse_of(other)


def test_only_the_worst_links_and_each_of_them_are_suspected() -> None:
    """One sixteenth of the table: of 16 nodes 16 links."""
    ends = [pair for turn in all_pairs(16) for pair in turn]
    slow = {(a, (a + shift) % 16): 2000.0 + 100 * a for shift in (1,) for a in range(16)} | {(0, 8): 1500.0}
    found = screen(pairs(16, ends, slow, 50.0), MARGIN)
    links = [one for one in found.suspects if one.role == "link"]
    assert [(one.a, one.b) for one in links] == [(a, (a + 1) % 16) for a in reversed(range(16))]
    assert found.dropped == 1


# ---- figures


def test_a_pair_is_the_median_of_its_iterations_without_warm_up() -> None:
    file = read_fabric_file(fabric_of_three(3))
    every = pairs_of(file, ALL)
    assert (every.nodes, every.first.size) == (3, 3)
    assert every.latency_ns.tolist() == [1002, 2002, 3002]
    assert every.there_ns.tolist() == [2002, 4002, 6002]
    assert every.back_ns.tolist() == [4004, 8004, 12004]
    assert pairs_of(file, ALONE).latency_ns.tolist() == [7002]
    silent = pairs_of(read_fabric_file(fabric_of_three(0)), ALL)
    assert not silent.has_bandwidth
    assert silent.latency_ns.tolist() == [1002, 2002, 3002]


def cut_of_four() -> FabricFile:
    """Return two pairs across the cut: windows of 1000 and 2000 ns together, of the latter once 9000; 500 ns alone."""
    plan = whole(4, bisection=True)
    rows = sorted((number, a, b) for number, (_, pairs) in enumerate(plan) for a, b in pairs)
    header = FabricHeader(
        *("nmfabric", 4, ((ALL, 3), (CUT, 3), (ALONE, 2)), 8, 1, 0, 1000, 2, 1, 0, "clock", (20,) * 4),
        *("4.0", "MPI", ("a", "b", "c", "d")),
    )
    there = [{CUT: 1000 + 1000 * a, ALONE: 500}.get(plan[number][0], 7) for number, a, _ in rows]
    there[rows.index((4, 1, 3))] = 9000
    column = np.array(there)[:, None]
    return FabricFile(header, *np.array(rows).T, 0 * column, column, 2 * column)


def test_the_bisection_is_the_sum_of_rates_by_each_pairs_median_window() -> None:
    """A window is 2,000 B: in 1,000 ns that is 2,000 MB/s."""
    found = bisection_of(cut_of_four())
    assert found is not None
    assert found.pairs == 2
    assert (found.there_together, found.there_alone) == pytest.approx((2000 + 1000, 2 * 4000))
    assert (found.back_together, found.back_alone) == pytest.approx((1500, 4000))
    assert pairs_of(cut_of_four(), ALL).latency_ns.tolist() == [1.0] * 6, "0 is what no clock can distinguish"
    assert bisection_of(read_fabric_file(fabric_of_three(0))) is None


@pytest.mark.parametrize(
    ("warmup", "windows_ns", "rate"),
    [
        (0, [4000] * 2 + [800] * 6, 500),
        (2, [4000] * 2 + [800] * 6, 500),
        (1, [4800, 3200] + [800] * 6, 625),
        (0, [16000] + [800] * 7, 125),
    ],
    ids=["measured", "only warm-up", "one of each", "none"],
)
def test_a_pair_that_gets_less_of_a_shared_link_does_not_count_as_it_is_when_others_have_finished(
    warmup: int, windows_ns: list[int], rate: float
) -> None:
    """One pair has 2,000 MB/s until it has finished, after 8 us; from then on the other has 2,500."""
    made = cut_of_four()
    header = replace(made.header, bandwidth_warmup=warmup, bandwidth_iterations=8 - warmup)
    windows = np.array([windows_ns if a == 1 else [1000] * 8 for a in made.first.tolist()])
    found = bisection_of(replace(made, header=header, there_ns=windows, back_ns=windows))
    assert found is not None
    assert (found.there_together, found.back_together) == pytest.approx((2000 + rate, 2000 + rate))
    assert found.there_alone == pytest.approx(2000 + 2500)


def test_fabrics_that_are_alike_rarely_have_a_ratio_of_nodes_that_excludes_one() -> None:
    """Nodes share their pairs: taken for independent, 10 of 50 such intervals excluded 1, and those of one pair all."""

    def fabric(nodes: int, rng: np.random.Generator) -> FloatArray:
        """Return latencies of pairs and nodes that differ from launch to launch."""
        own, table = rng.normal(0.0, 0.05, nodes), np.full((nodes, nodes), np.nan)
        for a, b in combinations(range(nodes), 2):
            table[a, b] = table[b, a] = 25.0 * math.exp(own[a] + own[b] + rng.normal(0.0, 0.02))
        return table

    def excludes(nodes: int, seed: int) -> bool:
        rng, names = np.random.default_rng(seed), [f"n{node}" for node in range(nodes)]
        found = compare_metric(METRICS[0], MARGIN, (names, names), (fabric(nodes, rng), fabric(nodes, rng)), 1).estimate
        return found.interval is not None and not found.interval.low <= 1.0 <= found.interval.high

    assert sum(excludes(8, seed) for seed in range(50)) <= 3
    assert not any(excludes(2, seed) for seed in range(5))
