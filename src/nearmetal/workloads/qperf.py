"""Workload `qperf`: its TCP and UDP tests, latency one way or bandwidth; one figure a run and pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.workloads.crew import Command
from nearmetal.workloads.formats import qperf
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
from nearmetal.workloads.streams import LEAST_PACKETS_PER_S, file_name, sizes_of

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.process import Finished
    from nearmetal.study.order import Order, WorkloadOrder
    from nearmetal.workloads.workload import Launch

TESTS = {"tcp_lat": "tcp_one_way", "udp_lat": "udp_one_way", "tcp_bw": "tcp_stream", "udp_bw": "udp_stream"}
"""qperf's tests that are run, and the operation of each."""

_OPTIONS = ("seconds", "test")
_FIRST_PORT = 19765


class Qperf:
    """Launches one client a pair, all at once, against a server of its own."""

    kind = "qperf"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that it does not have."""
        check_options(workload, _OPTIONS)
        pair_count(workload)
        text_option(workload, "test", "tcp_lat", tuple(TESTS))

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a server a pair and say how to launch the clients, size after size."""
        self.check(order.workload)
        test = text_option(order.workload, "test", "tcp_lat")
        pairs = pairs_of(order, endpoints, _FIRST_PORT)
        for pair in pairs:
            require_program(shell, pair.server.node, "qperf", "qperf")
            start_server(shell, ["qperf", "-lp", str(pair.port)], pair.server.node, pair.port)
        commands = []
        for step, size in enumerate(order.workload.numbers("sizes") or [0]):
            for pair in pairs:
                argv = ["qperf", "-uu", "-v", "-lp", str(pair.port), "-t", str(order.workload.number("seconds", 2))]
                argv += ["-m", str(size)] if size else []
                name = file_name(self.kind, TESTS[test], size, pair.number, len(pairs))
                commands.append(Command(pair.client.node, (*argv, pair.server.address, test), name, step))
        node = pairs[0].client.node
        version = shell.run(["qperf", "--version"], node=node, check=False).text.strip() or "unknown"
        return launch_crew(
            shell,
            order,
            commands,
            {"qperf.version": version[:80]},
            node=node,
        )

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to a result and all ran together."""
        check_ended(order.workload, finished)
        check_together(files)
        for outputs in sizes_of(files, self.kind).values():
            for one in outputs:
                qperf.parse(one)

    def least_packets(self, order: Order) -> int:
        """Return what any test of that length carries."""
        workload = order.workload
        return LEAST_PACKETS_PER_S * workload.number("seconds", 2) * max(1, len(workload.numbers("sizes")))
