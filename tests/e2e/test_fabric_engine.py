"""The real fabric engine: rounds in, every iteration of every pair out."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal import process
from nearmetal.workloads import rounds
from nearmetal.workloads.fabric import build_fabric
from nearmetal.workloads.fabric_file import read_fabric_file
from nearmetal.workloads.mpi.table import launch
from tests.compiled import compile_to
from tests.engine_files import encode_fabric_file
from tests.mpi_bench import LAUNCH_TIMEOUT_S, REPOSITORY, SANITIZED, STRICT, every_mpi, job_here, mpi_of

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.process import Finished
    from nearmetal.workloads.mpi.mpi import Mpi

pytestmark = pytest.mark.mpi

SHORT = ("--latency-iterations", "6", "--bandwidth-iterations", "3", "--bandwidth-bytes", "1000")


@dataclass(frozen=True, slots=True)
class FabricEngine:
    mpi: Mpi
    folder: Path
    program: Path

    @property
    def out(self) -> Path:
        return self.folder / "fabric.nmf"

    def launch(self, text: str, *options: str, ranks: int, environment: tuple[tuple[str, str], ...] = ()) -> Finished:
        file = self.folder / "rounds"
        file.write_text(text)
        program = (str(self.program), "--rounds", str(file), "--out", str(self.out), *options)
        job = job_here(self.mpi, program, ranks=ranks, environment=environment)
        command = launch(self.mpi, job)
        return process.run(command.argv, timeout_s=LAUNCH_TIMEOUT_S, env={**os.environ, **command.env})


def engine_of(flavour: str, folder: Path) -> FabricEngine:
    mpi = mpi_of(flavour)
    return FabricEngine(mpi, folder, build_fabric(mpi))


def text_of(nodes: int, *, bisection: bool = False) -> str:
    return "".join(f"{line}\n" for line in rounds.to_lines(rounds.whole(nodes, bisection=bisection)))


@every_mpi
@pytest.mark.parametrize("ranks", [2, 5])
def test_every_pair_keeps_every_iteration(flavour: str, ranks: int, tmp_path: Path) -> None:
    engine = engine_of(flavour, tmp_path)
    finished = engine.launch(text_of(ranks, bisection=True), *SHORT, ranks=ranks)
    assert finished.ok, finished.complaint()
    file = read_fabric_file(engine.out.read_bytes())
    wanted = rounds.whole(ranks, bisection=True)
    rows = sorted((number, a, b) for number, (_, pairs) in enumerate(wanted) for a, b in pairs)
    assert list(zip(file.round.tolist(), file.first.tolist(), file.second.tolist(), strict=True)) == rows
    assert file.phase_of_rows().tolist() == [wanted[number][0] for number, _, _ in rows]
    assert file.latency_ns.shape == (len(rows), 11)
    assert file.there_ns.shape == file.back_ns.shape == (len(rows), 5)
    for kept in (file.latency_ns, file.there_ns, file.back_ns):
        assert (kept > 0).all()
    assert len(file.header.processors) == ranks
    assert engine.mpi.version in file.header.mpi_library
    assert encode_fabric_file(file) == engine.out.read_bytes()


@every_mpi
def test_a_fabric_without_bandwidth_keeps_only_pings(flavour: str, tmp_path: Path) -> None:
    engine = engine_of(flavour, tmp_path)
    finished = engine.launch(text_of(3), *SHORT, "--bandwidth-iterations", "0", ranks=3)
    assert finished.ok, finished.complaint()
    file = read_fabric_file(engine.out.read_bytes())
    assert file.there_ns.shape == (3, 0)
    assert np.all(file.latency_ns > 0)


REFUSED = {"'0-9'": "all 0-9\n", "twice": "all 0-1 1-0\n", "no rounds": ""}


@every_mpi
@pytest.mark.parametrize("message", REFUSED)
def test_bad_rounds_are_refused_before_anything_is_measured(flavour: str, message: str, tmp_path: Path) -> None:
    engine = engine_of(flavour, tmp_path)
    finished = engine.launch(REFUSED[message], *SHORT, ranks=2)
    assert finished.exit_status == 2, finished.complaint()
    assert message in (finished.stderr + finished.stdout).decode()
    assert not engine.out.exists()


def with_fault(flavour: str, folder: Path, fault: str) -> tuple[tuple[str, str], ...]:
    library = folder / "meddle.so"
    source = REPOSITORY / "tests" / "native" / "meddle.c"
    compile_to(library, [mpi_of(flavour).mpicc, *STRICT, "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", str(source)])
    return (("LD_PRELOAD", str(library)), ("MEDDLE", fault))


@every_mpi
def test_a_dying_rank_leaves_no_file(flavour: str, tmp_path: Path) -> None:
    engine = engine_of(flavour, tmp_path)
    finished = engine.launch(text_of(3), ranks=3, environment=with_fault(flavour, tmp_path, "die"))
    assert not finished.ok
    assert not finished.timed_out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meddle.so", "rounds"]


@every_mpi
def test_a_stalled_rank_is_named_by_its_partner(flavour: str, tmp_path: Path) -> None:
    engine = engine_of(flavour, tmp_path)
    environment = with_fault(flavour, tmp_path, "stop")
    finished = engine.launch(text_of(2), "--patience", "1", ranks=2, environment=environment)
    # MPICH's launcher has to kill the stalled rank, and exits with either status or the bits of both.
    alarm, kill = signal.SIGALRM, signal.SIGKILL
    ends = {alarm, kill, alarm | kill} if flavour == "mpich" else {128 + alarm}
    assert finished.exit_status in ends, finished.complaint()
    assert not finished.timed_out
    assert re.search(r"rank 0 on .* had no answer from rank 1 on", finished.complaint())
    assert not engine.out.exists()


@every_mpi
def test_a_slow_partner_is_waited_for(flavour: str, tmp_path: Path) -> None:
    engine = engine_of(flavour, tmp_path)
    linger = with_fault(flavour, tmp_path, "linger")  # patience ends twice during the 55 pings
    finished = engine.launch(text_of(2), "--bandwidth-iterations", "0", "--patience", "1", ranks=2, environment=linger)
    assert finished.ok, finished.complaint()
    assert (finished.stderr + finished.stdout).count(b"meddle: patience has ended") == 4


@every_mpi
def test_the_sanitizers_find_nothing(flavour: str, tmp_path: Path) -> None:
    mpi = mpi_of(flavour)
    engine = FabricEngine(mpi, tmp_path, build_fabric(mpi, SANITIZED))
    # Both libraries keep memory until exit; leaks are checked in the parts without MPI.
    options = (("ASAN_OPTIONS", "detect_leaks=0"),)
    finished = engine.launch(text_of(5, bisection=True), *SHORT, ranks=5, environment=options)
    assert finished.ok, finished.complaint()
    read_fabric_file(engine.out.read_bytes())
