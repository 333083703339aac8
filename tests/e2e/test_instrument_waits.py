"""How the engine waits and how precisely it estimates the clocks, to the nanosecond, under the MPI of
test_instrument.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.workloads.sample_file import SampleFile
from tests.instrument import (
    BENCH,
    BYTE,
    CALL,
    CLOCKS,
    EXTRAS,
    PROBE,
    RAW_START_NS,
    RECV,
    SEND,
    SHORT,
    STAMP,
    WIRE,
    Instrument,
    build,
    durations,
    pause_ns,
    round_trip_ns,
    true_begins,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DRIVE_NS, QUIET_NS = 10_000, 5000
"""How often a waiting rank asks the MPI, and how long before its time it does not any more."""
PROBES, TRIALS = 64, 9
THERE, BACK = SEND + WIRE + RECV + STAMP, SEND + WIRE + 8 * BYTE + RECV + STAMP
"""Of a probe: to the stamp of the other, and from there to the second stamp of the first."""


def waited(now: int, until: int) -> tuple[int, int]:
    """Return when a rank that waits for a time continues, and how often it probes the MPI and yields meanwhile."""
    asked = 0
    now += STAMP
    while now < until - QUIET_NS:
        asked += 1
        now = looked(now + PROBE, min(now + DRIVE_NS, until - QUIET_NS)) + STAMP
    return looked(now, until), asked


def looked(now: int, until: int) -> int:
    """Return when a rank that does nothing but look at the clock finds that a time has come."""
    return now + STAMP * max(1, -(-(until - now) // STAMP))


def tally(path: Path) -> list[tuple[int, int]]:
    """Return how often each rank probed and yielded."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(probes), int(yields)) for _, probes, yields in rows]


def check_pauses(bench: Instrument) -> None:
    counts, seed, most_ns = bench.folder / "tally", 9, 40_000
    paced = ("--iterations", "70", "--warmup", "67", "--pace-us", "40", "--seed", str(seed))
    file = bench.measure("--op", "latency", "--sizes", "8", *paced, TALLY=counts)
    pauses = [pause_ns(seed ^ 8, i, most_ns) for i in range(-67, 70)]
    waits = [waited(STAMP, STAMP + pause) for pause in pauses]
    gaps = true_begins(file)[0, 1:] - (true_begins(file) + durations(file))[0, :-1]
    assert gaps.tolist() == [through + STAMP for through, _ in waits[1:]]
    asked = sum(asked for _, asked in waits)
    assert tally(counts) == [(asked, asked), (0, 0)], "the rank that replies waits only for the message"
    bench.measure("--op", "allreduce", "--sizes", "8", *paced, ranks=3, TALLY=counts)
    assert tally(counts) == [(asked, asked)] * 3


def check_clocks(bench: Instrument) -> None:
    """The shortest exchange gives the offset; the time between it and a sample widens the error."""
    middle, best = THERE - (THERE + BACK) // 2, (THERE + BACK + 1) // 2
    late = {"SLOW": 100_000_000, "SLOW_RANK": 1, "SLOW_FROM": 20}
    for numbers in ({}, late, {"STALL": 50_000, "STALL_RANK": 2, "STALL_FROM": 0, "STALL_COUNT": 5}):
        file = bench.measure("--op", "bcast", "--sizes", "8,16,32", *SHORT, ranks=4, **numbers)
        assert file.header.clock_offset_ns == ((0, *(clock + middle for clock in CLOCKS[1:])),) * 3
        begins = [true_begins(file, index)[:, 0] for index in range(3)]
        ends = (true_begins(file, 2) + durations(file, 2))[:, -1] + np.array([0, numbers.get("SLOW", 0), 0, 0])
        now = int(ends.max()) + CALL
        for rank in range(1, 4):
            now += PROBES * (STAMP + THERE + BACK) + SEND
            now += numbers.get("STALL", 0) * numbers.get("STALL_COUNT", 0) * (rank == numbers.get("STALL_RANK"))
            received = now + WIRE + 16 * BYTE + RECV + STAMP
            errors = [file.header.clock_error_ns[index][rank] for index in range(3)]
            assert errors == [best + (received - int(begin[rank])) // 10_000 + 1 for begin in begins]
        assert {errors[0] for errors in file.header.clock_error_ns} == {0}


def in_windows(file: SampleFile, first: int) -> bool:
    """Return whether each rank began each iteration as its waiting loop predicts if window 0 opens at this time."""
    begins, ends = true_begins(file), true_begins(file) + durations(file)
    window, error = file.header.sync_window_ns[0], THERE - (THERE + BACK) // 2
    for rank in range(file.header.ranks):
        opens = first + (error if rank else 0) + np.arange(begins.shape[1]) * window
        for i in range(1, begins.shape[1]):
            through, _ = waited(int(ends[rank, i - 1]) + STAMP, int(opens[i]))
            if begins[rank, i] != through + STAMP:
                return False
    return True


def check_openings(bench: Instrument) -> None:
    options = ("--op", "allreduce", "--sizes", "64", *SHORT, "--sync", "window")
    file = bench.measure(*options, ranks=4)
    begun = int(true_begins(file)[0, 0])
    assert [first for first in range(begun - 3 * STAMP, begun) if in_windows(file, first)]
    before = 3 * PROBES * (THERE + BACK + STAMP) + 40 * (CALL + max(EXTRAS))  # the clocks and the trial calls
    for asked, lead in (((), 2_000_000), (("--sync-window-us", "1000"), 4_000_000)):
        begun = int(true_begins(bench.measure(*options, *asked, ranks=4)).min()) - RAW_START_NS
        assert lead < begun < lead + before


FIRST = 3 * (STAMP + CALL) + 20_000
"""The window of a barrier: three times the median of its trial calls, and 20 us."""
BEFORE_TRIALS, A_TRIAL, SLOW = 3, 3, 200_000
LOOP = BEFORE_TRIALS + TRIALS * A_TRIAL + 1
"""How many collectives each rank has come to before the trial calls, in one, and before the first window."""


def check_lengths(bench: Instrument) -> None:
    """The length of a window: set by trial calls, then lengthened if too many iterations missed theirs."""
    eight = ("--op", "barrier", "--iterations", "8", "--warmup", "2", "--sync", "window")
    half = BEFORE_TRIALS + TRIALS // 2 * A_TRIAL
    slow = 3 * (SLOW + STAMP + CALL) + 20_000
    for options, slow_ns, slow_from, window, loops in (
        (eight, SLOW, half, slow, 1),  # five of nine
        (eight, SLOW, half + A_TRIAL, FIRST * 16, 3),  # four of nine, and then all
        (eight, SLOW, LOOP + 7, FIRST, 1),  # two of eight windows are missed: a quarter
        (eight, SLOW, LOOP + 6, FIRST * 16, 3),
        (eight, 100_000_000, LOOP, FIRST * 256, 5),  # at most five times
    ):
        file = bench.measure(*options, SLOW=slow_ns, SLOW_RANK=1, SLOW_FROM=slow_from)
        assert (file.header.sync_window_ns, file.header.calls) == ((window,), (TRIALS + loops * 10,))
    few = {"SLOW": SLOW, "SLOW_RANK": 1, "SLOW_FROM": BEFORE_TRIALS + 3 * A_TRIAL, "SLOW_COUNT": 3 * A_TRIAL}
    assert bench.measure(*eight, **few).header.sync_window_ns == (FIRST,), "the middle three of nine"
    pairs = 3 * round_trip_ns(8) + 20_000
    stalled = {"STALL": SLOW, "STALL_RANK": 1, "STALL_FROM": PROBES + TRIALS}
    file = bench.measure("--op", "multi_latency", *SHORT, "--sync", "window", ranks=4, **stalled)
    assert file.header.sync_window_ns == (pairs * 16,), "one pair is slow, and the other waits for it"
    once = {"STALL": 100_000, "STALL_RANK": 0, "STALL_FROM": PROBES + 1 + TRIALS, "STALL_COUNT": 1}
    file = bench.measure("--op", "latency", "--iterations", "6", "--warmup", "16", "--sync", "window", **once)
    assert file.header.sync_window_ns == (pairs,), "misses in the warm-up do not count"
    assert file.cells[0].missed[:16].any()
    assert set(file.cells[0].flags[:, :16].ravel().tolist()) == {1, 3}
    assert not file.cells[0].flags[:, 16:].any()


def check_moments(bench: Instrument) -> None:
    """A rank that comes at the very nanosecond at which its window opens has not missed it; one later, it has."""
    few = ("--iterations", "23", "--warmup", "0")
    options = ("--op", "allreduce", *few, "--sync", "window", "--sync-window-us", "23")
    extra, late, window = 7, 22, 23_000
    begins = true_begins(bench.measure(*options, EXTRA=f"{extra},{extra}"))[0]
    # Each iteration shifts by 7 ns when a waiting rank looks at the clock: of 20, one looks just as its window opens.
    opens = int((begins[:STAMP] - np.arange(STAMP) * window).min()) - STAMP + late * window
    comes = int(begins[late - 1]) + CALL + extra + 2 * STAMP
    for beyond in (-1, 0, 1):
        slow = {"SLOW": opens + beyond - comes, "SLOW_RANK": 0, "SLOW_FROM": BEFORE_TRIALS + late, "SLOW_COUNT": 1}
        file = bench.measure(*options, EXTRA=f"{extra},{extra}", **slow)
        assert (true_begins(file)[0, late] == opens + beyond + STAMP) == (beyond > 0)
        assert file.cells[0].flags[0, late] == (2 if beyond > 0 else 0)


WAIT_CHECKS: tuple[Callable[[Instrument], None], ...] = (
    check_pauses,
    check_clocks,
    check_openings,
    check_lengths,
    check_moments,
)


@pytest.mark.parametrize("check", WAIT_CHECKS, ids=lambda check: check.__name__)
def test_ranks_wait_for_the_requested_time(bench: Instrument, check: Callable[[Instrument], None]) -> None:
    check(bench)


MPICH_BEFORE_4_2 = "-DMPICH_NUMVERSION=40103300"


def check_end(bench: Instrument, *, together: bool = True) -> None:
    """Ranks enter MPI_Finalize within a message, or each as soon as it can."""
    options = ("--op", "barrier", *SHORT, "--out", str(bench.out))
    for ranks in (2, 4):
        ended = bench.start(*options, ranks=ranks, EXTRA="0,3000,6000,9000", FINALIZED=1)
        assert ended.ok, ended.complaint()
        lines = [line.split() for line in ended.stderr.decode().splitlines()]
        times_ns = [int(line[2]) for line in lines]
        assert sorted(line[:2] for line in lines) == [["finalized", str(rank)] for rank in range(ranks)]
        assert (max(times_ns) - min(times_ns) < WIRE) == together


@pytest.mark.parametrize(
    ("version", "together"),
    [(MPICH_BEFORE_4_2, True), ("-DMPICH_NUMVERSION=40200000", False), ("-DOMPI_MAJOR_VERSION=5", False)],
)
def test_ranks_enter_finalize_within_a_message_where_mpich_needs_it(
    tmp_path: Path, version: str, together: bool
) -> None:
    """Over UCX, MPICH before 4.2 may hang where they do not; others pay for no wait."""
    check_end(build(tmp_path, BENCH, version), together=together)
