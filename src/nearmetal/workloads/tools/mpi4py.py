"""mpi4py's own ping-pong (`python -m mpi4py.bench pingpong`): a row a size. Read with mpi4py 4.0 and 4.1.

The time is half a round trip, as in the tables of OMB: a mean over all samples and their standard deviation, of which
only the mean is adopted (times of a launch are neither independent nor normal). Standard library only.
"""

import re
from collections.abc import Iterator

from nearmetal.workloads.mpi_benchmarks import BenchmarkRun, MpiBenchmark
from nearmetal.workloads.tools.lines import positive, refuse, sizes_end, to_text, whole
from nearmetal.workloads.tools.tool import ONE_MEAN, FileCell, Foreign, Import, Mean, Tool, cells_of

PROGRAM = "mpi4py.bench pingpong"
LAST_SIZE = 1 << 30
"""What it ends with unless `--max-size` asks for another."""

_TITLE = re.compile(r"^# MPI PingPong\b", re.MULTILINE)
_HEAD = re.compile(
    r"^# Size \[B\] +Bandwidth \[MB/s\] \| Time Mean \[s\] \u00b1 StdDev \[s\] +Samples *$", re.MULTILINE
)
_ROW = re.compile(r"(\d+) +[\d.]+ \| (\S+) \u00b1 \S+ +\d+")


def parse(data: bytes) -> tuple[Mean, ...]:
    """Read one table of mean half round trips in us; raise ForeignFileError for anything else."""
    text = to_text(data, PROGRAM)
    heads = list(_HEAD.finditer(text))
    if not _TITLE.search(text) or len(heads) != 1:
        raise refuse(PROGRAM, f"it has {len(heads)} lines of its columns, not one below its title")
    rows = tuple(_row(line) for line in text[heads[0].end() :].splitlines() if line.strip())
    if not rows:
        raise refuse(PROGRAM, "there are no rows below its columns")
    return rows


def _row(line: str) -> Mean:
    match = _ROW.fullmatch(line.strip())
    if match is None:
        raise refuse(PROGRAM, f"{line[:60]!r} is not a row")
    mean_s = positive(match[2], PROGRAM, "a mean", f"a mean is 0 in {line[:60]!r}")
    return Mean("latency", 1e6 * mean_s, whole(match[1], PROGRAM, "a size"))


# ---- launching, decoding, adopting


def _arguments(run: BenchmarkRun) -> list[str]:
    argv = ["-m", "mpi4py.bench", run.benchmark, "--min-size", str(run.size_bytes)]
    argv += ["--max-size", str(run.size_bytes)]
    for of_size in ("", "-large", "-huge"):
        argv += [f"--loop{of_size}", str(run.iterations), f"--skip{of_size}", str(run.warmup)]
    return argv


_WORKLOAD = MpiBenchmark(
    kind="mpi4py",
    benchmarks={"latency": "pingpong"},
    option="python",
    program=lambda _: "python3",
    arguments=_arguments,
    means=parse,
    hint="`pip install mpi4py` into an environment, then name its interpreter in option `python`",
    powers_of_two=True,
)


def _adopt(data: bytes) -> Iterator[Foreign[FileCell]]:
    rows = parse(data)
    deviation = "its standard deviation is not used: the times of a launch depend on each other"
    unsaid = "neither which arrays nor whether they were pickled: import outputs of one kind only"
    lacks = tuple(filter(None, (ONE_MEAN, unsaid, deviation, sizes_end(rows[-1].message_bytes, LAST_SIZE))))
    yield Foreign("mpi4py", "", "mpi4py-latency", 2, cells_of(rows), lacks)


_IMPORT = Import((b"# MPI PingPong",), _adopt, begins=rb"^# MPI PingPong")
TOOL = Tool("mpi4py", (_IMPORT,), _WORKLOAD, _WORKLOAD.samples)
