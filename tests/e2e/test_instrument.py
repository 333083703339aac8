"""The engine under an MPI whose every delay is known (tests/native/fake_mpi): each stamp is predicted, not bounded.

The predictions are computed here from the fake's parameters, independently of the engine's code. Small errors planted
into copies of the engine show that the checks detect them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.errors import NearmetalError
from nearmetal.native import source_dir
from nearmetal.workloads.fabric_file import read_fabric_file
from nearmetal.workloads.sample_file import read_sample_file, to_cell_samples
from tests.engine_files import iteration_values
from tests.instrument import (
    BENCH,
    BYTE,
    CALL,
    CLOCKS,
    COMMON,
    EXTRAS,
    FAKE,
    PROBE,
    RAW_START_NS,
    RECV,
    SEND,
    SHORT,
    STAMP,
    WIRE,
    Instrument,
    both_ways_ns,
    build,
    changed,
    durations,
    pause_ns,
    round_trip_ns,
    true_begins,
    window_ns,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def check_round_trips(bench: Instrument) -> None:
    file = bench.measure("--op", "latency", "--sizes", "8,1000", *SHORT, "--check")
    for index, size in enumerate((8, 1000)):
        assert durations(file, index)[0].tolist() == [round_trip_ns(size)] * 8
        assert iteration_values(file.cells[index]).tolist() == [round_trip_ns(size)] * 6
        assert file.cells[index].flags.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 2
    probes, own_file = 64, 3  # of the clocks, at the end; sent by rank 1
    tally = bench.folder / "tally"
    bench.measure("--op", "latency", "--sizes", "8", *SHORT, TALLY=tally)
    assert tally.read_text().split() == [f"{8 + probes + 1}", "0", "0", f"{8 + probes + own_file}", "0", "0"]
    pairs = bench.measure("--op", "multi_latency", "--sizes", "8", *SHORT, ranks=4)
    assert durations(pairs)[:2].tolist() == [[round_trip_ns(8)] * 8] * 2
    assert pairs.cells[0].value_ranks == (0, 1)


def check_windows(bench: Instrument) -> None:
    for buffers in ("single", "many"):
        file = bench.measure("--op", "bw", "--sizes", "500", "--window", "7", *SHORT, "--buffers", buffers, "--check")
        assert durations(file)[0].tolist() == [window_ns(7, 500)] * 8
        assert (file.header.buffers, file.header.check_failures) == (buffers, (0,))
        bench.measure("--op", "bw", "--sizes", "65,4032", "--window", "7", *SHORT, "--buffers", buffers, "--check")
    rate = bench.measure("--op", "message_rate", "--sizes", "8", "--window", "5", *SHORT, ranks=4)
    assert durations(rate)[:2].tolist() == [[window_ns(5, 8)] * 8] * 2
    late = {"STALL": 70_000, "STALL_RANK": 1, "STALL_FROM": 0, "STALL_COUNT": 1}
    rate = bench.measure("--op", "message_rate", "--sizes", "8", *SHORT, "--check", ranks=4, **late)
    assert len(set(true_begins(rate)[:, 0].tolist())) == 1, "all pairs begin when the last is ready"
    both = bench.measure("--op", "bibw", "--sizes", "500", "--window", "7", *SHORT)
    # Started by a barrier, both ranks stay in step from the first iteration to the last.
    assert durations(both).tolist() == [[both_ways_ns(7, 500)] * 8] * 2


COLLECTIVES = ("bcast", "reduce", "allreduce", "allgather", "alltoall", "gather", "scatter")


def check_collectives(bench: Instrument) -> None:
    for operation in COLLECTIVES:
        file = bench.measure("--op", operation, "--sizes", "64", *SHORT, "--check", ranks=4)
        wanted = [[CALL + extra + STAMP] * 8 for extra in EXTRAS]
        assert durations(file).tolist() == wanted, operation
        assert file.cells[0].flags.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 4
        assert iteration_values(file.cells[0]).tolist() == [CALL + max(EXTRAS) + STAMP] * 6
        assert file.header.check_failures == (0,)
        # The barrier releases all ranks at once.
        assert np.ptp(true_begins(file), axis=0).tolist() == [0] * 8
    for operation in ("alltoall", "scatter", "halo"):  # sizes for which one more message would not fit into the memory
        bench.measure("--op", operation, "--sizes", "65,4032", *SHORT, "--check", ranks=4)
    barrier = bench.measure("--op", "barrier", *SHORT, "--check", ranks=3)
    assert barrier.header.check_failures == (0,)
    assert durations(barrier).tolist() == [[CALL + STAMP] * 8] * 3
    halo = bench.measure("--op", "halo", "--sizes", "64", *SHORT)
    assert durations(halo).tolist() == [[2 * SEND + WIRE + 64 * BYTE + 2 * RECV + STAMP] * 8] * 2


def check_offsets(bench: Instrument) -> None:
    """Probes come after all measurements, and give each clock's offset from that of rank 0."""
    file = bench.measure("--op", "allreduce", "--sizes", "8,16,32", *SHORT, ranks=4)
    found = np.array(file.header.clock_offset_ns)
    error = np.array(file.header.clock_error_ns)
    assert (np.abs(found - np.array(CLOCKS)) <= error).all()
    assert (error[:, 0] == 0).all()
    assert (error[:, 1:] < SEND + WIRE + RECV + 1000).all()
    assert (np.diff(error[:, 1:], axis=0) < 0).all()  # the longer ago, the larger the error
    begins = true_begins(file).min() - RAW_START_NS
    assert begins < 20 * (CALL + max(EXTRAS)), "something was exchanged before the first size"
    for index in (1, 2):
        pause_ns = true_begins(file, index)[:, 0].min() - true_begins(file, index - 1)[:, -1].max()
        assert pause_ns < 10 * (CALL + max(EXTRAS)), "something was exchanged between two sizes"


def check_time_windows(bench: Instrument) -> None:
    file = bench.measure("--op", "allreduce", "--sizes", "64", *SHORT, "--sync", "window", ranks=4)
    window = 3 * (STAMP + CALL + max(EXTRAS)) + 20_000
    assert file.header.sync_window_ns == (window,)
    begins = true_begins(file)
    assert (
        np.ptp(begins, axis=0) <= 2 * STAMP + 8
    ).all()  # one iteration of the waiting loop, and the error of the offsets
    ends = begins.max(axis=0) + CALL + np.array(EXTRAS)[:, None] + STAMP
    assert (begins + durations(file) == ends).all()
    assert (np.abs(np.diff(begins[0]) - window) <= STAMP).all()
    assert not file.cells[0].missed.any()


def check_windows_that_are_missed(bench: Instrument) -> None:
    """A rank that becomes slow after the trial calls: the window grows fourfold until the call fits."""
    slow = 200_000
    options = ("--op", "barrier", *SHORT, "--sync", "window")
    before_trial_calls, of_trial_calls = 4, 27
    numbers = {"SLOW": slow, "SLOW_RANK": 1, "SLOW_FROM": before_trial_calls + of_trial_calls}
    first = 3 * (STAMP + CALL) + 20_000
    file = bench.measure(*options, **numbers)
    assert file.header.sync_window_ns == (first * 16,)
    assert not file.cells[0].missed.any()
    kept = bench.measure(*options, "--sync-window-us", "22", **numbers | {"SLOW_FROM": before_trial_calls})
    assert kept.header.sync_window_ns == (22_000,)
    assert kept.cells[0].missed[-1]


def check_paces(bench: Instrument) -> None:
    """A pause before the stamp and in no sample, drawn for each iteration, the same on all ranks."""
    seed, most_ns = 77, 300_000
    paced = ("--pace-us", "300", "--seed", str(seed))
    many = bench.measure("--op", "latency", "--sizes", "8", "--iterations", "150", "--warmup", "2", *paced)
    assert durations(many)[0].tolist() == [round_trip_ns(8)] * 152
    gaps = true_begins(many)[0, 1:] - (true_begins(many) + durations(many))[0, :-1]
    pauses = [pause_ns(seed ^ 8, i, most_ns) for i in range(-1, 150)]
    assert ((gaps - pauses >= 0) & (gaps - pauses <= 4 * STAMP + PROBE)).all()
    whole = np.array(pauses[1:65])  # the first 64 that count, whatever the warm-up
    assert sorted(whole * 64 // (most_ns + 1)) == list(range(64))
    file = bench.measure("--op", "latency", "--sizes", "8", *SHORT, *paced)
    assert (file.header.pace_ns, file.header.seed) == (most_ns, seed)
    together = bench.measure("--op", "allreduce", "--sizes", "8", *SHORT, *paced, ranks=4)
    assert durations(together).tolist() == [[CALL + extra + STAMP] * 8 for extra in EXTRAS]
    assert (np.ptp(true_begins(together), axis=0) == 0).all()
    windows = bench.measure("--op", "allreduce", "--sizes", "8", *SHORT, *paced, "--sync", "window", ranks=4)
    assert windows.header.sync_window_ns == (3 * (STAMP + CALL + max(EXTRAS)) + 20_000 + most_ns,)
    assert not windows.cells[0].missed.any()


def check_computing(bench: Instrument) -> None:
    """Each rank computes before the stamp, for the requested time, and in no sample."""
    computes = ("--compute-us", "50", "--working-set", "8192")
    alone = bench.measure("--op", "exchange", "--sizes", "64", *SHORT, "--check")
    exchange_ns = SEND + WIRE + 64 * BYTE + RECV + STAMP
    assert durations(alone).tolist() == [[exchange_ns] * 8] * 2
    assert (alone.header.compute_ns, alone.header.check_failures) == (0, (0,))
    cold = bench.measure("--op", "exchange", "--sizes", "64", *SHORT, *computes)
    assert durations(cold).tolist() == [[exchange_ns] * 8] * 2
    assert cold.cells[0].value_ranks == (0, 1)
    assert (cold.header.compute_ns, cold.header.working_set_bytes) == (50_000, 8192)
    more = np.diff(true_begins(cold), axis=1) - np.diff(true_begins(alone), axis=1)
    assert ((more >= 50_000) & (more <= 50_000 + 3 * STAMP)).all()
    paired = bench.measure("--op", "latency", "--sizes", "8", *SHORT, *computes)
    assert (np.diff(true_begins(paired)[0]) >= 50_000).all()
    windows = bench.measure("--op", "allreduce", "--sizes", "8", *SHORT, *computes, "--sync", "window", ranks=4)
    assert windows.header.sync_window_ns == (3 * (STAMP + CALL + max(EXTRAS)) + 20_000 + 50_000,)


def check_computing_beside_messages(bench: Instrument) -> None:
    """Computing takes no time here, so samples are what messages take; the warm-up has none, not even a barrier's."""
    computes = ("--compute-us", "2", "--working-set", "4096")
    exchanged_ns = CALL + SEND + WIRE + 64 * BYTE + RECV
    for operation, took_ns, between_ns in (("after_exchange", 0, exchanged_ns), ("one_way", SEND, 0)):
        file = bench.measure("--op", operation, "--sizes", "64", *SHORT, *computes, "--check")
        assert durations(file)[:, :2].tolist() == [[STAMP] * 2] * 2
        assert durations(file)[:, 4:].tolist() == [[STAMP + took_ns] * 4] * 2  # a receiver waits for the sender
        assert file.cells[0].flags.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 2
        assert (file.cells[0].value_ranks, file.header.check_failures) == ((0, 1), (0,))
        assert file.header.sync == ("none" if operation == "one_way" else "barrier")
        begins = np.diff(true_begins(file), axis=1)
        assert begins[:, 0].tolist() == [2 * STAMP] * 2
        assert begins[:, 4:].tolist() == [[2 * STAMP + took_ns + between_ns] * 3] * 2


def check_several_in_a_launch(bench: Instrument) -> None:
    """All are measured before the first is written; each has its own options and its own file."""
    second = bench.folder / "second"
    paced = ("--pace-us", "300", "--seed", "5")
    first = bench.measure(
        "--op", "latency", "--sizes", "8,1000", *SHORT, "--out", str(bench.out),
        "--then", "--op", "latency", "--sizes", "8", "--iterations", "3", "--warmup", "0", *paced, "--out", str(second),
        "--then", "--op", "allreduce", "--sizes", "64", *SHORT,
        ranks=2, out=bench.folder / "third",
    )  # fmt: skip
    assert [durations(first, index)[0].tolist() for index in range(2)] == [
        [round_trip_ns(size)] * 8 for size in (8, 1000)
    ]
    assert second.exists()
    then, last = (read_sample_file(path.read_bytes()) for path in (second, bench.folder / "third"))
    assert (first.header.pace_ns, then.header.pace_ns, last.header.operation) == (0, 300_000, "allreduce")
    assert durations(then)[0].tolist() == [round_trip_ns(8)] * 3
    between_ns = true_begins(last)[:, 0].min() - (true_begins(then) + durations(then))[0, -1]
    assert between_ns < 20 * (CALL + max(EXTRAS)), "something was exchanged between two measurements"
    one = ("--op", "barrier", *SHORT, "--out", str(bench.out))
    bench.run(*one, *("--then", *one) * 7)


CHECKS: tuple[Callable[[Instrument], None], ...] = (
    check_round_trips,
    check_windows,
    check_collectives,
    check_offsets,
    check_time_windows,
    check_windows_that_are_missed,
    check_paces,
    check_computing,
    check_computing_beside_messages,
    check_several_in_a_launch,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_sample_follows_from_the_delays(bench: Instrument, check: Callable[[Instrument], None]) -> None:
    check(bench)


def test_the_store_keeps_the_slowest_value_rank(bench: Instrument) -> None:
    (kept,) = to_cell_samples(bench.measure("--op", "allreduce", "--sizes", "64", *SHORT, ranks=4))
    assert kept.value_ranks == (0, 1, 2, 3)
    assert kept.ns[list(kept.value_ranks), kept.warmup :].max(axis=0).tolist() == [CALL + max(EXTRAS) + STAMP] * 6


# ---- errors that were once undetected ----

PLANTED = {
    "a stamp before the synchronisation": (
        "measure.c",
        r"(cell->flags\[i\] \|= start\(sync, i\);)(.*?)(cell->begin_ns\[i\] = clock_stamp_ns\(\);)",
        r"\3\n\1\2",
    ),
    "a stamp before the pause": (
        "measure.c",
        r"(if \(sync->pace_ns > 0\)\s+sync_pause\(sync, i - cell->warmup\);)(.*?cell->begin.*?;)",
        r"\2 \1",
    ),
    "passes of pauses that begin with the warm-up": (
        "measure.c",
        r"sync_pause\(sync, i - cell->warmup\)",
        "sync_pause(sync, i)",
    ),
    "computing in the sample": (
        "measure.c",
        r"(if \(before != NULL\)\s+before\(run\);)(.*?cell->begin.*?;)",
        r"\2 \1",
    ),
    "computing for half of the time": ("compute.c", r"\+ compute->for_ns", "+ compute->for_ns / 2"),
    "messages in what is computed alone": ("measure.c", r"i >= first", "i >= 0 * first"),
    "no exchange before computing": ("ops_p2p.c", r"\.before = exchange_call", ".before = compute_call"),
    "computing for a time instead of an amount": ("ops_p2p.c", r"compute_fixed\(", "compute_run("),
    "a window without its acknowledgement": ("ops_p2p.c", r"MPI_Recv\(ack_of\(.*?;", ";"),
    "a clock offset of the wrong sign": ("sync.c", r"stamp_ns - \(begin_ns", "-stamp_ns + (begin_ns"),
    "an offset of the wrong sign in a window": ("sync.c", r"first_ns \+ sync->offset", "first_ns - sync->offset"),
    "the fastest rank instead of the slowest": ("measure.c", r"MPI_INT64_T, MPI_MAX, run->comm\);\s+\}\s+qsort",
                                                "MPI_INT64_T, MPI_MIN, run->comm); } qsort"),
    "no barrier before an iteration": ("sync.c", r"(iteration;\s+)MPI_Barrier\(sync->comm\);", r"\1(void)sync;"),
    "a missed window that is not marked": ("sync.c", r"return FLAG_MISSED_WINDOW;", "return 0;"),
    "the warm-up among the samples": ("measure.c", r"memset\(cell->flags, FLAG_WARMUP, [^;]*;", ";"),
    "a window that never grows": ("measure.c", r"sync->window_ns \*= WINDOW_GROWTH;", ";"),
    "one pause for all iterations": ("sync.c", r"\(uint64_t\)\(at \+ 1\)", "(uint64_t)(at * 0 + 1)"),
    "one order of pauses for all iterations": ("sync.c", r"number\(~seed, first \+ last\)", "number(~seed, last)"),
    "a shuffle that leaves the last in place": ("sync.c", r"% \(uint64_t\)\(last \+ 1\)", "% (uint64_t)last"),
    "probes before a size": ("measure.c", r"(    MPI_Barrier\(run->comm\);\s+timed_loop)",
                             r"    sync_estimate_offset(run->comm);\n\1"),
    "one message of a window too few": ("ops_p2p.c", r"k < run->window_messages", "k < run->window_messages - (k < 0)"
                                        " - 1"),
    "half of the bytes": ("ops_p2p.c", r"MPI_Send\(run->send, run->message_bytes,",
                          "MPI_Send(run->send, run->message_bytes / 2,"),
    "an iteration too many": ("measure.c", r"i < entries; i\+\+", "i <= entries; i++"),
    "a part written before the next is measured": (
        "main.c",
        r"status = measure_part\(&parts\[p\]\);",
        "status = measure_part(&parts[p]) != 0 || write_part(&parts[p]) != 0;",
    ),
    "the options of the first part for all": ("main.c", r"options \*options = &part->options;",
                                              "options *options = &part->options; static const struct options *first;"
                                              " first = first ? first : options; options = first;"),
    "the drift left out": ("sync.c", r"estimate\.error_ns \+ drift_ns", "estimate.error_ns"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_detected(name: str, tmp_path: Path, compiled: list[Path]) -> None:
    file, pattern, replacement = PLANTED[name]
    (source,) = (path for path in BENCH if path.name == file)
    text, count = re.subn(pattern, replacement, source.read_text(), flags=re.DOTALL)
    assert count > 0, "the error cannot be planted: the code has changed"
    quiet = ("-Wno-unused-parameter", "-Wno-unused-function", "-Wno-empty-body")
    wrong = changed(tmp_path, compiled, file, text, *quiet)
    for check in CHECKS:
        try:
            check(wrong)
        except (AssertionError, NearmetalError):  # an engine with an error may also crash
            return
    pytest.fail("this error is not detected")


# ---- the same for all pairs at once, and for the applications ----


def test_every_sample_of_a_fabric_follows_from_the_delays(tmp_path: Path) -> None:
    sources = [*sorted(source_dir("fabric").glob("*.c")), *COMMON]
    fabric = build(tmp_path, sources, f"-I{source_dir('fabric')}")
    rounds, out = tmp_path / "rounds", tmp_path / "fabric"
    rounds.write_text("all 0-1 2-3\nall 0-2 1-3\nall 3-0\n")
    fabric.run("--rounds", str(rounds), "--out", str(out), "--latency-bytes", "40", "--bandwidth-bytes", "500",
               "--bandwidth-window", "6", ranks=4)  # fmt: skip
    file = read_fabric_file(out.read_bytes())
    assert file.latency_ns.shape == (5, 55)
    assert np.unique(file.latency_ns).tolist() == [round_trip_ns(40)]
    assert np.unique(file.there_ns).tolist() == np.unique(file.back_ns).tolist() == [window_ns(6, 500, ack=0)]


def test_the_iterations_of_an_application_are_recorded_to_the_nanosecond(tmp_path: Path) -> None:
    common = source_dir("apps/common")
    shared = [source_dir("common") / f"{name}.c" for name in ("clock", "launch", "sync", "sample_file", "text")]
    sources = [FAKE / "iterations.c", common / "run.c", common / "record_file.c", *shared]
    program = build(tmp_path, sources, f"-I{common}")
    files = [tmp_path / name for name in ("iterations", "communication")]
    program.run(*map(str, files), "5", ranks=3)
    whole, inside = (read_sample_file(path.read_bytes()) for path in files)
    # Ranks leave the first call at different times by their extras, and the last to arrive delays the others from then
    # on.
    latest = max(EXTRAS[:3])
    first = [CALL + extra + 3 * STAMP for extra in EXTRAS[:3]]
    assert durations(whole)[:, 0].tolist() == first
    assert durations(whole)[:, 1:].tolist() == [[CALL + latest + 3 * STAMP] * 4] * 3
    assert (durations(whole) - durations(inside) == 2 * STAMP).all()
    assert (np.abs(np.array(whole.header.clock_offset_ns) - CLOCKS[:3]) <= np.array(whole.header.clock_error_ns)).all()
