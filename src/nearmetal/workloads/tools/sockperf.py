"""sockperf: the summary that it prints, and the file of every packet (--full-log). Read with versions 3.5 to 3.10.

The latency of both is half a round trip. The log holds when each packet was sent and when its answer came.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearmetal.errors import TrialError
from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, Scalar, WorkloadOrder
from nearmetal.workloads import pairs
from nearmetal.workloads.figures import LATENCY
from nearmetal.workloads.program_group import Command
from nearmetal.workloads.streams import OutputName
from nearmetal.workloads.tools.lines import positive, refuse, to_text, whole
from nearmetal.workloads.tools.tool import NO_SIZE, ONE_MEAN, FileCell, Foreign, Import, Spans, Tool, one_figure
from nearmetal.workloads.workload import Launch

PROGRAM = "sockperf"

_LATENCY = re.compile(r"^sockperf: Summary: (?P<kind>Latency|Round trip) is (?P<us>[\d.]+) usec", re.MULTILINE)
_OBSERVED = re.compile(r"^sockperf: Total (\d+) observations", re.MULTILINE)
_SENT = re.compile(r"^sockperf: \[Total Run\] .*\bSentMessages=(\d+)", re.MULTILINE)
_LOST = re.compile(
    r"^sockperf: # dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)",
    re.MULTILINE,
)
_TOTAL = re.compile(rb"\[Total Run\] .*\bSentMessages=(\d{1,18}); ReceivedMessages=(\d{1,18})")
_PROTOCOL = re.compile(rb"PORT = +\d{1,5} # (TCP|UDP)\b")
_LOOK_BYTES = 1 << 16
_PARAMETERS = re.compile(r"--msg-size=(\d+)")
_BURST = re.compile(rb"--burst=([02-9]|\d{2,9})\b")
_RATE = re.compile(rb"--mps=(\d{1,9})\b")
_EVERY = re.compile(rb"--reply-every=(\d{1,9})\b")
_OF_PING_PONG, _OF_LOAD = 600_000, 10_000
"""Bursts a second, which a ping-pong does not reach, unless `--mps` says otherwise."""
_ANSWERED = 100
"""A load has one message of so many answered, unless `--reply-every` says otherwise."""
_HEAD = "packet, txTime(sec), rxTime(sec), latency(usec)"
_ROW = re.compile(r"(\d+), (\d+)\.(\d{9}), (\d+)\.(\d{9}), *[\d.]+")


@dataclass(frozen=True, slots=True)
class SockperfSummary:
    """What sockperf says at its end: the mean half round trip, how many messages it sent in all, what went astray."""

    mean_half_round_trip_us: float
    sent: int
    dropped: int
    duplicated: int
    out_of_order: int


def parse_summary(data: bytes) -> SockperfSummary:
    """Read what sockperf printed; raise ForeignFileError unless it came to a summary."""
    text = to_text(data, PROGRAM)
    latency, observed, lost, sent = (one.search(text) for one in (_LATENCY, _OBSERVED, _LOST, _SENT))
    if not latency or not observed or not lost or not sent:
        raise refuse(PROGRAM, "there is no summary of latencies in it")
    halves = 1.0 if latency["kind"] == "Latency" else 0.5
    return SockperfSummary(
        positive(latency["us"], PROGRAM, "the latency", "its latency is 0") * halves,
        whole(sent[1], PROGRAM, "the count of messages"),
        *(whole(count, PROGRAM, "a count of lost messages") for count in lost.groups()),
    )


def parse_full_log(data: bytes) -> tuple[int, Spans]:
    """Return the size of messages and every whole round trip; raise ForeignFileError for all else, torn files too."""
    text = to_text(data, PROGRAM)
    head, found, rows = text.partition(_HEAD)
    if not found:
        raise refuse("sockperf --full-log", f"there is no line {_HEAD!r} in it")
    size = _PARAMETERS.search(head)
    packets = list(_rows(rows))
    if not packets:
        raise refuse("sockperf --full-log", "it holds no packet")
    round_trips_ns = [answered_ns - sent_ns for sent_ns, answered_ns in packets]
    if min(round_trips_ns) <= 0:
        raise refuse("sockperf --full-log", "an answer came before its packet was sent")
    first_ns = packets[0][0]
    spans = Spans(round_trips_ns, [sent_ns - first_ns for sent_ns, _ in packets])
    return whole(size[1], PROGRAM, "the size") if size else 0, spans


def _rows(text: str) -> Iterator[tuple[int, int]]:
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith("---"):
        raise refuse("sockperf --full-log", "it is cut: the closing line is missing")
    for line in lines[:-1]:
        match = _ROW.fullmatch(line.strip())
        if match is None:
            raise refuse("sockperf --full-log", f"{line[:60]!r} is not a packet")
        _, begun, begun_ns, ended, ended_ns = match.groups()
        if max(len(begun), len(ended)) > 9:
            raise refuse("sockperf --full-log", f"{line[:60]!r} is beyond any clock")
        yield int(begun + begun_ns), int(ended + ended_ns)


# ---- launching, decoding, adopting


_OPTIONS = ("seconds", "protocol")
_FIRST_PORT = 11111
_LEAST_BYTES = 14
_LEAST_ROUND_TRIPS_PER_S = 10
_PRINTED = "sockperf.printed"


class Sockperf:
    """Launches sockperf's ping-pong with a full log; sockperf itself leaves its warm-up out."""

    kind = "sockperf"

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options or sizes that it does not take."""
        pairs.check_options(workload, _OPTIONS)
        pairs.pair_count(workload)
        pairs.text_option(workload, "protocol", "tcp", ("tcp", "udp"))
        small = [size for size in workload.numbers("sizes") if size < _LEAST_BYTES]
        if small or workload.number("seconds", 2) < 1:
            raise workload.invalid(f"sockperf needs {_LEAST_BYTES} bytes a message and 1 second at least")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a server a pair and say how to launch all clients, size after size."""
        protocol = pairs.text_option(order.workload, "protocol", "tcp")
        flags = ["--tcp"] if protocol == "tcp" else []
        every = pairs.pairs_of(order, endpoints, _FIRST_PORT)
        for pair in every:
            pairs.require_program(shell, pair.server.node, "sockperf", "sockperf")
            argv = ["sockperf", "sr", "-i", pair.server.address, "-p", str(pair.port), *flags]
            pairs.start_server(shell, argv, pair.server.node, pair.port, protocol)
        node = every[0].client.node
        commands, logs = [], {}
        for step, size in enumerate(order.workload.numbers("sizes") or [_LEAST_BYTES]):
            for pair in every:
                name = str(OutputName(self.kind, f"{protocol}_round_trip", size, 0, pair.number))
                log = f"{shell.scratch}/{node}/{name.replace('/', '-')}.csv"
                argv = ["sockperf", "pp", "-i", pair.server.address, "-p", str(pair.port), *flags]
                argv += ["-t", str(order.workload.number("seconds", 2)), "-m", str(size), "--full-log", log]
                commands.append(Command(pair.client.node, tuple(argv), f"{_PRINTED}.{size}.{pair.number}", step))
                logs[name] = log
        facts: dict[str, Scalar] = {"sockperf.version": pairs.printed_version(shell, node, "sockperf", "--version")}
        return pairs.launch_group(shell, order, commands, facts, node=node, files=logs)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to a summary, over TCP without a loss."""
        pairs.check_clients(order.workload, finished, files)
        for summary in _summaries(files):
            lost = summary.dropped + summary.duplicated + summary.out_of_order
            if lost and pairs.text_option(order.workload, "protocol", "tcp") == "tcp":
                raise TrialError(f"sockperf lost, doubled or reordered {lost} messages over TCP")

    def counters(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
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


def _summaries(files: dict[str, bytes]) -> list[SockperfSummary]:
    return [parse_summary(data) for name, data in sorted(files.items()) if name.startswith(_PRINTED)]


def _samples(data: bytes) -> Spans:
    return parse_full_log(data)[1]


def _operation(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the operation of sockperf's output, and a note where it does not distinguish TCP from UDP.

    `sockperf under-load` sends at a rate of its own and has few messages answered, one in a hundred if not told.
    """
    total = _TOTAL.search(data[:_LOOK_BYTES])
    sent, received = map(int, total.groups()) if total else (1, 1)
    name = "under_load" if 2 * sent > 3 * received else "round_trip"
    found = {match[1].lower() for match in _PROTOCOL.finditer(data[:_LOOK_BYTES])}
    protocol = found.pop().decode() if len(found) == 1 else ""
    if protocol:
        return f"{protocol}_{name}", ()
    return name, ("it does not say whether it was TCP or UDP",)


def _adopt_log(data: bytes) -> Iterator[Foreign[FileCell]]:
    operation, lacks = _operation(data)
    size, spans = parse_full_log(data)
    lacks += () if size else (NO_SIZE,)
    if _overlap(spans):
        operation = operation.replace("round_trip", "under_load")
    name = _workload(data[:_LOOK_BYTES], load=operation.endswith("under_load"))
    yield Foreign("sockperf", "", name, 2, ((operation, size, spans),), (*lacks, *_astray(data)))


def _workload(head: bytes, *, load: bool) -> str:
    """Return the name of what a log's parameters tell of bursts, rate and answers, where they are not the usual ones.

    Each message of a ping-pong is answered, also in bursts, which look like a load.
    """
    burst, rate, answered = (int(found[1]) if (found := one.search(head)) else 0 for one in (_BURST, _RATE, _EVERY))
    usual = {_OF_PING_PONG} if answered == 1 else {_OF_LOAD} if answered else {_OF_PING_PONG, _OF_LOAD}
    name = f"sockperf-burst-{burst}" if burst else "sockperf"
    name += f"-{rate}-mps" if rate and rate not in {max(1, burst) * one for one in usual} else ""
    answers = _ANSWERED if load and not burst else 1
    return name + (f"-reply-every-{answered}" if answered not in {0, answers, _ANSWERED} else "")


def _astray(data: bytes) -> tuple[str, ...]:
    """Return what to say where messages went astray: the figures are of the others, and a lost one has none."""
    found = _LOST.search(data[:_LOOK_BYTES].decode(errors="replace"))
    counts = zip(found.groups(), ("lost", "doubled", "out of order"), strict=True) if found else ()
    told = ", ".join(f"{count} {what}" for count, what in counts if count.strip("0"))
    return (f"messages went astray ({told}): the figures are of the others",) if told else ()


def _overlap(spans: Spans) -> bool:
    """Return whether a packet was sent before the answer to the one before: a ping-pong waits for each."""
    begun = spans.begin_ns or ()
    return any(then < begin + ns for begin, ns, then in zip(begun, spans.ns, begun[1:], strict=False))


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    mean_us = parse_summary(data).mean_half_round_trip_us
    operation, unsaid = _operation(data)
    interval = "its interval is of a mean of dependent packets; give its --full-log instead"
    load = ("neither its rate nor how many messages were answered: import outputs of one kind only",)
    lacks = (ONE_MEAN, NO_SIZE, *unsaid, *(load if operation.endswith("under_load") else ()), interval, *_astray(data))
    yield Foreign("sockperf", "", "sockperf", 2, ((operation, 0, one_figure("us", 2 * mean_us)),), lacks)


TOOL = Tool(
    "sockperf",
    (
        Import((b"packet, txTime(sec)",), _adopt_log),
        Import((b"sockperf: ",), _adopt, begins=rb"^sockperf: \S*== version "),
    ),
    Sockperf(),
    _samples,
    {f"{protocol}{name}": LATENCY for protocol in ("tcp_", "udp_", "") for name in ("round_trip", "under_load")},
)
