"""Horizontal bars made of parts, one below the other on one scale: where time goes, on a path, a rank or a setting."""

from collections.abc import Sequence
from dataclasses import dataclass

from nearmetal.report import words
from nearmetal.report.axes import PlotArea, linear, x_axis
from nearmetal.report.charts import chart
from nearmetal.report.markup import Markup, element, scrolling

_ROW = 34.0


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of a bar: how long, in the axis' unit, the classes of its look, and what pointing at it shows."""

    length: float
    look: str
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its parts, what stands at its end, and the interval of that end where it has one."""

    name: str
    parts: tuple[Part, ...]
    end: str
    span: tuple[float, float] | None = None

    @property
    def reach(self) -> float:
        """Return how far the bar and its interval go."""
        return max(sum(part.length for part in self.parts), *(self.span or (0.0,)))


def stacked(
    label: str, axis: str, bars: Sequence[Bar], legend: Sequence[tuple[str, str]], *, width: float = 900.0
) -> Markup:
    """Return the bars as one image; `legend` gives a look and its name each."""
    left = min(190.0, 24.0 + 7.6 * max(len(words.short(bar.name, 22)) for bar in bars))
    frame = PlotArea(left, 8.0, width - 96.0, 14.0 + _ROW * len(bars))
    x = linear(0.0, max(bar.reach for bar in bars), frame.left, frame.right)
    drawn = [x_axis(frame, x, axis)]
    for number, bar in enumerate(bars):
        y, at = frame.top + 6 + _ROW * number, 0.0
        name = words.short(bar.name, 22)
        drawn.append(element("text", name, class_="name", x=frame.left - 8, y=y + 16, text_anchor="end"))
        for part in bar.parts:
            start, at = x(at), at + part.length
            box = {"x": start, "width": max(0.5, x(at) - start), "y": y, "height": _ROW - 12}
            drawn.append(element("rect", element("title", part.tip), class_=f"part {part.look}", **box))
        if bar.span:
            low, high = map(x, bar.span)
            drawn.append(element("line", class_="base series whisker", x1=low, x2=high, y1=y + 11, y2=y + 11))
            drawn += [element("line", class_="base series", x1=at, x2=at, y1=y + 6, y2=y + 16) for at in (low, high)]
        drawn.append(element("text", bar.end, class_="name", x=x(bar.reach) + 6, y=y + 16))
    keys, bottom = _legend(legend, frame)
    drawing = chart(label, *drawn, *keys, width=width, height=bottom + 10)
    return scrolling(drawing, label)  # on a narrow screen it is wider than its place


def _legend(legend: Sequence[tuple[str, str]], frame: PlotArea) -> tuple[list[Markup], float]:
    """Return the names of the looks in as many lines as they need, and where the last one ends."""
    drawn, x, y = [], frame.left, frame.bottom + 56
    for look, name in legend:
        wide = 7.4 * len(name) + 44
        if x > frame.left and x + wide > frame.right + 60:
            x, y = frame.left, y + 18.0
        drawn.append(element("rect", class_=f"part {look}", x=x, y=y - 10, width=12, height=12))
        drawn.append(element("text", name, class_="name", x=x + 18, y=y))
        x += wide
    return drawn, y
