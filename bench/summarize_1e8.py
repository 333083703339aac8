"""1e8 samples of 40 trials: read, summarize and compare, against polars finding five quantiles of the same files.

    python bench/summarize_1e8.py [--samples 100000000] [--trials 40] [--repeats 3] [--dir DIR]

Both sides run in a process of their own, in turn, on warm files; the time is from the first file opened to the last
figure known, without imports. Files are checked against their recorded SHA-256, as in a run. The peer gets the faster
of polars' two ways (lazy over all files, or read and then ask). The cost of the check is measured separately, in one
process: each file is read and summarized with and without it, in turn. Needs `polars` (dependency group `bench`). Exit
code 4 if the ratio exceeds 1.5, memory reaches 2 GiB or the check costs more than 3 % of processor time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from nearmetal.stats.compare import compare, correct_family, noise_floor, pair_launches
from nearmetal.stats.summary import HEADLINE, Summary, summarize
from nearmetal.store.samples import CellSamples, StoredCell, describe, part_sums, read_values, write_samples
from support.goals import ended, short_of

COMBINATIONS = ("baseline", "baseline again", "path a", "path b")
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
RATIO_LIMIT = 1.5
MEMORY_LIMIT_BYTES = 2 * 2**30
VERIFY_LIMIT = 0.03


def generate(directory: Path, samples: int, trials: int) -> None:
    """Write `trials` files of samples in the store's own format: log-normal around 8 us with rare spikes."""
    each = samples // trials
    for trial in range(trials):
        rng = np.random.default_rng([2026, trial])
        typical_ns = 8_000.0 * rng.lognormal(0.0, 0.01) * (1.3 if trial % len(COMBINATIONS) == 3 else 1.0)
        ns = (typical_ns * rng.lognormal(0.0, 0.25, each)).astype(np.int64)
        ns[rng.random(each) < 1e-3] *= 50
        begin_ns = np.cumsum(ns + 120)
        cell = CellSamples("latency", 8, 0, (0,), begin_ns[None], ns[None], np.zeros((1, each), np.uint8))
        path = directory / f"{trial:03d}.parquet"
        write_samples(path, [cell])
        path.with_suffix(".json").write_text(json.dumps(part_sums(path, describe([cell]))), encoding="utf-8")


def one_trial(path: Path, *, verified: bool = True) -> Summary:
    """Read and summarize one file, checked against its recorded sums or not."""
    cell = StoredCell("latency", 8, 1, pq.read_metadata(path).num_rows, 0, (0,), 0)
    directory_sum, cell_sum = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return summarize(read_values(path, cell, parts=(directory_sum, cell_sum) if verified else None))


def cost_of_verifying(directory: Path) -> str:
    """Read and summarize each file both ways in turn; return what holding it against its sums costs, CPU and wall."""
    spent: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number, path in enumerate(sorted(directory.glob("*.parquet"))):
        for verified in (True, False) if number % 2 else (False, True):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            one_trial(path, verified=verified)
            spent[verified].append((time.process_time() - begin_cpu, time.perf_counter() - begin))
    with_sums, without = np.array(spent[True]), np.array(spent[False])
    return json.dumps(np.median(with_sums / without - 1, axis=0).tolist())


def nearmetal(directory: Path) -> str:
    """Summarize every trial and compare the paths over blocks; return the verdicts."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        summaries = list(pool.map(one_trial, sorted(directory.glob("*.parquet"))))

    def launches(path: int) -> dict[int, Summary]:
        return dict(enumerate(summaries[path :: len(COMBINATIONS)]))

    rng = np.random.default_rng(1)
    pairs = [pair_launches([launches(k)], [launches(0), launches(1)])[0] for k in (2, 3)]
    found = correct_family([compare(one, rng=rng) for one in pairs])
    floor = noise_floor(pair_launches([launches(1)], [launches(0)])[0][HEADLINE], rng=rng).floor
    return f"{[str(c.verdict) for c in found]}, noise floor {floor:.2%}"


def polars_lazy(directory: Path) -> str:
    """Find five quantiles of all samples with a lazy scan."""
    import polars as pl  # noqa: PLC0415  (a peer: its import must not weigh on nearmetal's process)

    asked = [pl.col("ns").quantile(q).alias(str(q)) for q in QUANTILES]
    return str(pl.scan_parquet(directory / "*.parquet").select(asked).collect().row(0))


def polars_eager(directory: Path) -> str:
    """Read the column, then ask the series for each quantile."""
    import polars as pl  # noqa: PLC0415

    series = pl.read_parquet(directory / "*.parquet", columns=["ns"])["ns"]
    return str([series.quantile(q) for q in QUANTILES])


RACERS = {f.__name__: f for f in (nearmetal, polars_lazy, polars_eager)}
ROLES = {**RACERS, cost_of_verifying.__name__: cost_of_verifying}


def play(role: str, directory: Path) -> None:
    """Run one side in this process and print seconds, peak memory and answer as JSON."""
    if role.startswith("polars"):
        importlib.import_module("polars")  # imports are not what is compared
    begin, begin_cpu = time.perf_counter(), time.process_time()
    answer = ROLES[role](directory)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak_bytes, "answer": answer}))


def run_role(role: str, directory: Path) -> dict[str, Any]:
    """Return what one role found, from a process of its own."""
    command = [sys.executable, __file__, "--role", role, "--dir", str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def race(directory: Path, repeats: int) -> int:
    """Run all sides in turn, print the figures, and return the status."""
    seconds: dict[str, list[float]] = {role: [] for role in RACERS}
    cpu: dict[str, list[float]] = {role: [] for role in RACERS}
    peak: dict[str, int] = {}
    answers: dict[str, str] = {}
    costs: list[list[float]] = []
    for _ in range(repeats):
        for role in RACERS:
            told = run_role(role, directory)
            seconds[role].append(told["seconds"])
            cpu[role].append(told["cpu_seconds"])
            peak[role] = max(peak.get(role, 0), told["peak_bytes"])
            answers[role] = told["answer"]
        costs.append(json.loads(run_role(cost_of_verifying.__name__, directory)["answer"]))
    for role in RACERS:
        print(
            f"{role:14s} median {statistics.median(seconds[role]):6.2f} s  best {min(seconds[role]):6.2f} s  "
            f"CPU {statistics.median(cpu[role]):6.2f} s  peak {peak[role] / 2**20:6.0f} MiB  {answers[role]}"
        )
    peer = min(statistics.median(seconds[role]) for role in RACERS if role != "nearmetal")
    ratio = statistics.median(seconds["nearmetal"]) / peer
    size = sum(p.stat().st_size for p in directory.glob("*.parquet"))
    print(f"ratio to the faster polars {ratio:.2f}, files {size / 2**20:.0f} MiB")
    cost_cpu, cost_wall = np.median(costs, axis=0)
    pairs = repeats * len(list(directory.glob("*.parquet")))
    print(f"holding files against their sums: {cost_cpu:+.1%} CPU, {cost_wall:+.1%} wall")
    print(f"  medians of {pairs} pairs in {repeats} processes: {', '.join(f'{one:+.1%}' for one, _ in costs)} CPU")
    missed = short_of("ratio to the faster polars", ratio, RATIO_LIMIT)
    missed += short_of("peak memory", peak["nearmetal"] / 2**20, MEMORY_LIMIT_BYTES / 2**20, " MiB")
    return ended(missed + short_of("sums, processor time", 100 * cost_cpu, 100 * VERIFY_LIMIT, " %"))


def main() -> int:
    """Generate the data, race, clean up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to put the files (default: a new temporary directory)")
    parser.add_argument("--role", choices=tuple(ROLES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        play(options.role, options.dir)
        return 0
    with tempfile.TemporaryDirectory(prefix="nearmetal-bench-", dir=options.dir) as name:
        generate(Path(name), options.samples, options.trials)
        return race(Path(name), options.repeats)


if __name__ == "__main__":
    sys.exit(main())
