"""A cluster of the lab: each node is a machine, ranks poll at the same time, and the same seed gives the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import labs
from nearmetal.facts.ftrace import read_trace
from nearmetal.facts.inventory import COMPUTERS, PROCESSORS
from nearmetal.facts.waterfall import Wire, round_trips
from nearmetal.hosts.lab.machine import MANAGEMENT, STANDING_PATHS
from nearmetal.knobs.hold import KNOB_END
from nearmetal.paths.guests import GUEST_PATHS
from nearmetal.results.waterfalls import windows_of
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder
from nearmetal.workloads.command import OUTPUT
from nearmetal.workloads.sample_file import read_sample_file
from nearmetal.workloads.samples import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.lab.lab import LabHost

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("lab"), pytest.mark.timeout(1800)]

ENGINE: dict[str, Scalar | list[Scalar]] = {"operation": "latency", "sizes": [64], "iterations": 60, "warmup": 10}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHost]:
    with labs.opened("base", nodes=3) as host:
        yield host


@pytest.fixture(scope="module")
def known(lab: LabHost) -> labs.CachedLab:
    return labs.CachedLab(lab)


def order(path: str, *, seed: int = 1, mpi: str = "openmpi", operation: str = "latency", **options: Scalar) -> Order:
    placement = (0, 1) if operation == "latency" else (0, 1, 2)
    workload = WorkloadOrder(operation, "engine", {**ENGINE, "operation": operation}, placement=placement)
    return Order(0, 0, PathOrder(path, path, dict(options)), workload, seed=seed, mpi=mpi, timeout_s=60.0)


def median_ns(outcome: Outcome) -> float:
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    return float(np.median(cell.ns[list(cell.value_ranks)][:, cell.warmup :]))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(lab: LabHost, known: labs.CachedLab) -> None:
    (first,) = known.outcomes(order("vf", seed=5, rx_usecs=0))
    again, other = labs.carry_out(lab, *(order("vf", seed=seed, rx_usecs=0) for seed in (5, 6)))
    assert 20_000 < median_ns(first) < 100_000  # a time slice on a shared processor would be 4 ms
    assert first == again
    assert first.files["samples"] != other.files["samples"]
    assert first.facts[COMPUTERS] == 2
    assert first.facts[PROCESSORS] == 1
    assert min(first.proof.moved_packets.values()) > 100
    assert first.proof.stray_packets[f"n0.{MANAGEMENT}"] > 10  # what started the ranks


@pytest.mark.parametrize("path", ["vf", *(["bridge", "macvlan", "tap"] if labs.WHOLE else [])])
def test_every_path_is_built_on_both_machines(known: labs.CachedLab, path: str) -> None:
    (outcome,) = known.outcomes(order(path, seed=5, rx_usecs=0))
    assert 20_000 < median_ns(outcome) < 200_000
    assert {name.partition(".")[0] for name in outcome.proof.moved_packets} == {"n0", "n1"}
    assert all(count > 100 for count in outcome.proof.moved_packets.values())


@labs.LONG
def test_three_nodes_reduce(lab: LabHost) -> None:
    (outcome,) = labs.carry_out(lab, order("native", operation="allreduce"))
    assert outcome.facts["lab.nodes"] == 3
    assert median_ns(outcome) > 0


@labs.LONG
def test_the_wire_has_the_requested_delay(known: labs.CachedLab) -> None:
    near, far = known.outcomes(*(order("native", seed=5, rx_usecs=0, **delay) for delay in ({}, {"wire_delay_us": 50})))
    assert far.facts["lab.wire_delay_us"] == 50
    assert median_ns(far) - median_ns(near) > 2 * 40_000  # there and back, minus the wire's own delay


@labs.LONG
def test_a_wire_loses_the_requested_share_of_frames(lab: LabHost) -> None:
    (outcome,) = labs.carry_out(lab, order("native", wire_loss_percent=3))
    assert median_ns(outcome) > 20_000
    assert outcome.facts["lab.wire_loss_percent"] == 3
    assert sum(outcome.counters[f"tcp.{node}.RetransSegs"] for node in ("n0", "n1")) > 0


def test_a_killed_machine_ends_its_trial_and_is_named(lab: LabHost) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(labs.carry_out(lab, order("native"))))
    thread.start()
    while len(lab.running_pids) < 2:
        pass
    os.kill(max(lab.running_pids), signal.SIGKILL)
    thread.join()
    assert outcomes[0].status is TrialStatus.FAILED
    assert "status -9" in outcomes[0].reason
    assert lab.running_pids == []


@labs.LONG
def test_a_program_killed_for_its_memory_is_reported_as_such(lab: LabHost) -> None:
    argv = ["python3", "-c", "held = [bytearray(1 << 24) for _ in range(1000)]"]
    greedy = WorkloadOrder("greedy", "command", {"argv": list[Scalar](argv)}, placement=(1, 0))
    (outcome,) = labs.carry_out(lab, replace(order("native"), workload=greedy))
    assert outcome.status is TrialStatus.FAILED
    assert "on its node: python3 was ended by SIGKILL" in outcome.reason


@pytest.fixture(scope="module")
def kvm() -> Iterator[LabHost]:
    with labs.opened("kvm", nodes=2) as host:
        yield host


@pytest.fixture(scope="module")
def bare_ns(kvm: LabHost) -> float:
    return median_ns(*labs.carry_out(kvm, order("native", rx_usecs=0)))


@labs.LONG
@pytest.mark.parametrize("path", [path.kind for path in GUEST_PATHS])
def test_ranks_poll_in_a_guest_on_every_machine(kvm: LabHost, bare_ns: float, path: str) -> None:
    (outcome,) = labs.carry_out(kvm, order(path, rx_usecs=0))
    assert bare_ns < median_ns(outcome) < 20 * bare_ns  # far below the scheduler's time slices
    assert set(outcome.proof.moved_packets) == {"g0.eth0", "g1.eth0"}
    assert all(count > 100 for count in outcome.proof.moved_packets.values())
    # The launcher's traffic is on the management NICs, and commands to machines are on their ports.
    assert min(outcome.proof.stray_packets[f"{node}.{MANAGEMENT}"] for node in ("g0", "g1", "n0", "n1")) > 10
    assert outcome.facts[COMPUTERS] == 2
    assert outcome.counters["kvm.exits"] > 100
    assert outcome.facts["lab.standing_guest"] == (path in STANDING_PATHS)


@labs.LONG
def test_one_end_may_be_a_bare_peer(kvm: LabHost, bare_ns: float) -> None:
    (outcome,) = labs.carry_out(kvm, order("vhost", ends="one", rx_usecs=0))
    assert median_ns(outcome) > bare_ns
    assert set(outcome.proof.moved_packets) == {"n0.eth0", "g1.eth0"}
    assert not outcome.facts["lab.standing_guest"]


@labs.LONG
def test_a_guest_from_the_snapshot_measures_the_same_as_one_booted_in_its_trial(kvm: LabHost) -> None:
    (standing,) = labs.carry_out(kvm, order("vhost", rx_usecs=0))
    with labs.opened("kvm", nodes=2, standing_guests=False) as lab:
        (fresh,) = labs.carry_out(lab, order("vhost", rx_usecs=0))
    assert [one.facts["lab.standing_guest"] for one in (standing, fresh)] == [True, False]
    assert abs(median_ns(standing) / median_ns(fresh) - 1) < 0.03  # launches differ by 1 %
    assert [len(one.proof.moved_packets) for one in (standing, fresh)] == [2, 2]


@labs.LONG
def test_guests_are_reproducible_to_the_byte(kvm: LabHost) -> None:
    first, again = labs.carry_out(kvm, *[order("guest-vf", seed=5, rx_usecs=0)] * 2)
    assert first.status is TrialStatus.VALID, first.reason
    assert first == again


@labs.LONG
def test_a_launch_without_messages_leaves_the_measured_path_alone(kvm: LabHost) -> None:
    """Everything that starts, watches and ends ranks uses the management network: the path carries no frame at all."""
    hello = WorkloadOrder("hello", "command", {"argv": ["hostname"], "mpi": True}, placement=(0, 1))
    (outcome,) = labs.carry_out(kvm, replace(order("guest-vf"), workload=hello))
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert sorted(outcome.files[OUTPUT].split()) == [b"g0", b"g1"]
    assert set(outcome.proof.moved_packets.values()) == {0}
    assert min(outcome.proof.stray_packets[f"g{node}.{MANAGEMENT}"] for node in (0, 1)) > 10


@pytest.fixture(scope="module")
def life(lab: LabHost) -> list[Outcome]:
    """Successive launches on the same machines: with moderation, without it and traced, and with MPICH."""
    moderated = replace(order("native"), knobs={"nic.rx-usecs": 3})
    traced = replace(moderated.workload, options={**ENGINE, "waterfall": True})
    plain = replace(moderated, knobs={"nic.rx-usecs": 0})
    return list(
        lab.carry_out_together(
            [moderated, replace(plain, workload=traced, seed=2), replace(plain, mpi="mpich", seed=3)]
        )
    )


def test_successive_launches_run_on_machines_that_stay_up(life: list[Outcome]) -> None:
    assert [outcome.status for outcome in life] == [TrialStatus.VALID] * 3, [outcome.reason for outcome in life]
    assert [outcome.facts["lab.launch"] for outcome in life] == [1, 2, 3]
    ends = ["restored", "kept for the next launch", "discarded with the machine"]  # the last two have one setting
    assert [outcome.facts.get(KNOB_END) for outcome in life] == ends
    assert [outcome.facts.get("knob.was.nic.rx-usecs") for outcome in life] == ["3", "3", "3"]
    assert [outcome.facts.get("knob.nic.rx-usecs") for outcome in life] == ["3", "0", "0"]
    # Each launch counts its own packets.
    assert all(100 < outcome.proof.moved_packets["n0.eth0"] < 2000 for outcome in life)


def test_mpich_polls_on_separate_processors_and_starts_at_once(life: list[Outcome]) -> None:
    assert life[2].facts["mpi.flavour"] == "mpich"
    assert median_ns(life[2]) < 200_000
    # In virtual time: the kernel took 440 ms to load modules when UCX asked for them during a trial.
    assert life[2].elapsed_ns < 300_000_000


def test_open_mpi_starts_and_ends_without_waiting_for_timers(life: list[Outcome]) -> None:
    # In virtual time: a first connection waited 20 ms for a look at events, an end 40 ms for an acknowledgement.
    assert life[0].facts["mpi.flavour"] == "openmpi"
    assert life[0].elapsed_ns < 200_000_000


def test_both_machines_of_a_message_are_traced(life: list[Outcome]) -> None:
    outcome = life[1]
    assert {event.machine for event in read_trace(outcome.files)} == {"n0", "n1"}
    windows = windows_of(read_sample_file(outcome.files["samples"]).cells[0])
    trips = round_trips(read_trace(outcome.files), windows, message_bytes=64, shaped_wire=False, wire=Wire(2000, 1000))
    assert max(trip.residue for trip in trips) < 0.05
    # 2 us, and a frame with an 8-byte MPI header on a line of 1 Gbit/s
    assert {leg["wire"] for trip in trips for leg in (trip.there, trip.back)} == {3408}


SHELL = [sys.executable, "-m", "nearmetal", "lab", "shell"]


@labs.LONG
@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_person_can_type_at_any_node_at_any_time(lab: LabHost, node: str) -> None:
    """Keys arrive at prompts while the machines are idle; one that woke a machine too early once ended them all."""
    lab.prepare()
    lines = ["hostname", *(f"echo $(({number} * 7))" for number in range(1, 9)), "exit 3"]
    with subprocess.Popen([*SHELL, node, "--path", "vf"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdin
        assert shell.stdout
        output, turn = b"", b""
        for line in lines:
            while not turn.endswith(b"# ") and (more := os.read(shell.stdout.fileno(), 4096)):
                turn += more
            output, turn = output + turn, b""
            shell.stdin.write(f"{line}\n".encode())
            shell.stdin.flush()
        output += shell.stdout.read()
    words = output.decode().splitlines()
    assert shell.returncode == 3
    assert words[0].startswith("n0 eth")
    assert {node, *(str(number * 7) for number in range(1, 9))} <= set(words)


@labs.LONG
def test_a_command_on_a_guest_behaves_like_a_local_one(kvm: LabHost) -> None:
    kvm.prepare()
    command = [*SHELL, "g1", "--path", "vhost", "--", "sh", "-c", "hostname; echo why >&2; exit 3"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert (ended.returncode, ended.stdout) == (3, "g1\n")
    assert ended.stderr.endswith("why\n")


_FILES_ASKED_FOR = """requests() {
    while read -r line; do
        case $line in *virtio0-requests*) set -- $line; echo "$2" ;; esac
    done </proc/interrupts
}
mpirun.openmpi --version >/run/first
requests
mpirun.openmpi --version >/run/second
requests
"""


@labs.LONG
def test_a_guest_from_the_snapshot_starts_mpi_from_its_own_memory(kvm: LabHost) -> None:
    """Each file of Open MPI would cost 3 requests over 9p; only the shell's search for the program takes a few."""
    kvm.prepare()
    command = [*SHELL, "g1", "--path", "guest-vf", "--", "sh", "-c", _FILES_ASKED_FOR]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    before, after = map(int, ended.stdout.split())
    assert after - before <= 20
