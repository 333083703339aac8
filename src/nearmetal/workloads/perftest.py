"""Workload `perftest`: verbs (ib_write_lat, ib_send_bw ...), every iteration of a latency test from its own dump.

perftest's deviation and tail columns are not used (see `formats.perftest`): all is computed from the dump. Its
bandwidth programs have no samples, so one mean a run and size is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, TrialError, UnavailableError
from nearmetal.reading import parse_json
from nearmetal.workloads.crew import Command
from nearmetal.workloads.formats import perftest
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
from nearmetal.workloads.streams import OutputName, read_name

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.paths.path import Endpoint, Endpoints
    from nearmetal.process import Finished
    from nearmetal.study.order import Order, Scalar, WorkloadOrder
    from nearmetal.workloads.workload import Launch

PROGRAMS = tuple(f"ib_{verb}_{kind}" for verb in ("write", "read", "atomic", "send") for kind in ("lat", "bw"))

_NUMBERS = {
    "inline_bytes": "-I",
    "mtu": "-m",
    "tx_depth": "-t",
    "rx_depth": "-r",
    "gid_index": "-x",
    "queue_pairs": "-q",
}
_SWITCHES = {"events": "-e", "srq": "--use-srq", "rdma_cm": "-R", "bidirectional": "-b"}
_OPTIONS = {*_NUMBERS, *_SWITCHES, "connection", "pin"}
_CONNECTIONS = ("RC", "UC", "UD")
_FIRST_PORT = 18515
_ATOMIC_BYTES = 8


class Perftest:
    """Launches one of perftest's programs; the operation of the study is the program's name."""

    kind = "perftest"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for a program, option or size that perftest does not have."""
        check_options(workload, _OPTIONS)
        pair_count(workload)
        text_option(workload, "operation", "", PROGRAMS)
        text_option(workload, "connection", "RC", _CONNECTIONS)
        sizes = workload.numbers("sizes")
        if _atomic(workload) and sizes not in ([], [_ATOMIC_BYTES]):
            raise BadInputError(f"workload {workload.label!r}: an atomic has {_ATOMIC_BYTES} bytes, not {sizes}")
        if not sizes and not _atomic(workload):
            raise BadInputError(f"workload {workload.label!r}: {workload.options['operation']} needs `sizes`")
        if workload.number("iterations") < perftest.LEAST_ITERATIONS:
            raise BadInputError(f"workload {workload.label!r}: perftest needs {perftest.LEAST_ITERATIONS} iterations")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a server for each pair and size (each serves one client), and say how to launch the clients."""
        self.check(order.workload)
        program = text_option(order.workload, "operation", "")
        pairs = pairs_of(order, endpoints, _FIRST_PORT)
        sizes = order.workload.numbers("sizes") or [_ATOMIC_BYTES]
        commands = []
        for pair in pairs:
            require_program(shell, pair.server.node, program, "perftest")
            client, server = (_device(shell, end) for end in (pair.client, pair.server))
            for step, size in enumerate(sizes):
                port = pair.port + 2 * len(pairs) * step
                start_server(shell, _argv(order.workload, server, size, port, core=1), pair.server.node, port)
                argv = (*_argv(order.workload, client, size, port, core=0), pair.server.address)
                name = str(OutputName(self.kind, program, size, 0, pair.number))
                commands.append(Command(pair.client.node, argv, name, step))
        node = pairs[0].client.node
        said = shell.run([program, "--version"], node=node, check=False).text.strip()
        facts: dict[str, Scalar] = {"perftest.version": said.removeprefix("Version: ")[:80] or "unknown"}
        return launch_crew(shell, order, commands, facts, node=node)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to the result that was asked for."""
        check_ended(order.workload, finished)
        check_together(files)
        wanted = text_option(order.workload, "operation", "")
        for name, data in files.items():
            if (named := read_name(name)) is None:
                continue
            result = perftest.parse(data)
            found = (result.operation, [row.message_bytes for row in result.rows])
            if found != (wanted, [named.size_bytes]):
                raise TrialError(f"{wanted} of {named.size_bytes} bytes was asked for, the output is of {found}")

    def least_packets(self, order: Order) -> int:
        """Return one packet an iteration and size; a large message takes more."""
        return order.workload.number("iterations") * max(1, len(order.workload.numbers("sizes")))


def _atomic(workload: WorkloadOrder) -> bool:
    return str(workload.options["operation"]).startswith("ib_atomic")


def _argv(workload: WorkloadOrder, device: str, size: int, port: int, *, core: int) -> tuple[str, ...]:
    """Return the command line of one side; both sides must be told the same."""
    program = text_option(workload, "operation", "")
    argv = ["taskset", "-c", str(core)] if workload.options.get("pin") else []
    argv += [program, "-F", "-d", device, "-p", str(port), "-n", str(workload.number("iterations"))]
    argv += ["-c", text_option(workload, "connection", "RC")]
    argv += [] if _atomic(workload) else ["-s", str(size)]
    argv += ["-U"] if program.endswith("_lat") else []
    for name, flag in _NUMBERS.items():
        if name in workload.options:
            argv += [flag, str(workload.number(name))]
    argv += [flag for name, flag in _SWITCHES.items() if workload.options.get(name)]
    return tuple(argv)


def _device(shell: Shell, end: Endpoint) -> str:
    """Return the RDMA device that belongs to an end's interface; raise UnavailableError when it has none."""
    finished = shell.run(["rdma", "-j", "link", "show"], node=end.node, check=False)
    try:
        links = parse_json(finished.text or "[]")
        devices = [str(link["ifname"]) for link in links if link.get("netdev") == end.interface]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrialError(f"cannot read the RDMA devices of {end.node or 'the machine'}: {error}") from error
    if not devices:
        raise UnavailableError(
            f"{end.interface} of {end.node or 'the machine'} has no RDMA device",
            hint="an RDMA adapter is needed, or soft-RoCE: `rdma link add rxe0 type rxe netdev INTERFACE`",
        )
    return devices[0].partition("/")[0]
