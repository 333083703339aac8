"""What the engine detects and reports when messages are corrupted, memory runs out, a disk fails, or its options are
invalid.

As in test_instrument.py an MPI with known behaviour replaces a real one; the expected results follow from the payload's
size, the number of ranks and the corrupted message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from nearmetal.workloads.engine import WORKING_SET_BYTES
from nearmetal.workloads.operations import OPERATIONS
from nearmetal.workloads.sample_file import read_sample_file
from tests.instrument import SHORT, STAMP, Instrument

if TYPE_CHECKING:
    from collections.abc import Callable

MEASURED, ARGUMENTS, PAYLOAD, MEMORY, WRITE = 0, 2, 3, 4, 5
WAITS = 99
"""The engine's exit statuses, and that of the fake when nobody gets on."""
SIZE = 52
"""Nothing else that the engine exchanges is as long."""
CALLS_CHECKED = (0, 3, 8, 11)
CALLS_TIMED = (4, 7)
"""Of four rounds before, four iterations (one of them a warm-up) and four rounds after."""
REQUEST_BYTES = 40


# ---- payloads ----


class Corrupted(NamedTuple):
    """Whose messages are corrupted, how many arrive there per call, and whether these share one buffer."""

    operation: str
    ranks: int
    rank: int
    messages: int = 1
    one_buffer: bool = False
    options: tuple[str, ...] = ()
    size: int = SIZE


WINDOW = ("--window", "5")
HARMED = (
    Corrupted("latency", 2, 0),
    Corrupted("latency", 2, 1),
    Corrupted("multi_latency", 6, 4),
    Corrupted("exchange", 4, 1),
    Corrupted("bw", 2, 1, 5, True, WINDOW),
    Corrupted("bw", 2, 1, 5, False, (*WINDOW, "--buffers", "many")),
    Corrupted("bibw", 2, 0, 5, False, (*WINDOW, "--buffers", "many")),
    Corrupted("message_rate", 4, 3, 5, True, WINDOW),
    Corrupted("bcast", 4, 3),
    Corrupted("reduce", 4, 0),
    Corrupted("reduce", 4, 0, size=53),
    Corrupted("allreduce", 4, 2),
    Corrupted("allreduce", 3, 0, size=53),
    Corrupted("allgather", 4, 1, 4),
    Corrupted("gather", 4, 0, 4),
    Corrupted("scatter", 4, 2),
    Corrupted("alltoall", 4, 2, 4),
    Corrupted("halo", 2, 0, 2),
    Corrupted("halo", 6, 5, 4),
)


def expect_failures(bench: Instrument, row: Corrupted, wrong: int, first: bool = False, **harm: object) -> None:
    """Measure with one corrupted message, of the second size or the first, and check the engine's count."""
    numbers = {f"HARM_{name}" if name != "HARM" else name: value for name, value in harm.items()}
    options = (*row.options, "--iterations", "3", "--warmup", "1", "--check", "--out", str(bench.out))
    sizes = f"{row.size},40" if first else f"40,{row.size}"
    finished = bench.start("--op", row.operation, "--sizes", sizes, *options, ranks=row.ranks,
                           HARM_RANK=row.rank, HARM_BYTES=row.size, **numbers)  # fmt: skip
    assert finished.exit_status == (PAYLOAD if wrong else MEASURED), (row, harm, finished.complaint())
    expected = f"nmbench: {wrong} messages of {row.operation} arrived with a wrong payload\n" if wrong else ""
    assert finished.stderr.decode() == expected
    header = read_sample_file(bench.out.read_bytes()).header
    assert (header.check_rounds, header.check_failures) == (8, (wrong, 0) if first else (0, wrong)), (row, harm)


def check_payloads(bench: Instrument) -> None:
    for row in HARMED:
        for call in (*CALLS_CHECKED, *CALLS_TIMED):
            last = (call + 1) * row.messages - 1
            expect_failures(bench, row, int(call in CALLS_CHECKED), HARM="flip", NUMBER=last, AT=25)
        last = 3 * row.messages - 1
        for earlier in range(2 * row.messages, last):
            expect_failures(bench, row, int(not row.one_buffer), HARM="flip", NUMBER=earlier, AT=25)
        for at in (0, row.size - 1):
            expect_failures(bench, row, 1, first=at == 0, HARM="flip", NUMBER=last, AT=at)
        for how in ("lost", "short", "stale"):
            # If one buffer takes all messages of a window, the data of the last message are already there.
            expect_failures(bench, row, int(not row.one_buffer), HARM=how, NUMBER=last)


def check_tags(bench: Instrument) -> None:
    """A message with another tag is not taken for the expected one."""
    for operation in ("latency", "exchange", "bw", "halo"):
        finished = bench.start("--op", operation, "--sizes", f"{SIZE}", *SHORT, "--out", str(bench.out),
                               HARM="tag", HARM_RANK=0, HARM_BYTES=SIZE, HARM_NUMBER=3)  # fmt: skip
        assert finished.exit_status == WAITS
        assert b"all ranks wait for each other" in finished.stderr
    # An acknowledgement is not a message of the window: four bytes each, in the same buffer.
    finished = bench.start("--op", "bw", "--sizes", "4", "--window", "3", *SHORT, "--out", str(bench.out),
                           HARM="tag", HARM_RANK=1, HARM_BYTES=4, HARM_NUMBER=1)  # fmt: skip
    assert b"all ranks wait for each other" in finished.stderr


# ---- options ----


def check_refusals(bench: Instrument) -> None:
    out = ("--out", str(bench.out))
    nowhere = str(bench.folder / "no" / "such")
    one = ("--op", "barrier", *SHORT, *out)
    for status, ranks, arguments, message in (
        (ARGUMENTS, 1, ("--op", "latency", *out), "latency needs at least 2 ranks, there are 1"),
        (ARGUMENTS, 3, ("--op", "latency", *out), "latency takes at most 2 ranks, there are 3"),
        (ARGUMENTS, 3, ("--op", "multi_latency", *out), "multi_latency needs an even number of ranks, there are 3"),
        (ARGUMENTS, 1, ("--op", "barrier", *out), "barrier needs at least 2 ranks, there are 1"),
        (ARGUMENTS, 2, ("--op", "nothing", *out), "there is no operation 'nothing'; --list shows all"),
        (ARGUMENTS, 2, ("--op", "bw", "--sync", "bell", *out), "--sync is none, barrier or window, not 'bell'"),
        *((ARGUMENTS, 2, ("--op", "one_way", *how, *out), "one_way needs --compute-us above 0, and no --sync window")
          for how in ((), ("--compute-us", "9", "--sync", "window"))),
        (ARGUMENTS, 2, ("--op", "bw", "--window", "0", *out),
         "--window needs a whole number from 1 to 65536, not '0'"),
        (ARGUMENTS, 2, ("--op", "bw", "--warmup", "", *out),
         "--warmup needs a whole number from 0 to 1000000000, not ''"),
        (ARGUMENTS, 2, ("--op", "bw", "--warmup", "+5", *out),
         "--warmup needs a whole number from 0 to 1000000000, not '+5'"),
        (ARGUMENTS, 2, ("--op", "bw", "--iterations", "1000000001", *out),
         "--iterations needs a whole number from 1 to 1000000000, not '1000000001'"),
        (ARGUMENTS, 2, ("--op", "bw", "--sizes", "1,2" + ",3" * 63, *out), "--sizes takes at most 64 numbers"),
        *((ARGUMENTS, 2, (first, "--nothing"), "there is no option '--nothing'; --help lists them")
          for first in ("--help", "--list")),
        (ARGUMENTS, 2, (*one, *("--then", *one) * 8), "--then continues at most 7 times"),
        (ARGUMENTS, 2, (*one, "--then", "--then", *one), "--op NAME is missing; --help shows the usage"),
        (WRITE, 3, ("--op", "barrier", "--out", nowhere), f"cannot write {nowhere}: No such file or directory"),
    ):  # fmt: skip
        finished = bench.start(*arguments, ranks=ranks)
        assert (finished.exit_status, finished.stderr.decode()) == (status, f"nmbench: {message}\n")
        assert not finished.stdout
    shown = bench.start("--list", ranks=1)
    rows = [
        f"{row.name} kind={row.kind} min_ranks={row.min_ranks} max_ranks={row.max_ranks} "
        f"even_ranks={row.even_ranks:d} has_size={row.has_size:d}"
        for row in OPERATIONS.values()
    ]
    assert (shown.exit_status, sorted(shown.text.splitlines())) == (0, sorted(rows))
    usage = bench.start("--help", ranks=1)
    assert usage.exit_status == 0
    assert usage.text.startswith("usage: mpirun ... nmbench")


RANGES = {
    "iterations": (1, 10**9),
    "warmup": (0, 10**9),
    "large-from": (1, 2**31 - 1),
    "iterations-large": (1, 10**9),
    "warmup-large": (0, 10**9),
    "window": (1, 65536),
    "sync-window-us": (1, 60_000_000),
    "pace-us": (0, 60_000_000),
    "seed": (0, 2**63 - 1),
    "compute-us": (0, 60_000_000),
    "working-set": (4096, 1 << 30),
}


def check_ranges(bench: Instrument) -> None:
    for name, (least, most) in RANGES.items():
        for value, status in ((least, MEASURED), (most, MEASURED), (least - 1, ARGUMENTS), (most + 1, ARGUMENTS)):
            finished = bench.start(f"--{name}", f"{value}", "--help", ranks=1)
            assert finished.exit_status == status, (name, value)
    for words in (("--op", "nothing"), ("--op", "bw", "--sync", "bell")):
        assert bench.start(*words, "--out", str(bench.out)).exit_status == ARGUMENTS
    most = ",".join(str(64 - size) for size in range(64))
    once = ("--iterations", "1", "--warmup", "0", "--check")
    assert bench.measure("--op", "bcast", "--sizes", most, *once).header.check_failures == (0,) * 64
    usual = bench.measure("--op", "bw").header
    assert (usual.sizes_bytes, usual.iterations, usual.warmup, usual.window_messages) == ((8,), (1000,), (100,), 64)
    least_large = ("--large-from", "8", "--iterations-large", "1", "--warmup-large", "0")
    large = bench.measure("--op", "latency", "--sizes", "7,8", *SHORT, *least_large).header
    assert (large.iterations, large.warmup) == ((6, 1), (2, 0))


def check_header(bench: Instrument) -> None:
    large = ("--large-from", "64", "--iterations-large", "2", "--warmup-large", "0")
    moves = {"MOVES": "3,0,-1,5"}
    header = bench.measure("--op", "allreduce", "--sizes", "63,64", *SHORT, *large, ranks=4, **moves).header
    assert (header.engine, header.operation, header.kind, header.ranks) == ("nmbench", "allreduce", "collective", 4)
    assert (header.sizes_bytes, header.iterations, header.warmup) == ((63, 64), (6, 2), (2, 0))
    assert (header.sync, header.sync_window_ns, header.datatypes) == ("barrier", (0, 0), ("uint8", "float32"))
    assert (header.window_messages, header.buffers, header.check_rounds) == (1, "", 0)
    assert (header.pace_ns, header.seed, header.compute_ns, header.working_set_bytes) == (0, 0, 0, 0)
    assert header.clock_cost_ns == (STAMP,) * 4
    cold = {"COLD": 500, "COLD_FROM": 1200, "COLD_COUNT": 1700}  # 850 of 2001 pairs of readings, the middle one too
    assert bench.measure("--op", "barrier", *SHORT, **cold).header.clock_cost_ns == (STAMP,) * 2
    assert header.migrations == ((3, 0, -1, 5),) * 2
    assert header.calls == (8, 2)
    assert (header.mpi_standard, header.mpi_library) == ("3.1", "fake MPI")
    assert header.processors == ("fake0", "fake1", "fake2", "fake3")
    assert not [word for word in (b"pace_ns", b"compute_ns", b"buffers") if word in bench.out.read_bytes()]
    window = bench.measure("--op", "bw", "--sizes", "8,1000", "--window", "9", *SHORT).header
    assert (window.kind, window.window_messages, window.buffers, window.sync) == ("window", 9, "single", "none")
    assert window.datatypes == ("byte", "byte")
    computed = bench.measure("--op", "exchange", *SHORT, "--compute-us", "7", "--pace-us", "3", "--seed", "5").header
    assert (computed.compute_ns, computed.working_set_bytes) == (7000, WORKING_SET_BYTES)
    assert (computed.pace_ns, computed.seed, computed.sync) == (3000, 5, "barrier")
    assert bench.measure("--op", "barrier", "--sizes", "8,16", *SHORT).header.sizes_bytes == (0,)


# ---- memory and disk ----

K100 = 100_000
MESSAGES: tuple[tuple[str, int, tuple[str, ...], int, int], ...] = (
    ("latency", 2, (), K100, 2 * K100),
    ("exchange", 2, (), K100, 2 * K100),
    ("one_way", 2, ("--compute-us", "1", "--working-set", "4096"), K100, 2 * K100 + REQUEST_BYTES),
    ("bcast", 4, (), K100, K100),
    ("reduce", 4, (), K100, 2 * K100),
    ("allreduce", 4, (), K100, 2 * K100),
    ("allgather", 4, (), K100, 5 * K100),
    ("alltoall", 4, (), K100, 8 * K100),
    ("gather", 4, (), K100, K100),
    ("scatter", 4, (), K100, K100),
    ("halo", 6, (), K100, 2 * 4 * 100_032 + 8 * REQUEST_BYTES),
    ("halo", 3, (), K100, 2 * 2 * 100_032 + 4 * REQUEST_BYTES),
    ("halo", 6, (), 128_000, 2 * 4 * 128_000 + 8 * REQUEST_BYTES),
    ("bw", 2, ("--window", "1"), 128_000, 2 * (128_000 + 4) + 2 * REQUEST_BYTES),
    ("bw", 2, ("--window", "3"), K100, 2 * (100_032 + 4) + 6 * REQUEST_BYTES),
    ("bw", 2, ("--window", "3", "--buffers", "many"), K100, 2 * (3 * 100_032 + 4) + 6 * REQUEST_BYTES),
)
"""What a rank that is not the root needs for messages of a size, besides one request; slots are whole lines of 64."""


def expect_short(
    bench: Instrument, wanted: int, purpose: str, *options: str, ranks: int = 2, rooms: tuple[int, ...] = (0, 90_000)
) -> None:
    """Check that each rank with a memory limit reports that it could not allocate this many bytes."""
    finished = bench.start(*options, "--out", str(bench.out), ranks=ranks, ROOM=",".join(map(str, rooms)))
    short = [rank for rank, room in enumerate(rooms) if room]
    expected = [f"nmbench: rank {rank} on fake{rank}: cannot allocate {wanted} bytes for {purpose}" for rank in short]
    assert (finished.exit_status, sorted(finished.stderr.decode().splitlines())) == (MEMORY, expected)
    assert not list(bench.folder.glob("samples*")), "no file without a measurement"


FEW = ("--iterations", "3", "--warmup", "1")
STAMPS = ("--op", "latency", "--sizes", "8,16", "--iterations", "1000", "--warmup", "100")
OF_STAMPS, OF_MESSAGES = "time stamps; fewer iterations or sizes need less", "message buffers"
COMPUTES = (*FEW, "--compute-us", "5", "--working-set", "10000")


def check_buffers(bench: Instrument) -> None:
    bench.out.unlink(missing_ok=True)
    for operation, ranks, options, size, wanted in MESSAGES:
        words = ("--op", operation, "--sizes", f"{size}", *FEW, *options)
        expect_short(bench, wanted + REQUEST_BYTES, OF_MESSAGES, *words, ranks=ranks)
    most = ("--op", "latency", "--sizes", f"{2**31 - 1}", *FEW)
    expect_short(bench, 2 * (2**31 - 1) + REQUEST_BYTES, OF_MESSAGES, *most, rooms=(1000, 1000))
    mebibytes = {5: 3, 17: 1, 16: 1}  # windows of many buffers stay within 16 MiB, unless one message is larger
    for size, slots in mebibytes.items():
        words = ("--op", "bw", "--sizes", f"{size << 20}", "--window", "7", "--buffers", "many", *FEW)
        expect_short(bench, 2 * (slots * (size << 20) + 4) + 15 * REQUEST_BYTES, OF_MESSAGES, *words)


def check_memory(bench: Instrument) -> None:
    bench.out.unlink(missing_ok=True)
    expect_short(bench, 2 * (2 * 8800 + 1100), OF_STAMPS, *STAMPS, rooms=(0, 8799))
    most = ("--op", "barrier", "--iterations", "1000000000", "--warmup", "0")
    expect_short(bench, 17 * 10**9, OF_STAMPS, *most, rooms=(1000, 1000))
    of_set = "the working set of --compute-us"
    expect_short(bench, 8192, of_set, "--op", "barrier", *COMPUTES, rooms=(0, 8191))
    bench.run(*STAMPS, "--out", str(bench.out), ROOM="0,8800")
    bench.run("--op", "barrier", *COMPUTES, "--out", str(bench.out), ROOM="0,8192")
    # Rank 0 has to hold the stamps of the longest cell; its list is allocated after all measurements.
    finished = bench.start(*STAMPS, "--out", str(bench.out), ROOM="8800")
    expected = f"nmbench: cannot write {bench.out}: Cannot allocate memory\n"
    assert (finished.exit_status, finished.stderr.decode()) == (WRITE, expected)
    bench.run(*STAMPS, "--out", str(bench.out), ROOM="8808")
    sizes = ",".join(str(1000 + size) for size in range(64))
    finished = bench.start("--op", "bcast", "--sizes", sizes, *FEW, "--out", str(bench.out), ranks=4, ROOM="6000")
    assert (finished.exit_status, finished.stderr.decode()) == (WRITE, expected)


def check_pieces(bench: Instrument) -> None:
    """Every allocation is checked: each fails once, on the root and on another rank."""
    for options, ranks in ((STAMPS, 2), (("--op", "halo", *COMPUTES), 4)):
        for before in ("", "0,"):
            statuses = [MEMORY]
            while statuses[-1]:
                numbers = {"NO_PIECE": f"{before}{len(statuses)}"}
                finished = bench.start(*options, "--out", str(bench.out), ranks=ranks, **numbers)
                statuses.append(finished.exit_status)
            assert set(statuses[:-1]) <= {MEMORY, WRITE}
            assert statuses.count(MEMORY) > 5


def check_disk(bench: Instrument) -> None:
    """One rank writes: a file is on disk before it gets its name, and its name is before success is reported."""
    log, options = bench.folder / "disk", ("--op", "barrier", *SHORT, "--out")
    for out, folder in ((str(bench.out), bench.folder), ("samples", bench.folder)):
        log.unlink(missing_ok=True)
        assert bench.start(*options, out, cwd=bench.folder, ranks=3, DISK=log).ok
        probe, data, *others = log.read_text().splitlines()
        assert (probe, data.rpartition(".")[0]) == ("open", f"fsync {bench.out}.tmp")
        assert others == ["close", "rename", "open", f"fsync {folder}"]
    for number in range(1, 7):
        bench.out.unlink()
        finished = bench.start(*options, str(bench.out), DISK_FAILS=number)
        expected = f"nmbench: cannot write {bench.out}: Input/output error\n"
        assert (finished.exit_status, finished.stderr.decode()) == (WRITE, expected)
        assert bench.out.exists() == (number > 4)
        assert not list(bench.folder.glob("samples.tmp.*"))
        bench.out.touch()


FAULT_CHECKS: tuple[Callable[[Instrument], None], ...] = (
    check_payloads,
    check_tags,
    check_refusals,
    check_ranges,
    check_header,
    check_buffers,
    check_memory,
    check_pieces,
    check_disk,
)


@pytest.mark.parametrize("check", FAULT_CHECKS, ids=lambda check: check.__name__)
def test_the_engine_reports_what_is_wrong(bench: Instrument, check: Callable[[Instrument], None]) -> None:
    check(bench)
