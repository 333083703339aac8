"""From blocks to evidence, with wider intervals for what Student's t takes for granted and blocks do not always give.

Dependence and drift: where the slowest movements of the blocks, the first q cosines over the run, hold more variance
than the rest (F test at 10 %), the mean's error is made of those q alone, with q degrees of freedom: the equal-weighted
cosine estimate of Lazarus, Lewis, Stock and Watson (2018), "HAR inference: recommendations for practice", J. Bus. Econ.
Stat. 36(4), with their q = 0.4 n^(2/3), rounded up and at least 2. Blocks that alternate make intervals wide by
themselves. The contenders of a race, eight blocks at most, are not asked: their error is always made so. Nor are blocks
of which the boot is known, because each of them ran on a machine of its own, restored from a frozen one: nothing of one
block reaches the next, and what they share is the boot (below). Of such blocks a bend is chance.

Variants: where the blocks ran in k boots of a machine, and those differ more than blocks of one do (F test at 25 %, the
"sometimes pool" rule of Bozivich, Bancroft and Hartley (1956), Ann. Math. Stat. 27(4)), the boot is a random effect,
and the mean's error is that between boots, with k - 1 degrees of freedom. Of the baseline against itself it is none:
both names ran on machines restored from one frozen one, so their true ratio is 1 in every boot, and boots that seem to
differ do so by chance.

Skewness: the far end of the interval on the side of the long tail moves out by g (2 t^2 + 1) / (6 sqrt n) standard
errors, g the sample skewness: the Edgeworth correction of Hall (1992), "On the removal of skewness by transformation",
JRSS B 54(1). The other end stays, so that no interval becomes narrower.

Twins: the baseline runs under two names, whose true ratio is 1. Where theirs is shown to differ, something that is not
the path makes so much of a difference; its size is not corrected for but added to both ends, as Phillips, Eberhardt and
Parry (1997), "Guidelines for expressing the uncertainty of measurement results containing uncorrected bias", J. Res.
NIST 102(5), do with a known bias.

Occasions: where each value is that of an occasion (an hour, a boot, an allocation), the interval is to hold what
another one gives, not the mean of all: Student's prediction interval, whose error is sd sqrt(1 + 1/n) (Hahn and Meeker
1991, "Statistical Intervals"). No widening beside it: occasions are few, and far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from nearmetal.errors import BadInputError
from nearmetal.stats.equivalence import ALPHA, Better, Evidence, beyond_p, margin_log, tost_p
from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.stats.modes import slow_launches
from nearmetal.stats.paired import PairedMoments, moments, two_sided_p
from nearmetal.units import rounded

LEAST_BLOCKS = 5
BOOTS_DIFFER = "boots of the machine differ"
_LOW_FREQUENCY_P = 0.1
_VARIANTS_P = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class BlockContext:
    """What else is known of the blocks of a comparison; each is empty or has one entry a block.

    `twins`: log ratio of the baseline's second name to its first, NaN where one of them is missing. `variants`: the
    frozen boot that the block's machines began from. `occasions`: each value is one of an occasion, and the evidence is
    about another one. `wandering`: blocks are taken to follow each other, for they are too few to be asked.
    """

    twins: FloatArray = field(default_factory=lambda: np.empty(0))
    variants: tuple[int, ...] = ()
    occasions: bool = False
    wandering: bool = False

    @property
    def steady(self) -> bool:
        """Return whether the blocks cannot drift: each began from a frozen boot."""
        return bool(self.variants)

    def first(self, blocks: int) -> BlockContext:
        """Return what is known of the first blocks."""
        return replace(self, twins=self.twins[:blocks], variants=self.variants[:blocks])

    def of_twins(self) -> BlockContext:
        """Return what is known where both sides are the baseline: a boot gives both the same, so boots count as one."""
        return replace(self, variants=(0,) * len(self.variants))


ALONE = BlockContext()
OCCASIONS = BlockContext(occasions=True)
WANDERING = BlockContext(wandering=True)


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """One figure of each side, one value a block: shape (blocks,) each, in the order the blocks ran.

    Values are positive, of the same unit on both sides; index i of both comes from block i. Where a run has several
    occasions, index i is one of them, the geometric mean of its blocks, and `launches` counts the blocks.
    """

    path: FloatArray
    baseline: FloatArray
    launches: int = field(default=0, kw_only=True)
    context: BlockContext = field(default=ALONE, kw_only=True)

    def __post_init__(self) -> None:
        if self.path.ndim != 1 or self.path.shape != self.baseline.shape or self.path.size == 0:
            raise BadInputError(
                f"path has figures of shape {self.path.shape}, baseline of {self.baseline.shape}",
                hint="give both one figure per block; leave out blocks in which one of them failed",
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

    def slow(self, blocks: int, margin: float, better: Better = Better.SMALLER) -> int:
        """Return how many of the first blocks stand apart as slower; occasions are no launches."""
        log_costs = better.sign * self.log_ratios[:blocks]
        return 0 if self.launches else slow_launches(log_costs, margin_log(margin))


def evidence_of(
    values: FloatArray,
    context: BlockContext,
    *,
    bound: float,
    alpha: float,
    interval: Callable[[PairedMoments, float], Interval],
    overall: Callable[[float], float] = float,
) -> Evidence:
    """Return the evidence in log cost ratios, one a block, shape (n,), n >= 2, against a margin of `bound`.

    `interval(moments, alpha)` makes the plain interval; `overall` turns a nominal two-sided p-value into one that holds
    over all looks.
    """
    plain = moments(values)
    of, why = (another(plain), "") if context.occasions else widened(plain, values, context)
    third = 0.0 if context.occasions else third_cumulant(plain, values)
    offset = offset_of(context, alpha, overall)
    if offset:
        itself = f"the baseline differs from itself by {rounded(100.0 * math.expm1(offset), 2)} %"
        why = "; ".join(filter(None, (why, itself)))

    def ends(level_alpha: float) -> Interval:
        found = interval(of, level_alpha)
        found = for_skewness(found, third, plain.standard_error**2, plain.df)
        return Interval(found.low - offset, found.high + offset, found.level)

    shift = max(0.0, abs(of.mean) - offset)
    inner = max(0.0, bound - offset)
    equal = tost_p(of.mean, of.standard_error, of.df, inner)
    return Evidence(
        difference=ends(alpha),
        equivalence=ends(2.0 * alpha),
        p_difference=overall(two_sided_p(replace(of, mean=shift))),
        # A one-sided p at twice its level meets the two-sided boundaries; beyond even odds there are none to meet.
        p_equivalence=overall(2.0 * equal) / 2.0 if equal < 0.5 else equal,
        p_beyond=overall(beyond_p(of.mean, of.standard_error, of.df, bound + offset)),
        margin_log=bound,
        wider=why,
        offset=offset,
    )


def another(plain: PairedMoments) -> PairedMoments:
    """Return the moments with the error of what one more value is predicted to be."""
    return replace(plain, standard_error=plain.sd * math.sqrt(1.0 + 1.0 / plain.n))


def widened(plain: PairedMoments, values: FloatArray, context: BlockContext = ALONE) -> tuple[PairedMoments, str]:
    """Return the moments with the error that the blocks deserve, and why it is not the plain one."""
    slow = None if context.steady else low_frequency(plain, values, sure=context.wandering)
    others = (
        (slow, "its blocks drift or are correlated"),
        (between_variants(plain, values, context.variants), BOOTS_DIFFER),
    )
    of, why = max(((one, why) for one, why in ((plain, ""), *others) if one), key=lambda one: one[0].reach(1.0 - ALPHA))
    if not why:
        return of, ""
    return of, f"{why}, which makes its interval {rounded(of.reach(0.95) / plain.reach(0.95), 2)} times as wide"


def low_frequency(plain: PairedMoments, values: FloatArray, *, sure: bool = False) -> PairedMoments | None:
    """Return moments whose error is that of the slowest movements; None where those do not stand out, unless `sure`."""
    n = values.size
    if n < LEAST_BLOCKS or plain.sd == 0.0:
        return None
    q = max(2, math.ceil(0.4 * n ** (2.0 / 3.0)))
    waves = np.cos(np.pi * np.arange(1, q + 1)[:, None] * (np.arange(n) + 0.5) / n) * math.sqrt(2.0 / n)
    low = float(((waves @ (values - plain.mean)) ** 2).sum()) / q
    rest = (plain.sd**2 * (n - 1) - low * q) / (n - 1 - q)
    if not sure and rest > 0.0 and special.fdtrc(q, n - 1 - q, low / rest) > _LOW_FREQUENCY_P:
        return None
    return replace(plain, standard_error=math.sqrt(low / n), df=q)


def between_variants(plain: PairedMoments, values: FloatArray, variants: tuple[int, ...]) -> PairedMoments | None:
    """Return moments whose error is that between variants, None where those do not differ more than blocks of one."""
    n, k = values.size, len({*variants})
    if not 2 <= k < n or plain.sd == 0.0:
        return None
    _, which, counts = np.unique(np.array(variants, dtype=np.int64), return_inverse=True, return_counts=True)
    means = np.bincount(which, weights=values) / counts
    among = float((counts * (means - plain.mean) ** 2).sum()) / (k - 1)
    within = float(((values - means[which]) ** 2).sum()) / (n - k)
    if within > 0.0 and special.fdtrc(k - 1, n - k, among / within) > _VARIANTS_P:
        return None
    apart = max(0.0, among - within) / ((n - float((counts**2).sum()) / n) / (k - 1))
    error = math.sqrt(apart * float((counts**2).sum()) / n**2 + within / n)
    return replace(plain, standard_error=error, df=k - 1)


def offset_of(context: BlockContext, alpha: float = ALPHA, overall: Callable[[float], float] = float) -> float:
    """Return by how much two names of one path are shown to differ (log ratio), 0 where they are not shown to."""
    both = np.isfinite(context.twins)
    known = context.twins[both]
    if known.size < LEAST_BLOCKS:
        return 0.0
    plain = moments(known)
    boots = tuple(itertools.compress(context.variants, both.tolist()))
    of, _ = widened(plain, known, BlockContext(variants=boots).of_twins())
    return abs(of.mean) if overall(two_sided_p(of)) <= alpha else 0.0


def voting(twins: Iterable[FloatArray], variants: tuple[int, ...] = ()) -> BlockContext:
    """Return the context of blocks in which the twins vote that differ most, where a comparison spans several cells."""
    return max((BlockContext(one, variants) for one in twins), key=offset_of, default=BlockContext(variants=variants))


def third_cumulant(of: PairedMoments, values: FloatArray) -> float:
    """Return the third cumulant of the mean of `values`, 0 where they are too few to tell; `of` are their moments."""
    if of.n < LEAST_BLOCKS or of.sd == 0.0:
        return 0.0
    centred = values - of.mean
    bias = math.sqrt(of.n * (of.n - 1)) / (of.n - 2)
    skewness = bias * float(np.mean(centred**3)) / float(np.mean(centred**2)) ** 1.5
    return float(skewness * of.standard_error**3 / math.sqrt(of.n))


def for_skewness(interval: Interval, third: float, variance: float, df: float) -> Interval:
    """Return an interval that reaches further on the side of the long tail of the estimate.

    `third` is the third cumulant of the estimate and `variance` its plain one, with `df` degrees of freedom.
    """
    if third == 0.0:
        return interval
    t = float(special.stdtrit(df, (1.0 + interval.level) / 2.0))
    more = abs(third) / variance * (2.0 * t * t + 1.0) / 6.0
    low, high = (interval.low, interval.high + more) if third > 0 else (interval.low - more, interval.high)
    return Interval(low, high, interval.level)
