"""The rounds of the re-tests: each suspect several times, all other nodes at work beside it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from nearmetal.workloads.rounds import Pair, Round, pair_of


def again_rounds(
    nodes: int, links: Iterable[Pair], suspected: Iterable[int], *, repeats: int, seed: int
) -> list[Round]:
    """Return rounds in which each link is measured `repeats` times and each suspected node as often.

    A suspected node meets a partner above suspicion, drawn anew each time. Every round is filled up with pairs of the
    remaining nodes, drawn at random: they keep the load of the screen and are the controls. One repetition of all comes
    before the next, so that a short disturbance meets few re-tests of one suspect.
    """
    drawn = random.Random(seed)
    wanted = sorted({(min(pair), max(pair)) for pair in links})
    doubtful = sorted(set(suspected))
    coloured = edge_colouring(nodes, wanted)
    rounds: list[Round] = []
    for _ in range(repeats):
        once = [list(pairs) for pairs in coloured]
        _add_nodes(once, nodes, doubtful, frozenset(wanted), drawn)
        rounds += [_filled(pairs, nodes, frozenset(doubtful), drawn) for pairs in once]
    return rounds


def edge_colouring(nodes: int, links: Sequence[Pair]) -> list[list[Pair]]:
    """Return the links in rounds of disjoint pairs, each in the first round where both its nodes are free.

    At most 2 d - 1 rounds when no node has more than d links, where d are needed: the greedy bound.
    """
    taken: list[set[int]] = [set() for _ in range(nodes)]
    rounds: list[list[Pair]] = []
    for a, b in links:
        number = 0
        while number in taken[a] or number in taken[b]:
            number += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append((a, b))
        taken[a].add(number)
        taken[b].add(number)
    return rounds


def _add_nodes(
    rounds: list[list[Pair]], nodes: int, doubtful: Sequence[int], links: frozenset[Pair], drawn: random.Random
) -> None:
    """Put each doubtful node into the first round where it and a partner above suspicion are free."""
    partners = [node for node in range(nodes) if node not in set(doubtful)]
    busy = [{node for pair in pairs for node in pair} for pairs in rounds]
    for node in doubtful:
        drawn.shuffle(partners)
        usable = [other for other in partners if (min(node, other), max(node, other)) not in links]
        if not usable:
            continue
        for number in range(len(rounds) + 1):
            if number == len(rounds):
                rounds.append([])
                busy.append(set())
            partner = next((other for other in usable if other not in busy[number]), None)
            if node not in busy[number] and partner is not None:
                rounds[number].append((node, partner))
                busy[number] |= {node, partner}
                break


def _filled(pairs: Sequence[Pair], nodes: int, doubtful: frozenset[int], drawn: random.Random) -> Round:
    """Return the round with all other nodes paired at random, those above suspicion among themselves first."""
    busy = {node for pair in pairs for node in pair}
    free = [node for node in range(nodes) if node not in busy]
    drawn.shuffle(free)
    free.sort(key=lambda node: node in doubtful)
    fillers = zip(free[::2], free[1::2], strict=False)
    return tuple(pair_of(a, b) for a, b in (*pairs, *fillers))
