"""A made-up fabric with planted faults: what is known of it exactly is what detection is checked against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.fabric.figures import Pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nearmetal.stats.interval import FloatArray
    from nearmetal.workloads.rounds import Round


@dataclass(frozen=True, slots=True)
class Noise:
    """How uneven a healthy fabric is, as standard deviations of log times.

    `nodes` differ for good, and by `restarted` in each launch, `links` by each measurement, a `launch` as a whole; a
    share `hiccups` of the measurements is longer by a log excess that is exponential with mean `hiccup`.
    """

    nodes: float = 0.01
    links: float = 0.02
    launch: float = 0.03
    hiccups: float = 0.005
    hiccup: float = 0.7
    restarted: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """Factors by which times are longer than they should be: of nodes by their number, of links by their two ends."""

    latency_nodes: dict[int, float] = field(default_factory=dict)
    senders: dict[int, float] = field(default_factory=dict)
    receivers: dict[int, float] = field(default_factory=dict)
    latency_links: dict[tuple[int, int], float] = field(default_factory=dict)
    bandwidth_links: dict[tuple[int, int], float] = field(default_factory=dict)
    """From the first to the second only."""


class MadeUpFabric:
    """Measures as a fabric would: each call of `measure` is a launch of its own."""

    def __init__(self, nodes: int, faults: Faults, *, seed: int, noise: Noise | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes = nodes
        self._noise = noise or Noise()
        self._latency_node = self._uneven(faults.latency_nodes)
        self._sender = self._uneven(faults.senders)
        self._receiver = self._uneven(faults.receivers)
        self._latency_link = self._table(
            {pair: f for (a, b), f in faults.latency_links.items() for pair in ((a, b), (b, a))}
        )
        self._bandwidth_link = self._table(faults.bandwidth_links)

    def _uneven(self, factors: dict[int, float]) -> FloatArray:
        effects = self._rng.normal(0.0, self._noise.nodes, self._nodes)
        for node, factor in factors.items():
            effects[node] += np.log(factor)
        return effects

    def _table(self, factors: dict[tuple[int, int], float]) -> tuple[NDArray[np.int64], FloatArray]:
        keys = np.array([a * self._nodes + b for a, b in factors], np.int64)
        order = np.argsort(keys)
        return keys[order], np.log(np.array(list(factors.values())))[order]

    def measure(self, rounds: Sequence[Round]) -> Pairs:
        """Return the figures of one launch: a round trip takes about 4 us, a window 100 us."""
        pairs = np.array([pair for one in rounds for pair in one], np.int64).reshape(-1, 2)
        first, second = pairs[:, 0], pairs[:, 1]
        launch = self._rng.normal(0.0, self._noise.launch, 2)
        node, sender, receiver = (
            known + (self._rng.normal(0.0, off, self._nodes) if (off := self._noise.restarted) else 0.0)
            for known in (self._latency_node, self._sender, self._receiver)
        )
        latency = node[first] + node[second] + self._of(self._latency_link, first, second)
        there = sender[first] + receiver[second] + self._of(self._bandwidth_link, first, second)
        back = sender[second] + receiver[first] + self._of(self._bandwidth_link, second, first)
        return Pairs(
            self._nodes,
            first,
            second,
            4e3 * np.exp(latency + launch[0] + self._jitter(first.size)),
            1e5 * np.exp(there + launch[1] + self._jitter(first.size)),
            1e5 * np.exp(back + launch[1] + self._jitter(first.size)),
        )

    def _of(
        self, table: tuple[NDArray[np.int64], FloatArray], source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> FloatArray:
        keys, values = table
        if not keys.size:
            return np.zeros(source.size)
        wanted = source * self._nodes + target
        at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        return np.where(keys[at] == wanted, values[at], 0.0)

    def _jitter(self, count: int) -> FloatArray:
        struck = self._rng.random(count) < self._noise.hiccups
        hiccups = np.where(struck, self._rng.exponential(self._noise.hiccup, count), 0.0)
        return np.asarray(self._rng.normal(0.0, self._noise.links, count) + hiccups)
