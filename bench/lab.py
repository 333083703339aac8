"""The lab's own figures: image, boot, trial, memory, and that every repeat is the same to the byte.

Run it on a machine with two free cores: `.venv/bin/python bench/lab.py [REPEATS]` (20 by default).
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nearmetal.hosts.lab import image
from nearmetal.hosts.lab.lab import LabHost, find_emulator, open_lab
from nearmetal.hosts.lab.machine import MACHINES
from nearmetal.hosts.lab.vm import Boot, Vm
from nearmetal.hosts.lab.wirecheck import fitting_wire
from nearmetal.study.order import Order, Outcome, PathOrder, TrialStatus, WorkloadOrder

GOALS = {"boot to snapshot": "< 25 s", "trial": "< 6 s", "memory": "< 1.5 GiB"}
ENGINE = {"operation": "latency", "sizes": [8, 1024], "iterations": 400, "warmup": 50}
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def order(path: str, seed: int) -> Order:
    """Return a short latency trial."""
    workload = WorkloadOrder("latency", "engine", dict(ENGINE))
    return Order(0, 0, PathOrder(path, path, {"rx_usecs": 0}), workload, seed=seed)


def peak_mib(pid: int) -> float:
    """Return the most memory a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def boot_figures() -> None:
    """Boot each machine to its snapshot once."""
    built = image.current(print)
    program, version = find_emulator()
    print(f"emulator {version}, image {built.initrd.stat().st_size >> 20} MiB")
    for name in ("base", "kvm"):
        with (
            tempfile.TemporaryDirectory() as folder,
            Vm(Boot(program, MACHINES[name], built.kernel, built.initrd, fitting_wire(program, version))) as vm,
        ):
            started_s = time.monotonic()
            vm.freeze(Path(folder) / "state", timeout_s=300)
            print(
                f"{name}: boot to snapshot {time.monotonic() - started_s:.1f} s (goal {GOALS['boot to snapshot']})",
                end="",
            )
            print(f", {peak_mib(vm.pid):.0f} MiB, snapshot {Path(folder, 'state').stat().st_size >> 20} MiB")


def trial_figures(host: LabHost) -> None:
    """Time one trial of each path."""
    host.carry_out(order("native", 1), lambda *_: Outcome(TrialStatus.FAILED))
    for path in ("native", "vf"):
        peaks: list[float] = []
        done = threading.Event()
        watcher = threading.Thread(target=watch, args=(host, peaks, done))
        watcher.start()
        started_s = time.monotonic()
        outcome = host.carry_out(order(path, 1), lambda *_: Outcome(TrialStatus.FAILED))
        elapsed_s = time.monotonic() - started_s
        done.set()
        watcher.join()
        print(f"{path}: trial {elapsed_s:.1f} s (goal {GOALS['trial']}), {max(peaks, default=0):.0f} MiB", end="")
        print(f" (goal {GOALS['memory']}), {outcome.status}")


def watch(host: LabHost, peaks: list[float], done: threading.Event) -> None:
    """Note the memory of every machine that runs."""
    while not done.wait(0.1):
        for pid in host.running_pids:
            try:
                peaks.append(peak_mib(pid))
            except OSError:
                continue


def determinism(host: LabHost) -> None:
    """Repeat three trials, and run one with three seeds."""
    orders = [order(path, seed) for path, seed in (("native", 1), ("vf", 2), ("bridge", 3))]
    started_s = time.monotonic()
    with ThreadPoolExecutor(host.slots) as pool:
        runs = list(
            pool.map(lambda entry: host.carry_out(entry, lambda *_: Outcome(TrialStatus.FAILED)), orders * REPEATS)
        )
        others = list(
            pool.map(
                lambda seed: host.carry_out(order("vf", seed), lambda *_: Outcome(TrialStatus.FAILED)), (11, 12, 13)
            )
        )
    for index, wanted in enumerate(orders):
        prints = {fingerprint(outcome) for outcome in runs[index :: len(orders)]}
        print(f"{wanted.path.label}: {REPEATS} repeats, {len(prints)} distinct outcomes (goal 1)")
    print(f"3 seeds: {len({fingerprint(outcome) for outcome in others})} distinct outcomes (goal 3)")
    print(f"{len(runs) + len(others)} trials in {time.monotonic() - started_s:.0f} s, {host.slots} side by side")


def fingerprint(outcome: Outcome) -> str:
    """Return a hash of all that a trial gave."""
    assert outcome.status is TrialStatus.VALID, outcome.reason
    return hashlib.sha256(repr((outcome.counters, sorted(outcome.files.items()))).encode()).hexdigest()


if __name__ == "__main__":
    boot_figures()
    lab = open_lab({"machine": "base"}, print)
    trial_figures(lab)
    determinism(lab)
    lab.close()
