"""mpi4py's own ping-pong (`python -m mpi4py.bench pingpong`): a row a size. Read with mpi4py 4.0 and 4.1.

The time is half a round trip, as in the tables of OMB: a mean over all samples and their standard deviation, of which
only the mean is adopted (times of a launch are neither independent nor normal). Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearmetal.workloads.formats.lines import number, refuse, to_text, whole

PROGRAM = "mpi4py.bench pingpong"
LAST_SIZE = 1 << 30
"""What it ends with unless `--max-size` asks for another."""

_TITLE = re.compile(r"^# MPI PingPong\b", re.MULTILINE)
_HEAD = re.compile(
    r"^# Size \[B\] +Bandwidth \[MB/s\] \| Time Mean \[s\] \u00b1 StdDev \[s\] +Samples *$", re.MULTILINE
)
_ROW = re.compile(r"(\d+) +[\d.]+ \| (\S+) \u00b1 \S+ +(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One size: the mean half round trip in seconds, and of how many."""

    message_bytes: int
    mean_s: float
    samples: int


def parse(data: bytes) -> tuple[Row, ...]:
    """Read one table; raise ForeignFileError for anything else."""
    text = to_text(data, PROGRAM)
    heads = list(_HEAD.finditer(text))
    if not _TITLE.search(text) or len(heads) != 1:
        raise refuse(PROGRAM, f"it has {len(heads)} lines of its columns, not one below its title")
    rows = tuple(_row(line) for line in text[heads[0].end() :].splitlines() if line.strip())
    if not rows:
        raise refuse(PROGRAM, "there are no rows below its columns")
    return rows


def _row(line: str) -> Row:
    match = _ROW.fullmatch(line.strip())
    if match is None:
        raise refuse(PROGRAM, f"{line[:60]!r} is no row")
    mean_s = number(match[2], PROGRAM, "a mean")
    if mean_s == 0:
        raise refuse(PROGRAM, f"a mean is 0 in {line[:60]!r}")
    return Row(whole(match[1], PROGRAM, "a size"), mean_s, whole(match[3], PROGRAM, "a count of samples"))
