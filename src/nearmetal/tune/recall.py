"""The search of each class of a study: made once to run it, and again from its launches on disk.

A search is a pure function of its seed and of what its launches gave (`measure.py`), so the files on disk determine
all of it: which settings were measured when, which were dropped, and the proof.
"""

import contextlib
from dataclasses import dataclass

from nearmetal.errors import BadInputError, ForeignFileError, command_line
from nearmetal.reading import timed
from nearmetal.store.rundir import RunInfo
from nearmetal.store.searchdir import SearchDir
from nearmetal.study.spec import Study, TuneClass, TuneSpec
from nearmetal.tune.measure import Launches, NotLaunchedError, StudyTrials, tuned_path
from nearmetal.tune.method import Grid, Method, OneAtATime, Sampler
from nearmetal.tune.narrow import Narrowed, look_around, narrowed
from nearmetal.tune.objective import Objective
from nearmetal.tune.race import Race
from nearmetal.tune.search import Confirmation, Laboratory, SearchResult, SearchStep, confirm, search
from nearmetal.tune.space import Space

MAX_POINTS = 2_000
"""A larger space is not followed again for a page: the model of the race takes minutes."""


@dataclass(frozen=True, slots=True)
class Search:
    """One class, ready to be searched."""

    trials: StudyTrials
    objective: Objective
    laboratory: Laboratory
    method: Method


def search_of(spec: Study, tune: TuneSpec, kind: TuneClass, launches: Launches, space: Space) -> Search:
    """Return the search of one class of a study."""
    trials = StudyTrials(spec, tune, kind, launches, {axis.knob: axis.values[0] for axis in space.axes})
    objective = Objective(kind.weights, tune.limits)
    laboratory = Laboratory(space, trials, objective, spec.seed, trials.native)
    return Search(trials, objective, laboratory, _method(spec, tune, space))


def _method(spec: Study, tune: TuneSpec, space: Space) -> Method:
    match tune.method:
        case "grid":
            return Grid(space, blocks=spec.trials.min_blocks, seed=spec.seed)
        case "one-at-a-time":
            return OneAtATime(space, blocks=spec.trials.min_blocks, seed=spec.seed)
        case "race":
            return Race(space, seed=spec.seed)
        case sampler:
            return Sampler(space, trials=tune.max_trials, seed=spec.seed, kind=sampler.removeprefix("optuna-"))


@dataclass(frozen=True, slots=True)
class RecalledClass:
    """One class: its blocks; what was found and its proof, None as long as they are not on disk."""

    name: str
    objective: Objective
    steps: tuple[SearchStep, ...]
    found: SearchResult | None
    proof: Confirmation | None


@dataclass(frozen=True, slots=True)
class RecalledSearch:
    """A search as far as its launches go; `made` is None where not even the present setting was looked at."""

    name: str
    info: RunInfo
    path: str
    method: str
    launches: int
    made: Narrowed | None
    classes: tuple[RecalledClass, ...]

    @property
    def ended(self) -> bool:
        """Return whether every class has its proof."""
        return bool(self.classes) and self.classes[-1].proof is not None


@timed
def recall(kept: SearchDir) -> RecalledSearch:
    """Return what a search's launches show; nothing is launched.

    Raise ForeignFileError for a search that is damaged, or too large to be followed again.
    """
    spec = kept.study()
    if spec.tune is None:
        raise ForeignFileError(f"{kept.root}/study.toml has no [tune] table", hint="restore it from a backup")
    tune, launches = spec.tune, Launches(None, kept)
    made: Narrowed | None = None
    classes: list[RecalledClass] = []
    with contextlib.suppress(NotLaunchedError):  # it ended, or is, before its first block
        made = narrowed(tune, look_around(spec, tune, launches))
        if len(made.space.points) > MAX_POINTS:
            text = f"{kept.root} searches {len(made.space.points)} settings, but at most {MAX_POINTS} can be shown"
            raise BadInputError(text, hint=f"{command_line('tune', '--resume', kept.root)} prints what was found")
        for kind in tune.searches:
            classes.append(_recalled_class(search_of(spec, tune, kind, launches, made.space), kind, tune.max_trials))
            if classes[-1].proof is None:
                break
    path = tuned_path(spec, tune).name
    return RecalledSearch(kept.root.name, kept.info, path, tune.method, launches.recalled, made, tuple(classes))


def _recalled_class(one: Search, kind: TuneClass, max_trials: int) -> RecalledClass:
    """Return one class as far as its launches go."""
    steps: list[SearchStep] = []
    found: SearchResult | None = None
    proof: Confirmation | None = None
    with contextlib.suppress(NotLaunchedError):  # the rest is not measured yet, or never was
        found = search(one.laboratory, one.method, max_trials=max_trials, watch=steps.append)
        proof = confirm(one.laboratory, found.winner, first_block=found.blocks)
    return RecalledClass(kind.name, one.objective, tuple(steps), found, proof)
