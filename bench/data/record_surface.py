"""Record a response surface from real trials: every setting of a small space, in blocks, in random order.

    sudo python bench/data/record_surface.py bench/data/veth_surface.json [BLOCKS]

Two network namespaces of this machine are joined by a veth pair. Every trial puts one setting on both ends with
nearmetal's own knobs and measures a TCP ping-pong of 64 B and 16 KiB (median, ns) and a
stream of 6 MiB (best of 8, ns).
Root only,
because one namespace of the machine itself is used. The file is what `bench/tune_race.py` races on.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal import process
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.hold import hold
from nearmetal.paths.path import Endpoint, Endpoints

if TYPE_CHECKING:
    from nearmetal.process import Finished

KNOBS: dict[str, list[str]] = {
    "nic.mtu": ["1500", "9000", "65535"],
    "nic.gso": ["on", "off"],
    "nic.tso": ["on", "off"],
    "nic.gro": ["off", "on"],
    "nic.rps-cpus": ["none", "0", "1"],
    "host.tcp_timestamps": ["1", "0"],
    "host.tcp_autocorking": ["1", "0"],
}
"""The first value of each is the one that was found on the machine: the present setting."""
CELLS = ["latency 64 B", "latency 16 KiB", "stream 6 MiB"]
PORT = 7077
_TRIES = 4
STREAM_BYTES = 6 << 20
SERVER = """
import os, socket, sys
os.sched_setaffinity(0, {0})
listener = socket.create_server(("10.78.0.2", int(sys.argv[1])))
print("ready", flush=True)
while True:
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(1 << 20)
    with link:
        while head := link.recv(8, socket.MSG_WAITALL):
            size = int.from_bytes(head, "little")
            echo, size = size >> 62, size & ((1 << 62) - 1)
            left = size
            while left:
                left -= link.recv_into(buffer, min(left, len(buffer)))
            link.sendall(bytes(size if echo else 1))
"""


class PairShell(MachineShell):
    """This namespace, and node `b` in another one that a process holds."""

    def __init__(self, holder: int) -> None:
        super().__init__()
        self.enter = ("nsenter", "--target", str(holder), "--net", "--mount", "--")

    def run(self, argv, *, node="", env=None, stdin=b"", timeout_s=20.0, check=True) -> Finished:  # type: ignore[no-untyped-def]
        """Run a program here or on node `b`."""
        there = (*self.enter, *argv) if node == "b" else tuple(argv)
        return super().run(there, env=env, stdin=stdin, timeout_s=timeout_s, check=check)

    def write(self, path: str, data: bytes, *, node: str = "") -> None:
        """Write a file here or on node `b`."""
        if node == "b":
            self.run(["dd", f"of={path}", "conv=notrunc", "status=none"], node=node, stdin=data)
        else:
            super().write(path, data)


def _patient_measure(setting: tuple[str, ...]) -> list[int]:
    for _ in range(_TRIES):
        try:
            return measure()
        except TimeoutError:
            print(f"a trial with {setting} hung and is repeated", file=sys.stderr, flush=True)
    raise SystemExit(f"{setting} hung {_TRIES} times: take it out of the space")


def measure() -> list[int]:
    """Return the figures of one trial, in ns, one a cell."""
    with socket.create_connection(("10.78.0.2", PORT), timeout=3) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return [_round_trip(link, 64, 400), _round_trip(link, 16384, 150), min(_stream(link) for _ in range(8))]


def _round_trip(link: socket.socket, size: int, rounds: int) -> int:
    message = (size | 1 << 62).to_bytes(8, "little") + bytes(size)
    taken = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        link.sendall(message)
        left = size
        while left:
            left -= len(link.recv(left))
        taken.append(time.perf_counter_ns() - started)
    return round(statistics.median(taken[rounds // 5 :]))


def _stream(link: socket.socket) -> int:
    message = STREAM_BYTES.to_bytes(8, "little") + bytes(STREAM_BYTES)
    started = time.perf_counter_ns()
    link.sendall(message)
    link.recv(1)
    return time.perf_counter_ns() - started


def record(shell: PairShell, blocks: int, journals: Path, out: Path) -> None:
    """Measure every setting in every block; the file is written anew after each block."""
    settings = list(itertools.product(*KNOBS.values()))
    ends = Endpoints((Endpoint("", "va", "10.78.0.1"), Endpoint("b", "vb", "10.78.0.2")), "10.78.0.0/24")
    figures: list[list[list[int]]] = []
    orders: list[list[int]] = []
    for block in range(blocks):
        order = list(range(len(settings)))
        random.Random(block).shuffle(order)
        measured = {}
        for number in order:
            with hold(shell, ends, dict(zip(KNOBS, settings[number], strict=True)), journals):
                measured[number] = _patient_measure(settings[number])
        figures.append([measured[number] for number in range(len(settings))])
        orders.append(order)
        _write(out, figures, orders)
        print(f"block {block + 1} of {blocks} done", file=sys.stderr, flush=True)


def _write(out: Path, figures: list[list[list[int]]], orders: list[list[int]]) -> None:
    raw = {
        "surface_format": 1,
        "about": f"veth pair, two namespaces of one machine, {os.cpu_count()} processors shared with other work",
        "knobs": KNOBS,
        "present": {knob: values[0] for knob, values in KNOBS.items()},
        "cells": CELLS,
        "order": orders,
        "figures_ns": figures,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(raw, separators=(",", ":")) + "\n")


def main() -> None:
    """Make the namespaces, record, write the file."""
    out, blocks = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 6
    if os.environ.get("NEARMETAL_SURFACE") != "inside":
        env = {**os.environ, "NEARMETAL_SURFACE": "inside"}
        argv = ["unshare", "--net", "--mount", "--", sys.executable, *sys.argv]
        print(process.run(argv, timeout_s=4 * 3600, env=env, check=True).stderr.decode())
        return
    process.run(["mount", "-t", "sysfs", "sysfs", "/sys"], timeout_s=5, check=True)
    # Both ends on one processor: wake-ups across processors would otherwise be most of what is measured.
    os.sched_setaffinity(0, {0})
    script = "mount -t sysfs sysfs /sys; echo ready; exec cat"
    with ExitStack() as stack:
        progress = stack.enter_context(out.with_suffix(".log").open("w"))
        stack.enter_context(redirect_stderr(progress))
        holder = _started(stack, ["unshare", "--net", "--mount", "--", "sh", "-c", script])
        shell = stack.enter_context(PairShell(holder.pid))
        journals = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        shell.run(["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"])
        shell.run(["ip", "link", "set", "vb", "netns", str(holder.pid)])
        for node, device, address in (("", "va", "10.78.0.1/24"), ("b", "vb", "10.78.0.2/24")):
            shell.run(["ip", "address", "add", address, "dev", device], node=node)
            shell.run(["ip", "link", "set", device, "up"], node=node)
        _started(stack, [*shell.enter, sys.executable, "-c", SERVER, str(PORT)])
        record(shell, blocks, journals, out)


def _started(stack: ExitStack, argv: list[str]) -> subprocess.Popen[bytes]:
    """Start a program that says one line when it is ready and ends with the stack, or with this process."""
    child = process.spawn(argv, stdin=subprocess.PIPE)
    stack.callback(process.end_session, child)
    assert child.stdout is not None
    child.stdout.readline()
    return child


if __name__ == "__main__":
    main()
