"""Programs with one client and one server per pair: one row per program, and all that they share.

nuttcp, iperf3, netperf and qperf differ in their words and in what their output holds; servers, launch, verification,
fairness and the share of the line rate are the same. Standard library only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, WorkloadOrder
from nearmetal.units import by_key, is_whole
from nearmetal.workloads import pairs
from nearmetal.workloads.figures import UNITS, jain
from nearmetal.workloads.pairs import Pair
from nearmetal.workloads.program_group import Command
from nearmetal.workloads.tools.tool import Spans
from nearmetal.workloads.workload import Launch

LEAST_PACKETS_PER_S = 20
"""Packets a second that any transfer worth the name puts on its path, emulated machines included."""

_OPTIONS = frozenset({"seconds", "runs", "line_rate_mbit"})
_OF_STREAMS = frozenset({"streams", "protocol", "rate_mbit"})
_DEFAULT_UDP_MBIT = 100
_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a study asks of a program: `runs` one after another, of each size (0: the program's own).

    `test` is the program's name of what it does, empty where it does one thing; `operation` is the store's.
    `rate_mbit` 0 is unlimited.
    """

    operation: str
    seconds: float
    runs: int
    sizes_bytes: tuple[int, ...]
    test: str = ""
    streams: int = 1
    rate_mbit: int = 0

    @property
    def udp(self) -> bool:
        """Return whether datagrams are sent."""
        return self.operation.startswith("udp_")

    @property
    def streaming(self) -> bool:
        """Return whether its figures are rates of bytes, which add up over pairs."""
        return self.operation.endswith("_stream")


@dataclass(frozen=True, slots=True)
class ClientResult:
    """What one client's output says: durations of an operation, and counts, -1 for what it does not report."""

    operation: str
    spans: Spans
    retransmits: int = -1
    lost: int = -1

    @property
    def rate_mbit_s(self) -> float:
        """Return the rate of the whole run, 0 where the durations are times."""
        return UNITS["Mbit/s"].scale / self.spans.whole_ns if self.spans.whole_ns else 0.0


@dataclass(frozen=True, slots=True)
class PairWorkload:
    """One program: one client per pair, all at once, each with its own server; run after run, size after size.

    `kind` is its name, its package's and the word in the study file. `server` and `client` give command lines, ports
    are the pair's; `read` reads a client's output. `tests` maps the program's names of its tests to operations; without
    any it streams, over TCP or UDP. It cannot be told to take less than `least_seconds`.
    """

    kind: str
    server: Callable[[Pair], Sequence[str]]
    client: Callable[[Pair, int, StreamOptions], Sequence[str]]
    read: Callable[[bytes], ClientResult]
    first_port: int
    tests: Mapping[str, str] = field(default_factory=dict)
    version_flag: str = "--version"
    least_seconds: float = 1

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that it does not have."""
        self._options(workload)

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a server for each pair, wait for it, and return the launch of all clients."""
        options = self._options(order.workload)
        every = pairs.pairs_of(order, endpoints, self.first_port)
        for pair in every:
            argv = self.server(pair)
            pairs.require_program(shell, pair.server.node, argv[0], self.kind)
            pairs.start_server(shell, argv, pair.server.node, pair.port)
        turns = [(size, run) for size in options.sizes_bytes for run in range(options.runs)]
        commands = [
            Command(
                pair.client.node,
                tuple(self.client(pair, size, options)),
                str(OutputName(self.kind, options.operation, size, run, pair.number)),
                step,
            )
            for step, (size, run) in enumerate(turns)
            for pair in every
        ]
        node = every[0].client.node
        version = pairs.printed_version(shell, node, self.kind, self.version_flag)
        return pairs.launch_group(shell, order, commands, {f"{self.kind}.version": version}, node=node)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to a result and all ran together."""
        pairs.check_clients(order.workload, finished, files)
        self._read(files)

    def samples(self, data: bytes) -> Spans:
        """Return the durations in a client's output."""
        return self.read(data).spans

    def counters(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return what the program reports of retransmits and lost datagrams; fairness and share of the line rate."""
        turns = self._read(files)
        everything = [one for turn in turns for one in turn]
        told = {
            "tool.retransmits": [one.retransmits for one in everything if one.retransmits >= 0],
            "tool.lost_datagrams": [one.lost for one in everything if one.lost >= 0],
        }
        counters = {name: sum(counts) for name, counts in told.items() if counts}
        if self._options(order.workload).streaming:
            counters |= _shares(order.workload, [[one.rate_mbit_s for one in turn] for turn in turns])
        return counters

    def least_packets(self, order: Order) -> int:
        """Return what every end of the path must have carried at the very least."""
        options = self._options(order.workload)
        return int(LEAST_PACKETS_PER_S * options.seconds * options.runs) * len(options.sizes_bytes)

    def _options(self, workload: WorkloadOrder) -> StreamOptions:
        """Read and check the options; raise BadInputError for what is unknown or makes no sense."""
        tests = self.tests
        pairs.check_options(workload, _OPTIONS | ({"test"} if tests else _OF_STREAMS))
        pairs.pair_count(workload)
        test = pairs.text_option(workload, "test", next(iter(tests)), tuple(tests)) if tests else ""
        protocol = pairs.text_option(workload, "protocol", "tcp", ("tcp", "udp"))
        options = StreamOptions(
            operation=tests[test] if tests else f"{protocol}_stream",
            seconds=_seconds(workload, self.least_seconds),
            runs=workload.number("runs", 1),
            sizes_bytes=tuple(workload.numbers("sizes")) or (0,),
            test=test,
            streams=workload.number("streams", 1),
            rate_mbit=workload.number("rate_mbit", _DEFAULT_UDP_MBIT if protocol == "udp" else 0),
        )
        if min(options.streams, options.runs) < 1 or options.runs > _MOST_RUNS or options.rate_mbit < 0:
            raise workload.invalid(f"`runs` and `streams` are at least 1, `runs` at most {_MOST_RUNS}")
        if "line_rate_mbit" in workload.options and (workload.number("line_rate_mbit") < 1 or not options.streaming):
            raise workload.invalid("`line_rate_mbit` is a positive number, for figures that are rates of bytes")
        return options

    def _read(self, files: Mapping[str, bytes]) -> list[list[ClientResult]]:
        """Return what every client said: a list for each size and run, in it one a pair."""
        named = sorted((found, data) for name, data in files.items() if (found := read_name(name)))
        own = ((found, self.read(data)) for found, data in named if found.kind == self.kind)
        return list(by_key(((found.size_bytes, found.run), result) for found, result in own).values())


def _seconds(workload: WorkloadOrder, least: float) -> float:
    """Return how long a client runs; raise BadInputError for what the program cannot be told."""
    value = workload.options.get("seconds", 2)
    if isinstance(value, bool | str | list) or not least <= value < math.inf or (least == 1 and value != int(value)):
        kind = "a whole number of at least 1" if least == 1 else f"a number of at least {least:g}"
        raise workload.invalid(f"option 'seconds' of {workload.kind} is {kind}, not {value!r}")
    return value


@dataclass(frozen=True, slots=True, order=True)
class OutputName:
    """The name of one client's output in an outcome: all that its decoder must know, in the order of looking at it."""

    kind: str
    operation: str
    size_bytes: int
    run: int
    pair: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.operation}:{self.size_bytes}:{self.run}:{self.pair}"


def read_name(name: str) -> OutputName | None:
    """Read what `str` of an OutputName wrote; None for the name of anything else."""
    kind, _, rest = name.partition(":")
    operation, *numbers = rest.split(":")
    if len(numbers) != 3 or not all(map(is_whole, numbers)):
        return None
    return OutputName(kind, operation, *map(int, numbers))


def _shares(workload: WorkloadOrder, turns: list[list[float]]) -> dict[str, int]:
    """Return fairness between pairs, the worst of all turns, and the best share of the line rate, in millionths."""
    counters: dict[str, int] = {}
    if any(len(rates) > 1 for rates in turns):
        counters["tool.fairness_ppm"] = round(1e6 * min(jain(rates) for rates in turns))
    line_rate_mbit = workload.number("line_rate_mbit", 0)
    if line_rate_mbit:
        counters["tool.line_rate_ppm"] = round(1e6 * max(sum(rates) for rates in turns) / line_rate_mbit)
    return counters
