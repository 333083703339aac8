"""What a survey cannot see, as sentences: limits beyond the margin, parts that are faster, links left untested.

And what disturbed it.
"""

import math
from collections.abc import Iterator

import numpy as np

from nearmetal.fabric.detect import Fit, Role
from nearmetal.fabric.survey import Survey
from nearmetal.stats.interval import FloatArray
from nearmetal.stats.two_way import off_diagonal
from nearmetal.units import as_percent, counted, rounded

LARGE_SHARE = 0.25
"""Of nodes or links that are faster than the rest: from here on the rest may as well be what is slow."""
_OF: dict[Role, str] = {"node": "nodes", "send": "sending nodes", "receive": "receiving nodes", "link": "links"}
_WORTH_SAYING = 1.1
"""Limits up to so many margins read like the margin itself."""


def unseen(of: Survey) -> tuple[str, ...]:
    """Return a sentence for each reason why something slow may not have been named."""
    return (*_lost_in_the_spread(of), *_faster(of), *_untested(of), *of.disturbed)


def beyond_the_margin(of: Survey) -> list[tuple[Fit, Role, float]]:
    """Return the limits that are beyond the margin, since the others differ so much."""
    every = [(fit, role, limit) for fit in of.screened.fits for role, limit in fit.limits.items()]
    return [one for one in every if one[2] > math.log1p(_WORTH_SAYING * of.margin)]


def _lost_in_the_spread(of: Survey) -> Iterator[str]:
    limits = [f"{_OF[role]} by {fit.metric} {rounded(math.exp(limit))}" for fit, role, limit in beyond_the_margin(of)]
    if limits:
        yield (
            "Because the others differ so much, only what is slower by more than this factor was suspected: "
            f"{', '.join(limits)}."
        )


def _faster(of: Survey) -> Iterator[str]:
    """Yield where a large part is faster than the rest: which of the two is as it should be, no fabric tells."""
    for fit in of.screened.fits:
        for role, limit in fit.limits.items():
            share = float((_excess(fit, role) < -limit).mean())
            if share >= LARGE_SHARE:
                part = f"{as_percent(share)} of {_OF[role]}"
                yield f"By {fit.metric}, {part} are faster than is typical: perhaps the rest is slow."


def _excess(fit: Fit, role: Role) -> FloatArray:
    """Return the log excesses of all nodes or links in a role; of a symmetric table each link once."""
    if role != "link":
        return fit.split.column if role == "receive" else fit.split.row
    residual = fit.split.residual
    return residual[np.triu_indices(len(residual), 1)] if fit.symmetric else off_diagonal(residual).ravel()


def _untested(of: Survey) -> Iterator[str]:
    if of.screened.dropped:
        yield f"{counted(of.screened.dropped, 'more link')} stood out and had no test: too many did."
