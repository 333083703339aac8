"""Correction for asking many questions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.stats.interval import FloatArray


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Return Holm's step-down adjusted p-values, in the order given; shape (m,).

    With p_(1) <= ... <= p_(m): adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). Rejecting where the
    adjusted value is <= alpha keeps the chance of any false claim in the family at alpha, whatever the dependence.
    Holm (1979), "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 6(2).
    """
    p = _checked(p_values)
    ascending = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, p[ascending] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[ascending] = np.maximum.accumulate(scaled)
    return adjusted


def benjamini_hochberg(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Return p-values adjusted for the false discovery rate, in the order given; shape (m,).

    With p_(1) <= ... <= p_(m): adjusted p_(i) = min over j >= i of min(1, m p_(j) / j). Of the claims made where the
    adjusted value is <= alpha, at most the share alpha is false on average, and when nothing at all is true the chance
    of any claim is at most alpha; for independent and for positively dependent tests. Benjamini and Hochberg (1995),
    "Controlling the false discovery rate", JRSS B 57(1); dependence: Benjamini and Yekutieli (2001), Ann. Stat. 29(4).
    """
    p = _checked(p_values)
    ascending = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, p[ascending] * p.size / np.arange(1, p.size + 1))
    adjusted = np.empty_like(p)
    adjusted[ascending] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.maximum(adjusted, p)  # m p / m may round to less than p


def _checked(p_values: Sequence[float] | FloatArray) -> FloatArray:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not bool(np.all((p >= 0.0) & (p <= 1.0))):
        raise ValueError(f"p-values must be a row of numbers in 0..1, got {p}")
    return p
