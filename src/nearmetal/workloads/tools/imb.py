"""Intel MPI Benchmarks (IMB-MPI1): blocks of `#bytes #repetitions ...`, one a benchmark and number of processes.

PingPong times its whole loop, and t_min / t_max of the others are across processes of a mean over repetitions: there is
no spread of iterations in them. Adopted is t[usec] of PingPong and t_avg[usec] of the others. Read with 2018 to 2021.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nearmetal.errors import ForeignFileError
from nearmetal.units import format_size
from nearmetal.workloads.mpi_benchmarks import BenchmarkRun, MpiBenchmark
from nearmetal.workloads.tools.lines import cut_short, number, processes, refuse, to_text, whole
from nearmetal.workloads.tools.tool import ONE_MEAN, FileCell, Foreign, Import, Mean, Tool, cells_of, zeros_left_aside

PROGRAM = "the Intel MPI Benchmarks"

_START = re.compile(r"^# Benchmarking (\S+)$", re.MULTILINE)
_PROCESSES = re.compile(r"^# #processes = (\d+)", re.MULTILINE)
_VERSION = re.compile(r"^#[ \t]+Intel ?\(R\) MPI Benchmarks ([\w.]+(?: Update \d+)?)", re.MULTILINE)
_HEAD = re.compile(r"^ *(#bytes +)?#repetitions +(t.*)$", re.MULTILINE)

_CALLED = re.compile(r"^# Calling sequence was: *\n+# (.*)$", re.MULTILINE)
_OTHERWISE = re.compile(
    r" -((?:red_)?data_type|contig_type|off_cache|root_shift|sync|imb_barrier|map|thread_level|warm_up|mem_alloc_type)"
    r" +(\S+)"
)
"""What makes its benchmarks other measurements, and is told nowhere else: `-map` chooses which ranks are neighbours."""
_GPU = re.compile(r"^#[ \t]+Intel ?\(R\) MPI Benchmarks .* part \(GPU\)$", re.MULTILINE)
"""Its buffers are in a GPU's memory unless it is told otherwise."""
_ENDED = "\n# All processes entering MPI_Finalize"

_FAILURES = ("out-of-mem.;", "int-overflow.;", "time-out.;")
_COLLECTIVES = ("Barrier", "Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall", "Gather", "Scatter")
OPERATIONS = {"PingPong": "latency", **{name: name.lower() for name in _COLLECTIVES}}


@dataclass(frozen=True, slots=True)
class Block:
    """One benchmark on one number of processes; nearmetal has one like it where OPERATIONS names it.

    `rows` are mean times in us as IMB states them (half the round trip for PingPong), one a size. `failed` are the
    sizes that IMB itself left out, for want of memory or time.
    """

    benchmark: str
    processes: int
    rows: tuple[Mean, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImbOutput:
    """Everything that one launch printed, whether it came to its end, and what it was told to do otherwise."""

    version: str
    ended: bool
    blocks: tuple[Block, ...]
    otherwise: tuple[str, ...] = ()


def parse(data: bytes) -> ImbOutput:
    """Read a whole output; raise ForeignFileError for anything else."""
    text = to_text(data, PROGRAM)
    starts = list(_START.finditer(text))
    if not starts:
        raise refuse(PROGRAM, "no line begins with '# Benchmarking'")
    ends = [start.start() for start in starts[1:]] + [len(text)]
    blocks = tuple(_block(start[1], text[start.end() : end]) for start, end in zip(starts, ends, strict=True))
    version, called = _VERSION.search(text), _CALLED.search(text)
    told = _OTHERWISE.findall(called[1]) if called else []
    gpu = ("gpu",) if _GPU.search(text) else ()
    otherwise = (*gpu, *(f"{option}-{re.sub('[^a-z0-9.-]', '_', value)}" for option, value in told))
    return ImbOutput(version[1] if version else "", _ENDED in text, blocks, otherwise)


def _block(name: str, text: str) -> Block:
    count, head = _PROCESSES.search(text), _HEAD.search(text)
    if not count or not head:
        raise refuse(PROGRAM, f"the block of {name} lacks its columns")
    columns = head[2].split()
    mean = next((columns.index(one) for one in ("t_avg[usec]", "t[usec]") if one in columns), None)
    if mean is None:
        raise refuse(PROGRAM, f"the columns of {name} are {head[2][:80]!r}")
    first = 2 if head[1] else 1
    operation, rows, failed = OPERATIONS.get(name, ""), [], []
    for line in text[head.end() :].splitlines()[1:]:
        words = line.split()
        if not words or line.startswith("#"):
            break
        if head[1] and words[1:2] and words[1] in _FAILURES:
            failed.append(whole(words[0], PROGRAM, "a size"))
            continue
        if len(words) != first + len(columns):
            raise refuse(PROGRAM, f"{line[:60]!r} has {len(words)} columns, not {first + len(columns)}")
        size = whole(words[0], PROGRAM, "a size") if head[1] else 0
        whole(words[first - 1], PROGRAM, "a count of repetitions")
        rows.append(Mean(operation, number(words[first + mean], PROGRAM, "a mean"), size))
    if not rows:
        raise refuse(PROGRAM, f"the block of {name} is empty" + (", IMB measured no size" if failed else ""))
    return Block(name, processes(count[1], PROGRAM), tuple(rows), tuple(failed))


# ---- launching, decoding, adopting


def _arguments(run: BenchmarkRun) -> list[str]:
    size = ["-msglen", run.sizes_file] if run.sized else []
    # The overall volume, in MB, would lower the repetitions of large messages.
    many = ["-iter", f"{run.iterations},1000000", "-iter_policy", "off", "-npmin", str(run.ranks)]
    return [run.benchmark, *many, *size]


_WORKLOAD = MpiBenchmark(
    kind="imb",
    benchmarks={operation: benchmark for benchmark, operation in OPERATIONS.items()},
    option="folder",
    program=lambda _: "IMB-MPI1",
    arguments=_arguments,
    means=lambda data: [row for block in parse(data).blocks for row in block.rows],
    hint="`pip install impi-rt` brings it, for MPIs with the binary interface of MPICH; its sources build with any: "
    "`make CC=mpicc CXX=mpicxx IMB-MPI1`; then name its directory in option `folder`",
)


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    output = parse(data)
    blocks = [block for block in output.blocks if block.benchmark in OPERATIONS]
    known: dict[int, list[FileCell]] = {}
    for block in blocks:
        known.setdefault(block.processes, []).extend(cells_of(block.rows))
    if not any(known.values()):
        raise ForeignFileError(f"none of its benchmarks is known: {', '.join(b.benchmark for b in output.blocks)}")
    others = sorted({block.benchmark for block in output.blocks} - OPERATIONS.keys())
    ended = "" if output.ended else cut_short("its closing line (# All processes entering MPI_Finalize) is missing")
    zeros = zeros_left_aside(row for block in output.blocks for row in block.rows)
    failed = ", ".join(format_size(size) for block in blocks for size in block.failed)
    unmeasured = f"IMB ran out of memory or time at {failed}" if failed else ""
    aside = f"left aside: {', '.join(others)}" if others else ""
    lacks = tuple(filter(None, (ONE_MEAN, aside, zeros, unmeasured, ended)))
    for ranks, cells in known.items():
        name = "-".join(("imb", f"{ranks}", *output.otherwise))
        yield Foreign("IMB", output.version, name, ranks, tuple(cells), lacks)


_BEGINS = rb"^#-+\n#\s+Intel ?\(R\) MPI Benchmarks"
TOOL = Tool("imb", (Import((b"# Benchmarking ",), _adopt, begins=_BEGINS),), _WORKLOAD, _WORKLOAD.samples)
