"""From what foreign programs leave in an outcome to samples: one decoder a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.errors import ForeignFileError
from nearmetal.reading import parse_json
from nearmetal.store.samples import CellSamples
from nearmetal.workloads.command import ASKED, figures_ns
from nearmetal.workloads.formats import imb, iperf3, mpi4py, netperf, nuttcp, omb, perftest, qperf, sockperf
from nearmetal.workloads.formats.perftest_dump import parse_dump
from nearmetal.workloads.operations import OPERATIONS, Shape
from nearmetal.workloads.rates import UNITS
from nearmetal.workloads.streams import read_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


WINDOW_MESSAGES = 64
"""The window that a bandwidth's duration is stated for: the default of OMB and of nearmetal's engine alike."""


_MOST_SPAN_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Values:
    """What one client left: durations in ns, when each began, and each run as one rate's duration (0 for times)."""

    ns: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    whole_ns: tuple[int, ...] = (0,)


def one_cell(operation: str, message_bytes: int, values: Values) -> CellSamples:
    """Return values as a cell of one rank without warm-up."""
    return CellSamples(
        operation,
        message_bytes,
        0,
        (0,),
        values.begin_ns.reshape(1, -1),
        values.ns.reshape(1, -1),
        np.zeros((1, values.ns.size), np.uint8),
    )


def in_a_row(ns: Sequence[int] | NDArray[np.int64], whole_ns: int = 0) -> Values:
    """Return durations that followed each other, without the times between, which the program does not tell."""
    spans = np.asarray(ns, np.int64)
    if float(spans.sum(dtype=np.float64)) >= _MOST_SPAN_NS:
        raise ForeignFileError("its durations add up to more than any run can last")
    return Values(spans, np.cumsum(spans) - spans, (whole_ns,))


def _one_after_another(runs: Sequence[Values]) -> Values:
    """Return the runs of one client as one; what passed between them is not told."""
    if len(runs) == 1:
        return runs[0]
    spans = [int(one.begin_ns.max()) + int(one.ns.max()) for one in runs]
    if sum(spans) >= _MOST_SPAN_NS:
        raise ForeignFileError("its runs add up to more than any run can last")
    ends = np.cumsum([0, *(int((one.begin_ns + one.ns).max()) for one in runs)])
    return Values(
        np.concatenate([one.ns for one in runs]),
        np.concatenate([one.begin_ns + end for one, end in zip(runs, ends[:-1], strict=True)]),
        tuple(whole for one in runs for whole in one.whole_ns),
    )


def from_nuttcp(data: bytes, operation: str) -> Values:
    """Return the one rate of a transfer."""
    del operation
    ns = UNITS["Mbit/s"].to_ns(nuttcp.parse(data).rate_mbit_s)
    return in_a_row([ns], ns)


def from_iperf3(data: bytes, operation: str) -> Values:
    """Return the rate of every interval; one without a byte is kept as one of one byte, slower than any other."""
    del operation
    report = iperf3.parse(data)
    kept = [one for one in report.intervals if one.seconds > 0]
    if not kept:
        raise ForeignFileError("the report of iperf3 has no interval that took any time")
    ns = [UNITS["B/s"].to_ns(max(1, one.moved_bytes) / one.seconds) for one in kept]
    begin_ns = [UNITS["s"].to_ns(one.start_s) if one.start_s else 0 for one in kept]
    return Values(np.array(ns, np.int64), np.array(begin_ns, np.int64), (UNITS["bit/s"].to_ns(report.received_bit_s),))


def from_sockperf(data: bytes, operation: str) -> Values:
    """Return the whole round trip of every packet."""
    del operation
    packets = sockperf.parse_full_log(data)
    sent = np.array(packets.sent_ns, np.int64)
    return Values(np.array(packets.round_trip_ns, np.int64), sent - sent[0])


def from_netperf(data: bytes, operation: str) -> Values:
    """Return the one rate of a stream, or the mean round trip of a request test."""
    result = netperf.parse(data)
    if operation.endswith("_stream"):
        ns = UNITS[result.unit].to_ns(result.throughput)
        return in_a_row([ns], ns)
    mean_us = result.mean_latency_us or 1e6 / result.throughput
    return in_a_row([UNITS["us"].to_ns(mean_us)])


def from_qperf(data: bytes, operation: str) -> Values:
    """Return the one mean of a test."""
    del operation
    results = qperf.parse(data)
    if len(results) != 1:
        raise ForeignFileError(f"qperf left {len(results)} results where one was asked for")
    if results[0].latency_ns:
        return in_a_row([UNITS["ns"].to_ns(results[0].latency_ns)])
    ns = UNITS["B/s"].to_ns(results[0].rate_bytes_s)
    return in_a_row([ns], ns)


def from_perftest(data: bytes, operation: str) -> Values:
    """Return every iteration of a latency test, or the mean of a bandwidth test."""
    if operation.endswith("_lat"):
        return in_a_row(parse_dump(data))
    result = perftest.parse(data)
    ns = UNITS[result.unit].to_ns(result.rows[0].bandwidth)
    return in_a_row([ns], ns)


def mean_ns(operation: str, figure: float, message_bytes: int, pairs: int = 1) -> int:
    """Return the duration whose shown figure is a suite's mean."""
    return OPERATIONS[operation].duration_ns(figure, Shape(message_bytes, WINDOW_MESSAGES, pairs))


def from_omb(data: bytes, operation: str) -> Values:
    """Return the one mean of a launch of one size."""
    table = omb.parse(data)
    row = table.rows[0]
    if row.mean == 0:
        raise ForeignFileError(f"OMB prints a mean of 0.00 for {operation}: give it more bytes or iterations")
    return in_a_row([mean_ns(operation, row.mean, row.message_bytes, table.pairs)])


def from_imb(data: bytes, operation: str) -> Values:
    """Return the one mean of a launch of one size."""
    row = imb.parse(data).blocks[0].rows[0]
    if row.mean_us == 0:
        raise ForeignFileError(f"IMB prints a mean of 0.00 us for {operation}: give it more bytes or iterations")
    return in_a_row([mean_ns(operation, row.mean_us, row.message_bytes)])


def from_mpi4py(data: bytes, operation: str) -> Values:
    """Return the one mean of a launch of one size."""
    row = mpi4py.parse(data)[0]
    return in_a_row([mean_ns(operation, 1e6 * row.mean_s, row.message_bytes)])


DECODERS: dict[str, Callable[[bytes, str], Values]] = {
    "nuttcp": from_nuttcp,
    "iperf3": from_iperf3,
    "sockperf": from_sockperf,
    "netperf": from_netperf,
    "qperf": from_qperf,
    "perftest": from_perftest,
    "omb": from_omb,
    "imb": from_imb,
    "mpi4py": from_mpi4py,
}


def decode_tools(files: Mapping[str, bytes]) -> list[CellSamples]:
    """Return the cells of all clients: with several pairs a cell a pair, and one of their sum where rates add up."""
    groups: dict[tuple[str, int], dict[int, list[Values]]] = {}
    for named, name in sorted((found, name) for name in files if (found := read_name(name))):
        if decoder := DECODERS.get(named.kind):
            by_pair = groups.setdefault((named.operation, named.size_bytes), {})
            by_pair.setdefault(named.pair, []).append(decoder(files[name], named.operation))
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
    return one_cell(operation, 0, in_a_row(figures_ns(options, files)))


def _of_pairs(operation: str, size: int, values: list[Values]) -> list[CellSamples]:
    if len(values) == 1:
        return [one_cell(operation, size, values[0])]
    cells = [one_cell(f"{operation}.pair{number}", size, one) for number, one in enumerate(values, 1)]
    if all(all(one.whole_ns) for one in values):
        # Rates add, so the durations of the same amount add by their inverses, run by run.
        runs = zip(*(one.whole_ns for one in values), strict=True)
        together = [max(1, round(1.0 / sum(1.0 / whole for whole in run))) for run in runs]
        cells.append(one_cell(f"{operation}.total", size, in_a_row(together)))
    return cells
