"""The one record for an interval, and the array types of this room."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearmetal.typed import JsonFloat

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Interval:
    """Two ends and the level at which they hold (0.95 means 95 %); unit as in the name of the field that holds it."""

    low: JsonFloat
    high: JsonFloat
    level: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval ends are not in order: {self.low} > {self.high}")

    def contains(self, value: float) -> bool:
        """Return whether `value` lies in the closed interval."""
        return self.low <= value <= self.high

    def inside(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies strictly between `low` and `high`."""
        return low < self.low and self.high < high

    def scaled(self, factor: float) -> Interval:
        """Return the interval about the same middle, `factor` times as wide."""
        middle, half = (self.low + self.high) / 2.0, (self.high - self.low) / 2.0 * factor
        return Interval(middle - half, middle + half, self.level) if factor != 1.0 else self

    def exp(self) -> Interval:
        """Return the interval of ratios that belongs to this interval of log ratios."""
        return Interval(_exp(self.low), _exp(self.high), self.level)


def _exp(log_ratio: float) -> float:
    """Return exp(log_ratio), infinity where a double cannot hold it."""
    return math.exp(log_ratio) if log_ratio < 700.0 else math.inf
