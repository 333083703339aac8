"""What an import of each recorded output holds, exactly: expected durations are computed from the printed figures."""

from itertools import pairwise
from pathlib import Path

import pytest

from nearmetal.workloads.samples import read_foreign

DATA = Path(__file__).parents[1] / "data" / "tools"
Cells = dict[tuple[str, int], float]
"""The ns of one sample by operation and message size."""


def us(figure: float) -> float:
    return 1e3 * figure


def bytes_per_s(rate: float) -> float:
    """Return the time of 1 GiB."""
    return 2**30 / rate * 1e9


def mbit_per_s(rate: float) -> float:
    return bytes_per_s(rate * 1e6 / 8)


def counted_per_s(rate: float) -> float:
    """Return the time of 10^12."""
    return 1e12 / rate * 1e9


def messages(count: float, rate: float) -> float:
    return count / rate * 1e9


IMB: Cells = {
    **{("latency", size): us(2 * half) for size, half in ((0, 9992.40), (1, 5013.20), (2, 16113.62), (4, 7111.32))},
    **{("latency", size): us(2 * half) for size, half in ((8, 0.25), (16, 0.24), (32, 0.23), (64, 0.24))},
    **{("allreduce", size): us(mean) for size, mean in ((0, 0.03), (4, 0.39), (8, 0.38), (16, 0.39), (32, 0.39))},
    ("allreduce", 64): us(0.51),
    ("barrier", 0): us(0.29),
}
_MPI4PY_S = (
    *(2.0037150e-06, 6.0174450e-06, 2.1786475e-05, 2.3207500e-06, 2.2900750e-06, 1.8254350e-06, 4.4196545e-05),
    *(6.3291400e-06, 7.3769100e-06, 3.1547295e-05, 1.9040200e-06, 2.4678450e-06, 2.0299650e-06, 3.0247395e-05),
    *(6.3180420e-05, 2.7461405e-05, 3.6905610e-05),
)
MPI4PY: Cells = {("latency", 1 << power): 2e9 * seconds for power, seconds in enumerate(_MPI4PY_S)}
HPCC: Cells = {
    ("HPL_Tflops [Tflop/s]", 0): counted_per_s(5.46524e-05 * 1e12),
    ("StarDGEMM_Gflops [Gflop/s]", 0): counted_per_s(5.02749e9),
    ("SingleDGEMM_Gflops [Gflop/s]", 0): counted_per_s(0.0722386e9),
    ("PTRANS_GBs [GB/s]", 0): bytes_per_s(5.47929e9),
    ("MPIRandomAccess_LCG_GUPs [Gup/s]", 0): counted_per_s(0.000200918e9),
    ("MPIRandomAccess_GUPs [Gup/s]", 0): counted_per_s(0.0659111e9),
    ("StarRandomAccess_LCG_GUPs [Gup/s]", 0): counted_per_s(0.887526e9),
    ("SingleRandomAccess_LCG_GUPs [Gup/s]", 0): counted_per_s(1.08573e9),
    ("StarRandomAccess_GUPs [Gup/s]", 0): counted_per_s(0.41543e9),
    ("SingleRandomAccess_GUPs [Gup/s]", 0): counted_per_s(0.591389e9),
    ("StarFFT_Gflops [Gflop/s]", 0): counted_per_s(9.93394e9),
    ("SingleFFT_Gflops [Gflop/s]", 0): counted_per_s(8.47048e9),
    ("MPIFFT_Gflops [Gflop/s]", 0): counted_per_s(4.97775e9),
    ("MaxPingPongLatency_usec [us]", 0): us(0.30725),
    ("RandomlyOrderedRingLatency_usec [us]", 0): us(0.227058),
    ("MinPingPongBandwidth_GBytes [GB/s]", 0): bytes_per_s(23.5244e9),
    ("NaturallyOrderedRingBandwidth_GBytes [GB/s]", 0): bytes_per_s(13.081e9),
    ("RandomlyOrderedRingBandwidth_GBytes [GB/s]", 0): bytes_per_s(8.6367e9),
    ("MinPingPongLatency_usec [us]", 0): us(0.302639),
    ("AvgPingPongLatency_usec [us]", 0): us(0.304944),
    ("MaxPingPongBandwidth_GBytes [GB/s]", 0): bytes_per_s(25.7137e9),
    ("AvgPingPongBandwidth_GBytes [GB/s]", 0): bytes_per_s(24.6191e9),
    ("NaturallyOrderedRingLatency_usec [us]", 0): us(0.233523),
}

RECORDED: dict[str, tuple[str, str, str, int, Cells]] = {
    "hpcc-1.5.0-hpl-section.txt": (
        *("HPCC", "", "hpl-300-2", 2),
        {("HPL [Gflop/s]", 0): counted_per_s(5.465e-02 * 1e9)},
    ),
    "imb-2021.11.txt": ("IMB", "2021.11", "imb-2", 2, IMB),
    "iperf2-2.1.8-reverse.txt": ("iperf2", "", "iperf2-reverse", 2, {("tcp_stream", 0): mbit_per_s(11_200)}),
    "iperf2-2.1.8-two-streams-reverse.txt": (
        *("iperf2", "", "iperf2-2-streams-reverse", 2),
        {("tcp_stream", 0): mbit_per_s(5_770)},
    ),
    "iperf2-2.1.8-tcp.txt": ("iperf2", "", "iperf2", 2, {("tcp_stream", 0): mbit_per_s(502)}),
    "iperf2-2.1.8-two-streams.txt": ("iperf2", "", "iperf2-2-streams", 2, {("tcp_stream", 0): mbit_per_s(432)}),
    "iperf2-2.1.8-udp.txt": ("iperf2", "", "iperf2-10.49-mbit", 2, {("udp_stream", 0): mbit_per_s(10.5)}),
    "iperf3-3.12-udp.json": (
        *("iperf3", "iperf 3.12", "iperf3-50-mbit", 2),
        {("udp_stream", 0): mbit_per_s(50.05754024788075)},
    ),
    "mpi4py-4.1.2-pingpong.txt": ("mpi4py", "", "mpi4py-latency", 2, MPI4PY),
    "netperf-2.7.0-tcp_rr.txt": ("netperf", "", "netperf-tcp-round-trip", 2, {("tcp_round_trip", 0): us(14.71)}),
    "netperf-2.7.0-udp_rr.txt": ("netperf", "", "netperf-udp-round-trip", 2, {("udp_round_trip", 0): us(13.19)}),
    "netperf-2.7.0-tcp_stream.txt": (
        *("netperf", "", "netperf-tcp-stream", 2),
        {("tcp_stream", 0): mbit_per_s(16861.33)},
    ),
    "nuttcp-6.1.2-parse.txt": ("nuttcp", "", "nuttcp", 2, {("tcp_stream", 0): mbit_per_s(4915.3286)}),
    "nuttcp-6.1.2-udp-plain.txt": ("nuttcp", "", "nuttcp", 2, {("udp_stream", 0): mbit_per_s(49.8875)}),
    "perftest-4.5-ib_send_bw.txt": (
        *("perftest", "", "ib-send-bw", 2),
        {("ib_send_bw", 16384): bytes_per_s(20.97 * 2**20)},
    ),
    "qperf-0.4.11-tcp_lat.txt": ("qperf", "", "qperf-tcp-lat", 2, {("tcp_one_way", 64): 6354}),
    "sockperf-3.7-pp.txt": ("sockperf", "", "sockperf", 2, {("tcp_round_trip", 0): us(2 * 17.326)}),
    "sockperf-3.7-ul.txt": ("sockperf", "", "sockperf", 2, {("tcp_under_load", 0): us(2 * 43.752)}),
    "written-npb-3.4-cg-S.txt": ("NPB", "3.4.2", "npb-cg-2", 2, {("cg.S [Mop/s]", 0): counted_per_s(4046.24e6)}),
    # A window of 64 messages, as 6,400,000: more digits.
    "written-omb-5.9-bw.txt": (
        *("OMB", "5.9", "omb-bw", 2),
        {
            ("bw", 1): messages(6_400_000 * 1, 2.97e6),
            ("bw", 1024): messages(6_400_000 * 1024, 1850.11e6),
            ("bw", 4194304): messages(6_400_000 * 4194304, 11022.80e6),
        },
    ),
    "written-omb-7.4-allreduce-fz.txt": (
        *("OMB", "7.4", "omb-allreduce", 2),
        {("allreduce", 4): us(2.11), ("allreduce", 8): us(2.12)},
    ),
    "written-omb-7.4-barrier.txt": ("OMB", "7.4", "omb-barrier", 2, {("barrier", 0): us(3.05)}),
    "written-omb-7.4-latency-z.txt": (
        *("OMB", "7.4", "omb-latency", 2),
        {("latency", 1): us(2 * 1.25), ("latency", 2): us(2 * 1.26), ("latency", 65536): us(2 * 12.84)},
    ),
    "written-omb-7.4-mbw_mr.txt": (
        *("OMB", "7.4", "omb-message_rate-2-pairs", 4),
        {
            ("message_rate", 1): messages(2 * 6_400_000, 5850123.37),
            ("message_rate", 8): messages(2 * 6_400_000, 5846250.05),
        },
    ),
    "written-perftest-4.5-write_bw-gbits.json": (
        *("perftest", "", "ib-write-bw", 2),
        {("ib_write_bw", 65536): mbit_per_s(97.84e3)},
    ),
    "written-perftest-6.2-send_lat.json": ("perftest", "", "ib-send-lat", 2, {("ib_send_lat", 8): us(1.06)}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_an_import_holds_exactly_what_was_printed(name: str) -> None:
    program, version, workload, ranks, cells = RECORDED[name]
    (found,) = read_foreign((DATA / name).read_bytes())
    assert (found.program, found.version, found.workload, found.ranks) == (program, version, workload, ranks)
    assert {(one.operation, one.message_bytes): one.ns.tolist() for one in found.cells} == {
        cell: [[pytest.approx(ns, rel=0, abs=max(0.51, 1e-15 * ns))]] for cell, ns in cells.items()
    }
    assert all((one.warmup, one.begin_ns.tolist(), one.value_ranks) == (0, [[0]], (0,)) for one in found.cells)


def test_the_summary_of_hpcc_holds_exactly_what_was_printed() -> None:
    (found,) = read_foreign((DATA / "hpcc-1.5.0-hpccoutf.txt").read_bytes())
    assert (found.program, found.version, found.workload, found.ranks) == ("HPCC", "1.5.0", "hpcc-300-2", 2)
    cells = {(one.operation, one.message_bytes): int(one.ns[0, 0]) for one in found.cells}
    streams = {cell for cell in cells if "STREAM_" in cell[0]}
    assert len(streams) == 8
    assert {cell: ns for cell, ns in cells.items() if cell not in streams} == pytest.approx(HPCC, abs=0.51)
    assert cells["StarSTREAM_Triad [GB/s]", 0] == pytest.approx(bytes_per_s(57.5724e9), abs=0.51)


def test_the_dump_of_perftest_is_every_iteration_in_a_row() -> None:
    (found,) = read_foreign((DATA / "perftest-4.5-ib_atomic_lat.txt").read_bytes())
    (cell,) = found.cells
    assert (found.workload, found.ranks) == ("ib-atomic-lat", 2)
    assert found.lacks == ("measured with an MTU of 1024 B and 128 outstanding reads, chosen or not",)
    assert (cell.operation, cell.message_bytes, cell.ns.shape) == ("ib_atomic_lat", 8, (1, 999))
    assert cell.ns[0, :3].tolist() == [148_334, 46_990, 39_989]
    assert cell.ns[0, -3:].tolist() == [41_023, 39_999, 50_998]
    assert cell.begin_ns[0, :4].tolist() == [0, 148_334, 195_324, 235_313]


def test_several_tests_of_qperf_are_workloads_of_their_own() -> None:
    """Of a stream of datagrams what arrived counts."""
    found = read_foreign((DATA / "qperf-0.4.11-three.txt").read_bytes())
    assert [(one.workload, one.cells[0].operation, one.cells[0].message_bytes) for one in found] == [
        ("qperf-tcp-bw", "tcp_stream", 0),
        ("qperf-udp-bw", "udp_stream", 0),
        ("qperf-udp-lat", "udp_one_way", 0),
    ]
    expected = [bytes_per_s(606404608), bytes_per_s(1454833664), 15157]
    assert [int(one.cells[0].ns[0, 0]) for one in found] == pytest.approx(expected, abs=0.51)


def test_the_packets_of_sockperf_are_whole_round_trips_since_the_first() -> None:
    (found,) = read_foreign((DATA / "sockperf-3.7-full-log-ul.csv").read_bytes())
    (cell,) = found.cells
    assert (found.workload, cell.operation, cell.message_bytes) == ("sockperf-1000-mps", "under_load", 64)
    assert cell.ns.tolist() == [[110_753, 68_761, 56_242, 114_268]]
    assert cell.begin_ns.tolist() == [[0, 89_187_384, 195_880_986, 299_874_136]]


def test_the_parts_of_iperf3_are_of_equal_bytes_at_the_rate_that_arrived() -> None:
    """Of four intervals of a sender: a quarter of all bytes each, scaled to 372,375,552 bytes in 1.00043 s."""
    (found,) = read_foreign((DATA / "iperf3-3.12-tcp.json").read_bytes())
    (cell,) = found.cells
    assert (found.version, found.workload, cell.operation, cell.message_bytes) == (
        *("iperf 3.12", "iperf3", "tcp_stream"),
        0,
    )
    lengths, moved = (0.25678, 0.246872, 0.247757, 0.248687), (83886080, 98304000, 96993280, 99614720)
    quarter = sum(moved) / 4
    first = lengths[0] + lengths[1] * (quarter - moved[0]) / moved[1]
    second = lengths[0] + lengths[1] + lengths[2] * (2 * quarter - moved[0] - moved[1]) / moved[2]
    third = sum(lengths[:3]) + lengths[3] * (3 * quarter - sum(moved[:3])) / moved[3]
    ends = (0.0, first, second, third, sum(lengths))
    assert cell.begin_ns[0].tolist() == pytest.approx([1e9 * one for one in ends[:4]], abs=2000)
    part = 2977723994.6822867 / 8 * ends[4] / 4
    expected = [bytes_per_s(part / (end - begin)) for begin, end in pairwise(ends)]
    assert cell.ns[0].tolist() == pytest.approx(expected, rel=1e-5)
