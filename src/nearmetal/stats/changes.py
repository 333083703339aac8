"""Change points in series of levels, one level a run: when did a figure move to another level and stay there.

One split of a series is sought by the largest standardized rank sum (Pettitt (1979), "A non-parametric approach to the
change-point problem", Applied Statistics 28(2)): for each k, how far the ranks of the first k runs lie from what chance
gives. Ranks make a single run that went wrong weigh no more than any largest value does. How large the largest is by
chance follows from all orders of the runs being equally likely, so it is drawn by permutation, once for each set of
ranks: ties have fewer orders.
Further splits are sought on both sides of one that was found (binary segmentation: Vostrikova (1981), "Detecting
disorder in multidimensional random processes", Soviet Math. Doklady 24).

The split is then placed where it leaves the least absolute deviation from the medians on its two sides (Bai (1995),
"Least absolute deviation estimation of a shift", Econometric Theory 11(3)): ranks tell that there is a step, but tie
over a run or two.

Many series are asked at once: their first splits are corrected for the false discovery rate, so that at most 5 % of
the series that are marked are false positives, and a set of quiet series stays unmarked altogether 95 times of 100.

Runs count as exchangeable while nothing changes. A level that wanders from run to run has many change points, and they
are found: they are no false alarms, but no single cause either.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from nearmetal.stats.equivalence import ALPHA
from nearmetal.stats.interval import FloatArray
from nearmetal.stats.paired import benjamini_hochberg, doubled_midranks

LEAST_SEGMENT = 3
"""Runs on each side of a change: fewer are outliers, not a level."""
PERMUTATIONS = 19_999
"""Random orders that tell what chance gives: p-values go down to 1 in 20,000."""
_AT_ONCE = 2_000_000
"""Ranks in memory at a time while orders are drawn."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that survived: `index` is the first run of the new level, `p_value` that of this split alone.

    `ratio` is the level after / before, medians of the segments up to the next changes.
    """

    index: int
    p_value: float
    ratio: float


def least_runs(series: int, alpha: float = ALPHA) -> int:
    """Return how many runs can show a change of one series alone among so many: half of them on each side.

    An odd number shows no more than the even one below it, for then two splits are as clear.
    """
    enough = alpha / max(1, series)
    return next(n for n in range(2 * LEAST_SEGMENT, 1000, 2) if 2.0 / math.comb(n, n // 2) <= enough)


def best_split(values: FloatArray) -> tuple[int, float] | None:
    """Return where shape (n,) values are best split, and the p-value below; None if n is too small or all agree."""
    p_value = split_p_value(values)
    return None if p_value is None else (_place(values), p_value)


def split_p_value(values: FloatArray) -> float | None:
    """Return the permutation p-value of the best split of shape (n,) values; None if n is too small or all agree.

    p = (1 + number of permutations at least as extreme) / (1 + permutations); it is valid for any distribution of the
    values, and never below 2 / binomial(n, index): few runs cannot show a change, however large.
    """
    n = values.size
    if n < 2 * LEAST_SEGMENT:
        return None
    ranks = doubled_midranks(values)[None, :] / 2.0
    if float(np.ptp(ranks)) == 0.0:
        return None
    largest = float(_statistics(ranks).max())
    null = _null(tuple(np.sort(ranks[0]).tolist()))
    # Equal statistics differ by rounding: count those that are as large but for that.
    beyond = null.size - int(np.searchsorted(null, largest - 1e-9, side="left"))
    return (1 + beyond) / (1 + null.size)


def _place(values: FloatArray) -> int:
    """Return the k, both sides at least `LEAST_SEGMENT` long, with the least absolute deviations from both medians."""
    candidates = range(LEAST_SEGMENT, values.size - LEAST_SEGMENT + 1)
    return min(candidates, key=lambda k: _deviation(values[:k]) + _deviation(values[k:]))


def _deviation(values: FloatArray) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _statistics(ranks: FloatArray) -> FloatArray:
    """Return |rank sum of the first k - its mean| / its standard deviation; rows of n, k from 3 to n - 3.

    The variance of the sum of k of n ranks drawn without replacement is k (n - k) / n times their variance, ties
    included.
    """
    n = ranks.shape[1]
    k = np.arange(LEAST_SEGMENT, n - LEAST_SEGMENT + 1)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    variance = (centred**2).sum(axis=1, keepdims=True) / (n - 1)
    sums = np.cumsum(centred, axis=1)[:, k - 1]
    return np.asarray(np.abs(sums) / np.sqrt(variance * k * (n - k) / n), dtype=np.float64)


@lru_cache(maxsize=512)
def _null(ranks: tuple[float, ...]) -> FloatArray:
    """Return the largest statistic of each of many random orders of runs, ascending; the same in every process.

    `ranks` are ascending: runs that tie have other orders than runs that do not.
    """
    n = len(ranks)
    rng = np.random.default_rng([n, PERMUTATIONS])
    found = []
    rows = max(1, _AT_ONCE // n)
    for start in range(0, PERMUTATIONS, rows):
        count = min(rows, PERMUTATIONS - start)
        orders = rng.permuted(np.tile(ranks, (count, 1)), axis=1)
        found.append(_statistics(orders).max(axis=1))
    return np.sort(np.concatenate(found))


def find_changes(series: Sequence[FloatArray]) -> tuple[tuple[Change, ...], ...]:
    """Return the changes of each series, ascending; `series` are positive levels in the order of the runs.

    Splits within a series that has one are sought at the level that the correction left for its first, alpha times the
    share of the series that were marked, halved with each split: so all splits of one depth share one level.
    """
    logs = [np.log(one) for one in series]
    first = [split_p_value(one) for one in logs]
    adjusted = benjamini_hochberg([1.0 if one is None else one for one in first])
    marked = [one is not None and bool(p <= ALPHA) for one, p in zip(first, adjusted, strict=True)]
    level = ALPHA * sum(marked) / max(1, len(marked))
    return tuple(_changes(one, level) if is_marked else () for one, is_marked in zip(logs, marked, strict=True))


def _changes(logs: FloatArray, level: float) -> tuple[Change, ...]:
    splits = _segment(logs, 0, level)
    edges = [0, *(index for index, _ in splits), logs.size]
    for number in range(len(splits)):
        # Sought again between its neighbours, where no other change pulls at it.
        again = best_split(logs[edges[number] : edges[number + 2]])
        if again:
            edges[number + 1] = edges[number] + again[0]
    middles = [float(np.median(logs[a:b])) for a, b in pairwise(edges)]
    return tuple(
        Change(index, p_value, math.exp(after - before))
        for index, (_, p_value), (before, after) in zip(edges[1:-1], splits, pairwise(middles), strict=True)
    )


def _segment(logs: FloatArray, offset: int, level: float) -> list[tuple[int, float]]:
    """Return all splits of a segment that begins at `offset`, and of their sides, ascending."""
    p_value = split_p_value(logs)
    if p_value is None or p_value > level:
        return []
    at = _place(logs)
    here = (offset + at, p_value)
    return [*_segment(logs[:at], offset, level / 2), here, *_segment(logs[at:], offset + at, level / 2)]
