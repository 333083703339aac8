"""`nearmetal --help` as a whole process: median of 21 runs, beside a Python that does nothing. Goal: under 150 ms."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

GOAL_MS = 150
RUNS = 21


def median_ms(argv: list[str]) -> float:
    """Return the median wall time of a command in ms."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def main() -> None:
    """Print both medians; exit 1 above the goal."""
    bare = median_ms([sys.executable, "-c", "pass"])
    ours = median_ms([sys.executable, "-c", "from nearmetal.cli.main import main; main(['--help'])"])
    print(f"nearmetal --help: {ours:.0f} ms (python alone: {bare:.0f} ms), median of {RUNS}; goal {GOAL_MS} ms")
    sys.exit(ours > GOAL_MS)


if __name__ == "__main__":
    main()
