"""From what foreign programs leave in an outcome to samples; each tool's own file reads its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import ForeignFileError
from nearmetal.reading import parse_json
from nearmetal.store.samples import CellSamples
from nearmetal.workloads.command import ASKED, figures_ns
from nearmetal.workloads.operations import OPERATIONS, Shape
from nearmetal.workloads.streams import read_name
from nearmetal.workloads.tools.perftest_dump import parse_dump
from nearmetal.workloads.tools.table import TOOLS
from nearmetal.workloads.tools.tool import WINDOW_MESSAGES, Dump, Durations, Mean, Spans

DECODERS: dict[str, Callable[[bytes, str], Durations]] = {tool.kind: tool.samples for tool in TOOLS if tool.samples}
_MOST_SPAN_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class _Values:
    """Durations in ns, when each began, and each run as one rate's duration (0 for times)."""

    ns: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    whole_ns: tuple[int, ...]

    @staticmethod
    def of(held: Durations) -> _Values:
        """Return durations with their begins; the times between are not told by a program that names none."""
        if isinstance(held, Dump):
            return _Values.in_a_row(parse_dump(held.data))
        if isinstance(held, Mean):
            if held.operation not in OPERATIONS:  # the name of an outcome's file, which a far machine gave
                raise ForeignFileError(f"no operation is called {held.operation[:40]!r}")
            shape = Shape(held.message_bytes, WINDOW_MESSAGES, held.pairs)
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
            by_pair.setdefault(named.pair, []).append(_Values.of(decoder(files[name], named.operation)))
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
