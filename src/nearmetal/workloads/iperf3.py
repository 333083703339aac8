"""Workload `iperf3`: bulk TCP or UDP between pairs of nodes; every reporting interval is a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads import streams
from nearmetal.workloads.formats import iperf3
from nearmetal.workloads.pairs import check_ended, check_together

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.process import Finished
    from nearmetal.study.order import Order, WorkloadOrder
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.streams import StreamOptions
    from nearmetal.workloads.workload import Launch

INTERVAL_S = 0.1
"""The shortest that iperf3 reports."""


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    argv = ["iperf3", "-c", pair.server.address, "-p", str(pair.port), "-J", "-t", str(options.seconds)]
    argv += ["-i", str(INTERVAL_S), "-P", str(options.streams)]
    argv += ["-l", str(size)] if size else []
    argv += ["-u"] if options.udp else []
    argv += ["-b", f"{options.rate_mbit}M"] if options.rate_mbit else []
    return argv


_TOOL = streams.Tool(
    kind="iperf3",
    program="iperf3",
    package="iperf3",
    first_port=5201,
    server=lambda pair: ["iperf3", "-s", "-p", str(pair.port)],
    client=_client,
)


class Iperf3:
    """Launches one client a pair, all at once; samples are the rates of its intervals."""

    kind = _TOOL.kind

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that it does not have."""
        streams.stream_options(workload)

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start the servers and say how to launch the clients."""
        return streams.prepare_streams(shell, order, endpoints, _TOOL)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client moved data and all ran together."""
        check_ended(order.workload, finished)
        _parse(files)
        check_together(files)

    def tell(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return retransmits, lost datagrams, fairness and share of the line rate."""
        by_size = _parse(files)
        everything = [one for reports in by_size.values() for one in reports]
        rates = {size: [one.received_bit_s for one in reports] for size, reports in by_size.items()}
        return streams.stream_counters(order.workload, rates, line_unit=1e6) | {
            "tool.retransmits": sum(max(0, one.retransmits) for one in everything),
            "tool.lost_datagrams": sum(one.lost for one in everything),
        }

    def least_packets(self, order: Order) -> int:
        """Return what any transfer of that length carries."""
        return streams.least_packets(order)


def _parse(files: dict[str, bytes]) -> dict[int, list[iperf3.Report]]:
    return {size: [iperf3.parse(one) for one in outputs] for size, outputs in streams.sizes_of(files, "iperf3").items()}
