"""nearmetal's simulator against SimGrid SMPI: the same patterns on the same platform, one rank a node, no tails.

    python bench/against_smpi.py

Two questions in one run: do both give the same time (goal: within 5 % on 16 to 256 ranks), and how much faster
is ours (goal: at least 25 times, processor time of a halo on 1,024 ranks, start-up included)?
Needs SimGrid, which nothing else does: `apt install libsimgrid-dev` (Debian 12 has 3.32), or `smpicc` and `smpirun`
of your own on PATH. Without them it says so and leaves with status 3.

SMPI runs the pattern's C program (smpi_patterns.c) with its plainest network: links shared max-min, constant latency,
no TCP window, no overheads, every message eager. nearmetal replays the pattern on the LogGP machine that says the same.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nearmetal.predict.models import UNBOUNDED, Machine, PathModel, Segment
from nearmetal.predict.native import Placement
from nearmetal.predict.patterns import Pattern, schedule_from_pattern
from nearmetal.predict.schedule import Comm, Op, OpKind, Peer, Program, Schedule
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import DoCall, DoGap, Repeat, Step
from support.goals import ended, short_of

LATENCY_US, GB_PER_S = 2.0, 1.25
"""From end to end, over two links; and of each link. 10 Gbit/s is 800,000 fs a byte."""
FS_PER_BYTE = round(1e6 / GB_PER_S)
COMPUTE_US = 20
GOAL_DEVIATION, GOAL_RATIO = 0.05, 25.0
OPTIONS = {
    "network/model": "CM02", "network/TCP-gamma": "0", "network/latency-factor": "1", "network/bandwidth-factor": "1",
    "network/weight-S": "0", "network/crosstraffic": "0", "smpi/os": "0:0:0", "smpi/or": "0:0:0", "smpi/ois": "0:0:0",
    "smpi/async-small-thresh": "100000000", "smpi/send-is-detached-thresh": "100000000",
    "smpi/simulate-computation": "no", "smpi/wtime": "0", "smpi/host-speed": "1Gf",
}  # fmt: skip
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<cluster id="c" prefix="n" suffix="" radical="0-{last}" speed="1Gf" bw="{gb}GBps" lat="{lat}us" loopback_bw="{gb}GBps"
 loopback_lat="{own}us" topology="FLAT"/>
</platform>
"""


@dataclass(frozen=True)
class Case:
    """One pattern to simulate with both."""

    kind: Literal["halo", "cg", "alltoall", "shift"]
    ranks: int
    steps: int
    message_bytes: int


CASES = tuple(
    replace(case, ranks=ranks)
    for case in (
        Case("halo", 0, 10, 8192),
        Case("halo", 0, 10, 64),
        Case("cg", 0, 10, 65536),
        Case("shift", 0, 2, 4096),
    )
    for ranks in (16, 64, 256)
)
SPEED = Case("halo", 1024, 20, 8192)


@dataclass(frozen=True)
class Told:
    """What a simulator said, and the processor time it took."""

    simulated_s: float
    cpu_s: float


def cpu_of_children() -> float:
    """Return the processor time of ended children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_smpi(case: Case, program: Path, folder: Path) -> Told:
    """Run a case under SMPI."""
    platform, hosts = folder / "platform.xml", folder / "hosts"
    platform.write_text(PLATFORM.format(last=case.ranks - 1, gb=GB_PER_S, lat=LATENCY_US / 2, own=LATENCY_US))
    hosts.write_text("".join(f"n{i}\n" for i in range(case.ranks)))
    begin = cpu_of_children()
    done = subprocess.run(
        ["smpirun", "-np", str(case.ranks), "-platform", platform, "-hostfile", hosts, "--log=root.thres:error",
         *(f"--cfg={key}:{value}" for key, value in OPTIONS.items()),
         program, case.kind, str(case.steps), str(case.message_bytes), str(COMPUTE_US * 1e-6)],
        capture_output=True, text=True, check=False, timeout=600, cwd=folder,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"smpirun ended with status {done.returncode}: {done.stderr[-500:]}")
    return Told(float(done.stdout.split()[-1]), cpu_of_children() - begin)


def shift(case: Case) -> Schedule:
    """Return every rank sending to every other in turn, at growing distance."""
    ops = tuple(
        Op(OpKind.SENDRECV, rule=Peer.SHIFT, peer=by, tag=1, message_bytes=case.message_bytes,
           recv_rule=Peer.SHIFT, recv_peer=case.ranks - by, recv_tag=1)
        for by in range(1, case.ranks)
    )  # fmt: skip
    pattern = Pattern(kind="alltoall", ranks=case.ranks, steps=1, message_bytes=1, compute=f"{COMPUTE_US} us")
    gaps = schedule_from_pattern(pattern).gaps
    body: tuple[Step, ...] = (DoGap(0), *(DoCall(i) for i in range(len(ops))))
    return Schedule(
        case.ranks, (Program((Repeat(case.steps, body),), ops, (Comm(0, size=case.ranks),), gaps=(0,)),), gaps
    )


def schedule_of(case: Case) -> Schedule:
    """Return a case as nearmetal's schedule."""
    if case.kind == "shift":
        return shift(case)
    return schedule_from_pattern(
        Pattern(
            kind=case.kind,
            ranks=case.ranks,
            steps=case.steps,
            message_bytes=case.message_bytes,
            compute=f"{COMPUTE_US} us",
            compute_spread=0.0,
            periodic=True,
        )
    )


def by_nearmetal(case: Case) -> Told:
    """Replay a case: a message is through LATENCY_US after its last byte, and a node's wire carries one at a time."""
    begin = time.process_time()
    latency_ps = round(LATENCY_US * 1e6)
    path = PathModel((Segment(UNBOUNDED, latency_ps, 0, 0, 0, FS_PER_BYTE, FS_PER_BYTE),))
    machine = Machine(intra=path, inter=path, port_fs_per_byte=FS_PER_BYTE)
    found = simulate_launches([schedule_of(case)], [machine], Placement.block(case.ranks, 1), threads=1)
    return Told(float(found.makespan_ns[0]) * 1e-9, time.process_time() - begin)


def main() -> int:
    """Run it."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not (shutil.which("smpicc") and shutil.which("smpirun")):
        print("there is no smpicc and smpirun here: `apt install libsimgrid-dev` for this comparison alone")
        return 3
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = folder / "patterns"
        source = Path(__file__).with_name("smpi_patterns.c")
        subprocess.run(["smpicc", "-O2", source, "-o", program], check=True, cwd=folder)
        print(f"{'pattern':8}{'ranks':>6}{'bytes':>8}{'SMPI, us':>12}{'nearmetal, us':>15}{'deviation':>11}")
        for case in CASES:
            theirs, ours = by_smpi(case, program, folder), by_nearmetal(case)
            deviation = ours.simulated_s / theirs.simulated_s - 1
            worst = max(worst, abs(deviation))
            print(
                f"{case.kind:8}{case.ranks:6}{case.message_bytes:8}{theirs.simulated_s * 1e6:12.2f}"
                f"{ours.simulated_s * 1e6:15.2f}{deviation:+11.1%}",
                flush=True,
            )
        theirs, ours = by_smpi(SPEED, program, folder), by_nearmetal(SPEED)
    ratio = theirs.cpu_s / ours.cpu_s
    print(f"worst deviation {worst:.1%}")
    print(
        f"halo of {SPEED.ranks} ranks, {6 * SPEED.ranks * SPEED.steps} messages: SMPI {theirs.cpu_s:.2f} s of "
        f"processor time, nearmetal {ours.cpu_s:.3f} s, {ratio:.0f} times less"
    )
    missed = short_of("worst deviation", 100 * worst, 100 * GOAL_DEVIATION, " %")
    return ended(missed + short_of("times less processor time", ratio, GOAL_RATIO, least=True))


if __name__ == "__main__":
    sys.exit(main())
