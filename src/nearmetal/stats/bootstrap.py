"""Intervals for a mean over few blocks, by a studentized wild bootstrap over blocks.

Resampling whole blocks with replacement needs more blocks than a study can afford: with 5-15 of them the percentile
and BCa intervals cover 75-92 % instead of 95 %, and the plain bootstrap-t, though it covers, returns absurd intervals
when one block had a hiccup (a resample that misses it has almost no spread to divide by). Multiplying each block's
residual by an independent random weight keeps every block in every resample, so the studentized statistic stays
finite; 5 blocks of symmetric ratios are covered at 94-98 % already (bench/aa_calibration.py measures it).
"""

import math
from enum import StrEnum

import numpy as np

from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.stats.paired import moments

REPLICATES = 4999  # (REPLICATES + 1) * level is whole for 0.95 and 0.90
MIN_BLOCKS = 5  # below that the six weights give too few distinct resamples
_WEIGHTS = np.array([math.sqrt(w) * sign for sign in (-1.0, 1.0) for w in (0.5, 1.0, 1.5)])


class IntervalMethod(StrEnum):
    """How an interval over blocks was made; always shown with it."""

    WILD_BOOTSTRAP_T = "wild bootstrap-t over blocks"
    STUDENT_T = "Student's t over blocks (fewer than 5 blocks)"
    REPEATED = "repeated confidence interval (alpha spending)"
    ANOTHER = "Student's t, for another occasion"
    NONE = "none (too few blocks)"


def mean_intervals(
    values: FloatArray, levels: tuple[float, ...], rng: np.random.Generator
) -> tuple[IntervalMethod, tuple[Interval, ...]]:
    """Return how, and one interval for the mean of `values`, shape (n,) with n >= 2, at each of `levels`.

    The wild bootstrap from 5 blocks on; below, mean -/+ t se with Student's t on n - 1 degrees of freedom.
    """
    if values.size >= MIN_BLOCKS:
        return IntervalMethod.WILD_BOOTSTRAP_T, wild_bootstrap_t(values, levels, rng)
    of = moments(values)
    return IntervalMethod.STUDENT_T, tuple(of.interval(level) for level in levels)


def wild_bootstrap_t(
    values: FloatArray, levels: tuple[float, ...], rng: np.random.Generator, *, replicates: int = REPLICATES
) -> tuple[Interval, ...]:
    """Return one interval for the mean of `values`, shape (n,) with n >= 5, at each of `levels`.

    mean -/+ q(level) se, where q is the quantile of |T*|, T* = mean(w e) / (sd(w e) / sqrt n), e the residuals
    values - mean, and w independent weights from {-/+ sqrt 0.5, -/+ 1, -/+ sqrt 1.5} with equal chance: Webb (2023),
    "Reworking wild bootstrap-based inference for clustered errors", Can. J. Econ. 56(3); studentizing: Hall (1988),
    "On symmetric bootstrap confidence intervals", JRSS B 50(1). Without spread every interval is the mean itself.
    """
    of = moments(values)
    if of.sd == 0.0:
        return tuple(Interval(of.mean, of.mean, level) for level in levels)
    drawn = rng.choice(_WEIGHTS, size=(replicates, values.size)) * (values - of.mean)
    spread = drawn.std(axis=1, ddof=1)
    with np.errstate(divide="ignore"):
        statistic = np.sort(np.abs(drawn.mean(axis=1)) * math.sqrt(values.size) / spread)
    reach = [
        float(statistic[min(replicates, math.ceil((replicates + 1) * level - 1e-9)) - 1]) * of.standard_error
        for level in levels
    ]
    return tuple(Interval(of.mean - r, of.mean + r, level) for r, level in zip(reach, levels, strict=True))
