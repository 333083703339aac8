"""Waterfalls for a terminal: the parts of a message in their order, each bar where the one before ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.facts.waterfall import PARTS
from nearmetal.report.waterfalls import WORST_RESIDUE
from nearmetal.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.report.waterfalls import Waterfall

_BAR = 32
COLUMNS = ("part", "median there", "back", "p99 there", "back", "mean", "share")


def as_text(found: Sequence[Waterfall], host_label: str) -> str:
    """Return all waterfalls for a terminal, at most 120 columns wide, and what the figures are."""
    legend = [f"  {part}: {about}" for part, about in PARTS.items() if any(part in one.parts_ns for one in found)]
    blocks = [_one(waterfall) for waterfall in found]
    return "\n\n".join([*blocks, "\n".join(["Parts", *legend]), f"These are {host_label}."]) + "\n"


def title(one: Waterfall) -> str:
    """Return what a waterfall is of."""
    size = format_size(one.message_bytes)
    trials = "1 trial" if one.trials == 1 else f"{one.trials} trials"
    return f"{one.path}, {one.setting}: {one.workload} of {size}, {len(one.trips)} round trips of {trials}"


def sentences(one: Waterfall) -> list[str]:
    """Return what a reader must know of the figures: the largest part, the sum, and what tracing cost."""
    parts = one.parts_ns
    part = max(parts, key=lambda name: parts[name])
    said = [
        f"a message takes {format_duration(one.mean_ns)} on average (median {format_duration(one.median_ns)}); "
        f"the largest part is {part}: {format_duration(parts[part])}, {parts[part] / one.mean_ns:.0%}",
        f"the parts add up to within {one.residue:.2%} of every measured round trip"
        + ("" if one.residue <= WORST_RESIDUE else f", more than the {WORST_RESIDUE:.0%} that a waterfall may miss"),
    ]
    if one.tracing_cost is None or one.untraced_ns is None:
        said.append("what tracing cost is not known: the run has no untraced workload of the same operation and size")
    else:
        said.append(
            f"tracing is in these figures: untraced the mean is {format_duration(one.untraced_ns)} "
            f"({one.tracing_cost:+.1%} with tracing)"
        )
    return said


def rows(one: Waterfall) -> list[tuple[str, ...]]:
    """Return one row a part under `COLUMNS`, and the sum; `median` and `p99` are round trips that happened."""
    legs = (one.median.there, one.median.back, one.p99.there, one.p99.back)
    table = []
    for part, mean in one.parts_ns.items():
        times = [format_duration(leg.ns[part]) if part in leg.ns else "-" for leg in legs]
        table.append((part, *times, format_duration(mean), f"{mean / one.mean_ns:.0%}"))
    totals = [format_duration(leg.total_ns) for leg in legs]
    return [*table, ("sum", *totals, format_duration(sum(one.parts_ns.values())), "100%")]


def steps(one: Waterfall) -> list[tuple[str, float, float]]:
    """Return for every part where its bar begins and ends, as shares of the mean message."""
    placed, at_ns = [], 0.0
    whole_ns = sum(one.parts_ns.values())
    for part, ns in one.parts_ns.items():
        placed.append((part, at_ns / whole_ns, (at_ns + ns) / whole_ns))
        at_ns += ns
    return placed


def _one(one: Waterfall) -> str:
    table = [COLUMNS, *rows(one)]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    bars = ["", *(_bar(begin, end) for _, begin, end in steps(one)), ""]
    lines = []
    for row, bar in zip(table, bars, strict=True):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(f"  {'  '.join(cells)}  {bar}".rstrip())
    return "\n".join([title(one), *(f"  {sentence}" for sentence in sentences(one)), *lines])


def _bar(begin: float, end: float) -> str:
    first = min(round(begin * _BAR), _BAR - 1)
    return " " * first + "#" * max(1, round(end * _BAR) - first)
