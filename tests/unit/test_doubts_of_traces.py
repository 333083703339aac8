"""What a trace, or one of several, leaves open is said with the prediction, and buffered sends wait for nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.predict import command as predict
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.models import FitQuality, Machine, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Comm, OpKind, Program, Schedule, schedule_from_trace
from nearmetal.predict.trace import Call, CallFlag, CallKind, DoCall, Repeat, Trace
from tests.unit.simulated import MACHINE, path, ping, recv, run_ns, send
from tests.unit.test_predict_verbs import measured, model_of, run
from tests.unit.test_simulate import traced
from tests.unit.test_validate import one_message

if TYPE_CHECKING:
    from pathlib import Path

NAMED = NamedMachine("vf", "as-found", "polling", MACHINE, (MACHINE,) * 3, mpi="openmpi 4.1.4")
OPEN_MPI = "Open MPI v4.1.4, package"


def said(schedules: list[Schedule], named: NamedMachine = NAMED) -> str:
    return "\n".join(one.said for one in find_doubts(schedules, named, Placement.block(schedules[0].ranks, 1)))


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"mpi": "MPICH Version: 4.0.2"}, "the program was traced with mpich 4.0.2"),
        ({"opaque_share": 0.25}, "25.0% of MPI calls are not in the trace"),
        ({"calling_threads": 4}, "4 threads of a rank call MPI"),
        ({"processor": "AMD EPYC"}, "the trace was taken on AMD EPYC, the paths were measured on QEMU TCG CPU"),
        ({"crowd": 4}, "4 ranks of a node were traced on fewer processors"),
        ({"rounded_share": 0.5}, "50% of MPI calls have rounded sizes in the trace"),
    ],
)
def test_what_any_of_several_traces_leaves_open_is_told(second: dict[str, object], told: str) -> None:
    """Only the first was asked."""
    named = replace(NAMED, conditions=(("on a processor", "QEMU TCG CPU"),))
    first = replace(ping(), mpi=OPEN_MPI, processor="QEMU TCG CPU")
    assert told not in said([first, first], named)
    assert told in said([first, replace(first, **second)], named)  # type: ignore[arg-type]


def test_the_launch_that_a_doubt_concerns_most_tells_it_once() -> None:
    schedules = [replace(ping(), mpi=OPEN_MPI, opaque_share=share) for share in (0.1, 0.3, 0.2)]
    assert said(schedules).count("of MPI calls are not in the trace") == 1
    assert "30.0% of MPI calls" in said(schedules)


def test_sizes_of_any_of_several_traces_are_held_against_the_measured() -> None:
    """Only the first trace's messages were looked at: which one was named first decided whether any was refused."""
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


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("Intel(R) MPI Library 2021.10 for Linux* OS", "Intel(R) MPI Library 2021.10 for Linux*"),
        ("MVAPICH2 Version      :\t2.3.7", "MVAPICH2 Version : 2.3.7"),
    ],
)
def test_a_trace_of_an_mpi_that_has_no_name_here_is_told(library: str, name: str) -> None:
    """It passed for one of the run's MPI."""
    assert f"the program was traced with {name}" in said([replace(ping(), mpi=library)])
    assert "was traced with" not in said([ping()])  # a pattern, or a trace that does not tell


def test_rounded_sizes_are_counted_from_the_trace() -> None:
    ranks = [replace(one_message(rank), meta={"rounded": "1" if rank else "0"}) for rank in range(2)]
    assert schedule_from_trace(Trace(tuple(ranks))).rounded_share == 0.5


def farm(tag: int, wanted_tag: int, workers: int = 2) -> Schedule:
    """Return ranks that each send the first two messages, which it takes from anybody."""
    takes = Program((Repeat(2 * workers, (DoCall(0),)),), (recv(-1, 8, tag=wanted_tag),), (Comm(0, size=workers + 1),))
    gives = (
        Program((Repeat(2, (DoCall(0),)),), (send(0, 8, tag=tag * rank),), (Comm(0, size=workers + 1),))
        for rank in range(1, workers + 1)
    )
    return Schedule(workers + 1, (takes, *gives))


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (farm(0, 0), True),
        (farm(1, -1), True),
        (farm(0, 0, workers=1), False),  # only one rank sends it
        (ping(), False),
    ],
)
def test_receives_that_take_whoever_comes_first_are_told(schedule: Schedule, told: bool) -> None:
    assert ("100% of receives take the message of whichever rank comes first" in said([schedule])) is told


def test_a_receive_of_any_rank_that_only_one_sends_with_its_tag_is_none() -> None:
    workers = farm(1, 1)
    first = replace(workers.programs[0], ops=(recv(-1, 8, tag=1), recv(2, 8, tag=2)))
    steps = (Repeat(2, (DoCall(0), DoCall(1))),)
    schedule = replace(workers, programs=(replace(first, steps=steps), *workers.programs[1:]))
    assert run_ns(schedule)
    assert "whichever rank comes first" not in said([schedule])


@pytest.mark.parametrize(("size", "told"), [(4096, False), (4097, True)])
def test_an_eager_limit_that_is_not_known_is_told(size: int, told: bool) -> None:
    """Large messages on an MPICH never waited for their receiver, and nothing said so."""
    fitted = replace(path(), fit=FitQuality("test", 100, 0, 0), measured_bytes=(8, size))
    named = replace(NAMED, machine=Machine(None, fitted, collectives="mpich"), mpi="mpich 4.0.2")
    words = (
        "are larger than 4 KiB, and the size above which a sender waits for its receiver in mpich 4.0.2 is not known"
    )
    assert (words in said([ping(size)], named)) is told
    known = replace(named, machine=replace(named.machine, inter=replace(fitted, eager_up_to_bytes=1 << 16)))
    assert "a sender waits" not in said([ping(size)], known)


@pytest.mark.parametrize(
    ("dims", "asked", "told"),
    [("dims = [4, 2]\n", ("--ranks", "16"), True), ("dims = [4, 2]\n", (), False), ("", ("--ranks", "16"), False)],
)
def test_a_grid_that_other_ranks_replace_is_told(tmp_path: Path, dims: str, asked: tuple[str, ...], told: bool) -> None:
    pattern = tmp_path / "p.toml"
    pattern.write_text(f'[pattern]\nkind = "halo"\nranks = 8\nsteps = 1\nmessage_bytes = 8\n{dims}')
    source = model_of(tmp_path, Machine(None, measured(5, 8, 1024)))
    _, err = run(predict, str(pattern), "--on", source, "--replicas", "1", *asked)
    words = "the pattern's grid of 4x2 does not have 16 ranks: a grid of 4x4 is used hint: write ranks = 16"
    assert (words in " ".join(err.split())) is told


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
def test_a_buffered_send_above_the_eager_limit_waits_for_nobody(schedule: Schedule) -> None:
    """Two ranks that both send so before they receive were said to be a deadlock."""
    small = replace(MACHINE, inter=path(eager=100))
    assert run_ns(schedule, small) > run_ns(schedule, MACHINE)  # it still asks first
    plain = replace(schedule, programs=tuple(_unbuffered(program) for program in schedule.programs))
    assert run_ns(plain, MACHINE) == run_ns(schedule, MACHINE)


def _unbuffered(program: Program) -> Program:
    ops = [replace(op, nonblocking=False) if op.kind is OpKind.SEND else op for op in program.ops]
    return replace(program, ops=tuple(ops))


def test_a_buffered_send_that_is_under_way_does_not_hold_the_next() -> None:
    once = buffered(CallFlag.BUFFERED)
    programs = tuple(
        replace(program, steps=(Repeat(3, (DoCall(0),)), Repeat(3, (DoCall(1),)))) for program in once.programs
    )
    assert run_ns(replace(once, programs=programs), replace(MACHINE, inter=path(eager=100))) > 0
