"""The lab's own figures: image, boot, trial, memory, programs on 1 to 4 nodes, and that every repeat is the same.

Run it on a machine with two free cores: `.venv/bin/python bench/lab.py [REPEATS [TRIAL...]]` (20 by default;
with names of trials, exactness alone; `programs` for the programs alone). Repeats take turns through the conditions
below, and are compared to the byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from nearmetal.hosts.lab import image, lab, running, wire
from nearmetal.hosts.lab.lab import LabHost, find_emulator, open_lab
from nearmetal.hosts.lab.machine import MACHINES, Boot
from nearmetal.hosts.lab.vm import Vm
from nearmetal.hosts.lab.wirecheck import fitting_wire
from nearmetal.study.order import Order, Outcome, PathOrder, Scalar, TrialStatus, WorkloadOrder
from nearmetal.workloads.apps import APPLICATIONS
from nearmetal.workloads.samples import decode
from support.goals import ended, short_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GOALS = {"boot to snapshot": 25.0, "trial": 6.0, "memory": 1536.0}
"""In s, s and MiB."""
ENGINE: dict[str, Scalar | list[Scalar]] = {"operation": "latency", "sizes": [8, 1024], "iterations": 400, "warmup": 50}
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def order(path: str, seed: int, operation: str = "latency", nodes: int = 2) -> Order:
    """Return a short trial."""
    workload = WorkloadOrder(operation, "engine", {**ENGINE, "operation": operation}, placement=tuple(range(nodes)))
    return Order(0, 0, PathOrder(path, path, {"rx_usecs": 0}), workload, seed=seed)


def peak_mib(pid: int) -> float:
    """Return the most memory a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def boot_figures() -> list[str]:
    """Boot each machine to its snapshot once; return what misses its goal."""
    missed = []
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
            took_s = time.monotonic() - started_s
            missed += short_of(f"{name}: boot to snapshot", took_s, GOALS["boot to snapshot"], " s")
            print(f"{name}: boot to snapshot {took_s:.1f} s", end="")
            print(f", {peak_mib(vm.pid):.0f} MiB, snapshot {Path(folder, 'state').stat().st_size >> 20} MiB")
    return missed


def trial_figures(host: LabHost) -> list[str]:
    """Time one trial of each path; return what misses its goal."""
    missed = []
    carry_out(host, order("native", 1))
    for path in ("native", "vf"):
        peaks: list[float] = []
        done = threading.Event()
        watcher = threading.Thread(target=watch, args=(host, peaks, done))
        watcher.start()
        started_s = time.monotonic()
        outcome = carry_out(host, order(path, 1))
        elapsed_s = time.monotonic() - started_s
        done.set()
        watcher.join()
        print(f"{path}: trial {elapsed_s:.1f} s, {max(peaks, default=0):.0f} MiB, {outcome.status}")
        missed += short_of(f"{path}: trial", elapsed_s, GOALS["trial"], " s")
        missed += short_of(f"{path}: memory", max(peaks, default=0.0), GOALS["memory"], " MiB")
    return missed


def watch(host: LabHost, peaks: list[float], done: threading.Event) -> None:
    """Note the memory of every machine that runs."""
    while not done.wait(0.1):
        for pid in host.running_pids:
            try:
                peaks.append(peak_mib(pid))
            except OSError:
                continue


LOAD = 8
HELD_BACK_S = 1.0
STOPPED_S = 0.1
"""Shorter than what the wire takes for a machine that was stopped for good."""


@contextlib.contextmanager
def as_it_is(_: LabHost) -> Iterator[None]:
    """Change nothing."""
    yield


@contextlib.contextmanager
def loaded(_: LabHost) -> Iterator[None]:
    """Let others want the cores too."""
    others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextlib.contextmanager
def on_one_core(_: LabHost) -> Iterator[None]:
    """Give all machines the same core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def held_back(host: LabHost) -> Iterator[None]:
    """Stop the first machine again and again, so that others are as far ahead of it as they may be."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(STOPPED_S):
            for pid in host.running_pids[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    over.wait(STOPPED_S)
                    os.kill(pid, signal.SIGCONT)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()


@contextlib.contextmanager
def last_first(_: LabHost) -> Iterator[None]:
    """Let the last machine run a second before the first may."""
    told = running.carry_out

    def turned(machines: Sequence[Vm], *, timeout_s: float) -> Iterator[dict[str, bytes]]:
        for machine in reversed(machines[1:]):
            machine.control.send("cont")
            time.sleep(HELD_BACK_S)
        return told(machines, timeout_s=timeout_s)

    with mock.patch.object(lab, "carry_out", turned):
        yield


@contextlib.contextmanager
def fuzzed(_: LabHost) -> Iterator[None]:
    """Break the machines' loops at other places in every run."""
    told = wire.plugin_argument
    with mock.patch.object(wire, "plugin_argument", lambda *a, **k: f"{told(*a, **k)},fuzz=1"):
        yield


CONDITIONS: dict[str, Callable[[LabHost], contextlib.AbstractContextManager[None]]] = {
    "as it is": as_it_is,
    "one core": on_one_core,
    "last machine first": last_first,
    "node 0 held back": held_back,
    "loops broken at random": fuzzed,
    f"{LOAD} others want the cores": loaded,
}
PROGRAMS = "programs"
HALO_STEPS = 8
HALO_GOALS: dict[str, dict[int, float]] = {"64x64x64": {}, "128x128x128": {}, "224x224x224": {2: 1.8, 4: 3.2}}
"""How many times as fast on so many nodes, by grid: on small ones the wire of 1 Gbit/s takes what the cores save."""
VERIFIED = [(name, letter) for name in ("ep", "cg", "mg", "ft", "is", "lu", "sp") for letter in "SW"]
TRIALS = {
    "native": ("base", order("native", 1)),
    "bridge": ("base", order("bridge", 2)),
    "allreduce": ("base", order("native", 3, "allreduce", 4)),
    "guest-vf": ("kvm", order("guest-vf", 4)),
}


def carry_out(host: LabHost, wanted: Order) -> Outcome:
    """Carry a trial out, in the lab alone."""
    return host.carry_out(wanted, lambda *_: Outcome(TrialStatus.FAILED))


def exactness(name: str) -> bool:
    """Repeat a trial under all conditions, and run it with two other seeds; return whether the seed alone decides."""
    machine, wanted = TRIALS[name]
    host = open_lab({"machine": machine, "nodes": wanted.nodes}, print)
    began_s, prints = time.monotonic(), set()
    with contextlib.closing(host):
        host.prepare([wanted])
        for condition in islice(cycle(CONDITIONS), REPEATS):
            with CONDITIONS[condition](host):
                prints.add(found := fingerprint(carry_out(host, wanted)))
            print(f"{name}, {condition}: {found[:12]}, load {os.getloadavg()[0]:.0f}", flush=True)
        others = {fingerprint(carry_out(host, replace(wanted, seed=seed))) for seed in (101, 102)}
    print(
        f"{name}: {REPEATS} repeats, {len(prints)} distinct outcomes (goal 1); 3 seeds, {len(prints | others)} (goal 3)"
    )
    print(f"{name}: {REPEATS + 2} trials in {time.monotonic() - began_s:.0f} s", flush=True)
    return len(prints) == 1 and len(prints | others) == 3


def fingerprint(outcome: Outcome) -> str:
    """Return a hash of all that a trial gave."""
    assert outcome.status is TrialStatus.VALID, outcome.reason
    return hashlib.sha256(repr((outcome.counters, sorted(outcome.files.items()))).encode()).hexdigest()


def program_s(host: LabHost, name: str, letter: str, nodes: int, **options: Scalar) -> float:
    """Return the virtual seconds of an application's timed part, a rank a node; it verified itself, or this fails."""
    workload = WorkloadOrder(name, "application", {"class": letter, **options}, placement=tuple(range(nodes)))
    path = PathOrder("native", "native", {"rx_usecs": 0}) if nodes > 1 else PathOrder("shm", "shm", {})
    wanted = Order(0, 0, path, workload, seed=1, timeout_s=900.0)
    outcome = carry_out(host, wanted)
    assert outcome.status is TrialStatus.VALID, f"{name} {letter} on {nodes} nodes: {outcome.reason}"
    total = next(cell for cell in decode(outcome) if cell.operation.endswith(".total"))
    return float(total.ns.max()) / 1e9


def programs() -> list[str]:
    """Run a halo exchange on 1, 2 and 4 nodes, and NPB on 2 and 4 (SP on 4); return what the halo misses."""
    missed = []
    alone_s: dict[str, float] = {}
    for nodes in (1, 2, 4):
        with contextlib.closing(open_lab({"machine": "base", "nodes": max(nodes, 2)}, print)) as host:
            for size, goals in HALO_GOALS.items():
                took_s = program_s(host, "advection", "A", nodes, size=size, steps=HALO_STEPS)
                gain = alone_s.setdefault(size, took_s) / took_s
                print(f"advection {size} on {nodes} nodes: {took_s:.4f} s, {gain:.2f} times as fast", flush=True)
                missed += short_of(f"advection {size} on {nodes} nodes, gain", gain, goals.get(nodes, 0.0), least=True)
            for name, letter in VERIFIED if nodes > 1 else ():
                if not APPLICATIONS[name].ranks.holds(nodes):
                    continue
                took_s = program_s(host, name, letter, nodes)
                print(f"{name} {letter} on {nodes} nodes: {took_s:.4f} s, verified", flush=True)
    return missed


def main(trials: list[str]) -> int:
    """Print figures; return the status."""
    missed = []
    if not trials:
        missed += boot_figures()
        with contextlib.closing(open_lab({"machine": "base"}, print)) as host:
            missed += trial_figures(host)
    for name in trials or [*TRIALS, PROGRAMS]:
        if name == PROGRAMS:
            missed += programs()
        elif not exactness(name):
            missed.append(f"{name}: repeats are not all the same")
    return ended(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
