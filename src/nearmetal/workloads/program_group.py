"""Programs on several nodes at the same time, started from one of them by a separate program, `program_group_run`.

A trial launches one program. Where a measurement takes several at once (N pairs that share a port) or several in a
row (one a message size), that program is this one. Each argument after the options is a command as JSON; commands of
one step run together, steps follow each other. What each prints becomes a file, and `programs.json` says when each ran.
Standard library only.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files

from nearmetal.errors import ForeignFileError, UnavailableError
from nearmetal.hosts.host import Shell, is_far, name_of
from nearmetal.reading import parse_json
from nearmetal.workloads.program_group_run import LOG as LOG  # noqa: PLC0414 (the group's log, which is read here)


@dataclass(frozen=True, slots=True)
class Command:
    """One program: its node, the file in the group's folder that takes its output, the statuses that are no failure.

    An empty node is the node on which the group runs; it is started there without the agent.
    """

    node: str
    argv: tuple[str, ...]
    stdout: str
    step: int = 0
    accept: tuple[int, ...] = (0,)
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""

    def to_json(self) -> str:
        """Return the command as one argument."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class CommandRun:
    """When one command ran (ns of the group's own clock), and how it ended."""

    stdout: str
    step: int
    began_ns: int
    ended_ns: int
    exit_status: int


def read_log(data: bytes) -> tuple[CommandRun, ...]:
    """Read `programs.json`; raise ForeignFileError for anything else."""
    try:
        return tuple(CommandRun(**row) for row in parse_json(data))
    except (ValueError, TypeError) as error:
        raise ForeignFileError(f"this is not the log of a group of programs: {error}") from error


def overlap(ran: Sequence[CommandRun]) -> float:
    """Return the part of the time from the first start to the last end in which all commands ran."""
    together = min(one.ended_ns for one in ran) - max(one.began_ns for one in ran)
    whole = max(one.ended_ns for one in ran) - min(one.began_ns for one in ran)
    return max(0.0, together / whole) if whole > 0 else 1.0


def group_argv(shell: Shell, node: str, timeout_s: float, commands: Sequence[Command]) -> tuple[str, ...]:
    """Put the group on a node and return its command line; raise UnavailableError where the node has no Python."""
    folder = f"{shell.scratch}/{node}"
    python = "python3" if is_far(shell) else sys.executable
    if is_far(shell) and not (found := shell.run([python, "-c", _NEW_ENOUGH], node=node, check=False)).ok:
        raise UnavailableError(
            f"{name_of(shell, node)} has no Python 3.6 or newer, which starts the programs there: {found.complaint()}",
            hint="install its package python3",
        )
    program = f"{folder}/program_group_run.py"
    shell.run(["mkdir", "-p", folder], node=node)
    shell.write(program, (files("nearmetal.workloads") / "program_group_run.py").read_bytes(), node=node)
    return (python, program, shell.agent, folder, f"{timeout_s:g}", *(command.to_json() for command in commands))


_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 6) and sys.version)"
