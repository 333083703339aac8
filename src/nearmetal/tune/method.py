"""The interface of search methods: ask for a block, tell its costs.

A block holds some settings and, always, the present one; the caller measures them in random order and tells each
setting's cost relative to the present one in the same block. Methods never measure and never read a clock, so a
search is a pure function of its seed and of what it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nearmetal.tune.space import Point

Costs = Mapping["Point", "float | None"]
"""Cost of each setting of a block; None where the trial failed or the setting was refused."""


class Method(Protocol):
    """A search."""

    @property
    def name(self) -> str:
        """The word on the command line."""
        ...

    def ask(self) -> tuple[Point, ...]:
        """Return the settings of the next block, without the present one; empty when the search is over."""
        ...

    def tell(self, costs: Costs) -> None:
        """Take the costs of the block that was asked for last."""
        ...

    def recommend(self) -> Point:
        """Return the setting to confirm; the present one when nothing seems better."""
        ...

    def hopeless_above(self) -> float:
        """Return the cost above which a trial need not be finished; infinity when there is none."""
        ...

    def standing(self) -> frozenset[Point]:
        """Return the settings that are still in the search."""
        ...
