"""1e8 samples of 40 trials: read, summarize and compare, against polars finding five quantiles of the same files.

    python bench/summarize_1e8.py [--samples 100000000] [--trials 40] [--repeats 3] [--dir DIR]

Both sides run in a process of their own, in turn, on warm files; the time is from the first file opened to the last
figure known, imports left out. The peer gets the faster of polars' two ways (lazy over all files, or read and then
ask). Needs `polars` (dependency group `bench`). Exit code 1 when the ratio exceeds 1.5 or memory reaches 2 GiB.
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

import numpy as np

from nearmetal.stats import Summary, compare, correct_family, noise_floor, summarize
from nearmetal.stats.compare import pair_launches
from nearmetal.stats.summary import HEADLINE
from nearmetal.store.samples import Cell, CellSamples, describe, read_values, write_samples

COMBINATIONS = ("baseline", "baseline again", "path a", "path b")
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
RATIO_LIMIT = 1.5
MEMORY_LIMIT_BYTES = 2 * 2**30


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
        write_samples(directory / f"{trial:03d}.parquet", [cell])
        (directory / "cell.json").write_text(json.dumps(describe([cell])[0].iterations), encoding="utf-8")


def nearmetal(directory: Path) -> str:
    """Summarize every trial and compare the paths over blocks; return the verdicts."""
    iterations = json.loads((directory / "cell.json").read_text(encoding="utf-8"))
    cell = Cell("latency", 8, 1, iterations, 0, (0,), 0)

    def one(path: Path) -> Summary:
        return summarize(read_values(path, cell))

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        summaries = list(pool.map(one, sorted(directory.glob("*.parquet"))))

    def launches(path: int) -> dict[int, Summary]:
        return dict(enumerate(summaries[path :: len(COMBINATIONS)]))

    rng = np.random.default_rng(1)
    pairs = [pair_launches(launches(k), [launches(0), launches(1)])[0] for k in (2, 3)]
    found = correct_family([compare(one, rng=rng) for one in pairs])
    floor = noise_floor(pair_launches(launches(1), [launches(0)])[0][HEADLINE], rng=rng).floor
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


ROLES = {f.__name__: f for f in (nearmetal, polars_lazy, polars_eager)}


def play(role: str, directory: Path) -> None:
    """Run one side in this process and print seconds, peak memory and answer as JSON."""
    if role != "nearmetal":
        importlib.import_module("polars")  # imports are not what is compared
    begin, begin_cpu = time.perf_counter(), time.process_time()
    answer = ROLES[role](directory)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak_bytes, "answer": answer}))


def race(directory: Path, repeats: int) -> int:
    """Run all sides in turn, print the figures, and return the exit code."""
    seconds: dict[str, list[float]] = {role: [] for role in ROLES}
    cpu: dict[str, list[float]] = {role: [] for role in ROLES}
    peak: dict[str, int] = {}
    answers: dict[str, str] = {}
    for _ in range(repeats):
        for role in ROLES:
            command = [sys.executable, __file__, "--role", role, "--dir", str(directory)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
            told = json.loads(done.stdout)
            seconds[role].append(told["seconds"])
            cpu[role].append(told["cpu_seconds"])
            peak[role] = max(peak.get(role, 0), told["peak_bytes"])
            answers[role] = told["answer"]
    for role in ROLES:
        print(
            f"{role:14s} median {statistics.median(seconds[role]):6.2f} s  best {min(seconds[role]):6.2f} s  "
            f"CPU {statistics.median(cpu[role]):6.2f} s  peak {peak[role] / 2**20:6.0f} MiB  {answers[role]}"
        )
    peer = min(statistics.median(seconds[role]) for role in ROLES if role != "nearmetal")
    ratio = statistics.median(seconds["nearmetal"]) / peer
    size = sum(p.stat().st_size for p in directory.glob("*.parquet"))
    print(f"ratio to the faster polars {ratio:.2f} (target <= {RATIO_LIMIT}), files {size / 2**20:.0f} MiB")
    return int(ratio > RATIO_LIMIT or peak["nearmetal"] >= MEMORY_LIMIT_BYTES)


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
