"""The fabric file that `nmfabric` writes: every iteration of every pair. See docs/reference/fabric-file.md.

The reader believes nothing: the frame first, then the header, then that ranks agree on who worked with whom and that
the blocks fill the file exactly. The writer is for tests and simulations; it lays bytes down as the engine does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearmetal.reading import timed
from nearmetal.workloads.framed_file import FileFormat, open_frame, padded, torn
from nearmetal.workloads.framed_header import read_header

VERSION = 1
_MOST_ITERATIONS = 1_000_000
FORMAT = FileFormat(b"NMFABRIC", VERSION, "fabric file", "nmfabric")


@dataclass(frozen=True, slots=True)
class FabricHeader:
    """What was measured. `phases` are runs of rounds with the same word; iterations count without their warm-up."""

    engine: str
    ranks: int
    phases: tuple[tuple[str, int], ...]
    latency_bytes: int
    latency_iterations: int
    latency_warmup: int
    bandwidth_bytes: int
    bandwidth_window: int
    bandwidth_iterations: int
    bandwidth_warmup: int
    clock: str
    clock_cost_ns: tuple[int, ...]
    mpi_standard: str
    mpi_library: str
    processors: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ValueError where it contradicts itself."""
        if self.ranks < 2 or not self.phases or min(count for _, count in self.phases) < 1:
            raise ValueError(f"{self.ranks} ranks, phases {self.phases}")
        if len(self.clock_cost_ns) != self.ranks or len(self.processors) != self.ranks:
            raise ValueError(f"a list is not of {self.ranks} ranks")
        if self.latency_iterations < 1 or min(self.latency_bytes, self.bandwidth_bytes, self.bandwidth_window) < 1:
            raise ValueError("a size is not positive")
        counts = (self.latency_iterations, self.latency_warmup, self.bandwidth_iterations, self.bandwidth_warmup)
        if min(counts) < 0 or max(counts) > _MOST_ITERATIONS:
            raise ValueError(f"iterations and warm-ups of {counts}")

    @property
    def rounds(self) -> int:
        """Return how many rounds there are."""
        return sum(count for _, count in self.phases)


@dataclass(frozen=True, slots=True)
class FabricFile:
    """All that was stamped, one row a pair and round, in the order of rounds and then of starting ranks.

    `round`, `first` and `second` have shape (m,): `first` started. `latency_ns` (whole round trips, stamped by `first`)
    has shape (m, warm-up + iterations); so have the windows `there_ns` (`first` to `second`, stamped by `first`) and
    `back_ns` (stamped by `second`), each from its first send to its acknowledgement. Warm-up comes first.
    """

    header: FabricHeader
    round: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    there_ns: NDArray[np.int64]
    back_ns: NDArray[np.int64]

    def phase_of_rows(self) -> NDArray[np.str_]:
        """Return the word of each row's phase, shape (m,)."""
        words = np.repeat([name for name, _ in self.header.phases], [count for _, count in self.header.phases])
        return np.asarray(words[self.round])


@timed
def read_fabric_file(data: bytes) -> FabricFile:
    """Read a whole file's bytes; raise ForeignFileError that names what is wrong with them."""
    head, blocks = open_frame(data, FORMAT)
    header = read_header(FabricHeader, head, FORMAT)
    latency = header.latency_warmup + header.latency_iterations
    bandwidth = header.bandwidth_warmup + header.bandwidth_iterations
    partner, samples = _read_blocks(blocks, header, latency, bandwidth)
    rows, rank_of_row = np.nonzero(partner.T > 0)
    first, second = rank_of_row, partner.T[rows, rank_of_row].astype(np.int64) - 1
    if not np.array_equal(partner.T[rows, second], -(first + 1)) or np.count_nonzero(partner) != 2 * rows.size:
        raise torn(FORMAT, "its ranks do not agree on who worked with whom")
    starts = _starts(partner, latency, bandwidth)
    begin, begin_back = starts[first, rows], starts[second, rows]
    return FabricFile(
        header,
        round=rows.astype(np.int64),
        first=first.astype(np.int64),
        second=second,
        latency_ns=samples[begin[:, None] + np.arange(latency)],
        there_ns=samples[begin[:, None] + latency + np.arange(bandwidth)],
        back_ns=samples[begin_back[:, None] + np.arange(bandwidth)],
    )


def _read_blocks(
    blocks: bytes, header: FabricHeader, latency: int, bandwidth: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the partners, shape (ranks, rounds), and all samples, rank after rank."""
    if header.ranks * padded(4 * header.rounds) > len(blocks):
        raise torn(FORMAT, f"{header.rounds} rounds of {header.ranks} ranks do not fit in {len(blocks)} bytes")
    partner = np.empty((header.ranks, header.rounds), np.int32)
    parts = []
    offset = 0
    for rank in range(header.ranks):
        if len(blocks) - offset < padded(4 * header.rounds):
            raise torn(FORMAT, f"it ends before rank {rank}")
        partner[rank] = np.frombuffer(blocks, "<i4", header.rounds, offset)
        if np.abs(partner[rank].astype(np.int64)).max(initial=0) > header.ranks:
            raise torn(FORMAT, f"rank {rank} worked with a rank that is not there")
        offset += padded(4 * header.rounds)
        count = _sizes(partner[rank], latency, bandwidth).sum()
        if len(blocks) - offset < 8 * count:
            raise torn(FORMAT, f"it ends within the samples of rank {rank}")
        parts.append(np.frombuffer(blocks, "<i8", count, offset))
        offset += 8 * int(count)
    if offset != len(blocks):
        raise torn(FORMAT, f"its header promises {offset} bytes of samples, it holds {len(blocks)}")
    return partner, np.concatenate(parts).astype(np.int64, copy=False)


def _sizes(partner: NDArray[np.int32], latency: int, bandwidth: int) -> NDArray[np.int64]:
    """Return how many samples belong to each entry of `partner`."""
    return np.where(partner > 0, np.int64(latency), 0) + np.where(partner != 0, np.int64(bandwidth), 0)


def _starts(partner: NDArray[np.int32], latency: int, bandwidth: int) -> NDArray[np.int64]:
    """Return where in all samples those of each (rank, round) begin."""
    sizes = _sizes(partner, latency, bandwidth)
    return np.asarray((np.cumsum(sizes.ravel()) - sizes.ravel()).reshape(sizes.shape))
