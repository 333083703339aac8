"""From a stored duration to the figure that people expect: its name, unit and direction.

Samples are durations for ever. A latency is shown as half a round trip, a bandwidth as bytes over the duration; both
are one factor times, or divided by, the duration, so that a percentile of durations is one of the shown figure too.
"""

import math
from dataclasses import dataclass, replace

from nearmetal.stats.equivalence import Better
from nearmetal.stats.interval import Interval
from nearmetal.study.order import WorkloadOrder
from nearmetal.units import NS_PER_MS, NS_PER_S, NS_PER_US
from nearmetal.workloads.figures import IMPORTED, SUITES, WITH_OPERATIONS, figure_of
from nearmetal.workloads.operations import OPERATIONS, Shape

DEFAULT_WINDOW_MESSAGES = 64
"""The default of the engine's `--window` (native/bench/options.c)."""
_UNITS = (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US))
_NAMES = {
    "message_rate": "message rate",
    "round_trip": "latency (half a round trip)",
    "window": "bandwidth",
    "collective": "time, slowest rank",
    "exchange": "time of an exchange, slowest rank",
    "after_exchange": "time of computing after an exchange, slowest rank",
    "one_way": "time of computing beside a message, slowest rank",
}


@dataclass(frozen=True, slots=True)
class DisplayScale:
    """How durations of one cell are shown: `factor * ns` for a time, `factor / ns` for a rate.

    `amount` is what a duration of a rate is the time of.
    """

    name: str
    unit: str
    better: Better
    factor: float
    amount: str = "an iteration"

    @property
    def labels(self) -> dict[str, str]:
        """Return what files say of a figure."""
        return {"figure": self.name, "unit": self.unit, "better": str(self.better)}

    @property
    def rate(self) -> bool:
        """Return whether larger is better, and so whether the order of figures is that of durations reversed."""
        return self.better is Better.LARGER

    def value(self, ns: float) -> float:
        """Return the figure of one duration; the rate of no time at all is infinite."""
        if not self.rate:
            return self.factor * ns
        return self.factor / ns if ns else math.inf

    def ends(self, interval_ns: Interval) -> tuple[float, float]:
        """Return the ends, in ascending order, of an interval of durations."""
        low, high = sorted((self.value(interval_ns.low), self.value(interval_ns.high)))
        return low, high


def shown_for(workload: WorkloadOrder, operation: str, message_bytes: int, typical_ns: float = 0.0) -> DisplayScale:
    """Return how a cell is shown: by the tables of operations, as plain time where none holds it.

    The unit of a plain time fits `typical_ns`, so that an application's seconds are not shown as microseconds.
    """
    figure = figure_of(workload, operation)
    if figure is not None:
        better = Better.LARGER if figure.unit.rate else Better.SMALLER
        return DisplayScale(figure.name, figure.unit.name, better, figure.factor, figure.amount)
    row = OPERATIONS.get(operation) if workload.kind in (*WITH_OPERATIONS, IMPORTED) else None
    if row is None:
        unit, unit_ns = next(one for one in _UNITS if typical_ns >= one[1] or one is _UNITS[-1])
        return DisplayScale("time", unit, Better.SMALLER, 1.0 / unit_ns)
    window = int(str(workload.options.get("window", DEFAULT_WINDOW_MESSAGES)))
    shape = Shape(message_bytes, window, max(1, len(workload.placement) // 2))
    name = _NAMES.get(operation, _NAMES[row.kind])
    better = Better.LARGER if row.larger_is_better else Better.SMALLER
    found = DisplayScale(name, row.unit, better, row.factor(shape))
    if workload.kind not in (*SUITES, IMPORTED):
        return found
    if row.kind == "collective":  # what OMB and IMB print, where nearmetal's engine takes the slowest rank
        found = replace(found, name="time, mean over ranks")
    return replace(found, amount=f"{window:,} messages")  # their means are no iteration's
