"""Paired tests and effect sizes over blocks, and the correction of p-values for asking many questions at once.

Each block gives one pair of figures, and the pairs are independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.typed import JsonFloat

# Log ratios closer than this differ by floating-point rounding only: durations are whole nanoseconds, and even a
# second resolves relative differences of 1e-9.
ROUNDING = 1e-12
EXACT_PAIRS = 100

_Ranks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Significance:
    """A test's statistic, its two-sided p-value, and the number of pairs that it used (ties with 0 may drop out)."""

    statistic: JsonFloat
    p: float
    n: int


@dataclass(frozen=True, slots=True)
class PairedMoments:
    """Mean, standard deviation and standard error of n >= 2 paired differences; `df` are those of the error."""

    n: int
    mean: float
    sd: float
    standard_error: float
    df: int

    def reach(self, level: float) -> float:
        """Return the half-width of Student's interval of the mean."""
        return float(special.stdtrit(self.df, (1.0 + level) / 2.0)) * self.standard_error

    def interval(self, level: float) -> Interval:
        """Return Student's interval."""
        reach = self.reach(level)
        return Interval(self.mean - reach, self.mean + reach, level)


def moments(differences: FloatArray) -> PairedMoments:
    """Return the moments of n >= 2 differences; a spread that is only rounding counts as none."""
    n = differences.size
    if n < 2:
        raise ValueError(f"{n} differences have no spread")
    mean = float(differences.mean())
    sd = float(differences.std(ddof=1))
    if sd <= ROUNDING * max(1.0, abs(mean)):
        sd = 0.0
    return PairedMoments(n, mean, sd, sd / math.sqrt(n), n - 1)


def two_sided_p(of: PairedMoments) -> float:
    """Return P(|T| >= |mean / se|) for Student's t with n - 1 degrees of freedom."""
    if of.standard_error == 0.0:
        return 1.0 if abs(of.mean) <= ROUNDING else 0.0
    return 2.0 * float(special.stdtr(of.df, -abs(of.mean) / of.standard_error))


def paired_t_test(path: FloatArray, baseline: FloatArray) -> Significance:
    """Return the two-tailed paired t-test on the figures themselves, shape (n,) each, n >= 2.

    t = mean(d) / (sd(d) / sqrt n) with d = path - baseline and n - 1 degrees of freedom: Student (1908), "The
    probable error of a mean", Biometrika 6(1). This is the test that papers on virtualized networks print.
    """
    scale = float(np.abs(baseline).max()) or 1.0
    of = moments((path - baseline) / scale)
    if of.standard_error == 0.0:
        return Significance(
            0.0 if abs(of.mean) <= ROUNDING else math.copysign(math.inf, of.mean), two_sided_p(of), of.n
        )
    return Significance(of.mean / of.standard_error, two_sided_p(of), of.n)


def wilcoxon_signed_rank(differences: FloatArray) -> Significance:
    """Return the Wilcoxon signed-rank test, exact up to 100 pairs also with ties and zeros, shape (n,), n >= 1.

    Zeros are dropped (Wilcoxon's own rule), ties share mid-ranks. statistic = min(W+, W-); p = min(1, 2 P(W <=
    statistic)) over all 2^n signs given the ranks. Wilcoxon (1945), "Individual comparisons by ranking methods",
    Biometrics Bull. 1(6); given ties: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, section 3.1.
    Beyond 100 pairs the normal limit with the same mean and variance is used, with continuity correction.
    """
    kept = differences[np.abs(differences) > ROUNDING]
    if kept.size == 0:
        return Significance(0.0, 1.0, 0)
    ranks = doubled_midranks(np.abs(kept))
    positive = int(ranks[kept > 0].sum())
    smaller = min(positive, int(ranks.sum()) - positive)
    below = _exact_cdf(ranks, smaller) if kept.size <= EXACT_PAIRS else _normal_cdf(ranks, smaller)
    return Significance(smaller / 2.0, min(1.0, 2.0 * below), kept.size)


def _exact_cdf(ranks: _Ranks, statistic: int) -> float:
    """Return P(sum of the positive ranks <= statistic) when every sign is a fair coin, by dynamic programming."""
    probability = np.zeros(int(ranks.sum()) + 1)
    probability[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: probability.size - rank]
        probability = 0.5 * (probability + shifted)
    return float(probability[: statistic + 1].sum())


def _normal_cdf(ranks: _Ranks, statistic: int) -> float:
    """Return the same in the limit of many pairs; doubled ranks come in steps of 2, so half a step is 1."""
    mean, sd = float(ranks.sum()) / 2.0, math.sqrt(float((ranks.astype(np.float64) ** 2).sum())) / 2.0
    return float(special.ndtr((statistic + 1.0 - mean) / sd))


def doubled_midranks(values: FloatArray) -> _Ranks:
    """Return twice the mid-rank of each value, an integer; values equal up to rounding are ties."""
    rounded = np.round(values / ROUNDING) if values.max() < 1e3 else values
    _, group, sizes = np.unique(rounded, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return np.asarray((2 * last - sizes + 1)[group], dtype=np.int64)


def rank_biserial(differences: FloatArray) -> float | None:
    """Return the matched-pairs rank-biserial correlation (W+ - W-) / (W+ + W-), in -1..1; None when all are zero.

    Kerby (2014), "The simple difference formula", Comprehensive Psychology 3.
    """
    kept = differences[np.abs(differences) > ROUNDING]
    if kept.size == 0:
        return None
    ranks = doubled_midranks(np.abs(kept))
    return float(ranks[kept > 0].sum() - ranks[kept < 0].sum()) / float(ranks.sum())


def cohens_dz(of: PairedMoments) -> float | None:
    """Return mean(d) / sd(d), the standardized paired effect; None when the differences do not vary.

    Cohen (1988), Statistical Power Analysis, section 2.3.5; Lakens (2013), Frontiers in Psychology 4:863.
    """
    return None if of.sd == 0.0 else of.mean / of.sd


def hedges_gz(of: PairedMoments) -> float | None:
    """Return Cohen's d_z times J(n - 1), which removes its small-sample bias; None when the differences do not vary.

    J(m) = Gamma(m / 2) / (sqrt(m / 2) Gamma((m - 1) / 2)), for m >= 2: Hedges (1981), "Distribution theory for
    Glass's estimator", J. Educ. Stat. 6(2).
    """
    effect = cohens_dz(of)
    if effect is None or of.df < 2:
        return None
    log_j = math.lgamma(of.df / 2.0) - math.lgamma((of.df - 1) / 2.0) - 0.5 * math.log(of.df / 2.0)
    return effect * math.exp(log_j)


# ---- correction for asking many questions at once


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Return Holm's step-down adjusted p-values, in the order given; shape (m,).

    With p_(1) <= ... <= p_(m): adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). Rejecting where the
    adjusted value is <= alpha keeps the chance of any false claim in the family at alpha, whatever the dependence.
    Holm (1979), "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 6(2).
    """
    p = _checked(p_values)
    ascending = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, p[ascending] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[ascending] = np.maximum.accumulate(scaled)
    return adjusted


def benjamini_hochberg(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Return p-values adjusted for the false discovery rate, in the order given; shape (m,).

    With p_(1) <= ... <= p_(m): adjusted p_(i) = min over j >= i of min(1, m p_(j) / j). Of the claims made where the
    adjusted value is <= alpha, at most the share alpha is false on average, and when nothing at all is true the chance
    of any claim is at most alpha; for independent and for positively dependent tests. Benjamini and Hochberg (1995),
    "Controlling the false discovery rate", JRSS B 57(1); dependence: Benjamini and Yekutieli (2001), Ann. Stat. 29(4).
    """
    p = _checked(p_values)
    ascending = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, p[ascending] * p.size / np.arange(1, p.size + 1))
    adjusted = np.empty_like(p)
    adjusted[ascending] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.maximum(adjusted, p)  # m p / m may round to less than p


def _checked(p_values: Sequence[float] | FloatArray) -> FloatArray:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not bool(np.all((p >= 0.0) & (p <= 1.0))):
        raise ValueError(f"p-values must be a row of numbers in 0..1, got {p}")
    return p
