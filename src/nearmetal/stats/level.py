"""One path by itself: its figure over blocks, with the interval that tables and plots show beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.errors import BadInputError
from nearmetal.stats.bootstrap import IntervalMethod, mean_intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.stats.interval import FloatArray, Interval

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Level:
    """The geometric mean over n blocks, in the unit of the figures, with its interval (None for a single block)."""

    n: int
    value: float
    interval: Interval | None
    method: IntervalMethod


def estimate_level(figures: FloatArray | Sequence[float], *, rng: np.random.Generator, level: float = LEVEL) -> Level:
    """Return the level of one figure, one positive value a block, shape (n,) with n >= 1.

    exp(mean log) with the interval of `bootstrap.mean_intervals` on logs: the ratio of two levels is then the ratio
    that `compare` reports. Two such intervals that overlap say nothing about their ratio, because blocks are paired:
    what differs is for `compare` to tell.
    """
    values = np.asarray(figures, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not bool(np.all(np.isfinite(values) & (values > 0.0))):
        raise BadInputError(f"{values.size} figures over blocks must be a row of positive, finite numbers")
    logs = np.log(values)
    value = math.exp(float(logs.mean()))
    if values.size == 1:
        return Level(1, value, None, IntervalMethod.NONE)
    method, (interval,) = mean_intervals(logs, (level,), rng)
    return Level(values.size, value, interval.exp(), method)
