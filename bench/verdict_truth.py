"""How often verdicts are true: whole studies of simulated launches, judged by the code that judges real ones.

Each report has four paths of three cells (sizes) and a baseline launched twice a block. A launch gives one figure, its
mean: median and p99 can only withdraw a claim of `near-metal`. Blocks run until every cell of a path is settled, at
most 16, with Holm's correction over the cells of a path, as `nearmetal run` does by default (margin 5 %, near-metal
from 14 launches on).

    python bench/verdict_truth.py                 400 reports of each kind, as a Markdown table
    python bench/verdict_truth.py --reports 50    quicker

Exit code 4 when a figure misses its goal.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.stats.compare import compare, correct_family, estimate_ratio
from nearmetal.stats.conclude import Criteria
from nearmetal.stats.equivalence import Verdict
from nearmetal.stats.stopping import StoppingPlan, enough, look
from nearmetal.stats.summary import Metric
from nearmetal.stats.widen import OCCASIONS, BlockContext, BlockFigures
from support.goals import ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearmetal.stats.interval import FloatArray

PATHS, CELLS, CAP, FIRST = 4, 3, 16, 5
LAUNCH_SD = 0.03
SLOW = 1.08
_FAR = {Verdict.SLOWER, Verdict.FASTER}
_CLAIMS = _FAR | {Verdict.DIFFERS}


def _normal(rng: np.random.Generator) -> FloatArray:
    return rng.normal(0.0, LAUNCH_SD, CAP)


def _alternating(rng: np.random.Generator) -> FloatArray:
    """Blocks in turn fast and slow, from a random phase."""
    phase = rng.integers(2)
    return LAUNCH_SD * np.where((np.arange(CAP) + phase) % 2, 1.0, -1.0) + rng.normal(0.0, LAUNCH_SD / 3, CAP)


def _skewed(rng: np.random.Generator) -> FloatArray:
    """Exponential: most launches a little fast, a few much slower."""
    return LAUNCH_SD * (rng.exponential(1.0, CAP) - 1.0)


def _rare(rng: np.random.Generator) -> FloatArray:
    """One launch of ten 40 % slower, in paths and baseline alike."""
    return np.where(rng.random(CAP) < 0.1, math.log(1.4), 0.0) + rng.normal(0.0, LAUNCH_SD / 3, CAP)


def _ar(rho: float) -> Callable[[np.random.Generator], FloatArray]:
    def draw(rng: np.random.Generator) -> FloatArray:
        values = rng.normal(0.0, LAUNCH_SD, CAP)
        for i in range(1, CAP):
            values[i] = rho * values[i - 1] + math.sqrt(1.0 - rho * rho) * values[i]
        return values

    return draw


def _trending(rng: np.random.Generator) -> FloatArray:
    """Return a path that drifts by 6 % over the study, up or down, about its mean."""
    slope = float(rng.choice([-0.06, 0.06]))
    return slope * (np.arange(CAP) / (CAP - 1) - 0.5) + rng.normal(0.0, LAUNCH_SD / 3, CAP)


def _loud(rng: np.random.Generator) -> FloatArray:
    return rng.normal(0.0, 0.10, CAP)


KINDS: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "independent": _normal,
    "alternating": _alternating,
    "skewed": _skewed,
    "rare mode 10 %": _rare,
    "AR 0.3": _ar(0.3),
    "AR 0.7": _ar(0.7),
    "trending": _trending,
    "launches 10 % apart": _loud,
}


_BOTH = {"independent", "skewed", "rare mode 10 %", "launches 10 % apart"}
"""Kinds in which the baseline's launches are like the path's; elsewhere its launches are independent."""


def slow_mode(share: float) -> Callable[[np.random.Generator], FloatArray]:
    """Return launches that are 8 % slower on average because a share of them is much slower."""

    def draw(rng: np.random.Generator) -> FloatArray:
        height = math.log(1.0 + (SLOW - 1.0) / share)
        return np.where(rng.random(CAP) < share, height, 0.0) + rng.normal(0.0, LAUNCH_SD / 3, CAP)

    return draw


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on each cell of each path, and how many blocks each path took."""

    verdicts: tuple[tuple[Verdict, ...], ...]
    blocks: tuple[int, ...]


def report(
    rng: np.random.Generator,
    base: Callable[[np.random.Generator], FloatArray],
    path: Callable[[np.random.Generator], FloatArray],
    ratio: float = 1.0,
    *,
    paths: int = PATHS,
    cells: int = CELLS,
) -> Report:
    """Return one report: the baseline's two launches a block are shared by the paths."""
    plan = StoppingPlan(CAP, min_blocks=FIRST, comparisons=cells)
    both = [np.array([base(rng), base(rng)]) for _ in range(cells)]
    verdicts, blocks = [], []
    for _ in range(paths):
        ours = [math.log(ratio) + path(rng) for _ in range(cells)]
        count = next(
            n for n in range(FIRST, CAP + 1) if all(enough(f, {}, Criteria(), plan) for f in _pairs(ours, both, n))
        )
        found = [compare(f, rng=rng, plan=plan) for f in _pairs(ours, both, count)]
        verdicts.append(tuple(one.verdict for one in correct_family(found)))
        blocks.append(count)
    return Report(tuple(verdicts), tuple(blocks))


def _pairs(ours: list[FloatArray], both: list[FloatArray], n: int) -> Iterator[dict[Metric, BlockFigures]]:
    for mine, theirs in zip(ours, both, strict=True):
        first, again = theirs[:, :n]
        context = BlockContext(twins=again - first)
        yield {Metric.MEAN: BlockFigures(np.exp(mine[:n]), np.exp((first + again) / 2), context=context)}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its goal: at most it, or at least it."""

    what: str
    share: float
    n: int
    goal: float | None
    least: bool = False

    @property
    def met(self) -> bool:
        """Return whether the goal is met, give or take two standard errors of the goal."""
        if self.goal is None:
            return True
        slack = 2.0 * math.sqrt(self.goal * (1.0 - self.goal) / self.n)
        return self.share >= self.goal - slack if self.least else self.share <= self.goal + slack

    def __str__(self) -> str:
        if self.goal is None:
            return f"| {self.what} | {self.share:.1%} | {self.n} | none | - |"
        goal = f"{'at least' if self.least else 'at most'} {self.goal:.0%}"
        return f"| {self.what} | {self.share:.1%} | {self.n} | {goal} | {'yes' if self.met else 'no'} |"


def false_far(reports: int, seed: int) -> Iterator[Row]:
    """Yield how often paths equal to the baseline are called slower or faster."""
    for number, (name, noise) in enumerate(KINDS.items()):
        rng = np.random.default_rng([seed, 1, number])
        base = noise if name in _BOTH else _normal
        made = [report(rng, base, noise) for _ in range(reports)]
        wrong = [[bool(_FAR & set(path)) for path in one.verdicts] for one in made]
        yield Row(f"false slower or faster, {name}: paths", float(np.mean(wrong)), reports * PATHS, 0.05)
        claims = [[bool(_CLAIMS & set(path)) for path in one.verdicts] for one in made]
        yield Row(f"any false difference, {name}: paths", float(np.mean(claims)), reports * PATHS, None)
        yield Row(f"false slower or faster, {name}: reports", float(np.any(wrong, axis=1).mean()), reports, 0.07)


def false_near_metal(reports: int, seed: int) -> Iterator[Row]:
    """Yield how often a path that is 8 % slower is called near-metal."""
    shapes = {f"slower {name}": (noise, SLOW) for name, noise in KINDS.items()}
    shapes |= {f"a slow mode of {share:.0%} of launches": (slow_mode(share), 1.0) for share in (0.1, 0.2, 0.3)}
    for number, (name, (noise, ratio)) in enumerate(shapes.items()):
        rng = np.random.default_rng([seed, 2, number])
        kind = name.removeprefix("slower ")
        base = (
            slow_mode_base
            if "slow mode" in name
            else {"skewed": _skewed, "launches 10 % apart": _loud}.get(kind, _normal)
        )
        made = [report(rng, base, noise, ratio, cells=1) for _ in range(reports)]
        wrong = [path == (Verdict.NEAR_METAL,) for one in made for path in one.verdicts]
        yield Row(
            f"near-metal though 8 % slower: {name}",
            float(np.mean(wrong)),
            reports * PATHS,
            None if "10%" in name else 0.05,
        )


def slow_mode_base(rng: np.random.Generator) -> FloatArray:
    """Return the quiet launches of a baseline beside a path with a slow mode."""
    return rng.normal(0.0, LAUNCH_SD / 3, CAP)


def opposite(reports: int, seed: int) -> Iterator[Row]:
    """Yield how often three runs of a true 3 % gap hold both near-metal and slower in one cell."""
    rng = np.random.default_rng([seed, 3])
    wrong = []
    for _ in range(reports):
        runs = [report(rng, _quiet, _quiet, 1.03, paths=1, cells=1).verdicts[0][0] for _ in range(3)]
        wrong.append({Verdict.NEAR_METAL, Verdict.SLOWER} <= set(runs))
    yield Row("near-metal and slower in three runs of a true 3 % gap", float(np.mean(wrong)), reports, 0.05)


def _quiet(rng: np.random.Generator) -> FloatArray:
    return rng.normal(0.0, 0.01, CAP)


def coverage(reports: int, seed: int) -> Iterator[Row]:
    """Yield how often intervals hold the true ratio, or what is known of the blocks leaves the cell undecided."""
    kinds = KINDS | {"a baseline that differs from itself": _normal, "three boots 2 % apart": _boots}
    # Blocks that begin from frozen boots cannot drift, so three of them may claim a difference.
    kinds |= {f"{name}, frozen boots": KINDS[name] for name in ("independent", "skewed", "rare mode 10 %")}
    for number, (name, noise) in enumerate(kinds.items()):
        frozen = "boots" in name
        for blocks in (3, 5, 8, 12) if frozen else (5, 8, 10, 14):
            rng = np.random.default_rng([seed, 5, number, blocks])
            plan = StoppingPlan(blocks, min_blocks=blocks)
            held, wrong = [], []
            for _ in range(2 * reports):
                context = BlockContext(variants=tuple(n % 3 for n in range(blocks)) if frozen else ())
                logs = noise(rng)[:blocks]
                if "itself" in name:  # both names and the path are each off by as much
                    off = rng.normal(0.0, LAUNCH_SD, 3)
                    first, again = off[0] + noise(rng)[:blocks] / 9, off[1] + noise(rng)[:blocks] / 9
                    logs, context = off[2] + logs / 9 - (first + again) / 2, BlockContext(twins=again - first)
                found = look(logs, plan, context=context)
                held.append(found.interval is not None and found.interval.contains(1.0))
                pair = BlockFigures(np.exp(logs), np.ones(blocks), context=context)
                wrong.append(compare({Metric.MEAN: pair}, rng=rng, plan=plan).verdict in _CLAIMS)
            goal = 0.93 if name in {"independent", "skewed", "alternating", "rare mode 10 %"} else None
            yield Row(f"coverage by {blocks} blocks: {name}", float(np.mean(held)), len(held), goal, least=True)
            yield Row(
                f"a difference claimed that is none by {blocks} blocks: {name}", float(np.mean(wrong)), len(wrong), None
            )


def _boots(rng: np.random.Generator) -> FloatArray:
    return rng.normal(0.0, 0.02, 3)[np.arange(CAP) % 3] + rng.normal(0.0, LAUNCH_SD / 3, CAP)


def occasions(reports: int, seed: int) -> Iterator[Row]:
    """Yield how often the interval of several occasions, 2 % apart, of 10 blocks each holds what the next one finds."""
    shapes = {
        "normal": lambda rng, n: rng.normal(0.0, 1.0, n),
        "skewed": lambda rng, n: rng.exponential(1.0, n) - 1.0,
        "one hour of five 3 sd slower": lambda rng, n: np.where(rng.random(n) < 0.2, 3.0, 0.0),
    }
    for number, ((shape, draw), blocks_sd) in enumerate(itertools.product(shapes.items(), (0.01, LAUNCH_SD))):
        for count in (2, 3, 5):
            rng = np.random.default_rng([seed, 7, number, count])
            held = []
            for _ in range(10 * reports):
                *mine, another = 0.02 * draw(rng, count + 1) + rng.normal(0.0, blocks_sd / math.sqrt(10), count + 1)
                pair = BlockFigures(np.exp(mine), np.ones(count), launches=10 * count, context=OCCASIONS)
                interval = estimate_ratio(pair, rng=rng).interval
                held.append(interval is not None and interval.contains(math.exp(another)))
            what = f"{count} occasions hold the next: {shape}, launches {blocks_sd:.0%} apart"
            share, asked = float(np.mean(held)), shape == "normal"
            yield Row(what, share, len(held), 0.93 if asked else None, least=True)
            if asked:
                yield Row("... and no wider than it must be", share, len(held), 0.97)


def power(reports: int, seed: int) -> Iterator[Row]:
    """Yield how often a true gap of 10 % is found by 10 blocks, alone and among twelve comparisons."""
    for number, cells in enumerate((1, 12)):
        rng = np.random.default_rng([seed, 4, number])
        seen, far = [], []
        for _ in range(reports):
            pairs = [
                BlockFigures(np.exp(math.log(1.1) + _normal(rng)[:10]), np.exp((_normal(rng) + _normal(rng))[:10] / 2))
                for _ in range(cells)
            ]
            plan = StoppingPlan(10, min_blocks=FIRST, comparisons=cells)
            found = correct_family([compare({Metric.MEAN: pair}, rng=rng, plan=plan) for pair in pairs])
            seen += [one.verdict in {Verdict.SLOWER, Verdict.DIFFERS} for one in found]
            far += [one.verdict is Verdict.SLOWER for one in found]
        yield Row(f"gap of 10 % found by 10 blocks, among {cells}", float(np.mean(seen)), len(seen), 0.80, least=True)
        yield Row(f"... and shown to be beyond 5 %, among {cells}", float(np.mean(far)), len(far), None)


def trials(reports: int, seed: int) -> Iterator[Row]:
    """Yield what equal paths cost: blocks beyond those that near-metal asks for, and how often it is then shown."""
    for number, sd in enumerate((0.01, LAUNCH_SD)):
        rng = np.random.default_rng([seed, 6, number])

        def noise(rng: np.random.Generator, sd: float = sd) -> FloatArray:
            return rng.normal(0.0, sd, CAP)

        made = [report(rng, noise, noise) for _ in range(reports)]
        blocks = np.array([count for one in made for count in one.blocks])
        shown = [set(path) == {Verdict.NEAR_METAL} for one in made for path in one.verdicts]
        more, n = float(blocks.mean()) / Criteria().least_launches - 1.0, blocks.size
        yield Row(f"more blocks than near-metal needs, launches {sd:.0%} apart", more, n, 0.01 if number == 0 else None)
        yield Row(f"... and near-metal in all {CELLS} cells", float(np.mean(shown)), n, None)


PARTS = (trials, power, opposite, occasions, false_near_metal, coverage, false_far)


def main() -> int:
    """Run, print the table, and show by the exit code whether the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part, to spread the work")
    options = parser.parse_args()
    print("| claim | share | n | goal | met |\n|---|--:|--:|---|---|")
    missed = []
    for part in (part for part in PARTS if options.only in {None, part.__name__}):
        for row in part(options.reports, options.seed):
            print(row, flush=True)
            missed += [] if row.met else [str(row).strip("| ")]
    return ended(missed)


if __name__ == "__main__":
    sys.exit(main())
