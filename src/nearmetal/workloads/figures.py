"""The figure that people expect of each operation of a foreign program: its name and its unit.

Stored are durations for ever (see `rates`); this table says which figure a stored duration stands for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.workloads.rates import UNITS, Unit, unit_named

if TYPE_CHECKING:
    from nearmetal.study.order import WorkloadOrder

IMPORTED = "imported"
"""The kind of workload whose samples were adopted from other programs' output."""
SUITES = ("omb", "imb", "mpi4py")
"""The kinds of workload that print means of the operations of nearmetal's own engine."""
WITH_OPERATIONS = ("engine", *SUITES)
"""The kinds of workload whose operations are those of nearmetal's own engine, with its figures."""

_PAIR = re.compile(r"\.(?:pair\d+|total)$")


@dataclass(frozen=True, slots=True)
class Figure:
    """How a stored duration is shown: `per` is by how much it is divided first (2: half a round trip)."""

    name: str
    unit: Unit
    per: int = 1

    @property
    def factor(self) -> float:
        """Return the figure of one ns, for `factor * ns` or, of a rate, `factor / ns`."""
        return self.unit.scale if self.unit.rate else 1.0 / (self.unit.scale * self.per)


_FIGURES = {
    "fabric.latency": Figure("latency of pairs (half a round trip)", UNITS["us"], per=2),
    "fabric.bandwidth": Figure("bandwidth of pairs", UNITS["MB/s"]),
    "tcp_stream": Figure("bandwidth", UNITS["MB/s"]),
    "udp_stream": Figure("bandwidth that arrived", UNITS["MB/s"]),
    "tcp_round_trip": Figure("latency (half a round trip)", UNITS["us"], per=2),
    "udp_round_trip": Figure("latency (half a round trip)", UNITS["us"], per=2),
    "round_trip": Figure("latency (half a round trip)", UNITS["us"], per=2),
    "tcp_one_way": Figure("latency (half a round trip)", UNITS["us"]),
    "udp_one_way": Figure("latency (half a round trip)", UNITS["us"]),
    "ib_write_lat": Figure("latency (half a round trip)", UNITS["us"]),
    "ib_send_lat": Figure("latency (half a round trip)", UNITS["us"]),
    "ib_read_lat": Figure("latency (whole round trip)", UNITS["us"]),
    "ib_atomic_lat": Figure("latency (whole round trip)", UNITS["us"]),
    "ib_write_bw": Figure("bandwidth", UNITS["MB/s"]),
    "ib_send_bw": Figure("bandwidth", UNITS["MB/s"]),
    "ib_read_bw": Figure("bandwidth", UNITS["MB/s"]),
    "ib_atomic_bw": Figure("bandwidth", UNITS["MB/s"]),
}


def figure_of(workload: WorkloadOrder, operation: str) -> Figure | None:
    """Return how a cell of a foreign program is shown; None for operations that this table does not hold.

    A command names its unit itself, and an imported figure without an operation of its own carries it in its name,
    such as `MPIFFT_Gflops [Gflop/s]`.
    """
    if workload.kind == "command":
        unit = unit_named(str(workload.options.get("unit", "s")))
        return Figure("rate" if unit.rate else "time", unit)
    match = re.search(r" \[(.+)\]$", operation)
    if match and match[1] in UNITS:
        return Figure("rate" if UNITS[match[1]].rate else "time", UNITS[match[1]])
    return _FIGURES.get(_PAIR.sub("", operation))
