"""What every host must do, however it carries out trials."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import far_machines
import labs
import slurm
from nearmetal.errors import UnavailableError
from nearmetal.hosts.fake import FakeHost
from nearmetal.hosts.host import Host, Shell
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.run.preflight import rehearse
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.mpi.table import find_mpi
from nearmetal.workloads.samples import decode
from tests.mpi_bench import sleeping


@contextlib.contextmanager
def _fake(_: Path) -> Iterator[Host]:
    yield FakeHost({"fail.broken": "it was asked to fail"})


@contextlib.contextmanager
def _local(_: Path) -> Iterator[Host]:
    try:
        find_mpi("openmpi")
        with NamespaceShell():
            pass
    except UnavailableError as error:
        pytest.skip(error.render())
    yield LocalHost()


@contextlib.contextmanager
def _two_machines(folder: Path) -> Iterator[Host]:
    with far_machines.two_machines(folder) as far:
        yield far.host


@contextlib.contextmanager
def _slurm(folder: Path) -> Iterator[Host]:
    with slurm.host(folder) as host:
        yield host


@contextlib.contextmanager
def _lab(_: Path) -> Iterator[Host]:
    with labs.opened("base") as host:
        yield host


HOSTS = {
    "fake": (_fake, "veth"),
    "local": (_local, "veth"),
    "ssh-hypervisor": (far_machines.hypervisor, "veth"),
    "ssh-machines": (_two_machines, "declared"),
    "kubectl": (far_machines.pods, "declared"),
    "slurm": (_slurm, "declared"),
    "lab": (_lab, "native"),
}
"""Every kind of host, and a path that it can bring up."""
WITHOUT_SHELL = ("fake", "lab")


def _row(name: str) -> object:
    """Return a host as a parameter; hosts that are opened once are tested by one worker."""
    marks = [pytest.mark.lab] if name == "lab" else []
    return pytest.param(name, marks=[*marks, pytest.mark.xdist_group("lab" if name == "lab" else f"host-{name}")])


@pytest.fixture(scope="module", params=map(_row, HOSTS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Every host that works here, opened once; the others skip with their reason."""
    make, path = HOSTS[request.param]
    with make(tmp_path_factory.mktemp(request.param)) as host:
        yield host, path
        host.close()


@pytest.fixture
def host(opened: tuple[Host, str]) -> Host:
    return opened[0]


@pytest.fixture
def order(opened: tuple[Host, str]):
    def make(**changes: object) -> Order:
        options = {"operation": "latency", "sizes": [8, 1024], "iterations": 30, "warmup": 5}
        path = PathOrder(opened[1], opened[1])
        base = Order(7, 1, path, WorkloadOrder("latency", "engine", options), seed=11)  # type: ignore[arg-type]
        asked = dataclasses.replace(base, **changes)  # type: ignore[arg-type]
        if opened[0].kind == "lab":
            return asked
        waiting = dataclasses.replace(asked.workload, progress=sleeping(asked.mpi))  # leaves processors to other tests
        return dataclasses.replace(asked, workload=waiting, timeout_s=600.0)

    return make


def test_it_describes_itself(host: Host) -> None:
    assert host.kind
    assert host.label
    assert "figures" not in host.label, "it follows that word in sentences"
    assert host.slots >= 1


def measured(host: Host, wanted: Order) -> Outcome:
    """Carry out an order, and again if Open MPI crashed in MPI_Init, as a run would.

    A rank of Open MPI 5 that leaves the fence of MPI_Init late can get a message before its communicator is set up
    (https://github.com/open-mpi/ompi/issues/12495). Seen once, under srun.
    """
    outcome = host.carry_out(wanted, carry_out)
    crashed = all(word in outcome.reason for word in ("(MPI_Init+", "Segmentation fault"))
    return host.carry_out(wanted, carry_out) if crashed else outcome


def test_a_trial_gives_samples_facts_and_counters(host: Host, order) -> None:
    outcome = measured(host, order())
    assert outcome.status is TrialStatus.VALID, outcome.reason
    cells = decode(outcome)
    assert [cell.message_bytes for cell in cells] == [8, 1024]
    assert all(cell.ns.shape == (2, 35) and cell.warmup == 5 for cell in cells)
    assert all((cell.ns > 0).all() for cell in cells)
    assert outcome.facts["cpu.model"]
    assert outcome.facts["mpi.flavour"] == "openmpi"
    assert outcome.counters["sched.context_switches"] > 0
    assert min(outcome.proof.moved_packets.values()) >= 60
    assert outcome.launch_argv


def test_a_whole_fabric_is_measured_on_its_nodes(host: Host, order) -> None:
    if host.kind == "fake" or (host.kind == "lab" and not labs.WHOLE):
        pytest.skip("the fake host has no nodes; those of the lab take half a minute: `make verify-lab`")
    options = {"latency_iterations": 20, "bandwidth_bytes": 1024, "bandwidth_iterations": 3}
    outcome = measured(host, order(workload=WorkloadOrder("fabric", "fabric", options)))
    assert outcome.status is TrialStatus.VALID, outcome.reason
    latency, bandwidth = decode(outcome)
    assert (latency.operation, latency.ns.shape) == ("fabric.latency", (1, 1))
    assert (bandwidth.operation, bandwidth.ns.shape) == ("fabric.bandwidth", (1, 2))
    assert min(outcome.proof.moved_packets.values()) >= 20


def test_an_installed_mpi_benchmark_is_measured(host: Host, order) -> None:
    if host.kind in WITHOUT_SHELL:
        pytest.skip("the fake host starts no programs, and the lab's guest has no mpi4py")
    options = {"operation": "latency", "sizes": [64, 65536], "iterations": 50, "warmup": 5, "python": sys.executable}
    workload = WorkloadOrder("theirs", "mpi4py", options)
    outcome = host.carry_out(order(workload=workload), carry_out)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    small, large = decode(outcome)
    assert (small.message_bytes, large.message_bytes) == (64, 65536)
    assert min(int(small.ns[0, 0]), int(large.ns[0, 0])) > 0
    assert min(outcome.proof.moved_packets.values()) >= 2 * 50


def test_a_shell_reads_many_files_at_once(host: Host, order) -> None:
    if host.kind in WITHOUT_SHELL:
        pytest.skip("the host gives no shell")
    seen: dict[str, bytes] = {}
    contents = {"plain": b"a line\n", "odd ' name": b"no newline at the end", "empty": b"", "two": b"\n\n"}

    def body(shell: Shell, order: Order) -> Outcome:
        shell.add_node("n0")
        folder = f"{shell.scratch}/n0"
        for name, content in contents.items():
            shell.write(f"{folder}/{name}", content, node="n0")
        paths = [f"{folder}/{name}" for name in (*contents, "missing")]
        found = shell.read_all([*paths, "/proc/net/dev"], node="n0")
        seen.update({path.removeprefix(f"{folder}/"): content for path, content in found.items()})
        return Outcome(TrialStatus.VALID)

    host.carry_out(order(), body)
    assert b"lo:" in seen.pop("/proc/net/dev")
    assert seen == contents


def test_a_trial_that_cannot_be_carried_out_is_an_outcome_not_an_error(host: Host, order) -> None:
    broken = order(path=PathOrder("broken", "no-such-path"))
    outcome = host.carry_out(broken, carry_out)
    assert outcome.status is TrialStatus.FAILED
    assert outcome.reason
    assert outcome.hint
    assert not outcome.files


def test_a_rehearsal_passes_if_trials_run_and_names_everything_missing(host: Host, order) -> None:
    if host.kind in WITHOUT_SHELL:
        pytest.skip("the fake host has nothing to try, and a rehearsal in the lab takes as long as a trial")
    good = order()
    rehearse("study", [good], host, lambda _: None)
    options = {"operation": "latency", "sizes": [64], "iterations": 50, "warmup": 5, "python": "/no/such/python"}
    tool = WorkloadOrder("theirs", "mpi4py", options)
    wrong = [
        order(trial=8, knobs={"nic.rx-usecs": "4"}, setting="absent"),
        order(trial=9, workload=tool),
        order(trial=10, path=PathOrder("lost", "no-such-path")),
    ]
    with pytest.raises(UnavailableError, match="for 3 reasons") as raised:
        rehearse("study", [good, *wrong], host, lambda _: None)
    for part in ("setting absent: nic.rx-usecs cannot be read", "workload theirs", "path lost"):
        assert part in raised.value.message


def test_a_failed_trial_does_not_affect_later_ones(host: Host, order) -> None:
    if host.kind == "lab" and not labs.WHOLE:
        pytest.skip("covered by a killed machine (tests/e2e/test_lab.py)")
    host.carry_out(order(path=PathOrder("broken", "no-such-path")), carry_out)
    assert host.carry_out(order(), carry_out).status is TrialStatus.VALID


def test_closing_twice_has_no_effect(host: Host) -> None:
    host.close()
    host.close()
