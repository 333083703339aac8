"""Rounds of disjoint pairs: every node meets every other one in the fewest rounds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearmetal.workloads import rounds


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 7, 8, 17, 64, 129])
def test_every_pair_meets_once_and_no_node_appears_twice_in_a_round(nodes: int) -> None:
    plan = rounds.all_pairs(nodes)
    assert len(plan) == (nodes - 1 if nodes % 2 == 0 else nodes)
    for pairs in plan:
        present = [node for pair in pairs for node in pair]
        assert len(present) == len(set(present)) == nodes - nodes % 2
    met = Counter(tuple(sorted(pair)) for pairs in plan for pair in pairs)
    assert set(met) == set(combinations(range(nodes), 2))
    assert set(met.values()) == {1}


def test_1024_nodes_take_1023_rounds() -> None:
    plan = rounds.all_pairs(1024)
    assert len(plan) == 1023
    assert sum(map(len, plan)) == 1024 * 1023 // 2


@given(st.integers(2, 60))
def test_each_node_starts_about_half_of_its_pairs(nodes: int) -> None:
    started = Counter(a for pairs in rounds.all_pairs(nodes) for a, _ in pairs)
    assert all(abs(started[node] - (nodes - 1) / 2) <= 1 for node in range(nodes))


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_the_pairs_across_the_cut_are_measured_together_and_alone(nodes: int) -> None:
    plan = rounds.whole(nodes, bisection=True)
    together = [pairs for phase, pairs in plan if phase == rounds.CUT]
    alone = [pair for phase, pairs in plan if phase == rounds.ALONE for pair in pairs]
    assert together == [tuple(alone)] * rounds.CUT_TIMES
    assert all(a < nodes // 2 <= b for a, b in alone)
    assert len(alone) == nodes // 2
    assert [one for one in plan if one[0] == rounds.ALL] == rounds.whole(nodes, bisection=False)


def test_rounds_are_written_in_the_engines_format() -> None:
    lines = rounds.to_lines(rounds.whole(3, bisection=True))
    assert lines == ["all 1-2", "all 2-0", "all 0-1", "cut 0-1", "cut 0-1", "cut 0-1", "alone 0-1"]
    assert rounds.least_rounds_of_a_node(lines, 3) == 2
