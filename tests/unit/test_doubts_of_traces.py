"""A prediction reports what any of its traces leaves open, and buffered sends do not wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nearmetal.cli.predict import command as predict
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.models import FitQuality, Machine, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.scale import scale
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.trace import (
    BY_NODE,
    BY_PART,
    Call,
    CallFlag,
    CallKind,
    CommKind,
    Communicator,
    DoCall,
    RankTrace,
    Repeat,
    Trace,
)
from nearmetal.predict.trace_view import view_trace
from nearmetal.units import format_size
from tests.trace_writer import made_rank
from tests.unit.simulated import MACHINE, path, ping, program, recv, run_ns, send
from tests.unit.test_predict_verbs import measured, model_of, run
from tests.unit.test_simulate import traced
from tests.unit.test_validate import one_message

if TYPE_CHECKING:
    from pathlib import Path

NAMED = NamedMachine("vf", "as-found", "polling", MACHINE, (MACHINE,) * 3, mpi="openmpi 4.1.4")
OPEN_MPI = "Open MPI v4.1.4, package"


def doubts_of(schedules: list[Schedule], named: NamedMachine = NAMED) -> str:
    return "\n".join(one.said for one in find_doubts(schedules, named, Placement.block(schedules[0].ranks, 1)))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"mpi": "MPICH Version: 4.0.2"}, "the program was traced with mpich 4.0.2"),
        ({"opaque_share": 0.25}, "25.0 % of MPI calls are not in the trace"),
        ({"opaque_share": 0.001, "opaque_time_share": 0.4}, "0.1 % of MPI calls and 40.0 % of the time are not in the"),
        ({"calling_threads": 4}, "4 threads of a rank call MPI"),
        ({"processor": "AMD EPYC"}, "the trace was taken on AMD EPYC, the paths were measured on QEMU TCG CPU"),
        ({"crowd": 4}, "4 ranks of a node were traced on fewer processors"),
        ({"paused_share": 0.5}, "50 % of the ranks' time passed in pauses of less than 2 us between polls"),
        ({"first_come_share": 0.5}, "50 % of receives take the message of whichever rank comes first"),
        ({"worked_share": 0.5}, "50 % of the ranks' time was computing after polls that found nothing"),
        ({"blocked_share": 0.5}, "50 % of the ranks' time passed outside MPI while they slept"),
        ({"rounded_share": 0.5}, "50 % of MPI calls have rounded sizes in the trace"),
    ],
)
def test_doubts_of_any_of_several_traces_are_reported(second: dict[str, object], message: str) -> None:
    """Only the first trace was checked."""
    named = replace(NAMED, conditions=(("on a processor", "QEMU TCG CPU"),))
    first = replace(ping(), mpi=OPEN_MPI, processor="QEMU TCG CPU")
    assert message not in doubts_of([first, first], named)
    assert message in doubts_of([first, replace(first, **second)], named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tag", "groups", "nodes", "doubted"),
    [
        (BY_NODE, ((0, 1), (2, 3)), (0, 0, 1, 1), False),
        (BY_NODE, ((0, 1), (2, 3)), (1, 1, 0, 0), False),
        (BY_NODE, ((0, 1), (2, 3)), (0, 1, 0, 1), True),
        (BY_NODE, ((0, 1), (2, 3)), (0, 0, 0, 0), True),
        (BY_NODE, ((0, 1, 2, 3),), (0, 0, 1, 1), True),
        (BY_NODE, ((0, 1, 2, 3),), (0, 0, 0, 0), False),
        (BY_PART, ((0, 1), (2, 3)), (0, 0, 0, 0), False),
        (BY_PART, ((0, 1), (2, 3)), (0, 1, 1, 1), True),
        (0, ((0, 1, 2, 3),), (0, 0, 1, 1), False),  # an ordinary split, or an older trace
    ],
)
def test_communicators_of_a_node_are_doubted_on_other_nodes(
    tag: int, groups: tuple[tuple[int, ...], ...], nodes: tuple[int, ...], doubted: bool
) -> None:
    """Traced on one node, all ranks had one communicator, and `place` moved it over four."""

    def of_rank(rank: int) -> RankTrace:
        (group,) = (one for one in groups if rank in one)
        comm = Communicator(100 + group[0], CommKind.SPLIT, 0, group, group.index(rank))
        calls = (Call(CallKind.COMM_SPLIT, tag=tag, request=2), Call(CallKind.BARRIER, comm=2))
        return made_rank(rank, 4, calls, comm)

    schedule = schedule_from_trace(Trace(tuple(map(of_rank, range(4)))))
    found = find_doubts([schedule], NAMED, Placement.of_hosts(np.array(nodes, np.uint32)))
    assert [one.share for one in found if "MPI_Comm_split_type" in one.said] == [1.0] * doubted


@pytest.mark.parametrize(
    ("nodes", "mpi", "op", "doubted"),
    [
        ((0, 0, 0, 1), "openmpi 5.0.11", {"collective": Collective.BCAST}, False),  # it looks, and does not divide
        ((0, 0, 0, 1), "openmpi 5.0.11", {}, False),
        ((0, 0, 1, 1), "openmpi 5.0.11", {}, False),
        ((0, 0, 1, 1), "openmpi 5.0.11 of an older model", {}, True),
        ((0, 1, 2, 3), "openmpi 5.0.11", {}, False),  # one rank a node
        ((0, 0, 0, 0), "openmpi 5.0.11", {}, False),
        ((0, 0, 1, 1), "openmpi 4.1.4", {}, False),  # it has the component, but prefers others
        ((0, 0, 1, 1), "mpich 5.0.2", {}, False),
        ((0, 0, 0, 1), "mpich 5.0.2", {"collective": Collective.BCAST}, False),
        ((0, 0, 1, 1), "mpich 4.3.0", {}, True),
        ((0, 0, 1, 1), "mpich 5.0.2", {"collective": Collective.ALLGATHER}, False),
        ((0, 0, 1, 1), "openmpi 5.0.11", {"collective": Collective.ALLGATHER}, False),
        ((0, 1, 2, 1), "openmpi 5.0.11", {"collective": Collective.ALLGATHER}, False),
        ((0, 0, 1, 1), "mpich 4.3.0", {"collective": Collective.SCAN}, True),
        ((0, 0, 1, 1), "openmpi 5.0.11 of an older model", {"nonblocking": True}, False),
        ((0, 0, 1, 1), "mpich 4.3.0", {"nonblocking": True}, False),
        ((0, 0, 1, 1), "mpich 4.3.0", {"collective": Collective.BCAST, "nonblocking": True}, True),
        ((0, 0, 1, 1), "openmpi 5.0.11", {"collective": Collective.ALLTOALL}, False),
        ((0, 0, 1, 1), "openmpi 5.0.11", {"comm": 1}, False),  # of two ranks of a node
    ],
)
def test_collectives_that_go_by_nodes_are_doubted(
    nodes: tuple[int, ...], mpi: str, op: dict[str, Any], doubted: bool
) -> None:
    """Those are named that are not replayed as the MPI divides them."""
    call = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    comms = [(Comm(0, size=4), Comm(1 + rank // 2, (rank // 2 * 2, rank // 2 * 2 + 1), rank % 2)) for rank in range(4)]
    own = [Program((DoCall(0), DoCall(1)), (replace(call, **op), Op(OpKind.MARK)), comms[rank]) for rank in range(4)]
    placement = Placement.of_hosts(np.array(nodes, np.uint32))
    flavour, version, *older = mpi.split(" ")
    machine = replace(MACHINE, collectives=flavour, by_nodes=version[0] == "5" and not older)
    named = replace(NAMED, machine=machine, mpi=f"{flavour} {version}")
    found = [one for one in find_doubts([Schedule(4, tuple(own))], named, placement) if "divides by nodes" in one.said]
    assert [one.share for one in found] == [0.5] * doubted
    called = "i" * own[0].ops[0].nonblocking + own[0].ops[0].collective.name.lower()
    assert all(f"({called})" in one.said for one in found)
    assert all(("--on" in one.hint) == bool(older) for one in found)


def test_communicators_of_a_node_are_doubted_on_more_ranks() -> None:
    """A communicator of all ranks, which were on one node, grew with their number as any other."""
    every = Communicator(9, CommKind.SPLIT, 0, (0, 1), 0)
    calls = (Call(CallKind.COMM_SPLIT, tag=BY_NODE, request=2), Call(CallKind.BARRIER, comm=2))
    ranks = (made_rank(rank, 2, calls, replace(every, my_rank=rank)) for rank in (0, 1))
    grown = scale(schedule_from_trace(Trace(tuple(ranks))), 4)
    for per_node, said in (
        (4, []),
        (2, ["a communicator of 4 ranks of a node; here 2 of these and 0 others are on rank 0"]),
    ):
        found = find_doubts([grown], NAMED, Placement.block(4, per_node))
        assert [one.said.split(" made ")[1].split("'")[0] for one in found if "split_type" in one.said] == said


def test_threads_get_no_remedy_that_the_profiler_lacks() -> None:
    found = [replace(ping(), crowd=4, calling_threads=threads) for threads in (0, 1, 2)]
    doubts = [find_doubts([one], NAMED, Placement.block(one.ranks, 1)) for one in found]
    hints = [next(one.hint for one in of if "fewer processors" in one.said) for of in doubts]
    assert ["--processor-time" in hint for hint in hints] == [True, True, False]


def test_a_doubt_is_reported_once_for_the_launch_it_affects_most() -> None:
    schedules = [replace(ping(), mpi=OPEN_MPI, opaque_share=share) for share in (0.1, 0.3, 0.2)]
    assert doubts_of(schedules).count("of MPI calls are not in the trace") == 1
    assert "30.0 % of MPI calls" in doubts_of(schedules)


def test_a_program_that_spends_its_time_in_calls_that_are_only_counted_is_refused() -> None:
    """87 % of its time in one-sided calls, and `predict --decide` chose a path with 91 % probability."""

    def found(*shares: tuple[float, float]) -> list[tuple[str, bool]]:
        schedules = [replace(ping(), opaque_share=calls, opaque_time_share=time) for calls, time in shares]
        doubts = find_doubts(schedules, NAMED, Placement.block(2, 1))
        return [(one.said.partition(" of ")[0], one.refuse) for one in doubts if "not in the trace" in one.said]

    assert found((0.99, 0.09)) == [("99.0 %", False)]
    assert found((0.01, 0.1)) == [("1.0 %", True)]
    assert found((0.99, 0.09), (0.01, 0.1)) == [("1.0 %", True)]
    assert found((0.99, 0.0)) == [("99.0 %", False)]  # a trace of an older profiler does not say how long they took
    assert not found((0.0001, 0.0001))
    waits = replace(ping(), opaque_share=0.25, opaque_time_share=0.02, opaque_wait_share=0.633)
    (doubt,) = (one for one in find_doubts([waits], NAMED, Placement.block(2, 1)) if "not in the trace" in one.said)
    assert doubt.refuse
    assert "Up to 63.3 % of the time are waits for their requests and others at once" in doubt.said


@pytest.mark.parametrize("shares", [{"opaque_time_share": 0.2}, {"opaque_wait_share": 0.2}])
def test_waits_for_requests_of_unknown_calls_are_doubted(shares: dict[str, float]) -> None:
    """The profiler counts no call that made a generalized request: waiting for it was computing, without a word."""
    found = find_doubts([replace(ping(), **shares)], NAMED, Placement.block(2, 1))  # type: ignore[arg-type]
    (doubt,) = (one for one in found if "not in the trace" in one.said)
    assert doubt.refuse
    assert doubt.said.startswith("requests of calls that the profiler does not know")
    assert "20.0 % of the time" in doubt.said


def test_sizes_of_every_trace_are_compared_with_the_measured_ones() -> None:
    """Only the first trace's messages were checked, so the order of the traces decided whether any was refused."""
    fitted = replace(path(), fit=FitQuality("test", 100, 0, 0), measured_bytes=(8, 1000))
    named = replace(NAMED, machine=replace(MACHINE, inter=fitted))

    def found(*sizes: int) -> list[tuple[str, bool]]:
        doubts = find_doubts([ping(size) for size in sizes], named, Placement.block(2, 1))
        return [(one.said, one.refuse) for one in doubts if "larger than the largest measured" in one.said]

    assert not found(1000, 8)
    ((said_of_both, refused),) = found(1000, 1500, 4000)
    assert "up to 4000 B against 1000 B, 4.0 times" in said_of_both
    assert refused
    assert found(4000, 1500, 1000) == [(said_of_both, refused)]


def test_every_gap_between_measured_sizes_that_messages_fall_into_is_named() -> None:
    """80 % of bytes, of 4 KiB each, were told to be `between 8 B and 1 KiB`: of the widest gap, which a message met."""
    fitted = replace(path(), fit=FitQuality("test", 100, 0, 0), measured_bytes=(8, 1024, 16_384))
    named = replace(NAMED, machine=replace(MACHINE, inter=fitted))
    both = Schedule(2, (program([send(1, 64), send(1, 4096)]), program([recv(0, 64), recv(0, 4096)])))
    said = next(one for one in doubts_of([both], named).splitlines() if "far from every measured size" in one)
    assert said.endswith("between 8 B and 1 KiB, and between 1 KiB and 16 KiB")


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("Intel(R) MPI Library 2021.10 for Linux* OS", "Intel(R) MPI Library 2021.10 for Linux*"),
        ("MVAPICH2 Version      :\t2.3.7", "MVAPICH2 Version : 2.3.7"),
    ],
)
def test_a_trace_of_an_unknown_mpi_is_reported(library: str, name: str) -> None:
    """It was taken for a trace of the run's MPI."""
    assert f"the program was traced with {name}" in doubts_of([replace(ping(), mpi=library)])
    assert "was traced with" not in doubts_of([ping()])  # a pattern, or a trace that does not record it


def test_rounded_sizes_are_counted_from_the_trace() -> None:
    ranks = [replace(one_message(rank), meta={"rounded": "1" if rank else "0"}) for rank in range(2)]
    assert schedule_from_trace(Trace(tuple(ranks))).rounded_share == 0.5


def test_programs_of_one_launch_are_told_apart_on_all_ranks() -> None:
    """Only the first rank's program was compared, and shown."""

    def coupled(second: str, build: str = "b2" * 20) -> Trace:
        metas = ({"command": "/a/ocean 4", "build": "b1" * 20}, {"command": second, "build": build})
        return Trace(tuple(replace(one_message(rank), meta=meta) for rank, meta in enumerate(metas)))

    first, other, rebuilt = (
        schedule_from_trace(one)
        for one in (coupled("/b/ice 2"), coupled("/b/air 2"), coupled("/b/ice 2", build="b3" * 20))
    )
    assert first.command == ("ocean", "4", ":", "ice", "2")
    assert "2 command lines ('ocean 4 : air 2', 'ocean 4 : ice 2')" in doubts_of([first, other])
    assert "2 builds of one program ('b1b1b1b1b1b1+b2b2b2b2b2b2', 'b1b1b1b1b1b1+b3" in doubts_of([first, rebuilt])
    assert "command lines" not in doubts_of([first, schedule_from_trace(coupled("/c/ice 2"))])
    assert view_trace(coupled("/b/ice 2")).command == "/a/ocean 4 : /b/ice 2"


def farm(tag: int, wanted_tag: int, workers: int = 2) -> Schedule:
    """Return ranks that each send the first rank two messages, which it receives from any source."""
    takes = Program((Repeat(2 * workers, (DoCall(0),)),), (recv(-1, 8, tag=wanted_tag),), (Comm(0, size=workers + 1),))
    gives = (
        Program((Repeat(2, (DoCall(0),)),), (send(0, 8, tag=tag * rank),), (Comm(0, size=workers + 1),))
        for rank in range(1, workers + 1)
    )
    return Schedule(workers + 1, (takes, *gives))


def probing(schedule: Schedule) -> Schedule:
    """Return a farm whose first rank probes for any source, then receives from the rank that it found."""
    takes, *gives = schedule.programs
    probe = replace(takes.ops[0], kind=OpKind.PROBE)
    found = [step for rank in range(1, schedule.ranks) for step in (DoCall(0), DoCall(rank))] * 2
    ops = (probe, *(recv(rank, 8) for rank in range(1, schedule.ranks)))
    return replace(schedule, programs=(replace(takes, steps=tuple(found), ops=ops), *gives))


@pytest.mark.parametrize(
    ("schedule", "reported"),
    [
        (farm(0, 0), True),
        (farm(1, -1), True),
        (farm(0, 0, workers=1), False),  # only one rank sends it
        (probing(farm(0, 0)), True),
        (probing(farm(0, 0, workers=1)), False),
        (ping(), False),
    ],
)
def test_any_source_receives_with_several_senders_are_reported(schedule: Schedule, reported: bool) -> None:
    assert ("100 % of receives take the message of whichever rank comes first" in doubts_of([schedule])) is reported


def test_an_any_source_receive_with_a_single_sender_is_not_reported() -> None:
    workers = farm(1, 1)
    first = replace(workers.programs[0], ops=(recv(-1, 8, tag=1), recv(2, 8, tag=2)))
    steps = (Repeat(2, (DoCall(0), DoCall(1))),)
    schedule = replace(workers, programs=(replace(first, steps=steps), *workers.programs[1:]))
    assert run_ns(schedule)
    assert "whichever rank comes first" not in doubts_of([schedule])


@pytest.mark.parametrize(("size", "reported"), [(4096, False), (4097, True)])
def test_an_unknown_eager_limit_is_reported(size: int, reported: bool) -> None:
    """Large messages on an MPICH never waited for their receiver, and nothing reported it."""
    fitted = replace(path(), fit=FitQuality("test", 100, 0, 0), measured_bytes=(8, size))
    named = replace(NAMED, machine=Machine(None, fitted, collectives="mpich"), mpi="mpich 4.0.2")
    words = (
        "are larger than 4 KiB, and the size above which a sender waits for its receiver in mpich 4.0.2 is not known"
    )
    assert (words in doubts_of([ping(size)], named)) is reported
    known = replace(named, machine=replace(named.machine, inter=replace(fitted, eager_up_to_bytes=1 << 16)))
    assert "a sender waits" not in doubts_of([ping(size)], known)


@pytest.mark.parametrize(
    ("size", "measured_bytes", "reported"),
    [
        (8192, (8, 4096, 30_000, 1 << 17), False),
        (8193, (8, 4096, 30_000, 1 << 17), True),
        (10_001, (8, 4096, 30_000, 1 << 17), True),
        (14_999, (8, 4096, 30_000, 1 << 17), True),
        (15_000, (8, 4096, 30_000, 1 << 17), False),
        (10_000, (8, 4096, 15_000, 1 << 17), True),
        (14_999, (8, 4096, 30_000), False),
        (14_999, (8, 1000, 30_000, 1 << 17), False),
        (8193, (4096, 30_000, 1 << 17), False),
    ],
    ids=[
        "twice",
        "more",
        "above the limit",
        "less than half",
        "half",
        "at the limit",
        "one above",
        "far from all",
        "one below",
    ],
)
def test_sizes_far_from_those_of_their_protocol_are_reported(
    size: int, measured_bytes: tuple[int, ...], reported: bool
) -> None:
    """No line leads over the eager limit, so sizes just below and above it followed the nearest two, however far."""
    fitted = replace(path(), fit=FitQuality("test", 100, 0, 0), measured_bytes=measured_bytes, eager_up_to_bytes=10_000)
    named = replace(NAMED, machine=Machine(None, fitted))
    doubts = find_doubts([ping(size)], named, Placement.block(2, 1))
    found = [one for one in doubts if "far from every measured size of their protocol" in one.said]
    assert bool(found) is reported
    for one in found:
        assert f"(eager up to 10000 B): between 4 KiB and {format_size(measured_bytes[2])}" in one.said
        assert f'4 KiB", {size}, ' in one.hint


@pytest.mark.parametrize(
    ("dims", "asked", "reported"),
    [("dims = [4, 2]\n", ("--ranks", "16"), True), ("dims = [4, 2]\n", (), False), ("", ("--ranks", "16"), False)],
)
def test_replacing_the_grid_for_another_number_of_ranks_is_reported(
    tmp_path: Path, dims: str, asked: tuple[str, ...], reported: bool
) -> None:
    pattern = tmp_path / "p.toml"
    pattern.write_text(f'[pattern]\nkind = "halo"\nranks = 8\nsteps = 1\nmessage_bytes = 8\n{dims}')
    source = model_of(tmp_path, Machine(None, measured(5, 8, 1024)))
    _, err = run(predict, str(pattern), "--on", source, "--replicas", "1", *asked)
    words = "the pattern's grid of 4x2 does not have 16 ranks: a grid of 4x4 is used hint: write ranks = 16"
    assert (words in " ".join(err.split())) is reported


def buffered(mode: CallFlag, *wait: Call, size: int = 1000) -> Schedule:
    def of(rank: int) -> tuple[Call, ...]:
        sends = Call(CallKind.SEND, mode, peer=1 - rank, message_bytes=size, request=0 if wait else 0xFFFFFFFF)
        return (sends, *wait, Call(CallKind.RECV, peer=1 - rank, message_bytes=size))

    return schedule_from_trace(
        Trace(tuple(traced(rank, of(rank), tuple(DoCall(at) for at in range(len(of(rank))))) for rank in range(2)))
    )


@pytest.mark.parametrize(
    "schedule",
    [
        buffered(CallFlag.BUFFERED),
        buffered(CallFlag.BUFFERED | CallFlag.NONBLOCKING, Call(CallKind.WAIT, request=0)),
    ],
)
def test_a_buffered_send_above_the_eager_limit_does_not_wait(schedule: Schedule) -> None:
    """Two ranks that both did so before receiving were reported as a deadlock."""
    small = replace(MACHINE, inter=path(eager=100))
    assert run_ns(schedule, small) > run_ns(schedule, MACHINE)  # it still sends a request first
    plain = replace(schedule, programs=tuple(_unbuffered(program) for program in schedule.programs))
    assert run_ns(plain, MACHINE) == run_ns(schedule, MACHINE)


def _unbuffered(program: Program) -> Program:
    ops = [replace(op, nonblocking=False) if op.kind is OpKind.SEND else op for op in program.ops]
    return replace(program, ops=tuple(ops))


def test_a_buffered_send_in_flight_does_not_delay_the_next() -> None:
    once = buffered(CallFlag.BUFFERED)
    programs = tuple(
        replace(program, steps=(Repeat(3, (DoCall(0),)), Repeat(3, (DoCall(1),)))) for program in once.programs
    )
    assert run_ns(replace(once, programs=programs), replace(MACHINE, inter=path(eager=100))) > 0
