"""Statistics: pure functions on arrays, no input or output, no global state, randomness only from a given generator.

Within a trial: `summarize`, `order`, `ecdf`, `tail_curve`. Over blocks: `estimate_level` of one path, `compare`,
`estimate_ratio`, `correct_family`, `noise_floor`. Between two runs: `difference`, `judge_family`; over many:
`find_changes`. While measuring: `StoppingPlan`, `look`. The reasons are in docs/explanation/statistics.md.
"""

from nearmetal.stats.between import Difference, Standing, difference, floor_between, judge_family
from nearmetal.stats.bootstrap import IntervalMethod, wild_bootstrap_t
from nearmetal.stats.changes import Change, find_changes
from nearmetal.stats.compare import (
    BlockFigures,
    Comparison,
    RatioEstimate,
    compare,
    correct_family,
    estimate_ratio,
)
from nearmetal.stats.conclude import Conclusion, Criteria, conclude, rarest_excluded
from nearmetal.stats.correction import benjamini_hochberg, holm
from nearmetal.stats.equivalence import Better, Evidence, Finding, Judgement, Verdict, judge
from nearmetal.stats.interval import FloatArray, IntArray, Interval
from nearmetal.stats.level import Level, estimate_level
from nearmetal.stats.noise import NoiseFloor, noise_floor
from nearmetal.stats.order import Quantile, order, quantile
from nearmetal.stats.paired import Significance, paired_t_test, wilcoxon_signed_rank
from nearmetal.stats.stopping import Look, StoppingPlan, look
from nearmetal.stats.summary import Metric, Summary, effective_sample_size, lag1_autocorrelation, summarize
from nearmetal.stats.tails import Curve, ecdf, tail_curve

__all__ = [
    "Better",
    "BlockFigures",
    "Change",
    "Comparison",
    "Conclusion",
    "Criteria",
    "Curve",
    "Difference",
    "Evidence",
    "Finding",
    "FloatArray",
    "IntArray",
    "Interval",
    "IntervalMethod",
    "Judgement",
    "Level",
    "Look",
    "Metric",
    "NoiseFloor",
    "Quantile",
    "RatioEstimate",
    "Significance",
    "Standing",
    "StoppingPlan",
    "Summary",
    "Verdict",
    "benjamini_hochberg",
    "compare",
    "conclude",
    "correct_family",
    "difference",
    "ecdf",
    "effective_sample_size",
    "estimate_level",
    "estimate_ratio",
    "find_changes",
    "floor_between",
    "holm",
    "judge",
    "judge_family",
    "lag1_autocorrelation",
    "look",
    "noise_floor",
    "order",
    "paired_t_test",
    "quantile",
    "rarest_excluded",
    "summarize",
    "tail_curve",
    "wilcoxon_signed_rank",
    "wild_bootstrap_t",
]
