"""Who works with whom when a whole fabric is measured: rounds of disjoint pairs. Pure; the only place that decides it.

All pairs of N nodes fit in N - 1 rounds for even N and in N for odd N, where one node rests in each: the circle
method, a 1-factorization of the complete graph (Kirkman, "On a problem in combinations", Cambridge and Dublin
Mathematical Journal 2, 1847). Fewer is impossible: a node takes part in one pair a round and has N - 1 partners.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

Pair = tuple[int, int]
"""Two nodes; the first starts the ping-pong and sends first."""
Round = tuple[Pair, ...]

ALL, CUT, ALONE, AGAIN = "all", "cut", "alone", "again"
"""The words of the phases: all pairs; all pairs across a cut at the same time; each of them alone; re-tests."""
CUT_TIMES = 3
"""How often the cut is measured with all its pairs at the same time."""


def pair_of(a: int, b: int) -> Pair:
    """Return two nodes in the order in which they work: each node starts about half of its pairs."""
    low, high = sorted((a, b))
    return (low, high) if (low + high) % 2 else (high, low)


def all_pairs(nodes: int) -> list[Round]:
    """Return rounds in which each of `nodes` >= 2 nodes meets each other exactly once."""
    turning = nodes - 1 + nodes % 2
    rounds = []
    for turn in range(turning):
        pairs = [pair_of((turn + k) % turning, (turn - k) % turning) for k in range(1, (turning + 1) // 2)]
        if nodes % 2 == 0:
            pairs.append(pair_of(nodes - 1, turn))
        rounds.append(tuple(pairs))
    return rounds


def whole(nodes: int, *, bisection: bool) -> list[tuple[str, Round]]:
    """Return what one launch measures of a fabric: all pairs, then with `bisection` the cut together and alone."""
    plan = [(ALL, one) for one in all_pairs(nodes)]
    if bisection:
        half = nodes // 2
        cut = tuple((node, node + half) for node in range(half))
        plan += [(CUT, cut)] * CUT_TIMES + [(ALONE, (pair,)) for pair in cut]
    return plan


def to_lines(plan: Iterable[tuple[str, Round]]) -> list[str]:
    """Return rounds as the engine reads them, a line each, such as `all 0-5 4-1 3-2`."""
    return [" ".join([phase, *(f"{a}-{b}" for a, b in pairs)]) for phase, pairs in plan]


def least_rounds_of_a_node(lines: Sequence[str], nodes: int) -> int:
    """Return in how many rounds the node that works least takes part."""
    busy = Counter(int(node) for line in lines for pair in line.split()[1:] for node in pair.split("-"))
    return min(busy[node] for node in range(nodes))
