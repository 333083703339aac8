"""`nearmetal --help` as a whole process: median processor time of 21 runs, beside a Python that does nothing."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

from support.goals import ended, short_of

GOAL_MS = 150
RUNS = 21


def median_ms(argv: list[str]) -> float:
    """Return the median processor time of a command in ms."""
    times = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)
    return statistics.median(times)


def main() -> int:
    """Print both medians; return the status."""
    bare = median_ms([sys.executable, "-c", "pass"])
    ours = median_ms([sys.executable, "-c", "from nearmetal.cli.main import main; main(['--help'])"])
    print(f"nearmetal --help: {ours:.0f} ms (python alone: {bare:.0f} ms), median of {RUNS}")
    return ended(short_of("nearmetal --help", ours, GOAL_MS, " ms"))


if __name__ == "__main__":
    sys.exit(main())
