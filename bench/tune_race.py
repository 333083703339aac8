"""Racing against the full grid and Optuna's TPE on a recorded response surface.

    python bench/tune_race.py [--seeds 200] [--surface bench/data/veth_surface.json]

The surface was recorded from real trials (bench/data/record_surface.py); `nearmetal.tune.surface` says how truth and
noise are told apart. Counted are launches, those of the present setting too. Targets: racing ends within 2 % of
the grid's best with at most 15 % of the grid's trials and at most half of those that TPE needs (medians over seeds); a
wrong recommendation in at most 1 % of seeds; on the flat surface a change in at most 5 %.

The grid is one trial a setting and block, in as many blocks as a comparison has before its first look. TPE is given the
raw objective of one trial, so it pays for no present setting, and is asked for nothing but to have, at some time, an
incumbent within 2 % ("reached"), or to have one from then on ("settled").
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from nearmetal.stats.stopping import FIRST_LOOK_BLOCKS
from nearmetal.tune.objective import Objective
from nearmetal.tune.race import Race
from nearmetal.tune.samplers import Sampler
from nearmetal.tune.search import Laboratory, confirm, search
from nearmetal.tune.surface import Surface, read_recording

HERE = Path(__file__).parent
WITHIN = math.log(1.02)
TPE_TRIALS = 300
# The stream shares its processor with whatever else runs: its recording says more about that than about knobs.
OBJECTIVE = Objective({"latency*": 1.0}, larger_is_better=())


@dataclass(frozen=True)
class Raced:
    """One race: launches, log distance from the best, and whether its winner was recommended at what true cost."""

    trials: int
    confirm_trials: int
    regret: float
    recommended: bool
    true_cost: float


def race(surface: Surface, seed: int) -> Raced:
    """Return what one race did, and how good its winner truly is."""
    rng = np.random.default_rng([seed, 1])
    costs = surface.costs(OBJECTIVE)
    laboratory = Laboratory(
        surface.space, lambda setting, _: surface.trial(surface.space.point(setting), rng).items(), OBJECTIVE, seed
    )
    found = search(laboratory, Race(surface.space, seed=seed), max_trials=10_000)
    proof = confirm(laboratory, found.winner, first_block=found.blocks)
    cost = float(costs[surface.space.points.index(found.winner)])
    return Raced(found.trials, proof.trials, cost - float(costs.min()), proof.recommended, cost)


def tpe(surface: Surface, seed: int) -> tuple[float, float]:
    """Return after how many trials TPE's incumbent was within 2 % of the best, first and for good; inf if never."""
    rng = np.random.default_rng([seed, 2])
    costs = surface.costs(OBJECTIVE)
    present = dict(
        zip(surface.cells, np.exp(surface.truth[surface.space.points.index(surface.space.present)]), strict=True)
    )
    sampler = Sampler(surface.space, trials=TPE_TRIALS, seed=seed)
    best, incumbent, good = 0.0, surface.space.present, []
    while asked := sampler.ask():
        (point,) = asked
        cost = OBJECTIVE.cost(OBJECTIVE.log_costs(surface.trial(point, rng), present))
        sampler.tell({point: cost})
        if cost < best:
            best, incumbent = cost, point
        good.append(float(costs[surface.space.points.index(incumbent)] - costs.min()) <= WITHIN)
    reached = good.index(True) + 1 if True in good else math.inf
    settled = len(good) - good[::-1].index(False) + 1 if False in good else 1
    return reached, settled if good[-1] else math.inf


def main() -> None:
    """Race, sample, print the figures, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--surface", type=Path, default=HERE / "data" / "veth_surface.json")
    given = parser.parse_args()
    recording = read_recording(given.surface)
    surface = Surface.of(recording)
    seeds = range(given.seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        raced = list(pool.map(race, [surface] * given.seeds, seeds))
        flat = list(pool.map(race, [surface.flat()] * given.seeds, seeds))
        sampled = list(pool.map(tpe, [surface] * given.seeds, seeds))
    costs = surface.costs(OBJECTIVE)
    grid = len(surface.space.points) * FIRST_LOOK_BLOCKS
    trials = np.array([one.trials for one in raced])
    reached, settled = (np.median(column) for column in zip(*sampled, strict=True))
    wrong = sum(one.recommended and one.true_cost > 0 for one in raced) / given.seeds
    changed = sum(one.recommended for one in flat) / given.seeds
    print(f"surface: {recording.about}")
    print(f"{len(costs)} settings; the best costs {math.exp(costs.min()):.3f} of the present one; {given.seeds} seeds")
    print(f"grid: {grid} trials in {FIRST_LOOK_BLOCKS} blocks")
    rows = [
        ("race: median trials, share of the grid's", np.median(trials) / grid, 0.15),
        ("race: median distance from the grid's best", math.expm1(np.median([one.regret for one in raced])), 0.02),
        ("race: median trials, share of TPE's (reached)", np.median(trials) / reached, 0.5),
        ("race: median trials, share of TPE's (settled)", np.median(trials) / settled, 0.5),
        ("race: wrong recommendations", wrong, 0.01),
        ("flat surface: changes recommended", changed, 0.05),
    ]
    for name, value, target in rows:
        print(f"{name:48s} {value:8.3f}  target <= {target:<5}  {'met' if value <= target else 'MISSED'}")
    within = np.mean([one.regret <= WITHIN for one in raced])
    print(
        f"race: {np.median(trials):.0f} trials (90 % of seeds: {np.quantile(trials, 0.9):.0f}), "
        f"{within:.1%} of seeds within 2 %, {np.mean([one.recommended for one in raced]):.1%} recommended, "
        f"{np.median([one.confirm_trials for one in raced]):.0f} trials more to confirm"
    )
    print(f"TPE: reached after {reached:.0f}, settled after {settled:.0f} trials (medians; inf = not in {TPE_TRIALS})")
    sys.exit(any(value > target for _, value, target in rows))


if __name__ == "__main__":
    main()
