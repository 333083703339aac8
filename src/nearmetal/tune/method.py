"""What search methods are: ask for a block, tell its costs.

A block holds some settings and, always, the present one; the caller measures them in random order and tells each
setting's cost relative to the present one in the same block. Methods never measure and never read a clock, so a
search is a pure function of its seed and of what it is told.
"""

import math
import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import ModuleType

from nearmetal.errors import UnavailableError
from nearmetal.tune.space import Point, Space

Costs = Mapping["Point", "float | None"]
"""Cost of each setting of a block; None where the trial failed or the setting was refused."""
_GRID_WIDTH = 8
"""Settings of a block."""


class Method(ABC):
    """A search; without a model settings are ranked by their mean costs, and no trial is cut short.

    `name` is the word on the command line. `_failed` are settings that are never asked for again: each that failed, and
    every setting with a value that must be at fault: the only one of at least two failures that no trial that worked
    had, such as a knob that the path's devices do not have.
    """

    name: str

    def __init__(self, space: Space) -> None:
        self._space = space
        self._costs: dict[Point, list[float]] = defaultdict(list)
        self._failures: set[Point] = set()
        self._failed: set[Point] = set()

    @abstractmethod
    def ask(self) -> tuple[Point, ...]:
        """Return the settings of the next block, without the present one; empty when the search is over."""

    def tell(self, costs: Costs) -> None:
        """Take the costs of the block that was asked for last."""
        for point, cost in costs.items():
            if cost is None:
                self._failures.add(point)
            else:
                self._costs[point].append(cost)
        self._failed |= self._failures
        for axis, value in self._at_fault():
            self._failed |= {point for point in self._space.points if point[axis] == value}

    def _at_fault(self) -> list[tuple[int, int]]:
        worked = {place for point in self._costs for place in enumerate(point)}
        blamed: Counter[tuple[int, int]] = Counter()
        for point in self._failures:
            suspects = [(axis, value) for axis, value in enumerate(point) if value and (axis, value) not in worked]
            if len(suspects) == 1:
                blamed[suspects[0]] += 1
        return [place for place, failures in blamed.items() if failures > 1]

    def recommend(self) -> Point:
        """Return the setting to confirm; the present one when nothing seems better."""
        return self._best(self._space.points)

    def hopeless_above(self) -> float:
        """Return the cost above which a trial need not be finished; infinity when there is none."""
        return math.inf

    def standing(self) -> frozenset[Point]:
        """Return the settings that are still in the search."""
        return frozenset(self._space.points) - self._failed

    def _best(self, points: Sequence[Point]) -> Point:
        """Return the point of least mean cost, or the present one, whose cost is 0."""
        present = self._space.present
        return min([present, *points], key=lambda point: 0.0 if point == present else self._mean(point))

    def _mean(self, point: Point) -> float:
        """Return the mean cost; infinity for what failed or was never measured."""
        values = self._costs.get(point, [])
        return math.inf if point in self._failed or not values else sum(values) / len(values)


# ---- the two plain methods
# The full grid, and one knob at a time.


class Grid(Method):
    """Every setting once a pass, as many passes as blocks are asked for; order is random within a pass."""

    name = "grid"

    def __init__(self, space: Space, *, blocks: int, seed: int) -> None:
        super().__init__(space)
        rng = random.Random(seed)
        others = [point for point in space.points if point != space.present]
        self._queue = [point for _ in range(blocks) for point in rng.sample(others, len(others))]

    def ask(self) -> tuple[Point, ...]:
        """Return the next few settings; a block never holds a setting twice, so it may end where a pass does."""
        while self._queue:
            batch: list[Point] = []
            while self._queue and len(batch) < _GRID_WIDTH and self._queue[0] not in batch:
                batch.append(self._queue.pop(0))
            if asked := tuple(point for point in batch if point not in self._failed):
                return asked
        return ()


class OneAtATime(Method):
    """Each knob in turn over its values, the others at the best so far; stays where no value helped."""

    name = "one-at-a-time"

    def __init__(self, space: Space, *, blocks: int, seed: int) -> None:
        super().__init__(space)
        self._blocks = blocks
        self._here = space.present
        self._axes = random.Random(seed).sample(range(len(space.axes)), len(space.axes))
        self._left = 0

    def ask(self) -> tuple[Point, ...]:
        """Return the values of the knob whose turn it is."""
        legal = set(self._space.points) - self._failed
        while self._axes:
            if self._left == 0:
                self._left = self._blocks
            if candidates := [point for point in self._line(self._axes[0]) if point in legal]:
                return tuple(candidates)
            self._next_axis()
        return ()

    def tell(self, costs: Costs) -> None:
        """Take the costs of a block; after the last block of a knob, move to its best value."""
        super().tell(costs)
        self._left -= 1
        if self._left == 0:
            self._here = self._best([self._here, *self._line(self._axes[0])])
            self._next_axis()

    def recommend(self) -> Point:
        """Return where the walk stands."""
        return self._here

    def _line(self, axis: int) -> list[Point]:
        count = len(self._space.axes[axis].values)
        line = [(*self._here[:axis], index, *self._here[axis + 1 :]) for index in range(count)]
        return [point for point in line if point != self._space.present]

    def _next_axis(self) -> None:
        del self._axes[0]
        self._left = 0


# ---- optuna's samplers as methods, for comparison and for those who prefer them; the extra `tune` installs Optuna


class Sampler(Method):
    """One setting a block, chosen by an Optuna sampler."""

    def __init__(self, space: Space, *, trials: int, seed: int, kind: str = "tpe") -> None:
        super().__init__(space)
        optuna = _optuna()
        makers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        self.name = f"optuna-{kind}"
        self._left = trials
        self._optuna = optuna
        self._study = optuna.create_study(sampler=makers[kind](seed=seed), direction="minimize")
        self._study.enqueue_trial({axis.knob: axis.values[0] for axis in space.axes})
        self._legal = set(space.points)
        self._asked: dict[Point, object] = {}

    def ask(self) -> tuple[Point, ...]:
        """Return the sampler's next setting; the present one counts as 0 without a trial, illegal ones as failed."""
        while self._left > 0:
            self._left -= 1
            trial = self._study.ask()
            values = {axis.knob: trial.suggest_categorical(axis.knob, axis.values) for axis in self._space.axes}
            point = self._space.point(values)
            if point == self._space.present:
                self._study.tell(trial, 0.0)
            elif point not in self._legal or point in self._failed:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._asked = {point: trial}
                return (point,)
        return ()

    def tell(self, costs: Costs) -> None:
        """Pass the cost on."""
        super().tell(costs)
        for point, cost in costs.items():
            trial = self._asked.pop(point)
            if cost is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, cost)


def _optuna() -> ModuleType:
    try:
        import optuna  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        text = "Optuna is not installed"
        raise UnavailableError(text, hint="pip install 'nearmetal[tune]', or use --method race") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    module: ModuleType = optuna
    return module
