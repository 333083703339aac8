"""Read a trace that `tracing` recorded: pages of the kernel's ring buffer, and the text that lays out its events.

Formats: a page is described by `events/header_page`, an event's header by `events/header_event` in tracefs
(kernel/trace/ring_buffer.c, include/linux/ring_buffer.h); fields of events by their `format` files. Only 64-bit
little-endian kernels with pages of 4 KiB are read. Standard library only.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nearmetal import limits
from nearmetal.errors import ForeignFileError
from nearmetal.facts.tracing import FORMATS, RING
from nearmetal.reading import timed
from nearmetal.study.order import TRACE_FOLDER

PAGE_BYTES = 4096
_PAGE = struct.Struct("<QQ")  # time stamp in ns, and the length of the data with flags in its upper bits
_LENGTH_MASK = (1 << 27) - 1
_PADDING, _TIME_EXTEND, _TIME_STAMP = 29, 30, 31
_DELTA_BITS = 27
# An absolute time stamp event holds 59 bits; the five above are those of the page.
_STAMP_MASK = (1 << 59) - 1
_FIELD = re.compile(
    r"\tfield:(?P<text>[^;\t\n]{1,200}+);\toffset:(?P<at>\d{1,6});\tsize:(?P<size>\d{1,6});\tsigned:(?P<signed>[01]);"
)
_SIZES = {1, 2, 4, 8}
_RING_FILE = re.compile(rf"{TRACE_FOLDER}(?:(?P<machine>[a-z0-9-]{{1,15}})/)?{RING}(?P<cpu>[0-9]{{1,5}})")

Value = int | str
Thread = tuple[str, int]
"""A machine and a thread's number there."""


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field lies in an event's data; `text` when it points to a string."""

    name: str
    offset: int
    size: int
    signed: bool
    text: bool

    def read(self, data: bytes) -> Value:
        """Return its value; raise ForeignFileError when the data is too short."""
        if len(data) < self.offset + self.size:
            raise ForeignFileError(f"an event of {len(data)} bytes has no field {self.name!r} at {self.offset}")
        number = int.from_bytes(data[self.offset : self.offset + self.size], "little", signed=self.signed)
        if not self.text:
            return number
        start, length = number & 0xFFFF, number >> 16 & 0xFFFF
        return data[start : start + length].split(b"\0", 1)[0].decode(errors="backslashreplace")


Layouts = dict[int, tuple[str, list[Field]]]
"""Kinds of events by their numbers: the name, such as `net/net_dev_xmit`, and the fields."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event: when (ns of the trace clock), on which machine, and its fields.

    `machine` is a node's name where nodes are machines, and otherwise empty.
    """

    at_ns: int
    name: str
    fields: Mapping[str, Value]
    machine: str = ""

    @property
    def thread(self) -> Thread:
        """The thread that was current, also when an interrupt ran on top of it."""
        return self.machine, self.number("common_pid")

    def number(self, name: str) -> int:
        """Return a field that is a number; raise ForeignFileError when there is none."""
        value = self.fields.get(name)
        if not isinstance(value, int):
            raise ForeignFileError(f"event {self.name} has no number {name!r}")
        return value


@timed
def read_trace(files: Mapping[str, bytes]) -> list[TraceEvent]:
    """Return all events of a trace's files in order of time; raise ForeignFileError when they are none."""
    if FORMATS not in files:
        raise ForeignFileError(f"there is no trace among {sorted(files)}")
    layouts = parse_formats(files[FORMATS].decode(errors="backslashreplace"))
    events: list[TraceEvent] = []
    room, most = 0, limits.TRACE_VALUES.value()
    for name, pages in files.items():
        if match := _RING_FILE.fullmatch(name):
            for event in _decoded(pages, int(match["cpu"]), match["machine"] or "", layouts):
                room += 1 + len(event.fields)
                if room > most:
                    raise ForeignFileError(f"its events hold more than {most} values", hint=limits.TRACE_VALUES.hint)
                events.append(event)
    return sorted(events, key=lambda event: event.at_ns)


def parse_formats(text: str) -> Layouts:
    """Read `format` files, each after a line `event: SYSTEM/NAME`."""
    layouts: Layouts = {}
    for part in text.split("event: ")[1:]:
        name, _, rest = part.partition("\n")
        number = re.search(r"^ID: (\d{1,9})$", rest, re.MULTILINE)
        if number is None:
            raise ForeignFileError(f"the layout of event {name[:60]!r} has no number")
        fields = map(_field, _FIELD.finditer(rest))
        layouts[int(number[1])] = name, [field for field in fields if field.size in _SIZES]
    return layouts


def _field(match: re.Match[str]) -> Field:
    text = match["text"]
    name = re.split(r"[\s*]+", text.strip())[-1].partition("[")[0]
    return Field(name, int(match["at"]), int(match["size"]), match["signed"] == "1", "__data_loc char[]" in text)


def _decoded(pages: bytes, cpu: int, machine: str, layouts: Layouts) -> Iterator[TraceEvent]:
    if len(pages) % PAGE_BYTES:
        raise ForeignFileError(f"the ring buffer of CPU {cpu} has {len(pages)} bytes, not whole pages")
    for start in range(0, len(pages), PAGE_BYTES):
        for at_ns, data in page_events(pages[start : start + PAGE_BYTES]):
            layout = layouts.get(int.from_bytes(data[:2], "little"))
            if layout is not None:  # trace_marker writers and other tracers have events of their own
                name, fields = layout
                yield TraceEvent(at_ns, name, {f.name: f.read(data) for f in fields}, machine)


def page_events(page: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield time (ns) and data of every event of one page; raise ForeignFileError for a page that is damaged."""
    page_ns, commit = _PAGE.unpack_from(page)
    end = _PAGE.size + (commit & _LENGTH_MASK)
    if end > len(page):
        raise ForeignFileError(f"a page of the ring buffer claims {end} bytes of {len(page)}")
    at_ns, position = page_ns, _PAGE.size
    while position < end:
        kind, delta_ns, data, position = _next_event(page, position, end)
        if kind == _TIME_STAMP:
            at_ns = delta_ns | (page_ns & ~_STAMP_MASK)
            continue
        at_ns += delta_ns
        if data:
            yield at_ns, data


def _next_event(page: bytes, position: int, end: int) -> tuple[int, int, bytes, int]:
    """Return an event's kind, its time delta (or absolute time), its data, and where the next one starts."""
    if position + 8 > end:
        raise ForeignFileError(f"an event at byte {position} is cut off at byte {end} of its page")
    header, first = struct.unpack_from("<II", page, position)
    kind, delta_ns = header & 31, header >> 5
    if kind in (_TIME_EXTEND, _TIME_STAMP):
        return kind, (first << _DELTA_BITS) + delta_ns, b"", position + 8
    if kind == _PADDING:
        after = end if delta_ns == 0 else position + 4 + first
        return kind, delta_ns, b"", after
    start, length = (position + 4, 4 * kind) if kind else (position + 8, first - 4)
    if length < 4 or start + length > end:
        raise ForeignFileError(f"an event at byte {position} claims {length} bytes, its page ends at {end}")
    return kind, delta_ns, page[start : start + length], start + length
