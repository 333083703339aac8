"""What ssh costs: orchestration of a trial beyond its launch, and memory and descriptors for 256 hosts at once.

The far machines are namespaces of this one behind a throw-away sshd; the 256 hosts are one asyncssh server in a
process of its own whose "shell" is a real sh. Goals: 150 ms a trial; under 1 GiB, one descriptor a host and a few.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.goals import ended, short_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from typing import TYPE_CHECKING

import far_machines
from nearmetal.hosts.ssh.host import SshHost
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, PathOrder, WorkloadOrder
from nearmetal.study.spec import NodeSpec
from sshd import Sshd

if TYPE_CHECKING:
    from nearmetal.hosts.far.machine import FarMachine

TRIALS = 7
HOSTS = 256
_SERVER = """
import asyncio, sys, asyncssh

async def serve(process):
    child = await asyncio.create_subprocess_exec(
        "sh", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    process.exit(await child.wait())

class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return True

async def main():
    folder = sys.argv[1]
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[folder + "/host"], server_factory=Server,
        authorized_client_keys=folder + "/authorized", process_factory=serve, encoding=None)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever() if hasattr(server, "serve_forever") else await server.wait_closed()

asyncio.run(main())
"""


def trial_cost() -> list[str]:
    """Print what a trial costs beyond its launch."""
    options: dict[str, object] = {"operation": "latency", "sizes": [8], "iterations": 100}
    order = Order(0, 0, PathOrder("p", "declared"), WorkloadOrder("l", "engine", options))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder, far_machines.two_machines(Path(folder)) as far:
        costs_ms, launches_ms = [], []
        for number in range(TRIALS + 1):
            started = time.perf_counter()
            outcome = far.host.carry_out(order, carry_out)
            whole_ms = (time.perf_counter() - started) * 1e3
            assert not outcome.reason, outcome.reason
            if number:  # the first one builds the engine
                costs_ms.append(whole_ms - outcome.elapsed_ns / 1e6)
                launches_ms.append(outcome.elapsed_ns / 1e6)
        machine = far.host._machines["m0"]  # noqa: SLF001 (the layer below is what is timed)
        started = time.perf_counter()
        for _ in range(100):
            machine.run(["cat", "/proc/stat"])
        command_ms = (time.perf_counter() - started) * 10
    print(
        f"orchestration per trial over ssh: median {statistics.median(costs_ms):.0f} ms, least {min(costs_ms):.0f} ms"
    )
    print(f"  the launch: median {statistics.median(launches_ms):.0f} ms; load {os.getloadavg()[0]:.1f}")
    print(f"one command: {command_ms:.1f} ms")
    return short_of("orchestration of a trial", statistics.median(costs_ms), 150, " ms")


def many_hosts() -> list[str]:
    """Print what 256 connections cost."""
    with tempfile.TemporaryDirectory() as name, Sshd(Path(name)) as sshd:
        server = subprocess.Popen([sys.executable, "-c", _SERVER, name], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout
            port = int(server.stdout.readline())
            (sshd.folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(sshd.folder / 'host.pub').read_text()}")
            before = len(list(Path("/proc/self/fd").iterdir()))
            started = time.perf_counter()
            nodes = [NodeSpec(name=f"h{i}", address="127.0.0.1", port=port) for i in range(HOSTS)]
            host = SshHost(nodes, sshd.options | {"connect_timeout_s": 120})
            connected_s = time.perf_counter() - started
            started = time.perf_counter()
            host.on_all(_work)
            worked_s = time.perf_counter() - started
            descriptors = len(list(Path("/proc/self/fd").iterdir())) - before
            host.close()
        finally:
            server.kill()
            server.wait()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{HOSTS} hosts: connected in {connected_s:.1f} s, 10 commands on each in {worked_s:.1f} s")
    print(f"  peak memory {peak_mib:.0f} MiB, {descriptors} descriptors for {HOSTS} hosts")
    return short_of("peak memory", peak_mib, 1024, " MiB") + short_of("descriptors", descriptors, HOSTS + 16)


def _work(machine: FarMachine) -> None:
    for _ in range(10):
        assert machine.run(["echo", "hello"]).ok


def main() -> int:
    """Print both; return the status."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NEARMETAL_FAR_CACHE"] = cache
        return ended(many_hosts() + trial_cost())


if __name__ == "__main__":
    sys.exit(main())
