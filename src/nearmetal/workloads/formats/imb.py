"""Intel MPI Benchmarks (IMB-MPI1): blocks of `#bytes #repetitions ...`, one a benchmark and number of processes.

PingPong times its whole loop, and t_min / t_max of the others are across processes of a mean over repetitions: there is
no spread of iterations in them. Adopted is t[usec] of PingPong and t_avg[usec] of the others. Read with 2019 to 2021.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.workloads.formats.lines import number, processes, refuse, to_text, whole

PROGRAM = "the Intel MPI Benchmarks"

_START = re.compile(r"^# Benchmarking (\S+)$", re.MULTILINE)
_PROCESSES = re.compile(r"^# #processes = (\d+)", re.MULTILINE)
_VERSION = re.compile(r"^#[ \t]+Intel\(R\) MPI Benchmarks ([\w.]+(?: Update \d+)?)", re.MULTILINE)
_HEAD = re.compile(r"^ *(#bytes +)?#repetitions +(t.*)$", re.MULTILINE)

_ENDED = "\n# All processes entering MPI_Finalize"

OPERATIONS = {
    "PingPong": "latency",
    "Barrier": "barrier",
    "Bcast": "bcast",
    "Reduce": "reduce",
    "Allreduce": "allreduce",
    "Allgather": "allgather",
    "Alltoall": "alltoall",
    "Gather": "gather",
    "Scatter": "scatter",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One size: the mean time in us as IMB states it (half the round trip for PingPong)."""

    message_bytes: int
    repetitions: int
    mean_us: float


@dataclass(frozen=True, slots=True)
class Block:
    """One benchmark on one number of processes; `operation` is empty where nearmetal has none like it."""

    benchmark: str
    operation: str
    processes: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """Everything that one launch printed, and whether it came to its end."""

    version: str
    ended: bool
    blocks: tuple[Block, ...]


def parse(data: bytes) -> Output:
    """Read a whole output; raise ForeignFileError for anything else."""
    text = to_text(data, PROGRAM)
    starts = list(_START.finditer(text))
    if not starts:
        raise refuse(PROGRAM, "no line begins with '# Benchmarking'")
    ends = [start.start() for start in starts[1:]] + [len(text)]
    blocks = tuple(_block(start[1], text[start.end() : end]) for start, end in zip(starts, ends, strict=True))
    version = _VERSION.search(text)
    return Output(version[1] if version else "", _ENDED in text, blocks)


def _block(name: str, text: str) -> Block:
    count, head = _PROCESSES.search(text), _HEAD.search(text)
    if not count or not head:
        raise refuse(PROGRAM, f"the block of {name} lacks its columns")
    columns = head[2].split()
    mean = next((columns.index(one) for one in ("t_avg[usec]", "t[usec]") if one in columns), None)
    if mean is None:
        raise refuse(PROGRAM, f"the columns of {name} are {head[2][:80]!r}")
    first = 2 if head[1] else 1
    rows = []
    for line in text[head.end() :].splitlines()[1:]:
        words = line.split()
        if not words or line.startswith("#"):
            break
        if len(words) != first + len(columns):
            raise refuse(PROGRAM, f"{line[:60]!r} has {len(words)} columns, not {first + len(columns)}")
        size = whole(words[0], PROGRAM, "a size") if head[1] else 0
        repetitions = whole(words[first - 1], PROGRAM, "a count of repetitions")
        rows.append(Row(size, repetitions, number(words[first + mean], PROGRAM, "a mean")))
    if not rows:
        raise refuse(PROGRAM, f"the block of {name} is empty")
    return Block(name, OPERATIONS.get(name, ""), processes(count[1], PROGRAM), tuple(rows))
