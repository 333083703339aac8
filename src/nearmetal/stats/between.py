"""Two runs, measured at different times: their blocks are not paired, so nothing cancels.

Each side gives one figure a block. The difference of the means of their logs is the log ratio run / base, with the
interval of Welch (1947), "The generalization of Student's problem when several different population variances are
involved", Biometrika 34. It is set against *one* boundary, the margin: a run is `within` when it is shown to cost less
than the margin more, `worse` when it is shown to cost more than that, and otherwise `undecided`. At any true
difference only one of the two claims can be false, and each is a one-sided test at half of alpha: the same as reading
where the two-sided 1 - alpha interval lies. Each side's error is the one that its own report gives it: of its slowest
movements where its blocks drift, of its boots where those differ, and the interval reaches further on the side of the
long tail (`widen`). Boots of two runs count as different ones.

What the interval cannot know is how much two runs of the *same* state differ (another day, another boot). Where that
was measured, `floor` states it, and a claim of `worse` must exceed it too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy import special

from nearmetal.stats.equivalence import ALPHA, MARGIN, Better, margin_log
from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.stats.paired import PairedMoments, holm, moments
from nearmetal.stats.stopping import as_ratio
from nearmetal.stats.widen import ALONE, BlockContext, for_skewness, third_cumulant, widened
from nearmetal.units import counted

LEAST_BLOCKS = 2
_MOST_WANTED = 1000


class Standing(StrEnum):
    """How a run stands to its base in one cell; `better` is `within` with more than the margin gained."""

    WITHIN = "within"
    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"

    @property
    def passes(self) -> bool:
        """Return whether the run costs at most the margin more, as shown."""
        return self in {Standing.WITHIN, Standing.BETTER}


@dataclass(frozen=True, slots=True)
class Measured:
    """How much of one run is in a comparison: its blocks; of several occasions each has one figure.

    `boots` is how many boots of the machine its error rests on, 0 where it rests on blocks. `wider` says why its share
    of the interval is wider than Student's.
    """

    blocks: int
    occasions: int = 1
    boots: int = 0
    wider: str = ""

    @property
    def figures(self) -> int:
        """Return how many figures were compared."""
        return self.occasions if self.occasions > 1 else self.blocks

    def __str__(self) -> str:
        return counted(self.figures, "occasion" if self.occasions > 1 else "block")


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell of two runs.

    `log_gap` is the estimate of the log cost ratio (above 0 the run costs more), `log_cost` its 1 - alpha interval and
    `df` its degrees of freedom. `ratio` is run / base of the figure as shown with its `interval` (above 1 is worse for
    times, better for rates). `floor` is the relative difference known between runs of one state, None when it was not
    measured. `p_worse` is the one-sided p-value against a cost at most max(margin, floor) more, corrected for the
    family once `judge_family` was asked. `resolution` is the relative half-width of the interval: what these blocks can
    tell apart at all.
    """

    run: Measured
    base: Measured
    log_gap: float
    df: float
    ratio: float
    interval: Interval
    log_cost: Interval
    p_worse: float
    floor: float | None
    margin: float
    standing: Standing
    reason: str

    @property
    def resolution(self) -> float:
        """Return exp(half-width) - 1."""
        half = (self.log_cost.high - self.log_cost.low) / 2.0
        return math.expm1(half) if half < 700.0 else math.inf

    @property
    def beyond(self) -> bool:
        """Return whether the estimate itself, interval aside, costs more than the margin: it looks worse."""
        return self.log_gap > margin_log(self.margin)


@dataclass(frozen=True, slots=True)
class _Side:
    """One run's part: its plain moments, those with the error that its blocks deserve, and its skewness."""

    plain: PairedMoments
    of: PairedMoments
    third: float
    measured: Measured


def _side(logs: FloatArray, context: BlockContext, measured: Measured | None) -> _Side:
    plain = moments(logs)
    counted_ = measured or Measured(plain.n)
    if context.occasions:
        return _Side(plain, plain, 0.0, counted_)
    of, why = widened(plain, logs, context)
    boots = len(set(context.variants)) if of is not plain and context.variants else 0
    return _Side(plain, of, third_cumulant(plain, logs), replace(counted_, boots=boots, wider=why))


def difference(
    run: FloatArray,
    base: FloatArray,
    *,
    better: Better = Better.SMALLER,
    margin: float = MARGIN,
    floor: float | None = None,
    measured: tuple[Measured, Measured] | None = None,
    contexts: tuple[BlockContext, BlockContext] = (ALONE, ALONE),
) -> Difference | None:
    """Compare one figure a block of two runs, shapes (n,) and (m,), positive; None below 2 blocks on a side.

    `measured` says what the figures of both are of, blocks if left out; `contexts` what else is known of them.
    The standing is that of this cell alone: `judge_family` corrects it for multiple comparisons.
    """
    if min(run.size, base.size) < LEAST_BLOCKS:
        return None
    sides = [
        _side(better.sign * np.log(values), context, known)
        for values, context, known in zip((run, base), contexts, measured or (None, None), strict=True)
    ]
    ours, theirs = sides
    gap = ours.of.mean - theirs.of.mean
    error, df = _welch([one.of for one in sides])
    reach = float(special.stdtrit(df, 1.0 - ALPHA / 2.0)) * error
    plain_error, plain_df = _welch([one.plain for one in sides])
    log_cost = for_skewness(
        Interval(gap - reach, gap + reach, 1.0 - ALPHA), ours.third - theirs.third, plain_error**2, plain_df
    )
    bound = max(margin_log(margin), math.log1p(floor or 0.0))
    found = Difference(
        run=ours.measured,
        base=theirs.measured,
        log_gap=gap,
        df=df,
        ratio=math.exp(better.sign * gap),
        interval=as_ratio(log_cost, better),
        log_cost=log_cost,
        p_worse=_p_above(gap, bound, error, df),
        floor=floor,
        margin=margin,
        standing=Standing.UNDECIDED,
        reason="",
    )
    return _judged(found, found.p_worse)


def _welch(of: Sequence[PairedMoments]) -> tuple[float, float]:
    """Return Welch's error, and its degrees of freedom (sum v)^2 / sum(v^2 / df), v the squared standard errors."""
    parts = [one.standard_error**2 for one in of]
    total = sum(parts)
    if total == 0.0:
        return 0.0, float(sum(one.df for one in of))
    return math.sqrt(total), 1.0 / sum((part / total) ** 2 / one.df for part, one in zip(parts, of, strict=True))


def _p_above(gap: float, bound: float, error: float, df: float) -> float:
    """Return P(T >= (gap - bound) / error): small when the gap lies beyond the bound."""
    if error == 0.0:
        return 0.0 if gap > bound else 1.0
    return float(special.stdtr(df, (bound - gap) / error))


def judge_family(cells: Sequence[Difference | None]) -> tuple[Difference | None, ...]:
    """Return the cells in the order given, judged together; None stays None but counts as a member.

    Claims of `worse` are corrected by Holm over the family, so that the chance of any false one is at most alpha / 2.
    Claims of `within` need no correction: what they are used for is that *every* cell is within, and a claim that
    holds only when each of its parts is shown at a level has that level itself (the intersection-union test: Berger
    (1982), "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24(4)).
    """
    corrected = holm([1.0 if one is None else one.p_worse for one in cells])
    return tuple(None if one is None else _judged(one, float(p)) for one, p in zip(cells, corrected, strict=True))


def _judged(one: Difference, p_worse: float) -> Difference:
    standing, reason = _standing(one, p_worse)
    return replace(one, p_worse=p_worse, standing=standing, reason=reason)


def _standing(one: Difference, p_worse: float) -> tuple[Standing, str]:
    edge, floor = margin_log(one.margin), math.log1p(one.floor or 0.0)
    if one.log_cost.high < -edge:
        return Standing.BETTER, "the interval lies beyond the margin on the good side"
    if one.log_cost.high < edge:
        return Standing.WITHIN, "the interval lies below the margin"
    if one.log_cost.low <= edge:
        return Standing.UNDECIDED, "; ".join(("the interval contains the margin", _what_settles(one), *_wider(one)))
    if one.log_cost.low <= floor:
        return Standing.UNDECIDED, "beyond the margin, but not beyond the difference between runs of one state"
    if p_worse <= ALPHA / 2.0:
        return Standing.WORSE, "the interval lies beyond the margin"
    return Standing.UNDECIDED, "beyond the margin by itself, but not after correction for the number of cells"


def _wider(one: Difference) -> Iterator[str]:
    """Yield why a run's blocks make the interval wide."""
    for name, side in (("run", one.run), ("base", one.base)):
        if side.wider:
            yield f"of the {name}, {side.wider}"


def _what_settles(one: Difference) -> str:
    """Return about how many blocks a side would settle the estimate, where it is not on the margin itself."""
    edge = margin_log(one.margin)
    away = abs(one.log_gap - edge)
    if away < edge / 100.0:
        return "it lies on the margin itself"
    if one.run.boots or one.base.boots:
        return "more boots of the machine would narrow it, more blocks of the same hardly would"
    of = "occasions" if max(one.run.occasions, one.base.occasions) > 1 else "blocks"
    least = min(one.run.figures, one.base.figures)
    reach = one.log_gap - one.log_cost.low if one.log_gap > edge else one.log_cost.high - one.log_gap
    n = np.arange(least, _MOST_WANTED + 1)
    t_now, t_then = special.stdtrit(one.df, 0.975), special.stdtrit(one.df * (n - 1) / (least - 1), 0.975)
    settled = n[reach * t_then / t_now * np.sqrt(least / n) < away]
    if not settled.size:
        return f"more than {_MOST_WANTED} {of} in each run would be needed to settle it"
    return f"about {settled[0]} {of} in each run would settle it"


def floor_between(occasions: Sequence[FloatArray]) -> float | None:
    """Return by how much runs of one state differ: the largest relative difference of two occasions' levels.

    Each entry holds one figure a block; None for fewer than two occasions that have any.
    """
    means = [float(np.log(one).mean()) for one in occasions if one.size]
    return math.expm1(max(means) - min(means)) if len(means) > 1 else None
