"""What rows and columns of a square table have in common, and what is left in single entries.

table[i, j] = overall + row[i] + column[j] + residual[i, j] for i != j; the diagonal means nothing and is not looked at.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nearmetal.stats.interval import FloatArray

EXACT_NODES = 64
"""Up to here the fit is exact (half a second); beyond, sweeping medians is as good: what it leaves shrinks as 1 / n."""
TIE = 1e-3
SWEEPS = 10
TOLERANCE = 1e-4
NORMAL_SPREAD = 1.482602218505602
"""1 / Phi^-1(3/4): the median absolute deviation times this estimates the standard deviation of normal noise."""


@dataclass(frozen=True, slots=True)
class TwoWay:
    """A table of shape (n, n), split: effects of shape (n,), each with median 0; the residuals' diagonal is 0."""

    overall: float
    row: FloatArray
    column: FloatArray
    residual: FloatArray


def two_way_fit(table: FloatArray, *, symmetric: bool = False) -> TwoWay:
    """Split a table of shape (n, n), n >= 3, so that entries that stand out bend nothing, by one of the two below."""
    fit = least_absolute_fit if table.shape[0] <= EXACT_NODES else median_polish
    return fit(table, symmetric=symmetric)


def least_absolute_fit(table: FloatArray, *, symmetric: bool = False) -> TwoWay:
    """Split a table by the least sum of absolute residuals, as a linear program.

    Armstrong and Frome, "Least-absolute-value estimators for one-way and two-way tables", Naval Research Logistics
    Quarterly 26(1), 1979. `TIE` times the absolute effects is added, so that of equally good fits the one with the most
    equal nodes is taken: with four nodes, a slow link could else be blamed on the link between the other two.
    """
    from scipy.optimize import milp  # noqa: PLC0415 (a tenth of a second, for fabrics alone)

    n = table.shape[0]
    program = _program(n, symmetric)
    # No unknown is whole; `linprog` finds the same, but prepares small programs for as long as it takes to solve them.
    entries = table[program.i, program.j]
    found = milp(program.weights, constraints=(program.equations, entries, entries))
    if not found.success:
        raise RuntimeError(f"the fit of a {n} x {n} table did not end: {found.message}")
    effects = n if symmetric else 2 * n
    fitted = found.x[: effects + 1] - found.x[effects + 1 : 2 * effects + 2]
    return _centred(table, float(fitted[-1]), fitted[:n], fitted[effects - n : effects])


class _Program(NamedTuple):
    """What the linear programs of all tables of one size share: the entries that count, their equations, the costs."""

    i: NDArray[np.intp]
    j: NDArray[np.intp]
    equations: sparse.csc_array
    weights: FloatArray


@lru_cache(maxsize=4)  # re-tests of few nodes fit up to 20 tables of one size
def _program(n: int, symmetric: bool) -> _Program:
    i, j = np.nonzero(np.triu(np.ones((n, n)), 1) if symmetric else ~np.eye(n, dtype=np.bool_))
    entries, effects = i.size, n if symmetric else 2 * n
    number, one = np.arange(entries), np.ones(3 * entries)
    columns = np.concatenate((i, j if symmetric else n + j, np.full(entries, effects)))
    design = sparse.csr_array((one, (np.tile(number, 3), columns)), shape=(entries, effects + 1))
    identity = sparse.eye_array(entries)
    equations = sparse.hstack((design, -design, identity, -identity), format="csc")
    weights = np.concatenate((np.full(effects, TIE), [0.0]))
    return _Program(i, j, equations, np.concatenate((weights, weights, np.ones(2 * entries))))


def median_polish(table: FloatArray, *, symmetric: bool = False) -> TwoWay:
    """Split a table of shape (n, n), n >= 3, by sweeping out medians of rows and columns in turn.

    Tukey, Exploratory Data Analysis (1977), chapter 11. A row's effect is a median over its entries, so entries that
    stand out, up to nearly half of a row, do not move it. With `symmetric` the table is, and rows and columns have
    the same effects. Sweeping ends when no effect moves by more than `TOLERANCE`, or after `SWEEPS`.
    """
    left = np.array(table, dtype=np.float64, order="C")
    np.fill_diagonal(left, 0.0)
    row, column = np.zeros(left.shape[0]), np.zeros(left.shape[0])
    for _ in range(SWEEPS):
        by_row = np.median(off_diagonal(left), axis=1)
        left -= by_row[:, None]
        by_column = np.median(off_diagonal(np.ascontiguousarray(left.T)), axis=1)
        left -= by_column
        row += by_row
        column += by_column
        if max(np.ptp(by_row), np.ptp(by_column)) < TOLERANCE:
            break
    if symmetric:
        row = column = (row + column) / 2
    return _centred(table, 0.0, row, column)


def _centred(table: FloatArray, overall: float, row: FloatArray, column: FloatArray) -> TwoWay:
    overall += float(np.median(row) + np.median(column))
    row, column = row - np.median(row), column - np.median(column)
    residual = table - overall - row[:, None] - column
    np.fill_diagonal(residual, 0.0)
    return TwoWay(overall, row, column, residual)


def off_diagonal(table: FloatArray) -> FloatArray:
    """Return the entries off the diagonal of a C-ordered (n, n) table, shape (n, n - 1), as they stand in rows."""
    n = table.shape[0]
    return np.asarray(table.ravel()[1:].reshape(n - 1, n + 1)[:, :-1].reshape(n, n - 1))


def robust_spread(values: FloatArray) -> float:
    """Return 1.4826 median |x - median x|: the standard deviation of normal noise, whatever a minority does."""
    return NORMAL_SPREAD * float(np.median(np.abs(values - np.median(values))))
