"""Existing output of other programs as cells: which program wrote it, what is in it, what it cannot support.

A mean becomes one sample of the operation that it is a mean of, so that a file is one launch like any of ours. No
percentile that a program computed itself is adopted: they are of other things than their names say (see each tool).
"""

from __future__ import annotations

import re
from itertools import pairwise

from nearmetal.errors import ForeignFileError
from nearmetal.reading import timed
from nearmetal.store.samples import CellSamples
from nearmetal.workloads.tool_samples import one_cell
from nearmetal.workloads.tools.table import TOOLS
from nearmetal.workloads.tools.tool import FileCell, Foreign, Import


@timed
def read_foreign(data: bytes) -> tuple[Foreign[CellSamples], ...]:
    """Return what a file holds, launch by launch; raise ForeignFileError when no reader knows it or it is damaged."""
    data = _without_rank_numbers(data)
    ends = data[:_LOOK_BYTES] + b"\n" + data[-_LOOK_BYTES:]
    for of in (one for tool in TOOLS for one in tool.imports):
        if any(mark in ends for mark in of.marks):
            return tuple(_with_samples(found) for launch in _launches(of, data) for found in of.read(launch))
    raise ForeignFileError(
        "no reader knows this file",
        hint="known: OMB, IMB, mpi4py.bench, perftest, nuttcp, iperf 2, iperf3 -J, sockperf (--full-log too), "
        "netperf -k, qperf -uu, HPL and HPCC, NPB",
    )


_LOOK_BYTES = 1 << 16
_RANK = re.compile(rb" *\d{1,7}: ?")


def _without_rank_numbers(data: bytes) -> bytes:
    """Return output without what `srun -l` puts before each line, where one rank wrote all of it."""
    lines = data.split(b"\n")
    found = [_RANK.match(line) for line in lines]
    numbers = {match[0].strip() for line, match in zip(lines, found, strict=True) if line and match}
    if len(numbers) != 1 or any(line.strip() and not match for line, match in zip(lines, found, strict=True)):
        return data
    return b"\n".join(line[match.end() :] if match else line for line, match in zip(lines, found, strict=True))


def _with_samples(found: Foreign[FileCell]) -> Foreign[CellSamples]:
    cells = tuple(one_cell(*cell) for cell in found.cells)
    return Foreign(found.program, found.version, found.workload, found.ranks, cells, found.lacks)


def _launches(of: Import, data: bytes) -> list[bytes]:
    """Return the launches that a log holds; what comes before the first and after the last stays with them."""
    found = re.finditer(of.begins or of.ended, data, re.MULTILINE) if of.begins or of.ended else ()
    places = [one.start() for one in found][1:] if of.begins else [one.end() for one in found][:-1]
    return [data[begin:end] for begin, end in pairwise([0, *places, len(data)])]
