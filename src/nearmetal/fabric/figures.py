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
    `alone` one pair after another. Sums are of rates by each pair's median window, `together` of those that ended while
    all pairs were busy: on a shared link a pair that gets less goes on alone, and then has all of it.
    """

    pairs: int
    there_together: float
    there_alone: float
    back_together: float
    back_alone: float


def bisection_of(file: FabricFile) -> Bisection | None:
    """Return the bisection test of a fabric file, None when it was not made."""
    alone, together = pairs_of(file, ALONE), np.flatnonzero(file.phase_of_rows() == CUT)
    if not alone.has_bandwidth or not together.size:
        return None
    mega = file.header.bandwidth_bytes * file.header.bandwidth_window * 1e3

    def at_once(windows_ns: NDArray[np.int64]) -> float:
        by_pair = windows_ns[together].reshape(-1, alone.first.size, windows_ns.shape[1])
        return float((mega / np.median(_while_all_are_busy(by_pair, file.header.bandwidth_warmup), axis=0)).sum())

    return Bisection(
        alone.first.size,
        at_once(file.there_ns),
        float((mega / alone.there_ns).sum()),
        at_once(file.back_ns),
        float((mega / alone.back_ns).sum()),
    )


def _while_all_are_busy(windows_ns: NDArray[np.int64], warmup: int) -> FloatArray:
    """Return the median window of each round and pair, of those that ended before the first pair had finished.

    Of a pair that had only warm-up until then these count, of one without any its first. The shape is (rounds, pairs,
    windows), all pairs of a round start together.
    """
    ends_ns = windows_ns.cumsum(axis=2)
    in_time = ends_ns <= ends_ns[:, :, -1].min(axis=1)[:, None, None]
    in_time[:, :, 0] = True
    measured = in_time & (np.arange(windows_ns.shape[2]) >= warmup)
    used = np.where(measured.any(axis=2, keepdims=True), measured, in_time)
    return np.asarray(np.maximum(np.nanmedian(np.where(used, windows_ns, np.nan), axis=2), 1.0))
