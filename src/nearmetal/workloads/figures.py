"""The figure that people expect of each operation of a foreign program: its name and its unit.

Stored are durations for ever (see `rates`); the file of each program says which figure a stored duration stands for.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from nearmetal.workloads.rates import BANDWIDTH, LATENCY, UNITS, Figure, unit_named

if TYPE_CHECKING:
    from nearmetal.study.order import WorkloadOrder

IMPORTED = "imported"
"""The kind of workload whose samples were adopted from other programs' output."""
SUITES = ("omb", "imb", "mpi4py")
"""The kinds of workload that print means of the operations of nearmetal's own engine."""
WITH_OPERATIONS = ("engine", *SUITES)
"""The kinds of workload whose operations are those of nearmetal's own engine, with its figures."""

_OWN = ("engine", "application", "fabric", "fake", *SUITES)
_PAIR = re.compile(r"\.(?:pair\d+|total)$")


_OF_FABRICS = {
    "fabric.latency": replace(LATENCY, name="latency of pairs (half a round trip)"),
    "fabric.bandwidth": replace(BANDWIDTH, name="bandwidth of pairs"),
}


def figure_of(workload: WorkloadOrder, operation: str) -> Figure | None:
    """Return how a cell of a foreign program is shown; None for operations that no program has of its own.

    A command names its unit itself, and an imported figure without an operation of its own carries it in its name,
    such as `MPIFFT_Gflops [Gflop/s]`.
    """
    if workload.kind == "command":
        unit = unit_named(str(workload.options.get("unit", "s")))
        return Figure("rate" if unit.rate else "time", unit)
    match = re.search(r" \[(.+)\]$", operation)
    if match and match[1] in UNITS:
        return Figure("rate" if UNITS[match[1]].rate else "time", UNITS[match[1]])
    name = _PAIR.sub("", operation)
    if workload.kind in _OWN or name in _OF_FABRICS:
        return _OF_FABRICS.get(name)
    from nearmetal.workloads.tools.table import FIGURES  # noqa: PLC0415 (only runs with such programs need them)

    return FIGURES.get(name)
