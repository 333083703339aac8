"""The engine built against an MPI and a machine with known delays: tests/native/fake_mpi."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearmetal import process
from nearmetal.native import source_dir
from nearmetal.workloads.sample_file import SampleFile, read_sample_file
from tests.compiled import compile_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearmetal.process import Finished

FAKE = Path(__file__).parent / "native" / "fake_mpi"
STAMP, PROBE, SEND, RECV, WIRE, BYTE, CALL = 20, 50, 300, 200, 1000, 1, 700
CLOCKS = (0, 5_000_000_000, -7_000_123, 41)
EXTRAS = (11, 0, 900, 250)
RAW_START_NS = 1_000_000_000
FLAGS = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-D_GNU_SOURCE", f"-I{FAKE}", f"-I{source_dir('common')}")
MACHINE = ("malloc", "calloc", "realloc", "aligned_alloc", "free", "fopen", "fclose", "open", "fsync", "rename")
TAKEN = (
    *(f"-D{name}=machine_{name}" for name in MACHINE),
    *("-Dsched_yield=machine_yield", "-Dmain=program_main"),
)
"""What the program under test takes from the fake instead of the C library."""
COMMON = sorted(path for path in source_dir("common").glob("*.c") if path.stem != "yield")
"""Without the waiting of an MPI of its own kind, which tests/unit/test_native_yield.py tests."""
BENCH = [*sorted(source_dir("bench").glob("*.c")), *COMMON]
SANITIZED = ("-O0", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SHORT = ("--iterations", "6", "--warmup", "2")


@dataclass(frozen=True)
class Instrument:
    """A program of nearmetal, built against the fake MPI."""

    program: Path
    folder: Path

    def start(self, *arguments: str, ranks: int = 2, cwd: Path | None = None, **numbers: object) -> Finished:
        """Run it to its end, however it ends."""
        given: dict[str, object] = {
            "STAMP": STAMP, "PROBE": PROBE, "SEND": SEND, "RECV": RECV, "WIRE": WIRE, "BYTE": BYTE, "CALL": CALL,
            "CLOCK": ",".join(map(str, CLOCKS)), "EXTRA": ",".join(map(str, EXTRAS)), "RANKS": ranks, **numbers,
        }  # fmt: skip
        environment = {
            **os.environ,
            "ASAN_OPTIONS": "detect_leaks=0",
            **{f"FAKE_{name}": str(value) for name, value in given.items()},
        }
        return process.run([str(self.program), *arguments], timeout_s=600, env=environment, cwd=cwd and str(cwd))

    def run(self, *arguments: str, ranks: int = 2, **numbers: object) -> None:
        """Run it and require success."""
        finished = self.start(*arguments, ranks=ranks, **numbers)
        assert finished.ok, finished.complaint()

    @property
    def out(self) -> Path:
        """The file of its samples."""
        return self.folder / "samples"

    def measure(self, *arguments: str, ranks: int = 2, out: Path | None = None, **numbers: object) -> SampleFile:
        """Run it and read its samples; `out` is where the last of several measurements goes instead."""
        self.run(*arguments, "--out", str(out or self.out), ranks=ranks, **numbers)
        return read_sample_file(self.out.read_bytes())


def build(folder: Path, sources: list[Path], *flags: str, others: list[Path] | None = None) -> Instrument:
    """Build a program whose `main` each rank of the fake runs; `others` are already compiled."""
    argv = ["cc", *FLAGS, *flags, *TAKEN, *map(str, sources), *map(str, others or fake(folder))]
    compile_to(folder / "it", [*argv, "-lm"])
    return Instrument(folder / "it", folder)


def compile_all(folder: Path, sources: list[Path], *flags: str) -> list[Path]:
    """Compile each source separately."""
    made = [folder / f"{source.stem}.o" for source in sources]
    for source, to in zip(sources, made, strict=True):
        compile_to(to, ["cc", *FLAGS, *flags, "-c", str(source)])
    return made


def fake(folder: Path, *flags: str) -> list[Path]:
    """Compile the fake MPI and the machine."""
    return compile_all(folder, [FAKE / "fake_mpi.c", FAKE / "machine.c"], *flags)


def parts(folder: Path, *flags: str) -> list[Path]:
    """Compile the engine's sources separately, and the MPI: the objects that engines with one changed source share."""
    return [*compile_all(folder, BENCH, *TAKEN, *flags), *fake(folder, *flags)]


def changed(folder: Path, compiled: list[Path], name: str, text: str, *flags: str) -> Instrument:
    """Build an engine with one source replaced by another text."""
    (folder / name).write_text(text)
    others = [one for one in compiled if one.stem != Path(name).stem]
    return build(folder, [folder / name], f"-I{source_dir('bench')}", *flags, others=others)


def durations(file: SampleFile, index: int = 0) -> NDArray[np.int64]:
    """Return the duration that each rank stamped for each iteration."""
    cell = file.cells[index]
    return cell.end_ns - cell.begin_ns


def true_begins(file: SampleFile, index: int = 0) -> NDArray[np.int64]:
    """Return when ranks began, on the true clock that only the test knows."""
    return file.cells[index].begin_ns - np.array(CLOCKS)[: file.header.ranks, None]


def round_trip_ns(size: int) -> int:
    """Return the time there and back."""
    return 2 * (SEND + WIRE + size * BYTE + RECV) + STAMP


def window_ns(messages: int, size: int, ack: int = 4) -> int:
    """Return the time of all sends, the latency of the last message, and the acknowledgement back."""
    there = messages * SEND + WIRE + size * BYTE + RECV
    return there + SEND + WIRE + ack * BYTE + RECV + STAMP


def both_ways_ns(messages: int, size: int) -> int:
    """Return the time in which each rank sends all, then receives one after the other."""
    now = messages * SEND
    for k in range(messages):
        now = max(now, (k + 1) * SEND + WIRE + size * BYTE) + RECV
    return now + SEND + WIRE + 4 * BYTE + RECV + STAMP


def mixed(value: int) -> int:
    """Return the finalizer of splitmix64, as published."""
    mask = (1 << 64) - 1
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def pause_ns(seed: int, iteration: int, most_ns: int) -> int:
    """Return one pause: each 64th of the range once in 64 iterations in random order, at a random point within it."""
    mask, first, strata = (1 << 64) - 1, iteration // 64 * 64, list(range(64))

    def drawn(seed: int, at: int) -> int:
        return mixed((seed + (at + 1) * 0x9E3779B97F4A7C15) & mask)

    for last in reversed(range(1, 64)):
        chosen = drawn(~seed & mask, first + last) % (last + 1)
        strata[last], strata[chosen] = strata[chosen], strata[last]
    return (strata[iteration - first] * (most_ns + 1) + drawn(seed, iteration) % (most_ns + 1)) // 64
