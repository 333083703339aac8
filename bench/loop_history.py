"""Tell how much small collectives take by what a program did before its timed loop.

A loop like that of the OSU benchmarks, begun after no, one or two MPI_Bcast, and nmbench's own (means over ranks), in
launches that take turns. There is no goal: it shows how far apart two programs may be that measure the same
(docs/reference/engine.md). Exit code 3 without Open MPI.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from nearmetal.errors import UnavailableError
from nearmetal.workloads.build import build_engine
from nearmetal.workloads.mpi.mpi import Job, Mpi
from nearmetal.workloads.mpi.table import find_mpi, launch
from nearmetal.workloads.sample_file import read_sample_file

LAUNCHES = 21
SOURCE = Path(__file__).with_suffix(".c")
LENGTHS = ("--warmup", "500", "--iterations", "5000")
BROADCASTS = ("0", "1", "2")
NMBENCH = "nmbench"


def run(mpi: Mpi, *program: str) -> str:
    """Launch two ranks that share memory, a core each, and return what they printed."""
    line = launch(mpi, Job(("here", "here"), program, bind="core"))
    environment = {**os.environ, **line.env}
    return subprocess.run(line.argv, env=environment, capture_output=True, text=True, check=True).stdout


def of_nmbench(mpi: Mpi, engine: str, operation: str, folder: str) -> float:
    """Return the median over iterations of the mean over ranks, in ns."""
    sizes = ("--sizes", "8") if operation == "allreduce" else ()
    out = Path(folder, "samples")
    run(mpi, engine, "--op", operation, *sizes, *LENGTHS, "--out", str(out))
    (cell,) = read_sample_file(out.read_bytes()).cells
    return float(np.median((cell.end_ns - cell.begin_ns)[:, cell.warmup :].mean(axis=0)))


def measure(mpi: Mpi, engine: str, operation: str, folder: str) -> dict[str, list[float]]:
    """Return the ns of each launch of each case."""
    loop = f"{folder}/loop"
    subprocess.run([mpi.mpicc, "-O2", "-o", loop, SOURCE], check=True)
    found: dict[str, list[float]] = {case: [] for case in (*BROADCASTS, NMBENCH)}
    for _ in range(LAUNCHES):
        for case in random.sample(list(found), len(found)):
            own = case == NMBENCH
            found[case].append(
                of_nmbench(mpi, engine, operation, folder) if own else float(run(mpi, loop, operation, case))
            )
    return found


def main() -> int:
    """Measure and print a line an operation and case."""
    try:
        mpi = find_mpi("openmpi")
        engine = str(build_engine(mpi))
    except UnavailableError as error:
        sys.stderr.write(f"{error.render()}\n")
        return 3
    for operation in ("allreduce", "barrier"):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(mpi, engine, operation, folder)
        for case, ns in found.items():
            ratio = statistics.median(mine / other for mine, other in zip(ns, found[BROADCASTS[0]], strict=True))
            called = case if case == NMBENCH else f"after {case} MPI_Bcast"
            print(f"{operation}, {called}: median {statistics.median(ns):.0f} ns, {ratio:.2f} times the first")
    print(f"{mpi.label}, {LAUNCHES} launches of each in turn, load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
