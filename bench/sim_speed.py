"""Speed and memory of the simulator; each case runs in a process of its own, so that memory is its own.

    python bench/sim_speed.py            # all cases
    python bench/sim_speed.py --case halo-1024

A halo with six neighbours of 8 KiB, 16 ranks a node sharing one port, one virtual function a node with an interrupt
stage (usecs 8, frames 32) and latency tails on every message. `rate` counts messages per second of processor time of
one core, `rate_wall` per second of the clock. Goals: GOALS. Exit code 4 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from nearmetal.predict import _sim
from nearmetal.predict.models import UNBOUNDED, Distribution, Machine, PathModel, Segment
from nearmetal.predict.moderation import Moderation, ModerationSetting, StageSetting
from nearmetal.predict.native import Placement, native_job
from nearmetal.predict.patterns import Pattern, schedule_from_pattern
from support.goals import ended, short_of, worst

NS = 1000
GOALS = {
    "halo-1024": ("rate", 2e6, True),
    "halo-131072": ("rate", 1e6, True),
    "halo-1048576": ("memory_mib", 2048, False),
    "replicas": ("speed_up", 1.7, True),
    "start": ("start_up_wall_s", 0.3, False),
}
"""Of each case: the figure, its bound, and whether more is better."""
CASES = {"halo-1024": (1024, 300), "halo-131072": (131_072, 8), "halo-1048576": (1_048_576, 3)}
TAIL = Distribution((0.0, 0.5, 0.9, 0.99, 0.999, 0.9999), (0, 200 * NS, 800 * NS, 3000 * NS, 20_000 * NS, 100_000 * NS))


def machine() -> Machine:
    """Return a virtual path over 100 Gbit/s with moderation and tails."""

    def path(latency_ns: int) -> PathModel:
        return PathModel((Segment(UNBOUNDED, latency_ns * NS, 300 * NS, 300 * NS, 100 * NS, 80_000, 80_000, TAIL),))

    stage = StageSetting(
        moderation=ModerationSetting(Moderation.FIXED_EQE, usecs=8, frames=32),
        delivery_ps=1500 * NS,
        poll_ps=500 * NS,
        packet_ps=100 * NS,
    )
    return Machine(intra=path(300), inter=path(1000), port_fs_per_byte=80_000, stage=stage)


def halo(ranks: int, steps: int) -> _sim.Job:
    """Return the sealed job of a case."""
    pattern = Pattern(kind="halo", ranks=ranks, steps=steps, message_bytes=8192, compute="50 us", compute_spread=0.1)
    return native_job(schedule_from_pattern(pattern), machine(), Placement.block(ranks, 16))


def run_case(name: str) -> dict[str, float]:
    """Run one case in this process."""
    begin = time.perf_counter()
    job = halo(*CASES[name])
    started = time.perf_counter() - begin
    wall, cpu = time.perf_counter(), time.process_time()
    result = _sim.simulate(job, 1, 0, 1, 1, False)[0]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "messages": result.messages,
        "interrupts": result.interrupts,
        "setup_s": round(started, 4),
        "rate": round(result.messages / cpu),
        "rate_wall": round(result.messages / wall),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def run_replicas() -> dict[str, float]:
    """Speed-up of eight replicas on two threads."""
    job = halo(1024, 60)
    seconds = {}
    for threads in (1, 2):
        begin = time.perf_counter()
        results = _sim.simulate(job, 1, 0, 8, threads, False)
        seconds[threads] = time.perf_counter() - begin
    assert len({result.makespan_ps for result in results}) == 8
    return {"one_thread_s": round(seconds[1], 3), "two_threads_s": round(seconds[2], 3),
            "speed_up": round(seconds[1] / seconds[2], 2)}  # fmt: skip


def run_start() -> dict[str, float]:
    """From a new process to the first predicted time of a small halo."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--case", "tiny"], check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter() - begin
    return {"start_up_wall_s": round(wall, 3), "start_up_cpu_s": round(used.ru_utime + used.ru_stime, 3)}


def main() -> int:
    """Print one JSON object a line: a case and its figures; return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES, "replicas", "start", "tiny"])
    case = parser.parse_args().case
    if case is None:
        alone = [[sys.executable, __file__, "--case", name] for name in ("start", *CASES, "replicas")]
        return worst([subprocess.run(command, check=False).returncode for command in alone])
    if case == "tiny":
        _sim.simulate(halo(64, 2), 1, 0, 1, 1, False)
        return 0
    figures = {"replicas": run_replicas, "start": run_start}.get(case, lambda: run_case(case))()
    name, bound, more = GOALS[case]
    print(json.dumps({"case": case, **figures}), flush=True)
    return ended(short_of(f"{case}: {name}", figures[name], bound, least=more))


if __name__ == "__main__":
    sys.exit(main())
