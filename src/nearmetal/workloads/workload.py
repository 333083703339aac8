"""What a workload is: how to launch a measured program, and how to read what it leaves."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from nearmetal.hosts.host import Shell
from nearmetal.paths.path import Endpoints
from nearmetal.process import Finished
from nearmetal.study.order import Order, Scalar, WorkloadOrder


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start on a node: `env` is added to the environment, `files` are what it will leave.

    `files` maps the name in the outcome to the path on that node, `facts` say what was launched (the MPI's
    version, say). `late_hint` is the next step where it does not end in time, if more is known than for any program.
    """

    argv: tuple[str, ...]
    node: str
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Scalar] = field(default_factory=dict)
    late_hint: str = ""


class Workload(Protocol):
    """One kind of measured program. All of it also runs inside the lab: standard library only."""

    @property
    def kind(self) -> str:
        """The word in the study file, and the key in the table of workloads."""

    def check(self, workload: WorkloadOrder) -> None:
        """Raise BadInputError for options that it does not have or that contradict each other: nothing has started."""

    def prepare(self, shell: Shell, order: Order, endpoints: Endpoints) -> Launch:
        """Build or find the program and say how to launch it; start servers that it needs."""

    def verify(self, order: Order, finished: Finished, files: dict[str, bytes]) -> None:
        """Raise TrialError when the program did not do its work; called before its figures are believed."""

    def least_packets(self, order: Order) -> int:
        """Return how many packets each end of a network path must have carried, at the very least."""


@runtime_checkable
class Counting(Protocol):
    """A workload whose program counts things itself, besides its samples."""

    def counters(self, order: Order, files: dict[str, bytes]) -> dict[str, int]:
        """Return those counters, `tool.<what>` or a counter's own name; called after `verify`."""
