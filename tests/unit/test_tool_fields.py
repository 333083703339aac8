"""Fields of other programs' output on which the figure depends."""

import json
from collections.abc import Callable

import pytest

from nearmetal.errors import ForeignFileError
from nearmetal.workloads.tools import hpcc, imb, iperf2, iperf3, npb, nuttcp, omb, sockperf
from nearmetal.workloads.tools.perftest_dump import parse_dump
from tests.unit.test_tool_formats import _imported, _iperf3_intervals, data


def test_iperf3_over_another_protocol_is_refused() -> None:
    """A rate over SCTP had no unit: it was shown as a time."""
    with pytest.raises(ForeignFileError, match="it is over 'sctp'"):
        iperf3.parse(data("iperf3-3.12-tcp.json").replace(b'"TCP"', b'"SCTP"'))


@pytest.mark.parametrize("missing", ["lost_packets", "packets"])
def test_datagrams_of_which_nobody_says_how_many_arrived_are_refused(missing: str) -> None:
    """All that were sent counted as arrived."""
    report = json.loads(data("iperf3-3.12-udp.json"))
    report["end"] = {"sum": {name: value for name, value in report["end"]["sum"].items() if name != missing}}
    with pytest.raises(ForeignFileError, match=missing):
        iperf3.parse(json.dumps(report).encode())


def test_a_single_datagram_is_all_that_was_sent() -> None:
    report = json.loads(data("iperf3-3.12-udp.json"))
    report["end"] = {"sum": report["end"]["sum"] | {"packets": 1, "lost_packets": 0, "bits_per_second": 1e6}}
    assert iperf3.parse(json.dumps(report).encode()).received_bit_s == 1e6
    report["end"]["sum"]["packets"] = 0
    with pytest.raises(ForeignFileError, match="not a whole number"):
        iperf3.parse(json.dumps(report).encode())


def test_nothing_that_arrived_is_no_figure() -> None:
    report = json.loads(data("iperf3-3.12-tcp.json"))
    report["end"]["sum_received"]["bits_per_second"] = 0
    with pytest.raises(ForeignFileError, match="not a figure"):
        _imported(json.dumps(report) + "\n")
    for moved in ([0, 0], []):
        report["intervals"] = _iperf3_intervals(moved) or [{"sum": {"start": 0, "seconds": 0.0, "bytes": 0}}]
        with pytest.raises(ForeignFileError, match="no interval in which a byte was moved"):
            _imported(json.dumps(report) + "\n")


@pytest.mark.parametrize(
    ("printed", "mbit_per_s"),
    [
        ("50200000 bits/sec", 50.2),
        ("502000 Kbits/sec", 502.0),
        ("502 Mbits/sec", 502.0),
        ("5.02 Gbits/sec", 5020.0),
        ("50200000 Bytes/sec", 401.6),
        ("50200 KBytes/sec", 50_200 * 8 * 1024 / 1e6),
        ("502 MBytes/sec", 502 * 8 * 1024**2 / 1e6),
        ("5.02 GBytes/sec", 5.02 * 8 * 1024**3 / 1e6),
    ],
)
def test_units_of_iperf2(printed: str, mbit_per_s: float) -> None:
    found = iperf2.parse(data("iperf2-2.1.8-tcp.txt").replace(b"502 Mbits/sec", printed.encode()))
    assert found[1] == pytest.approx(mbit_per_s, rel=1e-12)


def test_streams_of_iperf2_that_nothing_sums_are_refused() -> None:
    whole = data("iperf2-2.1.8-two-streams.txt").decode().splitlines()
    rows = [line for line in whole if "[SUM]" not in line]
    one_told = [line for line in rows if not line.startswith("[  2] local")]
    one_rated = [line for line in rows if not line.startswith("[  2] 0.0000")]
    for lines in (rows, one_told, one_rated):
        with pytest.raises(ForeignFileError, match="no sum"):
            iperf2.parse("\n".join([*lines, ""]).encode())


def test_a_word_of_nuttcp_may_hold_another_equals_sign() -> None:
    text = data("nuttcp-6.1.2-parse.txt").replace(b"megabytes=", b"note=a=b megabytes=")
    assert nuttcp.parse(text) == nuttcp.parse(data("nuttcp-6.1.2-parse.txt"))


def test_two_values_of_perftest_say_nothing_of_their_order() -> None:
    assert parse_dump(b"\n#, usec\n1, 1.00\n2, 2.00\n").tolist() == [1000, 2000]


def test_a_round_trip_of_sockperf_is_halved() -> None:
    """With --full-rtt its summary is of whole ones."""
    printed = data("sockperf-3.7-pp.txt")
    whole = printed.replace(b"Summary: Latency is", b"Summary: Round trip is")
    assert sockperf.parse_summary(printed).mean_half_round_trip_us == pytest.approx(17.326)
    assert sockperf.parse_summary(whole).mean_half_round_trip_us == pytest.approx(17.326 / 2)


@pytest.mark.parametrize("value", ["0", "-1", "-0.5"])
def test_what_hpcc_did_not_measure_is_no_figure(value: str) -> None:
    text = data("hpcc-1.5.0-hpccoutf.txt")
    names = {name for name, _, _ in hpcc.parse(text).cells}
    without = hpcc.parse(text.replace(b"MPIFFT_Gflops=4.97775", b"MPIFFT_Gflops=" + value.encode()))
    assert names - {name for name, _, _ in without.cells} == {"MPIFFT_Gflops [Gflop/s]"}


@pytest.mark.parametrize(
    ("reader", "name", "told", "none"),
    [
        (omb.parse, "written-omb-7.4-mbw_mr.txt", b"pairs: 2", b"pairs: 0"),
        (imb.parse, "imb-2021.11.txt", b"#processes = 2", b"#processes = 0"),
        (npb.parse, "written-npb-3.4-cg-S.txt", b"Total processes =                        2", b"Total processes = 0"),
        (hpcc.parse, "hpcc-1.5.0-hpccoutf.txt", b"CommWorldProcs=2", b"CommWorldProcs=0"),
        (hpcc.parse, "hpcc-1.5.0-hpl-section.txt", b"80     1     2", b"80     0     2"),
    ],
)
def test_figures_of_no_process_are_refused(
    reader: Callable[[bytes], object], name: str, told: bytes, none: bytes
) -> None:
    """A message rate of no pair was kept as that of messages within 1 ns."""
    text = data(name)
    reader(text)
    assert told in text
    with pytest.raises(ForeignFileError, match="number of processes"):
        reader(text.replace(told, none))


def test_half_a_summary_of_hpcc_is_refused() -> None:
    """Above it are the rows of HPL, in other units."""
    text = data("hpcc-1.5.0-hpccoutf.txt").decode()
    begin, end = "Begin of Summary section.", "End of Summary section."
    hpl = data("hpcc-1.5.0-hpl-section.txt").decode()
    for damaged in (text.replace(begin, ""), text.replace(end, ""), text * 2, f"{hpl}{begin}\n", f"{hpl}{end}\n"):
        with pytest.raises(ForeignFileError, match="summary section begins"):
            hpcc.parse(damaged.encode())
