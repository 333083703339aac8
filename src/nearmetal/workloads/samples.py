"""From the raw files of an outcome to samples; needs numpy, so it never runs inside the lab."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import ForeignFileError
from nearmetal.hosts import fake
from nearmetal.reading import parse_json, timed
from nearmetal.store.samples import CellSamples
from nearmetal.study.order import Outcome
from nearmetal.units import format_size
from nearmetal.workloads.apps import COMMUNICATION, ITERATIONS
from nearmetal.workloads.command import ASKED, figures_ns
from nearmetal.workloads.engine import SAMPLES
from nearmetal.workloads.fabric import SAMPLES as FABRIC
from nearmetal.workloads.fabric_file import read_fabric_file
from nearmetal.workloads.figures import IMPORTED_MESSAGES, VOLUME_BYTES
from nearmetal.workloads.operations import OPERATIONS, Shape
from nearmetal.workloads.rounds import ALL
from nearmetal.workloads.sample_file import read_sample_file, to_cell_samples
from nearmetal.workloads.streams import read_name
from nearmetal.workloads.tools.perftest_dump import parse_dump
from nearmetal.workloads.tools.table import TOOLS
from nearmetal.workloads.tools.tool import (
    WINDOW_MESSAGES,
    Dump,
    Durations,
    FileCell,
    Foreign,
    Import,
    Mean,
    Spans,
    Tool,
)

# ---- from what foreign programs leave in an outcome to samples; each tool's own file reads its output


DECODERS: dict[str, Callable[[bytes], Durations]] = {tool.kind: tool.samples for tool in TOOLS if tool.samples}
_MOST_SPAN_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class _Values:
    """Durations in ns, when each began, and each run as one rate's duration (0 for times)."""

    ns: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    whole_ns: tuple[int, ...]

    @staticmethod
    def of(held: Durations, window: int = WINDOW_MESSAGES) -> _Values:
        """Return durations with their begins; the times between are not told by a program that names none.

        The mean of a bandwidth is that of so many messages in a `window`.
        """
        if isinstance(held, Dump):
            return _Values.in_a_row(parse_dump(held.data))
        if isinstance(held, Mean):
            if held.operation not in OPERATIONS:
                raise ForeignFileError(f"no operation is called {held.operation[:40]!r}")
            shape = Shape(held.message_bytes, window, held.pairs)
            return _Values.in_a_row([OPERATIONS[held.operation].duration_ns(held.figure, shape)])
        if held.begin_ns is None:
            return _Values.in_a_row(held.ns, held.whole_ns)
        return _Values(np.asarray(held.ns, np.int64), np.asarray(held.begin_ns, np.int64), (held.whole_ns,))

    @staticmethod
    def in_a_row(spans_ns: Sequence[int] | NDArray[np.int64], whole_ns: int = 0) -> _Values:
        """Return durations that followed each other at once."""
        ns = np.asarray(spans_ns, np.int64)
        if float(ns.sum(dtype=np.float64)) >= _MOST_SPAN_NS:
            raise ForeignFileError("its durations add up to more than any run can last")
        return _Values(ns, np.cumsum(ns) - ns, (whole_ns,))

    def cell(self, operation: str, message_bytes: int) -> CellSamples:
        """Return a cell of one rank without warm-up."""
        flags = np.zeros((1, self.ns.size), np.uint8)
        begin_ns, ns = self.begin_ns.reshape(1, -1), self.ns.reshape(1, -1)
        return CellSamples(operation, message_bytes, 0, (0,), begin_ns, ns, flags)


def one_cell(operation: str, message_bytes: int, held: Durations) -> CellSamples:
    """Return durations as a cell of one rank without warm-up."""
    return _Values.of(held).cell(operation, message_bytes)


def _one_after_another(runs: Sequence[_Values]) -> _Values:
    """Return the runs of one client as one; what passed between them is not told."""
    if len(runs) == 1:
        return runs[0]
    spans = [int(one.begin_ns.max()) + int(one.ns.max()) for one in runs]
    if sum(spans) >= _MOST_SPAN_NS:
        raise ForeignFileError("its runs add up to more than any run can last")
    ends = np.cumsum([0, *(int((one.begin_ns + one.ns).max()) for one in runs)])
    return _Values(
        np.concatenate([one.ns for one in runs]),
        np.concatenate([one.begin_ns + end for one, end in zip(runs, ends[:-1], strict=True)]),
        tuple(whole for one in runs for whole in one.whole_ns),
    )


def decode_tools(files: Mapping[str, bytes]) -> list[CellSamples]:
    """Return the cells of all clients: with several pairs a cell a pair, and one of their sum where rates add up."""
    groups: dict[tuple[str, int], dict[int, list[_Values]]] = {}
    for named, name in sorted((found, name) for name in files if (found := read_name(name))):
        if decoder := DECODERS.get(named.kind):
            by_pair = groups.setdefault((named.operation, named.size_bytes), {})
            held = decoder(files[name])
            if isinstance(held, Mean) and held.operation != named.operation:  # a name that a far machine gave
                raise ForeignFileError(f"the output of {named.operation[:40]!r} is of {held.operation!r}")
            by_pair.setdefault(named.pair, []).append(_Values.of(held))
    cells: list[CellSamples] = []
    for (operation, size), by_pair in groups.items():
        cells += _of_pairs(operation, size, [_one_after_another(by_pair[number]) for number in sorted(by_pair)])
    if ASKED in files:
        cells.append(_command(files))
    return cells


def _command(files: Mapping[str, bytes]) -> CellSamples:
    """Return a command's figures under the name of the study's operation."""
    try:
        options = parse_json(files[ASKED])
        operation = str(options["operation"])
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignFileError(f"the outcome of a command does not say what was asked: {error!r}") from error
    return one_cell(operation, 0, Spans(figures_ns(options, files)))


def _of_pairs(operation: str, size: int, values: list[_Values]) -> list[CellSamples]:
    if len(values) == 1:
        return [values[0].cell(operation, size)]
    cells = [one.cell(f"{operation}.pair{number}", size) for number, one in enumerate(values, 1)]
    if all(all(one.whole_ns) for one in values):
        # Rates add, so the durations of the same amount add by their inverses, run by run.
        runs = zip(*(one.whole_ns for one in values), strict=True)
        together = [max(1, round(1.0 / sum(1.0 / whole for whole in run))) for run in runs]
        cells.append(one_cell(f"{operation}.total", size, Spans(together)))
    return cells


# ---- existing output of other programs as cells
# Which program wrote it, what is in it, what it cannot support.
#
# A mean becomes one sample of the operation that it is a mean of, so that a file is one launch like any of ours. No
# percentile that a program computed itself is adopted: they are of other things than their names say (see each tool).


@timed
def read_foreign(data: bytes) -> tuple[Foreign[CellSamples], ...]:
    """Return what a file holds, launch by launch; raise ForeignFileError when no reader knows it or it is damaged."""
    data = _without_rank_numbers(_as_utf8(data))
    ends = data[:_LOOK_BYTES] + b"\n" + data[-_LOOK_BYTES:]
    for tool, of in ((one, of) for one in TOOLS for of in one.imports):
        if any(map(ends.__contains__, of.marks)):
            _refuse_others(tool, data)
            return tuple(_with_samples(found) for launch in _launches(of, data) for found in of.read(launch))
    raise ForeignFileError(
        "the format of this file is unknown",
        hint="known: OMB, IMB, mpi4py.bench, perftest, nuttcp, iperf 2, iperf3 -J, sockperf (--full-log too), "
        "netperf -k, qperf -uu, HPL and HPCC, NPB",
    )


_LOOK_BYTES = 1 << 16
_RANK = re.compile(rb" *\d{1,7}: ?|\[\d{1,7}\] ?|\[\d{1,9},\d{1,7}\]<stdout>: ?")
"""What `srun -l`, `mpiexec -l` of MPICH and `mpirun --tag-output` of Open MPI put before each line."""


def _as_utf8(data: bytes) -> bytes:
    """Return text without what other systems' editors and shells add to it: a byte order mark, CR before LF."""
    if not data or data.isspace():
        raise ForeignFileError("it is empty")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ForeignFileError("it is UTF-16 text", hint="iconv -f UTF-16 -t UTF-8 FILE > NEW")
    return data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def _refuse_others(tool: Tool, data: bytes) -> None:
    """Raise ForeignFileError for the log of a job that ran other programs, too: their launches would be lost."""
    for other in (one for one in TOOLS if one is not tool):
        for of in other.imports:
            starts = of.begins or of.ended
            if starts and any(map(data.__contains__, of.marks)) and re.search(starts, data, re.MULTILINE):
                raise ForeignFileError(
                    f"it holds output of {tool.kind} and of {other.kind}",
                    hint="give each program's output in a file of its own",
                )


def _without_rank_numbers(data: bytes) -> bytes:
    """Return output without what launchers put before each line, where one rank wrote all of it."""
    lines, numbers = data.split(b"\n"), set[bytes]()
    for number, line in enumerate(lines):
        if match := _RANK.match(line):
            numbers.add(match[0].strip())
            lines[number] = line[match.end() :]
        elif line.strip():
            return data
    return b"\n".join(lines) if len(numbers) == 1 else data


def _with_samples(found: Foreign[FileCell]) -> Foreign[CellSamples]:
    names = Counter(f"{operation} of {format_size(size)}" for operation, size, _ in found.cells)
    if twice := next((name for name, count in names.items() if count > 1), ""):
        raise ForeignFileError(f"{twice} is there twice in one launch", hint="give each launch in a file of its own")
    cells = tuple(_Values.of(held, IMPORTED_MESSAGES).cell(name, size) for name, size, held in found.cells)
    return Foreign(found.program, found.version, found.workload, found.ranks, cells, found.lacks, found.window)


def _launches(of: Import, data: bytes) -> list[bytes]:
    """Return the launches that a log holds; what comes before the first and after the last stays with them."""
    found = re.finditer(of.begins or of.ended, data, re.MULTILINE) if of.begins or of.ended else ()
    places = [one.start() for one in found][1:] if of.begins else [one.end() for one in found][:-1]
    return [data[begin:end] for begin, end in pairwise([0, *places, len(data)])]


# ---- samples


def _engine(data: bytes) -> list[CellSamples]:
    return list(to_cell_samples(read_sample_file(data)))


def _application(data: bytes) -> list[CellSamples]:
    """Return the iterations, and before them all of them as one sample, under the name with `.total`."""
    cells = _engine(data)
    return [_total(cell) for cell in cells] + cells


def _total(cell: CellSamples) -> CellSamples:
    ns = cell.begin_ns[:, -1:] + cell.ns[:, -1:] - cell.begin_ns[:, :1]
    name = f"{cell.operation}.total"
    return replace(cell, operation=name, begin_ns=cell.begin_ns[:, :1], ns=ns, flags=cell.flags[:, :1])


def _fabric(data: bytes) -> list[CellSamples]:
    """Return one figure a pair of a whole fabric: its median round trip, and its two directions' time of 1 GiB."""
    file = read_fabric_file(data)
    header, rows = file.header, file.phase_of_rows() == ALL
    round_trips = np.median(file.latency_ns[rows, header.latency_warmup :], axis=1)
    cells = [one_cell("fabric.latency", header.latency_bytes, Spans(round_trips.astype(np.int64).tolist()))]
    if header.bandwidth_iterations:
        windows = np.concatenate((file.there_ns[rows], file.back_ns[rows]))[:, header.bandwidth_warmup :]
        volumes = VOLUME_BYTES / (header.bandwidth_bytes * header.bandwidth_window)
        spans = np.median(windows, axis=1) * volumes
        cells.append(one_cell("fabric.bandwidth", header.bandwidth_bytes, Spans(spans.astype(np.int64).tolist())))
    return cells


def _fake(data: bytes) -> list[CellSamples]:
    cells = []
    for cell in parse_json(data)["cells"]:
        ns = np.array(cell["ns"], np.int64)
        begin_ns = np.cumsum(ns, axis=1) - ns
        flags = np.zeros(ns.shape, np.uint8)
        cells.append(CellSamples(cell["operation"], cell["message_bytes"], cell["warmup"], (0,), begin_ns, ns, flags))
    return cells


_DECODERS: dict[str, Callable[[bytes], list[CellSamples]]] = {
    SAMPLES: _engine,
    ITERATIONS: _application,
    COMMUNICATION: _engine,
    FABRIC: _fabric,
    fake.FILE: _fake,
}


def decode(outcome: Outcome) -> list[CellSamples]:
    """Return the samples in a valid outcome's files; raise ForeignFileError when there are none to read."""
    cells = [
        cell for name, decoder in _DECODERS.items() if name in outcome.files for cell in decoder(outcome.files[name])
    ]
    cells += decode_tools(outcome.files)
    if not cells:
        raise ForeignFileError(f"the trial left no samples, only {sorted(outcome.files) or 'nothing'}")
    return cells
