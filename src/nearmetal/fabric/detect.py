"""Which nodes and links of a fabric are slow, by a robust test in two steps with controlled false alarms.

**Screen.** The log times of all pairs are split by a robust two-way fit into a part of the sending node, one of the
receiving node and a residual of the link (`stats.two_way`). What exceeds a limit is suspected: the larger of
log(1 + margin) and `SPREADS` robust standard deviations of its kind. A screen alone names nothing: among millions of
links some had a hiccup.

**Re-test.** Each suspect is measured `REPEATS` times more, in rounds in which all other nodes work as well, so that the
load is that of the screen. Pairs without a suspect in those rounds are controls: they say how far this launch and each
node in it are off, and how often a healthy pair exceeds the limit, e = (1 + exceeding) / (1 + controls). That is the
conservative rank estimate of a Monte Carlo test (Davison and Hinkley, Bootstrap Methods, 1997, section 4.2), free of
any distribution. If x of k re-tests exceed the limit, p = P(Binomial(k, e) >= x). Holm's step-down over all suspects
(`stats.paired`) keeps the chance of naming anything healthy at `ALPHA` a fabric, given that re-tests of a healthy node
or link are independent: they are of one launch, and a launch that keeps pairs in modes of its own breaks that. And a
sign test at `SIGN_LEVEL` must show that the median of the suspect's own re-tests is beyond the limit: what is slower
for good, but by less, is within the margin and stays unnamed.

**Few nodes.** A node's part in the screen rests on its pairs there. Where those are few, their errors would be in all
re-tests alike, which would not be independent. So up to `FEW_NODES` the re-tests are whole passes over all pairs, and
each pass has a fit of its own.

A slow ping has no direction: half a round trip is the same seen from both ends, and clocks that were set by round
trips cannot distinguish its two directions either. Directions come from bandwidth, which each end measures itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from nearmetal.fabric.figures import Pairs, latency_table, window_table
from nearmetal.stats.interval import FloatArray
from nearmetal.stats.paired import holm
from nearmetal.stats.two_way import TwoWay, off_diagonal, robust_spread, two_way_fit

SPREADS = 4.0
REPEATS = 10
ALPHA = 0.01
SIGN_LEVEL = 0.05
MIN_NODES = 4
"""Fewer nodes cannot say which of them is the odd one; only directions of a pair are compared then."""
FEW_NODES = 12
"""Up to here re-tests are whole passes, 110 rounds at most; of more nodes the errors of the fit are small."""
_SWEEPS = 3
MOST_LINKS = 1 / 16
"""Suspected links, as a share of all entries of the table, beyond which only the worst are re-tested."""


Role = Literal["node", "send", "receive", "link", "direction"]
"""What is slow: a node as such (latency), its sending, its receiving, or a link (bandwidth: from `a` to `b`)."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Something that exceeded its limit in the screen by `log_excess` over the typical; `b` is -1 for a node."""

    metric: str
    role: Role
    a: int
    b: int
    log_excess: float

    def is_reverse_of(self, other: Suspect) -> bool:
        """Return whether this is the other direction of the same node or link."""
        of_a_node = {self.role, other.role} == {"send", "receive"} and self.a == other.a
        of_a_link = self.role == other.role == "link" and (self.a, self.b) == (other.b, other.a)
        return self.metric == other.metric and (of_a_node or of_a_link)


@dataclass(frozen=True, slots=True)
class Fit:
    """The split of one metric's log times; `limits` are log excesses by role. `symmetric`: both ways are one figure."""

    metric: str
    split: TwoWay
    symmetric: bool
    limits: dict[Role, float]


@dataclass(frozen=True, slots=True)
class Screen:
    """What the first pass over all pairs showed. `dropped` links were suspected beyond `MOST_LINKS`."""

    nodes: int
    margin: float
    fits: tuple[Fit, ...]
    suspects: tuple[Suspect, ...]
    dropped: int = 0

    @property
    def suspected_nodes(self) -> frozenset[int]:
        """Return every node that is suspected in any of its roles."""
        return frozenset(one.a for one in self.suspects if one.b < 0)

    @property
    def suspected_links(self) -> frozenset[tuple[int, int]]:
        """Return every suspected link, its lower node first."""
        return frozenset((min(one.a, one.b), max(one.a, one.b)) for one in self.suspects if one.b >= 0)


@dataclass(frozen=True, slots=True)
class RetestedSuspect:
    """A suspect after its re-tests: `beyond` of `retests` exceeded the limit.

    `ratio` is the median of the re-tests to what is typical of the fabric (2: twice the time), `low` and `high` their
    range; all are 1 without re-tests. `p_value` is corrected for all suspects, `p_sign` is that of the sign test.
    `one_sided` says that the other direction of the same node or link is faster by more than the margin.
    """

    suspect: Suspect
    retests: int = 0
    beyond: int = 0
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0
    p_value: float = 1.0
    p_sign: float = 1.0
    one_sided: bool = False

    @property
    def named(self) -> bool:
        """Return whether it is more than a suspicion."""
        return self.p_value <= ALPHA and self.p_sign <= SIGN_LEVEL


# ---- screen


def screen(pairs: Pairs, margin: float) -> Screen:
    """Look for suspects among all pairs, each measured once; `margin` is a share such as 0.1."""
    if pairs.nodes < MIN_NODES:
        return Screen(pairs.nodes, margin, (), tuple(_directions(pairs, margin)))
    fits = [_fit("latency", np.log(latency_table(pairs)), margin, symmetric=True)]
    if pairs.has_bandwidth:
        fits.append(_fit("bandwidth", np.log(window_table(pairs)), margin, symmetric=False))
    suspects: list[Suspect] = []
    dropped = 0
    for fit in fits:
        links = sorted(_links(fit), key=lambda one: -one.log_excess)
        most = max(1, int(MOST_LINKS * pairs.nodes**2))
        dropped += len(links[most:])
        suspects += [*_nodes(fit), *links[:most]]
    return Screen(pairs.nodes, margin, tuple(fits), tuple(suspects), dropped)


def _fit(metric: str, table: FloatArray, margin: float, *, symmetric: bool) -> Fit:
    split = two_way_fit(table, symmetric=symmetric)

    def limit(effects: FloatArray) -> float:
        return max(math.log1p(margin), SPREADS * robust_spread(effects))

    link = limit(off_diagonal(split.residual).ravel())
    if symmetric:
        return Fit(metric, split, symmetric, {"node": limit(split.row), "link": link})
    return Fit(metric, split, symmetric, {"send": limit(split.row), "receive": limit(split.column), "link": link})


def _nodes(fit: Fit) -> Iterable[Suspect]:
    for role, limit in fit.limits.items():
        if role != "link":
            effects = _effects(fit, role)
            for node in np.flatnonzero(effects > limit).tolist():
                yield Suspect(fit.metric, role, node, -1, float(effects[node]))


def _effects(fit: Fit, role: Role) -> FloatArray:
    return fit.split.column if role == "receive" else fit.split.row


def _links(fit: Fit) -> Iterable[Suspect]:
    residual = np.triu(fit.split.residual) if fit.symmetric else fit.split.residual
    for a, b in np.argwhere(residual > fit.limits["link"]).tolist():
        yield Suspect(fit.metric, "link", a, b, float(residual[a, b]))


def _directions(pairs: Pairs, margin: float) -> Iterable[Suspect]:
    """Return the slower direction of each pair whose two differ by more than the margin."""
    if not pairs.has_bandwidth:
        return
    ratios = np.log(pairs.there_ns / pairs.back_ns)
    for a, b, ratio in zip(pairs.first.tolist(), pairs.second.tolist(), ratios.tolist(), strict=True):
        if abs(ratio) > math.log1p(margin):
            slow, fast = (a, b) if ratio > 0 else (b, a)
            yield Suspect("bandwidth", "direction", slow, fast, abs(ratio))


# ---- re-tests


def confirm(found: Screen, again: Pairs) -> tuple[RetestedSuspect, ...]:
    """Judge the suspects of a screen by their re-tests, in the order of the screen."""
    tested: dict[Suspect, _RetestExcess] = {}
    passes = _passes(again)
    for fit in found.fits:
        tested |= _test_passes(found, fit, passes) if passes else _test(found, fit, again)
    for one in found.suspects:
        if one.role == "direction":
            tested[one] = _test_direction(one, again, found.margin)
    corrected = holm([tested[one].p_value for one in found.suspects]).tolist()
    return tuple(_finding(one, tested[one], p) for one, p in zip(found.suspects, corrected, strict=True))


def unconfirmed(found: Screen) -> tuple[RetestedSuspect, ...]:
    """Return the suspects of a screen that was not followed by re-tests: none is named."""
    return tuple(map(RetestedSuspect, found.suspects))


@dataclass(frozen=True, slots=True)
class _RetestExcess:
    """Log excesses of a suspect's re-tests, those of its opposite direction where there is one, and the chance."""

    log_excess: FloatArray
    beyond: int
    p_value: float
    one_sided: bool


def _finding(suspect: Suspect, tested: _RetestExcess, p_value: float) -> RetestedSuspect:
    excess = tested.log_excess
    if excess.size == 0:
        return RetestedSuspect(suspect)
    ratio, low, high = (math.exp(float(value)) for value in (np.median(excess), excess.min(), excess.max()))
    p_sign = _at_least(tested.beyond, excess.size, 0.5)
    return RetestedSuspect(suspect, excess.size, tested.beyond, ratio, low, high, p_value, p_sign, tested.one_sided)


def _at_least(beyond: int, tries: int, chance: float) -> float:
    """Return P(Binomial(tries, chance) >= beyond)."""
    return float(special.bdtrc(beyond - 1, tries, chance)) if beyond else 1.0


@dataclass(frozen=True, slots=True)
class _DirectedRetests:
    """Re-tests of one metric by direction, shape (m,): who to whom, the link's excess, and whether it is a control.

    `shifts`, shape (2, nodes), are what a node's sending and its receiving take more in this launch than in the screen.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    excess: FloatArray
    control: NDArray[np.bool_]
    shifts: FloatArray


def _test(found: Screen, fit: Fit, again: Pairs) -> dict[Suspect, _RetestExcess]:
    directed = _directed(found, fit, again)
    tested: dict[Suspect, _RetestExcess] = {}
    for role, limit in fit.limits.items():
        suspects = [one for one in found.suspects if (one.metric, one.role) == (fit.metric, role)]
        wanted = [_key(found, one) for one in suspects]
        excess = directed.excess + _own_effect(fit, role, directed)
        chance = _chance(excess, limit, directed, fit)
        keys, usable = _keys(found, role, directed)
        values = _by_key(keys[usable], excess[usable], wanted)
        opposite = _opposite(fit, role, found, directed, wanted)
        for one, log_excess, back in zip(suspects, values, opposite, strict=True):
            beyond = int(np.count_nonzero(log_excess > limit))
            p_value = _at_least(beyond, log_excess.size, chance)
            one_sided = not fit.symmetric and _median(log_excess) - back > math.log1p(found.margin)
            tested[one] = _RetestExcess(log_excess, beyond, p_value, one_sided)
    return tested


def _directed(found: Screen, fit: Fit, again: Pairs) -> _DirectedRetests:
    """Return both directions of every re-test, less what the fit explains, and what launch and nodes are off."""
    there, back = (again.latency_ns, again.latency_ns) if fit.symmetric else (again.there_ns, again.back_ns)
    source = np.concatenate((again.first, again.second))
    target = np.concatenate((again.second, again.first))
    split = fit.split
    log_times = np.log(np.concatenate((there, back)))
    excess = log_times - split.overall - split.row[source] - split.column[target]
    control = _with_partner(found, source, target) & _with_partner(found, target, source)
    if control.any():
        excess = excess - np.median(excess[control])
    shifts = _shifts(found, source, target, excess)
    return _DirectedRetests(source, target, excess - shifts[0][source] - shifts[1][target], control, shifts)


def _shifts(found: Screen, source: NDArray[np.int64], target: NDArray[np.int64], excess: FloatArray) -> FloatArray:
    """Return by how much each node is off in this launch, by its pairs with partners above suspicion: median polish."""
    shifts = np.zeros((2, found.nodes))
    ends = ((source, _with_partner(found, source, target)), (target, _with_partner(found, target, source)))
    for way, (own, usable) in [*enumerate(ends)] * _SWEEPS:
        rest = excess - shifts[0][source] - shifts[1][target]
        of_nodes = _by_key(own[usable], rest[usable], range(found.nodes))
        shifts[way] += [np.median(one) if one.size else 0.0 for one in of_nodes]
    return shifts


def _own_effect(fit: Fit, role: Role, directed: _DirectedRetests) -> FloatArray | float:
    """Return what a node of that role adds itself in this launch, which `excess` is without."""
    if role == "link":
        return 0.0
    way, node = (1, directed.target) if role == "receive" else (0, directed.source)
    return np.take(_effects(fit, role) + directed.shifts[way], node)


def _chance(excess: FloatArray, limit: float, directed: _DirectedRetests, fit: Fit) -> float:
    """Return how often a control exceeds the limit, at most; of one ping seen from both ends the worse counts."""
    values, control = excess, directed.control
    if fit.symmetric:
        half = excess.size // 2
        values, control = np.maximum(excess[:half], excess[half:]), control[:half]
    controls = values[control]
    return (1 + int(np.count_nonzero(controls > limit))) / (1 + controls.size)


def _keys(found: Screen, role: Role, directed: _DirectedRetests) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return what each is a re-test of, and whether it counts: one of a node only with a partner above suspicion."""
    if role == "link":
        return directed.source * found.nodes + directed.target, np.ones(directed.source.size, np.bool_)
    own, other = (directed.target, directed.source) if role == "receive" else (directed.source, directed.target)
    return own, _with_partner(found, own, other)


def _with_partner(found: Screen, own: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where the other node is above suspicion, and so is its link with the own one."""
    links = np.array([a * found.nodes + b for a, b in found.suspected_links], np.int64)
    low, high = np.minimum(own, other), np.maximum(own, other)
    return ~np.isin(other, list(found.suspected_nodes)) & ~np.isin(low * found.nodes + high, links)


def _key(found: Screen, suspect: Suspect) -> int:
    return suspect.a if suspect.b < 0 else suspect.a * found.nodes + suspect.b


def _by_key(keys: NDArray[np.int64], values: FloatArray, wanted: Sequence[int]) -> list[FloatArray]:
    """Return the values of each wanted key, in the order of `wanted`."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    begins, ends = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
    return [values[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _opposite(
    fit: Fit, role: Role, found: Screen, directed: _DirectedRetests, wanted: Sequence[int]
) -> Iterable[float]:
    """Return the median log excess of the other direction of each wanted key; -inf where both ways are one figure."""
    if fit.symmetric:
        return [-math.inf] * len(wanted)
    if role == "link":
        keys, excess = directed.target * found.nodes + directed.source, directed.excess
    else:
        other: Role = "send" if role == "receive" else "receive"
        excess = directed.excess + _own_effect(fit, other, directed)
        keys, usable = _keys(found, other, directed)
        keys, excess = keys[usable], excess[usable]
    return map(_median, _by_key(keys, excess, wanted))


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if values.size else -math.inf


def _test_direction(suspect: Suspect, again: Pairs, margin: float) -> _RetestExcess:
    """Compare the two directions of one pair; were they the same, each would be the slower half of the time."""
    forward = (again.first == suspect.a) & (again.second == suspect.b)
    backward = (again.first == suspect.b) & (again.second == suspect.a)
    ratios = np.log(again.there_ns / again.back_ns)
    log_excess = np.concatenate((ratios[forward], -ratios[backward]))
    beyond = int(np.count_nonzero(log_excess > math.log1p(margin)))
    p_value = _at_least(beyond, log_excess.size, 0.5)
    return _RetestExcess(log_excess, beyond, p_value, one_sided=True)


# ---- re-tests by whole passes


def _passes(again: Pairs) -> list[Pairs]:
    """Return the re-tests of few nodes as passes over all pairs; nothing if they are others."""
    nodes = again.nodes
    size = nodes * (nodes - 1) // 2
    if not MIN_NODES <= nodes <= FEW_NODES or again.first.size % size:
        return []
    keys = np.minimum(again.first, again.second) * nodes + np.maximum(again.first, again.second)
    if (np.diff(np.sort(keys.reshape(-1, size), axis=1), axis=1) == 0).any():
        return []
    parts = (slice(start, start + size) for start in range(0, again.first.size, size))
    ends = [(again.first[part], again.second[part], part) for part in parts]
    return [Pairs(nodes, a, b, again.latency_ns[at], again.there_ns[at], again.back_ns[at]) for a, b, at in ends]


def _test_passes(found: Screen, fit: Fit, passes: Sequence[Pairs]) -> dict[Suspect, _RetestExcess]:
    """Judge the suspects of one metric by a fit of each pass; the controls are all that is above suspicion."""
    table = latency_table if fit.symmetric else window_table
    splits = [two_way_fit(np.log(table(one)), symmetric=fit.symmetric) for one in passes]
    row, column, residual = (np.array([getattr(one, name) for one in splits]) for name in ("row", "column", "residual"))
    tested: dict[Suspect, _RetestExcess] = {}
    for one in (one for one in found.suspects if one.metric == fit.metric):
        limit = fit.limits[one.role]
        if one.role == "link":
            excess, back = residual[:, one.a, one.b], residual[:, one.b, one.a]
            controls = residual[:, _healthy_links(found, symmetric=fit.symmetric)]
        else:
            effects, others = (column, row) if one.role == "receive" else (row, column)
            excess, back = effects[:, one.a], others[:, one.a]
            controls = np.delete(effects, list(found.suspected_nodes), axis=1)
        beyond = int(np.count_nonzero(excess > limit))
        chance = (1 + int(np.count_nonzero(controls > limit))) / (1 + controls.size)
        one_sided = not fit.symmetric and _median(excess) - _median(back) > math.log1p(found.margin)
        tested[one] = _RetestExcess(excess, beyond, _at_least(beyond, excess.size, chance), one_sided)
    return tested


def _healthy_links(found: Screen, *, symmetric: bool) -> NDArray[np.bool_]:
    """Return which links and both their nodes are above suspicion, shape (nodes, nodes); one way if both are one."""
    source, target = np.indices((found.nodes, found.nodes))
    healthy = _with_partner(found, source, target) & _with_partner(found, target, source) & (source != target)
    return np.triu(healthy) if symmetric else healthy
