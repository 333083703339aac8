"""nuttcp: the summary line of a transfer, as text or as `key=value` words (-fparse). Read with versions 6.1.2 to 8.2.2.

One line stands for the whole transfer; there are no samples in it. Rates are 10^6 bit/s. Its count of retransmits is
not read: 6.1.2 printed 0 where the kernel sent 13,880 segments again within a second (Linux 6.18, a queue of 40 KiB).
"""

import re
from collections.abc import Iterator

from nearmetal.workloads.figures import STREAMS
from nearmetal.workloads.pairs import Pair
from nearmetal.workloads.streams import ClientResult, PairWorkload, StreamOptions
from nearmetal.workloads.tools.lines import positive, refuse, to_text, whole
from nearmetal.workloads.tools.tool import NO_SIZE, FileCell, Foreign, Import, Tool, one_figure

PROGRAM = "nuttcp"

_PLAIN = re.compile(
    r"^\s*(?P<megabytes>[\d.]+) MB / +(?P<real_seconds>[\d.]+) sec = +(?P<rate_Mbps>[\d.]+) Mbps"
    r" +(?P<tx_cpu>\d+) %TX +(?P<rx_cpu>\d+) %RX"
    r"(?: +\d+ (?:host-)?retrans)?"
    r"(?: +(?P<drop>\d+) / +(?P<pkt>\d+) drop/pkt +(?P<data_loss>[\d.]+) %loss)?"
    r"(?: +(?P<rtt_ms>[\d.]+) msRTT)?"
)


def parse(data: bytes) -> ClientResult:
    """Read the output of one nuttcp client; raise ForeignFileError unless it holds exactly one summary."""
    text = to_text(data, PROGRAM)
    found = [fields for line in text.splitlines() if "Mbps" in line and (fields := _summary(line))]
    if len(found) != 1:
        raise refuse(PROGRAM, f"it holds {len(found)} summary lines, not one")
    (fields,) = found
    rate_mbit_s = positive(fields["rate_Mbps"], PROGRAM, "the rate", "nothing was transferred")
    lost = whole(fields.get("drop", "0"), PROGRAM, "the count of lost datagrams")
    udp = whole(fields.get("pkt", "0"), PROGRAM, "the count of datagrams") > 0
    operation = "udp_stream" if udp else "tcp_stream"
    return ClientResult(operation, one_figure("Mbit/s", rate_mbit_s), lost=lost if udp else -1)


def _summary(line: str) -> dict[str, str]:
    """Return the words of a summary line, empty for any other line: intervals lack the CPU columns."""
    match = _PLAIN.match(line)
    fields = (
        {k: v for k, v in match.groupdict().items() if v}
        if match
        else dict(word.partition("=")[::2] for word in line.split() if "=" in word)
    )
    return fields if {"rate_Mbps", "real_seconds", "tx_cpu"} <= fields.keys() else {}


# ---- launching, decoding, adopting


_DATA_PORTS_FROM = 5301


def _server(pair: Pair) -> list[str]:
    return ["nuttcp", "-S", "--nofork", f"-P{pair.port}"]


def _client(pair: Pair, size: int, options: StreamOptions) -> list[str]:
    # A pair's data ports lie apart from all others, also where each of its streams takes one.
    data_port = _DATA_PORTS_FROM + 64 * pair.number
    argv = ["nuttcp", "-fparse", f"-T{options.seconds:g}", f"-P{pair.port}", f"-p{data_port}"]
    argv += [f"-N{options.streams}"] if options.streams > 1 else []
    argv += [f"-l{size}"] if size else []
    argv += ["-u"] if options.udp else []
    argv += [f"-R{options.rate_mbit}m"] if options.rate_mbit else []
    return [*argv, pair.server.address]


_WORKLOAD = PairWorkload("nuttcp", _server, _client, parse, first_port=5100, version_flag="-V", least_seconds=0.1)


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    found = parse(data)
    unsaid = "neither direction, number of streams, limit of the rate nor window: import outputs of one kind only"
    lacks = ("one rate per run: no percentiles, no spread within it", NO_SIZE, unsaid)
    yield Foreign("nuttcp", "", "nuttcp", 2, ((found.operation, 0, found.spans),), lacks)


_ENDED = rb"^(?:(?!tx_cpu=|%TX )[^\n])*+(?:tx_cpu=|%TX )[^\n]*+\n"
_IMPORT = Import((b"rate_Mbps=", b" Mbps "), _adopt, ended=_ENDED)
TOOL = Tool("nuttcp", (_IMPORT,), _WORKLOAD, _WORKLOAD.samples, STREAMS)
