"""Parsers of other programs' output, on recorded files; unknown input is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.results.shown import shown_for
from nearmetal.study.order import WorkloadOrder
from nearmetal.workloads.samples import decode_tools, read_foreign
from nearmetal.workloads.tools import (
    hpcc,
    imb,
    iperf2,
    iperf3,
    mpi4py,
    netperf,
    npb,
    nuttcp,
    omb,
    perftest,
    qperf,
    sockperf,
)
from nearmetal.workloads.tools.perftest_dump import parse_dump
from nearmetal.workloads.tools.tool import NO_SIZE, Foreign, Spans, one_figure

DATA = Path(__file__).parents[1] / "data" / "tools"


def data(name: str) -> bytes:
    return (DATA / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("nuttcp-6.1.2-parse.txt", 4915.3286),
        ("nuttcp-6.1.2-parse-intervals.txt", 5126.4591),
        ("nuttcp-6.1.2-plain.txt", 4534.3235),
        ("nuttcp-6.1.2-plain-intervals.txt", 6595.5563),
        ("nuttcp-6.1.2-two-streams.txt", 8870.7535),
    ],
)
def test_nuttcp_tcp(name: str, rate: float) -> None:
    transfer = nuttcp.parse(data(name))
    assert transfer.rate_mbit_s == pytest.approx(rate)
    assert (transfer.operation, transfer.lost) == ("tcp_stream", -1)


def test_imports_of_nuttcp_say_what_its_output_does_not() -> None:
    (found,) = _imported(data("nuttcp-6.1.2-two-streams.txt"))
    unsaid = "neither direction, number of streams, limit of the rate nor window: import outputs of one kind only"
    assert unsaid in found.lacks


@pytest.mark.parametrize(("form", "written"), [("parse", b"drop=0"), ("plain", b" 0 / ")])
def test_nuttcp_udp_counts_datagrams_in_both_forms(form: str, written: bytes) -> None:
    text = data(f"nuttcp-6.1.2-udp-{form}.txt")
    assert text.count(written) == 1
    for lost in (0, 7):
        found = nuttcp.parse(text.replace(written, written.replace(b"0", b"%d" % lost)))
        assert (found.operation, found.lost) == ("udp_stream", lost)


def test_iperf3_intervals_and_sum() -> None:
    report = iperf3.parse(data("iperf3-3.12-tcp.json"))
    assert report.version == "iperf 3.12"
    assert (report.protocol, report.block_bytes) == ("tcp", 131072)
    assert len(report.intervals) == 4
    moved = sum(one.moved_bytes for one in report.intervals)
    seconds = sum(one.seconds for one in report.intervals)
    assert report.received_bit_s == pytest.approx(8 * moved / seconds, rel=0.05)


def test_iperf3_leaves_omitted_intervals_out() -> None:
    report = iperf3.parse(data("iperf3-3.12-two-streams-omit.json"))
    assert len(report.intervals) == 2
    assert report.retransmits >= 0


def test_the_first_interval_of_iperf3_after_omitted_ones_has_its_own_time() -> None:
    """Iperf 3.12 says 1.03 s of one that ends 0.53 s after the omitted one: 404,619,264 bytes came in 1.013594 s."""
    (found,) = _imported(data("iperf3-3.12-two-streams-omit.json").decode())
    cell = found.cells[0]
    assert cell.ns.shape == (1, 2)
    assert 2**30 / cell.ns.mean() == pytest.approx(404_619_264 / 1.013594e9, rel=1e-5)
    assert cell.begin_ns.tolist()[0] == [0, pytest.approx(0.498e9, rel=0.01)]


def test_iperf3_udp_has_no_retransmits() -> None:
    report = iperf3.parse(data("iperf3-3.12-udp.json"))
    assert (report.protocol, report.retransmits) == ("udp", -1)


def test_iperf3_udp_counts_what_arrived_not_what_was_sent() -> None:
    """A sender's intervals include lost datagrams: with half of them lost they give twice the rate."""
    report = json.loads(data("iperf3-3.12-udp.json"))
    report["end"]["sum_received"]["bits_per_second"] = 25e6
    old = json.loads(data("iperf3-3.12-udp.json"))  # 3.1 has a single sum, of what was sent
    old["end"] = {"sum": old["end"]["sum"] | {"lost_packets": 100, "packets": 200, "bits_per_second": 50e6}}
    for one in (report, old):
        (found,) = _imported(json.dumps(one) + "\n")
        assert found.cells[0].operation == "udp_stream"
        assert found.cells[0].ns.tolist() == [[round(8 * 2**30 / 25e6 * 1e9)]]
    report["start"]["test_start"]["reverse"] = 1  # the client receives
    assert _imported(json.dumps(report) + "\n")[0].cells[0].ns.shape == (1, 2)


def _iperf3_intervals(moved: list[int], seconds: float = 0.1) -> list[dict[str, object]]:
    return [
        {"sum": {"start": number * 0.1, "seconds": seconds, "bytes": count, "sender": False}}
        for number, count in enumerate(moved)
    ]


def _sent(moved: list[int], seconds: float = 0.1) -> dict[str, Any]:
    """Return the report of a client over TCP of which all arrived that its intervals sent."""
    report: dict[str, Any] = json.loads(data("iperf3-3.12-tcp.json"))
    report["intervals"] = _iperf3_intervals(moved, seconds)
    report["end"]["sum_received"]["bits_per_second"] = 8 * sum(moved) / (len(moved) * seconds)
    return report


def test_a_client_of_iperf3_without_its_servers_intervals_has_the_rate_that_arrived() -> None:
    """On a link of 50 Mbit/s a sender's buffers made it 112; the file says what the server received."""
    report = _sent([5_000_000, 900_000, 600_000, 500_000])
    report["end"]["sum_received"]["bits_per_second"] = 50e6
    (found,) = _imported(json.dumps(report) + "\n")
    assert 2**30 / found.cells[0].ns.mean() == pytest.approx(50e6 / 8 / 1e9)
    assert "count what was sent, scaled to the rate that arrived" in found.lacks[0]
    report["start"]["test_start"]["reverse"] = 1  # the client receives
    (found,) = _imported(json.dumps(report) + "\n")
    assert 2**30 / found.cells[0].ns.mean() == pytest.approx(7_000_000 / 0.4e9)
    assert "scaled" not in found.lacks[0]


@pytest.mark.parametrize("name", ["iperf3-3.12-tcp.json", "iperf3-3.12-udp.json"])
def test_iperf3_counts_what_the_server_received(name: str) -> None:
    """A sender fills buffers: on a link of 50 Mbit/s its intervals give 31 to 112, the server's 46 to 50."""
    report = json.loads(data(name))
    report["server_output_json"] = {"intervals": _iperf3_intervals([625_000, 600_000])}
    report["server_output_json"]["intervals"] += _iperf3_intervals([23_168], 0.0075)  # after the client's
    (found,) = _imported(json.dumps(report) + "\n")
    # Half of the 1,225,000 bytes arrive within 98 ms, the other half within 102 ms.
    assert found.cells[0].ns.tolist() == [[round(2**30 * ms * 1e6 / 612_500) for ms in (98, 102)]]
    report["start"]["test_start"]["reverse"] = 1  # the client receives
    assert _imported(json.dumps(report) + "\n")[0].cells[0].ns.shape == (1, len(report["intervals"]))


def test_the_mean_of_iperf3_is_the_overall_rate() -> None:
    """The mean time of intervals' rates is that of their harmonic mean: 15 MB/s instead of 20."""
    ns = _imported(json.dumps(_sent([1_000_000, 3_000_000])) + "\n")[0].cells[0].ns
    assert ns.size == 2
    assert 2**30 / ns.mean() == pytest.approx(20e6 / 1e9)
    drawn = np.random.default_rng(3).gamma(4.0, 1e6, 100).astype(int)
    ns = _imported(json.dumps(_sent(drawn.tolist())) + "\n")[0].cells[0].ns
    assert ns.size == 100
    assert 2**30 / ns.mean() == pytest.approx(drawn.mean() / 0.1 / 1e9)


def test_iperf3_time_without_data_counts_for_the_delayed_part() -> None:
    report = _sent([0, 600_000, 0, 0, 900_000, 0])
    cell = _imported(json.dumps(report) + "\n")[0].cells[0]
    half_s = 0.4 + 0.1 * 150 / 900  # when 750,000 bytes had arrived
    gib_ns = 2**30 * 1e9
    assert cell.ns.tolist() == [pytest.approx([gib_ns * one / 750_000 for one in (half_s, 0.6 - half_s)], abs=1)]
    assert cell.begin_ns.tolist() == [[0, round(half_s * 1e9)]]
    report["intervals"] += _iperf3_intervals([5_000_000, 5_000_000], 1e-30)
    with pytest.raises(ForeignFileError, match="took no time"):
        _imported(json.dumps(report) + "\n")


@pytest.mark.parametrize(
    ("place", "field"), [(b'"reverse":', b'"bidir": 1, '), (b'"sum_sent":', b'"sum_sent_bidir_reverse": {}, ')]
)
def test_iperf3_bidirectional_output_is_refused(place: bytes, field: bytes) -> None:
    """3.12 says it beside the sums alone, and passed for one direction, which has the link to itself."""
    report = data("iperf3-3.12-tcp.json")
    assert report.count(place) == 1
    report = report.replace(place, field + place)
    with pytest.raises(ForeignFileError, match="both directions at once"):
        iperf3.parse(report)


def test_an_iperf3_error_is_reported_verbatim() -> None:
    with pytest.raises(ForeignFileError, match=r"iperf3 says: .*unable to connect"):
        iperf3.parse(data("iperf3-3.12-error.json"))


def test_a_sockperf_log_has_complete_round_trips() -> None:
    message_bytes, packets = sockperf.parse_full_log(data("sockperf-3.7-full-log-first-200.csv"))
    summary = sockperf.parse_summary(data("sockperf-3.7-pp.txt"))
    assert message_bytes == 64
    assert len(packets.ns) > 150
    first = data("sockperf-3.7-full-log-first-200.csv").decode().split("latency(usec)\n")[1].splitlines()[0].split(", ")
    assert packets.ns[0] == pytest.approx(2000 * float(first[3]), abs=2)
    assert summary.dropped == summary.duplicated == summary.out_of_order == 0
    assert summary.sent > len(packets.ns)


def test_a_sockperf_log_without_its_size_says_so() -> None:
    """Logs of several sizes whose heads were cut off were blocks of one size, without a word."""
    whole = data("sockperf-3.7-full-log-first-200.csv")
    for text, told in ((whole, False), (whole[whole.index(b"packet, txTime") :], True)):
        assert any("no message size" in lack for lack in _imported(text)[0].lacks) is told


def test_a_truncated_sockperf_log_is_refused() -> None:
    whole = data("sockperf-3.7-full-log-first-200.csv")
    with pytest.raises(ForeignFileError, match="cut"):
        sockperf.parse_full_log(whole[: len(whole) // 2])


def test_qperf_reads_ns_and_bytes_only() -> None:
    (latency,) = qperf.parse(data("qperf-0.4.11-tcp_lat.txt"))
    assert (latency.test, latency.message_bytes) == ("tcp_lat", 64)
    assert latency.mean.ns[0] > 1000
    assert latency.mean.whole_ns == 0
    three = qperf.parse(data("qperf-0.4.11-three.txt"))
    assert [one.test for one in three] == ["tcp_bw", "udp_bw", "udp_lat"]
    assert 0 < three[1].mean.whole_ns < 1e6 * 1e9, "more than 1 MiB/s"
    with pytest.raises(ForeignFileError, match="not in 'bytes/sec'"):
        qperf.parse(data("qperf-0.4.11-other-units.txt"))


@pytest.mark.parametrize(
    ("test", "operation", "figure", "unit", "retransmits"),
    [
        ("tcp_stream", "tcp_stream", 16_861.33, "Mbit/s", 14),
        ("tcp_rr", "tcp_round_trip", 14.71, "us", 0),
        ("udp_rr", "udp_round_trip", 13.19, "us", -1),
    ],
)
def test_netperf_keys(test: str, operation: str, figure: float, unit: str, retransmits: int) -> None:
    result = netperf.parse(data(f"netperf-2.7.0-{test}.txt"))
    assert (result.operation, result.spans, result.retransmits) == (operation, one_figure(unit, figure), retransmits)


def test_perftest_rows_are_means_and_the_dump_is_exact() -> None:
    text = data("perftest-4.5-ib_atomic_lat.txt")
    result = perftest.parse(text)
    assert (result.operation, result.dumped) == ("ib_atomic_lat", True)
    assert result.rows == ((8, 49.36),)
    values = parse_dump(text)
    assert values.size == 999, "n iterations have n - 1 differences"
    assert values[:4].tolist() == [148_334, 46_990, 39_989, 40_009]
    # Its own mean leaves the two slowest out.
    assert values.mean() / 1e3 == pytest.approx(49.36, abs=0.3)


def test_perftest_bandwidth_label_mb_means_mib() -> None:
    text = data("perftest-4.5-ib_send_bw.txt")
    result = perftest.parse(text)
    assert (result.operation, result.unit, result.rows) == ("ib_send_bw", "MiB/s", ((16384, 20.97),))
    # The message rate in the same row, in 10^6 per second, gives the same bandwidth.
    rate_mpps = float(text.decode().splitlines()[-2].split()[-1])
    assert rate_mpps * 1e6 * 16384 / (1 << 20) == pytest.approx(20.97, rel=1e-3)


def test_the_unit_of_perftest_json_follows_from_its_message_rate_in_both_versions() -> None:
    latency = perftest.parse_json_report(data("written-perftest-6.2-send_lat.json"))
    assert (latency.operation, latency.unit, latency.rows[0][1]) == ("ib_send_lat", "us", 1.06)
    text = data("written-perftest-4.5-write_bw-gbits.json")
    gigabits = perftest.parse_json_report(text)
    assert (gigabits.operation, gigabits.unit, gigabits.rows[0][1]) == ("ib_write_bw", "Gbit/s", 97.84)
    mebibytes = text.replace(b"97.84", b"11663.4")
    assert perftest.parse_json_report(mebibytes).unit == "MiB/s"
    with pytest.raises(ForeignFileError, match="in MiB/s or Gbit/s"):
        perftest.parse_json_report(text.replace(b"97.84", b"500.0"))


def test_iperf2_takes_the_sum_of_streams_and_what_arrived() -> None:
    plain = data("iperf2-2.1.8-tcp.txt")
    assert iperf2.parse(plain) == ("tcp", 502.0, True, 1)
    interval = b"[  1] 0.0000-0.5000 sec  18.6 MBytes   312 Mbits/sec\n"
    assert iperf2.parse(plain.replace(b"[  1] 0.0000-", interval + b"[  1] 0.0000-")) == ("tcp", 502.0, False, 1)
    assert iperf2.parse(data("iperf2-2.1.8-two-streams.txt")) == ("tcp", 432.0, False, 2)
    udp = data("iperf2-2.1.8-udp.txt")
    assert iperf2.parse(udp) == ("udp", 10.5, False, 1)
    with pytest.raises(ForeignFileError, match="nothing says what arrived"):
        iperf2.parse(udp.partition(b"[  1] Server Report")[0])
    with pytest.raises(ForeignFileError, match="no sum"):
        iperf2.parse(data("iperf2-2.1.8-two-streams.txt").replace(b"[SUM]", b"[  3]"))
    megabytes = plain.replace(b"502 Mbits/sec", b"22.8 MBytes/sec")
    assert iperf2.parse(megabytes)[1] == pytest.approx(191.3, abs=0.1)


def test_iperf2_in_both_directions_or_with_answers_is_no_stream() -> None:
    """The sum of a stream in both directions was one of two streams, and the payload of few answers a slow stream."""
    for name, what in (("full-duplex", "both directions"), ("bounceback", "bounce back")):
        with pytest.raises(ForeignFileError, match=what):
            iperf2.parse(data(f"../refused/iperf2-2.1.8-{name}.txt"))


def test_the_sum_of_what_iperf2_sent_is_not_what_arrived() -> None:
    """Releases print the sum of the sender, 3.58 Gbit/s, before or behind the reports of the server, 1.79 together."""
    whole = data("../refused/iperf2-2.1.8-two-udp-streams.txt")
    sent = next(line for line in whole.splitlines(keepends=True) if line.startswith(b"[SUM]"))
    for text in (whole, whole.replace(sent, b"") + sent):
        with pytest.raises(ForeignFileError, match="no sum"):
            iperf2.parse(text)


def test_iperf2_intervals_without_their_total_are_refused() -> None:
    """In a file truncated in its third interval, only the first begins at 0."""
    whole = data("iperf2-2.1.8-tcp.txt").decode()
    *head, total = whole.rstrip().splitlines()
    intervals = [total.replace("0.0000-1.0857", f"{k}.0000-{k + 1}.0000") for k in range(3)]
    assert len(intervals) == len(set(intervals))
    with pytest.raises(ForeignFileError, match="its intervals go on"):
        iperf2.parse("\n".join([*head, *intervals, ""]).encode())
    ended = [*head, *intervals, total.replace("1.0857", "3.0021"), ""]
    assert iperf2.parse("\n".join(ended).encode()) == ("tcp", 502.0, False, 1)


def test_perftest_sorted_dump_is_refused() -> None:
    values = np.arange(1, 50)
    text = b"\n#, usec\n" + b"".join(b"%d, %d.50\n" % (i, i) for i in values)
    with pytest.raises(ForeignFileError, match="sorted"):
        parse_dump(text)


def test_perftest_dump_with_a_missing_line_is_refused() -> None:
    text = data("perftest-4.5-ib_atomic_lat.txt").replace(b"\n3, 39.9893\n", b"\n")
    with pytest.raises(ForeignFileError, match="numbered"):
        parse_dump(text)


@pytest.mark.parametrize(
    ("name", "operation", "unit", "rows", "aside"),
    [
        ("written-omb-7.4-latency-z.txt", "latency", "us", [(1, 1.25), (2, 1.26), (65536, 12.84)], 3),
        ("written-omb-5.9-bw.txt", "bw", "MB/s", [(1, 2.97), (1024, 1850.11), (4194304, 11022.80)], 0),
        ("written-omb-7.4-allreduce-fz.txt", "allreduce", "us", [(4, 2.11), (8, 2.12)], 6),
        ("written-omb-7.4-barrier.txt", "barrier", "us", [(0, 3.05)], 0),
        ("written-omb-7.4-mbw_mr.txt", "message_rate", "1/s", [(1, 5850123.37), (8, 5846250.05)], 0),
    ],
)
def test_omb_tables(name: str, operation: str, unit: str, rows: list[tuple[int, float]], aside: int) -> None:
    table = omb.parse(data(name))
    assert (table.operation, table.unit) == (operation, unit)
    assert [(row.message_bytes, row.figure) for row in table.rows] == rows
    assert len(table.left_aside) == aside


@pytest.mark.parametrize(
    ("text", "operation", "mean"),
    [
        ("# OSU MPI Latency Test v5.6.3\n# Size          Latency (us)\n0   1.50\n", "latency", 1.5),
        ("# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n             8.50\n", "barrier", 8.5),
        ("\n# OSU MPI Bi-Directional Bandwidth Test v5.6.2\n# Size      Bandwidth (MB/s)\n1   2.50\n", "bibw", 2.5),
        (
            "# OSU MPI Allreduce Latency Test v6.2\n"
            "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
            "4   9.50   1.00   12.00   100\n",
            "allreduce",
            9.5,
        ),
        (
            "# OSU MPI Multiple Bandwidth / Message Rate Test v7.1\n# [ pairs: 8 ] [ window size: 64 ]\n"
            "# Size                  MB/s        Messages/s\n# Datatype: MPI_CHAR.\n1   2.00   2000000.50\n",
            "message_rate",
            2000000.5,
        ),
        (
            "# OSU MPI All-to-All Personalized Exchange Latency Test v7.5\n# Datatype: MPI_CHAR.\n"
            "# Size       Avg Latency(us)\n1   32.50\n",
            "alltoall",
            32.5,
        ),
    ],
)
def test_omb_forms_of_5_6_and_7(text: str, operation: str, mean: float) -> None:
    """The headers that these versions print, as in published outputs."""
    table = omb.parse(text.encode())
    assert (table.operation, table.rows[0].figure) == (operation, mean)


LOG = (
    b"Loading openmpi/5.0\n\n# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n8   2.50\n16   5.00\n"
    b"[n1:77] 1 more process has sent help message help-mpi-btl.txt\n\nosu_barrier, second launch:\n"
    b"# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n             8.50\n"
)


def test_an_omb_table_ends_at_output_of_the_launcher() -> None:
    bw, barrier = (found.cells for found in read_foreign(LOG))
    assert [(cell.operation, cell.message_bytes) for cell in (*bw, *barrier)] == [("bw", 8), ("bw", 16), ("barrier", 0)]
    with pytest.raises(ForeignFileError, match="2 lines that name a benchmark"):
        omb.parse(LOG)


def test_an_omb_table_with_a_missing_row_is_refused() -> None:
    with pytest.raises(ForeignFileError, match="a row after other text"):
        read_foreign(LOG.replace(b"16   5.00\n", b"?\n16   5.00\n"))


ONE_LAUNCH = sorted(
    path.name
    for path in DATA.iterdir()
    if path.suffix not in {".md", ".json", ".csv"} and not path.name.startswith(("qperf", "netperf"))
)


@pytest.mark.parametrize("name", ONE_LAUNCH)
def test_a_log_of_three_launches_is_read_as_three(name: str) -> None:
    once = read_foreign(data(name))
    thrice = read_foreign(data(name) * 3)
    assert [found.workload for found in thrice] == [found.workload for found in once] * 3
    for one, again in zip(once * 3, thrice, strict=True):
        assert (one.version, one.ranks, one.lacks) == (again.version, again.ranks, again.lacks)
        assert [cell.ns.tolist() for cell in one.cells] == [cell.ns.tolist() for cell in again.cells]


JSON_LAUNCHES = [
    "iperf3-3.12-tcp.json",
    "written-perftest-6.2-send_lat.json",
    "written-perftest-4.5-write_bw-gbits.json",
]


@pytest.mark.parametrize("name", ["imb-2021.11.txt", "perftest-4.5-ib_send_bw.txt", *JSON_LAUNCHES])
def test_a_log_of_two_launches_is_read_with_either_kind_of_line_ending(name: str) -> None:
    """A second launch that goes unnoticed is lost, or its figures count for the first."""
    once = read_foreign(data(name))
    for log in (data(name) * 2, (data(name) * 2).replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + data(name) * 2):
        twice = read_foreign(log)
        assert [[cell.ns.tolist() for cell in one.cells] for one in twice] == [
            [cell.ns.tolist() for cell in one.cells] for one in once * 2
        ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("written-omb-5.9-bw.txt", "imb-2021.11.txt"),
        ("sockperf-3.7-pp.txt", "netperf-2.7.0-tcp_rr.txt"),
        ("qperf-0.4.11-tcp_lat.txt", "netperf-2.7.0-tcp_rr.txt"),
        ("nuttcp-6.1.2-plain.txt", "written-npb-3.4-cg-S.txt"),
    ],
)
def test_a_log_of_several_programs_is_refused(one: str, other: str) -> None:
    for log in (data(one) + data(other), data(other) + b"\n" * 200_000 + data(one)):
        with pytest.raises(ForeignFileError, match=r"it holds output of \w+ and of \w+"):
            read_foreign(log)


def test_a_size_twice_in_one_launch_is_refused() -> None:
    block = "# Benchmarking PingPong\n# #processes = 2\n#bytes #repetitions t[usec] Mbytes/sec\n8 100 0.25 32.6\n\n"
    with pytest.raises(ForeignFileError, match="latency of 8 B is there twice in one launch"):
        read_foreign((block * 2).encode())


@pytest.mark.parametrize(
    ("junk", "message"), [(b"", "empty"), (b" \n", "empty"), ("# OSU\n".encode("utf-16"), "UTF-16")]
)
def test_an_empty_file_or_another_encoding_is_reported(junk: bytes, message: str) -> None:
    with pytest.raises(ForeignFileError, match=message):
        read_foreign(junk)


@pytest.mark.parametrize("rows", ["8 1.00\n8 1.00\n", "".join(f"{size} 1.00\n" for size in range(1025))])
def test_an_omb_table_of_more_rows_than_sizes_is_refused(rows: str) -> None:
    with pytest.raises(ForeignFileError, match=r"rows, or a size twice"):
        omb.parse(f"# OSU MPI Latency Test v5.9\n# Size  Latency (us)\n{rows}".encode())


@pytest.mark.parametrize("kind", ["omb", "imb", "mpi4py"])
def test_output_of_an_unknown_operation_is_refused(kind: str) -> None:
    output = {"omb": "written-omb-7.4-latency-z.txt", "imb": "imb-2021.11.txt", "mpi4py": "mpi4py-4.1.2-pingpong.txt"}[
        kind
    ]
    with pytest.raises(ForeignFileError):
        decode_tools({f"{kind}:bogus:8:0:0": data(output)})


def test_a_failed_omb_validation_is_refused() -> None:
    text = b"# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)  Validation\n8    1.00    Fail\n"
    with pytest.raises(ForeignFileError, match="validation failed"):
        omb.parse(text)


def test_imb_blocks_with_and_without_an_operation() -> None:
    output = imb.parse(data("imb-2021.11.txt"))
    assert output.version.startswith("2021.11")
    older = data("imb-2021.11.txt").replace(b"Intel(R) MPI Benchmarks 2021.11", b"Intel (R) MPI Benchmarks 2018")
    assert [found.version for found in read_foreign(older * 2)] == ["2018", "2018"]
    assert [(block.benchmark, imb.OPERATIONS.get(block.benchmark, "")) for block in output.blocks] == [
        ("PingPong", "latency"),
        ("Allreduce", "allreduce"),
        ("Barrier", "barrier"),
        ("Exchange", ""),
    ]
    assert [row.message_bytes for row in output.blocks[0].rows] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert (output.blocks[0].rows[4].figure, output.blocks[1].rows[1].figure) == (0.25, 0.39)
    assert output.blocks[2].rows[0].message_bytes == 0


def test_mpi4py_rows_are_half_round_trips() -> None:
    rows = mpi4py.parse(data("mpi4py-4.1.2-pingpong.txt"))
    assert [row.message_bytes for row in rows] == [1 << power for power in range(17)]
    # The bandwidth beside it is the number of bytes divided by this time.
    line = data("mpi4py-4.1.2-pingpong.txt").decode().splitlines()[-1]
    assert rows[-1].message_bytes / rows[-1].figure == pytest.approx(float(line.split()[1]), abs=0.01)


def test_hpcc_summary_in_its_units() -> None:
    output = hpcc.parse(data("hpcc-1.5.0-hpccoutf.txt"))
    assert (output.version, output.ranks) == ("1.5.0", 2)
    figures = {name: spans for name, _, spans in output.cells}
    assert {"HPL_Tflops [Tflop/s]", "StarSTREAM_Triad [GB/s]"} < figures.keys()
    assert not any(name.startswith("HPL_N") for name in figures)
    latency = figures["AvgPingPongLatency_usec [us]"]
    assert isinstance(latency, Spans)
    assert 10 < latency.ns[0] < 100_000_000


def test_hpl_row_needs_its_residual_check() -> None:
    text = data("hpcc-1.5.0-hpl-section.txt")
    output = hpcc.parse(text)
    assert output.ranks == 2
    assert output.cells == (("HPL [Gflop/s]", 0, one_figure("Gflop/s", 0.05465)),)
    with pytest.raises(ForeignFileError, match="residual"):
        hpcc.parse(text.replace(b"PASSED", b"FAILED"))


def test_npb_end_block_and_failed_verification() -> None:
    text = data("written-npb-3.4-cg-S.txt")
    result = npb.parse(text)
    assert (result.workload, result.ranks) == ("npb-cg-2", 2)
    assert result.cells == (("cg.S [Mop/s]", 0, one_figure("Mop/s", 4046.24)),)
    with pytest.raises(ForeignFileError, match="UNSUCCESSFUL"):
        npb.parse(text.replace(b"    SUCCESSFUL\n Version", b"  UNSUCCESSFUL\n Version"))


READERS: list[Callable[[bytes], object]] = [
    nuttcp.parse,
    iperf2.parse,
    iperf3.parse,
    sockperf.parse_summary,
    sockperf.parse_full_log,
    netperf.parse,
    qperf.parse,
    perftest.parse,
    perftest.parse_json_report,
    parse_dump,
    omb.parse,
    imb.parse,
    mpi4py.parse,
    hpcc.parse,
    npb.parse,
]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("junk", [b"", b"\xff\xfe", b"hello\n", b"{}", b"[1]", b"\0" * 64])
def test_every_reader_refuses_output_of_other_programs(reader: Callable[[bytes], object], junk: bytes) -> None:
    with pytest.raises(ForeignFileError):
        reader(junk)


# ---------------------------------------------------------------- the labels of imports


RATE = "Multiple Bandwidth / Message Rate"


def _imported(text: str | bytes) -> tuple[Foreign, ...]:
    return read_foreign(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("title", "head", "row", "operation"),
    [
        ("Bandwidth", "Size Bandwidth (MB/s) P50 Tail BW(MB/s) P90 Tail BW(MB/s) P99 Tail BW(MB/s)", "5 5 6 7", "bw"),
        ("Bi-Directional Bandwidth", "Size      Bandwidth (MB/s) P50 Tail BW(MB/s)", "5 5", "bibw"),
        (RATE, "Size                  MB/s Messages/s P50 Tail BW(MB/s)", "5 6 7", "message_rate"),
        (RATE, "Size MB/s Messages/s", "5 6", "message_rate"),
    ],
)
def test_omb_columns_with_one_blank_between_them(title: str, head: str, row: str, operation: str) -> None:
    (found,) = _imported(f"# OSU MPI {title} Test v7.4\n# Datatype: MPI_CHAR.\n# {head}\n8 {row}\n")
    assert [cell.operation for cell in found.cells] == [operation]


def test_omb_with_several_datatypes_gives_a_table_each() -> None:
    head = "# OSU MPI Latency Test v7.4\n"
    table = "# Datatype: {}.\n# Size         Avg Latency(us)\n8  {}.00\n\n"
    tables = table.format("MPI_CHAR", 1) + table.format("MPI_INT", 2)
    found = _imported(head + tables)
    assert [(one.workload, one.cells[0].ns[0, 0]) for one in found] == [
        ("omb-latency-MPI_CHAR", 2000),
        ("omb-latency-MPI_INT", 4000),
    ]


@pytest.mark.parametrize("name", ["sockperf-3.7-pp.txt", "sockperf-3.7-full-log-first-200.csv"])
def test_sockperf_that_lost_messages_says_so(name: str) -> None:
    """The mean of those that were answered stood beside one of all, without a word."""
    text = data(name)
    assert not any("astray" in lack for lack in _imported(text)[0].lacks)
    lost = text.replace(
        b"dropped messages = 0; # duplicated messages = 0", b"dropped messages = 50; # duplicated messages = 2"
    )
    assert "messages went astray (50 lost, 2 doubled): the figures are of the others" in _imported(lost)[0].lacks


@pytest.mark.parametrize(
    ("name", "usual"),
    [("sockperf-3.7-full-log-first-200.csv", "sockperf"), ("sockperf-3.7-full-log-ul.csv", "sockperf-1000-mps")],
)
def test_sockperf_at_other_rates_is_kept_apart(name: str, usual: str) -> None:
    """A load of 1,000 messages a second was compared with one of 10,000."""
    assert _imported(data(name))[0].workload == usual
    other = re.sub(rb"--mps=\d+", b"--mps=2500", data(name))
    assert _imported(other)[0].workload == "sockperf-2500-mps"


@pytest.mark.parametrize(
    ("title", "datatype", "name"),
    [
        ("Latency", "MPI_CHAR", "omb-latency"),
        ("Latency", "MPI_INT", "omb-latency-MPI_INT"),
        ("Allreduce Latency", "MPI_INT", "omb-allreduce"),
        ("Allreduce Latency", "MPI_FLOAT", "omb-allreduce-MPI_FLOAT"),
    ],
)
def test_omb_with_another_datatype_is_kept_apart(title: str, datatype: str, name: str) -> None:
    """Launches that summed up floats were blocks of those that summed up integers."""
    head = f"# OSU MPI {title} Test v7.4\n# Datatype: {datatype}.\n# Size         Avg Latency(us)\n"
    (found,) = _imported(f"{head}8  1.00\n")
    assert found.workload == name


def test_omb_with_derived_datatypes_is_kept_apart() -> None:
    """Every second stretch of a vector was a message of all its bytes."""
    head = "# OSU MPI {} Test v7.4\n# Datatype: MPI_CHAR.\n# Size {:>22}     Transmit Size\n"
    kept = f"{head.format('Latency', 'Avg Latency(us)')}8 {'3.21':>28}{4:>18}\n16 {'3.30':>27}{8:>18}\n"
    (found,) = _imported(kept)
    assert (found.workload, [cell.message_bytes for cell in found.cells]) == ("omb-latency-ddt", [8, 16])
    assert "messages of a derived datatype that it does not name: import outputs of one kind only" in found.lacks


@pytest.mark.parametrize(
    ("title", "unsaid"),
    [
        ("Latency Test v7.4", "several buffers (-b)"),
        ("Alltoall Latency Test v7.4", "data in place (-l)"),
        ("Reduce Latency Test v7.4", "data in place (-l) or another root (-k)"),
        ("Broadcast Latency Test v7.4", ""),
        ("Alltoall Latency Test v5.9", ""),
    ],
)
def test_omb_does_not_say_all_that_it_was_told(title: str, unsaid: str) -> None:
    """An alltoall in place sends other messages under the same heading, and nothing was said."""
    column = "Latency (us)" if title.startswith("Latency") else "Avg Latency(us)"
    title = title.replace("Alltoall", "All-to-All Personalized Exchange")
    (found,) = _imported(f"# OSU MPI {title}\n# Size  {column}\n8  1.00\n")
    told = [f"no word of {unsaid}: import outputs of one kind only"] if unsaid else []
    assert [one for one in found.lacks if one.startswith("no word of")] == told


def test_mpi4py_does_not_say_what_it_sent() -> None:
    """Pickled objects took 10 times as long as arrays, and the tables look alike."""
    (found,) = _imported(data("mpi4py-4.1.2-pingpong.txt"))
    assert "neither which arrays nor whether they were pickled: import outputs of one kind only" in found.lacks


def test_omb_barrier_with_a_validation_that_has_no_heading() -> None:
    head = "# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n"
    (found,) = _imported(f"{head}             3.05                Pass\n")
    assert found.cells[0].ns[0, 0] == 3050
    with pytest.raises(ForeignFileError, match="validation failed"):
        _imported(f"{head}             3.05                Fail\n")


def test_a_mean_printed_as_zero_is_skipped_and_reported() -> None:
    (found,) = _imported("# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n1  0.00\n8  1.00\n")
    assert [cell.message_bytes for cell in found.cells] == [8]
    assert "left out, because 0.00 was printed: 1 B" in found.lacks
    with pytest.raises(ForeignFileError, match="every mean"):
        _imported("# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n1  0.00\n")


@pytest.mark.parametrize("lead", [" 0: ", "[0] ", "[1,0]<stdout>: ", "[61234,0]<stdout>:"])
@pytest.mark.parametrize("name", ["imb-2021.11.txt", "osu"])
def test_lines_prefixed_with_a_rank_number_are_read(lead: str, name: str) -> None:
    text = "# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n8  1.00\n"
    if name != "osu":
        text = (DATA / name).read_text()
    numbered = "".join(f"{lead}{line}\n" for line in text.splitlines())
    found, plain = _imported(numbered)[0].cells, _imported(text)[0].cells
    assert [(cell.message_bytes, cell.ns[0, 0]) for cell in found] == [
        (cell.message_bytes, cell.ns[0, 0]) for cell in plain
    ]


def test_lines_prefixed_with_the_numbers_of_several_ranks_are_refused() -> None:
    with pytest.raises(ForeignFileError):
        _imported(
            "[1,0]<stdout>:# OSU MPI Latency Test v7.4\n[1,1]<stdout>:# Size  Avg Latency(us)\n[1,0]<stdout>:8 1.00\n"
        )


def test_netperf_and_qperf_are_adopted() -> None:
    for name, operation in {"tcp_stream": "tcp_stream", "tcp_rr": "tcp_round_trip", "udp_rr": "udp_round_trip"}.items():
        (found,) = _imported((DATA / f"netperf-2.7.0-{name}.txt").read_bytes())
        assert [cell.operation for cell in found.cells] == [operation]
    tests = _imported((DATA / "qperf-0.4.11-three.txt").read_bytes())
    assert [one.cells[0].operation for one in tests] == ["tcp_stream", "udp_stream", "udp_one_way"]


def test_udp_is_not_labelled_tcp() -> None:
    text = (DATA / "sockperf-3.7-pp.txt").read_bytes()
    assert _imported(text)[0].cells[0].operation == "tcp_round_trip"
    assert _imported(text.replace(b"# TCP", b"# UDP"))[0].cells[0].operation == "udp_round_trip"
    log = (DATA / "sockperf-3.7-full-log-first-200.csv").read_bytes()
    (found,) = _imported(log)
    assert found.cells[0].operation == "round_trip"
    assert "it does not say whether it was TCP or UDP" in found.lacks


def test_packets_that_do_not_wait_for_each_other_are_no_ping_pong() -> None:
    """Bursts of 5 packets, and a load of which each is answered, were round trips in `--full-log`."""
    (burst,) = _imported(data("sockperf-3.7-full-log-burst.csv"))
    assert (burst.workload, burst.cells[0].operation) == ("sockperf-burst-5", "under_load")
    (load,) = _imported(
        data("sockperf-3.7-full-log-burst.csv").replace(b"--mps=3000000 --burst=5", b"--mps=10000 --burst=1")
    )
    assert (load.workload, load.cells[0].operation) == ("sockperf-10000-mps-reply-every-1", "under_load")


@pytest.mark.parametrize(
    ("told", "load", "name"),
    [
        (b"--mps=600000 --burst=1 --reply-every=1", False, "sockperf"),
        (b"--mps=10000 --burst=1 --reply-every=1", False, "sockperf-10000-mps"),
        (b"--mps=10000 --burst=1 --reply-every=100", True, "sockperf"),
        (b"--mps=10000 --burst=1 --reply-every=2", True, "sockperf-reply-every-2"),
        (b"--mps=1000 --burst=1 --reply-every=2", True, "sockperf-1000-mps-reply-every-2"),
        (b"--mps=10000 --burst=1", True, "sockperf"),
    ],
)
def test_a_load_of_sockperf_with_other_answers_is_kept_apart(told: bytes, load: bool, name: str) -> None:
    """One of which each message was answered stood for a ping-pong, and any number of answers for one in a hundred."""
    text = data("sockperf-3.7-full-log-ul.csv" if load else "sockperf-3.7-full-log-first-200.csv")
    (found,) = _imported(re.sub(rb"--mps=\S+ --burst=\S+ --reply-every=\S+", told, text))
    assert (found.workload, found.cells[0].operation) == (name, "under_load" if load else "round_trip")


def test_a_load_is_no_ping_pong() -> None:
    """`sockperf under-load` sends at its own rate; both were one operation, and so compared."""
    for name, operation in (("sockperf-3.7-ul.txt", "tcp_under_load"), ("sockperf-3.7-full-log-ul.csv", "under_load")):
        (found,) = _imported((DATA / name).read_bytes())
        assert [cell.operation for cell in found.cells] == [operation]
        order = WorkloadOrder("sockperf", "imported", {"operation": operation}, (0, 1))
        assert shown_for(order, operation, 0).name == "latency (half a round trip)"
        unsaid = "neither its rate nor how many messages were answered: import outputs of one kind only"
        assert (unsaid in found.lacks) == (operation == "tcp_under_load"), "the log says both"


def test_a_mean_over_ranks_is_not_the_slowest_rank() -> None:
    for kind in ("imported", "omb", "imb"):
        assert shown_for(WorkloadOrder("w", kind, {}, (0, 1)), "allreduce", 8).name == "time, mean over ranks"
    assert shown_for(WorkloadOrder("w", "engine", {}, (0, 1)), "allreduce", 8).name == "time, slowest rank"


def test_the_event_stream_of_iperf3_gives_the_same_report() -> None:
    report = json.loads(data("iperf3-3.12-tcp.json"))
    events = [("start", report["start"]), *(("interval", one) for one in report["intervals"]), ("end", report["end"])]
    lines = [json.dumps({"event": event, "data": of}, separators=(",", ":")) for event, of in events]
    assert iperf3.parse("\n".join(lines).encode() + b"\n") == iperf3.parse(data("iperf3-3.12-tcp.json"))
    assert _imported("\n".join(lines) + "\n")[0].cells[0].operation == "tcp_stream"
    for torn in (lines[:-1], [*lines[:-1], lines[-1][:40]], ["[]", *lines], ['{"event": 1}']):
        with pytest.raises(ForeignFileError):
            iperf3.parse("\n".join(torn).encode())
    with pytest.raises(ForeignFileError, match="no route"):
        iperf3.parse(b'{"event":"error","data":"no route"}\n')


_STREAMS_OF_IPERF2 = ("two-streams", "two-streams-reverse", "reverse")


def test_measurements_of_different_kinds_do_not_share_a_name() -> None:
    """A port carries twice as much in both directions at once, and a window of 1 message measures something else than
    one of 64.
    """
    one_way = data("perftest-4.5-ib_send_bw.txt")
    both = one_way.replace(b"Send BW Test", b"Send Bidirectional BW Test")
    assert [_imported(text)[0].workload for text in (one_way, both)] == ["ib-send-bw", "ib-send-bw-both-ways"]
    report = data("written-perftest-4.5-write_bw-gbits.json")
    both = report.replace(b"RDMA_Write_BW_Test", b"RDMA_Write_Bidirectional_BW_Test")
    assert [_imported(text)[0].workload for text in (report, both)] == ["ib-write-bw", "ib-write-bw-both-ways"]
    assert [_imported(data(f"iperf3-3.12-{one}.json"))[0].workload for one in ("tcp", "two-streams-omit")] == [
        "iperf3",
        "iperf3-2-streams",
    ]
    reverse = re.sub(rb'"reverse":\s*0', b'"reverse": 1', data("iperf3-3.12-tcp.json"))
    assert _imported(reverse)[0].workload == "iperf3-reverse"
    assert [_imported(data(f"iperf2-2.1.8-{one}.txt"))[0].workload for one in _STREAMS_OF_IPERF2] == [
        "iperf2-2-streams",
        "iperf2-2-streams-reverse",
        "iperf2-reverse",
    ]
    assert _imported(data("written-npb-3.4-cg-S.txt"))[0].workload == "npb-cg-2"
    assert _imported(data("hpcc-1.5.0-hpccoutf.txt"))[0].workload == "hpcc-300-2"
    (hpl,) = _imported(data("hpcc-1.5.0-hpl-section.txt"))
    assert re.fullmatch(r"hpl-[0-9]+-2", hpl.workload)
    rate = data("written-omb-7.4-mbw_mr.txt")
    assert _imported(rate)[0].workload == "omb-message_rate-2-pairs"
    alone = rate.replace(b"pairs: 2", b"pairs: 1")
    one = alone.replace(b"window size: 64", b"window size: 1")
    assert [_imported(text)[0].workload for text in (alone, one)] == ["omb-message_rate", "omb-message_rate-window1"]
    stream, requests = data("netperf-2.7.0-tcp_stream.txt"), data("netperf-2.7.0-tcp_rr.txt")
    other_way = stream.replace(b"TCP STREAM TEST", b"TCP MAERTS TEST")
    burst = requests.replace(b"first burst 0", b"first burst 16")
    assert _imported(other_way)[0].workload == "netperf-tcp-stream-reverse"
    assert _imported(requests)[0].workload == "netperf-tcp-round-trip"
    assert _imported(burst)[0].workload == "netperf-tcp-round-trip-burst-16"


@pytest.mark.parametrize(
    ("title", "workload"),
    [
        ("OSU MPI Latency Test v7.4", "omb-latency"),
        ("OMB-Py MPI Latency Test", "omb-latency-python"),
        ("OSU MPI Multi Latency Test v7.4", "omb-multi_latency"),
        ("OSU MPI Multi-threaded Latency Test v7.4", "omb-multi_latency-threads"),
        ("OSU MPI-CUDA Latency Test v7.2", "omb-latency-cuda"),
        (
            "OSU MPI-ROCM Latency Test v5.9\n# Send Buffer on DEVICE (D) and Receive Buffer on HOST (H)",
            "omb-latency-rocm-d-h",
        ),
    ],
)
def test_osu_benchmarks_of_one_operation_are_kept_apart(title: str, workload: str) -> None:
    """They lie in one directory of the suite, and were launches of one cell."""
    assert _imported(f"# {title}\n# Size  Avg Latency(us)\n8  1.00\n")[0].workload == workload


def test_npb_of_threads_and_of_several_zones_are_kept_apart() -> None:
    """BT-MZ was BT, and four threads were four processes."""
    text = data("written-npb-3.4-cg-S.txt")
    processes = b" Total processes =                        2\n"
    threads = processes.replace(b"processes =  ", b"threads   =  ")
    mz = text.replace(b"CG Benchmark", b"BT-MZ Benchmark")
    told = [text, text.replace(processes, threads), mz.replace(processes, processes + threads), mz]
    found = [_imported(one)[0] for one in told]
    assert [one.workload for one in found] == ["npb-cg-2", "npb-cg-2-threads", "npb-bt-mz-2-2-threads", "npb-bt-mz-2"]
    assert [one.cells[0].operation for one in found[1:3]] == ["cg.S [Mop/s]", "bt-mz.S [Mop/s]"]


def test_streams_of_iperf_that_may_send_less_are_kept_apart() -> None:
    """What was told to send at most so much is no measure of the path; datagrams have a limit that is usual."""
    for protocol, limit, workload in (
        ("tcp", 0, "iperf3"),
        ("tcp", 1 << 20, "iperf3-1.04858-mbit"),
        ("udp", 1 << 20, "iperf3"),
        ("udp", 0, "iperf3-unlimited"),
        ("udp", 3_000_000_000, "iperf3-3000-mbit"),
    ):
        report = data(f"iperf3-3.12-{protocol}.json")
        report = re.sub(rb'"target_bitrate":\s*\d+', b'"target_bitrate": %d' % limit, report)
        assert _imported(report)[0].workload == workload
    told = data("iperf2-2.1.8-udp.txt")
    usual, at_once = (
        told.replace(b"IPG target: 1121.52 us", b"IPG target: %s us" % one) for one in (b"11215.21", b"0.00")
    )
    assert [_imported(one)[0].workload for one in (usual, at_once)] == ["iperf2", "iperf2-unlimited"]


@pytest.mark.parametrize(
    ("protocol", "told", "name"),
    [
        ("udp", b"Sending 1450 byte datagrams, IPG target: 11062.62 us (kalman adjust)", "iperf2"),
        ("udp", b"Sending 500 byte datagrams, IPG target: 3814.70 us (kalman adjust)", "iperf2-500-byte-blocks"),
        ("udp", b"Sending 500 byte datagrams, IPG target: 381.47 us", "iperf2-10.49-mbit-500-byte-blocks"),
        ("tcp", b"Write buffer size: 131072 Byte", "iperf2"),
        ("tcp", b"Write buffer size:  128 KByte", "iperf2"),
        ("tcp", b"Write buffer size: 1000 Byte", "iperf2-1000-byte-blocks"),
        ("tcp", b"Write buffer size: 0.25 MByte", "iperf2-262144-byte-blocks"),
    ],
)
def test_iperf2_with_another_block_size_is_kept_apart(protocol: str, told: bytes, name: str) -> None:
    """Streams of blocks of 1000 B were launches of those of 128 KiB; over TCP `-e` tells their size."""
    text = re.sub(rb"Sending .*\n", b"", data(f"iperf2-2.1.8-{protocol}.txt"))
    (unsaid,) = _imported(text)
    (found,) = _imported(re.sub(rb"^(TCP window|UDP buffer) size", told + rb"\n\1 size", text, flags=re.MULTILINE))
    assert (unsaid.workload, found.workload) == ("iperf2", name)
    assert (NO_SIZE in unsaid.lacks, NO_SIZE in found.lacks) == (True, False)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (b"16.0 KByte (default)", "iperf2"),
        (b" 128 KByte (WARNING: requested 64.0 KByte)", "iperf2-65536-byte-window"),
        (b"64.0 KByte", "iperf2-65536-byte-window"),
    ],
)
def test_streams_of_iperf_with_a_window_of_their_own_are_kept_apart(told: bytes, name: str) -> None:
    """What is on its way at once is limited by it (`-w`), and was that of any launch."""
    assert _imported(data("iperf2-2.1.8-tcp.txt").replace(b"16.0 KByte (default)", told))[0].workload == name
    window = b"0" if told.endswith(b"(default)") else b"65536"
    report = re.sub(rb'("sock_bufsize":\s*)0', rb"\g<1>" + window, data("iperf3-3.12-tcp.json"))
    assert _imported(report)[0].workload == name.replace("iperf2", "iperf3")


def test_netperf_that_sends_at_once_is_kept_apart_and_its_sizes_are_read() -> None:
    """Sizes that the output named were all one, and streams of small sends with `-D` were those that wait for more."""
    text = data("netperf-2.7.0-tcp_stream.txt")
    answered = data("netperf-2.7.0-tcp_rr.txt") + b"LOCAL_SEND_SIZE=9\nREQUEST_SIZE=64\n"
    for told, name, size in (
        (text, "netperf-tcp-stream", 0),
        (text.replace(b" : demo", b" : nodelay : demo"), "netperf-tcp-stream-nodelay", 0),
        (text + b"REQUEST_SIZE=-1\nLOCAL_SEND_SIZE=16384\n", "netperf-tcp-stream", 16384),
        (answered + b"RESPONSE_SIZE=64\n", "netperf-tcp-round-trip", 64),
        (answered + b"RESPONSE_SIZE=1\n", "netperf-tcp-round-trip-response-1", 64),
    ):
        (found,) = _imported(told)
        assert (found.workload, found.cells[0].message_bytes) == (name, size)
        assert (NO_SIZE in found.lacks) is (size == 0)


def test_streams_of_qperf_with_buffers_of_their_own_are_kept_apart() -> None:
    told = b"    sock_buf_size   =         65536 bytes\n"
    text = b"tcp_bw:\n    bw              =      13539840 bytes/sec\n    msg_size        =           128 bytes\n"
    assert [_imported(one)[0].workload for one in (text, text + told)] == [
        "qperf-tcp-bw",
        "qperf-tcp-bw-65536-byte-window",
    ]


def test_osu_latencies_of_other_numbers_of_threads_are_kept_apart() -> None:
    """The numbers stand before the title, in a log behind the table of the launch before."""

    def launch(sender: int, receiver: int, us: float) -> str:
        told = f"# Number of Sender threads: {sender} \n# Number of Receiver threads: {receiver}\n\n"
        return f"{told}# OSU MPI Multi-threaded Latency Test v7.4\n# Size  Avg Latency(us)\n8  {us:.2f}\n"

    found = _imported(launch(1, 2, 1.5) + launch(1, 8, 2.5) + launch(4, 4, 3.5) + launch(1, 2, 4.5))
    assert [one.workload for one in found] == [
        "omb-multi_latency-threads",
        "omb-multi_latency-threads-1-8",
        "omb-multi_latency-threads-4-4",
        "omb-multi_latency-threads",
    ]


def test_perftest_with_other_queue_pairs_or_transport_is_kept_apart() -> None:
    text = data("perftest-4.5-ib_send_bw.txt")
    several = text.replace(b"Number of qps   : 1\t", b"Number of qps   : 4\t")
    datagrams = text.replace(b"Connection type : RC", b"Connection type : UD")
    names = [_imported(one)[0].workload for one in (text, several, datagrams)]
    assert names == ["ib-send-bw", "ib-send-bw-4-queue-pairs", "ib-send-bw-ud"]


def test_perftest_that_sends_or_waits_in_another_way_is_kept_apart() -> None:
    """Raw Ethernet was taken for RC, both ports for one, and sleeping for polling, in JSON too."""
    text, report = data("perftest-4.5-ib_send_bw.txt"), data("written-perftest-4.5-write_bw-gbits.json")
    depth, single = b" TX depth        : 128\n", b" CQ Moderation   : 1\n"
    for told, replaced, suffix in (
        (b"Connection type : RawEth", b"Connection type : RC", "-raweth"),
        (b"Dual-port       : ON", b"Dual-port       : OFF", "-dual-port"),
        (b" Test with events. Using rxe0_comp0\n CQ Moderation   : 100\n", single, "-events"),
        (b" Post List       : 16\n CQ Moderation   : 16\n", single, "-post-list-16"),
        (b" CQ Moderation   : 100\n", single, "-cq-moderation-100"),
        (b"Using SRQ      : ON", b"Using SRQ      : OFF", "-srq"),
        (depth.replace(b"128", b"1"), depth, "-tx-depth-1"),
        (b" Max inline data : 64[B]", b" Max inline data : 0[B]", "-inline-64"),
    ):
        assert text.count(replaced) == 1
        assert _imported(text.replace(replaced, told))[0].workload == f"ib-send-bw{suffix}"
    for told, suffix in (
        (b"Connection_type: RawEth,\nDual_port: OFF", "-raweth"),
        (b"Dual_port: ON", "-dual-port"),
        (b"Test with events: Using_mlx5_0_comp0,\nDual_port: OFF", "-events"),
        (b"Post_List: 16,\nDual_port: OFF", "-post-list-16"),
        (b"Using_SRQ: ON,\nTX_depth: 128,\nDual_port: OFF", "-srq"),
        (b"TX_depth: 1,\nDual_port: OFF", "-tx-depth-1"),
        (b"CQ_Moderation: 8,\nDual_port: OFF", "-cq-moderation-8"),
        (b"Max_inline_data: 64,\nDual_port: OFF", "-inline-64"),
    ):
        assert _imported(report.replace(b"Dual_port: OFF", told))[0].workload == f"ib-write-bw{suffix}"


@pytest.mark.parametrize(
    ("sizes", "told", "suffix"),
    [
        ([2, 4096, 65536], b"CQ Moderation   : 100", "-cq-moderation-100"),  # -a, which takes all sizes alike
        ([2, 4096, 65536], b"CQ Moderation   : 1", ""),
        ([64], b"CQ Moderation   : 100", ""),
        ([64], b"CQ Moderation   : 1", "-cq-moderation-1"),
        ([64], b"TX depth        : 16\n CQ Moderation   : 16", "-tx-depth-16"),
        ([65536], b"CQ Moderation   : 1", ""),
        ([64], b"Connection type : SRD\n CQ Moderation   : 1", "-srd"),
        ([65536], b"Test with events.\n CQ Moderation   : 100", "-events"),
    ],
)
def test_perftest_that_counts_completions_otherwise_is_kept_apart(sizes: list[int], told: bytes, suffix: str) -> None:
    """Of `-Q` nothing was read, and a large size of `-a` had the name of one of `-s`, which is counted otherwise."""
    text = re.sub(rb" 16384 .*\n", b"".join(b" %d 1000 21.05 20.97 0.001\n" % size for size in sizes), _SENDS)
    assert _imported(text.replace(b"CQ Moderation   : 1", told))[0].workload == f"ib-send-bw{suffix}"


_SENDS = data("perftest-4.5-ib_send_bw.txt").replace(b" TX depth        : 128\n", b"")


def test_what_the_port_gives_perftest_is_told() -> None:
    """A port's MTU is no other measurement, but one that `-m` set might be: a comparison shows both."""
    text, report = data("perftest-4.5-ib_atomic_lat.txt"), data("written-perftest-6.2-send_lat.json")
    wanted = "measured with an MTU of 1024 B and 128 outstanding reads, chosen or not"
    assert wanted in _imported(text)[0].lacks
    assert "measured with an MTU of 4096 B, chosen or not" in _imported(report)[0].lacks


def test_json_of_perftest_with_several_sizes_is_refused() -> None:
    """The last size was read, and the others were gone."""
    text = data("written-perftest-6.2-send_lat.json")
    with pytest.raises(ForeignFileError, match="values twice, as of several sizes"):
        _imported(text.replace(b'"MsgSize": 8,', b'"MsgSize": 2,\n"t_avg": 1.00,\n"MsgSize": 8,'))


def test_perftest_in_the_memory_of_gpus_is_kept_apart_launch_by_launch() -> None:
    """What tells it stands above the title, in a log behind the launch before."""
    text = data("perftest-4.5-ib_send_bw.txt")
    cuda = b"initializing CUDA\nPicking device No. 0\nCUDA device integrated: 0\n"
    rocm = b"Using ROCm Device with ID: 0, Name: x, PCI Bus ID: 0x3, GCN Arch: 908\n"
    found = _imported(text + cuda + text + rocm + text + text)
    names = ["ib-send-bw", "ib-send-bw-cuda", "ib-send-bw-rocm", "ib-send-bw"]
    assert [one.workload for one in found] == names


@pytest.mark.parametrize("title", [b"RDMA_Write_imm_BW_Test", b"Send_BW_Multicast_Test", b"Send_BW_forwarding_Test"])
def test_json_of_another_test_of_perftest_is_refused_as_its_text_is(title: bytes) -> None:
    """Writes with immediate data were those without, and multicast was a stream to one."""
    report = data("written-perftest-4.5-write_bw-gbits.json").replace(b"RDMA_Write_BW_Test", title)
    with pytest.raises(ForeignFileError, match="does not name the test"):
        perftest.parse_json_report(report)


@pytest.mark.parametrize(
    ("inline", "name"),
    [("236[B]", "ib-send-lat"), ("0[B]", "ib-send-lat-inline-0"), ("64[B]", "ib-send-lat-inline-64")],
)
def test_latencies_of_perftest_with_another_inline_size_are_kept_apart(inline: str, name: str) -> None:
    """Small messages that wait for their data to be read were those that carry it."""
    assert _imported(_LATENCIES.format("36.97 149.45 40.02", inline=inline))[0].workload == name


def test_latencies_of_perftest_in_cycles_are_refused() -> None:
    """Of -C only `#, cycles` of -U says a word: 4014.50 cycles were 4.01 ms. But cycles are whole, their halves too."""
    usual = _LATENCIES.format("36.00 149.50 40.02", inline="236[B]")
    assert _imported(usual)[0].cells[0].ns[0, 0] == 49_360
    for cycles in (usual.replace("40.02", "40.50"), usual.replace("\n 8 ", "\n#, cycles\n1, 40.02\n 8 ")):
        with pytest.raises(ForeignFileError, match="cycles of the processor, not microseconds"):
            _imported(cycles)
    report = data("written-perftest-6.2-send_lat.json").decode()
    with pytest.raises(ForeignFileError, match="cycles of the processor, not microseconds"):
        _imported(re.sub(r'(t_min|t_max|t_typical|percentile_99(?:\.9)?)": [\d.]+', r'\1": 4014.50', report))


_LATENCIES = """\
-----------------------------
                    Send Latency Test
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Max inline data : {inline}
-----------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%   99.9%
 8       1000          {}         49.36         22.23    136.00    149.50
-----------------------------
"""


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("written-perftest-6.2-send_lat.json", "ib-send-lat"),
        ("written-perftest-4.5-write_bw-gbits.json", "ib-write-bw"),
    ],
)
def test_json_of_perftest_is_kept_apart_as_its_text_is(name: str, workload: str) -> None:
    """Launches over UD, and by four queue pairs, were blocks of those over RC by one."""
    text = re.sub(rb'"Number_of_qps": 1,\n', b"", data(name))
    for quote in (b"", b'"'):
        for connection, pairs, suffix in ((b"RC", 1, ""), (b"UD", 1, "-ud"), (b"UC", 4, "-uc-4-queue-pairs")):
            told = (b"Number_of_qps", b"%d" % pairs), (b"Connection_type", quote + connection + quote)
            lines = b"".join(quote + key + quote + b": " + value + b",\n" for key, value in told)
            found = _imported(re.sub(rb'("?Dual_port)', lambda at, lines=lines: lines + at[1], text))  # type: ignore[misc]
            assert found[0].workload == f"{workload}{suffix}"
    with pytest.raises(ForeignFileError, match="its connection type is 'a b'"):
        _imported(re.sub(rb'("?Dual_port)', rb"Connection_type: a b,\n\1", text))


def test_netperf_connections_are_no_round_trips() -> None:
    text = data("netperf-2.7.0-tcp_rr.txt").replace(b"TCP REQUEST/RESPONSE TEST", b"TCP Connect/Request/Response TEST")
    with pytest.raises(ForeignFileError, match="open a connection each"):
        netperf.parse(text)


def test_osu_collectives_do_not_say_their_number_of_processes() -> None:
    (barrier,), (latency,) = (_imported(data(f"written-omb-7.4-{name}.txt")) for name in ("barrier", "latency-z"))
    said = "no number of processes: import outputs of one number only"
    assert said in barrier.lacks
    assert said not in latency.lacks


def test_iperf3_paced_by_the_kernel_is_kept_apart() -> None:
    """`--fq-rate` limits what is sent as `-b` does; releases from 3.17 on tell it."""
    raw = json.loads(data("iperf3-3.12-tcp.json"))
    raw["start"]["test_start"]["fqrate"] = 2_000_000_000
    assert _imported(json.dumps(raw))[0].workload == "iperf3-paced-2000-mbit"


@pytest.mark.parametrize(("key", "note"), [("tcp_mss_default", 32768), ("tcp_mss", 1200)])
def test_what_the_kernel_gives_iperf3_is_told(key: str, note: int) -> None:
    raw = json.loads(data("iperf3-3.12-tcp.json"))
    raw["start"][key] = note
    assert f"sent with bbr and segments of {note} bytes, chosen or not" in _imported(json.dumps(raw))[0].lacks
    assert not any("segments" in lack for lack in _imported(data("iperf3-3.12-udp.json"))[0].lacks)


def test_a_loop_of_qperf_is_read_where_it_prints_its_sizes() -> None:
    """Sizes of `-oo msg_size:1K:2K:*2` without -v were blocks of one launch each, of one size."""
    told, size = data("qperf-0.4.11-tcp_lat.txt"), b"msg_size       =          64 bytes"
    found = _imported(told + told.replace(size, size.replace(b" 64", b"128")) + told)
    assert [(one.workload, one.cells[0].message_bytes) for one in found] == [
        ("qperf-tcp-lat", size_bytes) for size_bytes in (64, 128, 64)
    ]
    silent = b"tcp_lat:\n    latency  =  7853 ns\ntcp_lat:\n    latency  =  8368 ns\n"
    with pytest.raises(ForeignFileError, match=r"has tcp_lat 2 times, and not with which options") as caught:
        _imported(silent)
    assert "-v" in caught.value.hint
    assert len(_imported(silent.replace(b"tcp_lat", b"udp_lat", 1))) == 2


def test_a_qperf_test_without_its_size_says_so() -> None:
    (sized,) = _imported("tcp_lat:\n    latency   =  9000 ns\n    msg_size  =  64 bytes\n")
    (bare,) = _imported("tcp_lat:\n    latency  =  9000 ns\n")
    assert NO_SIZE not in sized.lacks
    assert NO_SIZE in bare.lacks


def test_netperf_request_rates_in_bits_do_not_count_as_a_stream() -> None:
    text = data("netperf-2.7.0-tcp_rr.txt").replace(b"Trans/s", b"10^6bits/s")
    with pytest.raises(ForeignFileError, match=r"requests are counted in '10.6bits/s': leave out -f"):
        netperf.parse(text)


def test_a_latency_of_0_is_refused() -> None:
    with pytest.raises(ForeignFileError, match="its latency is 0"):
        sockperf.parse_summary(data("sockperf-3.7-pp.txt").replace(b"Latency is 17.326", b"Latency is 0.000"))


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("-npmin 2", "imb-2"),
        ("-red_data_type int -data_type char", "imb-2-red_data_type-int-data_type-char"),
        ("-off_cache 16,128", "imb-2-off_cache-16_128"),
        ("-sync off", "imb-2-sync-off"),
        ("-map 4x2", "imb-2-map-4x2"),
        ("-thread_level multiple -warm_up off", "imb-2-thread_level-multiple-warm_up-off"),
    ],
)
def test_imb_told_to_measure_otherwise_is_kept_apart(told: str, name: str) -> None:
    """Launches with cold buffers or other datatypes were blocks of the usual ones.

    So were pings between nodes (`-map`), of those inside one.
    """
    text = data("imb-2021.11.txt").replace(b"-iter 100 ", f"-iter 100 {told} ".encode())
    assert [one.workload for one in _imported(text)] == [name]


def test_imb_with_the_memory_of_gpus_is_kept_apart() -> None:
    """Device memory is what it takes there unless it is told otherwise."""
    text = data("imb-2021.11.txt").replace(b"MPI-1 part\n", b"MPI-1 part (GPU)\n")
    host = text.replace(b"-iter 100 ", b"-mem_alloc_type host -iter 100 ")
    assert [_imported(one)[0].workload for one in (text, host)] == ["imb-2-gpu", "imb-2-gpu-mem_alloc_type-host"]


def test_sizes_skipped_by_imb_for_memory_or_time_are_named() -> None:
    block = "# Benchmarking PingPong\n# #processes = 2\n#bytes #repetitions t[usec] Mbytes/sec\n8 100 0.25 32.6\n"
    reason = ' time-out.; Time limit (secs_per_sample * msg_sizes_list_len) is over; use "-time X"'
    (found,) = _imported(f"{block}   2097152{reason}\n\n# All processes entering MPI_Finalize\n")
    assert [cell.message_bytes for cell in found.cells] == [8]
    assert "IMB ran out of memory or time at 2 MiB" in found.lacks


def test_imports_with_different_block_sizes_are_not_silently_compared() -> None:
    small = re.sub(rb'"blksize":\s*131072', b'"blksize": 8192', data("iperf3-3.12-tcp.json"))
    assert _imported(small)[0].workload == "iperf3-8192-byte-blocks"
    assert "datagrams have 32768 bytes" in str(_imported(data("iperf3-3.12-udp.json"))[0].lacks)
    unsaid = ("nuttcp-6.1.2-two-streams.txt", "iperf2-2.1.8-two-streams.txt", "sockperf-3.7-pp.txt")
    unsaid += ("netperf-2.7.0-tcp_rr.txt",)
    assert all("no message size" in str(_imported(data(name))[0].lacks) for name in unsaid)
