"""What is started on the nodes for each foreign program, word by word, and what its end is believed to say.

Real programs are launched in tests/e2e/test_tools.py; no command line that is wrong but works would be noticed there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from nearmetal.errors import BadInputError, ForeignFileError, TrialError, UnavailableError
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.workloads.mpi_benchmarks import BenchmarkRun
from nearmetal.workloads.program_group import LOG
from nearmetal.workloads.streams import OutputName, read_name
from nearmetal.workloads.table import find_workload
from nearmetal.workloads.tools import imb, mpi4py, omb
from nearmetal.workloads.workload import Launch

DATA = Path(__file__).parents[1] / "data" / "tools"
ENDPOINTS = Endpoints(
    tuple(Endpoint(f"n{number}", "eth0", f"10.77.0.{number + 1}") for number in range(4)), "10.77.0.0/24"
)
LINKS = [{"ifname": "rxe0/1", "netdev": "eth0"}, {"ifname": "other/1", "netdev": "eth1"}]


class Machine:
    """A shell of nodes on which every program is installed, prints its version and listens at once."""

    scratch, agent = "/scratch", "agent"

    def __init__(self, links: object = LINKS) -> None:
        self.started: list[tuple[str, str]] = []
        self._links = json.dumps(links)

    def start(self, argv: Sequence[str], *, node: str = "") -> Machine:
        self.started.append((node, " ".join(argv)))
        return self

    def ended(self) -> None:
        """Return that a server goes on."""

    def run(self, argv: Sequence[str], *, node: str = "", **_: object) -> Finished:
        words = [word for _, line in self.started for word in line.removesuffix(" --tcp").split()]
        ports = {int(word.removeprefix("-P")) for word in words if word.removeprefix("-P").isdigit()}
        listening = "head\n" + "".join(f"0: 0:{port:04X} 0:0 {'07' if 'udp' in argv[-1] else '0A'}\n" for port in ports)
        answers = {"cat": listening, "rdma": self._links}
        return Finished(tuple(argv), 0, answers.get(argv[0], "Version: 6.1\n").encode(), b"", 1)

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        del path, data, node


def order_of(kind: str, placement: tuple[int, ...] = (0, 1), **options: object) -> Order:
    base = {"operation": "w", "sizes": [], "iterations": 1000, "warmup": 100}
    workload = WorkloadOrder("w", kind, {**base, **options}, placement)  # type: ignore[arg-type]
    return Order(0, 0, PathOrder("bridge", "bridge"), workload, timeout_s=60.0)


def launched(
    order: Order, machine: Machine | None = None
) -> tuple[list[tuple[str, str]], list[tuple[int, str]], Launch]:
    """Return the servers by node, the clients by step, and the launch."""
    machine = machine or Machine()
    launch = find_workload(order.workload.kind).prepare(machine, order, ENDPOINTS)  # type: ignore[arg-type]
    assert launch.argv[:5] == (sys.executable, "/scratch/n0/program_group_run.py", "agent", "/scratch/n0", "58")
    commands = [json.loads(one) for one in launch.argv[5:]]
    assert all(launch.files[one["stdout"]] == f"/scratch/n0/{one['stdout']}" for one in commands)
    assert launch.files[LOG] == f"/scratch/n0/{LOG}"
    return machine.started, [(one["step"], " ".join((one["node"], *one["argv"])).strip()) for one in commands], launch


LAUNCHES: list[tuple[str, Mapping[str, object], str, str]] = [
    ("nuttcp", {}, "nuttcp -S --nofork -P5100", "nuttcp -fparse -T2 -P5100 -p5301 10.77.0.2"),
    (
        *("nuttcp", {"seconds": 0.5, "streams": 2, "protocol": "udp", "sizes": [1400]}, "nuttcp -S --nofork -P5100"),
        "nuttcp -fparse -T0.5 -P5100 -p5301 -N2 -l1400 -u -R100m 10.77.0.2",
    ),
    (
        *("iperf3", {}, "iperf3 -s -p 5201 -J -i 0.1"),
        "iperf3 -c 10.77.0.2 -p 5201 -J -t 2 -i 0.1 -P 1 --get-server-output",
    ),
    (
        *("iperf3", {"sizes": [8192], "protocol": "udp", "rate_mbit": 10}, "iperf3 -s -p 5201 -J -i 0.1"),
        "iperf3 -c 10.77.0.2 -p 5201 -J -t 2 -i 0.1 -P 1 --get-server-output -l 8192 -u -b 10000000",
    ),
    ("qperf", {}, "qperf -lp 19765", "qperf -uu -v -lp 19765 -t 2 10.77.0.2 tcp_lat"),
    (
        *("qperf", {"test": "udp_bw", "sizes": [64]}, "qperf -lp 19765"),
        "qperf -uu -v -lp 19765 -t 2 -m 64 10.77.0.2 udp_bw",
    ),
    (
        *("sockperf", {}, "sockperf sr -i 10.77.0.2 -p 11111 --tcp"),
        "sockperf pp -i 10.77.0.2 -p 11111 --tcp -t 2 -m 14 --full-log /scratch/n0/sockperf:tcp_round_trip:14:0:0.csv",
    ),
    (
        *("sockperf", {"protocol": "udp", "sizes": [64], "seconds": 3}, "sockperf sr -i 10.77.0.2 -p 11111"),
        "sockperf pp -i 10.77.0.2 -p 11111 -t 3 -m 64 --full-log /scratch/n0/sockperf:udp_round_trip:64:0:0.csv",
    ),
    (
        *("perftest", {"operation": "ib_write_lat", "sizes": [8]}),
        "ib_write_lat -F -d rxe0 -p 18515 -n 1000 -c RC -s 8 -U",
        "ib_write_lat -F -d rxe0 -p 18515 -n 1000 -c RC -s 8 -U 10.77.0.2",
    ),
    (
        *("perftest", {"operation": "ib_send_bw", "sizes": [64], "pin": True, "queue_pairs": 2, "events": True}),
        "taskset -c 1 ib_send_bw -F -d rxe0 -p 18515 -n 1000 -c RC -s 64 -q 2 -e",
        "taskset -c 0 ib_send_bw -F -d rxe0 -p 18515 -n 1000 -c RC -s 64 -q 2 -e 10.77.0.2",
    ),
    (
        *("perftest", {"operation": "ib_atomic_bw", "connection": "UC", "inline_bytes": 0}),
        "ib_atomic_bw -F -d rxe0 -p 18515 -n 1000 -c UC -I 0",
        "ib_atomic_bw -F -d rxe0 -p 18515 -n 1000 -c UC -I 0 10.77.0.2",
    ),
]
NETPERF = "PROTOCOL,THROUGHPUT,THROUGHPUT_UNITS,LOCAL_TRANSPORT_RETRANS,MEAN_LATENCY"
for test, size, words in (("TCP_STREAM", 512, " -m 512"), ("TCP_RR", 64, " -r 64,64"), ("UDP_RR", 0, "")):
    client = f"netperf -H 10.77.0.2 -p 12865 -t {test} -l 2 -- -k {NETPERF}{words}"
    LAUNCHES.append(("netperf", {"test": test, "sizes": [size] * bool(size)}, "netserver -D -p 12865", client))


@pytest.mark.parametrize(("kind", "options", "server", "client"), LAUNCHES)
def test_the_words_of_a_launch(kind: str, options: Mapping[str, object], server: str, client: str) -> None:
    servers, clients, launch = launched(order_of(kind, **options))
    assert (servers, clients) == ([("n1", server)], [(0, client)])
    assert launch.facts == {f"{kind}.version": "6.1" if kind == "perftest" else "Version: 6.1"}
    assert launch.node == "n0"
    (output,) = filter(None, map(read_name, launch.files))
    sizes = options.get("sizes") or [{"sockperf": 14, "perftest": 8}.get(kind, 0)]
    assert (output.kind, [output.size_bytes], output.run, output.pair) == (kind, sizes, 0, 0)


@pytest.mark.parametrize(
    ("kind", "options", "ports"),
    [
        ("nuttcp", {"runs": 2}, [5100, 5102]),
        ("iperf3", {"runs": 2}, [5201, 5203]),
        ("sockperf", {"sizes": [64, 1400]}, [11111, 11113]),
        ("perftest", {"operation": "ib_send_lat", "sizes": [8, 64]}, [18515, 18519, 18517, 18521]),
    ],
)
def test_pairs_run_together_and_their_turns_one_after_another(
    kind: str, options: Mapping[str, object], ports: list[int]
) -> None:
    """A server of perftest serves one client."""
    servers, clients, launch = launched(order_of(kind, (0, 1, 2, 3), **options))
    assert [node for node, _ in servers] == sorted(["n1", "n3"] * (len(ports) // 2))
    assert all(str(port) in line for port, (_, line) in zip(ports, servers, strict=True))
    assert sorted((step, line.split()[0] == "n2") for step, line in clients) == [
        (step, far) for step in (0, 1) for far in (False, True)
    ]
    assert len({line for _, line in clients}) == (2 if "runs" in options else 4)
    assert len(launch.files) == (9 if kind == "sockperf" else 5), "each output, each log of sockperf, and the group's"


def test_nuttcps_pairs_have_data_ports_apart() -> None:
    _, clients, _ = launched(order_of("nuttcp", (0, 1, 2, 3)))
    assert [line.split()[-2] for _, line in clients] == ["-p5301", "-p5365"]


@pytest.mark.parametrize(
    ("links", "error", "said"),
    [
        ([], UnavailableError, "eth0 of n0 has no RDMA device"),
        (LINKS[1:], UnavailableError, "eth0 of n0 has no RDMA device"),
        ([{"netdev": "eth0"}], TrialError, "cannot read the RDMA devices of n0"),
    ],
)
def test_verbs_need_the_device_of_the_paths_interface(links: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        launched(order_of("perftest", operation="ib_write_lat", sizes=[8]), Machine(links))


def test_the_size_of_an_atomic_may_be_told() -> None:
    find_workload("perftest").check(order_of("perftest", operation="ib_atomic_lat", sizes=[8]).workload)
    with pytest.raises(BadInputError, match="5 iterations"):
        find_workload("perftest").check(order_of("perftest", operation="ib_atomic_lat", iterations=4).workload)
    find_workload("perftest").check(order_of("perftest", operation="ib_atomic_lat", iterations=5).workload)


# ---- the least that its path must have carried


@pytest.mark.parametrize(
    ("kind", "options", "packets"),
    [
        ("nuttcp", {"seconds": 0.5, "runs": 3, "sizes": [8, 64]}, 20 * 0.5 * 3 * 2),
        ("qperf", {}, 40),
        ("sockperf", {"sizes": [14, 64, 1400]}, 10 * 2 * 3),
        ("sockperf", {"seconds": 3}, 30),
        ("perftest", {"operation": "ib_write_lat", "sizes": [8, 64]}, 2000),
        ("perftest", {"operation": "ib_atomic_lat"}, 1000),
        ("omb", {"sizes": [8, 64]}, 2000),
        ("omb", {"operation": "barrier"}, 1000),
    ],
)
def test_a_path_must_have_carried_what_the_program_sends(
    kind: str, options: Mapping[str, object], packets: int
) -> None:
    assert find_workload(kind).least_packets(order_of(kind, **options)) == packets


def test_ranks_of_one_node_put_nothing_on_the_path() -> None:
    assert find_workload("omb").least_packets(order_of("omb", (0, 0), operation="latency", sizes=[8])) == 0


# ---- suites of MPI benchmarks (launched in tests/e2e/test_mpi_benchmarks.py)


@pytest.mark.parametrize(
    ("suite", "sized", "words"),
    [
        (omb, True, "-m 64:64 -i 50 -x 5"),
        (omb, False, "-i 50 -x 5"),
        (imb, True, "NAME -iter 50,1000000 -iter_policy off -npmin 4 -msglen FILE"),
        (imb, False, "NAME -iter 50,1000000 -iter_policy off -npmin 4"),
        (
            *(mpi4py, True),
            "-m mpi4py.bench NAME --min-size 64 --max-size 64 --loop 50 --skip 5 --loop-large 50 --skip-large 5"
            " --loop-huge 50 --skip-huge 5",
        ),
    ],
)
def test_the_words_of_a_suite(suite: ModuleType, sized: bool, words: str) -> None:
    run = BenchmarkRun("NAME", ranks=4, sized=sized, size_bytes=64, sizes_file="FILE", iterations=50, warmup=5)
    assert " ".join(suite.TOOL.workload.arguments(run)) == words


@pytest.mark.parametrize(("sizes", "launches"), [([], 1), ([8], 1), ([8, 64], 2)])
def test_suites_count_the_iterations_of_all_launches(sizes: list[int], launches: int) -> None:
    counters = find_workload("omb").counters(order_of("omb", sizes=sizes), {})  # type: ignore[attr-defined]
    assert counters == {"tool.iterations": launches * 1100}


def test_mpi4py_takes_powers_of_two_alone() -> None:
    suite = find_workload("mpi4py")
    suite.check(order_of("mpi4py", operation="latency", sizes=[1, 2, 64]).workload)
    for size in (0, 3, 48):
        with pytest.raises(BadInputError, match=f"not {size}"):
            suite.check(order_of("mpi4py", operation="latency", sizes=[2, size]).workload)
    find_workload("omb").check(order_of("omb", operation="latency", sizes=[0, 3]).workload)


@pytest.mark.parametrize("operation", ["multi_latency", "message_rate"])
def test_halves_of_ranks_that_share_a_node_are_refused(operation: str) -> None:
    find_workload("omb").check(order_of("omb", (0, 0, 1, 1), operation=operation).workload)
    with pytest.raises(BadInputError, match="on one node"):
        find_workload("omb").check(order_of("omb", (0, 1, 0, 1), operation=operation).workload)
    find_workload("omb").check(order_of("omb", (0, 1, 0, 1), operation="allreduce").workload)


def test_a_mean_of_0_is_no_sample() -> None:
    zero = (DATA / "written-omb-7.4-barrier.txt").read_bytes().replace(b"3.05", b"0.00")
    with pytest.raises(ForeignFileError, match=r"OMB prints a mean of 0.00 for barrier"):
        find_workload("omb").samples(zero)  # type: ignore[attr-defined]


# ---- what an output must be of


ENDED = Finished(("group",), 0, b"", b"", 1)
TOGETHER = b'[{"stdout": "a", "step": 0, "began_ns": 0, "ended_ns": 100, "exit_status": 0}]'


@pytest.mark.parametrize(
    ("operation", "size", "said"),
    [("ib_send_bw", 16384, ""), ("ib_send_bw", 64, "64 bytes was asked for"), ("ib_write_bw", 16384, "ib_write_bw of")],
)
def test_an_output_of_perftest_is_of_what_was_asked(operation: str, size: int, said: str) -> None:
    order = order_of("perftest", operation=operation, sizes=[size])
    name = str(OutputName("perftest", operation, size, 0, 0))
    files = {LOG: TOGETHER, "note": b"", name: (DATA / "perftest-4.5-ib_send_bw.txt").read_bytes()}
    if not said:
        find_workload("perftest").verify(order, ENDED, files)
        return
    with pytest.raises(TrialError, match=said):
        find_workload("perftest").verify(order, ENDED, files)


@pytest.mark.parametrize(
    ("operation", "size", "said"),
    [("barrier", 0, ""), ("barrier", 8, r"asked for \('barrier', 8\)"), ("bcast", 0, r"holds \[\('barrier', 0\)\]")],
)
def test_an_output_of_omb_is_of_what_was_asked(operation: str, size: int, said: str) -> None:
    order = order_of("omb", operation=operation)
    name = str(OutputName("omb", operation, size, 0, 0))
    files = {"note": b"", name: (DATA / "written-omb-7.4-barrier.txt").read_bytes()}
    if not said:
        find_workload("omb").verify(order, ENDED, files)
        return
    with pytest.raises(TrialError, match=said):
        find_workload("omb").verify(order, ENDED, files)


@pytest.mark.parametrize("lost", ["dropped", "duplicated", "out-of-order"])
def test_a_message_lost_over_tcp_makes_a_trial_invalid(lost: str) -> None:
    whole = (DATA / "sockperf-3.7-pp.txt").read_bytes()
    files = {LOG: TOGETHER, "sockperf.printed.64.0": whole}
    sockperf = find_workload("sockperf")
    sockperf.verify(order_of("sockperf"), ENDED, files)
    files["sockperf.printed.64.0"] = whole.replace(
        b"%s messages = 0" % lost.encode(), b"%s messages = 2" % lost.encode()
    )
    sockperf.verify(order_of("sockperf", protocol="udp"), ENDED, files)
    with pytest.raises(TrialError, match="2 messages over TCP"):
        sockperf.verify(order_of("sockperf"), ENDED, files)


def test_counters_of_sockperf_are_of_all_its_clients() -> None:
    whole = (DATA / "sockperf-3.7-pp.txt").read_bytes()
    files = {
        f"sockperf.printed.64.{pair}": whole.replace(b"dropped messages = 0", b"dropped messages = 3")
        for pair in (0, 1)
    }
    counters = find_workload("sockperf").counters(order_of("sockperf"), files)  # type: ignore[attr-defined]
    assert counters == {"tool.lost_datagrams": 6, "tool.iterations": 2 * 26356}


def test_counters_of_streams_are_fairness_the_line_rate_and_what_was_told() -> None:
    def output(rate: float) -> bytes:
        return b"megabytes=1 real_seconds=1 rate_Mbps=%f tx_cpu=1 rx_cpu=1 drop=3 pkt=9 data_loss=0\n" % rate

    rates = {(0, 0): 100.0, (0, 1): 300.0, (1, 0): 200.0, (1, 1): 250.0}
    files = {str(OutputName("nuttcp", "udp_stream", 0, run, pair)): output(rates[run, pair]) for run, pair in rates}
    files |= {"note": b"", str(OutputName("iperf3", "udp_stream", 0, 0, 0)): b"of another program"}
    order = order_of("nuttcp", (0, 1, 2, 3), protocol="udp", runs=2, line_rate_mbit=1000)
    counters = find_workload("nuttcp").counters(order, files)  # type: ignore[attr-defined]
    # (100 + 300)^2 / (2 * (100^2 + 300^2)) = 0.8, and the best turn carried 450 of 1000.
    assert counters == {"tool.lost_datagrams": 12, "tool.fairness_ppm": 800_000, "tool.line_rate_ppm": 450_000}
    alone = {str(OutputName("nuttcp", "udp_stream", 0, 0, 0)): output(100)}
    for lost in (3, 0):
        told = {name: output.replace(b"drop=3", b"drop=%d" % lost) for name, output in alone.items()}
        counters = find_workload("nuttcp").counters(order_of("nuttcp", protocol="udp"), told)  # type: ignore[attr-defined]
        assert counters == {"tool.lost_datagrams": lost}


def test_counters_of_netperf_are_retransmits_where_the_kernel_counts_them() -> None:
    workload = find_workload("netperf")
    told = {"tcp_stream": {"tool.retransmits": 14}, "tcp_rr": {"tool.retransmits": 0}, "udp_rr": {}}
    for test, counters in told.items():
        name = str(OutputName("netperf", "w", 0, 0, 0))
        files = {name: (DATA / f"netperf-2.7.0-{test}.txt").read_bytes()}
        assert workload.counters(order_of("netperf", test=test.upper()), files) == counters  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runs": 1001}, "at most 1000"),
        ({"streams": 0}, "at least 1"),
        ({"rate_mbit": -1}, "at least 1"),
        ({"line_rate_mbit": 0}, "positive number"),
        ({"seconds": True}, "a whole number"),
        ({"seconds": float("inf")}, "a whole number"),
    ],
)
def test_the_bounds_of_streams(options: Mapping[str, object], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        find_workload("iperf3").check(order_of("iperf3", **options).workload)


def test_the_bounds_themselves_are_taken() -> None:
    for options in ({"runs": 1000}, {"streams": 1}, {"seconds": 1}, {"line_rate_mbit": 1}, {"rate_mbit": 0}):
        find_workload("iperf3").check(order_of("iperf3", **options).workload)
    find_workload("nuttcp").check(order_of("nuttcp", seconds=0.1).workload)
    find_workload("sockperf").check(order_of("sockperf", seconds=1, sizes=[14]).workload)
    with pytest.raises(BadInputError, match="rates of bytes"):
        find_workload("netperf").check(order_of("netperf", test="TCP_RR", line_rate_mbit=1000).workload)
    with pytest.raises(BadInputError, match="1 second"):
        find_workload("sockperf").check(order_of("sockperf", seconds=0).workload)
