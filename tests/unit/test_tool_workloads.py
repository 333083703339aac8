"""Studies that need features foreign programs lack; the group; rates and figures."""

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearmetal.errors import BadInputError, ForeignFileError, TrialError
from nearmetal.paths.path import Endpoint
from nearmetal.process import Finished
from nearmetal.results.shown import shown_for
from nearmetal.stats.equivalence import Better
from nearmetal.study.order import WorkloadOrder
from nearmetal.workloads import program_group, program_group_run
from nearmetal.workloads.figures import UNITS, jain
from nearmetal.workloads.pairs import Pair, check_clients
from nearmetal.workloads.samples import decode_tools
from nearmetal.workloads.streams import OutputName, PairWorkload, StreamOptions
from nearmetal.workloads.table import find_workload


def asked(kind: str, placement: tuple[int, ...] = (0, 1), **options: object) -> WorkloadOrder:
    base = {"operation": "w", "sizes": [], "iterations": 1000, "warmup": 100}
    return WorkloadOrder("w", kind, {**base, **options}, placement)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (asked("nuttcp", second=1), "no option 'second'"),
        *((asked(kind, (0, 1, 2)), "pairs of ranks, not 3") for kind in ("nuttcp", "sockperf", "perftest")),
        (asked("iperf3", protocol="sctp"), "one of tcp, udp"),
        (asked("iperf3", seconds=0), "a whole number of at least 1"),
        (asked("iperf3", seconds=0.5), "a whole number of at least 1"),
        (asked("nuttcp", seconds=0.01), "a number of at least 0.1"),
        (asked("nuttcp", runs=0), "at least 1"),
        (asked("nuttcp", test="TCP_RR"), "no option 'test'"),
        (asked("qperf", streams=2), "no option 'streams'"),
        (asked("sockperf", sizes=[8]), "14 bytes"),
        (asked("netperf", test="FTP"), "TCP_RR"),
        (asked("qperf", test="rc_lat"), "tcp_lat"),
        (asked("perftest", operation="ib_fly_lat", sizes=[8]), "ib_write_lat"),
        (asked("perftest", operation="ib_write_lat"), "needs `sizes`"),
        (asked("perftest", operation="ib_atomic_lat", sizes=[64]), "8 bytes"),
        (asked("command"), "needs `argv`"),
        (asked("command", argv=["x"], figure="regex", pattern="no group"), "exactly one group"),
        (asked("command", argv=["x"], figure="regex", pattern="(["), "is not a regular expression"),
        (asked("command", argv=["x"], figure="json"), "needs `path`"),
        (asked("command", argv=["x"], unit="furlong"), "not a unit"),
        (asked("command", argv=["x"], unit="MB/s"), "wall clock gives a time"),
        (asked("command", argv=["x"], env=["A B=1"]), "NAME=value"),
        (asked("command", argv=["x"], files=["../in=text"]), "NAME=text"),
        (asked("command", argv=["x"], files=["no text"]), "NAME=text"),
        (asked("command", argv=["x"], mpi="usr"), "directory of an MPI"),
        (asked("command", argv=["x"], needs="lmp"), "is a list"),
    ],
)
def test_impossible_workloads_are_refused_before_anything_starts(workload: WorkloadOrder, message: str) -> None:
    kind = find_workload(workload.kind)
    with pytest.raises(BadInputError) as raised:
        kind.check(workload)
    assert message in f"{raised.value.message} {raised.value.hint}"


def test_a_group_runs_a_step_together_and_steps_in_turn(tmp_path: Path) -> None:
    say = (sys.executable, "-c", "import time; print(time.monotonic_ns())")
    commands = [program_group.Command("", say, f"out{i}", step=i // 2) for i in range(4)]
    assert program_group_run.main(["no-agent", str(tmp_path), "600", *(one.to_json() for one in commands)]) == 0
    ran = program_group.read_log((tmp_path / program_group.LOG).read_bytes())
    assert [one.step for one in ran] == [0, 0, 1, 1]
    assert max(one.ended_ns for one in ran[:2]) <= min(one.began_ns for one in ran[2:])
    assert all(int((tmp_path / f"out{i}").read_text()) > 0 for i in range(4))


def test_a_group_reports_the_first_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = program_group.Command("", (sys.executable, "-c", "import sys; sys.exit('broken')"), "out")
    hangs = program_group.Command("", ("sleep", "1234"), "out")
    lacks = program_group.Command("", ("/no/such/program",), "out")
    killed = program_group.Command("", ("sh", "-c", "kill -9 $$"), "out")
    unnamed = program_group.Command("", ("sh", "-c", "kill -40 $$"), "out")  # only the kernel's own signals have names
    for command, message in (
        (bad, "broken"),
        (hangs, "did not end within 0.5 s"),
        (lacks, "No such file or directory"),
        (killed, "on its node: sh was ended by SIGKILL:\n  it printed nothing"),
        (unnamed, "sh was ended by signal 40"),
    ):
        late = command is hangs
        argv = ["no-agent", str(tmp_path), "0.5" if late else "600", command.to_json()]
        assert program_group_run.main(argv) == (program_group_run.LATE if late else 1)
        assert message in capfd.readouterr().err
    assert not (tmp_path / program_group.LOG).exists()


def test_a_program_that_hangs_is_reported_by_what_it_said_before_it_was_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """mpiexec of MPICH prints many lines of its own when it is ended, and a complaint keeps the last fifteen."""
    noise = "trap 'echo cleaning up; echo cleaning up >&2; exit 1' TERM"
    hangs = program_group.Command("", ("sh", "-c", f"{noise}; echo no input.dat >&2; sleep 1234 & wait"), "out")
    assert program_group_run.main(["no-agent", str(tmp_path), "1", hangs.to_json()]) == program_group_run.LATE
    said = capfd.readouterr().err
    assert "no input.dat" in said
    assert "cleaning up" not in said


def test_a_group_needs_no_newer_python_and_nothing_of_this_package() -> None:
    tree = ast.parse(Path(program_group_run.__file__).read_text(), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names - {"__future__", "dataclasses"}


@pytest.mark.parametrize(("streams", "limit"), [(1, "10000000"), (4, "2500000")])
def test_a_rate_of_iperf3_is_that_of_all_its_streams(streams: int, limit: str) -> None:
    """As nuttcp's: iperf3 itself limits each, so two streams at 10 Mbit/s brought 20."""
    client, server = Endpoint("n0", "eth0", "10.77.0.1"), Endpoint("n1", "eth0", "10.77.0.2")
    options = StreamOptions("tcp_stream", 2, 1, (0,), streams=streams, rate_mbit=10)
    workload = find_workload("iperf3")
    assert isinstance(workload, PairWorkload)
    argv = list(workload.client(Pair(0, client, server, 5201), 0, options))
    assert argv[argv.index("-b") + 1] == limit


def test_a_terminated_group_leaves_none_of_its_programs(tmp_path: Path) -> None:
    """The guardian on a far machine terminates it when the connection is lost."""
    waits = program_group.Command("", ("sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 1234"), "out")
    argv = [sys.executable, program_group_run.__file__, "no-agent", str(tmp_path), "600", waits.to_json()]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as started:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert started.poll() is None
            time.sleep(0.02)
        started.terminate()
        assert started.wait(600) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 600
    while process_name(int((tmp_path / "pid").read_text())) == "sh":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_group_notices_a_signal_that_no_wait_was_interrupted_by(tmp_path: Path) -> None:
    """One in twenty was not handled before the programs ended: it came just before the wait for them began."""
    ends = program_group.Command(
        "", ("sh", "-c", f"touch {tmp_path}/on; until [ -e {tmp_path}/go ]; do sleep 0.02; done"), "out"
    )
    program = (
        "import os, pathlib, signal, threading, time\n"
        "from nearmetal.workloads import program_group_run\n"
        f"on, go = (pathlib.Path({str(tmp_path)!r}, name) for name in ('on', 'go'))\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('handled', flush=True), go.touch()))\n"
        "def elsewhere():\n"  # a signal of another thread interrupts no wait of the main thread
        "    while not on.exists():\n"
        "        time.sleep(0.02)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "threading.Thread(target=elsewhere).start()\n"
        f"raise SystemExit(program_group_run.main(['no-agent', {str(tmp_path)!r}, '600', {ends.to_json()!r}]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"handled\n")


def test_a_group_terminated_while_starting_a_program_ends_that_too(tmp_path: Path) -> None:
    waits = program_group.Command("", ("sleep", "1234"), "out")
    program = (
        "import os, signal, subprocess, sys, time\n"
        "from nearmetal.workloads import program_group_run\n"
        "class Told(subprocess.Popen):\n"
        "    def __init__(self, *words, **options):\n"
        "        super().__init__(*words, **options)\n"
        "        print(self.pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(1)\n"
        "subprocess.Popen = Told\n"
        "signal.signal(signal.SIGTERM, program_group_run._end_all)\n"
        f"program_group_run.main(['no-agent', {str(tmp_path)!r}, '600', {waits.to_json()!r}])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    pid = int(ended.stdout)
    deadline = time.monotonic() + 600
    try:
        while process_name(pid) == "sleep":  # it dies after the signal, not at the same moment
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() if "Z" not in Path(f"/proc/{pid}/stat").read_text() else ""
    except OSError:
        return ""


def test_overlap_of_programs() -> None:
    def ran(began: int, ended: int) -> program_group.CommandRun:
        return program_group.CommandRun("", 0, began, ended, 0)

    assert program_group.overlap([ran(0, 100), ran(10, 110)]) == pytest.approx(90 / 110)
    assert program_group.overlap([ran(0, 10), ran(20, 30)]) == 0


@pytest.mark.parametrize(("later_ns", "said"), [(17, ""), (18, "overlapped for only 69 % of the time; at least 70 %")])
def test_pairs_that_hardly_ran_together_are_refused(later_ns: int, said: str) -> None:
    runs = ({"stdout": "", "step": 0, "began_ns": at, "ended_ns": at + 100, "exit_status": 0} for at in (0, later_ns))
    files = {program_group.LOG: json.dumps(list(runs)).encode()}
    refused = pytest.raises(TrialError, match=said) if said else contextlib.nullcontext()
    with refused:
        check_clients(WorkloadOrder("l", "nuttcp", {}), Finished(("group",), 0, b"", b"", 1), files)


def test_jain_index() -> None:
    assert jain([5.0, 5.0, 5.0]) == pytest.approx(1)
    assert jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_rates_of_pairs_add_up_run_by_run() -> None:
    def output_at(mbit: float) -> bytes:
        return (
            f"megabytes=1.0 real_seconds=0.10 rate_Mbps={mbit:.4f} tx_cpu=1 rx_cpu=1 retrans=0 rtt_ms=0.10\n".encode()
        )

    rates = {(0, 0): 100.0, (1, 0): 300.0, (0, 1): 200.0, (1, 1): 200.0}
    files = {str(OutputName("nuttcp", "tcp_stream", 0, run, pair)): output_at(rates[run, pair]) for run, pair in rates}
    cells = {cell.operation: cell.ns[0] for cell in decode_tools(files)}
    shown = {name: [UNITS["Mbit/s"].scale / ns for ns in found] for name, found in cells.items()}
    assert shown["tcp_stream.pair1"] == pytest.approx([100, 300])
    assert shown["tcp_stream.pair2"] == pytest.approx([200, 200])
    assert shown["tcp_stream.total"] == pytest.approx([300, 500])


def test_a_rate_of_zero_is_not_a_figure() -> None:
    with pytest.raises(ForeignFileError):
        UNITS["MB/s"].to_ns(0)


@pytest.mark.parametrize(
    ("unit", "figures"),
    [
        ("us", (0.25, 1e6)),
        ("s", (1e-6, 1e5)),
        ("Mbit/s", (0.1, 1e6)),
        ("Gflop/s", (0.01, 1e6)),
        ("Mop/s", (0.01, 1e7)),
        ("Gup/s", (1e-4, 1e3)),
        ("ns/day", (0.05, 2e4)),
        ("1/s", (110.0, 1e12)),
        ("1/min", (0.01, 7e3)),
    ],
)
def test_what_programs_report_in_a_unit_comes_back(unit: str, figures: tuple[float, ...]) -> None:
    """Every rate of molecular dynamics was out of range: 10 ns/day was kept as the time of 10^12 ns."""
    for figure in figures:
        ns = UNITS[unit].to_ns(figure)
        shown = UNITS[unit].scale / ns if UNITS[unit].rate else ns / UNITS[unit].scale
        assert shown == pytest.approx(figure, rel=1e-6)
    order = WorkloadOrder("lammps", "command", {"unit": "ns/day"}, (0, 1))
    scale = shown_for(order, "loop", 0)
    assert (scale.unit, scale.better, scale.amount) == ("ns/day", Better.LARGER, "1 simulated ns")
    assert scale.value(UNITS["ns/day"].to_ns(12.5)) == pytest.approx(12.5)
    slow = shown_for(WorkloadOrder("steps", "command", {"unit": "1/min"}, (0, 1)), "steps", 0)
    assert (slow.unit, slow.amount) == ("1/min", "10^6 of what is counted")


def test_a_rate_too_slow_for_its_unit_is_refused_with_one_that_it_has() -> None:
    """Fifty steps a second, as the time of 10^12, are beyond 63 bits of nanoseconds."""
    with pytest.raises(ForeignFileError, match="50 1/s is out of range") as caught:
        UNITS["1/s"].to_ns(50)
    assert caught.value.hint == "unit = '1/min' is for fewer than 109 a second"
    assert UNITS["1/min"].scale / UNITS["1/min"].to_ns(50 * 60) == pytest.approx(3000)
    with pytest.raises(ForeignFileError) as other:
        UNITS["s"].to_ns(1e300)
    assert other.value.hint == ""


@pytest.mark.parametrize(
    ("operation", "figure", "stored"),
    [
        ("tcp_stream", 1000.0, UNITS["Mbit/s"].to_ns(8000)),
        ("tcp_stream.total", 1000.0, UNITS["MB/s"].to_ns(1000)),
        ("tcp_round_trip", 5.0, 10_000),
        ("ib_read_lat", 5.0, 5_000),
        ("HPL [Gflop/s]", 12.5, UNITS["Gflop/s"].to_ns(12.5)),
    ],
)
def test_figures_of_foreign_operations(operation: str, figure: float, stored: int) -> None:
    shown = shown_for(asked("imported"), operation, 0)
    assert shown.value(stored) == pytest.approx(figure, rel=1e-6)
    assert (shown.better is Better.LARGER) == ("stream" in operation or "HPL" in operation)
