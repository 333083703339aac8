"""What it costs to couple machines: small machines of native/wire/selftest, alone, on two cores, and on one.

Run it on a machine with two free cores: `.venv/bin/python bench/wire.py [--first] [REPEATS]`. With `--first`, machines
get the host's real-time priority (needs root), on a host where others work too. Wall times on a busy host say little.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nearmetal import native
from nearmetal.hosts.lab import wire, wirecheck
from nearmetal.hosts.lab.lab import find_emulator
from support.goals import ended, short_of

GOALS = {"CPU of coupling": 1.6, "gain of a second core": 1.6, "us a visit": 5.0}
FIRST = "--first" in sys.argv
REPEATS = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 3
LENGTH = 6
"""A machine's 300 rounds of work and pauses, doubled so often."""


def argv(nodes: int, node: int, memory: str, folder: Path) -> list[str]:
    """Return the command of a machine that works for longer than the self-test, and writes no trace."""
    program, version = find_emulator()
    library = wirecheck.fitting_wire(program, version)
    place = wire.WirePlace(memory, node, nodes)
    words = list(wirecheck.small_machine_argv(program, native.build(wirecheck.GUEST), library, place, folder))
    words = [word.replace("mac=52:54:00:00:00:", f"mac=52:54:00:00:{LENGTH:02x}:") for word in words]
    counted = wire.plugin_argument(library, place, seed=1, counts=folder / f"counts{node}")
    return [*words[:-2], *(("-plugin", counted) if nodes > 1 else ())]


def run(nodes: int, cores: set[int]) -> tuple[float, float, list[dict[str, int]]]:
    """Return wall seconds, CPU seconds a machine, and what each counted."""
    with tempfile.TemporaryDirectory() as name, wire.shared_memory() as memory:
        folder, started_s = Path(name), time.monotonic()
        placed = ["taskset", "-c", ",".join(map(str, sorted(cores))), *(["chrt", "-f", "5"] if FIRST else [])]
        machines = [
            subprocess.Popen([*placed, *argv(nodes, node, memory, folder)], stderr=subprocess.DEVNULL)
            for node in range(nodes)
        ]
        used = [os.wait4(machine.pid, 0) for machine in machines]
        wall_s = time.monotonic() - started_s
        assert all(status == 0 for _, status, _ in used), used
        counts = [json.loads(path.read_text()) for path in sorted(folder.glob("counts*"))]
    return wall_s, sum(usage.ru_utime + usage.ru_stime for _, _, usage in used) / nodes, counts


def main() -> int:
    """Print figures; return the status."""
    both = set(sorted(os.sched_getaffinity(0))[:2])
    run(1, both)
    rows = {"alone": (1, both), "two on two cores": (2, both), "two on one core": (2, {min(both)})}
    found: dict[str, list[tuple[float, float, list[dict[str, int]]]]] = {name: [] for name in rows}
    for _ in range(REPEATS):
        for name, (nodes, cores) in rows.items():
            found[name].append(run(nodes, cores))
    wall_s = {name: statistics.median(one[0] for one in runs) for name, runs in found.items()}
    cpu_s = {name: statistics.median(one[1] for one in runs) for name, runs in found.items()}
    visits = statistics.median(counted["visits"] for one in found["two on two cores"] for counted in one[2])
    for name in rows:
        print(f"{name}: {wall_s[name]:.2f} s of wall time, {cpu_s[name]:.2f} CPU s a machine (median of {REPEATS})")
    figures = {
        "CPU of coupling": cpu_s["two on two cores"] / cpu_s["alone"],
        "gain of a second core": wall_s["two on one core"] / wall_s["two on two cores"],
        "us a visit": (cpu_s["two on two cores"] - cpu_s["alone"]) / visits * 1e6,
    }
    print(f"load of the host: {os.getloadavg()[0]:.1f}; {'first in line' if FIRST else 'as any program'}")
    missed = []
    for name, figure in figures.items():
        print(f"{name}: {figure:.2f}")
        missed += short_of(name, figure, GOALS[name], least="gain" in name)
    return ended(missed)


if __name__ == "__main__":
    sys.exit(main())
