"""A host with exact answers and no clock: whole studies run in a blink and always give the same bytes.

The round trip on a path is `base_ns` plus `ns_per_kib` for each KiB, spread by a seeded pattern with a tail. Options of
the study's host: `base_ns.<path kind>`, `fail.<path label>` (a reason with which each of its trials fails) and
`times.<knob>=<value>` (a factor for trials with that value).
"""

import json
import math
import random
from collections.abc import Callable, Mapping
from typing import TypedDict

from nearmetal.hosts.host import Shell
from nearmetal.study.order import Order, Outcome, Proof, Scalar, TrialStatus, numbered

OPTIONS = {
    "base_ns.PATH": "round trip on this kind of path, in ns",
    "times.KNOB=VALUE": "factor of that round trip under this value of a knob; what bytes add stays",
    "fail.PATH": "makes every trial on the path of this name fail, with this reason",
}
"""What the reference page says of them (scripts/reference)."""
BASE_NS = {"shm": 1_000, "veth": 10_000, "bridge": 11_000, "macvlan": 10_100, "tap": 24_000}
NS_PER_KIB = 300
FILE = "fake.json"
"""The name of its one file in an outcome: JSON, `{"cells": [{"message_bytes": ..., "ns": [[...], ...]}]}`."""

_TAIL_EVERY = 50


class _Cell(TypedDict):
    operation: str
    message_bytes: int
    warmup: int
    ns: list[list[int]]


class FakeHost:
    """Carries nothing out: answers from a formula, seeded by the order alone."""

    kind = "fake"
    label = "the fake host, computed by a formula: they describe no machine"
    slots = 1

    def __init__(self, options: Mapping[str, Scalar]) -> None:
        self._options = dict(options)

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Return the outcome that the formula gives; the body is not needed."""
        del body
        reason = self._options.get(f"fail.{order.path.label}")
        if reason:
            return Outcome(TrialStatus.FAILED, reason=str(reason), hint="the study asked the fake host to fail")
        base_ns = int(self._options.get(f"base_ns.{order.path.kind}", BASE_NS.get(order.path.kind, 20_000)))
        factors = [self._options.get(f"times.{knob}={value}", 1.0) for knob, value in order.knobs.items()]
        factor = math.prod(map(float, factors))
        trials = [
            [_cell(one, base_ns * factor, size) for size in one.workload.numbers("sizes") or [0]]
            for one in order.of_launch
        ]
        messages = sum(len(cell["ns"][0]) for cells in trials for cell in cells)
        return Outcome(
            TrialStatus.VALID,
            launch_argv=("fake", order.path.kind, order.workload.label),
            facts={"cpu.model": "fake", "kernel.release": "0", "mpi.flavour": order.mpi, "mpi.version": "0"},
            counters={"sched.context_switches": 2 * messages},
            proof=Proof({"n0.eth0": 2 * messages, "n1.eth0": 2 * messages}, {}),
            files={numbered(FILE, at): json.dumps({"cells": cells}).encode() for at, cells in enumerate(trials)},
        )

    def close(self) -> None:
        """Nothing to do."""


def _cell(order: Order, base_ns: float, message_bytes: int) -> _Cell:
    """Return one cell: a launch effect of up to 1 %, jitter of up to 5 %, every 50th iteration four times as long."""
    knobs = "".join(f" {knob}={value}" for knob, value in order.knobs.items())
    drawn = random.Random(f"{order.seed} {message_bytes}{knobs}")
    warmup, iterations = order.workload.number("warmup"), order.workload.number("iterations")
    typical_ns = (base_ns + NS_PER_KIB * message_bytes / 1024) * (1 + 0.01 * drawn.random())
    ranks = len(order.workload.placement)
    ns = [
        [
            round(typical_ns * (1 + 0.05 * drawn.random()) * (4 if iteration % _TAIL_EVERY == 0 else 1))
            for iteration in range(warmup + iterations)
        ]
        for _ in range(ranks)
    ]
    return {
        "operation": str(order.workload.options.get("operation", order.workload.label)),
        "message_bytes": message_bytes,
        "warmup": warmup,
        "ns": ns,
    }
