"""What "better" means: figures of one trial turned into one cost, relative to the present setting.

The cost of a setting in a block is the weighted mean over cells of log(figure / figure of the present setting in the
same block): the logarithm of a geometric mean of ratios (Fleming and Wallace (1986), CACM 29(3)). All figures are
durations or counts, those of bandwidths the durations of their windows. Below 0 is better than present. Against native
the cost differs by a constant, so the same setting wins; the ratio to native is reported beside it.
"""

import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nearmetal.errors import BadInputError
from nearmetal.run.unused import is_of

Figures = Mapping[str, float]
"""One trial: cell name such as `osu_latency/8 B/mean` to a positive figure."""

_ROUNDING = 1e-12
"""A limit that is just met is kept, whatever logarithms make of it."""
_PENALTY = 5.0
"""How much a constraint that is broken by 1 % costs: 5 %. Feasibility is judged again, on fresh blocks, in the end."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of cells by shell pattern (the first that matches counts), and limits by pattern.

    No cell that matches a limit may be worse than present by more than that, such as 0.02. A cell that matches no
    weight is measured for the limits and the Pareto front only.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"*": 1.0})
    limits: Mapping[str, float] = field(default_factory=dict)

    def weight(self, cell: str) -> float:
        """Return the weight of a cell."""
        return next((weight for pattern, weight in self.weights.items() if fnmatch.fnmatchcase(cell, pattern)), 0.0)

    def minds(self, cell: str) -> bool:
        """Return whether a cell has a weight or a limit."""
        return self.weight(cell) > 0.0 or _any(cell, self.limits)

    def log_costs(self, figures: Figures, present: Figures) -> dict[str, float]:
        """Return each cell's log cost relative to present."""
        return {cell: math.log(figures[cell] / present[cell]) for cell in present}

    def cost(self, log_costs: Mapping[str, float]) -> float:
        """Return the cost of one trial, limits included as a penalty."""
        excess = max((self._excess(cell, value) for cell, value in log_costs.items()), default=0.0)
        return self.aim(log_costs) + _PENALTY * max(0.0, excess)

    def aim(self, log_costs: Mapping[str, float]) -> float:
        """Return the weighted mean of log costs, limits left aside."""
        weights = {cell: self.weight(cell) for cell in log_costs}
        total = sum(weights.values())
        if total <= 0.0:
            text = f"no cell has a weight; cells are {', '.join(log_costs)}"
            raise BadInputError(text, hint="let one pattern of the objective match")
        return sum(weights[cell] * value for cell, value in log_costs.items()) / total

    def broken(self, log_costs: Mapping[str, float]) -> tuple[str, ...]:
        """Return the cells that are beyond their limits."""
        return tuple(cell for cell, value in log_costs.items() if self._excess(cell, value) > _ROUNDING)

    def idle(self, patterns: Iterable[str], cells: Collection[str]) -> tuple[str, ...]:
        """Return the patterns that match none of the cells, though they are of workloads that were measured."""
        workloads = {cell.partition("/")[0] for cell in cells}
        return tuple(
            pattern
            for pattern in patterns
            if is_of(pattern, workloads) and not any(_any(cell, [pattern]) for cell in cells)
        )

    def _excess(self, cell: str, log_cost: float) -> float:
        limits = [worse for pattern, worse in self.limits.items() if fnmatch.fnmatchcase(cell, pattern)]
        return log_cost - math.log1p(min(limits)) if limits else -math.inf


def _any(cell: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(cell, pattern) for pattern in patterns)
