"""The space of settings: a few values for each knob, numbered; one of each is the present value.

A point is a tuple of indices, one an axis. Index 0 of every axis is the present value, so the point of zeros is the
present setting, whatever the machine's values are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nearmetal.errors import BadInputError

Point = tuple[int, ...]
AS_FOUND = "as-found"
"""The present value where it cannot be read beforehand, as in namespaces that a trial makes: the knob is left alone."""
MAX_POINTS = 5_000
"""The race keeps a covariance for every pair of settings; a study narrows the axes."""
_FAR = -1000


@dataclass(frozen=True, slots=True)
class Axis:
    """One knob and its values as the kernel writes them, all different, the present one first."""

    knob: str
    values: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Return whether there are at least three numbers: neighbours act alike, which the model of the race uses."""
        numbers = [value for value in self.values if value != AS_FOUND]
        return len(numbers) > 2 and all(value.isdecimal() for value in numbers)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return each value's place in ascending order, far off for `as-found`; the index itself for words."""
        if not self.ordered:
            return tuple(range(len(self.values)))
        rising = sorted((value for value in self.values if value != AS_FOUND), key=int)
        return tuple(rising.index(value) if value != AS_FOUND else _FAR for value in self.values)


@dataclass(frozen=True, slots=True)
class Space:
    """The axes, and what is left out: `allowed` says whether a setting is legal."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]

    @staticmethod
    def of(axes: Sequence[Axis], allowed: Callable[[Mapping[str, str]], bool] = lambda _setting: True) -> Space:
        """Return the space of all legal combinations; the present setting is always one of them."""
        size = math.prod(len(axis.values) for axis in axes)
        if size > MAX_POINTS:
            text = f"the space has {size} settings, at most {MAX_POINTS} can be searched"
            raise BadInputError(text, hint="give fewer values")
        everything: Iterator[Point] = itertools.product(*(range(len(axis.values)) for axis in axes))
        points = tuple(p for p in everything if not any(p) or allowed(_named(axes, p)))
        return Space(tuple(axes), points)

    @property
    def present(self) -> Point:
        """Return the point of the present setting."""
        return (0,) * len(self.axes)

    def setting(self, point: Point) -> dict[str, str]:
        """Return the knobs that differ from the present setting, with their values."""
        named = _named(self.axes, point)
        return {axis.knob: named[axis.knob] for axis, index in zip(self.axes, point, strict=True) if index}

    def point(self, setting: Mapping[str, str]) -> Point:
        """Return the point of a setting of values that the axes have."""
        return tuple(axis.values.index(setting.get(axis.knob, axis.values[0])) for axis in self.axes)


def _named(axes: Sequence[Axis], point: Point) -> dict[str, str]:
    return {axis.knob: axis.values[index] for axis, index in zip(axes, point, strict=True)}
