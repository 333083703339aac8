"""Made-up fabrics, as a host and as runs on disk, for tests of their readers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from bench.support.made_up_fabric import Faults, MadeUpFabric

from nearmetal.fabric.measure import measure, whole_order
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study
from nearmetal.workloads.fabric import SAMPLES, lines_of
from nearmetal.workloads.fabric_file import FabricFile, FabricHeader
from tests.engine_files import encode_fabric_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nearmetal.hosts.host import Shell
    from nearmetal.study.order import Order

STUDY = """
format = 1
name = "made-up"
baseline = "bridge"
margin = "10 %"
[[path]]
name = "bridge"
[[path]]
name = "guest"
kind = "bridge"
[[workload]]
name = "fabric"
kind = "fabric"
placement = [0, 1, 2, 3, 4, 5, 6, 7]
progress = "blocking"
options = { latency_iterations = 20, bandwidth_bytes = 4096, bandwidth_iterations = 5 }
[trials]
timeout = "200 s"
"""


@dataclass
class MadeUpHost:
    """Carries out orders on a made-up fabric; trials in `broken` fail, those in `torn` leave half a file."""

    faults: Faults = field(default_factory=Faults)
    slower: float = 1.0
    broken: frozenset[int] = frozenset()
    torn: frozenset[int] = frozenset()
    seed: int = 1
    prefix: str = "n"
    window: int = 16
    bandwidth: bool = True
    counters: dict[str, int] = field(default_factory=dict)
    fabrics: dict[int, MadeUpFabric] = field(default_factory=dict)
    kind = "fake"
    label = "made-up figures with a label that is longer than a terminal is wide: they describe no machine at all"
    slots = 1
    closed = False

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        del body
        if order.trial in self.broken:
            return Outcome(TrialStatus.FAILED, reason="the fabric was not measured: n3 died", hint="mend n3")
        data = self._file(order)
        files = {SAMPLES: data[:-30] if order.trial in self.torn else data}
        return Outcome(TrialStatus.VALID, files=files, counters=self.counters)

    def close(self) -> None:
        self.closed = True

    def _file(self, order: Order) -> bytes:
        nodes = len(order.workload.placement)
        lines = [line.split() for line in lines_of(order.workload)]
        plan = [tuple((int(a), int(b)) for a, b in (pair.split("-") for pair in pairs)) for _, *pairs in lines]
        fabric = self.fabrics.setdefault(nodes, MadeUpFabric(nodes, self.faults, seed=self.seed))
        found = fabric.measure([tuple(sorted(pairs)) for pairs in plan])
        phases: dict[str, int] = {}
        for phase, *_ in lines:
            phases[phase] = phases.get(phase, 0) + 1
        processors = tuple(f"{self.prefix}{node}" for node in range(nodes))
        sizes = (8, 3, 0, 4096, self.window, 3 * self.bandwidth, 0)
        machine = ("CLOCK", (1,) * nodes, "4", "x", processors)
        header = FabricHeader("nmfabric", nodes, tuple(phases.items()), *sizes, *machine)
        rounds = np.repeat(np.arange(len(plan)), [len(pairs) for pairs in plan])
        columns = (found.latency_ns, found.there_ns, found.back_ns)
        samples = [(self.slower * np.repeat(column[:, None], 3, axis=1)).astype(np.int64) for column in columns]
        samples[1:] = [one if self.bandwidth else one[:, :0] for one in samples[1:]]
        return encode_fabric_file(FabricFile(header, rounds, found.first, found.second, *samples))


def make_fabric(root: Path, host: MadeUpHost) -> Path:
    """Measure the study above on a made-up host; return the run directory."""
    study = parse_study(STUDY, root.name)
    info = RunInfo(study.name, digest(STUDY), host.kind, host.label, "0", "2026-01-01T00:00:00+00:00")
    with RunDir.create(root, info, STUDY, of_fabric=True) as run:
        measure(whole_order(study, "", 0, bisection=True), study.margin, host, run, lambda _: None)
    return root
