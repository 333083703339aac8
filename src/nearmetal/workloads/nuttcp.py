"""Workload `nuttcp`: bulk TCP or UDP between pairs of nodes, with retransmits; one figure a run and pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads import streams
from nearmetal.workloads.formats import nuttcp
from nearmetal.workloads.pairs import check_ended, check_together

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.process import Finished
    from nearmetal.study.order import Order, WorkloadOrder
    from nearmetal.workloads.pairs import Pair
    from nearmetal.workloads.streams import StreamOptions
    from nearmetal.workloads.workload import Launch

_DATA_PORTS_FROM = 5301


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    # A pair's data ports lie apart from all others, also where each of its streams takes one.
    data_port = _DATA_PORTS_FROM + 64 * pair.number
    argv = ["nuttcp", "-fparse", f"-T{options.seconds}", f"-P{pair.port}", f"-p{data_port}"]
    argv += [f"-N{options.streams}"] if options.streams > 1 else []
    argv += [f"-l{size}"] if size else []
    argv += ["-u"] if options.udp else []
    argv += [f"-R{options.rate_mbit}m"] if options.rate_mbit else []
    return [*argv, pair.server.address]


_TOOL = streams.Tool(
    kind="nuttcp",
    program="nuttcp",
    package="nuttcp",
    first_port=5100,
    server=lambda pair: ["nuttcp", "-S", "--nofork", f"-P{pair.port}"],
    client=_client,
    version_flag="-V",
)


class Nuttcp:
    """Launches one client a pair, all at once; samples are one rate a pair and run."""

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
        everything = [one for transfers in by_size.values() for one in transfers]
        rates = {size: [one.rate_mbit_s for one in transfers] for size, transfers in by_size.items()}
        return streams.stream_counters(order.workload, rates, line_unit=1.0) | {
            "tool.retransmits": sum(max(0, one.retransmits) for one in everything),
            "tool.lost_datagrams": sum(one.lost for one in everything),
        }

    def least_packets(self, order: Order) -> int:
        """Return what any transfer of that length carries."""
        return streams.least_packets(order)


def _parse(files: dict[str, bytes]) -> dict[int, list[nuttcp.Transfer]]:
    return {size: [nuttcp.parse(one) for one in outputs] for size, outputs in streams.sizes_of(files, "nuttcp").items()}
