"""What a person sees while a study runs: a bar on a terminal, one line a block elsewhere; always on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import ClockProgress, Host, VirtualTimeHost
from nearmetal.report.terminal import Console
from nearmetal.results.evidence import disturbed
from nearmetal.results.stopping import Unfinished, unfinished
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.spec import Study
from nearmetal.units import NS_PER_S, counted, format_duration, format_wait

if TYPE_CHECKING:
    from nearmetal.run.schedule import Watcher

_LEAST_SHOWN_S = 60.0
_BAR_COLUMNS = 10
_QUIET_AGAIN = 3
"""Quiet launches in a row that end a busy time."""


def warn(sentence: str) -> None:
    """Warn about what would spoil a measurement."""
    click.echo(f"warning: {sentence}", err=True)


def lacks_of(run: RunDir, records: Sequence[TrialRecord]) -> Unfinished | None:
    """Return what a run lacks; where its study or samples cannot be read, that is said: its trials still can be."""
    try:
        return unfinished(run, records)
    except NearmetalError as error:
        click.echo(f"whether the run is finished is not known: {error.message}", err=True)
        return None


class _VirtualTime(ProgressColumn):
    """The virtual time of a host with its own clock, and how fast that clock runs."""

    max_refresh = 0.5

    def __init__(self, host: VirtualTimeHost) -> None:
        super().__init__()
        self._host = host

    def render(self, task: Task) -> Text:
        del task
        return Text(virtual_words(self._host.reached(), time.monotonic()))


def virtual_words(reached: ClockProgress | None, now_s: float) -> str:
    """Return `0.84 virtual s, 0.031 a second`; nothing where no machine has begun."""
    if reached is None or reached.virtual_ns <= 0:
        return ""
    virtual_s = reached.virtual_ns / NS_PER_S
    return f"{virtual_s:.2f} virtual s, {virtual_s / max(now_s - reached.since_s, 1e-3):.2g} a second"


@contextlib.contextmanager
def watcher(
    study: Study, console: Console, host: Host | None = None, *, blocks: int | None = None, numbers: int | None = None
) -> Iterator[Watcher]:
    """Draw a bar when `console` is a terminal, with the clock of a `host` that has its own; else write lines.

    `blocks` is how many this call runs at most, where not all; `numbers` how many numbers of blocks an occasion has,
    where it takes fewer.
    """
    trials = study.trials
    remaining = _RemainingTime(trials.max_blocks, blocks, trials.min_blocks, numbers)
    if not console.is_terminal:
        yield _Lines(remaining, console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR_COLUMNS),
        MofNCompleteColumn(),
        *([_VirtualTime(host)] if isinstance(host, VirtualTimeHost) else []),
        TextColumn("{task.fields[last]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(remaining, progress)


def _combination(record: TrialRecord) -> str:
    order = record.order
    return f"{order.path.label} {order.workload.label} {order.setting}"


class _RemainingTime:
    """The current block and the longest time left, from the blocks that this call has run."""

    def __init__(self, most_blocks: int, blocks: int | None, least_blocks: int = 0, numbers: int | None = None) -> None:
        self._most, self._numbers = most_blocks, numbers or most_blocks
        self._cap = f"{most_blocks}" if least_blocks == most_blocks else f"at most {most_blocks}"
        self._blocks = most_blocks if blocks is None else blocks
        self._first: tuple[int, float] | None = None

    def words(self, number: int, now_s: float) -> str:
        """Return `block 4 of at most 9, about 12 min left at most` as a block begins; no time below a minute."""
        if self._first is None:
            self._first = number, now_s
        begun, since_s = self._first
        occasion, block = divmod(number, self._numbers)
        to_come = min(self._most - block, begun + self._blocks - number)
        last = block + to_come
        place = f"block {block + 1} of " + (f"{last} (max {self._most})" if last < self._most else self._cap)
        left_s = (now_s - since_s) / (number - begun) * to_come if number > begun else 0.0
        left = f", about {format_wait(round(left_s * NS_PER_S))} left at most" if left_s >= _LEAST_SHOWN_S else ""
        return f"occasion {occasion + 1}, {place}{left}" if occasion else f"{place}{left}"


class _DisturbanceWatch:
    """Whether launches had the processors for themselves: told once when that ends, again after it was so again."""

    def __init__(self) -> None:
        self._quiet = _QUIET_AGAIN

    def words(self, record: TrialRecord) -> str:
        """Return the warning with which a busy time begins, else nothing."""
        why = disturbed(record.outcome.counters).why
        begins = bool(why) and self._quiet >= _QUIET_AGAIN
        self._quiet = 0 if why else self._quiet + 1
        return f"warning: busy from trial {record.order.trial} on: {why}; intervals will be wide" if begins else ""


class _Lines:
    """A line a block, one for each trial that failed, and one where a busy time begins."""

    def __init__(self, remaining: _RemainingTime, console: rich.console.Console) -> None:
        self._remaining = remaining
        self._disturbance = _DisturbanceWatch()
        self._console = console
        self._whole = not console.is_terminal
        """Whether a line is printed as one, however long: what reads a file of lines has no width."""

    def block_started(self, number: int, trials: int, open_paths: Sequence[str]) -> None:
        place = self._remaining.words(number, time.monotonic())
        self._console.print(f"{place}: {counted(trials, 'trial')} on {' '.join(open_paths)}", soft_wrap=self._whole)

    def trial_ended(self, record: TrialRecord) -> None:
        outcome = record.outcome
        if not record.valid:
            took = format_duration(outcome.elapsed_ns)
            what = f"trial {record.order.trial} failed ({_combination(record)}, {took})"
            self._console.print(f"{what}: {outcome.reason}", soft_wrap=self._whole)
            if outcome.hint:  # it may be a command of any program
                self._console.print(f"  hint: {outcome.hint}", soft_wrap=True)
        if busy := self._disturbance.words(record):
            self._console.print(busy, soft_wrap=self._whole)


class _Bar(_Lines):
    """A bar in place of the lines of blocks."""

    def __init__(self, remaining: _RemainingTime, progress: Progress) -> None:
        super().__init__(remaining, progress.console)
        self._progress = progress
        self._task = progress.add_task("starting", total=None, last="")

    def block_started(self, number: int, trials: int, open_paths: Sequence[str]) -> None:
        del open_paths
        text = self._remaining.words(number, time.monotonic())
        self._progress.reset(self._task, total=trials, description=text, last="")

    def trial_ended(self, record: TrialRecord) -> None:
        super().trial_ended(record)
        self._progress.update(self._task, advance=1, last=_combination(record))
