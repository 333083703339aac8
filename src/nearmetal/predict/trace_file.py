"""Read trace files, versions 1 to 3 (docs/reference/trace-file.md).

A reader refuses what it cannot trust with ForeignFileError: a torn file, a wrong checksum, an index that points
nowhere, ranks of different runs. Nothing of a refused trace is returned. `native/trace` writes them.
"""

import itertools
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from nearmetal import limits
from nearmetal.errors import ForeignFileError
from nearmetal.predict.inter import join_groups
from nearmetal.predict.trace import (
    NONE,
    Call,
    CallFlag,
    CallKind,
    CallTime,
    CommKind,
    Communicator,
    DoCall,
    DoGap,
    Gap,
    RankTrace,
    Repeat,
    Step,
    Trace,
    call_count,
)
from nearmetal.reading import read_bytes, timed

MAGIC = b"NMTR\r\n\x1a\n"
VERSION = 3
SUFFIX = ".nmtrace"
FIRST_RANK = f"rank-{0:06d}{SUFFIX}"
_BEGUN = f"rank-*{SUFFIX}.part"
MAX_DEPTH = 32
_HEADER = struct.Struct("<8sHHIIIQQQ12xI")
_SECTION = struct.Struct("<4sIQ")
_COMM = struct.Struct("<QIHHIIII")
_CALL = struct.Struct("<HHIiiQiiQIIII")
_TIME = struct.Struct("<QQQ")
_END = struct.Struct("<IQ")
_U32 = struct.Struct("<I")
_TAGS_1 = (b"META", b"LIST", b"COMM", b"CALL", b"TIME", b"GAPS", b"PROG", b"END ")
_TAGS_2 = (b"META", b"LIST", b"COMM", b"CALL", b"TIME", b"GAPS", b"SEQU", b"PROG", b"END ")
_TAGS = {1: _TAGS_1, 2: _TAGS_2, 3: _TAGS_2}
_ALL_FLAGS = sum(CallFlag)
_CALL_TOKEN, _GAP_TOKEN, _REPEAT_TOKEN, _STOP_TOKEN = range(4)


class _DamagedError(Exception):
    """What is wrong with the bytes; the caller adds which file."""


class _Cursor:
    """Reads numbers off a payload and refuses to run past its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def done(self) -> bool:
        return self.at == len(self.data)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise _DamagedError("a section is shorter than its entries")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            if self.done:
                raise _DamagedError("a number is cut off")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _DamagedError("a number is longer than 10 bytes")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def finish(self) -> None:
        if not self.done:
            raise _DamagedError(f"{len(self.data) - self.at} bytes too many in a section")


def _read_list(cursor: _Cursor, room: int) -> tuple[int, ...]:
    values: list[int] = []
    for _ in range(cursor.varint()):
        count, first, stride = cursor.varint(), cursor.varint(), cursor.zigzag()
        if count < 1 or count > room - len(values):
            raise _DamagedError(f"a list run of {count} numbers")
        if first + stride * (count - 1) < 0:
            raise _DamagedError("a negative number in a list")
        values.extend(range(first, first + stride * count, stride) if stride else [first] * count)
    return tuple(values)


def _read_lists(payload: bytes) -> tuple[tuple[int, ...], ...]:
    cursor = _Cursor(payload)
    lists: list[tuple[int, ...]] = []
    room = limits.TRACE_LISTS.value() + len(payload)  # a few bytes must not make a reader allocate without bound
    for _ in range(cursor.varint()):
        lists.append(_read_list(cursor, room))
        room -= len(lists[-1])
    cursor.finish()
    return tuple(lists)


def _look_up(lists: tuple[tuple[int, ...], ...], index: int) -> tuple[int, ...]:
    if index == NONE:
        return ()
    if index >= len(lists):
        raise _DamagedError(f"list {index} of {len(lists)}")
    return lists[index]


def _read_communicators(
    payload: bytes, lists: tuple[tuple[int, ...], ...], world_ranks: int
) -> tuple[Communicator, ...]:
    cursor = _Cursor(payload)
    comms: list[Communicator] = []
    for position in range(cursor.unpack(_U32)[0]):
        uid, parent, kind, _, members, my_rank, dims, periods = cursor.unpack(_COMM)
        comm = Communicator(
            uid,
            CommKind(kind),
            parent,
            _look_up(lists, members),
            my_rank,
            _look_up(lists, dims),
            _look_up(lists, periods),
        )
        if parent != NONE and parent >= position:
            raise _DamagedError(f"communicator {position} comes before its parent {parent}")
        if not comm.members or max(comm.members) >= world_ranks or my_rank >= len(comm.members):
            raise _DamagedError(f"communicator {position} has members outside the world of {world_ranks} ranks")
        if len(comm.dims) != len(comm.periods):
            raise _DamagedError(f"communicator {position} has {len(comm.dims)} dimensions, {len(comm.periods)} periods")
        comms.append(comm)
    cursor.finish()
    if [comm.kind for comm in comms[:2]] != [CommKind.WORLD, CommKind.SELF]:
        raise _DamagedError("world and self are not the first communicators")
    return tuple(comms)


def _read_calls(payload: bytes, lists: int, comms: tuple[Communicator, ...]) -> tuple[Call, ...]:
    cursor = _Cursor(payload)
    calls: list[Call] = []
    for _ in range(cursor.unpack(_U32)[0]):
        kind, flags, *rest = cursor.unpack(_CALL)
        if flags > _ALL_FLAGS:
            raise _DamagedError(f"a call has flags {flags:#x}; this reader knows {_ALL_FLAGS:#x}")
        call = Call(CallKind(kind), CallFlag(flags), *rest)
        _check_call(call, lists, comms)
        calls.append(call)
    cursor.finish()
    return tuple(calls)


def _check_call(call: Call, lists: int, comms: tuple[Communicator, ...]) -> None:
    if call.comm >= len(comms):
        raise _DamagedError(f"communicator {call.comm} of {len(comms)}")
    if call.kind.creates and call.request != NONE and call.request >= len(comms):
        raise _DamagedError(f"a call makes communicator {call.request} of {len(comms)}")
    # The peers of an inter-communicator are ranks of the remote group, which the file does not list.
    if comms[call.comm].kind is not CommKind.INTER:
        size = len(comms[call.comm].members)
        if not (-1 <= call.peer < size and -1 <= call.recv_peer < size):
            raise _DamagedError(f"peer {call.peer} or {call.recv_peer} in a communicator of {size} ranks")
    references = [call.list_a, call.list_b]
    if call.kind is CallKind.WAIT:
        references.append(call.request)
    if any(index != NONE and index >= lists for index in references):
        raise _DamagedError(f"a call refers to list {max(references)} of {lists}")


def _read_times(payload: bytes, calls: int) -> tuple[CallTime, ...]:
    cursor = _Cursor(payload)
    times = tuple(CallTime(*cursor.unpack(_TIME)) for _ in range(calls))
    cursor.finish()
    return times


def _read_gaps(payload: bytes) -> tuple[tuple[float, ...], tuple[Gap, ...]]:
    cursor = _Cursor(payload)
    sites, points = cursor.unpack(struct.Struct("<II"))
    if not 2 <= points <= 1024:
        raise _DamagedError(f"{points} points in a gap distribution")
    probabilities = tuple(float(p) for p in cursor.unpack(struct.Struct(f"<{points}d")))
    if (probabilities[0], probabilities[-1]) != (0.0, 1.0) or not _rising(probabilities, strict=True):
        raise _DamagedError("gap probabilities do not rise from 0 to 1")
    layout = struct.Struct(f"<QQ{points}Q")
    gaps: list[Gap] = []
    for _ in range(sites):
        visits, total_ns, *quantiles = cursor.unpack(layout)
        if not _rising(tuple(quantiles), strict=False):
            raise _DamagedError("the quantiles of a gap fall")
        gaps.append(Gap(visits, total_ns, tuple(quantiles)))
    cursor.finish()
    return probabilities, tuple(gaps)


def _read_order(payload: bytes, gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    cursor = _Cursor(payload)
    ordered: list[Gap] = []
    for gap in gaps:
        (kept,) = cursor.unpack(_U32)
        if kept > gap.visits:
            raise _DamagedError(f"{kept} durations of a gap that was visited {gap.visits} times")
        ordered.append(replace(gap, order=cursor.take(2 * kept)))
    cursor.finish()
    return tuple(ordered)


def _rising(values: tuple[float, ...] | tuple[int, ...], *, strict: bool) -> bool:
    pairs = itertools.pairwise(values)
    return all(a < b or (not strict and a == b) for a, b in pairs)


def _read_program(payload: bytes, calls: int, gaps: int) -> tuple[Step, ...]:
    cursor = _Cursor(payload)
    stack: list[tuple[int, list[Step]]] = [(1, [])]
    while not cursor.done:
        value = cursor.varint()
        token, argument = value & 3, value >> 2
        if token == _REPEAT_TOKEN:
            if argument < 1 or len(stack) > MAX_DEPTH:
                raise _DamagedError(f"a repeat of {argument} at depth {len(stack)}")
            stack.append((argument, []))
        elif token == _STOP_TOKEN:
            _close_repeat(stack, argument)
        else:
            room = calls if token == _CALL_TOKEN else gaps
            if argument >= room:
                raise _DamagedError(f"the program refers to entry {argument} of {room}")
            stack[-1][1].append(DoCall(argument) if token == _CALL_TOKEN else DoGap(argument))
    if len(stack) != 1:
        raise _DamagedError("a repeat is not closed")
    return tuple(stack[0][1])


def _close_repeat(stack: list[tuple[int, list[Step]]], argument: int) -> None:
    if argument or len(stack) == 1:
        raise _DamagedError("a repeat ends that did not begin")
    count, body = stack.pop()
    if not body:
        raise _DamagedError("an empty repeat")
    stack[-1][1].append(Repeat(count, tuple(body)))


def _split_sections(data: bytes, version: int, sections: int) -> dict[bytes, bytes]:
    tags = _TAGS[version]
    if sections != len(tags):
        raise _DamagedError(f"{sections} sections where version {version} has {len(tags)}")
    payloads: dict[bytes, bytes] = {}
    at = _HEADER.size
    for wanted in tags:
        if at + _SECTION.size > len(data):
            raise _DamagedError(f"the file ends before its section {wanted.decode()!r}; it is torn")
        tag, crc, size = _SECTION.unpack_from(data, at)
        if tag != wanted:
            raise _DamagedError(f"section {tag!r} where {wanted!r} belongs")
        payload = data[at + _SECTION.size : at + _SECTION.size + size]
        if len(payload) != size or zlib.crc32(payload) != crc:
            raise _DamagedError(f"section {wanted.decode()!r} is torn or damaged")
        payloads[tag] = payload
        if tag == b"END " and (len(payload) != _END.size or _END.unpack(payload) != (zlib.crc32(data[:at]), at)):
            raise _DamagedError("the checksum of the whole file is wrong")
        at += _SECTION.size + size
    if at != len(data):
        raise _DamagedError(f"{len(data) - at} bytes after the end")
    return payloads


def _read_meta(payload: bytes) -> dict[str, str]:
    lines = payload.decode("utf-8").split("\n")
    if lines.pop() or any("=" not in line for line in lines):
        raise _DamagedError("META is not key=value lines")
    return dict(line.split("=", 1) for line in lines)


def _decode(data: bytes) -> RankTrace:
    if len(data) < _HEADER.size:
        raise _DamagedError(f"{len(data)} bytes are shorter than a header")
    magic, version, header, rank, world, sections, trace_id, elapsed_ns, calls_seen, crc = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _DamagedError(f"it starts with {magic!r}")
    if version not in _TAGS or header != _HEADER.size:
        raise _DamagedError(f"version {version} with a header of {header} bytes; this reader knows 1 to {VERSION}")
    if zlib.crc32(data[: _HEADER.size - 4]) != crc or rank >= world:
        raise _DamagedError("the header is damaged")
    payloads = _split_sections(data, version, sections)
    lists = _read_lists(payloads[b"LIST"])
    comms = _read_communicators(payloads[b"COMM"], lists, world)
    calls = _read_calls(payloads[b"CALL"], len(lists), comms)
    probabilities, gaps = _read_gaps(payloads[b"GAPS"])
    if b"SEQU" in payloads:
        gaps = _read_order(payloads[b"SEQU"], gaps)
    trace = RankTrace(
        rank=rank,
        world_ranks=world,
        trace_id=trace_id,
        elapsed_ns=elapsed_ns,
        meta=_read_meta(payloads[b"META"]),
        lists=lists,
        communicators=comms,
        calls=calls,
        times=_read_times(payloads[b"TIME"], len(calls)),
        gap_probabilities=probabilities,
        gaps=gaps,
        program=_read_program(payloads[b"PROG"], len(calls), len(gaps)),
    )
    if call_count(trace) != calls_seen:
        raise _DamagedError(f"the program has {call_count(trace)} calls, the header says {calls_seen}")
    return trace


@timed
def decode_rank(data: bytes, name: str = "trace") -> RankTrace:
    """Return the trace in the bytes of one rank's file; raise ForeignFileError when they cannot be trusted."""
    try:
        return _decode(data)
    except (_DamagedError, ValueError) as error:
        raise ForeignFileError(
            f"{name} is not a complete trace file: {error}",
            hint="trace the program again; a run that was killed leaves only .part files",
        ) from error


def read_trace(directory: Path) -> Trace:
    """Read the traces of all ranks of a run.

    Raise ForeignFileError when a file is damaged, a rank is missing or the files come from different runs.
    """
    paths = sorted(directory.glob(f"rank-*{SUFFIX}")) if directory.is_dir() else []
    if not paths:
        raise _no_trace(directory)
    trace = trace_of({str(path): read_bytes(path) for path in paths}, str(directory))
    return replace(trace, first_of_several=any(directory.glob(_BEGUN)))


def _no_trace(directory: Path) -> ForeignFileError:
    """Return what is there instead of a trace."""
    made = "make one with `nearmetal trace -- mpirun ...`"
    if not directory.exists():
        return ForeignFileError(f"there is no trace {str(directory)!r}", hint=made)
    if not directory.is_dir():
        return ForeignFileError(f"{directory} is a file", hint="a trace is the directory that `nearmetal trace` made")
    if any(directory.glob(_BEGUN)):
        made = "trace the program again, to its end: a run that was killed leaves only .part files"
    return ForeignFileError(f"{directory} holds no trace (no rank-*{SUFFIX} files)", hint=made)


def trace_of(files: Mapping[str, bytes], source: str) -> Trace:
    """Return the trace in the files of all ranks, by name; raise ForeignFileError as `read_trace` does."""
    ranks = [decode_rank(data, name) for name, data in files.items()]
    _check_set(source, ranks)
    digest = sha256(b"".join(sorted(sha256(data).digest() for data in files.values()))).hexdigest()
    return Trace(join_groups(sorted(ranks, key=lambda rank: rank.rank)), source, digest)


def _check_set(directory: str, ranks: Iterable[RankTrace]) -> None:
    runs = {(rank.trace_id, rank.world_ranks) for rank in ranks}
    if len(runs) > 1:
        text = f"{directory} mixes {len(runs)} runs"
        raise ForeignFileError(text, hint="give each traced run its own empty directory")
    (_, world_ranks), seen = runs.pop(), [rank.rank for rank in ranks]
    twice = [rank for rank, files in Counter(seen).items() if files > 1]
    if twice:
        text = f"{directory} holds rank {twice[0]} in {seen.count(twice[0])} files"
        raise ForeignFileError(text, hint="remove copies, or trace the program again")
    missing = sorted(set(range(world_ranks)) - set(seen))
    if missing:
        raise ForeignFileError(
            f"{directory} holds {len(seen)} of {world_ranks} ranks; first missing: {missing[:5]}",
            hint="all ranks must see the directory and end with MPI_Finalize; a crashed rank leaves only a .part file",
        )
