"""Equivalence within a margin, and the one rule that turns intervals and p-values into a verdict.

All figures here are *log cost ratios*: log(path / baseline) for a figure where smaller is better, its negative where
larger is better. Above 0 the path costs more than the baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from scipy import special

from nearmetal.errors import BadInputError
from nearmetal.stats.interval import Interval

MARGIN = 0.05
TAIL_MARGIN = 0.10
ALPHA = 0.05
_CORRECTED = "by itself, but not after correction for multiple comparisons"


class Better(StrEnum):
    """Which way a figure is good: times are better smaller, rates better larger."""

    SMALLER = "smaller"
    LARGER = "larger"

    @property
    def sign(self) -> int:
        """Return the factor that turns log(path / baseline) into a log cost ratio."""
        return 1 if self is Better.SMALLER else -1


class Finding(StrEnum):
    """Where one figure stands to the one boundary, the margin: within it, beyond it on one side, or neither is shown.

    `differs` says that a difference is shown, but not on which side of the margin it is.
    """

    WITHIN = "within"
    SLOWER = "slower"
    FASTER = "faster"
    DIFFERS = "differs"
    UNDECIDED = "undecided"


class Verdict(StrEnum):
    """What a comparison of all figures found; `undecided` is an answer, never dressed up as equality.

    `near-metal`: body and tail within their margins. `slower tail`: the body is, the tail is beyond its own. `slower`
    and `faster`: the mean is beyond the margin. `differs`: a difference is shown, on which side of the margin is not.
    """

    NEAR_METAL = "near-metal"
    SLOWER_TAIL = "slower tail"
    SLOWER = "slower"
    FASTER = "faster"
    DIFFERS = "differs"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a finding is made from, for one figure.

    `difference` is the 1 - alpha interval of the log cost ratio, `equivalence` the 1 - 2 alpha interval (the interval
    form of two one-sided tests at alpha). `p_difference` is two-sided against a log ratio of 0, `p_equivalence` the
    TOST p-value against the margin, `p_beyond` two-sided against the margin's nearer end: small where the gap is proven
    larger than the margin. `margin_log` = log(1 + margin). `wider` says why the intervals are wider than Student's.
    `offset` is by how much the baseline is shown to differ from itself (log ratio), 0 where it is not.
    """

    difference: Interval
    equivalence: Interval
    p_difference: float
    p_equivalence: float
    p_beyond: float
    margin_log: float
    wider: str = ""
    offset: float = 0.0

    @property
    def p_values(self) -> tuple[float, float, float]:
        """Return the three, in the order of `corrected`."""
        return self.p_difference, self.p_equivalence, self.p_beyond

    def corrected(self, difference: float, equivalence: float, beyond: float) -> Evidence:
        """Return it with p-values that are corrected for the family that the figure stands in."""
        return replace(self, p_difference=difference, p_equivalence=equivalence, p_beyond=beyond)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one figure was found to be, why in words, and the p-values used, corrected for the family it stands in."""

    finding: Finding
    reason: str
    p_difference: float | None
    p_equivalence: float | None
    p_beyond: float | None


def margin_log(margin: float) -> float:
    """Return log(1 + margin): ratios within 1/(1 + margin) .. 1 + margin count as equal, the same either way round."""
    if not 0.0 < margin < 10.0:
        raise BadInputError(f"margin {margin} is not between 0 and 10", hint="0.05 means 5 %")
    return math.log1p(margin)


def tost_p(mean: float, standard_error: float, df: int, bound: float) -> float:
    """Return the p-value of two one-sided t-tests of |true mean| >= bound.

    p = max(P(T > (mean + bound) / se), P(T < (mean - bound) / se)) with T on `df` degrees of freedom. Schuirmann
    (1987), "A comparison of the two one-sided tests procedure and the power approach", J. Pharmacokin. Biopharm. 15(6).
    """
    if standard_error == 0.0:
        return 0.0 if abs(mean) < bound else 1.0
    return float(special.stdtr(df, (abs(mean) - bound) / standard_error))


def beyond_p(mean: float, standard_error: float, df: int, bound: float) -> float:
    """Return the two-sided p-value of a t-test of |true mean| <= bound: 2 P(T > (|mean| - bound) / se), at most 1."""
    if standard_error == 0.0:
        return 0.0 if abs(mean) > bound else 1.0
    return min(1.0, 2.0 * float(special.stdtr(df, (bound - abs(mean)) / standard_error)))


def judge(evidence: Evidence, *, alpha: float = ALPHA) -> Judgement:
    """Return the finding on one figure, by the p-values of its evidence, which may be corrected ones.

    There is one boundary, the margin, so no two findings can both be shown of one true ratio:

    1. `within`: TOST rejects (corrected p <= alpha) and the equivalence interval lies within the margin. This holds
       even when the interval also excludes equality: a real gap of 1 % is within a margin of 5 %.
    2. `slower` / `faster`: the 1 - alpha interval lies beyond the margin, and the corrected p says so, too.
    3. `differs`: the interval excludes equality, corrected, and holds the end of the margin: which side is open. It is
       not claimed where the baseline differs from itself, too: one pair of names says little of how much paths may.
    4. `undecided`: everything else. A large p of the difference is never taken for equality.
    """
    return Judgement(*_found(evidence, alpha), *evidence.p_values)


def _found(evidence: Evidence, alpha: float) -> tuple[Finding, str]:
    bound, gap = evidence.margin_log, evidence.difference
    if evidence.equivalence.inside(-bound, bound):
        shown = evidence.p_equivalence <= alpha
        within = Finding.WITHIN, "the interval lies within the margin"
        return within if shown else (Finding.UNDECIDED, f"within the margin {_CORRECTED}")
    if evidence.p_beyond <= alpha and (gap.low >= bound or gap.high <= -bound):
        return Finding.SLOWER if gap.low > 0.0 else Finding.FASTER, "the interval lies beyond the margin"
    if gap.contains(0.0):
        return Finding.UNDECIDED, "the interval contains both equality and gaps larger than the margin"
    if evidence.p_difference > alpha:
        return Finding.UNDECIDED, f"excludes equality {_CORRECTED}"
    if evidence.offset:
        return Finding.UNDECIDED, "a difference is shown, but the baseline also differs from itself"
    return Finding.DIFFERS, "a difference is shown, but not on which side of the margin"
