"""Figures of programs as durations, the one form in which the store keeps everything, and how each is shown.

A time is itself. A rate is kept as the time that a fixed amount takes at it: 1 GiB for bytes, 1 ns for simulated time,
10^12 for things counted by the second and 10^6 for those by the minute, so that smaller is better for every stored
sample and the rate comes back to nine digits. The file of each program says which figure a stored duration stands for.
Standard library only.
"""

import math
import re
from dataclasses import dataclass, replace

from nearmetal.errors import ForeignFileError, named
from nearmetal.study.order import WorkloadOrder
from nearmetal.units import DURATION_NS, MOST, NS_PER_S, to_whole

VOLUME_BYTES = 1 << 30
"""The amount whose duration stands for a rate in bytes or bits."""
COUNTED = 10**12
"""The amount whose duration stands for a rate of anything else; at less than 109 a second that is beyond 63 bits."""
COUNTED_BY_THE_MINUTE = 10**6
"""The same for slow things: from 0.4 an hour on."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a figure: `scale` is the ns of one unit of time, or of the amount at a rate of one."""

    name: str
    rate: bool
    scale: float

    def to_ns(self, figure: float) -> int:
        """Return what the store keeps for a figure, at least 1 ns; raise ForeignFileError when there is none."""
        if not math.isfinite(figure) or figure < 0 or (self.rate and figure == 0):
            raise ForeignFileError(f"{figure} {self.name} is not a figure that a program can have measured")
        try:
            return max(1, to_whole(self.scale / figure if self.rate else self.scale * figure))
        except (ValueError, ZeroDivisionError) as error:
            slow = self.name in _COUNTED_PER_S and figure * _COUNTED_PER_S[self.name] < _LEAST_PER_S
            hint = f"unit = {_BY_THE_MINUTE!r} is for fewer than {math.ceil(_LEAST_PER_S)} a second" if slow else ""
            raise ForeignFileError(f"{figure:g} {self.name} is out of range", hint=hint) from error


_BYTES_PER_S = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_BYTES_PER_S |= {"KiB/s": 2.0**10, "MiB/s": 2.0**20, "GiB/s": 2.0**30}
_BYTES_PER_S |= {"bit/s": 1 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}
_COUNTED_PER_S = {"1/s": 1.0, "Mop/s": 1e6, "Gup/s": 1e9}
_COUNTED_PER_S |= {"Mflop/s": 1e6, "Gflop/s": 1e9, "Tflop/s": 1e12}
_SIMULATED = "ns/day"
_BY_THE_MINUTE = "1/min"
_LEAST_PER_S = COUNTED * NS_PER_S / MOST
UNITS: dict[str, Unit] = {
    **{name: Unit(name, rate=False, scale=ns) for name, ns in DURATION_NS.items()},
    **{name: Unit(name, rate=True, scale=VOLUME_BYTES * NS_PER_S / per_s) for name, per_s in _BYTES_PER_S.items()},
    **{name: Unit(name, rate=True, scale=COUNTED * NS_PER_S / per_s) for name, per_s in _COUNTED_PER_S.items()},
    _BY_THE_MINUTE: Unit(_BY_THE_MINUTE, rate=True, scale=COUNTED_BY_THE_MINUTE * 60.0 * NS_PER_S),
    _SIMULATED: Unit(_SIMULATED, rate=True, scale=86400 * NS_PER_S),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """How a stored duration is shown: `per` is by how much it is divided first (2: half a round trip)."""

    name: str
    unit: Unit
    per: int = 1

    @property
    def amount(self) -> str:
        """Return what a stored duration of a rate is the time of."""
        if self.unit.name in _BYTES_PER_S:
            return "1 GiB"
        fixed = {_SIMULATED: "1 simulated ns", _BY_THE_MINUTE: "10^6 of what is counted"}
        return fixed.get(self.unit.name, "10^12 of what is counted")

    @property
    def factor(self) -> float:
        """Return the figure of one ns, for `factor * ns` or, of a rate, `factor / ns`."""
        return self.unit.scale if self.unit.rate else 1.0 / (self.unit.scale * self.per)


def unit_named(name: str) -> Unit:
    """Return a unit; raise BadInputError for a name that is not in the table."""
    return named(UNITS, name, f"{name!r} is not a unit of a figure")


LATENCY = Figure("latency (half a round trip)", UNITS["us"], per=2)
"""Of a program whose stored samples are whole round trips."""
HALVED = Figure("latency (half a round trip)", UNITS["us"])
"""Of a program that halves round trips itself."""
BANDWIDTH = Figure("bandwidth", UNITS["MB/s"])
STREAMS = {"tcp_stream": BANDWIDTH, "udp_stream": Figure("bandwidth that arrived", UNITS["MB/s"])}
"""Of programs that stream over TCP or UDP."""


def jain(shares: list[float]) -> float:
    """Return Jain's fairness index (Jain, Chiu, Hawe 1984): 1 when all shares are equal, 1/n when one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


# ---- which figure an operation has

IMPORTED = "imported"
"""The kind of workload whose samples were adopted from other programs' output."""
IMPORTED_MESSAGES = 6_400_000
"""The window that an imported bandwidth is stored for, whatever its own was: in whole ns it keeps eight digits."""
SUITES = ("omb", "imb", "mpi4py")
"""The kinds of workload that print means of the operations of nearmetal's own engine."""
WITH_OPERATIONS = ("engine", *SUITES)
"""The kinds of workload whose operations are those of nearmetal's own engine, with its figures."""

_OWN = ("engine", "application", "fabric", "fake", *SUITES)
COMMAND = "command"
"""The kind of workload that is any program, in the unit that the study names."""
_PAIR = re.compile(r"\.(?:pair\d+|total)$")


_OF_FABRICS = {
    "fabric.latency": replace(LATENCY, name="latency of pairs (half a round trip)"),
    "fabric.bandwidth": replace(BANDWIDTH, name="bandwidth of pairs"),
}


def of_pairs(kind: str) -> bool:
    """Return whether a kind of workload is a foreign program of which each pair of ranks runs a client and a server."""
    return kind not in (*_OWN, COMMAND, IMPORTED)


def figure_of(workload: WorkloadOrder, operation: str) -> Figure | None:
    """Return how a cell of a foreign program is shown; None for operations that no program has.

    A command names its unit itself, and an imported figure without its own operation carries it in its name, such as
    `MPIFFT_Gflops [Gflop/s]`.
    """
    if workload.kind == COMMAND:
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
