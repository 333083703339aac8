"""Scales and frames of charts: where a figure lies in pixels, which ticks it gets, how its axis is drawn."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nearmetal.report.markup import Markup, element, pixels, together

Label = Callable[[float], str]
_STEPS = ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
_LEAST_APART = 22.0
_ROUND_RATIOS = (
    *(1.0, 10.0, 0.1, 100.0, 0.01, 1000.0, 0.001, 1e4, 1e-4, 1e5, 1e-5, 1e6, 1e-6),
    *(2.0, 0.5, 5.0, 0.2, 20.0, 0.05, 50.0, 0.02, 3.0, 1.5, 0.7),
    *(one for k in range(1, 7) for step in (2, 1, 5) for one in (1 + step * 10.0**-k, 1 - step * 10.0**-k)),
)
"""Ratios for ticks, the more welcome before the less."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A monotone map of figures to pixels: `through` straightens the axis, low lies at `start` and high at `end`."""

    low: float
    high: float
    start: float
    end: float
    through: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> float:
        """Return the pixel of a value, kept within the axis."""
        low, high = self.through(self.low), self.through(self.high)
        share = (self.through(min(self.high, max(self.low, value))) - low) / (high - low)
        return self.start + (self.end - self.start) * share


def plain(value: float) -> str:
    """Return a tick's figure to thirteen significant digits, without an exponent and without needless zeros."""
    places = max(0, 12 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def linear(low: float, high: float, start: float, end: float, label: Label = plain) -> Scale:
    """Return a linear scale over round numbers that hold low..high, three at least."""
    values = _round_values(low, high, math.floor, math.ceil, 5)
    return Scale(values[0], values[-1], start, end, float, tuple((v, label(v)) for v in values))


def placed(ticks: Iterable[tuple[float, str]]) -> Scale:
    """Return the scale of what has a place in pixels already, such as columns: names stand where they lie."""
    return Scale(0.0, 2000.0, 0.0, 2000.0, float, tuple(ticks))


def _round_values(
    low: float, high: float, first: Callable[[float], int], last: Callable[[float], int], most: int
) -> list[float]:
    """Return round numbers over low..high, which the step parts into `most` intervals or half as many."""
    raw = (high - low if _differ(low, high) else abs(high) or 1.0) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1.0, 2.0, 2.5, 5.0) if m * power >= raw), 10.0 * power)
    begin = first(low / step)
    return [number * step for number in range(begin, max(last(high / step), begin + 2) + 1)]


def _differ(low: float, high: float) -> bool:
    """Return whether ticks, which have thirteen digits, can tell two figures apart: rounding alone makes no axis."""
    return high - low > 1e-9 * abs(high)


def logarithmic(low: float, high: float, start: float, end: float, label: Label = plain) -> Scale:
    """Return a log scale over low..high (> 0), with at least three ticks at round numbers."""
    pad = (high / low) ** 0.04 if _differ(low, high) else 1.1
    low, high = low / pad, high * pad
    bare = Scale(low, high, start, end, math.log, ())
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tiers = [[10.0**k for k in exponents if k % every == 0] for every in (32, 16, 8, 4, 3, 2, 1)]
    tiers += [[m * 10.0**k for k in exponents for m in steps] for steps in _STEPS]
    tiers += [_round_values(low, high, math.ceil, math.floor, most) for most in (5, 8)]
    fitting = [ticks for tier in tiers if _apart(bare, ticks := [v for v in tier if low <= v <= high]) >= _LEAST_APART]
    chosen = next((ticks for ticks in fitting if len(ticks) > 3), max(fitting, key=len))
    return replace(bare, ticks=tuple((v, label(v)) for v in chosen))


def _apart(scale: Scale, ticks: Sequence[float]) -> float:
    """Return how many pixels the closest two ticks are apart."""
    at = [scale(value) for value in ticks]
    return min((abs(b - a) for a, b in pairwise(at)), default=math.inf)


def ratios(low: float, high: float, margin: float, start: float, end: float) -> Scale:
    """Return a scale of ratios that is linear within the margin and logarithmic beyond it.

    x = sign(l) log(1 + |l| / log(1 + margin)), l = log(ratio): so the margin stays visible next to a ratio of 20. It
    has the roundest ticks that do not crowd.
    """
    bound = math.log1p(margin)

    def through(ratio: float) -> float:
        size = math.log(ratio) if math.isfinite(ratio) and ratio > 0 else math.copysign(50.0, ratio - 1.0)
        return math.copysign(math.log1p(abs(size) / bound), size)

    edge = 1.0 + margin
    bare = Scale(min(low, 1.0 / edge / edge), max(high, edge * edge), start, end, through, ())
    kept: list[float] = []
    for value in _ROUND_RATIOS:
        if bare.low <= value <= bare.high and all(abs(bare(value) - bare(one)) >= _LEAST_APART for one in kept):
            kept.append(value)
    return replace(bare, ticks=tuple((v, plain(v)) for v in sorted(kept)))


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The rectangle in which figures are drawn, in pixels of the chart."""

    left: float
    top: float
    right: float
    bottom: float


def x_axis(frame: PlotArea, scale: Scale, title: str) -> Markup:
    """Return grid lines, tick labels and the title of the horizontal axis."""
    parts = []
    for value, label in _spaced_ticks(scale, 44.0):
        at = scale(value)
        parts.append(element("line", class_="grid", x1=at, x2=at, y1=frame.top, y2=frame.bottom))
        parts.append(element("text", label, class_="tick", x=at, y=frame.bottom + 16, text_anchor="middle"))
    middle = (frame.left + frame.right) / 2
    parts.append(element("text", title, class_="axis", x=middle, y=frame.bottom + 34, text_anchor="middle"))
    return together(*parts)


def y_axis(frame: PlotArea, scale: Scale, title: str) -> Markup:
    """Return grid lines, tick labels and the title, which stands level above the axis, of the vertical axis."""
    parts = []
    for value, label in _spaced_ticks(scale, 15.0):
        at = scale(value)
        parts.append(element("line", class_="grid", x1=frame.left, x2=frame.right, y1=at, y2=at))
        parts.append(element("text", label, class_="tick", x=frame.left - 7, y=at + 4, text_anchor="end"))
    parts.append(element("text", title, class_="axis", x=0, y=frame.top - 12))
    return together(*parts)


def _spaced_ticks(scale: Scale, apart: float) -> list[tuple[float, str]]:
    """Return the ticks whose labels keep a distance in pixels; the ticks nearest the start win."""
    kept: list[tuple[float, str]] = []
    for value, label in scale.ticks:
        if not kept or abs(scale(value) - scale(kept[-1][0])) >= apart:
            kept.append((value, label))
    return kept


def joined(points: Iterable[tuple[float, float]]) -> str:
    """Return the path data of a line from point to point."""
    return "M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in points)


def spread_apart(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Return positions near those wanted, at least `apart` from each other and within low..high where they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    previous = low - apart
    for index in order:
        previous = placed[index] = max(wanted[index], previous + apart)
    limit = high
    for index in reversed(order):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - apart
    return placed
