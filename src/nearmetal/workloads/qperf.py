"""Workload `qperf`: its TCP and UDP tests, latency one way or bandwidth; one figure a run and pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads.formats import qperf
from nearmetal.workloads.streams import Moved, PairWorkload, Tool

if TYPE_CHECKING:
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.streams import Asked


def _client(pair: Pair, size: int, asked: Asked) -> list[str]:
    argv = ["qperf", "-uu", "-v", "-lp", str(pair.port), "-t", str(asked.seconds)]
    argv += ["-m", str(size)] if size else []
    return [*argv, pair.server.address, asked.test]


def _read(data: bytes) -> Moved:
    return Moved(qperf.parse(data)[0].rate_bytes_s * 8 / 1e6)


QPERF = PairWorkload(
    Tool(
        kind="qperf",
        package="qperf",
        server=lambda pair: ["qperf", "-lp", str(pair.port)],
        client=_client,
        read=_read,
        first_port=19765,
        tests={"tcp_lat": "tcp_one_way", "udp_lat": "udp_one_way", "tcp_bw": "tcp_stream", "udp_bw": "udp_stream"},
    )
)
