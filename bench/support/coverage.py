"""How well errors of earlier predictions cover those of an application that they do not know."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.predict.calibration import Errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.predict.calibration import ValidatedCase


def coverage(
    cases: Sequence[ValidatedCase], case_class: str, error: Callable[[ValidatedCase], float]
) -> tuple[int, int, float]:
    """Return how many cases of a class lie in the interval of the other applications, of how many, and its width.

    Each application is left out in turn; not judged are the cases of one whose others are too few for an interval. The
    width is the median of high / low.
    """
    own = [case for case in cases if case.case_class == case_class]
    inside, judged, widths = 0, 0, []
    for application in sorted({case.application for case in own}):
        others = tuple(sorted(error(case) for case in own if case.application != application))
        span = Errors(case_class, others).span()
        if span is None:
            continue
        widths.append(span[1] / span[0])
        found = [span[0] <= math.exp(error(case)) <= span[1] for case in own if case.application == application]
        inside, judged = inside + sum(found), judged + len(found)
    return inside, judged, float(np.median(widths)) if widths else math.nan
