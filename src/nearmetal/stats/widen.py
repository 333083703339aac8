"""Wider intervals for what Student's t takes for granted and blocks do not always give: independence and symmetry.

Dependence: a mean of n blocks whose neighbours correlate by r > 0 is worth n (1 - r) / (1 + r) independent ones (Zwiers
and von Storch (1995), "Taking serial correlation into account in tests of the mean", J. Climate 8(2)); r is estimated
without its bias, r1 + (1 + 4 r1) / n (Marriott and Pope (1954), Biometrika 41). Correlations that chance gives often
are let be, and blocks that alternate make intervals wide by themselves.

Skewness: the far end of the interval on the side of the long tail moves out by g (2 t^2 + 1) / (6 sqrt n) standard
errors, g the sample skewness: the Edgeworth correction of Hall (1992), "On the removal of skewness by transformation",
JRSS B 54(1). The other end stays, so that no interval becomes narrower.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from nearmetal.stats.interval import Interval

if TYPE_CHECKING:
    from nearmetal.stats.interval import FloatArray
    from nearmetal.stats.paired import PairedMoments

LEAST_BLOCKS = 5
_Z_CHANCE = 1.0
_MOST = 0.75


def dependence(values: FloatArray) -> float:
    """Return by how much the standard error of a mean of blocks grows for their dependence, 1 where none shows.

    `values`: one log ratio a block, in the order measured, shape (n,).
    """
    centred = values - values.mean()
    squares = float(np.dot(centred, centred))
    if values.size < LEAST_BLOCKS or squares == 0.0:
        return 1.0
    r1 = float(np.dot(centred[:-1], centred[1:])) / squares
    if (r1 + 1.0 / values.size) * math.sqrt(values.size) <= _Z_CHANCE:
        return 1.0
    r = min(_MOST, max(0.0, r1 + (1.0 + 4.0 * r1) / values.size))
    return math.sqrt((1.0 + r) / (1.0 - r))


def for_dependence(of: PairedMoments, values: FloatArray) -> PairedMoments:
    """Return moments whose standard error is that of dependent blocks."""
    return replace(of, standard_error=of.standard_error * dependence(values))


def for_skewness(interval: Interval, of: PairedMoments, values: FloatArray) -> Interval:
    """Return an interval of the mean of `values` that reaches further on the side of their long tail."""
    if of.n < LEAST_BLOCKS or of.sd == 0.0:
        return interval
    centred = values - of.mean
    bias = math.sqrt(of.n * (of.n - 1)) / (of.n - 2)
    skewness = bias * float(np.mean(centred**3)) / float(np.mean(centred**2)) ** 1.5
    t = float(special.stdtrit(of.df, (1.0 + interval.level) / 2.0))
    more = of.sd / math.sqrt(of.n) * abs(skewness) * (2.0 * t * t + 1.0) / (6.0 * math.sqrt(of.n))
    low, high = (interval.low, interval.high + more) if skewness > 0 else (interval.low - more, interval.high)
    return Interval(low, high, interval.level)
