"""Real foreign programs measured between namespaces; each test is skipped if its program is not installed."""

import os
import shutil
from collections.abc import Iterator

import numpy as np
import pytest

from nearmetal import process
from nearmetal.errors import UnavailableError
from nearmetal.facts import counters, tenants
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads import pairs
from nearmetal.workloads.samples import decode

pytestmark = [pytest.mark.netns]


def carried_out(
    kind: str, over: str = "veth", placement: tuple[int, ...] = (0, 1), timeout_s: float = 600.0, **options: object
) -> Outcome:
    try:
        with NamespaceShell():
            pass
    except UnavailableError as error:
        pytest.skip(error.render())
    base = {"operation": kind, "sizes": [], "iterations": 1000, "warmup": 100}
    asked = WorkloadOrder("w", kind, {**base, **options}, placement)  # type: ignore[arg-type]
    return LocalHost().carry_out(Order(0, 0, PathOrder(over, over), asked, timeout_s=timeout_s), carry_out)


def valid(program: str, kind: str, **options: object) -> Outcome:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    outcome = carried_out(kind, **options)  # type: ignore[arg-type]
    assert outcome.status is TrialStatus.VALID, outcome.reason
    return outcome


def test_nuttcp_with_one_pair_gives_one_rate() -> None:
    outcome = valid("nuttcp", "nuttcp", seconds=1)
    (cell,) = decode(outcome)
    assert (cell.operation, cell.ns.shape) == ("tcp_stream", (1, 1))
    assert "tool.retransmits" not in outcome.counters, "nuttcp prints 0 retransmits in any case"
    assert "6" in str(outcome.facts["nuttcp.version"]) or "8" in str(outcome.facts["nuttcp.version"])


def test_successive_nuttcp_runs_give_one_rate_each() -> None:
    (cell,) = decode(valid("nuttcp", "nuttcp", seconds=0.2, runs=3))
    assert cell.ns.shape == (1, 3)
    assert (cell.begin_ns[0, 1:] >= cell.begin_ns[0, :-1] + cell.ns[0, :-1]).all()


def test_two_pairs_share_a_port_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "LEAST_OVERLAP", 0.0)  # a busy machine starts them one after the other
    outcome = valid("nuttcp", "nuttcp", over="bridge", placement=(0, 1, 2, 3), seconds=1, line_rate_mbit=10_000)
    first, second, total = decode(outcome)
    assert [c.operation for c in (first, second, total)] == ["tcp_stream.pair1", "tcp_stream.pair2", "tcp_stream.total"]
    # 1/duration is a rate: the sum of both is the total.
    assert 1 / int(total.ns[0, 0]) == pytest.approx(1 / int(first.ns[0, 0]) + 1 / int(second.ns[0, 0]), rel=1e-6)
    assert 500_000 <= outcome.counters["tool.fairness_ppm"] <= 1_000_000
    assert outcome.counters["tool.line_rate_ppm"] > 0


def test_iperf3_intervals_are_samples() -> None:
    (cell,) = decode(valid("iperf3", "iperf3", seconds=1))
    assert cell.ns.shape[1] >= 9
    assert (np.diff(cell.begin_ns[0]) > 0).all()


def test_sockperf_keeps_every_packet() -> None:
    small, large = decode(valid("sockperf", "sockperf", seconds=1, sizes=[14, 1400]))
    assert (small.message_bytes, large.message_bytes) == (14, 1400)
    assert small.ns.shape[1] > 100
    assert (small.ns > 0).all()


def _of_this_process(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield what `of_each_process` does of this process and all that it has started: other tests have relays, too."""
    found = dict(process.of_each_process(file))
    parents = {pid: int(stat.rpartition(b") ")[2].split()[1]) for pid, stat in found.items()}
    for pid, stat in found.items():
        above = pid
        while above not in {os.getpid(), 0}:
            above = parents.get(above, 0)
        if above:
            yield pid, stat


def test_the_servers_and_relays_of_a_trial_do_not_count_as_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[dict[str, int]] = []
    look = tenants.look_for_tenants
    monkeypatch.setattr(tenants, "look_for_tenants", lambda shell: looks.append(look(shell)) or looks[-1])
    monkeypatch.setattr(tenants, "of_each_process", _of_this_process)
    monkeypatch.setattr(tenants, "_NAMED", 1000)
    counters = valid("sockperf", "sockperf", over="tap", seconds=1, sizes=[14]).counters
    seen = [key.rpartition(" ")[2] for key in looks[-1]]
    assert all(any(name.startswith(of_it) for name in seen) for of_it in ("sockperf", "nmrelay"))
    assert not [name for name in counters if name.startswith(("others.sockperf", "others.nmrelay"))]


def test_other_programs_and_processors_are_watched_over_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the counters takes 100 ms: including both readings made a short launch's share a fifth too large."""
    done: list[str] = []
    look, read = tenants.look_for_tenants, counters.read_counters
    monkeypatch.setattr(tenants, "look_for_tenants", lambda shell: done.append("look") or look(shell))
    monkeypatch.setattr(counters, "read_counters", lambda shell, nodes: done.append("read") or read(shell, nodes))
    valid("sh", "command", argv=["sh", "-c", "echo 1"], figure="regex", pattern=r"(\d)", unit="us", packets=0)
    assert done == ["look", *["look", "read"] * 2]


def test_netperf_streams() -> None:
    (cell,) = decode(valid("netperf", "netperf", seconds=1, test="TCP_STREAM"))
    assert (cell.operation, cell.ns.shape) == ("tcp_stream", (1, 1))


@pytest.mark.parametrize("test", ["TCP_RR", "UDP_RR"])
def test_netperf_round_trips(test: str) -> None:
    (cell,) = decode(valid("netperf", "netperf", seconds=1, test=test, runs=2, sizes=[64]))
    assert (cell.operation, cell.message_bytes) == (f"{test[:3].lower()}_round_trip", 64)
    assert cell.ns.size == 2
    assert (cell.ns < 10_000_000).all()


def test_four_netperf_pairs_run_at_once() -> None:
    outcome = valid("netperf", "netperf", placement=(0, 1) * 4, seconds=1, test="TCP_STREAM", line_rate_mbit=100_000)
    assert [cell.operation for cell in decode(outcome)] == [
        *(f"tcp_stream.pair{number}" for number in range(1, 5)),
        "tcp_stream.total",
    ]
    assert 0 < outcome.counters["tool.fairness_ppm"] <= 1_000_000


def test_qperf_latency() -> None:
    (cell,) = decode(valid("qperf", "qperf", seconds=1, test="tcp_lat", sizes=[64]))
    assert (cell.operation, cell.message_bytes, cell.ns.shape) == ("tcp_one_way", 64, (1, 1))


def test_a_tool_on_a_path_without_a_network_is_refused() -> None:
    outcome = carried_out("nuttcp", over="shm")
    assert outcome.status is TrialStatus.FAILED
    assert "needs a network" in outcome.reason


def test_perftest_without_a_device_is_refused() -> None:
    outcome = carried_out("perftest", operation="ib_write_lat", sizes=[64])
    assert "no RDMA device" in outcome.reason or "not installed" in outcome.reason


def test_command_reads_its_figures_with_a_pattern() -> None:
    outcome = valid(
        "ping",
        "command",
        operation="ping",
        argv=["ping", "-c", "5", "-i", "0.01", "{peer}"],
        figure="regex",
        pattern=r"time=([\d.]+) ms",
        unit="ms",
        expect=" 0% packet loss",
        packets=5,
    )
    (cell,) = decode(outcome)
    assert (cell.operation, cell.ns.shape) == ("ping", (1, 5))


def test_command_takes_stdin_environment_and_status() -> None:
    script = 'read line; echo "{\\"a\\": [{\\"x\\": $line}, {\\"x\\": $MORE}]}"; exit 3'
    outcome = carried_out(
        "command",
        operation="made",
        argv=["sh", "-c", script],
        stdin="5\n",
        env=["MORE=6"],
        accept=[3],
        figure="json",
        path="a.*.x",
        unit="us",
    )
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    assert cell.ns.tolist() == [[5000, 6000]]


def test_a_command_that_takes_too_long_is_told_as_such_and_tried_again() -> None:
    """The group ends it before the launch's own time is up: it was a failure, and `accept` the advice."""
    outcome = carried_out("command", over="shm", timeout_s=1.5, argv=["sleep", "1234"])
    assert outcome.status is TrialStatus.FAILED
    assert outcome.timed_out
    assert "sleep did not end within" in outcome.reason
    assert "trials.timeout" in outcome.hint


def test_command_finds_the_files_of_the_study() -> None:
    outcome = carried_out(
        "command",
        operation="reads",
        argv=["sh", "-c", "cd {scratch} && cat input.txt"],
        files=["input.txt=a = 7\n"],
        figure="regex",
        pattern=r"a = (\d+)",
        unit="us",
    )
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert decode(outcome)[0].ns.tolist() == [[7000]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"argv": ["false"]}, "ended with status 1"),
        ({"argv": ["echo", "wrong"], "expect": "SUCCESSFUL"}, "verification failed"),
        ({"argv": ["echo", "FAILED"], "forbid": "FAILED"}, "verification failed"),
        ({"argv": ["echo", "none"], "figure": "regex", "pattern": r"t=(\d+)"}, "0 figures"),
        ({"argv": ["no-such-program-here"]}, "cannot start"),
        ({"argv": ["sh"], "needs": ["sh", "no-such-program-here"]}, "no-such-program-here is not on the PATH of n0"),
    ],
)
def test_a_command_that_fails_fails_the_trial(options: dict[str, object], message: str) -> None:
    outcome = carried_out("command", operation="c", **options)
    assert outcome.status is TrialStatus.FAILED
    assert message in outcome.reason
