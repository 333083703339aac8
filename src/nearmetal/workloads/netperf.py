"""Workload `netperf`: TCP_STREAM, TCP_RR or UDP_RR where netperf is installed; one figure a run and pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads.crew import Command
from nearmetal.workloads.formats import netperf
from nearmetal.workloads.pairs import (
    check_ended,
    check_options,
    check_together,
    launch_crew,
    pair_count,
    pairs_of,
    require_program,
    start_server,
    text_option,
)
from nearmetal.workloads.streams import LEAST_PACKETS_PER_S, file_name, sizes_of, stream_counters

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.process import Finished
    from nearmetal.study.order import Order, WorkloadOrder
    from nearmetal.workloads.workload import Launch

TESTS = {"TCP_STREAM": "tcp_stream", "TCP_RR": "tcp_round_trip", "UDP_RR": "udp_round_trip"}
"""netperf's tests that are run, and the operation of each."""

_OPTIONS = ("seconds", "test", "line_rate_mbit")
_FIRST_PORT = 12865


class Netperf:
    """Launches one client a pair, all at once, against a netserver of its own."""

    kind = "netperf"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that it does not have."""
        check_options(workload, _OPTIONS)
        pair_count(workload)
        text_option(workload, "test", "TCP_STREAM", tuple(TESTS))

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a netserver a pair and say how to launch the clients, size after size."""
        self.check(order.workload)
        test = text_option(order.workload, "test", "TCP_STREAM")
        pairs = pairs_of(order, endpoints, _FIRST_PORT)
        for pair in pairs:
            require_program(shell, pair.server.node, "netserver", "netperf")
            start_server(shell, ["netserver", "-D", "-p", str(pair.port)], pair.server.node, pair.port)
        commands = []
        for step, size in enumerate(order.workload.numbers("sizes") or [0]):
            for pair in pairs:
                argv = ["netperf", "-H", pair.server.address, "-p", str(pair.port), "-t", test]
                argv += ["-l", str(order.workload.number("seconds", 2)), "--", "-k", ",".join(netperf.SELECTORS)]
                if size:
                    argv += ["-m", str(size)] if test == "TCP_STREAM" else ["-r", f"{size},{size}"]
                name = file_name(self.kind, TESTS[test], size, pair.number, len(pairs))
                commands.append(Command(pair.client.node, tuple(argv), name, step))
        node = pairs[0].client.node
        version = shell.run(["netperf", "-V"], node=node, check=False).text.strip() or "unknown"
        return launch_crew(
            shell,
            order,
            commands,
            {"netperf.version": version[:80]},
            node=node,
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to a result and all ran together."""
        check_ended(order.workload, finished)
        check_together(files)
        for outputs in sizes_of(files, self.kind).values():
            for one in outputs:
                netperf.parse(one)

    def tell(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return retransmits, and for streams fairness and share of the line rate."""
        by_size = {
            size: [netperf.parse(one) for one in outputs] for size, outputs in sizes_of(files, self.kind).items()
        }
        counters = {"tool.retransmits": sum(max(0, one.retransmits) for all_ in by_size.values() for one in all_)}
        if text_option(order.workload, "test", "TCP_STREAM") == "TCP_STREAM":
            rates = {
                size: [one.throughput * (1e3 if one.unit == "Gbit/s" else 1.0) for one in results]
                for size, results in by_size.items()
            }
            counters |= stream_counters(order.workload, rates, line_unit=1.0)
        return counters

    def least_packets(self, order: Order) -> int:
        """Return what any test of that length carries."""
        workload = order.workload
        return LEAST_PACKETS_PER_S * workload.number("seconds", 2) * max(1, len(workload.numbers("sizes")))
