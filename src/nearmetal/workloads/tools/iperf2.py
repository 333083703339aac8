"""iperf 2: what a client prints at the end of a transfer. Read with 2.0.13 to 2.2, imported only.

One rate per launch: the sum of all streams, and for UDP what the server reports, since a sender counts what it sent.
"""

import re
from collections.abc import Iterator

from nearmetal.workloads.figures import STREAMS
from nearmetal.workloads.tools.lines import number, positive, refuse, to_text
from nearmetal.workloads.tools.tool import NO_SIZE, FileCell, Foreign, Import, Tool, of_streams, one_figure

PROGRAM = "iperf 2"

_CLIENT = re.compile(r"^Client connecting to \S+, (TCP|UDP) port \d+", re.MULTILINE)
_RATE = re.compile(
    r"^\[ *(?P<id>\*?\d+|SUM)\] +(?P<from>[\d.]+)- *(?P<to>[\d.]+) sec +[\d.]+ \w?Bytes +"
    r"(?P<rate>[\d.]+) (?P<unit>\w+/sec)(?P<more>.*)$"
)
_STREAM = re.compile(r"^\[ *\d+\] local .* connected with ", re.MULTILINE)
_ANOTHER = re.compile(r"^\[ *\d+\] local .* \((full-duplex|bb\b)", re.MULTILINE)
_REVERSE = re.compile(rb"^\[ *\d+\] local .* \(reverse\)", re.MULTILINE)
_PACE = re.compile(rb"^Sending (\d{1,5}) byte datagrams, IPG target: (\d{1,9}\.\d\d) us", re.MULTILINE)
_USUAL = "1.05-mbit"
"""Of datagrams, unless `-b` sets another."""
_SIZE = rb" +(\d{1,9}(?:\.\d{1,3})?) ([KMG]?)[Bb]yte"
_BLOCK = re.compile(rb"^(?:Write buffer size:|Sending)" + _SIZE, re.MULTILINE)
"""What a client writes at once; over TCP it is told with `-e`."""
_WINDOW = re.compile(rb"^(?:TCP window|UDP buffer) size:(?:.* requested)?" + _SIZE + rb"\)?$", re.MULTILINE)
"""The socket's buffer where `-w` sets one: the kernel's is followed by the word default."""
_USUAL_BLOCKS = {"tcp": (128 << 10,), "udp": (1470, 1450)}
"""Unless `-l` sets another; datagrams over IPv6 are smaller."""
_LOST = re.compile(r" ms +\d+/ *\d+ ")
"""What a server tells of datagrams: the sum that a client prints behind its report is of what was sent."""
_BITS = {"": 1e-6, "K": 1e-3, "M": 1.0, "G": 1e3}
_BYTES = {"": 8e-6, "K": 8e-6 * 2**10, "M": 8e-6 * 2**20, "G": 8e-6 * 2**30}
_MBIT_PER = {f"{p}bits/sec": mbit for p, mbit in _BITS.items()} | {f"{p}Bytes/sec": mbit for p, mbit in _BYTES.items()}


def parse(data: bytes) -> tuple[str, float, bool, int]:
    """Return the protocol, `tcp` or `udp`, the rate in Mbit/s that arrived, `alone` (one row), and the streams."""
    text = to_text(data, PROGRAM)
    clients = _CLIENT.findall(text)
    if len(clients) != 1 or "Server listening" in text:
        raise refuse(PROGRAM, "it is not the output of one client in one direction")
    if another := _ANOTHER.search(text):
        what = "both directions at once" if another[1] == "full-duplex" else "answers that bounce back"
        raise refuse(PROGRAM, f"it is of {what}")
    udp = clients[0] == "UDP"
    after = text.partition("Server Report:")[2] if udp else text
    every = [match for line in after.splitlines() if (match := _RATE.match(line))]
    every = [match for match in every if _LOST.search(match["more"])] if udp else every
    rows = [match for match in every if _seconds(match["from"]) == 0]
    if udp and not rows:
        raise refuse(PROGRAM, "the server's report is missing, so nothing says what arrived")
    if not rows:
        raise refuse(PROGRAM, "there is no line with the rate of the whole transfer")
    total = [row for row in rows if row["id"] == "SUM"] or rows
    streams = len(_STREAM.findall(text))
    if len({row["id"] for row in total}) > 1 or (streams > 1 and total is rows):
        raise refuse(PROGRAM, "there are several streams and no sum of them")
    row = max(total, key=lambda one: _seconds(one["to"]))
    if max(_seconds(one["from"]) for one in every) >= _seconds(row["to"]):
        raise refuse(PROGRAM, "it is cut off: its intervals go on after the last line that begins at 0")
    if row["unit"] not in _MBIT_PER:
        raise refuse(PROGRAM, f"{row['unit']!r} is not a unit that nearmetal knows")
    rate = positive(row["rate"], PROGRAM, "the rate", "nothing was transferred") * _MBIT_PER[row["unit"]]
    return clients[0].lower(), rate, len(rows) == 1 and not udp, max(1, streams)


def _seconds(word: str) -> float:
    return number(word, PROGRAM, "the interval")


def _bytes(told: re.Match[bytes]) -> int:
    return round(float(told[1]) * 1024.0 ** " KMG".index(told[2].decode() or " "))


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    protocol, rate, alone, streams = parse(data)
    lacks = ["one rate per run: no percentiles, no spread within it"]
    if alone:
        lacks.append("with -i, a file that was cut after its first interval would look the same")
    cell = (f"{protocol}_stream", 0, one_figure("Mbit/s", rate))
    name = of_streams("iperf2", streams) + ("-reverse" if _REVERSE.search(data) else "")
    if pace := _PACE.search(data):
        mbit = f"{round(8 * int(pace[1]) / float(pace[2]), 2):g}-mbit" if float(pace[2]) else "unlimited"
        name += f"-{mbit}" if mbit != _USUAL else ""
    if block := _BLOCK.search(data):
        size = _bytes(block)
        name += f"-{size}-byte-blocks" if size not in _USUAL_BLOCKS[protocol] else ""
    else:
        lacks.append(NO_SIZE)
    if window := _WINDOW.search(data):
        name += f"-{_bytes(window)}-byte-window"
    yield Foreign("iperf2", "", name, 2, (cell,), tuple(lacks))


TOOL = Tool(
    "iperf2", (Import((b"Client connecting to ",), _adopt, begins=rb"^-{20,}\nClient connecting to "),), figures=STREAMS
)
