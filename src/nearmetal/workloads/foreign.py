"""Existing output of other programs as cells: which program wrote it, what is in it, what it cannot support.

A mean becomes one sample of the operation that it is a mean of, so that a file is one launch like any of ours. No
percentile that a program computed itself is adopted: they are of other things than their names say (see each reader).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from nearmetal.errors import ForeignFileError
from nearmetal.units import format_size
from nearmetal.workloads.formats import hpcc, imb, iperf3, mpi4py, netperf, npb, nuttcp, omb, perftest, qperf, sockperf
from nearmetal.workloads.formats.lines import cut_short
from nearmetal.workloads.rates import UNITS
from nearmetal.workloads.tool_samples import (
    from_iperf3,
    from_netperf,
    from_nuttcp,
    from_perftest,
    from_sockperf,
    in_a_row,
    mean_ns,
    one_cell,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.store.samples import CellSamples

_ONE_MEAN = "one mean over a launch: no percentiles, no spread within it"


@dataclass(frozen=True, slots=True)
class Foreign:
    """What one file holds of one workload: `lacks` says in words what its figures cannot support."""

    program: str
    version: str
    workload: str
    ranks: int
    cells: tuple[CellSamples, ...]
    lacks: tuple[str, ...]


def read_foreign(data: bytes) -> tuple[Foreign, ...]:
    """Return what a file holds, launch by launch; raise ForeignFileError when no reader knows it or it is damaged."""
    data = _without_rank_numbers(data)
    ends = data[:_LOOK_BYTES] + b"\n" + data[-_LOOK_BYTES:]
    for reader in _READERS:
        if any(mark in ends for mark in reader.marks):
            return tuple(found for launch in reader.launches(data) for found in reader.read(launch))
    raise ForeignFileError(
        "no reader knows this file",
        hint="known: OMB, IMB, mpi4py.bench, perftest, nuttcp, iperf3 -J, sockperf (--full-log too), netperf -k, "
        "qperf -uu, HPL and HPCC, NPB",
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


def _omb(data: bytes) -> tuple[Foreign, ...]:
    tables = omb.parse_all(data)
    return tuple(_omb_table(table) for table in tables)


def _omb_table(table: omb.Table) -> Foreign:
    if table.unit == "MB/s" and any(row.message_bytes == 0 for row in table.rows):
        raise ForeignFileError("a bandwidth of messages without bytes is no bandwidth")
    cells = tuple(
        one_cell(
            table.operation,
            row.message_bytes,
            in_a_row([mean_ns(table.operation, row.mean, row.message_bytes, table.pairs)]),
        )
        for row in table.rows
        if row.mean > 0
    )
    if not cells:
        raise ForeignFileError("every mean in it is 0.00")
    aside = f"left aside: {', '.join(table.left_aside)}" if table.left_aside else ""
    zeros = _zeros([row.message_bytes for row in table.rows if row.mean == 0])
    ended = _sizes_end(table.rows[-1].message_bytes, omb.last_size(table))
    name = f"omb-{table.operation}" + (f"-{table.datatype}" if table.datatype else "")
    lacks = tuple(filter(None, (_ONE_MEAN, aside, zeros, ended)))
    return Foreign("OMB", table.version, name, 2 * table.pairs, cells, lacks)


def _zeros(sizes: list[int]) -> str:
    """Return what to say of sizes whose mean rounds to 0.00, nothing when there are none."""
    return f"left aside, because 0.00 was printed: {', '.join(map(format_size, sizes))}" if sizes else ""


def _sizes_end(last: int, usual: int) -> str:
    """Mark a table whose sizes stop before those that the program measures unless it is told otherwise."""
    if last >= usual:
        return ""
    return cut_short(f"its sizes end at {format_size(last)}, not {format_size(usual)}, unless that was asked for")


def _imb(data: bytes) -> tuple[Foreign, ...]:
    output = imb.parse(data)
    known: dict[int, list[CellSamples]] = {}
    for block in (block for block in output.blocks if block.operation):
        cells = known.setdefault(block.processes, [])
        cells += [
            one_cell(
                block.operation,
                row.message_bytes,
                in_a_row([mean_ns(block.operation, row.mean_us, row.message_bytes)]),
            )
            for row in block.rows
            if row.mean_us > 0
        ]
    if not any(known.values()):
        raise ForeignFileError(f"none of its benchmarks is known: {', '.join(b.benchmark for b in output.blocks)}")
    others = sorted({block.benchmark for block in output.blocks if not block.operation})
    ended = "" if output.ended else cut_short("its closing line (# All processes entering MPI_Finalize) is missing")
    zeros = _zeros([row.message_bytes for block in output.blocks for row in block.rows if row.mean_us == 0])
    lacks = tuple(filter(None, (_ONE_MEAN, f"left aside: {', '.join(others)}" if others else "", zeros, ended)))
    return tuple(
        Foreign("IMB", output.version, f"imb-{ranks}", ranks, tuple(cells), lacks) for ranks, cells in known.items()
    )


def _mpi4py(data: bytes) -> tuple[Foreign, ...]:
    cells = tuple(
        one_cell("latency", row.message_bytes, in_a_row([mean_ns("latency", 1e6 * row.mean_s, row.message_bytes)]))
        for row in mpi4py.parse(data)
    )
    deviation = "its standard deviation is not used: the times of a launch depend on each other"
    lacks = tuple(filter(None, (_ONE_MEAN, deviation, _sizes_end(cells[-1].message_bytes, mpi4py.LAST_SIZE))))
    return (Foreign("mpi4py", "", "mpi4py-latency", 2, cells, lacks),)


def _perftest(data: bytes) -> tuple[Foreign, ...]:
    result = perftest.parse(data)
    name = result.operation.replace("_", "-")
    ended = () if result.ended else (cut_short("the line below its rows is missing"),)
    if result.dumped and len(result.rows) == 1:
        cell = one_cell(result.operation, result.rows[0].message_bytes, from_perftest(data, result.operation))
        return (Foreign("perftest", "", name, 2, (cell,), ended),)
    cells = tuple(
        one_cell(
            result.operation,
            row.message_bytes,
            in_a_row([UNITS[result.unit].to_ns(row.bandwidth if result.unit != "us" else row.latency_us)]),
        )
        for row in result.rows
    )
    lacks = (_ONE_MEAN, "its t_stdev and tail columns are not used; run it with -U for every iteration", *ended)
    return (Foreign("perftest", "", name, 2, cells, lacks),)


def _nuttcp(data: bytes) -> tuple[Foreign, ...]:
    operation = "udp_stream" if nuttcp.parse(data).datagrams else "tcp_stream"
    cell = one_cell(operation, 0, from_nuttcp(data, operation))
    return (Foreign("nuttcp", "", "nuttcp", 2, (cell,), ("one rate a run: no percentiles, no spread within it",)),)


def _iperf3(data: bytes) -> tuple[Foreign, ...]:
    report = iperf3.parse(data)
    operation = f"{report.protocol}_stream"
    cell = one_cell(operation, 0, from_iperf3(data, operation))
    lacks = ("its samples are intervals, not messages: percentiles are of interval rates; no latency of requests",)
    return (Foreign("iperf3", report.version, "iperf3", 2, (cell,), lacks),)


def _sockperf_log(data: bytes) -> tuple[Foreign, ...]:
    size = sockperf.parse_full_log(data).message_bytes
    operation, lacks = _round_trip(data)
    return (
        Foreign("sockperf", "", "sockperf", 2, (one_cell(operation, size, from_sockperf(data, operation)),), lacks),
    )


def _round_trip(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the operation of sockperf's output, and what to say where it does not tell TCP from UDP."""
    protocol = sockperf.protocol_of(data)
    if protocol:
        return f"{protocol}_round_trip", ()
    return "round_trip", ("it does not say whether it was TCP or UDP",)


def _sockperf(data: bytes) -> tuple[Foreign, ...]:
    mean_us = sockperf.parse_summary(data).mean_half_round_trip_us
    operation, unsaid = _round_trip(data)
    cell = one_cell(operation, 0, in_a_row([UNITS["us"].to_ns(2 * mean_us)]))
    lacks = (_ONE_MEAN, *unsaid, "its interval is of a mean of dependent packets; give its --full-log instead")
    return (Foreign("sockperf", "", "sockperf", 2, (cell,), lacks),)


def _netperf(data: bytes) -> tuple[Foreign, ...]:
    result = netperf.parse(data)
    protocol = result.protocol.lower()
    if protocol not in ("tcp", "udp"):
        raise ForeignFileError(
            f"netperf's test was over {result.protocol[:40] or 'a protocol that it does not name'!r}"
        )
    operation = f"{protocol}_round_trip" if result.unit == "1/s" else f"{protocol}_stream"
    cell = one_cell(operation, 0, from_netperf(data, operation))
    lacks = ("one figure a run: no percentiles, no spread within it",)
    return (Foreign("netperf", "", f"netperf-{operation.replace('_', '-')}", 2, (cell,), lacks),)


def _qperf(data: bytes) -> tuple[Foreign, ...]:
    return tuple(_qperf_test(one) for one in qperf.parse(data))


def _qperf_test(one: qperf.Result) -> Foreign:
    operation = _QPERF_TESTS.get(one.test)
    if operation is None:
        raise ForeignFileError(f"nearmetal has no operation like qperf's {one.test[:40]!r}")
    ns = UNITS["ns"].to_ns(one.latency_ns) if one.latency_ns else UNITS["B/s"].to_ns(one.rate_bytes_s)
    cell = one_cell(operation, one.message_bytes, in_a_row([ns]))
    return Foreign("qperf", "", f"qperf-{one.test.replace('_', '-')}", 2, (cell,), (_ONE_MEAN,))


_QPERF_TESTS = {"tcp_lat": "tcp_one_way", "udp_lat": "udp_one_way", "tcp_bw": "tcp_stream", "udp_bw": "udp_stream"}


def _hpcc(data: bytes) -> tuple[Foreign, ...]:
    output = hpcc.parse(data)
    cells = tuple(
        one_cell(f"{one.name} [{one.unit}]", 0, in_a_row([UNITS[one.unit].to_ns(one.value)])) for one in output.figures
    )
    return (
        Foreign("HPCC", output.version, "hpcc", max(1, output.processes), cells, ("one figure a run of each kind",)),
    )


def _npb(data: bytes) -> tuple[Foreign, ...]:
    result = npb.parse(data)
    cell = one_cell(f"{result.name}.{result.letter} [Mop/s]", 0, in_a_row([UNITS["Mop/s"].to_ns(result.mops)]))
    lacks = ("one rate a run; its time has two decimals and is not used",)
    return (Foreign("NPB", result.version, f"npb-{result.name}", result.processes, (cell,), lacks),)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A program's output: what tells it from all others, its reader, and where in a log a launch begins or has ended.

    A log of several launches is cut there; without such a place a file holds one launch.
    """

    marks: tuple[bytes, ...]
    read: Callable[[bytes], tuple[Foreign, ...]]
    begins: bytes = b""
    ended: bytes = b""

    def launches(self, data: bytes) -> list[bytes]:
        """Return the launches that a log holds; what comes before the first and after the last stays with them."""
        found = re.finditer(self.begins or self.ended, data, re.MULTILINE) if self.begins or self.ended else ()
        places = [one.start() for one in found][1:] if self.begins else [one.end() for one in found][:-1]
        return [data[begin:end] for begin, end in pairwise([0, *places, len(data)])]


_READERS = (
    _Reader((b"packet, txTime(sec)",), _sockperf_log),
    _Reader((b"sockperf: ",), _sockperf, begins=rb"^sockperf: \S*== version "),
    _Reader((b"# OSU ", b"# OMB-Py "), _omb, begins=rb"^# (?:OSU|OMB-Py) "),
    _Reader((b"# MPI PingPong",), _mpi4py, begins=rb"^# MPI PingPong"),
    _Reader((b"# Benchmarking ",), _imb, begins=rb"^#-+\n#\s+Intel\(R\) MPI Benchmarks"),
    _Reader((b"of Summary section.",), _hpcc, begins=rb"^#+\nThis is the DARPA/DOE HPC Challenge Benchmark"),
    _Reader((b"||Ax-b||",), _hpcc, ended=rb"^End of Tests\.\n=*\n?"),
    _Reader((b" Benchmark Completed",), _npb, begins=rb"^ NAS Parallel Benchmarks "),
    _Reader((b"#, usec", b"#bytes"), _perftest, begins=rb"^-{20,}\n\s+(?:RDMA_|Send |Atomic )[^\n]* Test\s*$"),
    _Reader((b'"intervals"', b'"test_start"', b'"error"'), _iperf3),
    _Reader((b"THROUGHPUT_UNITS=",), _netperf, begins=rb"^MIGRATED |^netperf "),
    _Reader(tuple(f"{test}:".encode() for test in _QPERF_TESTS), _qperf),
    _Reader((b"rate_Mbps=", b" Mbps "), _nuttcp, ended=rb"^(?:(?!tx_cpu=|%TX )[^\n])*+(?:tx_cpu=|%TX )[^\n]*+\n"),
)
"""Every program, the most telling marks first."""
