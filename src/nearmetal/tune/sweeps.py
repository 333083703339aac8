"""The two plain methods: the full grid, and one knob at a time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nearmetal.tune.method import Method

if TYPE_CHECKING:
    from nearmetal.tune.method import Costs
    from nearmetal.tune.space import Point, Space


class Grid(Method):
    """Every setting once a pass, as many passes as blocks are asked for; order is random within a pass."""

    name = "grid"

    def __init__(self, space: Space, *, blocks: int, seed: int, width: int = 8) -> None:
        super().__init__(space)
        self._width = width
        rng = random.Random(seed)
        others = [point for point in space.points if point != space.present]
        self._queue = [point for _ in range(blocks) for point in rng.sample(others, len(others))]

    def ask(self) -> tuple[Point, ...]:
        """Return the next few settings; a block never holds a setting twice."""
        while self._queue:
            batch = dict.fromkeys(self._queue[: self._width])
            del self._queue[: len(batch)]
            if asked := tuple(point for point in batch if point not in self._tally.failed):
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
        legal = set(self._space.points) - self._tally.failed
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
            self._here = self._tally.best([self._here, *self._line(self._axes[0])], self._space.present)
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
