"""Plays random histories of knob sessions in parallel, and prints a table of their events.

`python knob_campaign.py --histories 10000 --jobs 8`. Each job has namespaces of its own, with or without root;
`knob_histories.py` explains what a history is. The exit status is 1 when a history failed; an interrupt ends the
campaign with the table of the histories so far.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knob_world import DEVICES

if TYPE_CHECKING:
    from collections.abc import Iterable

_TELL_EVERY = 100
PLAYER = Path(__file__).with_name("knob_histories.py")
ROWS = {
    "operations": {
        "apply": "`apply`",
        "hold": "a trial's hold",
        "tune": "`tune`, stopped on the way",
        "rollback": "`rollback`",
        "answer yes": "... confirmed",
        "answer no": "... interrupted by ctrl-C",
    },
    "faults that happened": {
        "kill": "kill -9 of the command",
        "kill watchdog": "kill -9 of a watchdog",
        "interrupt": "ctrl-C at a random step",
        "answer shutdown": "SIGTERM for the command and its watchdog",
        "hang": "hang on a file or a write",
        "ENOSPC": "ENOSPC",
        "EDQUOT": "EDQUOT",
        "EROFS": "EROFS",
        "EIO": "EIO",
        "somebody else sets": "write by somebody else",
        "flip a bit": "flipped bit or emptied journal",
        "another namespace": "`rollback` in another namespace",
        "another machine": "`rollback` on another machine",
        "reboot": "reboot",
        "cut": "connection cut",
        "scancel": "Slurm: job cancelled",
        "requeue": "Slurm: job put back into the queue",
        "node lost": "Slurm: node lost",
        "time limit": "Slurm: time limit",
    },
}


def play(
    first: int, step: int, last: int, over: list[str], players: list[subprocess.Popen[str]]
) -> Iterable[dict[str, Any]]:
    """Play every `step`th seed in namespaces of its own; yield each history's result. `players` gets the process."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    space = ["unshare", *user, "--net", "--mount", "--", "sh", "-c", f'{DEVICES}exec "$@"', "histories"]
    seeds = [str(number) for number in (first, step, last)]
    argv = [*space, sys.executable, str(PLAYER), *seeds, *over]
    if over == ["slurm"]:  # it has namespaces of its own
        argv = [sys.executable, str(PLAYER.with_name("knob_slurm.py")), *seeds]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as player:
        players.append(player)
        assert player.stdout is not None
        for line in player.stdout:
            yield json.loads(line)
    if player.returncode not in {0, -signal.SIGTERM}:
        yield {"seed": first, "wrong": [f"the player ended with status {player.returncode}"], "counts": {}, "log": []}


def table(histories: int, failed: int, counts: Counter[str]) -> str:
    """Return the table of events as Markdown."""
    lines = ["| | n |", "|---|---|", f"| **histories** | {histories:,} |"]
    for head, rows in ROWS.items():
        lines.append(f"| **{head}** | {sum(counts[key] for key in rows if not key.startswith('answer')):,} |")
        lines += [f"| {text} | {counts[key]:,} |" for key, text in rows.items()]
    return "\n".join([*lines, f"| **left changed without being named, or otherwise wrong** | **{failed}** |"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=8, help="most of the time of a history is waiting")
    parser.add_argument("--over", choices=["ssh", "slurm"], help="reach the machine over ssh; or play in Slurm's jobs")
    given = parser.parse_args()
    over = [given.over] if given.over else []
    counts: Counter[str] = Counter()
    failed: list[int] = []
    players: list[subprocess.Popen[str]] = []
    histories = 0

    def job(number: int) -> None:
        nonlocal histories
        for result in play(given.seed + number, given.jobs, given.seed + given.histories, over, players):
            histories += 1
            counts.update(result["counts"])
            if result["wrong"]:
                failed.append(result["seed"])
                print(f"seed {result['seed']}: {result['wrong']}", *result["log"], sep="\n", flush=True)  # noqa: T201
            if histories % _TELL_EVERY == 0:
                print(f"{histories} histories, {len(failed)} failed", file=sys.stderr, flush=True)  # noqa: T201

    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            list(pool.map(job, range(given.jobs)))
        except KeyboardInterrupt:
            for player in players:
                player.terminate()
    cpu = sum(os.times()[:4])
    print(table(histories, len(failed), counts), f"\nfrom seed {given.seed}; {cpu:.0f} s of CPU", sep="\n", flush=True)  # noqa: T201
    return 1 if failed or histories < given.histories else 0


if __name__ == "__main__":
    sys.exit(main())
