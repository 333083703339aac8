"""Rollback of 50 knobs on this machine: `sudo python bench/rollback_50.py`, target below 1 s.

Ten veth devices in a network namespace of their own, five knobs each, set and abandoned as a killed process leaves
them; then every value is read, put back, read again, and the journal closed. Median of five.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from nearmetal import process
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.rollback import roll_back
from support.goals import ended, short_of

SETTING = {
    "nic.mtu": 1400,
    "nic.txqueuelen": 500,
    "nic.napi-defer-hard-irqs": 2,
    "nic.gro-flush-timeout-ns": 20000,
    "nic.gro": True,
}
DEVICES = 10
REPEATS = 5
TARGET_S = 1.0


def roll_back_once(shell: MachineShell, folder: Path) -> float:
    """Return the seconds that putting everything back took."""
    targets = [Target("", f"v{number}") for number in range(DEVICES)]
    begun = session.begin(shell, plan(shell, SETTING, targets), folder)
    begun.apply()
    begun.journal.close()
    started = time.perf_counter()
    undone = roll_back(shell, begun.journal.path)
    elapsed = time.perf_counter() - started
    assert len(undone.put_back) == DEVICES * len(SETTING), undone
    return elapsed


def main() -> int:
    """Measure in a namespace of its own; return the status."""
    if os.geteuid() != 0:
        print("needs root, for a network namespace of this machine itself")
        return 3
    if os.environ.get("NEARMETAL_BENCH") != "inside":
        argv = ["unshare", "--net", "--mount", "--", sys.executable, *sys.argv]
        ran = process.run(argv, timeout_s=120, env={**os.environ, "NEARMETAL_BENCH": "inside"})
        print(ran.text or ran.complaint())
        return ran.exit_status
    process.run(["mount", "-t", "sysfs", "sysfs", "/sys"], timeout_s=5, check=True)
    with MachineShell() as shell, tempfile.TemporaryDirectory() as folder:
        for number in range(DEVICES):
            shell.run(["ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", f"w{number}"])
        taken = statistics.median(roll_back_once(shell, Path(folder)) for _ in range(REPEATS))
    print(f"rollback of {DEVICES * len(SETTING)} knobs: {taken:.3f} s")
    return ended(short_of("rollback", taken, TARGET_S, " s"))


if __name__ == "__main__":
    sys.exit(main())
