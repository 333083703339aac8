"""OSU Micro-Benchmarks 5.x to 7.x, also with -f and -z, and the mpi4py benchmarks that print in the same form.

A row is a mean over all iterations of a launch: of half the round trip, of the bandwidth, or of a collective. What
`-f` adds is the least and the greatest *rank's mean*, not an iteration's; the percentiles that `-z` adds to a
collective are of each iteration's mean over ranks, and those of a bandwidth are of ascending bandwidths, so that "P99"
is near the best. None of these is adopted; they stay in the record of the import.

In the log of a job lines of the launcher and the shell follow: a table ends at the first line that does not begin
with a number.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.mpi_benchmarks import BenchmarkRun, MpiBenchmark
from nearmetal.workloads.tools.lines import number, processes, refuse, sizes_end, to_text, whole
from nearmetal.workloads.tools.tool import (
    ONE_MEAN,
    WINDOW_MESSAGES,
    FileCell,
    Foreign,
    Import,
    Mean,
    Tool,
    cells_of,
    zeros_left_aside,
)

PROGRAM = "the OSU micro-benchmarks"

_TITLE = re.compile(r"^# (?:OSU|OMB-Py) (?P<title>.*)$", re.MULTILINE)
_VERSION = re.compile(r" v(\d[\w.]*)$")
_PAIRS = re.compile(r"^# \[ ?pairs: (\d+) ?\] ?\[ ?window size: (\w+) ?\]", re.MULTILINE)
# 7.4 puts one blank between the columns that -z adds: a name ends with a unit, and a percentile begins with P.
_GAP = re.compile(r"\s{2,}|\t|(?<=[)]) |(?<=/s) | (?=P\d)|(?<=^Size) ")
_OTHERWISE = (
    ("python", re.compile(r"^# OMB-Py ", re.MULTILINE)),
    ("threads", re.compile(r"^# OSU MPI\S* Multi-threaded ", re.MULTILINE)),
)
"""What else than MPI between two host programs the title tells."""
_DEVICE = re.compile(r"^# (?:OSU|OMB-Py) MPI-(\w+) ", re.MULTILINE)
_BUFFERS = re.compile(r"^# Send Buffer on \w+ \((\w+)\) and Receive Buffer on \w+ \((\w+)\)", re.MULTILINE)
_DATATYPE = re.compile(r"^# Datatype: (\S+?)\.?$", re.MULTILINE)
_THREADS = r"^# Number of Sender threads: (\d{1,4}) *\n# Number of Receiver threads: (\d{1,4})\s*"
_USUAL_THREADS = ("1", "2")
"""Of a sender and of a receiver, unless `-t` says otherwise; they are printed before the title."""
_ROW = re.compile(r"\s*\d")
_NUMBERS = re.compile(r"[\d.\s]+")

_AS_NAMED = ("barrier", "reduce", "allreduce", "allgather", "alltoall", "gather", "scatter")
_OPERATIONS = {
    "latency": "latency",
    "multi latency": "multi_latency",
    "multi-threaded latency": "multi_latency",
    "bandwidth": "bw",
    "bi-directional bandwidth": "bibw",
    "multiple bandwidth / message rate": "message_rate",
    "broadcast latency": "bcast",
    "all-to-all personalized exchange latency": "alltoall",
    **{f"{name} latency": name for name in _AS_NAMED},
}
_MEANS = {
    "latency (us)": "us",
    "avg latency(us)": "us",
    "avg lat(us)": "us",
    "bandwidth (mb/s)": "MB/s",
    "mb/s": "MB/s",
    "messages/s": "1/s",
}
_OF_PAIRS = ("latency", "multi_latency", "bw", "bibw", "message_rate")
_OF_TOLD_RANKS = ("latency", "bw", "bibw", "message_rate")
_LAST_OF_PAIRS, _LAST_OF_COLLECTIVES = 1 << 22, 1 << 20
_SIZES = ("size", "# size")
_TRANSMITTED = "transmit size"
"""The column that `-D` adds: what a derived datatype sends of each size."""
_USUAL_TYPES = {"reduce": "MPI_INT", "allreduce": "MPI_INT"}
"""What version 7 reduces unless `-T` says otherwise; it moves MPI_CHAR. Earlier ones name no datatype."""
_MOST_ROWS = 1024
"""A launch has some thirty sizes; a barrier has one row."""


@dataclass(frozen=True, slots=True)
class OmbTable:
    """One benchmark's table: nearmetal's name of the operation, and whether `-f`, `-z` columns were left aside.

    `rows` are one mean a size in the table's `unit`, 0 where it rounds to 0.00. `datatype` is named where it is not the
    usual one, and where a launch (`-T all`) printed a table for each of several, `window` where it is printed.
    `otherwise` names what makes it another measurement: Python, threads, a GPU's memory, derived datatypes.
    """

    version: str
    operation: str
    unit: str
    pairs: int
    rows: tuple[Mean, ...]
    left_aside: tuple[str, ...]
    datatype: str = ""
    window: str = ""
    otherwise: str = ""


def parse(data: bytes) -> OmbTable:
    """Read one benchmark's output; raise ForeignFileError for anything else, a failed validation included."""
    text = to_text(data, PROGRAM)
    titles = list(_TITLE.finditer(text))
    if len(titles) != 1:
        raise refuse(PROGRAM, f"it has {len(titles)} lines that name a benchmark, not one")
    title = titles[0]["title"].rstrip()
    version = _VERSION.search(title[-40:])
    operation = _operation(title.removesuffix(version[0] if version else "").removesuffix(" Test"))
    pairs = _PAIRS.search(text)
    head, body = _columns(text[titles[0].end() :])
    mean, unit = _mean_column(head, operation)
    count = processes(pairs[1], PROGRAM) if pairs else 1
    rows = tuple(Mean(operation, *_row(line, head, mean), count) for line in body)
    if not rows:
        raise refuse(PROGRAM, "there are no rows below its columns")
    if len(rows) != len({row.message_bytes for row in rows}) or len(rows) > _MOST_ROWS:
        raise refuse(PROGRAM, f"it has {len(rows)} rows, or a size twice")
    aside = tuple(
        name for i, name in enumerate(head) if i != mean and name not in (*_SIZES, "pass", "validation", "mb/s")
    )
    window = pairs[2] if pairs else ""
    otherwise = _otherwise(text, head)
    return OmbTable(version[1] if version else "", operation, unit, count, rows, aside, "", window, otherwise)


def _otherwise(text: str, head: Sequence[str]) -> str:
    """Return what makes a table another measurement than that of the same operation, empty where nothing does."""
    device, buffers = _DEVICE.search(text), _BUFFERS.search(text)
    threads = re.search(_THREADS, text, re.MULTILINE)
    found = [name for name, title in _OTHERWISE if title.search(text)]
    found += threads.groups() if threads and threads.groups() != _USUAL_THREADS else []
    found += [device[1].lower()] if device else []
    found += [f"{buffers[1]}-{buffers[2]}".lower()] if buffers else []
    found += ["ddt"] if _TRANSMITTED in head else []
    return "-".join(found)


def last_size(table: OmbTable) -> int:
    """Return the largest size of a benchmark unless `-m` sets another, 0 for one without sizes."""
    if table.operation == "barrier":
        return 0
    return _LAST_OF_PAIRS if table.operation in _OF_PAIRS else _LAST_OF_COLLECTIVES


def parse_all(data: bytes) -> tuple[OmbTable, ...]:
    """Read the tables of one launch, one a datatype; raise ForeignFileError as `parse` does."""
    text = to_text(data, PROGRAM)
    types = list(_DATATYPE.finditer(text))
    if len(types) < 2:
        table = parse(data)
        usual = _USUAL_TYPES.get(table.operation, "MPI_CHAR")
        return tuple(replace(table, datatype=one[1] if one[1] != usual else "") for one in types) or (table,)
    ends = [one.start() for one in types[1:]] + [len(text)]
    head = text[: types[0].start()]
    return tuple(
        replace(parse((head + text[one.start() : end]).encode()), datatype=one[1])
        for one, end in zip(types, ends, strict=True)
    )


def _operation(title: str) -> str:
    """Return the operation of a title such as `MPI Allreduce Latency` or `MPI-CUDA Bandwidth`."""
    words = re.sub(r"^MPI(?:-\w+)?\s+", "", title.strip(), flags=re.IGNORECASE).lower()
    if words not in _OPERATIONS:
        raise refuse(PROGRAM, f"nearmetal has no operation like {title.strip()[:60]!r}")
    return _OPERATIONS[words]


def _columns(text: str) -> tuple[list[str], list[str]]:
    """Return the names of the columns, lower case, and the rows below them: lines that begin with a number.

    What follows in a log is the shell's or the launcher's; a row among it would mean that the table has a hole.
    """
    lines = text.splitlines()
    heads = [
        i for i, line in enumerate(lines) if line.startswith("#") and any(known in line.lower() for known in _MEANS)
    ]
    if len(heads) != 1:
        raise refuse(PROGRAM, f"it has {len(heads)} lines of columns, not one")
    names = [name.strip().lower() for name in _GAP.split(lines[heads[0]].lstrip("# ").rstrip()) if name.strip()]
    below = [line for line in lines[heads[0] + 1 :] if line.strip() and not line.startswith("#")]
    rows = list(takewhile(_ROW.match, below))
    for line in below[len(rows) :]:
        if len(line.split()) == len(names) and _NUMBERS.fullmatch(line):
            raise refuse(PROGRAM, f"{line[:60]!r} is a row after other text")
    return names, rows


def _mean_column(head: list[str], operation: str) -> tuple[int, str]:
    wanted = ["messages/s"] if operation == "message_rate" else [name for name in _MEANS if name != "messages/s"]
    found = [(i, _MEANS[name]) for i, name in enumerate(head) if name in wanted]
    if len(found) != 1:
        raise refuse(PROGRAM, f"its columns are {', '.join(head)[:120]}")
    return found[0]


def _row(line: str, head: list[str], mean: int) -> tuple[float, int]:
    """Return a row's mean and its size."""
    words = line.split()
    if "fail" in (word.lower() for word in words):
        raise refuse(PROGRAM, f"its validation failed: {line[:60]!r}")
    if len(words) == len(head) + 1 and words[-1].lower() == "pass":  # a column without a name (osu_barrier -c)
        words.pop()
    if len(words) != len(head):
        raise refuse(PROGRAM, f"{line[:60]!r} has {len(words)} columns, not {len(head)}")
    size = whole(words[0], PROGRAM, "a size") if head[0] in _SIZES else 0
    return number(words[mean], PROGRAM, "a mean"), size


# ---- launching, decoding, adopting


def _arguments(run: BenchmarkRun) -> list[str]:
    size = ["-m", f"{run.size_bytes}:{run.size_bytes}"] if run.sized else []
    return [*size, "-i", str(run.iterations), "-x", str(run.warmup)]


_WORKLOAD = MpiBenchmark(
    kind="omb",
    benchmarks={
        "latency": "latency",
        "multi_latency": "multi_lat",
        "bw": "bw",
        "bibw": "bibw",
        "message_rate": "mbw_mr",
        **{name: name for name in ("bcast", *_AS_NAMED)},
    },
    option="folder",
    program=lambda benchmark: f"osu_{benchmark}",
    arguments=_arguments,
    means=lambda data: parse(data).rows,
    hint="no package of Debian has it: `spack install osu-micro-benchmarks`, or its sources with "
    "`./configure CC=mpicc CXX=mpicxx && make`; then name its directory in option `folder`",
    pairs_by_halves=("multi_latency", "message_rate"),
)


_IN_PLACE = ("allgather", "allreduce", "alltoall", "gather", "reduce", "scatter")
_ROOTED = ("gather", "reduce", "scatter")


def _unsaid(table: OmbTable) -> str:
    """Return which options of version 7 make another measurement of the operation, though no heading tells them."""
    options = (("several buffers (-b)", _OF_PAIRS), ("data in place (-l)", _IN_PLACE), ("another root (-k)", _ROOTED))
    found = [name for name, of in options if table.operation in of and table.version.startswith("7.")]
    return f"no word of {' or '.join(found)}: import outputs of one kind only" if found else ""


_DERIVED = "messages of a derived datatype that it does not name: import outputs of one kind only"


def _adopt(table: OmbTable) -> Foreign[FileCell]:
    if table.unit == "MB/s" and any(row.message_bytes == 0 for row in table.rows):
        raise ForeignFileError("a bandwidth of messages without bytes is no bandwidth")
    cells = cells_of(table.rows)
    if not cells:
        raise ForeignFileError("every mean in it is 0.00")
    aside = f"left aside: {', '.join(table.left_aside)}" if table.left_aside else ""
    zeros = zeros_left_aside(table.rows)
    ended = sizes_end(table.rows[-1].message_bytes, last_size(table))
    window = f"window{table.window}" if table.window not in {"", str(WINDOW_MESSAGES)} else ""
    pairs = f"{table.pairs}-pairs" if table.pairs > 1 else ""
    name = "-".join(filter(None, ("omb", table.operation, table.otherwise, table.datatype, pairs, window)))
    ranks = "" if table.operation in _OF_TOLD_RANKS else "no number of processes: import outputs of one number only"
    derived = _DERIVED if _TRANSMITTED in table.left_aside else ""
    lacks = tuple(filter(None, (ONE_MEAN, ranks, _unsaid(table), derived, aside, zeros, ended)))
    return Foreign("OMB", table.version, name, 2 * table.pairs, cells, lacks, window=table.window)


_BEGINS = rb"(?:" + _THREADS.encode() + rb")?^# (?:OSU|OMB-Py) "
_IMPORT = Import((b"# OSU ", b"# OMB-Py "), lambda data: map(_adopt, parse_all(data)), begins=_BEGINS)
TOOL = Tool("omb", (_IMPORT,), _WORKLOAD, _WORKLOAD.samples)
