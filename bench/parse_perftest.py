"""How long reading a perftest dump takes: 10^7 lines of `number, microseconds` in memory, three times, the median.

The goal is 3 s. CPU time is told beside wall time, which a busy machine stretches. The values are checked against
those that were written. Exit code 4 when the goal is missed.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from nearmetal.workloads.tools.perftest_dump import parse_dump
from support.goals import ended, short_of

LINES = 10_000_000
GOAL_S = 3.0
ROUNDS = 3


def dump(hundredths: np.ndarray) -> bytes:
    """Return what `ib_write_lat -U` prints for these values (in 0.01 us)."""
    head = b" #bytes #iterations    t_min[usec]\n#, usec\n"
    lines = [
        "".join(f"{number}, {value // 100}.{value % 100:02d}\n" for number, value in enumerate(part, 1 + start))
        for start in range(0, hundredths.size, 100_000)
        for part in (hundredths[start : start + 100_000].tolist(),)
    ]
    return head + "".join(lines).encode() + b" 64 10000001 1.0 2.0 3.0 4.0 5.0 6.0 7.0\n"


def main() -> int:
    """Measure and print."""
    values = np.random.default_rng(1).integers(90, 30_000, LINES)
    data = dump(values)
    took_s, busy_s = [], []
    for _ in range(ROUNDS):
        started_s, used_s = time.perf_counter(), time.process_time()
        read = parse_dump(data)
        took_s.append(time.perf_counter() - started_s)
        busy_s.append(time.process_time() - used_s)
        assert np.array_equal(read, values * 10)
    middle_s = statistics.median(took_s)
    size_mb = len(data) / 1e6
    print(f"{LINES:,} lines ({size_mb:.0f} MB) read in {middle_s:.2f} s, {statistics.median(busy_s):.2f} s of CPU time")
    return ended(short_of("reading", middle_s, GOAL_S, " s"))


if __name__ == "__main__":
    sys.exit(main())
