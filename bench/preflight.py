"""What the look before the first trial costs: processor time of everything that it starts. Goal: under 2 s.

    python bench/preflight.py [--repeats 3]

Local: the shipped study `paths`, five paths in namespaces. Far: two namespaces of this machine that only ssh reaches,
MPI and sockperf over one path; its processor time is the difference between sessions with two looks and with one.
Programs are built beforehand, as they are from the second study on. Wall time depends on the load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.goals import ended, short_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import far_machines
from nearmetal.run.guests import open_host
from nearmetal.run.preflight import preflight
from nearmetal.study.shipped import read_study
from nearmetal.study.spec import parse_study

GOAL_S = 2.0
FAR = """
format = 1
name = "pair"
baseline = "eth"
host = { kind = "ssh" }
path = [{ name = "eth", kind = "declared" }]
workload = [{ name = "latency", sizes = [64] }, { name = "tcp", kind = "sockperf", sizes = [64] }]
"""


def cpu_s() -> float:
    """Return the processor time of this process and all that it has waited for."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def said(_: str) -> None:
    """Take a warning: the machine is busy, which is no matter here."""


def local() -> tuple[float, float]:
    """Return processor and wall seconds of one look."""
    study, _ = read_study(Path("paths"))
    with contextlib.closing(open_host(study, said)) as host:
        preflight(study, host, said)
        before_s, began_s = cpu_s(), time.monotonic()
        preflight(study, host, said)
        return cpu_s() - before_s, time.monotonic() - began_s


def far(looks: int) -> tuple[float, float]:
    """Return processor seconds of a session with that many looks, and wall seconds of the last one."""
    study, before_s, took_s = parse_study(FAR, "far"), cpu_s(), 0.0
    with tempfile.TemporaryDirectory() as name:
        with far_machines.two_machines(Path(name)) as machines:
            for _ in range(looks):
                began_s = time.monotonic()
                preflight(study, machines.host, said)
                took_s = time.monotonic() - began_s
        return cpu_s() - before_s, took_s


def main() -> int:
    """Measure, print; return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NEARMETAL_FAR_CACHE"] = cache
        far(1)
        here = [local() for _ in range(repeats)]
        there = [(far(2), far(1)) for _ in range(repeats)]
    found = {
        "5 local paths": ([cpu for cpu, _ in here], [wall for _, wall in here]),
        "an ssh pair": ([more[0] - less[0] for more, less in there], [more[1] for more, _ in there]),
    }
    for what, (cpu, wall) in found.items():
        middle_s = statistics.median(cpu)
        print(f"{what}: processor {middle_s:.2f} s (most {max(cpu):.2f}), wall {statistics.median(wall):.2f} s")
    print(f"n = {repeats}, load {os.getloadavg()[0]:.1f}")
    shorts = (short_of(f"{what}: processor", statistics.median(cpu), GOAL_S, " s") for what, (cpu, _) in found.items())
    return ended([one for each in shorts for one in each])


if __name__ == "__main__":
    sys.exit(main())
