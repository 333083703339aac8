"""Workload `sockperf`: request and response over TCP or UDP; every packet's round trip is a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, TrialError
from nearmetal.workloads.crew import Command
from nearmetal.workloads.formats import sockperf
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
from nearmetal.workloads.streams import OutputName

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoints
    from nearmetal.process import Finished
    from nearmetal.study.order import Order, Scalar, WorkloadOrder
    from nearmetal.workloads.workload import Launch

_OPTIONS = ("seconds", "protocol")
_FIRST_PORT = 11111
_LEAST_BYTES = 14
_LEAST_ROUND_TRIPS_PER_S = 10
_SAID = "sockperf.said"


class Sockperf:
    """Launches sockperf's ping-pong with a full log; sockperf itself leaves its warm-up out."""

    kind = "sockperf"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options or sizes that it does not take."""
        check_options(workload, _OPTIONS)
        pair_count(workload)
        text_option(workload, "protocol", "tcp", ("tcp", "udp"))
        small = [size for size in workload.numbers("sizes") if size < _LEAST_BYTES]
        if small or workload.number("seconds", 2) < 1:
            raise BadInputError(
                f"workload {workload.label!r}: sockperf needs {_LEAST_BYTES} bytes a message and 1 second at least"
            )

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a server a pair and say how to launch all clients, size after size."""
        self.check(order.workload)
        protocol = text_option(order.workload, "protocol", "tcp")
        flags = ["--tcp"] if protocol == "tcp" else []
        pairs = pairs_of(order, endpoints, _FIRST_PORT)
        for pair in pairs:
            require_program(shell, pair.server.node, "sockperf", "sockperf")
            argv = ["sockperf", "sr", "-i", pair.server.address, "-p", str(pair.port), *flags]
            start_server(shell, argv, pair.server.node, pair.port, protocol)
        node = pairs[0].client.node
        commands, logs = [], {}
        for step, size in enumerate(order.workload.numbers("sizes") or [_LEAST_BYTES]):
            for pair in pairs:
                name = str(OutputName(self.kind, f"{protocol}_round_trip", size, 0, pair.number))
                log = f"{shell.scratch}/{node}/{name.replace('/', '-')}.csv"
                argv = ["sockperf", "pp", "-i", pair.server.address, "-p", str(pair.port), *flags]
                argv += ["-t", str(order.workload.number("seconds", 2)), "-m", str(size), "--full-log", log]
                commands.append(Command(pair.client.node, tuple(argv), f"{_SAID}.{size}.{pair.number}", step))
                logs[name] = log
        version = shell.run(["sockperf", "--version"], node=node, check=False).text.splitlines()
        facts: dict[str, Scalar] = {"sockperf.version": version[0] if version else "unknown"}
        return launch_crew(shell, order, commands, facts, node=node, files=logs)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to a summary, over TCP without a loss."""
        check_ended(order.workload, finished)
        check_together(files)
        for summary in _summaries(files):
            lost = summary.dropped + summary.duplicated + summary.out_of_order
            if lost and text_option(order.workload, "protocol", "tcp") == "tcp":
                raise TrialError(f"sockperf lost, doubled or reordered {lost} messages over TCP")

    def tell(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return what went astray, and how many round trips there were, the warm-up's too."""
        del order
        found = _summaries(files)
        return {
            "tool.lost_datagrams": sum(one.dropped for one in found),
            "tool.iterations": sum(one.sent for one in found),
        }

    def least_packets(self, order: Order) -> int:
        """Return what any ping-pong of that length carries."""
        workload = order.workload
        return _LEAST_ROUND_TRIPS_PER_S * workload.number("seconds", 2) * max(1, len(workload.numbers("sizes")))


def _summaries(files: dict[str, bytes]) -> list[sockperf.Summary]:
    return [sockperf.parse_summary(data) for name, data in sorted(files.items()) if name.startswith(_SAID)]
