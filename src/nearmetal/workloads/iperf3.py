"""Workload `iperf3`: bulk TCP or UDP between pairs of nodes; every reporting interval is a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads.formats import iperf3
from nearmetal.workloads.streams import Moved, PairWorkload, Tool

if TYPE_CHECKING:
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.streams import Asked

INTERVAL_S = 0.1
"""The shortest that iperf3 reports."""


def _client(pair: Pair, size: int, asked: Asked) -> list[str]:
    argv = ["iperf3", "-c", pair.server.address, "-p", str(pair.port), "-J", "-t", str(asked.seconds)]
    argv += ["-i", str(INTERVAL_S), "-P", str(asked.streams)]
    argv += ["-l", str(size)] if size else []
    argv += ["-u"] if asked.udp else []
    argv += ["-b", f"{asked.rate_mbit}M"] if asked.rate_mbit else []
    return argv


def _read(data: bytes) -> Moved:
    found = iperf3.parse(data)
    return Moved(found.received_bit_s / 1e6, found.retransmits, found.lost if found.protocol == "udp" else -1)


IPERF3 = PairWorkload(
    Tool(
        kind="iperf3",
        package="iperf3",
        server=lambda pair: ["iperf3", "-s", "-p", str(pair.port)],
        client=_client,
        read=_read,
        first_port=5201,
        tests={},
    )
)
