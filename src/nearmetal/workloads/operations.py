"""The engine's operations: what each needs, and the figure that people expect to see for it.

Stored is always what was stamped, in integer nanoseconds; halving a round trip or dividing bytes by it is display,
done here and nowhere else. The table mirrors that of native/bench (`nmbench --list`); a test holds them together.
Standard library only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nearmetal.errors import BadInputError, ForeignFileError, named
from nearmetal.units import to_whole

Kind = Literal["round_trip", "window", "collective", "exchange"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a figure depends on besides the duration."""

    message_bytes: int
    window_messages: int = 1
    pairs: int = 1


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `max_ranks` 0: no limit. `unit` is that of the shown figure, `factor` the figure of one ns.

    Figures are in proportion to the duration, or to its inverse where `larger_is_better`.
    """

    name: str
    kind: Kind
    unit: str
    factor: Callable[[Shape], float]
    min_ranks: int = 2
    max_ranks: int = 0
    even_ranks: bool = False
    has_size: bool = True
    larger_is_better: bool = False

    def shown(self, ns: float, shape: Shape) -> float:
        """Return the shown figure of a duration, in `unit`."""
        factor = self.factor(shape)
        return factor / ns if self.larger_is_better else factor * ns

    def duration_ns(self, figure: float, shape: Shape) -> int:
        """Return the duration that is shown as `figure`, at least 1 ns; raise ForeignFileError when there is none."""
        factor = self.factor(shape)
        try:
            return max(1, to_whole(factor / figure if self.larger_is_better else figure / factor))
        except (ValueError, ZeroDivisionError) as error:
            raise ForeignFileError(f"{figure} {self.unit} of {self.name} is out of range") from error

    def check_ranks(self, ranks: int) -> None:
        """Raise BadInputError for a number of ranks that the operation does not take."""
        if ranks < self.min_ranks or (self.max_ranks and ranks > self.max_ranks) or (self.even_ranks and ranks % 2):
            limit = f"exactly {self.max_ranks}" if self.max_ranks == self.min_ranks else f"at least {self.min_ranks}"
            even = ", an even number" if self.even_ranks and not self.max_ranks else ""
            raise BadInputError(f"{self.name} takes {limit} ranks{even}, not {ranks}")


def half_round_trip_us(_: Shape) -> float:
    """Return half the round trip in microseconds, as every latency table shows it."""
    return 1 / 2e3


def duration_us(_: Shape) -> float:
    """Return the duration in microseconds."""
    return 1 / 1e3


def megabytes_per_s(shape: Shape) -> float:
    """Return 10^6 bytes a second in one direction: a window of messages over its time, acknowledgement included."""
    return shape.message_bytes * shape.window_messages * 1e3


def both_ways_megabytes_per_s(shape: Shape) -> float:
    """Return 10^6 bytes a second, both directions added."""
    return 2 * megabytes_per_s(shape)


def messages_per_s(shape: Shape) -> float:
    """Return messages a second of all pairs together; an iteration ends with its slowest pair."""
    return shape.window_messages * shape.pairs * 1e9


_ROWS = (
    # ping-pong between two ranks, then of all pairs at once
    Operation("latency", "round_trip", "us", half_round_trip_us, max_ranks=2, even_ranks=True),
    Operation("multi_latency", "round_trip", "us", half_round_trip_us, even_ranks=True),
    # windows of messages one way, both ways, and of all pairs at once
    Operation("bw", "window", "MB/s", megabytes_per_s, max_ranks=2, even_ranks=True, larger_is_better=True),
    Operation("bibw", "window", "MB/s", both_ways_megabytes_per_s, max_ranks=2, even_ranks=True, larger_is_better=True),
    Operation("message_rate", "window", "messages/s", messages_per_s, even_ranks=True, larger_is_better=True),
    # collectives of MPI: reductions are sums, and rank 0 is the root
    Operation("barrier", "collective", "us", duration_us, has_size=False),
    Operation("bcast", "collective", "us", duration_us),
    Operation("reduce", "collective", "us", duration_us),
    Operation("allreduce", "collective", "us", duration_us),
    Operation("allgather", "collective", "us", duration_us),
    Operation("alltoall", "collective", "us", duration_us),
    Operation("gather", "collective", "us", duration_us),
    Operation("scatter", "collective", "us", duration_us),
    # each of a pair sends and receives at once; messages to the neighbours on a periodic grid
    Operation("exchange", "exchange", "us", duration_us, even_ranks=True),
    Operation("halo", "exchange", "us", duration_us),
    Operation("after_exchange", "exchange", "us", duration_us, even_ranks=True),
    Operation("one_way", "exchange", "us", duration_us, even_ranks=True),
)

OPERATIONS: dict[str, Operation] = {row.name: row for row in _ROWS}


def operation_named(name: str) -> Operation:
    """Return an operation; raise BadInputError for a name that is not in the table."""
    return named(OPERATIONS, name, f"there is no operation {name!r}")
