"""Scales and frames of charts: where a figure lies in pixels, which ticks it gets, how its axis is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.report.markup import Markup, element, together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
        share = (self.through(value) - low) / (high - low)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def linear(low: float, high: float, start: float, end: float, label: Callable[[float], str]) -> Scale:
    """Return a linear scale over round numbers that hold low..high."""
    step = _round_step((high - low) or abs(high) or 1.0)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    values = [number * step for number in range(first, last + 1)]
    return Scale(values[0], values[-1], start, end, float, tuple((v, label(v)) for v in values))


def _round_step(reach: float, wanted: int = 5) -> float:
    raw = reach / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1.0, 2.0, 2.5, 5.0) if m * power >= raw), 10.0 * power)


def logarithmic(low: float, high: float, start: float, end: float, label: Callable[[float], str]) -> Scale:
    """Return a log scale over low..high (> 0) with ticks at 1-2-5, or at powers of ten when those would crowd."""
    pad = (high / low) ** 0.04 if high > low else 1.1
    low, high = low / pad, high * pad
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    crowded = math.log10(high / low) > 2.5
    steps = (1.0,) if crowded else (1.0, 2.0, 5.0) if high / low > 3.0 else _NARROW_STEPS
    values = [m * 10.0**k for k in decades for m in steps if low <= m * 10.0**k <= high]
    return Scale(low, high, start, end, math.log, tuple((v, label(v)) for v in values))


_NARROW_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)


def ratios(low: float, high: float, margin: float, start: float, end: float) -> Scale:
    """Return a scale of ratios that is linear within the margin and logarithmic beyond it.

    x = sign(l) log(1 + |l| / log(1 + margin)), l = log(ratio): so the margin stays visible beside a ratio of 20.
    """
    bound = math.log1p(margin)

    def through(ratio: float) -> float:
        size = math.log(ratio) if math.isfinite(ratio) and ratio > 0 else math.copysign(50.0, ratio - 1.0)
        return math.copysign(math.log1p(abs(size) / bound), size)

    edge = 1.0 + margin
    low, high = min(low, 1.0 / edge / edge), max(high, edge * edge)
    round_ones = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    ticks = [(v, f"{v:g}") for v in round_ones if low <= v <= high and (v == 1.0 or abs(math.log(v)) > 2.5 * bound)]
    return Scale(low, high, start, end, through, tuple(ticks))


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle in which figures are drawn, in pixels of the chart."""

    left: float
    top: float
    right: float
    bottom: float


def x_axis(frame: Frame, scale: Scale, title: str) -> Markup:
    """Return grid lines, tick labels and the title of the horizontal axis."""
    parts = []
    for value, label in _uncrowded(scale, 44.0):
        at = scale(value)
        parts.append(element("line", class_="grid", x1=at, x2=at, y1=frame.top, y2=frame.bottom))
        parts.append(element("text", label, class_="tick", x=at, y=frame.bottom + 16, text_anchor="middle"))
    middle = (frame.left + frame.right) / 2
    parts.append(element("text", title, class_="axis", x=middle, y=frame.bottom + 34, text_anchor="middle"))
    return together(*parts)


def y_axis(frame: Frame, scale: Scale, title: str) -> Markup:
    """Return grid lines, tick labels and the title, which stands level above the axis, of the vertical axis."""
    parts = []
    for value, label in _uncrowded(scale, 15.0):
        at = scale(value)
        parts.append(element("line", class_="grid", x1=frame.left, x2=frame.right, y1=at, y2=at))
        parts.append(element("text", label, class_="tick", x=frame.left - 7, y=at + 4, text_anchor="end"))
    parts.append(element("text", title, class_="axis", x=0, y=frame.top - 12))
    return together(*parts)


def _uncrowded(scale: Scale, apart: float) -> list[tuple[float, str]]:
    """Return the ticks whose labels keep a distance in pixels; the ticks nearest the start win."""
    kept: list[tuple[float, str]] = []
    for value, label in scale.ticks:
        if not kept or abs(scale(value) - scale(kept[-1][0])) >= apart:
            kept.append((value, label))
    return kept


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
