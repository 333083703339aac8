"""How long `nearmetal serve` takes for the page of a run with 1e7 samples. Goal: under 300 ms.

    python bench/serve_page.py [--samples 10000000] [--repeats 5] [--asks 51] [--dir DIR]

The run is made once by the store's own writer: 5 blocks of 5 paths and the baseline's second name, one cell. Each
answer is timed by a client on loopback from the request to its last byte. Stated are medians of

- first: the first answer of a fresh server (every sample is read and counted), files dropped from the kernel's cache,
- first, warm files: the same with the files in that cache,
- again: every further answer, from the server's own store (bounded, keyed by the state of the run's files),
- after a trial: the live page's part right after one more trial ended (only that trial is read),
- processor: what the server took for `first, warm files`, in processor time (it reads with two threads).

Exit code 4 when `again` or `first, warm files` is not below the goal; `first` also waits for the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.order import Outcome, TrialStatus
from nearmetal.study.spec import digest, parse_study
from support.goals import ended, short_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.study.order import Order

GOAL_MS = 300
BLOCKS = 5
COST = {"veth": 1.0, "veth-again": 1.0, "bridge": 1.1, "macvlan": 1.01, "tap": 2.4, "shm": 0.06}
STUDY = """
format = 1
name = "large"
seed = 1
baseline = "veth"
path = [{ name = "veth" }, { name = "bridge" }, { name = "macvlan" }, { name = "tap" }, { name = "shm" }]
workload = [{ name = "latency", sizes = [8], iterations = 1000 }]
trials = { min_blocks = 5, max_blocks = 9 }
"""


def make(root: Path, samples: int) -> None:
    """Write the run: log-normal durations with rare spikes, all of them good."""
    study = parse_study(STUDY, "study.toml")
    info = RunInfo("large", digest(STUDY), "local", "made-up figures", "0", "2026-01-01T00:00:00+00:00")
    each = samples // (BLOCKS * len(COST))
    with RunDir.create(root, info, STUDY) as run:
        for number in range(BLOCKS):
            for order in plan.block(study, number):
                append(run, order, each)


def append(run: RunDir, order: Order, iterations: int) -> None:
    """Make one trial permanent."""
    rng = np.random.default_rng([2026, order.trial])
    typical_ns = 40_000.0 * rng.lognormal(0.0, 0.005) * COST[order.path.label]
    ns = (typical_ns * rng.lognormal(0.0, 0.1, iterations)).astype(np.int64)
    ns[rng.random(iterations) < 1e-3] *= 20
    cell = CellSamples("latency", 8, 0, (0,), (np.cumsum(ns) - ns)[None], ns[None], np.zeros((1, ns.size), np.uint8))
    outcome = Outcome(TrialStatus.VALID, launch_argv=("mpirun",), elapsed_ns=int(ns.sum()))
    run.append(order, outcome, [cell], attempt=1, started_utc=f"2026-01-01T00:{order.block:02d}:00+00:00")


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[http.client.HTTPConnection, dict[str, str], subprocess.Popen[str]]]:
    """Start `nearmetal serve` and give a connection to it, the headers that open it, and its process."""
    argv = [sys.executable, "-c", "from nearmetal.cli.main import main; main()", "serve", str(folder)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    url = urlsplit(process.stdout.readline().strip())
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=120)
    headers = {"Authorization": f"Bearer {url.query.removeprefix('token=')}"}
    ask(connection, headers, "/")
    try:
        yield connection, headers, process
    finally:
        connection.close()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


def cpu_ms(process: subprocess.Popen[str]) -> float:
    """Return the processor time that a process has taken, its ended threads included."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


def ask(connection: http.client.HTTPConnection, headers: dict[str, str], path: str) -> float:
    """Return the milliseconds from request to last byte."""
    started = time.perf_counter()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    size = len(answer.read())
    took_ms = (time.perf_counter() - started) * 1e3
    if answer.status != 200 or not size:
        raise SystemExit(f"{path} was answered with {answer.status}")
    return took_ms


def forget(folder: Path) -> None:
    """Ask the kernel to drop the files from its cache."""
    os.sync()
    for path in folder.rglob("*.*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    """Make the run, ask, print; return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5, help="fresh servers of each kind")
    parser.add_argument("--asks", type=int, default=51, help="further answers of each server")
    parser.add_argument("--dir", type=Path, help="where to put the run (default: a new temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nearmetal-bench-", dir=options.dir) as name:
        folder = Path(name)
        make(folder / "large", options.samples)
        found = measure(folder, options.repeats, options.asks)
    for what, times in found.items():
        print(f"{what:18s} median {statistics.median(times):7.1f} ms  worst {max(times):7.1f} ms  of {len(times)}")
    judged = {what: statistics.median(found[what]) for what in ("first, warm files", "again")}
    print(f"{options.samples} samples, judged: {', '.join(judged)}; load {os.getloadavg()[0]:.1f}")
    return ended([one for what, ms in judged.items() for one in short_of(what, ms, GOAL_MS, " ms")])


def measure(folder: Path, repeats: int, asks: int) -> dict[str, list[float]]:
    """Return the times of each kind of answer, in ms."""
    found: dict[str, list[float]] = {
        what: [] for what in ("first", "first, warm files", "processor", "again", "after a trial")
    }
    page, part = "/runs/large", "/runs/large/live/part"
    for number in range(repeats):
        forget(folder)
        with server(folder) as (connection, headers, _):
            found["first"].append(ask(connection, headers, page))
        with server(folder) as (connection, headers, process):
            time.sleep(1.0)  # the list, which is asked first, has read what its runs found
            before_ms = cpu_ms(process)
            found["first, warm files"].append(ask(connection, headers, page))
            found["processor"].append(cpu_ms(process) - before_ms)
            found["again"] += [ask(connection, headers, page) for _ in range(asks)]
            ask(connection, headers, part)
            with RunDir.open_for_writing(folder / "large") as run:
                extra = plan.block(parse_study(run.study_text(), "study.toml"), BLOCKS)
                append(run, extra[number % len(extra)], 100_000)
            time.sleep(1.1)  # the server looks at the disk once a second
            found["after a trial"].append(ask(connection, headers, part))
    return found


if __name__ == "__main__":
    sys.exit(main())
