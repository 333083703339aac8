"""From what foreign programs leave in an outcome to samples: one decoder a program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearmetal.errors import ForeignFileError
from nearmetal.store.samples import CellSamples
from nearmetal.units import NS_PER_S
from nearmetal.workloads.command import ASKED, figures_ns
from nearmetal.workloads.formats import iperf3, netperf, nuttcp, perftest, qperf, sockperf
from nearmetal.workloads.formats.perftest_dump import parse_dump
from nearmetal.workloads.rates import UNITS, VOLUME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Values:
    """What one client left: durations in ns, when each began, and its whole as a rate's duration (0 for times)."""

    ns: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    whole_ns: int = 0


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
    return Values(spans, np.cumsum(spans) - spans, whole_ns)


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
    ns = [round(one.seconds * NS_PER_S * VOLUME_BYTES / max(1, one.moved_bytes)) for one in kept]
    return Values(
        np.array(ns, np.int64),
        np.array([round(one.start_s * NS_PER_S) for one in kept], np.int64),
        UNITS["bit/s"].to_ns(report.received_bit_s),
    )


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


DECODERS: dict[str, Callable[[bytes, str], Values]] = {
    "nuttcp": from_nuttcp,
    "iperf3": from_iperf3,
    "sockperf": from_sockperf,
    "netperf": from_netperf,
    "qperf": from_qperf,
    "perftest": from_perftest,
}


def decode_tools(files: Mapping[str, bytes]) -> list[CellSamples]:
    """Return the cells of all clients: with several pairs a cell a pair, and one of their sum where rates add up."""
    groups: dict[tuple[str, int], dict[int, Values]] = {}
    for name, data in files.items():
        kind, _, rest = name.partition(":")
        if kind in DECODERS and rest.count(":") == 3:
            operation, size_bytes, pair, _ = rest.split(":")
            groups.setdefault((operation, int(size_bytes)), {})[int(pair)] = DECODERS[kind](data, operation)
    cells: list[CellSamples] = []
    for (operation, size), by_pair in sorted(groups.items()):
        cells += _of_pairs(operation, size, [by_pair[number] for number in sorted(by_pair)])
    if ASKED in files:
        cells.append(_command(files))
    return cells


def _command(files: Mapping[str, bytes]) -> CellSamples:
    """Return a command's figures under the name of the study's operation."""
    try:
        options = json.loads(files[ASKED])
        operation = str(options["operation"])
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignFileError(f"the outcome of a command does not say what was asked: {error!r}") from error
    return one_cell(operation, 0, in_a_row(figures_ns(options, files)))


def _of_pairs(operation: str, size: int, values: list[Values]) -> list[CellSamples]:
    if len(values) == 1:
        return [one_cell(operation, size, values[0])]
    cells = [one_cell(f"{operation}.pair{number}", size, one) for number, one in enumerate(values, 1)]
    if all(one.whole_ns for one in values):
        # Rates add, so the durations of the same amount add by their inverses.
        together = round(1.0 / sum(1.0 / one.whole_ns for one in values))
        cells.append(one_cell(f"{operation}.total", size, in_a_row([max(1, together)])))
    return cells
