"""Racing against the full grid and Optuna's TPE on a recorded response surface.

    python bench/tune_race.py [--seeds 200] [--surface bench/data/veth_surface.json] [--workers N]

The surface was recorded from real trials (bench/data/record_surface.py); `support/surface.py` says how truth and
noise are told apart. Counted are launches, those of the present setting too. Targets: racing ends within 2 % of
the grid's best with at most 15 % of the grid's trials and at most half of those that TPE needs (medians over seeds); a
wrong recommendation in at most 1 % of seeds; on the flat surface a change in at most 5 %; at least 63 % of seeds within
2 %; the best of four contenders, 1 % apart, dropped in at most 5 % of races of each kind of noise. Exit code 4
when short.

The grid is one trial a setting and block, in as many blocks as a comparison has before its first look. A search needs
as many trials as pass until the setting that it would recommend is within 2 % and stays so: with noise every search
passes through good settings by chance, which helps nobody; that first time is printed, too. TPE recommends the best
trial that it has seen, as Optuna does. It is given the raw objective of one trial, and once more costs paired with a
trial of the present setting; the better of the two counts. It may use twice the trials that racing
may use, and needs more than that when it is not within 2 % for good by then. What TPE needed does not depend on the
race: `--rivals FILE` keeps it, seed by seed, and takes from there what is known; `--rival-seeds N` asks for fewer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from support.goals import MISSED

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from nearmetal.stats.stopping import FIRST_LOOK_BLOCKS
from nearmetal.tune.method import Sampler
from nearmetal.tune.objective import Objective
from nearmetal.tune.race import CONTENDERS, ERROR, RACE_BLOCKS, TOLERANCE, Race, survivors
from nearmetal.tune.search import Laboratory, confirm
from support.surface import Simulation, Surface, read_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.stats.interval import FloatArray

HERE = Path(__file__).parent
WITHIN = math.log(1.02)
SHARE_OF_GRID = 0.15
# The stream shares its processor with whatever else runs: its recording says more about that than about knobs.
OBJECTIVE = Objective({"latency*": 1.0})


@dataclass(frozen=True)
class Raced:
    """One race: launches until it stopped, to confirm, until its recommendation was within 2 %, first and for good.

    `regret` is the log distance of the winner from the grid's best, `true_cost` its true log cost against present.
    """

    trials: int
    confirm_trials: int
    reached: float
    settled: float
    regret: float
    recommended: bool
    true_cost: float


def race(surface: Surface, seed: int) -> Raced:
    """Return what one race did, and how good its winner truly is."""
    rng = np.random.default_rng([seed, 1])
    costs = dict(zip(surface.space.points, surface.costs(OBJECTIVE).tolist(), strict=True))
    best = min(costs.values())
    machine = Simulation(surface, rng)
    laboratory = Laboratory(
        surface.space, lambda setting, _: machine.trial(surface.space.point(setting)).items(), OBJECTIVE, seed
    )
    method = Race(surface.space, seed=seed)
    good: list[tuple[int, bool]] = []
    blocks = 0
    while asked := method.ask():
        notes = laboratory.block(blocks, asked, method.hopeless_above())
        method.tell({note.point: note.cost for note in notes})
        blocks += 1
        good.append((laboratory.trials, costs[method.recommend()] - best <= WITHIN))
    trials, winner = laboratory.trials, method.recommend()
    proof = confirm(laboratory, winner, first_block=blocks)
    cost = costs[winner]
    return Raced(trials, proof.trials, *_when(good), cost - best, proof.recommended, cost)


def _when(good: list[tuple[int, bool]]) -> tuple[float, float]:
    """Return the number of trials after which it was good first, and for good; infinity if never."""
    reached = next((trials for trials, fine in good if fine), math.inf)
    settled = math.inf
    for trials, fine in reversed(good):
        if not fine:
            break
        settled = trials
    return reached, settled


def grid_trials(surface: Surface) -> int:
    """Return how many trials the grid takes."""
    return len(surface.space.points) * FIRST_LOOK_BLOCKS


def grid(surface: Surface, seed: int) -> float:
    """Return how far from the best (log cost) the setting is that the whole grid finds: the least mean cost."""
    machine = Simulation(surface, np.random.default_rng([seed, 3]))
    order, present = np.random.default_rng([seed, 4]), surface.space.points.index(surface.space.present)
    found = np.zeros((FIRST_LOOK_BLOCKS, len(surface.space.points)))
    for block in found:
        measured = {int(at): machine.trial(surface.space.points[at]) for at in order.permutation(block.size)}
        block[:] = [OBJECTIVE.cost(OBJECTIVE.log_costs(measured[at], measured[present])) for at in range(block.size)]
    costs = surface.costs(OBJECTIVE)
    return float(costs[found.mean(axis=0).argmin()] - costs.min())


def _own(rng: np.random.Generator, rho: float) -> FloatArray:
    """Return noise that each setting has for itself, AR(1) from block to block, shape (blocks, settings)."""
    values = rng.normal(0.0, LAUNCH_SD, (RACE_BLOCKS, CONTENDERS + 1))
    for block in range(1, len(values)):
        values[block] = rho * values[block - 1] + math.sqrt(1.0 - rho * rho) * values[block]
    return values


def _drift(rng: np.random.Generator) -> FloatArray:
    """Return a machine that becomes 30 % slower or faster over the race, whose trials come in random order."""
    own = _own(rng, 0.0)
    when = np.arange(own.size).reshape(own.shape) / own.size
    return np.asarray(own + rng.choice([-0.3, 0.3]) * rng.permuted(when, axis=1))


def _heating(rng: np.random.Generator) -> FloatArray:
    """Return contenders of which each drifts by 6 % for itself, up or down, about its mean."""
    run = np.arange(RACE_BLOCKS)[:, None] / (RACE_BLOCKS - 1) - 0.5
    return _own(rng, 0.0) + rng.choice([-0.06, 0.06], CONTENDERS + 1) * run


def _tails(rng: np.random.Generator) -> FloatArray:
    return LAUNCH_SD * rng.standard_t(3, (RACE_BLOCKS, CONTENDERS + 1))


LAUNCH_SD = 0.03
NOISES: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "independent": partial(_own, rho=0.0),
    "heavy tails": _tails,
    "machine drifts by 30 %": _drift,
    "contenders drift by 6 %": _heating,
    "contenders wander, AR 0.7": partial(_own, rho=0.7),
}
"""Log costs of the contenders and, last, of the present setting."""


def drops_best(noise: Callable[[np.random.Generator], FloatArray], seed: int) -> bool:
    """Return whether the best of contenders leaves a race, though the others cost the tolerance more, and a little."""
    drawn = noise(np.random.default_rng([seed, 5]))
    costs = (drawn[:, :-1] - drawn[:, -1:]).T
    costs[1:] += 1.001 * TOLERANCE
    racing = list(range(len(costs)))
    for blocks in range(1, RACE_BLOCKS + 1):
        stay = survivors(costs[racing, :blocks])
        racing = [one for one, stays in zip(racing, stay, strict=True) if stays]
    return 0 not in racing


def report_errors(races: int) -> bool:
    """Print how often races of each kind of noise drop the best contender; return whether a target is missed."""
    missed = False
    for name, noise in NOISES.items():
        share = sum(drops_best(noise, seed) for seed in range(races)) / races
        missed |= share > ERROR
        what, met = f"best contender dropped: {name}", _met(share, ERROR)
        print(f"{what:50s} {share:8.3f}  target <= {ERROR:<5}  {met}", flush=True)
    return missed


def tpe(surface: Surface, seed: int, *, paired: bool) -> tuple[float, float]:
    """Return after how many trials TPE's incumbent was within 2 % of the best, first and for good; inf if never."""
    machine = Simulation(surface, np.random.default_rng([seed, 2]))
    costs = surface.costs(OBJECTIVE)
    present = surface.space.present
    cap = round(2 * SHARE_OF_GRID * grid_trials(surface))
    sampler = Sampler(surface.space, trials=cap // (1 + paired), seed=seed)
    reference = dict(zip(surface.cells, np.exp(surface.truth[surface.space.points.index(present)]), strict=True))
    best, incumbent = math.inf, present
    good: list[tuple[int, bool]] = []
    while asked := sampler.ask():
        (point,) = asked
        figures = machine.trial(point)
        cost = OBJECTIVE.cost(OBJECTIVE.log_costs(figures, machine.trial(present) if paired else reference))
        sampler.tell({point: cost})
        if cost < best:
            best, incumbent = cost, point
        distance = float(costs[surface.space.points.index(incumbent)] - costs.min())
        good.append(((1 + paired) * (len(good) + 1), distance <= WITHIN))
    return _when(good)


def rivals(
    pool: ProcessPoolExecutor, surface: Surface, seeds: range, kept: Path | None
) -> list[list[tuple[float, float]]]:
    """Return what TPE needed with the raw objective and with paired trials, by seed; nothing without Optuna."""
    known: dict[str, list[float]] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for paired in (False, True) if find_spec("optuna") else ():
        missing = [seed for seed in seeds if f"{paired} {seed}" not in known]
        found = pool.map(partial(tpe, paired=paired), [surface] * len(missing), missing)
        for seed, needed in zip(missing, found, strict=True):
            known[f"{paired} {seed}"] = list(needed)
            if kept:
                kept.write_text(json.dumps(known))
    both = [[known.get(f"{paired} {seed}") for seed in seeds] for paired in (False, True)]
    return [[(one[0], one[1]) for one in row if one] for row in both if all(row)]


def _met(value: float, target: float) -> str:
    """Return the word for a figure; a comparison with what is not installed is neither met nor missed."""
    return "not measured: Optuna is not installed" if math.isnan(value) else "met" if value <= target else "MISSED"


def report_race(surface: Surface, raced: list[Raced], flat: list[Raced]) -> bool:
    """Print what the races did by themselves; return whether a target is missed."""
    trials = np.array([one.trials for one in raced])
    share = float(np.median(trials)) / grid_trials(surface)
    wrong = sum(one.recommended and one.true_cost > 0 for one in raced) / len(raced)
    changed = sum(one.recommended for one in flat) / len(flat)
    rows = [
        ("race: trials until it stops, share of the grid's", share, SHARE_OF_GRID),
        ("race: median distance from the grid's best", math.expm1(np.median([one.regret for one in raced])), 0.02),
        ("race: wrong recommendations", wrong, 0.01),
        ("flat surface: changes recommended", changed, 0.05),
    ]
    for name, value, target in rows:
        print(f"{name:50s} {value:8.3f}  target <= {target:<5}  {_met(value, target)}")
    within = np.mean([one.regret <= WITHIN for one in raced])
    print(f"{'race: seeds within 2 %':50s} {within:8.3f}  target >= 0.63   {'met' if within >= 0.63 else 'MISSED'}")
    print(
        f"race: {np.median(trials):.0f} trials (90 % of seeds: {np.quantile(trials, 0.9):.0f}), "
        f"{np.mean([one.recommended for one in raced]):.1%} recommended, "
        f"{np.median([one.confirm_trials for one in raced]):.0f} trials more to confirm",
        flush=True,
    )
    return bool(within < 0.63) or any(value > target for _, value, target in rows)


def report_rivals(cap: int, raced: list[Raced], sampled: list[list[tuple[float, float]]]) -> bool:
    """Print what the race needed beside TPE; return whether the target is missed."""
    reached, settled = (float(np.median([getattr(one, name) for one in raced])) for name in ("reached", "settled"))
    needs = [tuple(float(np.median(column)) for column in zip(*one, strict=True)) for one in sampled]
    # One that never got there needs more than it was given.
    share = settled / min((min(for_good, cap) for _, for_good in needs), default=math.nan)
    seeds = len(sampled[0]) if sampled else 0
    print(f"{'within 2 % for good, share of the trials of TPE':50s} {share:8.3f}  target <= 0.5    {_met(share, 0.5)}")
    print(f"median trials to be within 2 %: race {reached:.0f} first, {settled:.0f} for good")
    for (first, for_good), name in zip(needs, ("raw objective", "paired with present"), strict=False):
        print(f"  TPE, {name}, {seeds} seeds: {first:.0f} first, {for_good:.0f} for good (inf: not in {cap})")
    return share > 0.5


def main() -> int:
    """Race, sample, and print the figures with their targets; return MISSED when one is not reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--rival-seeds", type=int, help="TPE costs ten times what a race does; default as many")
    parser.add_argument("--surface", type=Path, default=HERE / "data" / "veth_surface.json")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rivals", type=Path)
    parser.add_argument("--races", type=int, default=1_000, help="of each kind of noise, to count errors")
    given = parser.parse_args()
    recording = read_recording(given.surface)
    surface = Surface.of(recording)
    costs = surface.costs(OBJECTIVE)
    cap = round(2 * SHARE_OF_GRID * grid_trials(surface))
    print(f"surface: {recording.about}")
    print(f"{len(costs)} settings; the best costs {math.exp(costs.min()):.3f} of the present one; {given.seeds} seeds")
    print(f"grid: {grid_trials(surface)} trials in {FIRST_LOOK_BLOCKS} blocks; TPE: at most {cap} trials")
    missed = report_errors(given.races)
    with ProcessPoolExecutor(given.workers) as pool:
        seeds = range(given.seeds)
        raced = list(pool.map(race, [surface] * given.seeds, seeds))
        flat = list(pool.map(race, [surface.flat()] * given.seeds, seeds))
        missed |= report_race(surface, raced, flat)
        regrets = np.array(list(pool.map(grid, [surface] * given.seeds, seeds)))
        print(f"the whole grid, {grid_trials(surface)} trials: {(regrets <= WITHIN).mean():.1%} of seeds within 2 %")
        sampled = rivals(pool, surface, range(given.rival_seeds or given.seeds), given.rivals)
    return MISSED if report_rivals(cap, raced, sampled) or missed else 0


if __name__ == "__main__":
    sys.exit(main())
