"""From the files of an outcome to the cells of the store, exactly."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.study.order import Outcome, TrialStatus, WorkloadOrder
from nearmetal.workloads import apps, command, engine, fabric, rounds
from nearmetal.workloads.fabric_file import FabricFile, FabricHeader
from nearmetal.workloads.figures import UNITS, figure_of, of_pairs
from nearmetal.workloads.program_group import LOG
from nearmetal.workloads.sample_file import FLAG_MISSED_WINDOW, SampleCell
from nearmetal.workloads.samples import decode
from nearmetal.workloads.streams import OutputName, read_name
from tests.engine_files import encode_fabric_file, encode_sample_file
from tests.property.test_sample_file import header_of
from tests.unit.test_tool_formats import data


def decoded(files: dict[str, bytes]) -> dict[tuple[str, int], list[list[int]]]:
    return {
        (one.operation, one.message_bytes): one.ns.tolist() for one in decode(Outcome(TrialStatus.VALID, files=files))
    }


def file_of(kind: str, *, missed: bool = False) -> bytes:
    """Return a file of two ranks and two sizes: their clocks begin apart, the first size has a warm-up."""
    begins = ([[1000, 1100, 1300], [70, 170, 370]], [[2000, 2100], [1070, 1170]])
    lengths = ([[10, 20, 30], [11, 19, 31]], [[40, 50], [41, 49]])
    flags = [np.zeros((2, 3), np.uint8), np.zeros((2, 2), np.uint8)]
    flags[1][1, 0] = FLAG_MISSED_WINDOW if missed else 0
    cells = [
        SampleCell(size, warmup, (), np.array(begin), np.array(begin) + np.array(length), flag)
        for size, warmup, begin, length, flag in zip((8, 64), (1, 0), begins, lengths, flags, strict=True)
    ]
    return encode_sample_file(header_of(kind, 2, [8, 64], [1, 0], [2, 2]), cells)


def test_the_engines_file_keeps_every_rank_and_counts_from_its_first_iteration() -> None:
    first, second = decode(Outcome(TrialStatus.VALID, files={engine.SAMPLES: file_of("round_trip", missed=True)}))
    assert (first.operation, first.message_bytes, first.warmup, first.value_ranks) == ("any", 8, 1, (0,))
    assert first.ns.tolist() == [[10, 20, 30], [11, 19, 31]]
    assert first.begin_ns.tolist() == [[0, 100, 300], [0, 100, 300]]
    assert first.flags.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert (second.warmup, second.message_bytes) == (0, 64)
    assert second.begin_ns.tolist() == [[1000, 1100], [1000, 1100]]
    assert second.flags.tolist() == [[FLAG_MISSED_WINDOW, 0], [FLAG_MISSED_WINDOW, 0]], "on every rank"
    (collective, _) = decode(Outcome(TrialStatus.VALID, files={engine.SAMPLES: file_of("collective")}))
    assert collective.value_ranks == (0, 1)


def test_an_application_is_its_iterations_and_all_of_them_as_one() -> None:
    cell = SampleCell(
        *(0, 0, ()),
        np.array([[1000, 1100, 1300], [70, 170, 370]]),
        np.array([[1010, 1120, 1330], [81, 189, 401]]),
        np.zeros((2, 3), np.uint8),
    )
    iterations = encode_sample_file(header_of("collective", 2, [0], [0], [3]), [cell])
    apart = encode_sample_file(
        replace(header_of("collective", 2, [0], [0], [3]), operation="any.communication"), [cell]
    )
    cells = decode(Outcome(TrialStatus.VALID, files={apps.ITERATIONS: iterations, apps.COMMUNICATION: apart}))
    assert [(one.operation, one.ns.tolist(), one.begin_ns[:, 0].tolist(), one.flags.shape) for one in cells] == [
        ("any.total", [[330], [331]], [0, 0], (2, 1)),
        ("any", [[10, 20, 30], [11, 19, 31]], [0, 0], (2, 3)),
        ("any.communication", [[10, 20, 30], [11, 19, 31]], [0, 0], (2, 3)),
    ]


def fabric_of_three(windows: int) -> bytes:
    """Return a file of three pairs: 1 warm-up, then 3 round trips, and as many windows of 4 messages of 1 KiB."""
    plan = rounds.whole(3, bisection=True)
    rows = np.array(sorted((number, a, b) for number, (_, pairs) in enumerate(plan) for a, b in pairs)).T
    phases = [(rounds.ALL, 3), (rounds.CUT, 3), (rounds.ALONE, 1)]
    header = FabricHeader(
        *("nmfabric", 3, tuple(phases), 8, 3, 1, 1024, 4, windows, 1 if windows else 0, "clock", (20,) * 3),
        *("4.0", "MPI", ("a", "b", "c")),
    )
    places = np.arange(rows.shape[1])[:, None]
    latency = 1000 * (places + 1) + np.array([[900, 1, 9, 2]])
    there = (2000 * (places + 1) + np.array([[900, 1, 9, 2]]))[:, : windows + 1 if windows else 0]
    return encode_fabric_file(FabricFile(header, *rows, latency, there, 2 * there))


def test_a_fabric_is_a_median_a_pair_and_the_time_of_1_gib_in_each_direction() -> None:
    """Of all pairs once: those across the cut are no part of it, nor is the warm-up."""
    volumes = 2**30 // (1024 * 4)
    there = [volumes * median for median in (2002, 4002, 6002)]
    assert decoded({fabric.SAMPLES: fabric_of_three(3)}) == {
        ("fabric.latency", 8): [[1002, 2002, 3002]],
        ("fabric.bandwidth", 1024): [[*there, *(2 * one for one in there)]],
    }
    assert list(decoded({fabric.SAMPLES: fabric_of_three(0)})) == [("fabric.latency", 8)]


def test_runs_of_a_client_follow_each_other() -> None:
    """What passed between them is not told; sizes and pairs are cells of their own."""
    log = data("sockperf-3.7-full-log-ul.csv")
    files = {str(OutputName("sockperf", "tcp_round_trip", 64, run, 0)): log for run in (0, 1)}
    (cell,) = decode(Outcome(TrialStatus.VALID, files=files))
    once = [110_753, 68_761, 56_242, 114_268]
    begins = [0, 89_187_384, 195_880_986, 299_874_136]
    end = 299_874_136 + 114_268
    assert cell.ns.tolist() == [once * 2]
    assert cell.begin_ns.tolist() == [[*begins, *(end + one for one in begins)]]
    files = {str(OutputName("sockperf", "tcp_round_trip", size, 0, pair)): log for size in (64, 99) for pair in (3, 7)}
    assert list(decoded(files)) == [(f"tcp_round_trip.pair{number}", size) for size in (64, 99) for number in (1, 2)], (
        "times do not add up"
    )


def test_means_of_a_suite_are_of_the_operation_that_was_asked() -> None:
    barrier = data("written-omb-7.4-barrier.txt")
    assert decoded({str(OutputName("omb", "barrier", 0, 0, 0)): barrier}) == {("barrier", 0): [[3050]]}
    with pytest.raises(ForeignFileError, match="the output of 'bcast' is of 'barrier'"):
        decoded({str(OutputName("omb", "bcast", 0, 0, 0)): barrier})
    # A window of 64 messages, as the engine's own.
    bw = data("written-omb-5.9-bw.txt").replace(b"1                       2.97\n1024                 1850.11\n", b"")
    assert decoded({str(OutputName("omb", "bw", 4194304, 0, 0)): bw}) == {
        ("bw", 4194304): [[round(64 * 4194304 / 11022.80e6 * 1e9)]]
    }


def test_a_command_is_kept_under_the_studys_operation() -> None:
    def asked(**options: object) -> bytes:
        return json.dumps({"operation": "loop", **options}).encode()

    text = b"step 2.5\nstep 0.5\n"
    files = {command.ASKED: asked(figure="regex", pattern=r"^step (\S+)", unit="ms"), command.OUTPUT: text}
    assert decoded(files) == {("loop", 0): [[2_500_000, 500_000]]}
    files[command.ASKED] = asked(figure="json", path="runs.*.rate", unit="MB/s")
    files[command.OUTPUT] = b'{"runs": [{"rate": 100}, {"rate": "200"}]}'
    assert decoded(files) == {("loop", 0): [[round(2**30 / 100e6 * 1e9), round(2**30 / 200e6 * 1e9)]]}
    log = b'[{"stdout": "a", "step": 0, "began_ns": 30, "ended_ns": 100, "exit_status": 0}]'
    assert decoded({command.ASKED: asked(), LOG: log}) == {("loop", 0): [[70]]}
    with pytest.raises(ForeignFileError, match="does not say what was asked"):
        decoded({command.ASKED: b"{}"})


@pytest.mark.parametrize(
    ("pattern", "text", "part"),
    [
        (r"time=(\d+)", "time=1.53 ms", "'1' out of '1.53'"),
        (r"(\d+) ms", "time=1.53 ms", "'53' out of '1.53'"),
        (r"time=([\d.]+)", "time=1.5e-05 s", "'1.5' out of '1.5e-05'"),
        (r"([\d.]+) s", "time=1.5e-05 s", "'05' out of '1.5e-05'"),
        (r"([\d.]+) s", "time=15E3 s", "'3' out of '15E3'"),
    ],
)
def test_a_pattern_that_takes_a_part_of_a_number_is_refused(pattern: str, text: str, part: str) -> None:
    """15 us were 5 s."""
    asked = json.dumps({"operation": "loop", "figure": "regex", "pattern": pattern}).encode()
    with pytest.raises(ForeignFileError, match=re.escape(f"takes {part}")):
        decoded({command.ASKED: asked, command.OUTPUT: f"1. of 2: {text}\n".encode()})


@pytest.mark.parametrize("text", ["v1-time=15.", "0.time=15s", "9,time=15,16", "time=15 e3", "time=15.e"])
def test_a_pattern_may_take_a_number_beside_others(text: str) -> None:
    asked = json.dumps({"operation": "loop", "figure": "regex", "pattern": r"time=(\d+)"}).encode()
    assert decoded({command.ASKED: asked, command.OUTPUT: text.encode()}) == {("loop", 0): [[15_000_000_000]]}


@pytest.mark.parametrize("files", [{}, {"note": b"x"}, {"nuttcp:tcp_stream:0:0": b""}, {"other:w:0:0:0": b"x"}])
def test_an_outcome_without_samples_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(ForeignFileError, match="the trial left no samples"):
        decoded(files)


def test_names_of_outputs_are_read_back() -> None:
    name = OutputName("omb", "bw", 64, 2, 3)
    assert str(name) == "omb:bw:64:2:3"
    assert read_name(str(name)) == name
    assert [read_name(one) for one in ("omb", "omb:bw:64:2", "omb:bw:64:2:3:4", "omb:bw:64:2:x", "omb:bw:64:-2:3")] == [
        None
    ] * 5


PER_S = {
    "B/s": 1,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "KiB/s": 1024,
    "MiB/s": 1024**2,
    "GiB/s": 1024**3,
    "bit/s": 0.125,
    "Mbit/s": 125e3,
    "Gbit/s": 125e6,
}


@pytest.mark.parametrize(
    ("unit", "figure", "ns"),
    [
        *(("ns", 7, 7), ("us", 7, 7000), ("ms", 7, 7_000_000), ("s", 7, 7_000_000_000), ("us", 0, 1)),
        *((unit, 10, round(2**30 / (10 * of) * 1e9)) for unit, of in PER_S.items() if of > 0.125),
        *(("bit/s", 1e6, 2**30 * 8000), ("1/s", 4e6, 250_000 * 1e9), ("1/min", 60, 10**6 * 1e9)),
        *(("Mop/s", 4, 250_000 * 1e9), ("Mflop/s", 4, 250_000 * 1e9), ("Gflop/s", 4, 250 * 1e9)),
        *(("Tflop/s", 4, 250_000_000), ("Gup/s", 4, 250 * 1e9), ("ns/day", 2, 43_200 * 1e9)),
    ],
)
def test_what_is_kept_of_a_figure(unit: str, figure: float, ns: float) -> None:
    assert UNITS[unit].to_ns(figure) == int(ns)
    assert UNITS[unit].rate == ("/" in unit)


def test_which_kinds_run_a_client_and_a_server_a_pair() -> None:
    kinds = ("nuttcp", "iperf3", "sockperf", "netperf", "qperf", "perftest")
    others = ("engine", "application", "fabric", "fake", "omb", "imb", "mpi4py", "command", "imported")
    assert [of_pairs(kind) for kind in (*kinds, *others)] == [True] * len(kinds) + [False] * len(others)


@pytest.mark.parametrize(
    ("kind", "operation", "name", "unit"),
    [
        ("nuttcp", "tcp_stream.pair2", "bandwidth", "MB/s"),
        ("nuttcp", "udp_stream.total", "bandwidth that arrived", "MB/s"),
        ("fabric", "fabric.latency", "latency of pairs (half a round trip)", "us"),
        ("imported", "MPIFFT_Gflops [Gflop/s]", "rate", "Gflop/s"),
        ("imported", "Max_usec [us]", "time", "us"),
        ("command", "loop", "time", "s"),
    ],
)
def test_the_figure_of_an_operation(kind: str, operation: str, name: str, unit: str) -> None:
    figure = figure_of(WorkloadOrder("w", kind, {}, (0, 1)), operation)
    assert figure is not None
    assert (figure.name, figure.unit.name) == (name, unit)


@pytest.mark.parametrize("operation", ["latency", "cg.S", "odd [furlong]"])
def test_no_figure_of_an_operation_of_our_own(operation: str) -> None:
    assert figure_of(WorkloadOrder("w", "engine", {}, (0, 1)), operation) is None
    assert figure_of(WorkloadOrder("w", "engine", {}, (0, 1)), "tcp_stream") is None
