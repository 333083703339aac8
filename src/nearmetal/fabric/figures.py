"""From a fabric file to figures: one median a pair and round, and tables of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearmetal.stats.interval import FloatArray
from nearmetal.workloads.fabric_file import FabricFile
from nearmetal.workloads.rounds import ALONE, CUT


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measured pairs of `nodes` nodes, shape (m,) each: medians over the iterations of a pair and round, in ns.

    `latency_ns` is of whole round trips, `there_ns` of windows from `first` to `second`, `back_ns` of those the other
    way. The last two are empty where no bandwidth was measured. What the clock could not distinguish from 0 is 1 ns.
    """

    nodes: int
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    latency_ns: FloatArray
    there_ns: FloatArray
    back_ns: FloatArray

    @property
    def has_bandwidth(self) -> bool:
        """Return whether windows were measured."""
        return self.there_ns.size > 0


def pairs_of(file: FabricFile, phase: str) -> Pairs:
    """Return the pairs of one phase, warm-up left out."""
    rows = np.flatnonzero(file.phase_of_rows() == phase)
    header = file.header

    def medians(samples_ns: NDArray[np.int64], warmup: int) -> FloatArray:
        if samples_ns.shape[1] == 0:
            return np.empty(0)
        return np.asarray(np.maximum(np.median(samples_ns[rows, warmup:], axis=1), 1.0))

    return Pairs(
        header.ranks,
        file.first[rows],
        file.second[rows],
        medians(file.latency_ns, header.latency_warmup),
        medians(file.there_ns, header.bandwidth_warmup),
        medians(file.back_ns, header.bandwidth_warmup),
    )


def latency_table(pairs: Pairs) -> FloatArray:
    """Return round trips in ns, shape (nodes, nodes), symmetric, the diagonal NaN."""
    return _table(pairs, pairs.latency_ns, pairs.latency_ns)


def window_table(pairs: Pairs) -> FloatArray:
    """Return the time of a window in ns from node i to node j, shape (nodes, nodes), the diagonal NaN."""
    return _table(pairs, pairs.there_ns, pairs.back_ns)


def _table(pairs: Pairs, there: FloatArray, back: FloatArray) -> FloatArray:
    table = np.full((pairs.nodes, pairs.nodes), np.nan)
    table[pairs.first, pairs.second] = there
    table[pairs.second, pairs.first] = back
    return table


@dataclass(frozen=True, slots=True)
class Bisection:
    """Bandwidth across the cut into two halves, 10^6 bytes a second, summed over `pairs` pairs.

    `there` is from the first half to the second, `back` the other way; `together` with all pairs at the same time,
    `alone` one pair after another. Sums are of rates by each pair's median window: the rate while all were busy, not
    that of the slowest pair.
    """

    pairs: int
    there_together: float
    there_alone: float
    back_together: float
    back_alone: float


def bisection_of(file: FabricFile) -> Bisection | None:
    """Return the bisection test of a fabric file, None when it was not made."""
    together, alone = pairs_of(file, CUT), pairs_of(file, ALONE)
    if not alone.has_bandwidth or not together.has_bandwidth:
        return None
    mega = file.header.bandwidth_bytes * file.header.bandwidth_window * 1e3
    repeats = together.first.size // alone.first.size

    def total(windows_ns: FloatArray, times: int) -> float:
        return float((mega / np.median(windows_ns.reshape(times, -1), axis=0)).sum())

    return Bisection(
        alone.first.size,
        total(together.there_ns, repeats),
        total(alone.there_ns, 1),
        total(together.back_ns, repeats),
        total(alone.back_ns, 1),
    )
