"""perftest (ib_write_lat, ib_send_bw ...): its summary rows and options. Read with versions 4.5 to 6.

The latencies of write and send are half a round trip, halved by perftest; those of read and atomic are whole. Its
t_stdev and tail columns are not used: the deviation is computed with integer temporaries and so lacks everything below
a microsecond, and with 1000 iterations the 99.9 % column is the second largest value (perftest_resources.c). The raw
values of `-U` are read by `perftest_dump`. Standard library only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nearmetal.errors import TrialError, UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.process import Finished
from nearmetal.reading import parse_json
from nearmetal.study.order import Order, Scalar, WorkloadOrder
from nearmetal.workloads import pairs
from nearmetal.workloads.figures import BANDWIDTH, HALVED, UNITS, Figure
from nearmetal.workloads.program_group import Command
from nearmetal.workloads.streams import OutputName, read_name
from nearmetal.workloads.tools.lines import cut_short, positive, refuse, to_text, whole
from nearmetal.workloads.tools.tool import ONE_MEAN, Dump, Durations, FileCell, Foreign, Import, Tool, one_figure
from nearmetal.workloads.workload import Launch

PROGRAM = "perftest"

DUMP_HEAD = "#, usec"
LEAST_ITERATIONS = 5
_TITLE = re.compile(
    r"^[ \t]+(?:RDMA_(?P<rdma>Write|Read)|(?P<send>Send)|Atomic (?P<atomic>FETCH_AND_ADD|CMP_AND_SWAP)) "
    r"(?P<way>Bidirectional )?(?:Post List )?(?P<kind>Latency|BW) Test",
    re.MULTILINE,
)
_LATENCY = re.compile(r"^ ?#bytes +#iterations +t_min\[usec\] ", re.MULTILINE)
_LATENCY_DURATION = re.compile(r"^ ?#bytes +#iterations +t_avg\[usec\] +tps average", re.MULTILINE)
_BANDWIDTH = re.compile(
    r"^ ?#bytes +#iterations +BW peak\[(?P<peak>[A-Za-z/]+)\] +BW average\[(?P<unit>[A-Za-z/]+)\] +MsgRate\[Mpps\]",
    re.MULTILINE,
)
_FIELD = re.compile(
    r"(?:^ |\t)(Number of qps|Connection type|Dual-port|Post List|Using SRQ|TX depth|CQ Moderation|Mtu|Outstand reads|"
    r"Max inline data)[ \t]*: ([\w./]{1,16})",
    re.MULTILINE,
)
_EVENTS = "Test with events"
_MEMORY = r"(?:initializing|Using) (CUDA|ROCm)\b.*\n"
"""Of GPUs: printed above the title."""
_USUAL_DEPTH = 128
"""How many messages a bandwidth test has on their way at once, unless `-t` says otherwise."""
_USUAL_MODERATION, _LARGE_BYTES = 100, 8192
"""How many messages a bandwidth test counts with one completion, at most so many as are on their way.

Of a larger size it counts each by itself, unless it waits for events (4.5 then, too), as of SRD; of a list of posts the
list. `-Q` says otherwise, and so does `-a`, which takes all sizes alike.
"""
_USUAL_INLINE = (150, 188, 220, 236)
"""Up to which size a latency test's messages carry their data, unless `-I` says otherwise, by verb and transport.

A device that perftest does not know has 0, as bandwidth tests have.
"""
_CYCLES = "its times are in cycles of the processor, not microseconds: run it without -C"
_END_BYTES = 4096
_LEAST_COLUMNS = 4
_UNITS = {"MB/sec": "MiB/s", "MiB/sec": "MiB/s", "Gb/sec": "Gbit/s"}  # the older label MB/sec is MiB, too


SizeMean = tuple[int, float]
"""A size in bytes, and its mean latency or bandwidth in the unit of the result."""


@dataclass(frozen=True, slots=True)
class PerftestResult:
    """What one program printed: `operation` such as `ib_write_lat`, and the unit of its figures.

    `dumped` says whether there are values of iterations, `ended` whether the line below its rows is there, `both_ways`
    whether data went in both directions at once. `otherwise` names another transport than RC, several queue pairs or
    ports, a shared receive queue, waiting for events, lists of posts, another number of messages on their way or to a
    completion, the memory of GPUs, and other sizes that carry their data. `of_device` is what the port and the device
    give unless it was chosen, which perftest does not say.
    """

    operation: str
    unit: str
    rows: tuple[SizeMean, ...]
    dumped: bool
    ended: bool
    both_ways: bool = False
    otherwise: str = ""
    of_device: str = ""


def parse(data: bytes) -> PerftestResult:
    """Read the client's output; raise ForeignFileError for anything else."""
    head, dumped, tail = data.partition(f"\n{DUMP_HEAD}".encode())
    text = to_text(head + b"\n" if dumped else head, PROGRAM)
    if dumped:
        # The values between are millions of lines: only the words after them are of use here.
        text += to_text(tail[-_END_BYTES:], PROGRAM).partition("\n")[2]
    return parse_summary(text, dumped=bool(dumped))


def parse_summary(text: str, *, dumped: bool) -> PerftestResult:
    """Read title and rows out of text that may lack the dump; raise ForeignFileError for anything else."""
    if "\n#, cycles" in text:
        raise refuse(PROGRAM, _CYCLES)
    title = _TITLE.search(text)
    if not title:
        raise refuse(PROGRAM, "no line names the test")
    verb, bandwidth = (title["rdma"] or title["send"] or "atomic").lower(), title["kind"] == "BW"
    fields = _fields(_FIELD.findall(text))
    given = _of_device(fields)
    if not bandwidth:
        rows, ended = _latencies(text)
        otherwise = _otherwise(fields, text)
        return PerftestResult(f"ib_{verb}_lat", "us", rows, dumped, ended, otherwise=otherwise, of_device=given)
    match = _BANDWIDTH.search(text)
    if not match or match["unit"] not in _UNITS:
        raise refuse(PROGRAM, "there is no line of bandwidth columns that nearmetal knows")
    found, ended = _rows(text[match.end() :], _LEAST_COLUMNS)
    rows = tuple((size, _positive(words[1])) for size, words in found)
    unit, both_ways = _UNITS[match["unit"]], bool(title["way"])
    otherwise = _otherwise(fields, text, [size for size, _ in rows])
    return PerftestResult(f"ib_{verb}_bw", unit, _not_empty(rows), dumped, ended, both_ways, otherwise, given)


def _fields(told: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {re.sub("[-_]", " ", key): value for key, value in told}


def _of_device(fields: Mapping[str, str]) -> str:
    """Return in words what the port and the device give unless it was chosen: nothing tells which."""
    known = (("Mtu", "an MTU of {} B"), ("Outstand reads", "{} outstanding reads"))
    return " and ".join(words.format(whole(fields[key], PROGRAM, key)) for key, words in known if key in fields)


def _otherwise(fields: Mapping[str, str], text: str, sizes_of_bandwidth: Sequence[int] = ()) -> str:
    """Return what makes a test another one than that of one queue pair over RC, which polls and posts one by one."""
    connection = fields.get("Connection type", "RC")
    if not re.fullmatch(r"\w{2,8}", connection):
        raise refuse(PROGRAM, f"its connection type is {connection[:40]!r}")
    pairs = whole(fields.get("Number of qps", "1"), PROGRAM, "Number of qps")
    found = [connection.lower()] if connection != "RC" else []
    found += [f"{pairs}-queue-pairs"] if pairs != 1 else []
    found += ["dual-port"] if fields.get("Dual port") == "ON" else []
    found += ["srq"] if fields.get("Using SRQ") == "ON" else []
    found += ["events"] if _EVENTS in text else []
    found += _at_once(fields, sizes_of_bandwidth, events=_EVENTS in text) if sizes_of_bandwidth else []
    memory = re.search("^" + _MEMORY, text, re.MULTILINE)
    found += [memory[1].lower()] if memory else []
    usual = (0,) if sizes_of_bandwidth else _USUAL_INLINE
    inline = whole(fields.get("Max inline data", f"{usual[0]}"), PROGRAM, "the inline size")
    found += [f"inline-{inline}"] if inline not in usual else []
    return "-".join(found)


def _at_once(fields: Mapping[str, str], sizes: Sequence[int], *, events: bool) -> list[str]:
    """Return what is unusual in how many messages a bandwidth test posts, has on their way and counts together."""
    usual = {"Post List": 1, "TX depth": _USUAL_DEPTH}
    posts, depth = (whole(fields.get(key, f"{most}"), PROGRAM, key) for key, most in usual.items())
    moderation = min(_USUAL_MODERATION, depth) if posts == 1 else posts
    each = posts == 1 and max(sizes) > _LARGE_BYTES and not events
    moderation = 1 if each or fields.get("Connection type") == "SRD" else moderation
    asked = whole(fields.get("CQ Moderation", f"{moderation}"), PROGRAM, "CQ Moderation")
    told = ("post-list", posts, 1), ("tx-depth", depth, _USUAL_DEPTH), ("cq-moderation", asked, moderation)
    return [f"{name}-{count}" for name, count, most in told if count != most]


_JSON_TITLE = re.compile(
    "(?:RDMA_)?(Write|Send|Read|Atomic)_(?:FETCH_AND_ADD_|CMP_AND_SWAP_)?(?:Bidirectional_)?(?:Post_List_)?"
    "(BW|Latency)_Test"
)
_PAIR = re.compile(r'^[ \t]*+"?([\w.]{1,40})"?:[ \t]*+"?([^",{\n]{1,200})"?,?$', re.MULTILINE)


def parse_json_report(data: bytes) -> PerftestResult:
    """Read the file of --out_json, whose keys have no quotes in 4.5; raise ForeignFileError for anything else.

    It does not say the unit of a bandwidth: the message rate times the size does.
    """
    text = to_text(data, PROGRAM)
    pairs_of_text = _PAIR.findall(text)
    fields = dict(pairs_of_text)
    title = _JSON_TITLE.fullmatch(fields.get("test", ""))
    if not title or "MsgSize" not in fields:
        raise refuse(PROGRAM, "it does not name the test and the message size")
    operation = f"ib_{title[1].lower()}_{'bw' if title[2] == 'BW' else 'lat'}"
    size, _ = (whole(fields.get(key, ""), PROGRAM, key) for key in ("MsgSize", "n_iterations"))
    if len(fields) != len(pairs_of_text):
        raise refuse(PROGRAM, "it has values twice, as of several sizes: give their text")
    told = _fields(fields.items())
    otherwise = _otherwise(told, text, [size] if title[2] == "BW" else [])
    given = _of_device(told)
    alike = partial(PerftestResult, operation, dumped=False, ended=True, otherwise=otherwise, of_device=given)
    if title[2] == "Latency":
        _refuse_cycles([value for key, value in fields.items() if key.startswith(("t_m", "t_typical", "percentile"))])
        return alike("us", ((size, _positive(fields.get("t_avg", ""))),))
    rate, moved = _positive(fields.get("BW_average", "")), _positive(fields.get("MsgRate", "")) * 1e6 * size
    near = [unit for unit, of in (("MiB/s", 2**20), ("Gbit/s", 1e9 / 8)) if abs(rate * of / moved - 1) < _ROUNDING]
    if len(near) != 1:
        raise refuse(PROGRAM, "its bandwidth is not its message rate times the message size, in MiB/s or Gbit/s")
    return alike(near[0], ((size, rate),), both_ways="Bidirectional" in title[0])


_ROUNDING = 0.1


def _latencies(text: str) -> tuple[tuple[SizeMean, ...], bool]:
    for head, column in ((_LATENCY, 3), (_LATENCY_DURATION, 0)):
        if match := head.search(text):
            found, ended = _rows(text[match.end() :], 3 + column)
            _refuse_cycles([word for _, words in found for word in (*words[:column], *words[5:]) if column])
            return _not_empty(tuple((size, _positive(words[column])) for size, words in found)), ended
    raise refuse(PROGRAM, "there is no line of latency columns that nearmetal knows")


def _refuse_cycles(times: Sequence[str]) -> None:
    """Raise ForeignFileError for times of `-C`, whose heading still says microseconds.

    Cycles are whole, and halved with the round trip; of microseconds, so many do not all end in .00 or .50.
    """
    if times and all(word.endswith((".00", ".50")) for word in times):
        raise refuse(PROGRAM, _CYCLES)


def _not_empty(rows: tuple[SizeMean, ...]) -> tuple[SizeMean, ...]:
    if not rows:
        raise refuse(PROGRAM, "there is no result below the columns")
    return rows


def _positive(word: str) -> float:
    return positive(word, PROGRAM, "a result", "a result is 0")


def _rows(text: str, least: int) -> tuple[list[tuple[int, list[str]]], bool]:
    """Return size and results of each row, at least so many columns in all, and whether a line ends the rows.

    Values of a dump may stand before the rows.
    """
    rows: list[tuple[int, list[str]]] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if rows and line.lstrip().startswith("---"):
            return rows, True
        if words and words[0].isdigit():
            if len(words) < least:
                raise refuse(PROGRAM, f"{line[:60]!r} lacks a column")
            whole(words[1], PROGRAM, "a count")
            rows.append((whole(words[0], PROGRAM, "a size"), words[2:]))
    return rows, False


# ---- launching, decoding, adopting


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
        pairs.check_options(workload, _OPTIONS)
        pairs.pair_count(workload)
        pairs.text_option(workload, "operation", "", PROGRAMS)
        pairs.text_option(workload, "connection", "RC", _CONNECTIONS)
        for name in (*_SWITCHES, "pin"):
            workload.switch(name)
        sizes = workload.numbers("sizes")
        if _atomic(workload) and sizes not in ([], [_ATOMIC_BYTES]):
            raise workload.invalid(f"an atomic has {_ATOMIC_BYTES} bytes, not {sizes}")
        if not sizes and not _atomic(workload):
            raise workload.invalid(f"{workload.options['operation']} needs `sizes`")
        if workload.number("iterations") < LEAST_ITERATIONS:
            raise workload.invalid(f"perftest needs {LEAST_ITERATIONS} iterations")

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Start a server for each pair and size (each serves one client), and say how to launch the clients."""
        program = pairs.text_option(order.workload, "operation", "")
        every = pairs.pairs_of(order, endpoints, _FIRST_PORT)
        sizes = order.workload.numbers("sizes") or [_ATOMIC_BYTES]
        commands = []
        for pair in every:
            pairs.require_program(shell, pair.server.node, program, "perftest")
            client, server = (_device(shell, end) for end in (pair.client, pair.server))
            for step, size in enumerate(sizes):
                port = pair.port + 2 * len(every) * step
                pairs.start_server(shell, _argv(order.workload, server, size, port, core=1), pair.server.node, port)
                argv = (*_argv(order.workload, client, size, port, core=0), pair.server.address)
                name = str(OutputName(self.kind, program, size, 0, pair.number))
                commands.append(Command(pair.client.node, argv, name, step))
        node = every[0].client.node
        version = pairs.printed_version(shell, node, program, "--version").removeprefix("Version: ")
        facts: dict[str, Scalar] = {"perftest.version": version}
        return pairs.launch_group(shell, order, commands, facts, node=node)

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError unless every client came to the result that was asked for."""
        pairs.check_clients(order.workload, finished, files)
        wanted = pairs.text_option(order.workload, "operation", "")
        for name, data in files.items():
            if (named := read_name(name)) is None:
                continue
            result = parse(data)
            found = (result.operation, [size for size, _ in result.rows])
            if found != (wanted, [named.size_bytes]):
                raise TrialError(f"{wanted} of {named.size_bytes} bytes was asked for, the output is of {found}")

    def least_packets(self, order: Order) -> int:
        """Return one packet an iteration and size; a large message takes more."""
        return order.workload.number("iterations") * max(1, len(order.workload.numbers("sizes")))


def _atomic(workload: WorkloadOrder) -> bool:
    return str(workload.options["operation"]).startswith("ib_atomic")


def _argv(workload: WorkloadOrder, device: str, size: int, port: int, *, core: int) -> tuple[str, ...]:
    """Return the command line of one side; both sides must be told the same."""
    program = pairs.text_option(workload, "operation", "")
    argv = ["taskset", "-c", str(core)] if workload.switch("pin") else []
    argv += [program, "-F", "-d", device, "-p", str(port), "-n", str(workload.number("iterations"))]
    argv += ["-c", pairs.text_option(workload, "connection", "RC")]
    argv += [] if _atomic(workload) else ["-s", str(size)]
    argv += ["-U"] if program.endswith("_lat") else []
    for name, flag in _NUMBERS.items():
        if name in workload.options:
            argv += [flag, str(workload.number(name))]
    argv += [flag for name, flag in _SWITCHES.items() if workload.switch(name)]
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


def _samples(data: bytes) -> Durations:
    """Return every iteration of a latency test, or the mean of a bandwidth test."""
    result = parse(data)
    if result.operation.endswith("_lat"):
        return Dump(data)
    return one_figure(result.unit, result.rows[0][1])


def _adopt(read: Callable[[bytes], PerftestResult], data: bytes) -> Iterator[Foreign[FileCell]]:
    result = read(data)
    ways = "both-ways" if result.both_ways else ""
    name = "-".join(filter(None, (result.operation.replace("_", "-"), ways, result.otherwise)))
    given = f"measured with {result.of_device}, chosen or not" if result.of_device else ""
    notes = tuple(filter(None, (given, "" if result.ended else cut_short("the line below its rows is missing"))))
    if result.dumped and len(result.rows) == 1:
        cell = (result.operation, result.rows[0][0], _samples(data))
        yield Foreign("perftest", "", name, 2, (cell,), notes)
        return
    cells = tuple((result.operation, size, one_figure(result.unit, mean)) for size, mean in result.rows)
    lacks = (ONE_MEAN, "its t_stdev and tail columns are not used; run it with -U for every iteration", *notes)
    yield Foreign("perftest", "", name, 2, cells, lacks)


_BEGINS = rb"^(?:" + _MEMORY.encode() + rb"(?:.*\n){,64}?)?-{20,}\n\s+(?:RDMA_|Send |Atomic )[^\n]* Test\s*$"
_WHOLE_ROUND_TRIP = Figure("latency (whole round trip)", UNITS["us"])
TOOL = Tool(
    "perftest",
    (
        Import((b"#, usec", b"#bytes"), partial(_adopt, parse), begins=_BEGINS),
        Import((b"test_info",), partial(_adopt, parse_json_report), begins=rb"^\{$"),
    ),
    Perftest(),
    _samples,
    {f"ib_{verb}_bw": BANDWIDTH for verb in ("write", "send", "read", "atomic")}
    | dict.fromkeys(("ib_write_lat", "ib_send_lat"), HALVED)
    | dict.fromkeys(("ib_read_lat", "ib_atomic_lat"), _WHOLE_ROUND_TRIP),
)
