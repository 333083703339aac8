"""The real applications: verified on every rank count, their records read back, a corrupted input detected.

The suite runs class S on every rank count with every MPI, which covers all differences between ranks; classes W and A
differ from it only in sizes and reference values, so W on one rank of one MPI is enough. `make verify-apps` sets
NEARMETAL_EVERY_CLASS and runs all three on every rank count with every MPI (minutes), `make verify-large` sets
NEARMETAL_LARGE_CLASSES and runs B and C on one rank (hours; C takes up to 7 GB).
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal import process
from nearmetal.errors import TrialError
from nearmetal.hosts.local import LocalHost
from nearmetal.predict.simulate import MARKS
from nearmetal.predict.trace import CallKind, DoCall, RankTrace, walk
from nearmetal.predict.trace_file import trace_of
from nearmetal.run.trial import carry_out
from nearmetal.study.order import PROFILE_FOLDER, Order, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.workloads.apps import APPLICATIONS, ApplicationWorkload, build_apps, read_end_block
from nearmetal.workloads.mpi.table import FLAVOURS, launch
from nearmetal.workloads.sample_file import SampleFile, read_sample_file
from nearmetal.workloads.samples import decode
from tests.compiled import compile_to
from tests.engine_files import iteration_values
from tests.mpi_bench import REPOSITORY, SANITIZED, STRICT, every_mpi, job_here, mpi_of
from tests.trace_writer import rank_file_name

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.process import Finished

pytestmark = pytest.mark.mpi

EVERY_CLASS = bool(os.environ.get("NEARMETAL_EVERY_CLASS"))
LARGE_CLASSES = os.environ.get("NEARMETAL_LARGE_CLASSES", "")
TIMEOUT_S = 7200.0 if LARGE_CLASSES else 600.0
COUNTS = (1, 2, 4)
ONE_MPI = "mpich"

every_application = pytest.mark.parametrize("name", APPLICATIONS)


@functools.cache
def program_of(flavour: str, sanitized: bool = False) -> str:
    return str(build_apps(mpi_of(flavour), SANITIZED if sanitized else ()))


# MPI libraries keep memory until exit, and our share of it cannot be distinguished.
NO_LEAKS = (("ASAN_OPTIONS", "detect_leaks=0"),)


def start(
    flavour: str,
    *arguments: str,
    ranks: int,
    sanitized: bool = False,
    environment: tuple[tuple[str, str], ...] = (),
) -> Finished:
    """Run an application on this machine."""
    program = (program_of(flavour, sanitized), *arguments)
    command = launch(mpi_of(flavour), job_here(mpi_of(flavour), program, ranks=ranks, environment=environment))
    return process.run(command.argv, timeout_s=TIMEOUT_S, env={**os.environ, **command.env})


def verify(flavour: str, name: str, letter: str, ranks: int) -> None:
    finished = start(flavour, name, "--class", letter, ranks=ranks)
    assert finished.ok, finished.complaint()
    block = read_end_block(finished.text)
    assert (block.title, block.letter, block.ranks) == (name.upper(), letter, ranks)
    assert block.verified
    assert "FAILURE" not in finished.text
    assert block.iterations == -(-APPLICATIONS[name].iterations_of(letter) // (ranks if name == "ep" else 1))
    assert 0 <= block.communication_ns < block.elapsed_ns


def takes(name: str, ranks: int) -> bool:
    return APPLICATIONS[name].ranks.holds(ranks)


@every_mpi
@pytest.mark.parametrize("ranks", COUNTS)
def test_class_s_verifies(flavour: str, ranks: int) -> None:
    for name in APPLICATIONS:
        if takes(name, ranks):
            verify(flavour, name, "S", ranks)


@pytest.mark.parametrize("flavour", FLAVOURS if EVERY_CLASS else [ONE_MPI])
@pytest.mark.parametrize("ranks", COUNTS if EVERY_CLASS else [1])
@pytest.mark.parametrize("letter", "WA" if EVERY_CLASS else "W")
@every_application
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_classes_w_and_a_verify(name: str, letter: str, ranks: int, flavour: str) -> None:
    if not takes(name, ranks):
        pytest.skip(f"{name} takes {APPLICATIONS[name].ranks.words}")
    verify(flavour, name, letter, ranks)


@pytest.mark.parametrize("letter", "BC")
@every_application
@pytest.mark.timeout(TIMEOUT_S + 30)
def test_large_classes_verify(name: str, letter: str) -> None:
    if letter not in LARGE_CLASSES:
        pytest.skip("hours in all: `make verify-large`")
    verify(ONE_MPI, name, letter, 1)


@pytest.mark.parametrize(
    ("name", "ranks"), [("cg", 8), ("mg", 16), ("ft", 8), ("is", 8), ("lu", 6), ("sp", 9), ("ep", 3)]
)
def test_unusual_rank_counts_take_other_branches(name: str, ranks: int) -> None:
    """CG with twice as many columns as rows, MG with gathered levels, LU and SP with inner blocks, EP with an uneven
    division.
    """
    finished = start(ONE_MPI, name, "--class", "S", ranks=ranks)
    assert finished.ok, finished.complaint()
    assert read_end_block(finished.text).ranks == ranks


@pytest.mark.parametrize("grid", ["4x1x1", "1x4x1", "1x1x4", "2x1x2", "2x2x1"])
def test_advection_is_the_same_on_every_process_grid(grid: str) -> None:
    size = ("--size", "19x17x23", "--steps", "40")
    finished = start(ONE_MPI, "advection", "--grid", grid, *size, ranks=4)
    assert finished.ok, finished.complaint()
    block = read_end_block(finished.text)
    assert (block.size, block.iterations) == ("19x17x23", 40)


@every_application
def test_a_corrupted_input_fails_verification_and_the_trial(name: str) -> None:
    finished = start(ONE_MPI, name, "--class", "S", "--spoil", ranks=1)
    assert finished.exit_status == 1
    assert not read_end_block(finished.text).verified
    order = Order(0, 0, PathOrder("shm", "shm"), WorkloadOrder("w", "application", {"operation": name}, (0,)))
    with pytest.raises(TrialError, match=r"verification failed.*FAILURE"):
        ApplicationWorkload().verify(order, finished, {})


@pytest.mark.parametrize(
    ("arguments", "ranks", "complaint"),
    [
        ((), 1, "usage:"),
        (("bt",), 1, "unknown application"),
        (("cg", "--class", "Z"), 1, "--class"),
        (("cg", "--class", "AB"), 1, "--class"),
        (("cg", "--class"), 1, "--class"),
        (("cg", "--grid", "1x1x1"), 1, "--grid"),
        (("advection", "--grid", "2x1x1"), 1, "cannot run on 1 ranks"),
        (("advection", "--grid", "1x1"), 1, "--grid"),
        (("advection", "--size", "0x4x4"), 1, "--size"),
        (("advection", "--steps", "many"), 1, "--steps"),
        (("cg",), 3, "a power of two"),
        (("sp",), 2, "a square"),
    ],
)
def test_impossible_arguments_are_refused_with_the_reason(
    arguments: tuple[str, ...], ranks: int, complaint: str
) -> None:
    finished = start(ONE_MPI, *arguments, ranks=ranks)
    assert finished.exit_status == 2
    assert complaint in finished.stderr.decode()


def recorded(folder: Path, flavour: str, name: str, ranks: int) -> tuple[SampleFile, SampleFile]:
    paths = [folder / "iterations.nmb", folder / "communication.nmb"]
    flags = ("--record", str(paths[0]), "--record-communication", str(paths[1]))
    finished = start(flavour, name, *flags, ranks=ranks)
    assert finished.ok, finished.complaint()
    iterations, communication = (read_sample_file(path.read_bytes()) for path in paths)
    return iterations, communication


@every_mpi
@pytest.mark.parametrize(("name", "ranks"), [("cg", 4), ("lu", 2), ("advection", 3), ("ep", 3)])
def test_every_iteration_of_every_rank_is_kept(flavour: str, name: str, ranks: int, tmp_path: Path) -> None:
    iterations, communication = recorded(tmp_path, flavour, name, ranks)
    assert (iterations.header.operation, iterations.header.ranks) == (f"{name}.S", ranks)
    assert communication.header.operation == f"{name}.S.communication"
    (whole,), (inside,) = iterations.cells, communication.cells
    count = APPLICATIONS[name].iterations_of("S")
    assert whole.begin_ns.shape == (ranks, -(-count // ranks) if name == "ep" else count)
    assert (whole.end_ns > whole.begin_ns).all()
    assert (whole.begin_ns[:, 1:] >= whole.end_ns[:, :-1]).all()
    assert (inside.begin_ns == whole.begin_ns).all()
    assert (inside.end_ns <= whole.end_ns).all()
    if name == "ep":
        assert (inside.end_ns == inside.begin_ns).all()
    else:
        assert (inside.end_ns > inside.begin_ns).all()
    assert iteration_values(whole).size == whole.begin_ns.shape[1]


def test_a_record_that_cannot_be_written_fails_the_run(tmp_path: Path) -> None:
    finished = start(ONE_MPI, "mg", "--record", str(tmp_path / "no" / "such.nmb"), ranks=2)
    assert not finished.ok
    assert "cannot write" in (finished.stderr + finished.stdout).decode()


@every_application
def test_the_sanitizers_find_nothing(name: str, tmp_path: Path) -> None:
    ranks = 4 if takes(name, 4) else 2
    finished = start(
        ONE_MPI, name, "--record", str(tmp_path / "samples.nmb"), ranks=ranks, sanitized=True, environment=NO_LEAKS
    )
    assert finished.ok, finished.complaint()
    assert b"runtime error" not in finished.stderr
    assert read_end_block(finished.text).verified


# What rank 0 of 4 sends in class S: the destination, the number of messages, and their bytes. CG and SP send exactly
# the messages of NPB 3.3.1 (counted with Open MPI's monitoring); its LU and MG send 1 and 2 messages more, in their
# set-up. Advection exchanges its faces once before its clock starts.
TRAFFIC = {
    "cg": {0: (416, 2329600), 1: (1264, 2336512)},
    "sp": {1: (406, 1233920), 2: (406, 1233920), 3: (406, 1233920)},
    "lu": {1: (563, 427680), 2: (563, 427680)},
    "mg": {1: (146, 204352), 2: (146, 241536)},
    "advection": {1: (65, 266240), 2: (65, 266240)},
    "ep": {},
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_messages_match_those_of_the_benchmark(name: str, tmp_path: Path) -> None:
    counter = tmp_path / "count_messages.so"
    source = REPOSITORY / "tests" / "native" / "count_messages.c"
    compile_to(counter, [mpi_of(ONE_MPI).mpicc, *STRICT, "-shared", "-fPIC", str(source)])
    grid = ("--grid", "2x2x1") if name == "advection" else ()
    finished = start(ONE_MPI, name, *grid, ranks=4, environment=(("LD_PRELOAD", str(counter)),))
    assert finished.ok, finished.complaint()
    lines = re.findall(r"^sent to (\d+): (\d+) messages, (\d+) bytes$", finished.text, re.MULTILINE)
    assert {int(peer): (int(messages), int(sent)) for peer, messages, sent in lines} == TRAFFIC[name]


def count_marks(rank: RankTrace) -> list[int]:
    """Return how often a rank marked the begin and the end of an iteration."""
    levels = [
        level
        for step, times in walk(rank.program)
        if isinstance(step, DoCall) and rank.calls[step.index].kind is CallKind.MARK
        for level in [rank.calls[step.index].tag] * times
    ]
    return [levels.count(level) for level in MARKS[0]]


@pytest.mark.netns
def test_an_application_is_a_trial_on_a_network_path_and_leaves_a_trace_of_its_calls() -> None:
    options = {"operation": "cg", "class": "S", "sizes": [], "iterations": 1000, "warmup": 100, "trace": True}
    asked = WorkloadOrder("w", "application", options, (0, 1))
    outcome = LocalHost().carry_out(Order(0, 0, PathOrder("veth", "veth"), asked, mpi="openmpi"), carry_out)
    if "namespaces" in outcome.reason or outcome.reason.startswith("no usable"):
        pytest.skip(outcome.reason)
    assert outcome.status is TrialStatus.VALID, outcome.reason
    total, iterations, communication = decode(outcome)
    assert [cell.operation for cell in (total, iterations, communication)] == [
        "cg.S.total",
        "cg.S",
        "cg.S.communication",
    ]
    assert iterations.ns.shape == communication.ns.shape == (2, 15)
    assert (communication.ns < iterations.ns).all()
    assert (total.ns[:, 0] >= iterations.ns.sum(axis=1)).all()
    assert np.array_equal(total.begin_ns[:, 0], iterations.begin_ns[:, 0])
    assert min(outcome.proof.moved_packets.values()) > 15
    assert outcome.left(PROFILE_FOLDER)
    trace = trace_of({name: outcome.files[f"mpi/{name}"] for name in map(rank_file_name, range(2))}, "cg")
    marks = [call_count for rank in trace.ranks for call_count in count_marks(rank)]
    assert marks == [15, 15] * 2
    assert {rank.meta["gaps"] for rank in trace.ranks} == {"processor"}
