"""When a comparison may stop, and the interval that stays true however often one looked.

After each planned number of blocks the comparison is judged; it stops when decided, when its interval is as narrow as
asked, or at the cap. Critical values come from alpha spending (below), and the interval at each look is a
repeated confidence interval: all looks together cover with probability 1 - alpha, so the one at which a comparison
stopped does too, whatever made it stop (Jennison and Turnbull (1989), "Interim analyses: the repeated confidence
interval approach", JRSS B 51(3)). After an adaptive stop no other interval may be reported. Nothing here is random.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nearmetal.stats.boundaries import levels_at, repeated_p
from nearmetal.stats.conclude import Criteria, conclude
from nearmetal.stats.equivalence import ALPHA, MARGIN, Better, Evidence, Finding, judge, margin_log
from nearmetal.stats.interval import FloatArray, Interval
from nearmetal.stats.paired import PairedMoments
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.stats.widen import ALONE, BlockContext, BlockFigures, evidence_of

FIRST_LOOK_BLOCKS = 5
# Most comparisons are decided at the first look, and a trial costs minutes: most of the error is spent there.
FIRST_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class StoppingPlan:
    """The looks, fixed before the first block runs.

    Looks are at `min_blocks`, 3 at least, and after each further block up to `max_blocks`. `precision` requires an
    interval no wider than ratio / (1 + precision) .. ratio * (1 + precision), None for no limit. `comparisons` is how
    many verdicts share the study's error: a comparison counts as decided only when its p-values survive division by it,
    so Holm's correction in the report cannot undo a stop.
    """

    max_blocks: int
    min_blocks: int = FIRST_LOOK_BLOCKS
    alpha: float = ALPHA
    margin: float = MARGIN
    precision: float | None = None
    comparisons: int = 1
    first_share: float = FIRST_SHARE

    @property
    def looks(self) -> tuple[int, ...]:
        """Return the planned block counts, ascending."""
        return (*range(self.min_blocks, self.max_blocks), self.max_blocks)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found.

    `blocks` is the planned look that was used (0 before the first). `interval` is that of the ratio path / baseline,
    valid under repeated looks. `stop` says whether the comparison needs no more blocks, `precise` that the interval is
    as narrow as required.
    """

    blocks: int
    ratio: float | None
    interval: Interval | None
    finding: Finding
    stop: bool
    precise: bool = False


def sequential_evidence(
    log_costs: FloatArray, plan: StoppingPlan, context: BlockContext = ALONE
) -> tuple[int, Evidence] | None:
    """Return the last planned look that the data reach and the evidence there; None before the first look.

    `log_costs`: shape (n,), log cost ratio of each block in the order measured. Blocks beyond the last planned look
    that was reached are left out: their boundary was not planned.
    """
    reached = [n for n in plan.looks if n <= log_costs.size]
    if not reached:
        return None
    index, blocks = len(reached) - 1, reached[-1]

    def interval(of: PairedMoments, alpha: float) -> Interval:
        reach = of.reach(1.0 - levels_at(plan.looks, plan.first_share, alpha)[index])
        return Interval(of.mean - reach, of.mean + reach, 1.0 - alpha)

    def overall(nominal: float) -> float:
        return repeated_p(plan.looks, plan.first_share, index, nominal, (plan.alpha, 2.0 * plan.alpha))

    return blocks, evidence_of(
        log_costs[:blocks],
        context.first(blocks),
        bound=margin_log(plan.margin),
        alpha=plan.alpha,
        interval=interval,
        overall=overall,
    )


def look(log_ratios: FloatArray, plan: StoppingPlan, *, context: BlockContext = ALONE) -> Look:
    """Judge a comparison at the last planned look that its blocks reach.

    `log_ratios`: shape (n,), log(path / baseline) of each block's durations, in the order measured. Call it after each
    block; beyond the last planned look it repeats that. It stops when decided, when precise, or at the cap.
    """
    found = sequential_evidence(log_ratios, plan, context)
    if found is None:
        return Look(0, None, None, Finding.UNDECIDED, stop=False)
    blocks, evidence = found
    corrected = evidence.corrected(*(min(1.0, plan.comparisons * p) for p in evidence.p_values))
    finding = judge(corrected, alpha=plan.alpha).finding
    half_width = (evidence.difference.high - evidence.difference.low) / 2.0
    precise = plan.precision is not None and half_width <= float(np.log1p(plan.precision))
    decided = finding not in {Finding.UNDECIDED, Finding.DIFFERS}
    stop = decided or precise or blocks >= plan.max_blocks
    ratio = float(np.exp(log_ratios[:blocks].mean()))
    return Look(blocks, ratio, evidence.difference.exp(), finding, stop, precise)


def enough(
    figures: Mapping[Metric, BlockFigures], refused: Mapping[Metric, str], criteria: Criteria, plan: StoppingPlan
) -> bool:
    """Return whether a comparison of durations needs no more blocks; `figures` and `refused` as in `compare.compare`.

    It does not stop on a small spread alone: that few launches agree does not exclude a mode that they have not met.
    """
    looks = {
        m: look(one.log_ratios, replace(plan, margin=criteria.bound(m)), context=one.context)
        for m, one in figures.items()
    }
    head = looks[HEADLINE]
    if head.blocks == 0 or head.blocks >= plan.max_blocks:
        return head.blocks > 0
    findings = {metric: one.finding for metric, one in looks.items()}
    slow = figures[HEADLINE].slow(head.blocks, criteria.margin)
    found = conclude(findings, refused, head.blocks, criteria, slow=slow, steady=figures[HEADLINE].context.steady)
    return found.settled or (head.precise and head.blocks >= criteria.least_with(slow))


def as_ratio(log_cost: Interval, better: Better) -> Interval:
    """Return the interval of path / baseline that belongs to an interval of the log cost ratio."""
    if better is Better.LARGER:
        log_cost = Interval(-log_cost.high, -log_cost.low, log_cost.level)
    return log_cost.exp()
