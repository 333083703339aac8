"""A recorded response surface: every setting of a space measured in several blocks, and a simulator made from it.

A search can be judged only where the truth is known and many searches can be afforded. The truth of the simulator is
what an analysis of variance with main effects and pairs finds in the recording, plus each setting's own deviation
shrunk by its reliability (James and Stein (1961), Proc. 4th Berkeley Symp. 1); the noise is the recording's own: whole
residual vectors are drawn, with their outliers, skew and correlation between cells, from the settings that are about
as slow as the one that is simulated, because slow settings are noisy in their own way.

File: JSON, `surface_format` 1, `about`, `knobs` (name to values), `present`, `cells`, and
`figures_ns[block][setting][cell]` with settings in the order of `itertools.product` over the knobs' values.
docs/reference/surface.md describes it.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nearmetal.errors import ForeignFileError
from nearmetal.tune.space import Axis, Space

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nearmetal.stats.interval import FloatArray
    from nearmetal.tune.objective import Objective
    from nearmetal.tune.space import Point

SURFACE_FORMAT = 1
_ALIKE = 24
"""How many settings share their noise."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A surface as recorded: `log_figures` has shape (blocks, settings, cells), settings in the order of the space."""

    about: str
    space: Space
    cells: tuple[str, ...]
    log_figures: FloatArray


def read_recording(path: Path) -> Recording:
    """Read a recorded surface; raise ForeignFileError for anything else."""
    try:
        return _recording(json.loads(path.read_text()))
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
    order = [recorded.index(_named(space, point)) for point in space.points]
    return Recording(str(raw["about"]), space, cells, np.log(figures[:, order]))


def _axis(knob: str, values: Sequence[str], present: str) -> Axis:
    return Axis(knob, (present, *(value for value in values if value != present)))


def _named(space: Space, point: Point) -> tuple[str, ...]:
    return tuple(axis.values[index] for axis, index in zip(space.axes, point, strict=True))


@dataclass(frozen=True, slots=True)
class Surface:
    """The simulator's truth and noise.

    `truth`: log figures, shape (settings, cells). `residuals`: shape (settings, n, cells), what a trial of each setting
    may deviate by.
    """

    space: Space
    cells: tuple[str, ...]
    truth: FloatArray
    residuals: FloatArray

    @staticmethod
    def of(recording: Recording) -> Surface:
        """Return the simulator of a recording; see the module for how truth and noise are told apart."""
        y = recording.log_figures
        blocks = len(y)
        y = y - np.median(y, axis=1, keepdims=True) + np.median(y)
        # Means that a hiccup in one block cannot move.
        means = np.median(y, axis=0)
        residuals = (y - means) * math.sqrt(blocks / (blocks - 1))
        design = _design(recording.space)
        fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
        own = means - fitted
        spread = np.median(np.abs(residuals), axis=(0, 1)) / 0.6745
        # The variance of a median of n normal values is pi / 2n of theirs.
        chance = spread**2 * math.pi / (2 * blocks)
        reliability = np.clip(1.0 - chance / np.maximum(own.var(axis=0), 1e-12), 0.0, 1.0)
        truth = fitted + reliability * own
        level = truth.mean(axis=1)
        alike = np.argsort(np.abs(level[:, None] - level[None, :]), axis=1, kind="stable")[:, :_ALIKE]
        pools = residuals[:, alike].transpose(1, 0, 2, 3).reshape(len(level), -1, len(recording.cells))
        return Surface(recording.space, recording.cells, truth, pools)

    def flat(self) -> Surface:
        """Return the surface on which no knob does anything, with the noise of the present setting."""
        present = self.space.points.index(self.space.present)
        truth, residuals = (np.broadcast_to(one[present], one.shape) for one in (self.truth, self.residuals))
        return Surface(self.space, self.cells, np.asarray(truth), np.asarray(residuals))

    def costs(self, objective: Objective) -> FloatArray:
        """Return each setting's true cost relative to the present setting, shape (settings,)."""
        present = self.truth[self.space.points.index(self.space.present)]
        differences = self.truth - present
        return np.array([objective.cost(dict(zip(self.cells, row.tolist(), strict=True))) for row in differences])

    def trial(self, point: Point, rng: np.random.Generator) -> dict[str, float]:
        """Return the figures of one simulated trial."""
        setting = self.space.points.index(point)
        pool = self.residuals[setting]
        logs = self.truth[setting] + pool[rng.integers(len(pool))]
        return dict(zip(self.cells, np.exp(logs).tolist(), strict=True))


def _design(space: Space) -> FloatArray:
    """Return the indicators of every value and of every pair of values of two knobs."""
    points = np.array(space.points)
    ones = [points[:, [axis]] == np.arange(len(space.axes[axis].values)) for axis in range(points.shape[1])]
    columns = [np.ones((len(points), 1)), *(one.astype(np.float64) for one in ones)]
    for first, second in itertools.combinations(ones, 2):
        columns.append((first[:, :, None] & second[:, None, :]).reshape(len(points), -1).astype(np.float64))
    return np.concatenate(columns, axis=1)
