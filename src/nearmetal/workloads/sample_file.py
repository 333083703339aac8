"""The sample file that the engine writes: every iteration of every rank. See docs/reference/sample-file.md.

The reader believes nothing: magic, version, length and checksum first, then the header, then that the blocks fill
the file exactly.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import TrialError
from nearmetal.reading import timed
from nearmetal.store.samples import CellSamples
from nearmetal.units import format_size
from nearmetal.workloads.framed_file import SAMPLE_FILE, open_frame, padded, torn
from nearmetal.workloads.framed_header import read_header

FLAG_MISSED_WINDOW = 2

_KINDS = frozenset({"round_trip", "window", "collective", "exchange"})


@dataclass(frozen=True, slots=True)
class SampleHeader:
    """What was measured. Lists are by cell (one a size) or by rank; nested ones by cell, then by rank.

    `clock_offset_ns` is a rank's clock minus rank 0's, and the truth lies within `clock_error_ns` of it during the
    whole cell. `clock_cost_ns` is what one stamp costs. `check_rounds` is 0 when payloads were not checked;
    `check_failures` counts wrong messages over all ranks. `sync_window_ns` is 0 unless `sync` is `window`.
    `pace_ns` is the longest pause before an iteration, drawn by `seed`; 0 is back to back. Each rank computed on
    `working_set_bytes` for `compute_ns` before an iteration; 0 is not at all. `buffers` says how many a window has;
    files from before it was a choice do not say it (many). `migrations` counts moves to another processor, -1 where
    the kernel does not say. `calls` counts how often a rank called the operation, warm-up, checks and repeated windows
    included. Files from before these were counted, and of programs that do not count them, have none.
    """

    engine: str
    operation: str
    kind: str
    ranks: int
    window_messages: int
    sync: str
    sizes_bytes: tuple[int, ...]
    iterations: tuple[int, ...]
    warmup: tuple[int, ...]
    calls: tuple[int, ...] = field(default=(), kw_only=True)
    sync_window_ns: tuple[int, ...]
    datatypes: tuple[str, ...]
    clock: str
    clock_cost_ns: tuple[int, ...]
    clock_offset_ns: tuple[tuple[int, ...], ...]
    clock_error_ns: tuple[tuple[int, ...], ...]
    migrations: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    check_rounds: int
    check_failures: tuple[int, ...]
    mpi_standard: str
    mpi_library: str
    processors: tuple[str, ...]
    pace_ns: int = 0
    seed: int = 0
    compute_ns: int = 0
    working_set_bytes: int = 0
    buffers: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError where it contradicts itself."""
        by_cell = (self.iterations, self.warmup, self.sync_window_ns, self.datatypes, self.check_failures)
        by_cell_and_rank = (self.clock_offset_ns, self.clock_error_ns, *([self.migrations] if self.migrations else []))
        cells = len(self.sizes_bytes)
        if cells == 0 or self.ranks < 1 or self.kind not in _KINDS:
            raise ValueError(f"{cells} cells, {self.ranks} ranks, kind {self.kind!r}")
        if self.in_pairs and self.ranks % 2:
            raise ValueError(f"{self.ranks} ranks in pairs")
        if any(len(column) != cells for column in (*by_cell, *by_cell_and_rank, *([self.calls] if self.calls else []))):
            raise ValueError(f"a list is not of {cells} cells")
        by_rank = (self.clock_cost_ns, self.processors, *self.clock_offset_ns, *self.clock_error_ns, *self.migrations)
        if any(len(column) != self.ranks for column in by_rank):
            raise ValueError(f"a list is not of {self.ranks} ranks")
        if min(self.sizes_bytes) < 0 or min(self.warmup) < 0 or min(self.iterations) < 1:
            raise ValueError("a count is negative")

    @property
    def value_ranks(self) -> tuple[int, ...]:
        """Return the ranks whose slowest makes an iteration's value: the initiators of pairs, else all ranks."""
        return tuple(range(self.ranks // 2 if self.in_pairs else self.ranks))

    @property
    def in_pairs(self) -> bool:
        """Return whether rank i works with rank i + ranks/2 alone."""
        return self.kind in {"round_trip", "window"}


@dataclass(frozen=True, slots=True)
class SampleCell:
    """All stamps of one size: arrays of shape (ranks, warmup + iterations), warm-up first.

    Stamps are nanoseconds of each rank's own clock since an arbitrary start.
    """

    size_bytes: int
    warmup: int
    value_ranks: tuple[int, ...]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    flags: NDArray[np.uint8]

    @property
    def missed(self) -> NDArray[np.bool_]:
        """Tell for each iteration, warm-up included, whether any rank came too late for its time window."""
        return np.asarray((self.flags & FLAG_MISSED_WINDOW).any(axis=0))


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A whole sample file."""

    header: SampleHeader
    cells: tuple[SampleCell, ...]


def to_cell_samples(file: SampleFile) -> tuple[CellSamples, ...]:
    """Return the cells as the store keeps them: durations, each rank's begin stamps from its first of the file.

    The warm-up mark becomes the count. An iteration that any rank began too late is flagged on every rank: it has
    no value. Raise TrialError for a cell that has no value at all.
    """
    for index, cell in enumerate(file.cells):
        if cell.missed[cell.warmup :].all():
            raise TrialError(
                f"{file.header.operation} of {format_size(cell.size_bytes)} has no value: all "
                f"{file.header.iterations[index]} iterations missed their time window of "
                f"{file.header.sync_window_ns[index]} ns",
                hint="windows need a core for each rank; use sync = 'barrier', or a longer sync_window_us",
            )
    origin_ns = file.cells[0].begin_ns[:, :1]
    return tuple(
        CellSamples(
            operation=file.header.operation,
            message_bytes=cell.size_bytes,
            warmup=cell.warmup,
            value_ranks=cell.value_ranks,
            begin_ns=cell.begin_ns - origin_ns,
            ns=cell.end_ns - cell.begin_ns,
            flags=np.broadcast_to(cell.missed * np.uint8(FLAG_MISSED_WINDOW), cell.flags.shape),
        )
        for cell in file.cells
    )


# ---- reading ----


@timed
def read_sample_file(data: bytes) -> SampleFile:
    """Read a whole file's bytes; raise ForeignFileError that names what is wrong with them."""
    text, blocks = open_frame(data, SAMPLE_FILE)
    header = read_header(SampleHeader, text, SAMPLE_FILE)
    return SampleFile(header, _read_cells(blocks, header))


def _read_cells(blocks: bytes, header: SampleHeader) -> tuple[SampleCell, ...]:
    entries = [warmup + iterations for warmup, iterations in zip(header.warmup, header.iterations, strict=True)]
    wanted = header.ranks * sum(16 * n + padded(n) for n in entries)
    if wanted != len(blocks):
        raise torn(SAMPLE_FILE, f"its header promises {wanted} bytes of timestamps, but it holds {len(blocks)}")
    cells = []
    offset = 0
    for index, count in enumerate(entries):
        stride = 16 * count + padded(count)
        rows = np.frombuffer(blocks, np.uint8, header.ranks * stride, offset).reshape(header.ranks, stride)
        cells.append(
            SampleCell(
                size_bytes=header.sizes_bytes[index],
                warmup=header.warmup[index],
                value_ranks=header.value_ranks,
                begin_ns=_stamps(rows[:, : 8 * count]),
                end_ns=_stamps(rows[:, 8 * count : 16 * count]),
                flags=rows[:, 16 * count : 17 * count],
            )
        )
        offset += header.ranks * stride
    return tuple(cells)


def _stamps(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.ascontiguousarray(rows).view("<i8").astype(np.int64, copy=False)
