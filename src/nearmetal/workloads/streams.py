"""What the programs that move bulk data share: options, servers, one client a pair, sums and fairness.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError
from nearmetal.workloads.crew import Command
from nearmetal.workloads.pairs import (
    check_options,
    launch_crew,
    pair_count,
    pairs_of,
    require_program,
    start_server,
    text_option,
)
from nearmetal.workloads.rates import jain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.study.order import Order, Scalar, WorkloadOrder
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.workload import Launch

OPTIONS = frozenset({"seconds", "streams", "protocol", "rate_mbit", "line_rate_mbit"})

LEAST_PACKETS_PER_S = 20
"""Packets a second that any transfer worth the name puts on its path, emulated machines included."""

_DEFAULT_UDP_MBIT = 100


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a study asks of a transfer; `rate_mbit` 0 is unlimited, `sizes_bytes` 0 the program's own block size."""

    seconds: int
    streams: int
    protocol: str
    rate_mbit: int
    sizes_bytes: tuple[int, ...]

    @property
    def udp(self) -> bool:
        """Tell whether datagrams are sent."""
        return self.protocol == "udp"

    @property
    def operation(self) -> str:
        """Return the operation's name in the store."""
        return f"{self.protocol}_stream"


def stream_options(workload: WorkloadOrder) -> StreamOptions:
    """Read and check the options; raise BadInputError for what is unknown or makes no sense."""
    check_options(workload, OPTIONS)
    pair_count(workload)
    protocol = text_option(workload, "protocol", "tcp", ("tcp", "udp"))
    chosen = StreamOptions(
        seconds=workload.number("seconds", 2),
        streams=workload.number("streams", 1),
        protocol=protocol,
        rate_mbit=workload.number("rate_mbit", _DEFAULT_UDP_MBIT if protocol == "udp" else 0),
        sizes_bytes=tuple(workload.numbers("sizes")) or (0,),
    )
    if chosen.seconds < 1 or chosen.streams < 1 or chosen.rate_mbit < 0:
        raise BadInputError(f"workload {workload.label!r}: `seconds` and `streams` are at least 1")
    return chosen


@dataclass(frozen=True, slots=True)
class Tool:
    """How one program is started: `server` and `client` give command lines, ports are the pair's."""

    kind: str
    program: str
    package: str
    first_port: int
    server: Callable[[Pair], Sequence[str]]
    client: Callable[[Pair, int, StreamOptions], Sequence[str]]
    version_flag: str = "--version"


def prepare_streams(shell: Shell, order: Order, endpoints: Endpoints, tool: Tool) -> Launch:
    """Start a server for each pair, wait for it, and return the launch of all clients."""
    options = stream_options(order.workload)
    pairs = pairs_of(order, endpoints, tool.first_port)
    for pair in pairs:
        require_program(shell, pair.server.node, tool.program, tool.package)
        start_server(shell, tool.server(pair), pair.server.node, pair.port)
    commands = [
        Command(
            pair.client.node,
            tuple(tool.client(pair, size, options)),
            file_name(tool.kind, options.operation, size, pair.number, len(pairs)),
            step,
        )
        for step, size in enumerate(options.sizes_bytes)
        for pair in pairs
    ]
    return launch_crew(
        shell,
        order,
        commands,
        version_facts(shell, pairs[0].client.node, tool),
        node=pairs[0].client.node,
    )


def version_facts(shell: Shell, node: str, tool: Tool) -> dict[str, Scalar]:
    """Return the version that a program tells, in the first line that holds a digit."""
    said = shell.run([tool.program, tool.version_flag], node=node, check=False)
    lines = (said.stdout + b"\n" + said.stderr).decode(errors="replace").splitlines()
    line = next((line.strip() for line in lines if any(c.isdigit() for c in line)), "unknown")
    return {f"{tool.kind}.version": line[:80]}


def file_name(kind: str, operation: str, size: int, pair: int, pairs: int) -> str:
    """Return the name of one client's output in an outcome: all that its decoder must know."""
    return f"{kind}:{operation}:{size}:{pair}:{pairs}"


def least_packets(order: Order) -> int:
    """Return what every end of the path must have carried at the very least."""
    options = stream_options(order.workload)
    return LEAST_PACKETS_PER_S * options.seconds * len(options.sizes_bytes)


def stream_counters(workload: WorkloadOrder, by_size: dict[int, list[float]], line_unit: float) -> dict[str, int]:
    """Return fairness between pairs and the share of the line rate in millionths, the worst over sizes.

    `by_size` holds each pair's rate, `line_unit` what one Mbit/s is in the same unit.
    """
    counters: dict[str, int] = {}
    if any(len(rates) > 1 for rates in by_size.values()):
        counters["tool.fairness_ppm"] = round(1e6 * min(jain(rates) for rates in by_size.values()))
    line_rate_mbit = workload.number("line_rate_mbit", 0)
    if line_rate_mbit:
        best = max(sum(rates) for rates in by_size.values())
        counters["tool.line_rate_ppm"] = round(1e6 * best / (line_rate_mbit * line_unit))
    return counters


def sizes_of(files: dict[str, bytes], kind: str) -> dict[int, list[bytes]]:
    """Return the clients' outputs by size, in the order of the pairs."""
    found: dict[int, list[bytes]] = {}
    for name in sorted(files, key=lambda name: [int(part) if part.isdigit() else 0 for part in name.split(":")]):
        if name.startswith(f"{kind}:"):
            found.setdefault(int(name.split(":")[2]), []).append(files[name])
    return found
