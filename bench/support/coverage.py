"""How well errors of earlier predictions cover those of an application that they do not know."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.predict.calibration import Errors

if TYPE_CHECKING:
    from collections.abc import Collection


def coverage(cases: Collection[tuple[str, float]]) -> tuple[int, int, float]:
    """Return how many cases lie in the interval of the other applications, of how many, and its width.

    A case is an application and its error, log(measured / predicted). Each application is left out in turn; not judged
    are the cases of one whose others are too few for an interval. The width is the median of high / low.
    """
    inside, judged, widths = 0, 0, []
    for application in sorted({name for name, _ in cases}):
        span = Errors("", tuple(sorted(error for name, error in cases if name != application))).span()
        if span is None:
            continue
        widths.append(span[1] / span[0])
        found = [span[0] <= math.exp(error) <= span[1] for name, error in cases if name == application]
        inside, judged = inside + sum(found), judged + len(found)
    return inside, judged, float(np.median(widths)) if widths else math.nan
