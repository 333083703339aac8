"""What search methods are: ask for a block, tell its costs.

A block holds some settings and, always, the present one; the caller measures them in random order and tells each
setting's cost relative to the present one in the same block. Methods never measure and never read a clock, so a
search is a pure function of its seed and of what it is told.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.tune.space import Point, Space

Costs = Mapping["Point", "float | None"]
"""Cost of each setting of a block; None where the trial failed or the setting was refused."""


class Tally:
    """Costs told so far; `failed` are settings that are never asked for again.

    A setting that failed is one, and so is every setting with a value that must be at fault: the only one of at least
    two failures that no trial that worked had, such as a knob that the path's devices do not have.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points
        self._failures: set[Point] = set()
        self.costs: dict[Point, list[float]] = defaultdict(list)
        self.failed: set[Point] = set()

    def tell(self, costs: Costs) -> None:
        """Take the costs of a block."""
        for point, cost in costs.items():
            if cost is None:
                self._failures.add(point)
            else:
                self.costs[point].append(cost)
        self.failed |= self._failures
        for axis, value in self._at_fault():
            self.failed |= {point for point in self._points if point[axis] == value}

    def _at_fault(self) -> list[tuple[int, int]]:
        worked = {place for point in self.costs for place in enumerate(point)}
        blamed: Counter[tuple[int, int]] = Counter()
        for point in self._failures:
            suspects = [(axis, value) for axis, value in enumerate(point) if value and (axis, value) not in worked]
            if len(suspects) == 1:
                blamed[suspects[0]] += 1
        return [place for place, failures in blamed.items() if failures > 1]

    def standing(self) -> frozenset[Point]:
        """Return the settings that have not failed."""
        return frozenset(self._points) - self.failed

    def mean(self, point: Point) -> float:
        """Return the mean cost; infinity for what failed or was never measured."""
        values = self.costs.get(point, [])
        return math.inf if point in self.failed or not values else sum(values) / len(values)

    def best(self, points: Sequence[Point], present: Point) -> Point:
        """Return the point of least mean cost, or the present one, whose cost is 0."""
        return min([present, *points], key=lambda point: 0.0 if point == present else self.mean(point))


class Method(ABC):
    """A search; without a model settings are ranked by their mean costs, and no trial is cut short.

    `name` is the word on the command line.
    """

    name: str

    def __init__(self, space: Space) -> None:
        self._space = space
        self._tally = Tally(space.points)

    @abstractmethod
    def ask(self) -> tuple[Point, ...]:
        """Return the settings of the next block, without the present one; empty when the search is over."""

    def tell(self, costs: Costs) -> None:
        """Take the costs of the block that was asked for last."""
        self._tally.tell(costs)

    def recommend(self) -> Point:
        """Return the setting to confirm; the present one when nothing seems better."""
        return self._tally.best(self._space.points, self._space.present)

    def hopeless_above(self) -> float:
        """Return the cost above which a trial need not be finished; infinity when there is none."""
        return math.inf

    def standing(self) -> frozenset[Point]:
        """Return the settings that are still in the search."""
        return self._tally.standing()
