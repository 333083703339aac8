"""What nearmetal knows of a foreign program: one record a program, in the one file that is about it.

The store keeps durations for ever: a rate is the time that a fixed amount takes at it (see `rates`), a mean is one
sample of the operation that it is a mean of. Standard library only: a study's tools also run inside the lab.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nearmetal.units import format_size
from nearmetal.workloads.figures import UNITS, Figure
from nearmetal.workloads.workload import Workload

WINDOW_MESSAGES = 64
"""The window that a bandwidth's duration is stated for: the default of OMB and of nearmetal's engine alike."""
ONE_MEAN = "one mean over a launch: no percentiles, no spread within it"
NO_SIZE = "no message size: import outputs of one size only"
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Spans:
    """What one client left: durations in ns, and when each began (one after another where that is not told).

    `whole_ns` is the whole run as one rate's duration, 0 where the figures are times.
    """

    ns: Sequence[int]
    begin_ns: Sequence[int] | None = None
    whole_ns: int = 0


def one_figure(unit: str, figure: float) -> Spans:
    """Return one figure in a unit of `figures.UNITS`."""
    ns = UNITS[unit].to_ns(figure)
    return Spans((ns,), whole_ns=ns if UNITS[unit].rate else 0)


@dataclass(frozen=True, slots=True)
class Mean:
    """A suite's mean of one of the engine's operations: its duration is that whose shown figure it is."""

    operation: str
    figure: float
    message_bytes: int
    pairs: int = 1


@dataclass(frozen=True, slots=True)
class Dump:
    """The output of perftest with a value an iteration, up to millions of them (`perftest_dump`)."""

    data: bytes


Durations = Spans | Mean | Dump
"""What a client's output holds; what needs numpy to be read is data here, for the lab has none."""
FileCell = tuple[str, int, Durations]
"""Operation, message size in bytes, durations."""


@dataclass(frozen=True, slots=True)
class Foreign(Generic[C]):
    """What one file holds of one workload: `lacks` says in words what its figures cannot support.

    `window` is the messages of a window as it was printed, empty where it was not.
    """

    program: str
    version: str
    workload: str
    ranks: int
    cells: tuple[C, ...]
    lacks: tuple[str, ...]
    window: str = ""


@dataclass(frozen=True, slots=True)
class Import:
    """A program's output: its distinctive marks, its reader, and where in a log a launch begins or has ended.

    A log of several launches is cut there; without such a place a file holds one launch.
    """

    marks: tuple[bytes, ...]
    read: Callable[[bytes], Iterable[Foreign[FileCell]]]
    begins: bytes = b""
    ended: bytes = b""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: how a study launches it, what a client's output holds, its figures, its files.

    `workload` and `samples` are None for a program that is only imported; `figures` are of operations that are not the
    engine's.
    """

    kind: str
    imports: tuple[Import, ...]
    workload: Workload | None = None
    samples: Callable[[bytes], Durations] | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)


def of_streams(name: str, streams: int) -> str:
    """Return the workload of so many streams at once: what several carry is not compared with what one does."""
    return name if streams == 1 else f"{name}-{streams}-streams"


def cells_of(means: Iterable[Mean]) -> tuple[FileCell, ...]:
    """Return means as cells, without those that were printed as 0.00."""
    return tuple((mean.operation, mean.message_bytes, mean) for mean in means if mean.figure > 0)


def zeros_left_aside(means: Iterable[Mean]) -> str:
    """Return what to say of sizes whose mean rounds to 0.00, nothing when there are none."""
    sizes = [format_size(mean.message_bytes) for mean in means if mean.figure == 0]
    return f"left out, because 0.00 was printed: {', '.join(sizes)}" if sizes else ""
