"""A recorded response surface: every setting of a space measured in several blocks, and a simulator made from it.

A search can be judged only where the truth is known and many searches can be afforded. The truth of the simulator is
what an analysis of variance with main effects and pairs finds in the recording, plus each setting's own deviation
shrunk by its reliability (James and Stein (1961), Proc. 4th Berkeley Symp. 1). The noise is the recording's own,
replayed: residual vectors follow each other as they were measured, from a random start, so that outliers, skew,
correlation between cells and the slow drift of a shared machine stay as they were (a block bootstrap with one long
block: Kuensch (1989), Ann. Statist. 17(3)). Each is scaled to the spread of the settings that are about as slow as the
one that is simulated, because slow settings are noisy in their own way. Where a file does not contain the order of its
trials, residuals are drawn independently.

File: JSON, `surface_format` 1, `about`, `knobs` (name to values), `present`, `cells`,
`figures_ns[block][setting][cell]` with settings in the order of `itertools.product` over the knobs' values, and
`order[block]`, the settings' numbers in the order they were measured in. docs/reference/surface.md describes it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nearmetal.errors import ForeignFileError
from nearmetal.reading import parse_json, read_text
from nearmetal.tune.space import Axis, Space

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nearmetal.stats.interval import FloatArray
    from nearmetal.tune.objective import Objective
    from nearmetal.tune.space import Point

    IntArray = NDArray[np.int64]

SURFACE_FORMAT = 1
_ALIKE = 24
"""How many settings share the scale of their noise."""
_NORMAL_MAD = 0.6745
"""The median absolute deviation of a normal variable of standard deviation 1."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A surface as recorded: `log_figures` has shape (blocks, settings, cells), settings in the order of the space.

    `order` has shape (blocks, settings): the settings, by their place in the space, as they were measured one after
    another; None where the file does not contain it.
    """

    about: str
    space: Space
    cells: tuple[str, ...]
    log_figures: FloatArray
    order: IntArray | None = None


def read_recording(path: Path) -> Recording:
    """Read a recorded surface; raise ForeignFileError for anything else."""
    try:
        return _recording(parse_json(read_text(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignFileError(f"{path} is not a recorded surface: {error}") from error


def _recording(raw: dict[str, Any]) -> Recording:
    if raw["surface_format"] != SURFACE_FORMAT:
        raise ValueError(f"format {raw['surface_format']}, this nearmetal reads {SURFACE_FORMAT}")
    space = Space.of([_axis(knob, values, raw["present"][knob]) for knob, values in raw["knobs"].items()])
    recorded = list(itertools.product(*raw["knobs"].values()))
    figures = np.asarray(raw["figures_ns"], dtype=np.float64)
    cells = tuple(map(str, raw["cells"]))
    if figures.ndim != 3 or figures.shape[1:] != (len(recorded), len(cells)) or len(figures) < 3:
        raise ValueError(f"figures of shape {figures.shape} for {len(recorded)} settings and {len(cells)} cells")
    if not bool((figures > 0).all()):
        raise ValueError("a figure is not positive")
    places = [recorded.index(_named(space, point)) for point in space.points]
    order = _order(raw["order"], figures.shape[:2], places) if "order" in raw else None
    return Recording(str(raw["about"]), space, cells, np.log(figures[:, places]), order)


def _order(raw: list[list[int]], shape: tuple[int, ...], places: list[int]) -> IntArray:
    order = np.asarray(raw, dtype=np.int64)
    if order.shape != shape or not bool((np.sort(order, axis=1) == np.arange(shape[1])).all()):
        raise ValueError("an order of trials does not name every setting once")
    return np.asarray(np.argsort(places)[order])


def _axis(knob: str, values: Sequence[str], present: str) -> Axis:
    return Axis(knob, (present, *(value for value in values if value != present)))


def _named(space: Space, point: Point) -> tuple[str, ...]:
    return tuple(axis.values[index] for axis, index in zip(space.axes, point, strict=True))


@dataclass(frozen=True, slots=True)
class Surface:
    """The simulator's truth and noise.

    `truth`: log figures, shape (settings, cells); `spread`: of the same shape, the scale of their noise; `residuals`:
    shape (n, cells), noise of scale 1, in the order of time when `in_order`.
    """

    space: Space
    cells: tuple[str, ...]
    truth: FloatArray
    spread: FloatArray
    residuals: FloatArray
    in_order: bool

    @staticmethod
    def of(recording: Recording) -> Surface:
        """Return the simulator of a recording; see the module for how truth and noise are told apart."""
        y = recording.log_figures
        blocks = len(y)
        level = np.median(y, axis=1, keepdims=True)
        centre = np.median(level, axis=0)
        # Means that a hiccup in one block cannot move.
        means = np.median(y - level, axis=0) + centre
        stretch = math.sqrt(blocks / (blocks - 1))
        truth = _truth(recording.space, means, (y - level + centre - means) * stretch)
        # The level of a block is noise, too: a search that takes hours meets it.
        residuals = (y - means) * stretch
        slowness = truth.mean(axis=1)
        alike = np.argsort(np.abs(slowness[:, None] - slowness[None, :]), axis=1, kind="stable")[:, :_ALIKE]
        pools = residuals[:, alike].transpose(1, 0, 2, 3).reshape(len(slowness), -1, len(recording.cells))
        spread = np.maximum(np.median(np.abs(pools), axis=1) / _NORMAL_MAD, 1e-9)
        order = np.tile(np.arange(y.shape[1]), (blocks, 1)) if recording.order is None else recording.order
        series = np.concatenate([(residuals[block] / spread)[order[block]] for block in range(blocks)])
        return Surface(recording.space, recording.cells, truth, spread, series, recording.order is not None)

    def flat(self) -> Surface:
        """Return the surface on which no knob does anything, with the noise of the present setting."""
        present = self.space.points.index(self.space.present)
        truth, spread = (np.array(np.broadcast_to(one[present], one.shape)) for one in (self.truth, self.spread))
        return Surface(self.space, self.cells, truth, spread, self.residuals, self.in_order)

    def costs(self, objective: Objective) -> FloatArray:
        """Return each setting's true cost relative to the present setting, shape (settings,)."""
        present = self.truth[self.space.points.index(self.space.present)]
        differences = self.truth - present
        return np.array([objective.cost(dict(zip(self.cells, row.tolist(), strict=True))) for row in differences])


class Simulation:
    """Trials on a surface, one after another, as one machine would carry them out."""

    def __init__(self, surface: Surface, rng: np.random.Generator) -> None:
        self._surface = surface
        self._rng = rng
        self._index = {point: number for number, point in enumerate(surface.space.points)}
        self._next = int(rng.integers(len(surface.residuals)))

    def trial(self, point: Point) -> dict[str, float]:
        """Return the figures of the next trial."""
        surface, setting = self._surface, self._index[point]
        logs = surface.truth[setting] + surface.spread[setting] * surface.residuals[self._next]
        count = len(surface.residuals)
        self._next = (self._next + 1) % count if surface.in_order else int(self._rng.integers(count))
        return dict(zip(surface.cells, np.exp(logs).tolist(), strict=True))


def _truth(space: Space, means: FloatArray, residuals: FloatArray) -> FloatArray:
    """Return main effects and pairs, and each setting's own deviation as far as it can be relied on."""
    design = _design(space)
    fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
    own = means - fitted
    noise = np.median(np.abs(residuals), axis=(0, 1)) / _NORMAL_MAD
    # The variance of a median of n normal values is pi / 2n of theirs.
    chance = noise**2 * math.pi / (2 * len(residuals))
    reliability = np.clip(1.0 - chance / np.maximum(own.var(axis=0), 1e-12), 0.0, 1.0)
    return np.asarray(fitted + reliability * own)


def _design(space: Space) -> FloatArray:
    """Return the indicators of every value and of every pair of values of two knobs."""
    points = np.array(space.points)
    ones = [points[:, [axis]] == np.arange(len(space.axes[axis].values)) for axis in range(points.shape[1])]
    columns = [np.ones((len(points), 1)), *(one.astype(np.float64) for one in ones)]
    for first, second in itertools.combinations(ones, 2):
        columns.append((first[:, :, None] & second[:, None, :]).reshape(len(points), -1).astype(np.float64))
    return np.concatenate(columns, axis=1)
