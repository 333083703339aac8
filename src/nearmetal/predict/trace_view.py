"""What a trace says at a glance: time, message sizes, who talks to whom, collectives, what crosses nodes.

Messages are point-to-point sends (a sendrecv counts its send); collectives are listed apart because the messages
inside them are the library's choice.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.trace import Call, CallFlag, CallKind, CallTime, RankTrace, Trace
from nearmetal.reading import read_text

_OUTSIDE = frozenset({CallKind.INIT, CallKind.FINALIZE})
_SENDS = frozenset({CallKind.SEND, CallKind.SENDRECV})
_BLOCK = re.compile(r"(block|cyclic):(\d+)")
_HOST_LINE = re.compile(r"([^\s:]+)(?::|\s+slots\s*=\s*)(\d{1,6})(?:\s.*)?", re.IGNORECASE)
_RANKFILE_LINE = re.compile(r"rank\s+(\d+)\s*=\s*(\S+)(?:\s+slots?\s*=.*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Where one rank's time between MPI_Init and MPI_Finalize went; `profiler_ns` is the profiler's own."""

    rank: int
    node: str
    elapsed_ns: int
    compute_ns: int
    mpi_ns: int
    profiler_ns: int


@dataclass(frozen=True, slots=True)
class CallRow:
    """One operation over all ranks."""

    name: str
    is_collective: bool
    calls: int
    total_ns: int
    max_ns: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Point-to-point messages, and the bytes of all."""

    messages: int
    total_bytes: int

    @staticmethod
    def sum_of(parts: Iterable[Traffic]) -> Traffic:
        """Return all parts together."""
        parts = list(parts)
        return Traffic(sum(one.messages for one in parts), sum(one.total_bytes for one in parts))


@dataclass(frozen=True, slots=True)
class SizeBin(Traffic):
    """Messages of at most `up_to_bytes`, and of more than the bin before."""

    up_to_bytes: int


@dataclass(frozen=True, slots=True)
class RankPair(Traffic):
    """Messages from one rank of the world to another."""

    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class RankMap:
    """Where ranks are, by name: `nodes[r]` is the node of rank r, `label` says where that comes from."""

    label: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Crossing(Traffic):
    """How much of the point-to-point traffic goes between nodes under a placement."""

    placement: str
    nodes: int
    message_share: float
    byte_share: float


@dataclass(frozen=True, slots=True)
class TraceView:
    """All that `nearmetal trace show` shows."""

    source: str
    command: str
    mpi: str
    threads: str
    calling_threads: int
    gaps: str
    ranks: tuple[RankTimes, ...]
    calls: tuple[CallRow, ...]
    sizes: tuple[SizeBin, ...]
    pairs: tuple[RankPair, ...]
    crossings: tuple[Crossing, ...]
    recorded_calls: int
    unsupported_calls: int
    unsupported_names: tuple[str, ...]
    unsupported_ns: int
    unsupported_share: float
    unsupported_wait_share: float
    rounded_calls: int
    paused_share: float
    blocked_share: float
    processor: str
    crowd: int
    first_of_several: bool


def view_trace(trace: Trace, placements: Sequence[RankMap] = ()) -> TraceView:
    """Return the view of a trace; crossings are for the nodes it ran on, then for `placements`."""
    pairs = _pairs(trace)
    traced = RankMap("as traced", tuple(rank.node for rank in trace.ranks))
    meta = trace.ranks[0].meta
    return TraceView(
        source=trace.source,
        command=" : ".join(trace.commands),
        mpi=meta.get("library", ""),
        threads=meta.get("threads", ""),
        calling_threads=trace.calling_threads,
        gaps=meta.get("gaps", ""),
        ranks=tuple(_rank_times(rank) for rank in trace.ranks),
        calls=_call_rows(trace),
        sizes=_size_bins(trace),
        pairs=pairs,
        crossings=tuple(_crossing(pairs, placement) for placement in (traced, *placements)),
        recorded_calls=sum(time.calls for rank in trace.ranks for time in rank.times),
        unsupported_calls=trace.opaque_calls,
        unsupported_names=trace.opaque_names,
        unsupported_ns=trace.opaque_ns,
        unsupported_share=trace.opaque_time_share,
        unsupported_wait_share=trace.opaque_wait_share,
        rounded_calls=trace.rounded_calls,
        paused_share=trace.paused_share,
        blocked_share=trace.blocked_share,
        processor=trace.processor,
        crowd=trace.crowd,
        first_of_several=trace.first_of_several,
    )


def _rank_times(rank: RankTrace) -> RankTimes:
    inside = sum(time.total_ns for call, time in _timed(rank) if call.kind not in _OUTSIDE)
    compute = sum(gap.total_ns for gap in rank.gaps)
    return RankTimes(rank.rank, rank.node, rank.elapsed_ns, compute, inside, rank.number("profiler_ns"))


def _timed(rank: RankTrace) -> Iterator[tuple[Call, CallTime]]:
    return zip(rank.calls, rank.times, strict=True)


def call_name(call: Call) -> str:
    """Return a call's name in MPI's words, such as `Isend` or `Alltoallv`."""
    name = call.kind.name.capitalize()
    if call.kind is CallKind.MARK:
        return "Pcontrol"
    if call.kind is CallKind.WAIT and call.flags & CallFlag.CANCELLED:
        return "Cancel"
    if call.kind is CallKind.WAIT:
        return "Test (completed)" if call.flags & CallFlag.POLLED else "Wait"
    for flag, letter in ((CallFlag.SYNCHRONOUS, "S"), (CallFlag.BUFFERED, "B"), (CallFlag.READY, "R")):
        if call.flags & flag:
            name = letter + name.lower()
    if call.kind is CallKind.REDUCE_SCATTER:
        name += "" if call.flags & CallFlag.VECTOR else "_block"
    elif call.flags & CallFlag.VECTOR:
        name += "v"
    if call.flags & CallFlag.PERSISTENT:
        return f"{name} (persistent)"
    return f"I{name.lower()}" if call.flags & CallFlag.NONBLOCKING else name


def _call_rows(trace: Trace) -> tuple[CallRow, ...]:
    rows: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for rank in trace.ranks:
        for call, time in _timed(rank):
            if call.kind not in _OUTSIDE and time.calls:
                row = rows[call_name(call), call.kind.is_collective]
                row[0] += time.calls
                row[1] += time.total_ns
                row[2] = max(row[2], time.max_ns)
                row[3] += time.calls * call.message_bytes
    built = [CallRow(name, collective, *row) for (name, collective), row in rows.items()]
    return tuple(sorted(built, key=lambda row: (-row.total_ns, row.name)))


def _sends(rank: RankTrace) -> Iterator[tuple[Call, int, int]]:
    """Yield every kind of send with its destination in the world and how often it was made."""
    for call, time in _timed(rank):
        if call.kind in _SENDS and time.calls:
            yield call, rank.communicators[call.comm].members[call.peer], time.calls


def _pairs(trace: Trace) -> tuple[RankPair, ...]:
    pairs: list[RankPair] = []
    for rank in trace.ranks:
        found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for call, destination, times in _sends(rank):
            found[destination][0] += times
            found[destination][1] += times * call.message_bytes
        pairs += [RankPair(messages, size, rank.rank, to) for to, (messages, size) in sorted(found.items())]
    return tuple(pairs)


def _size_bins(trace: Trace) -> tuple[SizeBin, ...]:
    """Return bins 0, 1, 2, 4, 8 ... bytes; those between the smallest and the largest in use."""
    messages: Counter[int] = Counter()
    totals: Counter[int] = Counter()
    for rank in trace.ranks:
        for call, _, times in _sends(rank):
            exponent = (call.message_bytes - 1).bit_length() if call.message_bytes else -1
            messages[exponent] += times
            totals[exponent] += times * call.message_bytes
    if not messages:
        return ()
    return tuple(
        SizeBin(messages[exponent], totals[exponent], 1 << exponent if exponent >= 0 else 0)
        for exponent in range(min(messages), max(messages) + 1)
    )


# ---------------------------------------------------------------- matrix and placement


def matrix(view: TraceView, cells: int) -> NDArray[np.int64]:
    """Return bytes from ranks (rows) to ranks (columns), at most `cells` x `cells`: ranks are grouped when more."""
    ranks = len(view.ranks)
    side = min(cells, ranks)
    made = np.zeros((side, side), dtype=np.int64)
    for pair in view.pairs:
        made[pair.source * side // ranks, pair.destination * side // ranks] += pair.total_bytes
    return made


def _crossing(pairs: Sequence[RankPair], placement: RankMap) -> Crossing:
    whole = Traffic.sum_of(pairs)
    part = Traffic.sum_of(one for one in pairs if placement.nodes[one.source] != placement.nodes[one.destination])
    return Crossing(
        part.messages,
        part.total_bytes,
        placement.label,
        len(set(placement.nodes)),
        part.messages / max(1, whole.messages),
        part.total_bytes / max(1, whole.total_bytes),
    )


def regular_placement(text: str, ranks: int) -> RankMap | None:
    """Read `block:N` (N ranks a node, in order) or `cyclic:N` (dealt out over ranks / N nodes); None: neither."""
    match = _BLOCK.fullmatch(text)
    if match is None:
        return None
    a_node = int(match[2])
    if not a_node:
        raise BadInputError(f"{text!r} puts no rank on a node", hint="block:2 means two ranks per node")
    count = -(-ranks // a_node)
    numbers = [rank // a_node if match[1] == "block" else rank % count for rank in range(ranks)]
    return RankMap(text, tuple(f"n{number}" for number in numbers))


def _a_line_each(path: Path, lines: list[str], ranks: int) -> list[str]:
    """Return lines such as `node:2` and `node slots=2` as often as they have ranks.

    Raise BadInputError where those are not all ranks.
    """
    known = [(found[1], int(found[2])) for found in map(_HOST_LINE.fullmatch, lines) if found]
    if len(lines) != len(known):
        return lines
    if (placed := sum(count for _, count in known)) != ranks:
        raise _misfit(path, placed, ranks)
    return [node for node, count in known for _ in range(count)]


def _misfit(path: Path, placed: int, ranks: int) -> BadInputError:
    return BadInputError(
        f"{path} places {placed} ranks, the trace has {ranks}",
        hint="use one line per rank, a node name or rank N=node, or node:ranks, node slots=ranks for successive ranks",
    )


def read_placement(path: Path, ranks: int) -> RankMap:
    """Read a file with one node name a line in rank order, a host file (of MPICH `node:ranks`) or a rankfile.

    Raise BadInputError when it cannot be read or does not say the node of every rank exactly once.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        hint = "give block:N, cyclic:N or a file that names each rank's node"
        raise BadInputError(f"cannot read the placement {path}: {why}", hint=hint) from error
    lines = [kept for line in text.splitlines() if (kept := line.split("#")[0].strip())]
    nodes: dict[int, str] = {}
    for line in _a_line_each(path, lines, ranks):
        match = _RANKFILE_LINE.fullmatch(line)
        rank, node = (int(match[1]), match[2]) if match else (len(nodes), line.split()[0].split(":")[0])
        if rank in nodes:
            raise BadInputError(f"{path} places rank {rank} twice")
        nodes[rank] = node
    if set(nodes) != set(range(ranks)):
        raise _misfit(path, len(nodes), ranks)
    return RankMap(str(path), tuple(nodes[rank] for rank in range(ranks)))
