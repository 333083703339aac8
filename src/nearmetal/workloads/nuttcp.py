"""Workload `nuttcp`: bulk TCP or UDP between pairs of nodes, with retransmits; one figure a run and pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads.formats import nuttcp
from nearmetal.workloads.streams import Moved, PairWorkload, Tool

if TYPE_CHECKING:
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.streams import Asked

_DATA_PORTS_FROM = 5301


def _client(pair: Pair, size: int, asked: Asked) -> list[str]:
    # A pair's data ports lie apart from all others, also where each of its streams takes one.
    data_port = _DATA_PORTS_FROM + 64 * pair.number
    argv = ["nuttcp", "-fparse", f"-T{asked.seconds:g}", f"-P{pair.port}", f"-p{data_port}"]
    argv += [f"-N{asked.streams}"] if asked.streams > 1 else []
    argv += [f"-l{size}"] if size else []
    argv += ["-u"] if asked.udp else []
    argv += [f"-R{asked.rate_mbit}m"] if asked.rate_mbit else []
    return [*argv, pair.server.address]


def _read(data: bytes) -> Moved:
    found = nuttcp.parse(data)
    return Moved(found.rate_mbit_s, found.retransmits, found.lost if found.datagrams else -1)


NUTTCP = PairWorkload(
    Tool(
        kind="nuttcp",
        package="nuttcp",
        server=lambda pair: ["nuttcp", "-S", "--nofork", f"-P{pair.port}"],
        client=_client,
        read=_read,
        first_port=5100,
        tests={},
        version_flag="-V",
        least_seconds=0.1,
    )
)
