"""A path against its baseline, over blocks.

Iterations are never pooled: iterations of one launch share its memory layout, its neighbours and its mood, so a
million of them are still one draw. The unit is the block, in which path and baseline ran once each; its two figures
make one log ratio, and those log ratios are independent and comparable across blocks.

The ratio reported is the geometric mean over blocks, exp(mean of log(path / baseline)): it does not depend on which
of the two is called the baseline (Fleming and Wallace (1986), "How not to lie with statistics", CACM 29(3)), it uses
every block, and it is the very quantity that the t-test, TOST and the sequential intervals speak about. Robustness
comes from the figures: each is already a trimmed mean, a median or a percentile of thousands of iterations.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nearmetal.stats import paired as tests
from nearmetal.stats.bootstrap import IntervalMethod, mean_intervals
from nearmetal.stats.conclude import Conclusion, Criteria, conclude
from nearmetal.stats.equivalence import ALPHA, MARGIN, Better, Evidence, Finding, Judgement, Verdict, judge, margin_log
from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.stats.paired import holm
from nearmetal.stats.stopping import StoppingPlan, as_ratio, sequential_evidence
from nearmetal.stats.summary import HEADLINE, Metric, Summary, by_occasion, has_spread, over_blocks, over_names
from nearmetal.stats.widen import ALONE, LEAST_BLOCKS, OCCASIONS, BlockContext, BlockFigures, evidence_of, voting
from nearmetal.units import counted


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """One figure compared: path / baseline as measured (above 1 is worse for times, better for rates).

    `interval` is the 1 - alpha interval of the ratio, `equivalence_interval` the 1 - 2 alpha one that TOST looks at.
    `t_test` is the papers' test on the raw figures; `evidence.p_difference`, on log ratios, is what verdicts use.
    `t_test`, `wilcoxon` and effect sizes are positive when the path's figure is larger; they and the evidence are
    None when there are too few blocks, and effect sizes also when nothing varies. `launches` is as in BlockFigures:
    where it is not 0, `n` counts occasions. After an adaptive stop the single p-values of `t_test` and `wilcoxon`
    ignore the earlier looks and are for comparison with published tables only.
    """

    n: int
    ratio: float
    interval: Interval | None
    equivalence_interval: Interval | None
    method: IntervalMethod
    t_test: tests.Significance | None
    wilcoxon: tests.Significance | None
    cohens_dz: float | None
    hedges_gz: float | None
    rank_biserial: float | None
    evidence: Evidence | None
    judgement: Judgement
    launches: int = 0

    @property
    def finding(self) -> Finding:
        """Return what this figure was found to be."""
        return self.judgement.finding

    @property
    def blocks(self) -> int:
        """Return in how many blocks both sides were launched."""
        return self.launches or self.n

    @property
    def occasions(self) -> int:
        """Return at how many occasions those were."""
        return self.n if self.launches else 1


@dataclass(frozen=True, slots=True)
class CellComparison:
    """A path against its baseline in one cell (operation and size), figure by figure.

    `estimates` holds the mean always, and median and p99 where they are not refused: `refused` says why they are. A
    metric in neither does not apply to the cell. `slow` counts launches that stand apart as slower than the rest,
    `steady` tells that the blocks cannot drift.
    """

    estimates: Mapping[Metric, RatioEstimate]
    refused: Mapping[Metric, str]
    better: Better
    criteria: Criteria
    slow: int = 0
    steady: bool = False

    @property
    def headline(self) -> RatioEstimate:
        """Return the figure that tables rank and sentences quote: the mean."""
        return self.estimates[HEADLINE]

    @property
    def launches(self) -> int:
        """Return in how many blocks both sides were launched, whether the figures are of blocks or of occasions."""
        return self.headline.blocks

    @property
    def conclusion(self) -> Conclusion:
        """Return the verdict on the cell, and why; an open one also says what made its intervals wide."""
        findings = {metric: one.finding for metric, one in self.estimates.items()}
        found = conclude(findings, self.refused, self.launches, self.criteria, slow=self.slow, steady=self.steady)
        if found.verdict is Verdict.SLOWER_TAIL:
            return replace(
                found, reason=f"near-metal in the body, tail {100.0 * (self.cost(Metric.P99) - 1.0):.0f} % slower"
            )
        loose = [one for one in self.estimates.values() if one.finding in {Finding.UNDECIDED, Finding.DIFFERS}]
        wider = next((one.evidence.wider for one in loose if one.evidence and one.evidence.wider), "")
        return replace(found, reason=f"{found.reason}; {wider}") if wider and not found.settled else found

    def cost(self, metric: Metric) -> float:
        """Return the cost ratio of a figure, above 1 where the path is worse."""
        return float(self.estimates[metric].ratio ** self.better.sign)

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the cell."""
        return self.conclusion.verdict


def compare(
    figures: Mapping[Metric, BlockFigures],
    *,
    rng: np.random.Generator,
    refused: Mapping[Metric, str] | None = None,
    better: Better = Better.SMALLER,
    criteria: Criteria | None = None,
    plan: StoppingPlan | None = None,
) -> CellComparison:
    """Compare a path with its baseline by every figure given; the mean must be among them.

    `plan` is that of the sequential stopping when the number of blocks was not fixed beforehand: its intervals are then
    the only valid ones. Otherwise `rng` drives the bootstrap.
    """
    criteria = criteria or Criteria()
    estimates = {
        metric: estimate_ratio(
            one,
            rng=rng,
            better=better,
            margin=criteria.bound(metric),
            plan=replace(plan, margin=criteria.bound(metric)) if plan else None,
        )
        for metric, one in figures.items()
    }
    slow = figures[HEADLINE].slow(estimates[HEADLINE].n, criteria.margin, better)
    return CellComparison(estimates, refused or {}, better, criteria, slow, figures[HEADLINE].context.steady)


def pair_launches(
    mine: Sequence[Mapping[int, Summary]],
    others: Sequence[Mapping[int, Summary]],
    value: Callable[[float], float] = float,
    *,
    margin: float = MARGIN,
    occasion: Callable[[int], int] | None = None,
    variants: Mapping[int, int] | None = None,
    twins: Sequence[Sequence[Mapping[int, Summary]]] = (),
) -> tuple[dict[Metric, BlockFigures], dict[Metric, str]]:
    """Return the figures of the blocks that both sides have, and why a metric that applies has none.

    `mine` and `others`: each side under all its names, launched once a block under each: block -> summary. What
    `over_names` makes of two takes a quarter off the variance of the ratio. `value` turns durations (ns) into the
    figure shown, `margin` is that of `Summary.figure`. With `occasion`, which gives that of a block, the geometric
    means over each occasion's blocks are compared: blocks of one occasion share its hour or boot, so their spread says
    nothing of another, and the evidence is about what another one gives. `variants` gives the boot that a block ran in,
    where a run has several. A metric that applies to one side applies to both: launches of a few samples beside
    launches of many are refused it. `twins` are the two launches of the baseline in each cell that the comparison
    spans; two `others` are some.
    """
    figures: dict[Metric, BlockFigures] = {}
    refused: dict[Metric, str] = {}
    spread = any(map(has_spread, (*mine, *others)))
    for metric in Metric:
        (ours, why), (theirs, also) = (over_names(one, metric, margin, spread=spread) for one in (mine, others))
        blocks = sorted(ours.keys() & theirs.keys())
        if why or also:
            refused[metric] = why or also
        elif blocks:
            path, baseline = ({block: value(side[block]) for block in blocks} for side in (ours, theirs))
            boots = tuple(variants[block] for block in blocks) if variants else ()
            pairs = twins or ([others] if len(others) == 2 else [])
            context = voting((_between_twins(pair, metric, blocks, margin) for pair in pairs), boots)
            if occasion is not None:
                path, baseline, context = by_occasion(path, occasion), by_occasion(baseline, occasion), OCCASIONS
            figures[metric] = BlockFigures(
                np.array([*path.values()]),
                np.array([*baseline.values()]),
                launches=0 if occasion is None else len(blocks),
                context=context,
            )
    return figures, refused


def _between_twins(
    pair: Sequence[Mapping[int, Summary]], metric: Metric, blocks: Sequence[int], margin: float
) -> FloatArray:
    """Return the log ratio of the second launch of a block to the first, NaN where there is none; shape (blocks,)."""
    sides = [over_blocks(one, metric, margin)[0] for one in pair]
    ns = np.array([[side.get(block, math.nan) for block in blocks] for side in sides])
    return np.asarray(np.log(ns[1] / ns[0]), dtype=np.float64)


def estimate_ratio(
    figures: BlockFigures,
    *,
    rng: np.random.Generator,
    better: Better = Better.SMALLER,
    margin: float = MARGIN,
    plan: StoppingPlan | None = None,
) -> RatioEstimate:
    """Compare one figure (see `compare`); with a `plan` its alpha and margin count."""
    log_costs = better.sign * figures.log_ratios
    used, method, evidence = _evidence(log_costs, figures.context, plan, rng=rng, bound=margin_log(margin))
    kept = BlockFigures(figures.path[:used], figures.baseline[:used])
    few = Judgement(Finding.UNDECIDED, f"{_counted(used, figures)} not enough for an interval", None, None, None)
    of = tests.moments(kept.log_ratios) if used > 1 else None
    return RatioEstimate(
        n=used,
        ratio=math.exp(float(kept.log_ratios.mean())),
        interval=as_ratio(evidence.difference, better) if evidence else None,
        equivalence_interval=as_ratio(evidence.equivalence, better) if evidence else None,
        method=method,
        t_test=tests.paired_t_test(kept.path, kept.baseline) if of else None,
        wilcoxon=tests.wilcoxon_signed_rank(kept.log_ratios) if of else None,
        cohens_dz=tests.cohens_dz(of) if of else None,
        hedges_gz=tests.hedges_gz(of) if of else None,
        rank_biserial=tests.rank_biserial(kept.log_ratios) if of else None,
        evidence=evidence,
        judgement=judge(evidence) if evidence else few,
        launches=figures.launches,
    )


def _counted(used: int, figures: BlockFigures) -> str:
    return f"{counted(used, 'occasion' if figures.launches else 'block')} {'is' if used == 1 else 'are'}"


@dataclass(frozen=True, slots=True)
class LevelEstimate:
    """The geometric mean over n blocks, in the unit of the figures, with its interval (None for a single block)."""

    n: int
    value: float
    interval: Interval | None
    method: IntervalMethod


def estimate_level(figures: FloatArray | Sequence[float], *, context: BlockContext = ALONE) -> LevelEstimate:
    """Return the level of one figure, one positive value a block, shape (n,) with n >= 1; else raise BadInputError.

    A ratio to 1 is the figure itself, with the interval that the ratios of `compare` have too: widened for drift, for
    dependent blocks and for what `context` says of them; for another occasion, where values are of occasions. Two such
    intervals that overlap say nothing about their ratio, because blocks are paired: what differs is for `compare` to
    tell.
    """
    values = np.asarray(figures, dtype=np.float64)
    rng = np.random.default_rng(values.size)
    alone = estimate_ratio(BlockFigures(values, np.ones_like(values), context=context), rng=rng)
    return LevelEstimate(alone.n, alone.ratio, alone.interval, alone.method)


def difference_interval(differences: Sequence[float], *, context: BlockContext = ALONE) -> Interval | None:
    """Return the 95 % interval of a mean difference, one value a block, made like those of ratios; None for one."""
    values = np.asarray(differences, dtype=np.float64)
    _, _, found = _evidence(values, context, None, rng=np.random.default_rng(values.size), bound=margin_log(MARGIN))
    return found.difference if found else None


def _evidence(
    log_costs: FloatArray, context: BlockContext, plan: StoppingPlan | None, *, rng: np.random.Generator, bound: float
) -> tuple[int, IntervalMethod, Evidence | None]:
    """Return the number of blocks used, the method and the evidence."""
    if plan is not None:
        found = sequential_evidence(log_costs, plan, context)
        return (found[0], IntervalMethod.REPEATED, found[1]) if found else (log_costs.size, IntervalMethod.NONE, None)
    if log_costs.size < 2:
        return log_costs.size, IntervalMethod.NONE, None
    plain = tests.moments(log_costs)
    if context.occasions:
        of_another = evidence_of(
            log_costs, context, bound=bound, alpha=ALPHA, interval=lambda of, alpha: of.interval(1.0 - alpha)
        )
        return log_costs.size, IntervalMethod.ANOTHER, of_another
    method, made = mean_intervals(log_costs, (1.0 - ALPHA, 1.0 - 2.0 * ALPHA), rng)
    intervals = dict(zip((ALPHA, 2.0 * ALPHA), made, strict=True))

    def interval(of: tests.PairedMoments, alpha: float) -> Interval:
        one = intervals[alpha]
        return one.scaled(of.reach(one.level) / plain.reach(one.level)) if of is not plain and plain.sd else one

    return log_costs.size, method, evidence_of(log_costs, context, bound=bound, alpha=ALPHA, interval=interval)


def correct_family(comparisons: Sequence[CellComparison]) -> tuple[CellComparison, ...]:
    """Return the comparisons of one path, in the order given, with findings corrected for their number.

    Holm's step-down is applied over all its sizes and operations, to families of claims apart: difference, equivalence
    and gaps beyond the margin, of each figure. In each the chance of any false claim is at most alpha.
    """
    corrected = {
        metric: iter(_correct([c.estimates[metric] for c in comparisons if metric in c.estimates])) for metric in Metric
    }
    return tuple(replace(c, estimates={metric: next(corrected[metric]) for metric in c.estimates}) for c in comparisons)


def _correct(estimates: list[RatioEstimate]) -> list[RatioEstimate]:
    families = zip(*(e.evidence.p_values for e in estimates if e.evidence), strict=True)
    corrected = zip(*(holm(family).tolist() for family in families), strict=True)
    return [replace(e, judgement=judge(e.evidence.corrected(*next(corrected)))) if e.evidence else e for e in estimates]


# ---- the noise floor


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """What A/A found: what the study would have reported between two runs of the very same path.

    In every block the baseline runs twice under two names. The true ratio of the two is 1, so whatever interval comes
    out is made of noise alone, and no gap smaller than it can be believed.

    `floor` is the smallest relative gap that stands out of the noise, e.g. 0.03 for 3 %: the farther end of the A/A
    interval from 1. `block_spread` is the relative spread of one block's ratio, exp(sd of log ratios) - 1. Both are
    None below 2 blocks (or before the first planned look). `false_alarm` tells that the two are shown to differ, which
    happens by chance in 5 % of cells and otherwise means an order effect or drift; it widens the intervals of the cell
    (`widen.offset_of`). `hides_margin` tells that the floor is not smaller than the margin.
    """

    estimate: RatioEstimate
    floor: float | None
    block_spread: float | None
    false_alarm: bool
    hides_margin: bool


def noise_floor(
    baseline: BlockFigures, *, rng: np.random.Generator, margin: float = MARGIN, plan: StoppingPlan | None = None
) -> NoiseFloor:
    """Return the noise floor from the baseline's figures: `path` is its second run, `baseline` its first, by block.

    floor = exp(max(|log low|, |log high|)) - 1 over the interval that `estimate_ratio` gives for the two.
    """
    baseline = replace(baseline, context=baseline.context.of_twins())
    estimate = estimate_ratio(baseline, rng=rng, margin=margin, plan=plan)
    if estimate.evidence is None:
        return NoiseFloor(estimate, None, None, false_alarm=False, hides_margin=True)
    floor = _floor(estimate.evidence.difference)
    spread = math.expm1(tests.moments(baseline.log_ratios[: estimate.n]).sd)
    outside = estimate.n >= LEAST_BLOCKS and estimate.evidence.p_difference <= ALPHA
    margin = plan.margin if plan else margin
    return NoiseFloor(estimate, floor, spread, false_alarm=outside, hides_margin=floor >= margin)


def is_quiet(baseline: BlockFigures, floor: float, plan: StoppingPlan) -> bool:
    """Return whether the noise floor that the last planned look finds is at most `floor`; `baseline` as above."""
    found = sequential_evidence(baseline.log_ratios, plan, baseline.context.of_twins())
    return found is not None and _floor(found[1].difference) <= floor


def _floor(log_ratio: Interval) -> float:
    widest = max(abs(log_ratio.low), abs(log_ratio.high))
    return math.expm1(widest) if widest > tests.ROUNDING else 0.0
