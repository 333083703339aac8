"""Equivalence within a margin, and the one rule that turns intervals and p-values into a verdict.

All figures here are *log cost ratios*: log(path / baseline) for a figure where smaller is better, its negative where
larger is better. Above 0 the path costs more than the baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from scipy import special

from nearmetal.errors import BadInputError

if TYPE_CHECKING:
    from nearmetal.stats.interval import Interval

MARGIN = 0.05
ALPHA = 0.05


class Better(StrEnum):
    """Which way a figure is good: times are better smaller, rates better larger."""

    SMALLER = "smaller"
    LARGER = "larger"

    @property
    def sign(self) -> int:
        """Return the factor that turns log(path / baseline) into a log cost ratio."""
        return 1 if self is Better.SMALLER else -1


class Verdict(StrEnum):
    """What a comparison found; `undecided` is an answer, never dressed up as equality."""

    NEAR_METAL = "near-metal"
    SLOWER = "slower"
    FASTER = "faster"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is made from, for one comparison.

    `difference` is the 1 - alpha interval of the log cost ratio, `equivalence` the 1 - 2 alpha interval (the interval
    form of two one-sided tests at alpha). `p_difference` is two-sided against a log ratio of 0, `p_equivalence` the
    TOST p-value against the margin. `margin_log` = log(1 + margin).
    """

    difference: Interval
    equivalence: Interval
    p_difference: float
    p_equivalence: float
    margin_log: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the reason in words and the p-values it used, corrected for the family it stands in.

    `beyond_margin` tells that the whole interval lies outside the margin: the gap is not only real but as large as
    the study said matters.
    """

    verdict: Verdict
    reason: str
    p_difference: float | None
    p_equivalence: float | None
    beyond_margin: bool = False


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


def judge(
    evidence: Evidence, *, p_difference: float | None = None, p_equivalence: float | None = None, alpha: float = ALPHA
) -> Judgement:
    """Return the verdict on one comparison; `p_*` are the corrected p-values, those of the evidence when not given.

    In this order:

    1. `near-metal`: TOST rejects (corrected p <= alpha) and the equivalence interval lies within the margin. This
       holds even when the interval also excludes equality: a real gap of 1 % is within a margin of 5 %.
    2. `slower` / `faster`: the 1 - alpha interval lies entirely above / below equality, the corrected p of the
       difference is <= alpha, and the interval does not lie within the margin.
    3. `undecided`: everything else. A large p of the difference is never taken for equality.
    """
    p_diff = evidence.p_difference if p_difference is None else p_difference
    p_eq = evidence.p_equivalence if p_equivalence is None else p_equivalence
    low, high = -evidence.margin_log, evidence.margin_log
    within = evidence.equivalence.inside(low, high)
    if within and p_eq <= alpha:
        return Judgement(Verdict.NEAR_METAL, "the interval lies within the margin", p_diff, p_eq)
    gap = evidence.difference
    excludes = not gap.contains(0.0)
    if excludes and p_diff <= alpha and not within:
        verdict = Verdict.SLOWER if gap.low > 0.0 else Verdict.FASTER
        beyond = gap.low >= high or gap.high <= low
        size = "beyond the margin" if beyond else "but may be smaller than the margin"
        return Judgement(verdict, f"the interval excludes equality, {size}", p_diff, p_eq, beyond)
    return Judgement(Verdict.UNDECIDED, _why_undecided(within=within, excludes=excludes), p_diff, p_eq)


def _why_undecided(*, within: bool, excludes: bool) -> str:
    if within:
        return "within the margin by itself, but not after correction for the number of comparisons"
    if excludes:
        return "excludes equality by itself, but the test, corrected for the number of comparisons, does not"
    return "the interval holds both equality and gaps larger than the margin; more blocks are needed"
