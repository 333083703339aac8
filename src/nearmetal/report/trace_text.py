"""The view of a trace for a terminal and as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nearmetal.predict.trace_view import CallRow, RankTimes, TraceView, matrix
from nearmetal.report import schema
from nearmetal.units import format_duration, format_size

MATRIX_CELLS = 64
_RANK_ROWS = 16
_BAR = 30
_SHADES = " .:-=+*#%@"
"""From nothing to the most; plain ASCII so that a log file and a dumb terminal show the same picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJson(TraceView):
    """Everything in a view: times in ns, sizes in bytes, shares from 0 to 1."""

    nearmetal_trace_view: Literal[1]


def as_json(view: TraceView) -> str:
    """Return everything in the view as JSON."""
    return schema.as_json(schema.made(TraceJson, view, nearmetal_trace_view=1)) + "\n"


def as_text(view: TraceView) -> str:
    """Return the view for a terminal, at most 100 columns wide."""
    blocks = [
        _head(view),
        _times(view),
        _calls("Collectives by time", [row for row in view.calls if row.is_collective], view),
        _calls("Other calls by time", [row for row in view.calls if not row.is_collective], view),
        _sizes(view),
        _matrix(view),
        _crossings(view),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def warnings(view: TraceView) -> list[str]:
    """Return what a reader of the figures must know, one sentence each."""
    said = []
    if view.unsupported_calls:
        said.append(
            f"{view.unsupported_calls} calls were seen but not recorded (one-sided, MPI-IO, inter-communicator "
            "collectives); their time counts as compute"
        )
    if view.rounded_calls:
        said.append(f"{view.rounded_calls} calls have rounded sizes: the program makes too many distinct calls")
    return said


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a heading, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = []
    for row in (columns, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def rounded_size(size_bytes: float) -> str:
    """Return a size with three significant digits, such as `2.34 MiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return (
                f"{size_bytes / factor:.3g} {unit}"
                if size_bytes < 1000 * factor
                else f"{size_bytes / factor:.0f} {unit}"
            )
    return f"{size_bytes:.0f} B"


def shown_ranks(view: TraceView) -> list[RankTimes]:
    """Return all ranks when they are few, else those with the least and the most time in MPI."""
    if len(view.ranks) <= _RANK_ROWS:
        return list(view.ranks)
    by_share = sorted(view.ranks, key=lambda rank: rank.mpi_ns / max(1, rank.elapsed_ns))
    return [*by_share[: _RANK_ROWS // 2], *by_share[-_RANK_ROWS // 2 :]]


def time_rows(view: TraceView) -> list[list[str]]:
    """Return the rows of the table of times."""
    return [
        [
            f"{rank.rank}",
            rank.node,
            format_duration(rank.elapsed_ns),
            format_duration(rank.compute_ns),
            format_duration(rank.mpi_ns),
            percent(rank.mpi_ns / max(1, rank.elapsed_ns)),
            percent(rank.profiler_ns / max(1, rank.elapsed_ns)),
        ]
        for rank in shown_ranks(view)
    ]


TIME_COLUMNS = ("rank", "node", "elapsed", "compute", "in MPI", "MPI share", "profiler")


def _head(view: TraceView) -> str:
    lines = [
        f"{view.command or 'a program'}: {len(view.ranks)} ranks, {view.recorded_calls} calls, "
        f"{view.messages} messages of {rounded_size(view.message_bytes)} in all",
        f"{view.mpi}, thread level {view.threads}" if view.mpi else "",
        *(f"note: {warning}" for warning in warnings(view)),
    ]
    return "\n".join(line for line in lines if line)


def time_sentence(view: TraceView) -> str:
    """Return the shares of all ranks' time, and which ranks the table shows."""
    elapsed = sum(rank.elapsed_ns for rank in view.ranks)
    compute = sum(rank.compute_ns for rank in view.ranks) / max(1, elapsed)
    inside = sum(rank.mpi_ns for rank in view.ranks) / max(1, elapsed)
    few = "" if len(view.ranks) <= _RANK_ROWS else f"; the {_RANK_ROWS} ranks with the least and the most MPI"
    return f"{percent(compute)} compute, {percent(inside)} in MPI{few}"


def _times(view: TraceView) -> str:
    return f"Time: {time_sentence(view)}\n{table(TIME_COLUMNS, time_rows(view))}"


CALL_COLUMNS = ("call", "calls", "total", "mean", "longest", "of MPI time", "mean size")


def call_rows(rows: Sequence[CallRow], view: TraceView) -> list[list[str]]:
    """Return the rows of a table of calls."""
    inside = max(1, sum(rank.mpi_ns for rank in view.ranks))
    return [
        [
            row.name,
            f"{row.calls}",
            format_duration(row.total_ns),
            format_duration(row.total_ns / row.calls),
            format_duration(row.max_ns),
            percent(row.total_ns / inside),
            rounded_size(row.total_bytes / row.calls) if row.total_bytes else "-",
        ]
        for row in rows
    ]


def _calls(title: str, rows: Sequence[CallRow], view: TraceView) -> str:
    return f"{title}\n{table(CALL_COLUMNS, call_rows(rows, view))}" if rows else f"{title}: none"


def _sizes(view: TraceView) -> str:
    if not view.sizes:
        return "Message sizes: no point-to-point messages"
    most = max(one.messages for one in view.sizes)
    rows = [
        [f"<= {format_size(one.up_to_bytes)}", f"{one.messages}", rounded_size(one.total_bytes), ""]
        for one in view.sizes
    ]
    lines = table(("size", "messages", "volume", ""), rows).splitlines()
    bars = ["", *("#" * math.ceil(_BAR * one.messages / most) for one in view.sizes)]
    return "Message sizes\n" + "\n".join(f"{line:<44}{bar}".rstrip() for line, bar in zip(lines, bars, strict=True))


def shade(value: float, most: float, steps: int) -> int:
    """Return 0 for nothing, else 1 .. steps - 1 on a logarithmic scale over four decades below the most."""
    if value <= 0:
        return 0
    height = 1 + math.log10(value / most) / 4
    return max(1, min(steps - 1, math.ceil(height * (steps - 1))))


def _matrix(view: TraceView) -> str:
    if not view.pairs:
        return ""
    cells = matrix(view, MATRIX_CELLS)
    most = float(cells.max())
    side, ranks = cells.shape[0], len(view.ranks)
    grouped = "" if side == ranks else f", each sign {ranks / side:.3g} ranks"
    title = f"Who sends to whom (rows to columns{grouped}; '{_SHADES[-1]}' is {rounded_size(most)}, '{_SHADES[1]}' "
    title += f"at most {rounded_size(most / 10 ** (32 / 9))}, each sign about 2.8 times the one before)"
    wide = 2 if side <= MATRIX_CELLS // 2 else 1
    lines = [
        f"  {row * ranks // side:>6} |"
        + "".join(_SHADES[shade(value, most, len(_SHADES))] * wide for value in values)
        + "|"
        for row, values in enumerate(cells.tolist())
    ]
    return "\n".join([title, *lines])


CROSSING_COLUMNS = ("placement", "nodes", "messages", "share", "volume", "share")


def crossing_rows(view: TraceView) -> list[list[str]]:
    """Return the rows of the table of traffic between nodes."""
    return [
        [
            one.placement,
            f"{one.nodes}",
            f"{one.messages}",
            percent(one.message_share),
            rounded_size(one.total_bytes),
            percent(one.byte_share),
        ]
        for one in view.crossings
    ]


def _crossings(view: TraceView) -> str:
    if not view.pairs:
        return ""
    return f"Messages that cross nodes (point-to-point)\n{table(CROSSING_COLUMNS, crossing_rows(view))}"
