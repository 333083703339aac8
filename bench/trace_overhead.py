"""What the profiler costs: NPB CG with and without it, in random order within each block.

Three figures for each MPI: the paired ratio of run times (with the noise of this machine), the profiler's own account
of its time, and what it adds to the processor time of a call, and of one that tests hundreds of requests in vain, told
by a rank that does nothing but call, which other load on the machine does not touch.

    python bench/trace_overhead.py                       CG class A, 2 ranks, 15 blocks
    python bench/trace_overhead.py --class W --blocks 5

Exit code 4 when the profiler's own account, the added processor time or the whole interval of the ratio is above 2 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearmetal import process
from nearmetal.errors import UnavailableError
from nearmetal.predict.trace_file import read_trace
from nearmetal.stats.compare import estimate_ratio
from nearmetal.stats.widen import BlockFigures
from nearmetal.workloads.apps import build_apps, read_end_block
from nearmetal.workloads.build import build_profiler, profiled
from nearmetal.workloads.mpi.mpi import Job, Mpi
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi, launch
from support.goals import ended, short_of

LIMIT = 0.02
TIMEOUT_S = 300.0
POLLED = 256
"""So many requests a program may poll at once."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One traced run: the timed part, the profiler's own share of it and what it recorded."""

    elapsed_ns: int
    own_share: float
    calls: int
    own_ns_a_call: float
    file_bytes: int


def run_once(mpi: Mpi, arguments: list[str], ranks: int, environment: dict[str, str]) -> int:
    """Run CG once; return its timed part."""
    program = (str(build_apps(mpi)), *arguments)
    crowd = ranks > (os.cpu_count() or 1)
    command = launch(mpi, Job(("here",) * ranks, program, oversubscribed=crowd, environment=tuple(environment.items())))
    finished = process.run(command.argv, env={**os.environ, **command.env}, timeout_s=TIMEOUT_S, check=True)
    return read_end_block(finished.text).elapsed_ns


def run_traced_once(mpi: Mpi, arguments: list[str], ranks: int) -> Measured:
    """Run CG once under the profiler."""
    with tempfile.TemporaryDirectory() as folder:
        elapsed_ns = run_once(mpi, arguments, ranks, profiled(build_profiler(mpi), folder, 1))
        trace = read_trace(Path(folder))
        own = [int(rank.meta["profiler_ns"]) for rank in trace.ranks]
        calls = [sum(time.calls for time in rank.times) for rank in trace.ranks]
        share = max(spent / rank.elapsed_ns for spent, rank in zip(own, trace.ranks, strict=True))
        size = max(path.stat().st_size for path in Path(folder).iterdir())
        return Measured(elapsed_ns, share, max(calls), sum(own) / sum(calls), size)


def added_cpu_ns(mpi: Mpi, *arguments: str, pairs: int = 5) -> float:
    """Return the processor time that the profiler adds to a call: the median over pairs of runs."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "trace_call"
        source = Path(__file__).with_name("trace_call.c")
        process.run([mpi.mpicc, "-O2", str(source), "-o", str(program)], timeout_s=TIMEOUT_S, check=True)
        added = []
        for pair in range(pairs):  # a launch is recorded once
            variables = profiled(build_profiler(mpi), folder, pair + 1)
            plain, traced = (call_cpu_ns(mpi, (str(program), *arguments), given) for given in ({}, variables))
            added.append(traced - plain)
        return float(np.median(added))


def call_cpu_ns(mpi: Mpi, program: tuple[str, ...], environment: dict[str, str]) -> float:
    """Run the calling rank once; return its processor time a call."""
    command = launch(mpi, Job(("here",), program, environment=tuple(environment.items())))
    finished = process.run(command.argv, env={**os.environ, **command.env}, timeout_s=TIMEOUT_S, check=True)
    return float(finished.text)


def measure(mpi: Mpi, arguments: list[str], ranks: int, blocks: int, rng: np.random.Generator) -> list[str]:
    """Measure one MPI and print its line; return what it misses."""
    run_once(mpi, arguments, ranks, {})
    plain: list[int] = []
    traced: list[Measured] = []
    for _ in range(blocks):
        for with_profiler in rng.permutation([True, False]):
            if with_profiler:
                traced.append(run_traced_once(mpi, arguments, ranks))
            else:
                plain.append(run_once(mpi, arguments, ranks, {}))
    figures = BlockFigures(np.array([one.elapsed_ns for one in traced], float), np.array(plain, float))
    estimate = estimate_ratio(figures, rng=rng)
    interval = estimate.interval
    span = f"[{interval.low:.4f}, {interval.high:.4f}]" if interval else "no interval"
    own_share = float(np.median([one.own_share for one in traced]))
    last = traced[-1]
    added_ns = added_cpu_ns(mpi)
    added_share = added_ns * last.calls / float(np.median(plain))
    print(
        f"{mpi.label}: {np.median(plain) / 1e9:.2f} s; "
        f"traced / plain {estimate.ratio:.4f} {span} over {blocks} blocks; "
        f"own account {100 * own_share:.2f} % ({np.median([one.own_ns_a_call for one in traced]):.0f} ns a call, "
        f"{last.calls} calls, {last.file_bytes} bytes a rank); "
        f"adds {added_ns:.0f} ns of processor time a call, {100 * added_share:.3f} % of the run, "
        f"and {added_cpu_ns(mpi, str(POLLED)):.0f} ns to a test of {POLLED} open requests",
        flush=True,
    )
    shares = {"own account": own_share, "added processor time": added_share}
    shares |= {"low end of the ratio's interval": interval.low - 1} if interval else {}
    return [one for what, share in shares.items() for one in short_of(what, 100 * share, 100 * LIMIT, " %")]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", default="cg")
    parser.add_argument("--class", dest="letter", default="A")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    missed, measured = [], 0
    for flavour in FLAVOURS:
        try:
            mpi = find_mpi(flavour)
        except UnavailableError as error:
            print(f"{flavour}: {error.message}")
            continue
        arguments = [options.app, "--class", options.letter]
        missed += [f"{mpi.label}: {one}" for one in measure(mpi, arguments, options.ranks, options.blocks, rng)]
        measured += 1
    return ended(missed) if measured else 3


if __name__ == "__main__":
    sys.exit(main())
