"""Programs on several nodes at the same time, started from one of them: `python -m nearmetal.workloads.crew`.

A trial launches one program. Where a measurement takes several at once (N pairs that share a port) or several in a
row (one a message size), that program is this one. Each argument after the options is a command as JSON; commands of
one step run together, steps follow each other. What each prints becomes a file, and `crew.json` says when each ran.
Standard library only.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nearmetal import process
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.reading import parse_json

LOG = "crew.json"


@dataclass(frozen=True, slots=True)
class Command:
    """One program: its node, the file in the crew's folder that takes its output, the statuses that are no failure.

    An empty node is the node on which the crew runs; it is started there without the agent.
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

    @staticmethod
    def from_json(text: str) -> Command:
        """Read what `to_json` wrote; raise BadInputError for anything else."""
        try:
            raw = parse_json(text)
            return Command(**{**raw, "argv": tuple(raw["argv"]), "accept": tuple(raw["accept"])})
        except (ValueError, TypeError, KeyError) as error:
            raise BadInputError(f"this is not a command of a crew: {text[:80]!r}") from error


@dataclass(frozen=True, slots=True)
class CommandRun:
    """When one command ran (ns of the crew's own clock), and how it ended."""

    stdout: str
    step: int
    began_ns: int
    ended_ns: int
    exit_status: int


def read_log(data: bytes) -> tuple[CommandRun, ...]:
    """Read `crew.json`; raise ForeignFileError for anything else."""
    try:
        return tuple(CommandRun(**row) for row in parse_json(data))
    except (ValueError, TypeError) as error:
        raise ForeignFileError(f"this is not the log of a crew: {error}") from error


def overlap(ran: Sequence[CommandRun]) -> float:
    """Return the part of the time from the first start to the last end in which all commands ran."""
    together = min(one.ended_ns for one in ran) - max(one.began_ns for one in ran)
    whole = max(one.ended_ns for one in ran) - min(one.began_ns for one in ran)
    return max(0.0, together / whole) if whole > 0 else 1.0


def crew_argv(agent: str, folder: str, timeout_s: float, commands: Sequence[Command]) -> tuple[str, ...]:
    """Return the command line of a crew."""
    return (
        sys.executable,
        "-m",
        "nearmetal.workloads.crew",
        agent,
        folder,
        f"{timeout_s:g}",
        *(command.to_json() for command in commands),
    )


def crew_environment() -> dict[str, str]:
    """Return what the crew's Python needs to find this package, also where it is not installed."""
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def main(argv: Sequence[str]) -> int:
    """Run a crew to its end: `AGENT FOLDER TIMEOUT_S COMMAND...`; the first failure ends it with status 1."""
    agent, folder, timeout_s, *texts = argv
    commands = [Command.from_json(text) for text in texts]
    ran: list[CommandRun] = []
    for step in sorted({command.step for command in commands}):
        together = [command for command in commands if command.step == step]
        with ThreadPoolExecutor(max_workers=len(together)) as pool:
            results = list(pool.map(lambda one: _run(agent, Path(folder), float(timeout_s), one), together))
        ran += [one for one, _ in results]
        complaint = next((complaint for _, complaint in results if complaint), "")
        if complaint:
            sys.stderr.write(f"{complaint}\n")
            return 1
    Path(folder, LOG).write_text(json.dumps([asdict(one) for one in ran]))
    return 0


def _run(agent: str, folder: Path, timeout_s: float, command: Command) -> tuple[CommandRun, str]:
    """Run one command; return when it ran and, where it failed, its last words."""
    argv = command.argv
    if command.env:
        argv = ("env", *(f"{name}={value}" for name, value in command.env.items()), *argv)
    if command.node:
        argv = (agent, command.node, shlex.join(argv))  # the agent evaluates its words, as ssh does
    began_ns = time.monotonic_ns()
    finished = process.run(argv, timeout_s=timeout_s, stdin=command.stdin.encode())
    ran = CommandRun(command.stdout, command.step, began_ns, time.monotonic_ns(), finished.exit_status)
    folder.joinpath(command.stdout).write_bytes(finished.stdout)
    if finished.timed_out or finished.exit_status not in command.accept:
        said = finished.stderr + b"\n" + finished.stdout[-2000:]
        shown = process.Finished(command.argv, finished.exit_status, b"", said, finished.elapsed_ns, finished.timed_out)
        return ran, f"on {command.node or 'its node'}: {shown.complaint()}"
    sys.stdout.buffer.write(finished.stdout[-20_000:])
    return ran, ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
