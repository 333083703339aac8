"""Rounds and detection on made-up fabrics of 4,096 nodes with planted faults, the whole way but for the network.

Goals: N - 1 rounds of disjoint pairs; of what is planted at least 99 % named; of what is healthy at most one thing
named for each 1,000 healthy nodes. Planted are, for each 64 nodes, one node with slow messages, one that only sends
slowly, one that only receives slowly, one that does both, two slow links of each metric and two links slow in one
direction. Faults are 1.25 to 1.5 times, noise is 2 % a measurement with 0.5 % hiccups, nodes differ by 1 %, launches by
3 %. A healthy fabric of the same size is judged beside it. Takes about a minute of processor time and 2 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import TYPE_CHECKING

from nearmetal.fabric.detect import REPEATS, Role, confirm, screen
from nearmetal.fabric.measure import again_rounds
from nearmetal.workloads.rounds import all_pairs
from support.goals import ended, short_of
from support.made_up_fabric import Faults, MadeUpFabric

if TYPE_CHECKING:
    from nearmetal.workloads.rounds import Round

MARGIN = 0.1
LEAST_RECALL, MOST_FALSE_PER_1000 = 0.99, 1.0
Named = set[tuple[str, Role, int, int]]


def draw_links(nodes: int, count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return different links, the lower node first."""
    links: set[tuple[int, int]] = set()
    while len(links) < count:
        a, b = sorted(rng.sample(range(nodes), 2))
        links.add((a, b))
    return sorted(links)


def plant(nodes: int, seed: int) -> tuple[Faults, Named]:
    """Return faults and what a perfect judge would name."""
    rng = random.Random(seed)
    each = max(1, nodes // 64)
    sick = rng.sample(range(nodes), 4 * each)
    slow, sends, receives, both = (sick[k * each : (k + 1) * each] for k in range(4))
    pings, windows, ways = (draw_links(nodes, 2 * each, rng) for _ in range(3))
    two_way = [pair for a, b in windows for pair in ((a, b), (b, a))]
    faults = Faults(
        latency_nodes=dict.fromkeys(slow, 1.25),
        senders=dict.fromkeys([*sends, *both], 1.3),
        receivers=dict.fromkeys([*receives, *both], 1.3),
        latency_links=dict.fromkeys(pings, 1.5),
        bandwidth_links=dict.fromkeys([*ways, *two_way], 1.5),
    )
    planted: Named = {("latency", "node", node, -1) for node in slow}
    planted |= {("bandwidth", "send", node, -1) for node in faults.senders}
    planted |= {("bandwidth", "receive", node, -1) for node in faults.receivers}
    planted |= {("latency", "link", a, b) for a, b in pings}
    planted |= {("bandwidth", "link", a, b) for a, b in faults.bandwidth_links}
    return faults, planted


def judge(nodes: int, faults: Faults, seed: int, plan: list[Round]) -> tuple[Named, int, int]:
    """Return what is named, how many suspects there were, and the rounds of their re-tests."""
    fabric = MadeUpFabric(nodes, faults, seed=seed)
    found = screen(fabric.measure(plan), MARGIN)
    again = again_rounds(nodes, found.suspected_links, found.suspected_nodes, repeats=REPEATS, seed=seed)
    findings = confirm(found, fabric.measure(again)) if again else ()
    named = {(f.suspect.metric, f.suspect.role, f.suspect.a, f.suspect.b) for f in findings if f.named}
    return named, len(found.suspects), len(again)


def check_rounds(nodes: int, plan: list[Round]) -> bool:
    """Return whether the rounds are as few as can be, disjoint, and hold each pair once."""
    met = {a * nodes + b if a < b else b * nodes + a for pairs in plan for a, b in pairs}
    disjoint = all(len({node for pair in pairs for node in pair}) == nodes for pairs in plan)
    return disjoint and len(plan) == nodes - 1 and len(met) == nodes * (nodes - 1) // 2


def main() -> int:
    """Print one JSON object for each case; return the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    plan = all_pairs(asked.nodes)
    missed = [] if check_rounds(asked.nodes, plan) else ["rounds: not every pair meets once in N - 1 of them"]
    for seed in range(asked.seeds):
        faults, planted = plant(asked.nodes, seed)
        for case, given, wanted in (("planted", faults, planted), ("healthy", Faults(), set())):
            begin = time.process_time()
            named, suspects, rounds = judge(asked.nodes, given, seed, plan)
            sick = {node for _, role, node, _ in wanted if role != "link"}
            recall = len(named & wanted) / len(wanted) if wanted else 1.0
            false_per_1000 = 1000 * len(named - wanted) / (asked.nodes - len(sick))
            missed += short_of(f"{case}: share named", recall, LEAST_RECALL, least=True)
            missed += short_of(f"{case}: named of 1,000 healthy", false_per_1000, MOST_FALSE_PER_1000)
            figures = {
                "case": case,
                "nodes": asked.nodes,
                "seed": seed,
                "rounds": len(plan),
                "planted": len(wanted),
                "suspects": suspects,
                "retest_rounds": rounds,
                "recall": recall,
                "false_per_1000_healthy_nodes": round(false_per_1000, 3),
                "cpu_s": round(time.process_time() - begin, 1),
            }
            print(json.dumps(figures), flush=True)
    return ended(missed)


if __name__ == "__main__":
    sys.exit(main())
