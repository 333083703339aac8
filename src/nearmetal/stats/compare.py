"""A path against its baseline, over blocks.

Iterations are never pooled: iterations of one launch share its memory layout, its neighbours and its mood, so a
million of them are still one draw. The unit is the block, in which path and baseline ran once each; its two figures
make one log ratio, and those log ratios are independent and comparable across blocks.

The ratio reported is the geometric mean over blocks, exp(mean of log(path / baseline)): it does not depend on which
of the two is called the baseline (Fleming and Wallace (1986), "How not to lie with statistics", CACM 29(3)), it uses
every block, and it is the very quantity that the t-test, TOST and the sequential intervals speak about. Robustness
comes from the figures: each is already a median or a percentile of thousands of iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.errors import BadInputError
from nearmetal.stats import paired
from nearmetal.stats.bootstrap import IntervalMethod, mean_intervals
from nearmetal.stats.correction import holm
from nearmetal.stats.equivalence import (
    ALPHA,
    MARGIN,
    Better,
    Evidence,
    Judgement,
    Verdict,
    judge,
    margin_log,
    tost_p,
)
from nearmetal.stats.stopping import StoppingPlan, as_ratio, sequential_evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.stats.interval import FloatArray, Interval


__all__ = [
    "BlockFigures",
    "Comparison",
    "IntervalMethod",
    "RatioEstimate",
    "compare",
    "correct_family",
    "estimate_ratio",
]


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """One figure of each side, one value a block: shape (blocks,) each, in the order the blocks ran.

    Values are positive, of the same unit on both sides; index i of both comes from block i.
    """

    path: FloatArray
    baseline: FloatArray

    def __post_init__(self) -> None:
        if self.path.ndim != 1 or self.path.shape != self.baseline.shape or self.path.size == 0:
            raise BadInputError(
                f"path has figures of shape {self.path.shape}, baseline of {self.baseline.shape}",
                hint="give one figure a block to both; leave out blocks in which one of them failed",
            )
        both = np.concatenate((self.path, self.baseline))
        if not bool(np.all(np.isfinite(both) & (both > 0.0))):
            raise BadInputError(
                "figures over blocks must be positive and finite to form ratios",
                hint="a median of 0 ns means that the operation is faster than the clock can tell",
            )

    @property
    def log_ratios(self) -> FloatArray:
        """Return log(path / baseline) of each block, shape (blocks,)."""
        return np.asarray(np.log(self.path / self.baseline), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """One figure compared: path / baseline as measured (above 1 is worse for times, better for rates).

    `interval` is the 1 - alpha interval of the ratio, `equivalence_interval` the 1 - 2 alpha one that TOST looks at.
    `t_test` is the papers' test on the raw figures; `evidence.p_difference`, on log ratios, is what verdicts use.
    `t_test`, `wilcoxon` and effect sizes are positive when the path's figure is larger; they and the evidence are
    None when there are too few blocks, and effect sizes also when nothing varies. After an adaptive stop the single
    p-values of `t_test` and `wilcoxon` ignore the earlier looks and are for comparison with published tables only.
    """

    n: int
    ratio: float
    interval: Interval | None
    equivalence_interval: Interval | None
    method: IntervalMethod
    t_test: paired.Significance | None
    wilcoxon: paired.Significance | None
    cohens_dz: float | None
    hedges_gz: float | None
    rank_biserial: float | None
    evidence: Evidence | None
    judgement: Judgement

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on this figure."""
        return self.judgement.verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """A path against its baseline in one cell (operation and size): by medians, and by p99 where n supports it.

    The verdict on the path in this cell is that on the medians; the one on p99 speaks about the tail.
    """

    median: RatioEstimate
    p99: RatioEstimate | None
    better: Better
    margin: float

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the medians."""
        return self.median.verdict


def compare(
    medians: BlockFigures,
    p99s: BlockFigures | None,
    *,
    rng: np.random.Generator,
    better: Better = Better.SMALLER,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    plan: StoppingPlan | None = None,
) -> Comparison:
    """Compare a path with its baseline; `p99s` is None where the trials are too short to support a p99.

    `plan` is that of the sequential stopping when the number of blocks was not fixed beforehand: its alpha and margin
    then count, and its intervals are the only valid ones. Otherwise `rng` drives the bootstrap.
    """
    margin, alpha = (plan.margin, plan.alpha) if plan else (margin, alpha)

    def one(figures: BlockFigures) -> RatioEstimate:
        return estimate_ratio(figures, rng=rng, better=better, margin=margin, alpha=alpha, plan=plan)

    return Comparison(one(medians), one(p99s) if p99s is not None else None, better, margin)


def estimate_ratio(
    figures: BlockFigures,
    *,
    rng: np.random.Generator,
    better: Better = Better.SMALLER,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    plan: StoppingPlan | None = None,
) -> RatioEstimate:
    """Compare one figure (see `compare`)."""
    log_costs = better.sign * figures.log_ratios
    used, method, evidence = _evidence(log_costs, rng, margin_log(margin), alpha, plan)
    kept = BlockFigures(figures.path[:used], figures.baseline[:used])
    few = Judgement(Verdict.UNDECIDED, f"{used} blocks are too few for an interval", None, None)
    of = paired.moments(kept.log_ratios) if used > 1 else None
    return RatioEstimate(
        n=used,
        ratio=math.exp(float(kept.log_ratios.mean())),
        interval=as_ratio(evidence.difference, better) if evidence else None,
        equivalence_interval=as_ratio(evidence.equivalence, better) if evidence else None,
        method=method,
        t_test=paired.paired_t_test(kept.path, kept.baseline) if of else None,
        wilcoxon=paired.wilcoxon_signed_rank(kept.log_ratios) if of else None,
        cohens_dz=paired.cohens_dz(of) if of else None,
        hedges_gz=paired.hedges_gz(of) if of else None,
        rank_biserial=paired.rank_biserial(kept.log_ratios) if of else None,
        evidence=evidence,
        judgement=judge(evidence, alpha=alpha) if evidence else few,
    )


def _evidence(
    log_costs: FloatArray, rng: np.random.Generator, bound: float, alpha: float, plan: StoppingPlan | None
) -> tuple[int, IntervalMethod, Evidence | None]:
    """Return the number of blocks used, the method and the evidence."""
    if plan is not None:
        found = sequential_evidence(log_costs, plan)
        return (found[0], IntervalMethod.REPEATED, found[1]) if found else (log_costs.size, IntervalMethod.NONE, None)
    if log_costs.size < 2:
        return log_costs.size, IntervalMethod.NONE, None
    of = paired.moments(log_costs)
    method, (difference, equivalence) = mean_intervals(log_costs, (1.0 - alpha, 1.0 - 2.0 * alpha), rng)
    p_equivalence = tost_p(of.mean, of.standard_error, of.df, bound)
    return of.n, method, Evidence(difference, equivalence, paired.two_sided_p(of), p_equivalence, bound)


def correct_family(comparisons: Sequence[Comparison], *, alpha: float = ALPHA) -> tuple[Comparison, ...]:
    """Return the comparisons of one path, in the order given, with verdicts corrected for their number.

    Holm's step-down is applied over all its sizes and operations, to four families of claims apart: difference and
    equivalence, of medians and of p99. In each the chance of any false claim is at most alpha.
    """
    medians = _correct([c.median for c in comparisons], alpha)
    tails = iter(_correct([c.p99 for c in comparisons if c.p99 is not None], alpha))
    return tuple(
        replace(c, median=median, p99=next(tails) if c.p99 is not None else None)
        for c, median in zip(comparisons, medians, strict=True)
    )


def _correct(estimates: list[RatioEstimate], alpha: float) -> list[RatioEstimate]:
    judged = [e.evidence for e in estimates if e.evidence is not None]
    difference = iter(holm([e.p_difference for e in judged]).tolist())
    equivalence = iter(holm([e.p_equivalence for e in judged]).tolist())
    return [
        e
        if e.evidence is None
        else replace(
            e,
            judgement=judge(e.evidence, p_difference=next(difference), p_equivalence=next(equivalence), alpha=alpha),
        )
        for e in estimates
    ]
