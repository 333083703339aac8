"""The applications against what this machine can do at most, and what stamping their iterations costs.

The reference implementation of the NAS benchmarks is not at hand, so each kernel's rate is set beside a measured
ceiling (bench/ceiling.c) with as many processes at once: memory traffic beside a STREAM-like triad over the same
footprint, arithmetic beside a loop of multiply-adds and beside a loop of the one formula that EP cannot do without.
The traffic is what the algorithm must move at least, counted below; caches may have moved less or more.

    python bench/apps_speed.py               EP, CG and IS class A on 2 ranks
    python bench/apps_speed.py --runs 3      quicker

Stamping: CG class A built with and without stamps, launched in turn on one rank; goal: less than 1 % more processor
time, which others on the machine disturb less than the clock on the wall. The figure is the middle of the paired ratios
with its 95 % interval, and beside it the bound: stamps taken on two ranks times what one costs. Exit code 4 when the
interval lies above the goal, 3 without an MPI.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearmetal import process
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.workloads.apps import EndBlock, build_apps, read_end_block
from nearmetal.workloads.mpi.mpi import Job
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi, launch
from support.goals import ended, short_of

if TYPE_CHECKING:
    from nearmetal.workloads.mpi.mpi import Mpi

RANKS = 2
GOAL = 0.01
TIMEOUT_S = 300.0
CG_STEPS = 26  # products an iteration: 25 steps and the residual
CG_MATRIX_BYTES = 12  # a nonzero: its value and its column
CG_VECTOR_BYTES = 8 * 13  # an unknown and step: 10 reads and 3 writes of z, r, p, q
IS_BYTES = 24  # a key: read twice, grouped, sent, received, counted
EP_FLOPS = 26.5  # a pair: 9, and for 78.5 % of pairs 22, of which 15 in the logarithm
EP_ACCEPTED = np.pi / 4


@dataclass(frozen=True, slots=True)
class Run:
    """One launch: its end block and all that it printed."""

    block: EndBlock
    text: str


def start(mpi: Mpi, program: str, *arguments: str, ranks: int = RANKS) -> str:
    """Launch on this machine and return what was printed; raise NearmetalError when it failed."""
    command = launch(mpi, Job(nodes=("here",) * ranks, program=(program, *arguments)))
    return process.run(command.argv, timeout_s=TIMEOUT_S, env={**os.environ, **command.env}, check=True).text


def run_app(mpi: Mpi, program: str, name: str) -> Run:
    """Launch an application's class A."""
    text = start(mpi, program, name, "--class", "A")
    return Run(read_end_block(text), text)


def fastest(mpi: Mpi, program: str, name: str, runs: int) -> tuple[Run, float]:
    """Return the fastest run, and the median Mop/s of all: others load this machine."""
    done = [run_app(mpi, program, name) for _ in range(runs)]
    return min(done, key=lambda run: run.block.elapsed_ns), statistics.median(run.block.mops for run in done)


def ceilings(mpi: Mpi, folder: str, footprints_kib: list[int]) -> tuple[dict[int, float], float, float]:
    """Return triad MB/s by footprint, Gflop/s, and million roots a second, each summed over the ranks."""
    program = str(Path(folder) / "ceiling")
    source = Path(__file__).with_name("ceiling.c")
    flags = ["-std=c11", "-O3", "-march=native", "-ffp-contract=fast", "-Wall", "-Wextra", "-D_GNU_SOURCE"]
    process.run([mpi.mpicc, *flags, "-o", program, str(source), "-lm"], timeout_s=120, check=True)
    text = start(mpi, program, *(str(kib) for kib in footprints_kib))
    triad = {int(kib): float(rate) for kib, rate in re.findall(r"^triad (\d+) (\d+)$", text, re.MULTILINE)}
    (flops,) = re.findall(r"^flops ([\d.]+)$", text, re.MULTILINE)
    (roots,) = re.findall(r"^roots ([\d.]+)$", text, re.MULTILINE)
    return triad, float(flops), float(roots)


def print_speed(mpi: Mpi, program: str, runs: int, folder: str) -> int:
    """Print the rate of the three kernels, each with its ceiling; return the ns that CG took."""
    ep, ep_median = fastest(mpi, program, "ep", runs)
    cg, cg_median = fastest(mpi, program, "cg", runs)
    integer, is_median = fastest(mpi, program, "is", runs)

    nonzeros = int(re.findall(r"nonzeros (\d+)", cg.text)[0])
    cg_step_bytes = nonzeros * CG_MATRIX_BYTES + int(cg.block.size) * CG_VECTOR_BYTES
    cg_mbps = 1e3 * cg.block.iterations * CG_STEPS * cg_step_bytes / cg.block.elapsed_ns
    keys = int(integer.block.size)
    is_mbps = 1e3 * integer.block.iterations * keys * IS_BYTES / integer.block.elapsed_ns
    pairs_per_ns = int(ep.block.size) / 2 / ep.block.elapsed_ns

    cg_kib, is_kib, memory_kib = cg_step_bytes // RANKS // 1024, keys * 12 // RANKS // 1024, 256 * 1024
    triad, gflops, roots = ceilings(mpi, folder, [cg_kib, is_kib, memory_kib])
    print(f"class A on {RANKS} ranks, {mpi.label}, fastest of {runs} (median in brackets)")
    print(f"  EP {ep.block.mops:9.1f} Mop/s ({ep_median:.1f})")
    print(f"     {pairs_per_ns * EP_FLOPS:9.2f} Gflop/s of {gflops:.1f} in a loop of vector multiply-adds")
    print(f"     {1e3 * pairs_per_ns * EP_ACCEPTED:9.1f} M roots/s of {roots:.1f} in a loop of nothing else")
    print(f"  CG {cg.block.mops:9.1f} Mop/s ({cg_median:.1f})")
    print(f"     {cg_mbps:9.0f} MB/s of {triad[cg_kib]:.0f} of the triad over {cg_kib} KiB a rank")
    print(f"  IS {integer.block.mops:9.1f} Mop/s ({is_median:.1f})")
    print(f"     {is_mbps:9.0f} MB/s of {triad[is_kib]:.0f} of the triad over {is_kib} KiB a rank")
    print(f"  triad over 256 MiB a rank: {triad[memory_kib]:.0f} MB/s")
    return cg.block.elapsed_ns


def processor_s(mpi: Mpi, program: str) -> float:
    """Return the user time of one launch of CG class A on one rank, launcher included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    start(mpi, program, "cg", "--class", "A", ranks=1)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def stamping_cost(mpi: Mpi, program: str, pairs: int) -> tuple[float, float, float]:
    """Return the paired median of stamped / unstamped - 1 and its 95 % interval."""
    bare = str(build_apps(mpi, ("-DRUN_UNSTAMPED",)))
    ratios = []
    for pair in range(pairs):
        order = (program, bare) if pair % 2 == 0 else (bare, program)
        taken_s = {each: processor_s(mpi, each) for each in order}
        ratios.append(taken_s[program] / taken_s[bare] - 1.0)
    drawn = np.random.default_rng(1).choice(ratios, size=(10_000, pairs))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return statistics.median(ratios), float(low), float(high)


def _stamps_of_cg() -> int:
    """Count the stamps of CG class A on 2 ranks: two for each exchange, transposition and iteration."""
    exchanges = (
        2 * CG_STEPS + 2 * (CG_STEPS - 1) + 3
    )  # product: sum and transposition; dots: 2 a step, 2 more, 1 outside
    return 15 * (2 * exchanges + 2)


def _stamp_ns() -> float:
    """Return what one CLOCK_MONOTONIC_RAW stamp costs at most, call from Python included."""
    stamps = [time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) for _ in range(10_001)]
    return float(np.median(np.diff(stamps)))


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=21, help="launches with and without stamps")
    parser.add_argument("--mpi", choices=sorted(FLAVOURS), default="mpich")
    asked = parser.parse_args()
    try:
        mpi = find_mpi(asked.mpi)
        program = str(build_apps(mpi))
        with tempfile.TemporaryDirectory() as folder:
            cg_ns = print_speed(mpi, program, asked.runs, folder)
        middle, low, high = stamping_cost(mpi, program, asked.pairs)
    except UnavailableError as error:
        print(error.render(), file=sys.stderr)
        return 3
    except NearmetalError as error:
        print(error.render(), file=sys.stderr)
        return 1
    print(f"stamping CG class A: {middle:+.2%} [{low:+.2%}, {high:+.2%}] over {asked.pairs} pairs")
    print(f"  bound by counting: {_stamps_of_cg() * _stamp_ns() / cg_ns:.3%}")
    return ended(short_of("stamping CG, low end of its interval", 100 * low, 100 * GOAL, " %"))


if __name__ == "__main__":
    sys.exit(main())
