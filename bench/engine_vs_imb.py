"""nearmetal's engine against IMB-MPI1 PingPong: the same MPI library, the same way, launches in turn.

IMB times a whole loop and prints the loop's mean half round trip, rounded to 10 ns. So both measure in short loops of
the same length, many in each launch (the size is asked for again and again); a loop's mean is its figure on both
sides, and what is compared is the middle of those figures over all launches: the mean of their middle half, a median
that rounding does not make coarse. The fastest tenth is shown too, for machines that others load. Launches of both
alternate, so that a slow phase of the machine meets both. IMB comes with Intel's `impi-devel` wheel and runs on the
MPICH wheel, whose library has the same binary interface.

    python bench/engine_vs_imb.py                    goal: every ratio within 0.97-1.03
    python bench/engine_vs_imb.py --launches 5       quicker

Also stated: what recording an iteration costs. Exit code 4 when a ratio misses the goal, 3 without IMB or MPICH.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearmetal import process
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.workloads.build import build_engine
from nearmetal.workloads.mpi.table import find_mpi
from nearmetal.workloads.sample_file import SampleFile, read_sample_file
from support.goals import ended

if TYPE_CHECKING:
    from nearmetal.workloads.mpi.mpi import Mpi

GOAL = (0.97, 1.03)
MIDDLE = (0.25, 0.75)
FASTEST = (0.0, 0.1)
SIZES = (8, 1024, 65536)
LOOPS = 21
"""Loops of each size in a launch; the first warms up what the others use, and is left out on both sides."""
TIMEOUT_S = 120.0
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Way:
    """One way between the two ranks: `env` makes the MPI take it, `iterations` are those of one loop."""

    name: str
    env: dict[str, str]
    iterations: int


WAYS = (
    Way("shared memory", {"UCX_TLS": "self,sm"}, 100),
    Way("TCP, this machine", {"UCX_TLS": "self,tcp", "MPIR_CVAR_NOLOCAL": "1"}, 50),
)


@dataclass(frozen=True, slots=True)
class Peers:
    """The two programs and the MPI that runs them."""

    mpi: Mpi
    engine: Path
    imb: Path
    folder: Path

    def launch(self, way: Way, *program: str) -> str:
        """Run a program with two ranks, each on a core of its own; return what it printed."""
        env = {**os.environ, **way.env, "LD_LIBRARY_PATH": str(Path(self.mpi.mpirun).parents[1] / "lib")}
        argv = [self.mpi.mpirun, "-bind-to", "core", "-n", "2", *program]
        return process.run(argv, env=env, timeout_s=TIMEOUT_S, check=True).text

    def engine_file(self, way: Way) -> SampleFile:
        """Launch the engine; return all that it stamped."""
        out = self.folder / "samples.nmb"
        sizes = ",".join(str(size) for size in SIZES for _ in range(LOOPS))
        counts = ("--iterations", str(way.iterations), "--warmup", "4")
        self.launch(way, str(self.engine), "--op", "latency", "--sizes", sizes, *counts, "--out", str(out))
        return read_sample_file(out.read_bytes())

    def imb_us(self, way: Way) -> np.ndarray:
        """Launch IMB; return the half round trips that it prints, shape (sizes, loops)."""
        lengths = self.folder / "lengths"
        lengths.write_text("".join(f"{size}\n" * LOOPS for size in SIZES))
        counts = ("-iter", str(way.iterations), "-iter_policy", "off", "-time", "60")
        printed = self.launch(way, str(self.imb), "PingPong", "-msglen", str(lengths), *counts)
        rows = [(int(size), int(done), float(us)) for size, done, us in _ROW.findall(printed)]
        wanted = [(size, way.iterations) for size in SIZES for _ in range(LOOPS)]
        if [(size, done) for size, done, _ in rows] != wanted:
            raise NearmetalError(f"IMB did not make {len(wanted)} loops of {way.iterations}:\n{printed}")
        return np.array([us for _, _, us in rows]).reshape(len(SIZES), LOOPS)


def find_peers(folder: Path) -> Peers:
    """Return both programs; raise UnavailableError without IMB or MPICH."""
    imb = Path(sys.executable).parent / "IMB-MPI1"
    if not imb.exists():
        raise UnavailableError(f"{imb} is missing", hint="`pip install impi-devel==2021.18.1`")
    mpi = find_mpi("mpich")
    return Peers(mpi, build_engine(mpi), imb, folder)


def engine_us(file: SampleFile) -> np.ndarray:
    """Return the mean half round trip of each loop, shape (sizes, loops)."""
    means = [(cell.end_ns - cell.begin_ns)[0, cell.warmup :].mean() / 2e3 for cell in file.cells]
    return np.array(means).reshape(len(SIZES), LOOPS)


def recording_ns(file: SampleFile) -> tuple[float, float]:
    """Return what a stamp costs, and the median time from an iteration's end to the next one's begin."""
    gaps = np.concatenate([cell.begin_ns[0, 1:] - cell.end_ns[0, :-1] for cell in file.cells])
    return float(max(file.header.clock_cost_ns)), float(np.median(gaps))


def between_shares(loops: list[np.ndarray], size: int, low: float, high: float) -> float:
    """Return the mean of a size's loops whose rank, over all launches, lies between two shares."""
    values = np.sort(np.concatenate([launch[size, 1:] for launch in loops]))
    return float(values[int(values.size * low) : int(values.size * high)].mean())


def compare(peers: Peers, way: Way, launches: int) -> list[str]:
    """Measure one way and print its rows; return what missed the goal."""
    ours, theirs, recording = [], [], []
    for launch in range(launches):
        if launch % 2:
            theirs.append(peers.imb_us(way))
        file = peers.engine_file(way)
        ours.append(engine_us(file))
        recording.append(recording_ns(file))
        if not launch % 2:
            theirs.append(peers.imb_us(way))
    missed = []
    for index, size in enumerate(SIZES):
        mine, other = (between_shares(loops, index, *MIDDLE) for loops in (ours, theirs))
        fast, other_fast = (between_shares(loops, index, *FASTEST) for loops in (ours, theirs))
        print(
            f"{way.name:18} {size:6d} B  engine {mine:8.3f} us  IMB {other:8.3f} us  ratio {mine / other:.3f}"
            f"   fastest tenth {fast:8.3f} / {other_fast:.3f} us = {fast / other_fast:.3f}"
        )
        if not GOAL[0] <= mine / other <= GOAL[1]:
            missed.append(f"{way.name}, {size} B: {mine / other:.3f}, goal {GOAL[0]} to {GOAL[1]}")
    stamp, between = np.median(recording, axis=0)
    print(f"{way.name:18} two stamps an iteration, {stamp:.0f} ns each; end to next begin {between:.0f} ns")
    return missed


def main() -> int:
    """Compare on every way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--launches", type=int, default=20, help="launches of each program on each way")
    launches: int = parser.parse_args().launches
    with tempfile.TemporaryDirectory() as folder:
        try:
            peers = find_peers(Path(folder))
        except UnavailableError as error:
            print(error.render(), file=sys.stderr)
            return int(error.exit_code)
        print(f"{peers.mpi.label}, {launches} launches of {LOOPS - 1} loops each, half round trips")
        missed = [line for way in WAYS for line in compare(peers, way, launches)]
    return ended(missed)


if __name__ == "__main__":
    sys.exit(main())
