"""Shared by the engine's tests: every MPI of this machine, and one way to run the engine."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal import process
from nearmetal.errors import UnavailableError
from nearmetal.workloads.build import build_engine
from nearmetal.workloads.mpi.mpi import Job, Mpi
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi, launch
from nearmetal.workloads.sample_file import SampleFile, read_sample_file

if TYPE_CHECKING:
    from nearmetal.process import Finished
    from nearmetal.study.order import Progress

REPOSITORY = Path(__file__).parents[1]
STRICT = ("-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wpedantic")
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
LAUNCH_TIMEOUT_S = 600.0


@functools.cache
def _found(flavour: str) -> Mpi | str:
    try:
        return find_mpi(flavour)
    except UnavailableError as error:
        return error.message


def mpi_of(flavour: str) -> Mpi:
    """Return the MPI of that flavour; skip the test when this machine has none with a compiler."""
    found = _found(flavour)
    if isinstance(found, str):
        pytest.skip(found)
    if not found.mpicc:
        pytest.skip(f"{found.label} has no mpicc")
    return found


def sleeping(flavour: str) -> Progress:
    """Return how ranks of this machine's MPI wait so that they leave the processors to other tests, if they can."""
    found = _found(flavour)
    return "polling" if isinstance(found, str) or found.major < 5 else "blocking"


def job_here(mpi: Mpi, program: tuple[str, ...], *, ranks: int, environment: tuple[tuple[str, str], ...] = ()) -> Job:
    """Return a launch on this machine; waiting ranks sleep if their MPI supports it, because tests share the cores."""
    nodes, progress = ("here",) * ranks, sleeping(mpi.flavour)
    return Job(nodes=nodes, program=program, oversubscribed=True, environment=environment, progress=progress)


every_mpi = pytest.mark.parametrize("flavour", FLAVOURS)


@dataclass(frozen=True, slots=True)
class Bench:
    """The engine of one MPI, with a folder for its files."""

    mpi: Mpi
    folder: Path
    program: Path

    @property
    def out(self) -> Path:
        return self.folder / "samples.nmb"

    def launch(self, *options: str, ranks: int = 2, environment: tuple[tuple[str, str], ...] = ()) -> Finished:
        """Run the engine on this machine to its end."""
        program = (str(self.program), *options, "--out", str(self.out))
        command = launch(self.mpi, job_here(self.mpi, program, ranks=ranks, environment=environment))
        return process.run(command.argv, timeout_s=LAUNCH_TIMEOUT_S, env={**os.environ, **command.env})

    def measure(self, *options: str, ranks: int = 2) -> SampleFile:
        """Run the engine and read what it wrote."""
        finished = self.launch(*options, ranks=ranks)
        assert finished.ok, finished.complaint()
        return read_sample_file(self.out.read_bytes())


def bench_of(flavour: str, folder: Path) -> Bench:
    """Return the engine built for a flavour, or skip."""
    mpi = mpi_of(flavour)
    return Bench(mpi, folder, build_engine(mpi))
