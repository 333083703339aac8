"""The view of a trace for a terminal and as data."""

import math
from dataclasses import dataclass
from typing import Literal

from nearmetal.predict.trace import named_calls
from nearmetal.predict.trace_view import RankTimes, TraceView, Traffic, matrix
from nearmetal.report import schema
from nearmetal.report.tables import Table, aligned
from nearmetal.units import as_percent, counted, format_duration, format_size, wrapped

MATRIX_CELLS = 64
_RANK_ROWS = 16
_FEW = 0.01
"""A smaller share of time does not matter."""
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
    """Return the view for a terminal, at most 80 columns wide where names are not longer."""
    blocks = [
        _head(view),
        f"{_filled(f'Time: {time_sentence(view)}')}\n{_drawn(times(view))}",
        _below_title(calls("Collectives by time", view, collective=True)),
        _below_title(calls("Other calls by time", view, collective=False)),
        _below_title(sizes(view, "#")),
        _matrix(view),
        _below_title(crossings(view)) if view.pairs else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def warnings(view: TraceView) -> list[str]:
    """Return what a reader of the figures must know, one sentence each."""
    sentences = []
    if view.first_of_several:
        sentences.append(
            "the launch ran several MPI programs one after another, and the trace is of the first: "
            "trace each in a launch of its own"
        )
    if view.unsupported_calls or view.unsupported_ns or view.unsupported_wait_share >= _FEW:
        what = (
            f"{counted(view.unsupported_calls, 'call')} seen but not recorded ({named_calls(view.unsupported_names)})"
        )
        sentences.append(
            f"{what if view.unsupported_calls else 'requests of calls that the profiler does not know'}: "
            f"their messages are not in the figures, and their time counts as compute{_unsupported_time(view)}"
        )
    if view.rounded_calls:
        sentences.append(f"{view.rounded_calls} calls have rounded sizes: the program makes too many distinct calls")
    if view.calling_threads > 1:
        sentences.append(
            f"{view.calling_threads} threads of a rank called MPI: their times in MPI add up, to more than the rank's, "
            "and compute is what passed between calls of any of them"
        )
    if view.blocked_share >= _FEW:
        sentences.append(
            f"{as_percent(view.blocked_share, 1)} of all ranks' time passed outside MPI while they slept, or waited "
            "for files, threads of their own or a hypervisor: compute in processor time leaves that out"
        )
    if view.paused_share >= _FEW:
        sentences.append(
            f"{as_percent(view.paused_share, 1)} of all ranks' time passed in pauses of less than 2 us between polls "
            "that found nothing (MPI_Test, MPI_Iprobe) and counts as waiting in MPI, even if ranks computed meanwhile"
        )
    if view.crowd:
        sentences.append(
            f"{view.crowd} ranks of a node shared fewer processors: compute includes waiting for one; "
            + (
                "of ranks whose threads call MPI at once, it cannot be left out"
                if view.calling_threads > 1
                else "--processor-time leaves that out"
            )
        )
    return sentences


def _unsupported_time(view: TraceView) -> str:
    text = ""
    if view.unsupported_ns:
        share = as_percent(view.unsupported_share, 1)
        text = f" ({format_duration(view.unsupported_ns)}, {share} of all ranks' time)"
    if view.unsupported_wait_share >= _FEW:
        waits = as_percent(view.unsupported_wait_share, 1)
        text += f"; waits of up to {waits} of all ranks' time may have been for their requests, too"
    return text


def _drawn(table: Table) -> str:
    """Return rows under a heading, words to the left and figures to the right."""
    return "\n".join(f"  {line}" for line in aligned((table.head, *table.rows), table.left))


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


def times(view: TraceView) -> Table:
    """Return where the time of ranks went."""
    rows = [
        (
            f"{rank.rank}",
            rank.node,
            format_duration(rank.elapsed_ns),
            format_duration(rank.compute_ns),
            format_duration(rank.mpi_ns),
            as_percent(rank.mpi_ns / max(1, rank.elapsed_ns), 1),
            as_percent(rank.profiler_ns / max(1, rank.elapsed_ns), 1),
        )
        for rank in shown_ranks(view)
    ]
    head = ("rank", "node", "elapsed", "compute", "in MPI", "MPI share", "profiler")
    return Table("Time of ranks", head, tuple(rows))


def sums_sentence(view: TraceView) -> str:
    """Return how many ranks, calls and messages a trace has."""
    ranks, calls = counted(len(view.ranks), "rank"), counted(view.recorded_calls, "call")
    sent = Traffic.sum_of(view.pairs)
    return f"{ranks}, {calls}, {counted(sent.messages, 'message')} of {rounded_size(sent.total_bytes)} in all"


def _head(view: TraceView) -> str:
    lines = [
        f"{view.command or 'a program'}: {sums_sentence(view)}",
        f"{view.mpi}, thread level {view.threads}" if view.mpi else "",
        f"On {view.processor}" if view.processor else "",
        *(f"note: {warning}" for warning in warnings(view)),
    ]
    return "\n".join(_filled(line) for line in lines if line)


def _filled(line: str) -> str:
    """Return a line in as many as 80 columns need."""
    return "\n".join(wrapped(line, 80))


def time_sentence(view: TraceView) -> str:
    """Return the shares of all ranks' time, and which ranks the table shows."""
    elapsed = sum(rank.elapsed_ns for rank in view.ranks)
    compute = sum(rank.compute_ns for rank in view.ranks) / max(1, elapsed)
    inside = sum(rank.mpi_ns for rank in view.ranks) / max(1, elapsed)
    few = "" if len(view.ranks) <= _RANK_ROWS else f"; the {_RANK_ROWS} ranks with the least and the most MPI"
    rest = 1 - compute - inside - sum(rank.profiler_ns for rank in view.ranks) / max(1, elapsed)
    idle = ""
    if view.gaps == "processor" and rest >= _FEW:
        idle = f", {as_percent(rest, 1)} outside MPI without a processor"
    return f"{as_percent(compute, 1)} compute, {as_percent(inside, 1)} in MPI{idle}{few}"


def calls(title: str, view: TraceView, *, collective: bool) -> Table:
    """Return the calls by time, collectives or all others."""
    inside = max(1, sum(rank.mpi_ns for rank in view.ranks))
    rows = [
        (
            row.name,
            f"{row.calls}",
            format_duration(row.total_ns),
            format_duration(row.total_ns / row.calls),
            format_duration(row.max_ns),
            as_percent(row.total_ns / inside, 1),
            rounded_size(row.total_bytes / row.calls) if row.total_bytes else "-",
        )
        for row in view.calls
        if row.is_collective == collective
    ]
    return Table(title, ("call", "calls", "total", "mean", "longest", "of MPI time", "mean size"), tuple(rows))


def _below_title(table: Table) -> str:
    return f"{table.title}\n{_drawn(table)}" if table.rows else f"{table.title}: none"


def sizes(view: TraceView, sign: str) -> Table:
    """Return messages by size, with a bar of signs each."""
    most = max((one.messages for one in view.sizes), default=1)
    rows = [
        (
            f"<= {format_size(one.up_to_bytes)}",
            sign * math.ceil(_BAR * one.messages / most),
            f"{one.messages}",
            rounded_size(one.total_bytes),
        )
        for one in view.sizes
    ]
    head = ("size", "", "messages", "volume")
    return Table("Message sizes", head, tuple(rows), left=2, ends_in_figures=True)


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
    grouped = "" if side == ranks else f", each character {ranks / side:.3g} ranks"
    title = f"Who sends to whom (rows to columns{grouped}; '{_SHADES[-1]}' is {rounded_size(most)}, '{_SHADES[1]}' "
    title += f"at most {rounded_size(max(1.0, most / 10 ** (32 / 9)))}, each character about 2.8 times the one before)"
    wide = 2 if side <= MATRIX_CELLS // 2 else 1
    lines = [
        f"  {-(-row * ranks // side):>6} |"
        + "".join(_SHADES[shade(value, most, len(_SHADES))] * wide for value in values)
        + "|"
        for row, values in enumerate(cells.tolist())
    ]
    return "\n".join([_filled(title), *lines])


def crossings(view: TraceView) -> Table:
    """Return the traffic between nodes by placement."""
    rows = [
        (
            one.placement,
            f"{one.nodes}",
            f"{one.messages}",
            as_percent(one.message_share, 1),
            rounded_size(one.total_bytes),
            as_percent(one.byte_share, 1),
        )
        for one in view.crossings
    ]
    head = ("placement", "nodes", "messages", "share", "volume", "share")
    return Table("Messages that cross nodes (point-to-point)", head, tuple(rows))
