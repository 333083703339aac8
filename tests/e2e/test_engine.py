"""The real engine: every operation with every MPI of this machine, its samples read back."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal import process
from nearmetal.errors import ForeignFileError, TrialError
from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.workloads.build import build_engine
from nearmetal.workloads.engine import SAMPLES, Engine
from nearmetal.workloads.mpi.mpi import Job
from nearmetal.workloads.mpi.table import launch
from nearmetal.workloads.operations import OPERATIONS
from nearmetal.workloads.sample_file import read_sample_file, to_cell_samples
from tests.compiled import compile_to
from tests.engine_files import FLAG_WARMUP, encode_sample_file, iteration_values, start_spread_ns
from tests.mpi_bench import REPOSITORY, SANITIZED, STRICT, bench_of, every_mpi, mpi_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.mpi

SHORT = ("--iterations", "20", "--warmup", "3")


def ranks_for(operation: str) -> int:
    return OPERATIONS[operation].max_ranks or 4


def test_waiting_ranks_sleep_on_request_if_their_mpi_yields(tmp_path: Path) -> None:
    """native/common/yield.c: the MPI's own call of sched_yield, inside its library, becomes a sleep."""
    bench = bench_of("openmpi", tmp_path)

    def sleeps(*environment: tuple[str, str]) -> int:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
        program = (str(bench.program), "--op", "barrier", "--iterations", "3000", "--out", str(bench.out))
        job = Job(nodes=("here", "here"), program=program, oversubscribed=True, environment=environment)
        command = launch(bench.mpi, job)
        finished = process.run(command.argv, timeout_s=600, env={**os.environ, **command.env})
        assert finished.ok, finished.complaint()
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before

    assert sleeps(("NEARMETAL_YIELD", "sleep")) > sleeps() + 3000


def test_nothing_is_sent_one_way_before_the_measurement(tmp_path: Path) -> None:
    """An odd number of messages one way slows Open MPI's small collectives in shared memory (bench/loop_history.py)."""
    bench, counter = bench_of("openmpi", tmp_path), tmp_path / "broadcasts.so"
    source = REPOSITORY / "tests" / "native" / "broadcasts.c"
    compile_to(counter, [bench.mpi.mpicc, *STRICT, "-shared", "-fPIC", str(source)])
    program = (str(bench.program), "--op", "allreduce", "--sizes", "8", *SHORT, "--out", str(bench.out))
    job = Job(nodes=("here", "here"), program=program, environment=(("LD_PRELOAD", str(counter)),))
    command = launch(bench.mpi, job)
    finished = process.run(command.argv, timeout_s=600, env={**os.environ, **command.env}, check=True)
    assert "broadcasts before: 0\n" in finished.text


MORE = dict.fromkeys(("after_exchange", "one_way"), ("--compute-us", "20"))
"""Options that an operation needs."""


@every_mpi
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_keeps_every_iteration_of_every_rank(flavour: str, operation: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    ranks = ranks_for(operation)
    options = ("--op", operation, *MORE.get(operation, ()), *SHORT, "--check")
    file = bench.measure("--sizes", "1,64,5000", *options, ranks=ranks)
    header = file.header
    row = OPERATIONS[operation]
    assert header.sizes_bytes == ((1, 64, 5000) if row.has_size else (0,))
    assert (header.operation, header.kind, header.ranks) == (operation, row.kind, ranks)
    assert header.check_rounds == 8
    assert set(header.check_failures) == {0}
    assert len(header.processors) == ranks
    assert bench.mpi.version in header.mpi_library
    assert header.clock == "CLOCK_MONOTONIC_RAW"
    assert all(cost > 0 for cost in header.clock_cost_ns)
    for cell in file.cells:
        assert cell.begin_ns.shape == cell.end_ns.shape == cell.flags.shape == (ranks, 23)
        assert (cell.end_ns > cell.begin_ns).all()
        assert (cell.begin_ns[:, 1:] >= cell.end_ns[:, :-1]).all()
        assert iteration_values(cell).size == 20


@every_mpi
def test_python_writes_the_same_file_as_the_engine_byte_for_byte(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    file = bench.measure("--op", "bcast", "--sizes", "8,16", *SHORT, ranks=3)
    assert encode_sample_file(file.header, file.cells) == bench.out.read_bytes()


@every_mpi
def test_warmup_is_first_and_marked(flavour: str, tmp_path: Path) -> None:
    usual = ("--sizes", "8,64,128", "--iterations", "9", "--warmup", "4")
    large = ("--large-from", "64,128", "--iterations-large", "2,1", "--warmup-large", "0,3")
    file = bench_of(flavour, tmp_path).measure("--op", "latency", *usual, *large)
    small, large, largest = file.cells
    assert (small.flags == [FLAG_WARMUP] * 4 + [0] * 9).all()
    assert (large.flags == [0, 0]).all()
    assert (largest.flags == [FLAG_WARMUP] * 3 + [0]).all()
    assert file.header.warmup == (4, 0, 3)
    assert file.header.iterations == (9, 2, 1)


@every_mpi
def test_barrier_and_window_report_how_well_they_synchronize(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    for sync in ("barrier", "window"):
        file = bench.measure("--op", "allreduce", "--sizes", "8", "--sync", sync, *SHORT)
        assert file.header.sync == sync
        assert (file.header.sync_window_ns[0] > 0) == (sync == "window")
        assert file.header.clock_error_ns[0][0] == 0
        assert file.header.clock_error_ns[0][1] > 0
        offset_ns, error_ns = file.header.clock_offset_ns[0][1], file.header.clock_error_ns[0][1]
        assert abs(offset_ns) <= error_ns, "both ranks read one clock, so the truth is 0"
        assert (start_spread_ns(file.header, 0, file.cells[0]) >= 0).all()


@every_mpi
def test_a_missed_window_is_flagged_and_has_no_value(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    options = ("--op", "allreduce", "--sizes", "1048576", "--sync", "window", "--sync-window-us", "1")
    file = bench.measure(*options, *SHORT)
    (cell,) = file.cells
    assert cell.missed.sum() >= 20, "a mebibyte cannot be reduced in a microsecond"
    assert iteration_values(cell).size == 20 - cell.missed[3:].sum()
    if cell.missed[3:].all():
        with pytest.raises(TrialError, match="all 20 iterations missed their time window of 1000 ns"):
            to_cell_samples(file)


@every_mpi
def test_reductions_report_their_element_type(flavour: str, tmp_path: Path) -> None:
    file = bench_of(flavour, tmp_path).measure("--op", "reduce", "--sizes", "1,6,8", *SHORT)
    assert file.header.datatypes == ("uint8", "uint8", "float32")


@pytest.fixture
def meddling(tmp_path: Path) -> dict[str, Path]:
    """Return, by flavour, a library that corrupts an MPI program from inside; see tests/native/meddle.c."""
    return {flavour: tmp_path / f"meddle-{flavour}.so" for flavour in ("openmpi", "mpich")}


def build_meddling(flavour: str, library: Path) -> str:
    source = REPOSITORY / "tests" / "native" / "meddle.c"
    compile_to(library, [mpi_of(flavour).mpicc, *STRICT, "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", str(source)])
    return str(library)


@every_mpi
def test_the_payload_check_catches_every_kind_of_corruption(
    flavour: str, tmp_path: Path, meddling: dict[str, Path]
) -> None:
    bench = bench_of(flavour, tmp_path)
    harm = (("LD_PRELOAD", build_meddling(flavour, meddling[flavour])), ("MEDDLE", "flip"))
    for operation in [name for name, row in OPERATIONS.items() if row.has_size]:
        few = ("--iterations", "2", "--warmup", "0", "--check")
        options = ("--op", operation, *MORE.get(operation, ()), "--sizes", "64", *few)
        finished = bench.launch(*options, environment=harm)
        assert finished.exit_status == 3, f"{operation}: {finished.complaint()}"
        assert b"wrong payload" in finished.stderr + finished.stdout
        assert read_sample_file(bench.out.read_bytes()).header.check_failures[0] >= 8


@every_mpi
def test_a_dying_rank_leaves_no_file(flavour: str, tmp_path: Path, meddling: dict[str, Path]) -> None:
    bench = bench_of(flavour, tmp_path)
    harm = (("LD_PRELOAD", build_meddling(flavour, meddling[flavour])), ("MEDDLE", "die"))
    finished = bench.launch("--op", "latency", *SHORT, environment=harm)
    assert not finished.ok
    assert not finished.timed_out
    assert [path.name for path in tmp_path.iterdir()] == [meddling[flavour].name]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a rank is moved only where there is another processor")
@every_mpi
def test_ranks_count_how_often_they_are_moved_to_another_processor(
    flavour: str, tmp_path: Path, meddling: dict[str, Path]
) -> None:
    """Rank 1 is pinned to another processor at each receive: 23 times per size, the first perhaps without a move."""
    bench = bench_of(flavour, tmp_path)
    harm = (("LD_PRELOAD", build_meddling(flavour, meddling[flavour])), ("MEDDLE", "move"))
    assert bench.launch("--op", "latency", "--sizes", "8,16", *SHORT, environment=harm).ok
    header = read_sample_file(bench.out.read_bytes()).header
    assert [ranks[1] in range(22, 27) for ranks in header.migrations] == [True, True], header.migrations
    order = Order(0, 0, PathOrder("shm", "shm"), WorkloadOrder("w", "engine", {}))
    both = sum(count for ranks in header.migrations for count in ranks)
    assert Engine().counters(order, {SAMPLES: bench.out.read_bytes()}) == {
        "sched.migrations": both,
        "tool.iterations": sum(header.iterations + header.warmup),
    }
    for torn in (b"", bench.out.read_bytes()[:200]):
        with pytest.raises(ForeignFileError):  # a failed trial, but the run continues
            Engine().counters(order, {SAMPLES: torn})


REFUSED = {
    "there is no operation 'waltz'": ("2", "--op", "waltz"),
    "latency takes at most 2 ranks, there are 3": ("3", "--op", "latency"),
    "needs an even number of ranks, there are 3": ("3", "--op", "message_rate"),
    "not 'telepathy'": ("2", "--op", "bcast", "--sync", "telepathy"),
    "--sizes needs whole numbers from 1": ("2", "--op", "bcast", "--sizes", "-1"),
}


@every_mpi
@pytest.mark.parametrize("message", REFUSED)
def test_bad_arguments_are_named_and_end_with_status_2(flavour: str, message: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    ranks, *options = REFUSED[message]
    finished = bench.launch(*options, ranks=int(ranks))
    assert finished.exit_status == 2, finished.complaint()
    assert message in (finished.stderr + finished.stdout).decode()
    assert not bench.out.exists()


@every_mpi
def test_a_rank_without_memory_reports_how_much_it_needed(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    small = dataclasses.replace(bench, program=limited(tmp_path, bench.program))
    finished = small.launch("--op", "alltoall", "--sizes", "2147483647", "--iterations", "1")
    assert finished.exit_status == 4, finished.complaint()
    output = re.search(r"rank \d on \S+: cannot allocate (\d+) bytes", (finished.stderr + finished.stdout).decode())
    assert output is not None, finished.complaint()
    assert int(output[1]) >= 2 * 2 * 2147483647, "two ranks' contributions, sent and received"
    assert not bench.out.exists()


def limited(folder: Path, program: Path) -> Path:
    """Return a script that runs a program with a small memory limit."""
    script = folder / "limited"
    script.write_text(f'#!/bin/sh\nulimit -v 4000000\nexec {program} "$@"\n')
    script.chmod(0o755)
    return script


@every_mpi
def test_an_unwritable_output_is_refused_before_anything_is_measured(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path / "nowhere")
    finished = bench.launch("--op", "barrier")
    assert finished.exit_status == 5, finished.complaint()
    assert "No such file or directory" in (finished.stderr + finished.stdout).decode()


@every_mpi
def test_the_tables_in_python_and_c_match(flavour: str) -> None:
    program = build_engine(mpi_of(flavour))
    listed = process.run([str(program), "--list"], timeout_s=600, check=True).text.splitlines()
    assert listed == [
        f"{row.name} kind={row.kind} min_ranks={row.min_ranks} max_ranks={row.max_ranks} "
        f"even_ranks={row.even_ranks:d} has_size={row.has_size:d}"
        for row in OPERATIONS.values()
    ]


@every_mpi
def test_the_sanitizers_find_nothing(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    program = tmp_path / "nmbench-sanitized"
    rooms = [REPOSITORY / "native" / room for room in ("bench", "common")]
    sources = [*(f"-I{room}" for room in rooms), *sorted(str(path) for room in rooms for path in room.glob("*.c"))]
    flags = [*STRICT, "-Wmissing-prototypes", "-Wno-stringop-overflow", "-D_GNU_SOURCE", *SANITIZED]
    compile_to(program, [bench.mpi.mpicc, *flags, *sources])
    sanitized = dataclasses.replace(bench, program=program)
    # Both libraries keep memory until exit; leaks are checked in the parts without MPI.
    options = (("ASAN_OPTIONS", "detect_leaks=0"),)
    for operation in ("bibw", "allreduce", "alltoall", "halo"):
        finished = sanitized.launch(
            "--op", operation, "--sizes", "1,1000", *SHORT, "--check", "--window", "5", environment=options
        )
        assert finished.ok, finished.complaint()
        read_sample_file(sanitized.out.read_bytes())


@every_mpi
def test_a_value_is_that_of_the_slowest_value_rank(flavour: str, tmp_path: Path) -> None:
    bench = bench_of(flavour, tmp_path)
    pairs = bench.measure("--op", "multi_latency", "--sizes", "8", *SHORT, ranks=4)
    everyone = bench.measure("--op", "barrier", *SHORT, ranks=3)
    for file, ranks in ((pairs, [0, 1]), (everyone, [0, 1, 2])):
        (cell,) = file.cells
        durations_ns = (cell.end_ns - cell.begin_ns)[ranks, 3:]
        assert (iteration_values(cell) == np.max(durations_ns, axis=0)).all()
