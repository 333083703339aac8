"""Curves for drawing: the whole distribution in at most a few hundred points, exact at both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nearmetal.stats.interval import FloatArray, IntArray

CURVE_POINTS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points of an empirical distribution: `ns[i]` is the sample at or below which `fraction[i]` of all samples lie.

    Both have shape (k,), ascending; `ns` is int64 nanoseconds, `fraction` is in (0, 1]. The first point is the
    minimum and the last the maximum.
    """

    ns: IntArray
    fraction: FloatArray


def ecdf(ordered: IntArray, points: int = CURVE_POINTS) -> Curve:
    """Return the empirical distribution F(x) = #{x_i <= x} / n at ranks evenly spread over 1..n.

    `ordered` is ascending (see `order`). Every point is an observed sample; ties keep the highest rank.
    """
    ranks = np.linspace(1, ordered.size, min(points, ordered.size)).round().astype(np.int64)
    return _curve(ordered, ranks)


def tail_curve(ordered: IntArray, points: int = CURVE_POINTS) -> Curve:
    """Return the percentile curve for a log-tail axis: ranks evenly spread in -log10(1 - rank / n).

    That is the axis of HdrHistogram plots: 90 %, 99 %, 99.9 % at equal distances, out to the maximum.
    """
    n = ordered.size
    beyond = np.logspace(np.log10(n), 0.0, min(points, n) - 1) if n > 2 else np.ones(n - 1)
    ranks = np.unique(np.concatenate(([1], np.round(n - beyond + 1.0), [n])).astype(np.int64).clip(1, n))
    return _curve(ordered, ranks)


def _curve(ordered: IntArray, ranks: IntArray) -> Curve:
    """Return the points at `ranks` (1-based, ascending), one for each distinct value."""
    ns = ordered[ranks - 1].astype(np.int64)
    # A drawn step needs the highest rank of each value: count the ties in the whole array, not only in the points.
    full = np.searchsorted(ordered, ordered[ranks - 1], side="right")
    keep = np.append(ns[1:] != ns[:-1], True)
    return Curve(ns[keep], full[keep] / ordered.size)
