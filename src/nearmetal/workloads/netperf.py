"""Workload `netperf`: TCP_STREAM, TCP_RR or UDP_RR where netperf is installed; one figure a run and pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads.formats import netperf
from nearmetal.workloads.streams import Moved, PairWorkload, Tool

if TYPE_CHECKING:
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.streams import Asked

_MBIT = {"Mbit/s": 1.0, "Gbit/s": 1e3}


def _client(pair: Pair, size: int, asked: Asked) -> list[str]:
    argv = ["netperf", "-H", pair.server.address, "-p", str(pair.port), "-t", asked.test]
    argv += ["-l", str(asked.seconds), "--", "-k", ",".join(netperf.SELECTORS)]
    if size:
        argv += ["-m", str(size)] if asked.streaming else ["-r", f"{size},{size}"]
    return argv


def _read(data: bytes) -> Moved:
    found = netperf.parse(data)
    return Moved(found.throughput * _MBIT.get(found.unit, 0.0), found.retransmits)


NETPERF = PairWorkload(
    Tool(
        kind="netperf",
        package="netperf",
        server=lambda pair: ["netserver", "-D", "-p", str(pair.port)],
        client=_client,
        read=_read,
        first_port=12865,
        tests={"TCP_STREAM": "tcp_stream", "TCP_RR": "tcp_round_trip", "UDP_RR": "udp_round_trip"},
        version_flag="-V",
    )
)
