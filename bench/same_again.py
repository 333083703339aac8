"""Whether equal runs agree: each interval of one against the estimates of the others, in every cell.

    python bench/same_again.py                   measures three occasions of the study `paths` first, 40 s each
    python bench/same_again.py RUN [RUN ...]     of runs that are there

Each occasion of each run counts as a run of its own; all must be of one study. Compared are levels (one path) and
ratios (path / baseline, with the intervals of the sequential plan), by the mean. Equal runs differ by chance, and both
vary: how many intervals do not hold another's estimate where occasions make no difference is printed beside what was
found (Student's t of the difference, Welch's degrees of freedom). Cells of too few blocks for an interval are left out.
Last come the occasions taken together: how often the interval that all but one make holds the one left out (goal: 93 to
97 %; cells of one run are no independent draws).
Exit code 4 when more intervals exclude another's estimate than chance allows (5 %, one-sided, pairs taken as
independent).
"""

from __future__ import annotations

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import special, stats

from nearmetal.results.series import launches
from nearmetal.results.stopping import stopping_plan
from nearmetal.stats.compare import estimate_ratio, pair_launches
from nearmetal.stats.paired import moments
from nearmetal.stats.summary import HEADLINE, over_blocks
from nearmetal.stats.widen import OCCASIONS, BlockFigures
from nearmetal.store.query import valid
from nearmetal.store.rundir import RunDir
from nearmetal.study.order import AGAIN
from nearmetal.study.plan import occasion_of
from nearmetal.study.spec import Study, parse_study
from support.goals import ended

if TYPE_CHECKING:
    from nearmetal.results.series import CellId
    from nearmetal.stats.interval import FloatArray, Interval
    from nearmetal.stats.stopping import StoppingPlan
    from nearmetal.store.rundir import TrialRecord


OCCASIONS_MEASURED = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """One figure of one occasion: mean of its logarithms over blocks, their error, and the interval of a report."""

    mean: float
    error: float
    df: int
    interval: Interval

    def holds(self, other: Estimate) -> bool:
        """Return whether the interval holds another's estimate."""
        return self.interval.contains(math.exp(other.mean))

    def expected_not_to(self, other: Estimate) -> float:
        """Return how likely it does not, where both are estimates of one value."""
        error = math.hypot(self.error, other.error)
        reach = (math.log(self.interval.high) - math.log(self.interval.low)) / 2.0
        if error == 0.0:
            return 0.0
        df = error**4 / (self.error**4 / self.df + other.error**4 / other.df)
        return 2.0 * float(special.stdtr(df, -reach / error))


Estimates = dict[tuple[str, "CellId"], Estimate]


def occasions(root: Path) -> list[Estimates]:
    """Return what each occasion of a run found."""
    run = RunDir.open(root)
    study = parse_study(run.study_text(), str(root))
    grouped: dict[int, list[TrialRecord]] = defaultdict(list)
    for record in valid(run.trials()):
        grouped[occasion_of(study, record.order.block)].append(record)
    return [_found(run, study, grouped[number]) for number in sorted(grouped)]


def _found(run: RunDir, study: Study, records: list[TrialRecord]) -> Estimates:
    seen = launches(run, records)
    both = (study.baseline, study.baseline + AGAIN)
    found: Estimates = {}
    for cell, mine in seen.items():
        values, _ = over_blocks(mine, HEADLINE, study.margin)
        kept = {"level": _estimate(BlockFigures(np.array([*values.values()]), np.ones(len(values))), None)}
        theirs = [seen[key] for key in (replace(cell, path=name) for name in both) if key in seen]
        if cell.path not in both and theirs:
            figures, _ = pair_launches([mine], theirs, margin=study.margin)
            kept["ratio"] = _estimate(figures[HEADLINE], stopping_plan(study))
        found |= {(kind, cell): one for kind, one in kept.items() if one is not None}
    return found


def _estimate(figures: BlockFigures, plan: StoppingPlan | None) -> Estimate | None:
    """Return an estimate, None where blocks are too few for an interval."""
    made = estimate_ratio(figures, rng=np.random.default_rng(figures.path.size), plan=plan)
    if made.interval is None:
        return None
    of = moments(figures.log_ratios[: made.n])
    return Estimate(of.mean, of.standard_error, of.df, made.interval)


def against_each_other(runs: list[Estimates], kind: str) -> list[str]:
    """Print how many intervals exclude another run's estimate; return a sentence if more than chance allows."""
    pairs = [
        (one[key], other[key])
        for one, other in itertools.permutations(runs, 2)
        for key in one.keys() & other.keys()
        if key[0] == kind
    ]
    excluded = sum(not one.holds(other) for one, other in pairs)
    expected = sum(one.expected_not_to(other) for one, other in pairs)
    chance = float(stats.binom.sf(excluded - 1, len(pairs), expected / len(pairs))) if excluded else 1.0
    print(
        f"{kind}s: {excluded} of {len(pairs)} intervals ({excluded / len(pairs):.1%}) do not hold another run's "
        f"estimate; {expected:.1f} are to be expected of equal runs (so many or more: p = {chance:.2f})"
    )
    return [f"{kind}s: p = {chance:.3f}, goal at least 0.05"] if chance < 0.05 else []


def left_out(runs: list[Estimates], kind: str) -> None:
    """Print how often the interval of all occasions but one holds the one left out."""
    held = []
    keys = set.intersection(*(set(one) for one in runs))
    for key in (key for key in keys if key[0] == kind):
        means: FloatArray = np.array([one[key].mean for one in runs])
        for number in range(len(runs)):
            others = np.delete(means, number)
            pair = BlockFigures(np.exp(others), np.ones(others.size), context=OCCASIONS, launches=others.size)
            interval = estimate_ratio(pair, rng=np.random.default_rng(1)).interval
            held.append(interval is not None and interval.contains(math.exp(means[number])))
    print(f"{kind}s: {sum(held)} of {len(held)} occasions ({np.mean(held):.1%}) lie in the interval of the others")


def measured(folder: Path) -> Path:
    """Measure three occasions of `paths`, one after the other, and return the run."""
    root = folder / "paths"
    for command in (["run", "paths", "--out", str(root)], *[["run", "--resume", str(root)]] * (OCCASIONS_MEASURED - 1)):
        subprocess.run(
            [sys.executable, "-m", "nearmetal", *command, "--occasions", str(OCCASIONS_MEASURED)],
            check=True,
            stdout=sys.stderr,
        )
    return root


def main() -> int:
    """Compare, and show by the exit code whether more intervals than chance allows exclude another's estimate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="*")
    with tempfile.TemporaryDirectory() as folder:
        runs = [found for root in parser.parse_args().run or [measured(Path(folder))] for found in occasions(root)]
    if len(runs) < 2:
        raise SystemExit("same_again: one occasion has none to agree with; give more runs")
    missed = [one for kind in ("level", "ratio") for one in against_each_other(runs, kind)]
    if len(runs) > 2:
        for kind in ("level", "ratio"):
            left_out(runs, kind)
    return ended(missed)


if __name__ == "__main__":
    sys.exit(main())
