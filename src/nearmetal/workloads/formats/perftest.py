"""perftest (ib_write_lat, ib_send_bw ...): its summary rows and options. Read with versions 4.5 to 6.

The latencies of write and send are half a round trip, halved by perftest; those of read and atomic are whole. Its
t_stdev and tail columns are not used: the deviation is computed with integer temporaries and so lacks everything below
a microsecond, and with 1000 iterations the 99.9 % column is the second largest value (perftest_resources.c). The raw
values of `-U` are read by `perftest_dump`. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.workloads.formats.lines import number, refuse, to_text, whole

PROGRAM = "perftest"

DUMP_HEAD = "#, usec"
LEAST_ITERATIONS = 5
_TITLE = re.compile(
    r"^[ \t]+(?:RDMA_(?P<rdma>Write|Read)|(?P<send>Send)|Atomic (?P<atomic>FETCH_AND_ADD|CMP_AND_SWAP)) "
    r"(?P<way>Bidirectional )?(?:Post List )?(?P<kind>Latency|BW) Test",
    re.MULTILINE,
)
_LATENCY = re.compile(r"^ ?#bytes +#iterations +t_min\[usec\] ", re.MULTILINE)
_LATENCY_DURATION = re.compile(r"^ ?#bytes +#iterations +t_avg\[usec\] +tps average", re.MULTILINE)
_BANDWIDTH = re.compile(
    r"^ ?#bytes +#iterations +BW peak\[(?P<peak>[A-Za-z/]+)\] +BW average\[(?P<unit>[A-Za-z/]+)\] +MsgRate\[Mpps\]",
    re.MULTILINE,
)
_END_BYTES = 4096
_LEAST_COLUMNS = 4
_UNITS = {"MB/sec": "MiB/s", "MiB/sec": "MiB/s", "Gb/sec": "Gbit/s"}  # the older label MB/sec is MiB, too


@dataclass(frozen=True, slots=True)
class Row:
    """One size: the mean latency in us, or the mean bandwidth in `unit`; the other is 0."""

    message_bytes: int
    iterations: int
    latency_us: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Result:
    """What one program printed: `operation` such as `ib_write_lat`, and the unit of its figures.

    `dumped` tells whether there are values of iterations, `ended` whether the line below its rows is there.
    """

    operation: str
    unit: str
    rows: tuple[Row, ...]
    dumped: bool
    ended: bool


def parse(data: bytes) -> Result:
    """Read the client's output; raise ForeignFileError for anything else."""
    head, dumped, tail = data.partition(f"\n{DUMP_HEAD}".encode())
    text = to_text(head + b"\n" if dumped else head, PROGRAM)
    if dumped:
        # The values between are millions of lines: only the words after them are of use here.
        text += to_text(tail[-_END_BYTES:], PROGRAM).partition("\n")[2]
    return parse_summary(text, dumped=bool(dumped))


def parse_summary(text: str, *, dumped: bool) -> Result:
    """Read title and rows out of text that may lack the dump; raise ForeignFileError for anything else."""
    title = _TITLE.search(text)
    if not title:
        raise refuse(PROGRAM, "no line names the test")
    verb = (title["rdma"] or title["send"] or "atomic").lower()
    if title["kind"] == "Latency":
        rows, ended = _latencies(text)
        return Result(f"ib_{verb}_lat", "us", rows, dumped, ended)
    match = _BANDWIDTH.search(text)
    if not match or match["unit"] not in _UNITS:
        raise refuse(PROGRAM, "there is no line of bandwidth columns that nearmetal knows")
    found, ended = _rows(text[match.end() :], _LEAST_COLUMNS)
    rows = tuple(Row(size, n, 0.0, _positive(words[1])) for size, n, words in found)
    return Result(f"ib_{verb}_bw", _UNITS[match["unit"]], _some(rows), dumped, ended)


def _latencies(text: str) -> tuple[tuple[Row, ...], bool]:
    for head, column in ((_LATENCY, 3), (_LATENCY_DURATION, 0)):
        if match := head.search(text):
            found, ended = _rows(text[match.end() :], 3 + column)
            return _some(tuple(Row(size, n, _positive(words[column]), 0.0) for size, n, words in found)), ended
    raise refuse(PROGRAM, "there is no line of latency columns that nearmetal knows")


def _some(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    if not rows:
        raise refuse(PROGRAM, "there is no result below the columns")
    return rows


def _positive(word: str) -> float:
    value = number(word, PROGRAM, "a result")
    if value == 0:
        raise refuse(PROGRAM, "a result is 0")
    return value


def _rows(text: str, least: int) -> tuple[list[tuple[int, int, list[str]]], bool]:
    """Return size, iterations and the other columns of each row, at least so many in all, and whether a line ends them.

    Values of a dump may stand before the rows.
    """
    rows: list[tuple[int, int, list[str]]] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if rows and line.lstrip().startswith("---"):
            return rows, True
        if words and words[0].isdigit():
            if len(words) < least:
                raise refuse(PROGRAM, f"{line[:60]!r} lacks a column")
            rows.append((whole(words[0], PROGRAM, "a size"), whole(words[1], PROGRAM, "a count"), words[2:]))
    return rows, False
