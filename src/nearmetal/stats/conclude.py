"""From what was found of each figure of a cell to one verdict on the cell, and to what would settle it.

`near-metal` needs the mean and the median within the margin and the p99 within its own, each shown: a claim that needs
all its parts, each at a level, has that level itself (Berger (1982), "Multiparameter hypothesis testing and acceptance
sampling", Technometrics 24(4)). It also needs launches enough to have met a rare slow mode: n launches without it leave
a mode of share q unseen with (1 - q)^n, so with 1 - alpha confidence it is rarer than 1 - alpha^(1/n). Where k of them
were slow, the same holds of the largest q with P(at most k of n) > alpha (Clopper and Pearson (1934), Biometrika 26).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scipy import special

from nearmetal.stats.equivalence import ALPHA, MARGIN, TAIL_MARGIN, Finding, Verdict
from nearmetal.stats.summary import Metric
from nearmetal.units import as_percent

RAREST_MODE = 0.2
LEAST_FOR_DIFFERENCE = 10
"""Fewer blocks that drift look steady: their intervals miss it in most simulated studies (docs: statistics)."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """What `near-metal` requires: margins of body (mean, median) and tail (p99), and the rarest mode to be excluded.

    `rarest_mode` is a share of launches: 0.2 requires 14 of them, after which a slow mode that one launch of five falls
    into has been met with 95 %.
    """

    margin: float = MARGIN
    tail_margin: float = TAIL_MARGIN
    rarest_mode: float = RAREST_MODE

    def bound(self, metric: Metric) -> float:
        """Return the margin of a figure."""
        return self.tail_margin if metric is Metric.P99 else self.margin

    @property
    def least_launches(self) -> int:
        """Return how many launches `near-metal` needs where none was slow."""
        return self.least_with(0)

    def least_with(self, slow: int) -> int:
        """Return how many launches `near-metal` needs where so many of them were slow."""
        n = slow + 1
        while special.bdtr(slow, n, self.rarest_mode) > ALPHA * (1.0 + 1e-9):
            n += 1
        return n


def rarest_excluded(launches: int, slow: int = 0) -> float:
    """Return the share below which n launches, of which so many were slow, cannot exclude a slow mode."""
    return float(special.bdtri(slow, launches, ALPHA)) if slow < launches else 1.0


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict on a cell, why, and whether more blocks may change it.

    `needs` is the number of launches that the verdict lacks for lack of launches alone, 0 otherwise.
    """

    verdict: Verdict
    reason: str
    settled: bool
    needs: int = 0


def conclude(
    findings: Mapping[Metric, Finding],
    refused: Mapping[Metric, str],
    launches: int,
    criteria: Criteria,
    *,
    slow: int = 0,
    steady: bool = False,
) -> Conclusion:
    """Return the verdict on a cell from the findings of its figures.

    `refused` says why a figure that applies has none; a metric in neither does not apply (a launch of one sample has a
    mean alone). `launches` is the number of blocks that both sides have, `slow` how many of them stand apart as slower
    (`modes.slow_launches`). `steady` tells that the blocks cannot drift.
    """
    mean = findings[Metric.MEAN]
    if mean in {Finding.SLOWER, Finding.FASTER}:
        return Conclusion(Verdict(mean), _reason_beyond(mean, findings), settled=True)
    if mean is Finding.WITHIN:
        found = _of_median(findings, refused, enough=launches >= criteria.least_launches)
        return _of_launches(found, launches, slow, criteria) if found.verdict is Verdict.NEAR_METAL else found
    if mean is Finding.DIFFERS and launches < LEAST_FOR_DIFFERENCE and not steady:
        why = f"the mean differs, but {launches} blocks cannot tell that from a drift"
        return Conclusion(Verdict.UNDECIDED, why, settled=False, needs=LEAST_FOR_DIFFERENCE - launches)
    if mean is Finding.DIFFERS:
        why = "the mean differs, but it is undecided whether it is within the margin"
        return Conclusion(Verdict.DIFFERS, why, settled=False)
    return Conclusion(Verdict.UNDECIDED, "the mean is undecided", settled=False)


def _of_median(findings: Mapping[Metric, Finding], refused: Mapping[Metric, str], *, enough: bool) -> Conclusion:
    """Return the verdict on a cell whose mean is within the margin.

    A figure that is missing comes from no number of blocks, but until launches are `enough` a rare mode may still come
    to light.
    """
    median = findings.get(Metric.MEDIAN, Finding.WITHIN)
    if Metric.MEDIAN in refused:
        reason = f"mean within the margin; no median: {refused[Metric.MEDIAN]}"
        return Conclusion(Verdict.UNDECIDED, reason, settled=enough)
    if median in {Finding.SLOWER, Finding.FASTER}:
        return Conclusion(Verdict.DIFFERS, f"the mean is within the margin, the median is {median}", settled=True)
    if median is not Finding.WITHIN:
        return Conclusion(Verdict.UNDECIDED, "the mean is within the margin, the median is undecided", settled=False)
    return _of_tail(findings, refused, enough=enough)


def _of_tail(findings: Mapping[Metric, Finding], refused: Mapping[Metric, str], *, enough: bool) -> Conclusion:
    """Return the verdict on a cell whose body is within the margin."""
    tail = findings.get(Metric.P99, Finding.WITHIN)
    if Metric.P99 in refused:
        reason = f"near-metal in the body; no p99: {refused[Metric.P99]}"
        return Conclusion(Verdict.UNDECIDED, reason, settled=enough)
    if tail is Finding.SLOWER:
        return Conclusion(Verdict.SLOWER_TAIL, "near-metal in the body, slower in the tail", settled=True)
    if tail not in {Finding.WITHIN, Finding.FASTER}:
        return Conclusion(Verdict.UNDECIDED, "near-metal in the body, the tail is undecided", settled=False)
    if Metric.P99 not in findings:
        return Conclusion(Verdict.NEAR_METAL, "the mean, the only figure here, lies within its margin", settled=True)
    return Conclusion(Verdict.NEAR_METAL, "all figures lie within their margins", settled=True)


def _of_launches(found: Conclusion, launches: int, slow: int, criteria: Criteria) -> Conclusion:
    """Return `near-metal` where the launches exclude a slow mode that is not rare."""
    missing = criteria.least_with(slow) - launches
    if missing <= 0:
        return found
    rare = rarest_excluded(launches, slow)
    apart = f", {slow} of them slower than the rest by more than the margin" if slow else ""
    reason = f"near-metal in {launches} launches{apart}, which cannot exclude a mode rarer than {as_percent(rare)}"
    return Conclusion(Verdict.UNDECIDED, reason, settled=False, needs=missing)


def _reason_beyond(mean: Finding, findings: Mapping[Metric, Finding]) -> str:
    others = [f"{metric} {found}" for metric, found in findings.items() if found not in {mean, Finding.UNDECIDED}]
    return "; ".join([f"the mean is beyond the margin ({mean})", *others])
