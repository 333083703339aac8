"""What nearmetal asks of a batch system: a new one is one file that offers this, and one row in `hosts/table.py`."""

from dataclasses import dataclass
from typing import Literal, Protocol

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
    the limit, and `restarts` how often the job was put back into the queue.
    """

    job: str
    phase: Phase
    word: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    left_s: int = 0
    restarts: int = 0

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


CHOICES = ("partition", "account", "qos", "reservation", "constraint", "nodelist", "exclude")
"""What of a request a study may name, as in the batch system."""


class Scheduler(Protocol):
    """A batch system, through its own programs."""

    @property
    def kind(self) -> str:
        """The word in the study file."""

    def submit(self, request: Request) -> list[str]:
        """Submit a job that only holds nodes; return the ids, one a task. Raise UnavailableError when it is refused."""

    def look(self, job: str) -> JobState:
        """Return a job's state; raise UnavailableError when the batch system does not answer."""

    def cancel(self, job: str) -> None:
        """End a job; one that has ended is not an error."""

    def shell_argv(self, job: str, node: str) -> list[str]:
        """Return the command that starts `sh` on a node of a running job, its standard streams passed through."""

    def starter(self, state: JobState) -> Starter:
        """Return what starts ranks inside a running job."""

    def explain(self, state: JobState) -> tuple[str, str]:
        """Return why a job ended or does not start, as a sentence, and the next step."""
