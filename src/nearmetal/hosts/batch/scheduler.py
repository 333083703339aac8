"""What nearmetal asks of a batch system: a new one is one file that offers this, and one row in `hosts/table.py`."""

from dataclasses import dataclass
from typing import Literal, Protocol

from nearmetal.errors import UnavailableError
from nearmetal.hosts.far.stream import Stream
from nearmetal.hosts.host import Starter

Phase = Literal["waiting", "stuck", "running", "ending", "ended"]
"""Where a job is, as far as it matters here.

`stuck` waits for something that does not come by itself: drained nodes, a limit, a partition that is down. Of one that
is `ending` the nodes are being cleaned up; only then is it told whether it has ended or waits again.
"""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as reported by its batch system.

    `job` is the number that steps are started with, `word` and `reason` are the system's own. `left_s` is the time to
    the limit, `restarts` how often the job was put back into the queue, and `suspended` when it was last halted or
    went on, in any words.
    """

    job: str
    phase: Phase
    word: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    left_s: int = 0
    restarts: int = 0
    partition: str = ""
    suspended: str = ""

    @property
    def ending(self) -> bool:
        """Return whether it will end by itself: Slurm starts nothing in a job past its limit, which it ends later."""
        return self.phase == "ending" or (self.phase == "running" and self.left_s <= 0)


@dataclass(frozen=True, slots=True)
class Request:
    """An allocation to ask for: `tasks` above 1 asks for an array of so many alike, `choices` are those of CHOICES."""

    nodes: int
    time_limit_s: int
    tasks: int = 1
    choices: tuple[tuple[str, str], ...] = ()
    exclusive: bool = True

    def __str__(self) -> str:
        """Return what tells it from the others of a run."""
        return ", ".join([f"{self.nodes} nodes", *(f"{name} {value}" for name, value in self.choices)])


class LimitError(UnavailableError):
    """The batch system takes no more jobs of this user for now."""


CHOICES = ("partition", "account", "qos", "reservation", "constraint", "nodelist", "exclude")
"""What of a request a study may name, as in the batch system."""


class Scheduler(Protocol):
    """A batch system, through its own programs."""

    @property
    def kind(self) -> str:
        """The word in the study file."""

    def submit(self, request: Request) -> list[str]:
        """Submit a job that only holds nodes; return the ids, one a task.

        Raise LimitError when it would be accepted beside fewer jobs of the user, UnavailableError when it is refused.
        """

    def look(self, job: str) -> JobState:
        """Return a job's state; raise UnavailableError when the batch system does not answer."""

    def wanted(self, request: Request, state: JobState) -> frozenset[str] | None:
        """Return the nodes that a waiting job may get, sooner or later; none where it waits for something else.

        None where it waits for other jobs of its user to end, wherever they are.
        """

    def around(self) -> frozenset[str]:
        """Return the nodes of the job in which nearmetal itself runs; none where it runs in none."""

    def cancel(self, *jobs: str) -> None:
        """End jobs; those that have ended are not an error."""

    def open_shell(self, job: str, node: str) -> Stream:
        """Start `sh` on a node of a running job."""

    def starter(self, state: JobState) -> Starter:
        """Return what starts ranks inside a running job."""

    def explain(self, state: JobState) -> tuple[str, str]:
        """Return why a job ended or does not start, as a sentence, and the next step."""
