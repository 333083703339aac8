"""The runs of a directory as a history: each is read once, and again when its files change."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from nearmetal.errors import NearmetalError
from nearmetal.history.collect import collect
from nearmetal.history.records import History, KeptRun
from nearmetal.history.view import build_history
from nearmetal.stats.summary import Metric
from nearmetal.units import counted

MAX_HISTORY = 100
"""How many of the latest runs a page holds; `nearmetal history` keeps any number in a file."""
_MAX_INTERVALS = 600
"""More levels than these have no intervals, but the latest of each series: thousands of bootstraps take seconds."""


def over_time(
    root: str, runs: Sequence[tuple[Path, str]], check: Callable[[Path], None], metric: Metric, path: str
) -> History:
    """Return the history of runs, given by place and state, of one path or of all ('').

    `check` raises for a run that is too large. Without any such figure the history has no series.
    """
    found = [(place, _collected(place, known, check)) for place, known in runs[:MAX_HISTORY]]
    kept = [one for _, one in found if not isinstance(one, str)]
    left_out = [f"{place.name}: {one}" for place, one in found if isinstance(one, str)]
    if len(runs) > MAX_HISTORY:
        left_out.append(f"{counted(len(runs) - MAX_HISTORY, 'older run')}: `nearmetal history` keeps any number")
    few = sum(len(one.cells[metric]) for one in kept) <= _MAX_INTERVALS
    made = build_history(root, _by_date(kept), metric, path=path, every_interval=few)
    return replace(made, left_out=(*left_out, *made.left_out))


def _by_date(kept: Sequence[KeptRun]) -> list[KeptRun]:
    """Return the runs by date, then by identity; of copies of one run the one with the most trials."""
    fullest = {one.entry.run_id: one for one in sorted(kept, key=lambda one: one.entry.trials)}
    return sorted(fullest.values(), key=lambda one: (one.entry.created_utc, one.entry.run_id))


@lru_cache(maxsize=2 * MAX_HISTORY)
def _collected(place: Path, _: str, check: Callable[[Path], None]) -> KeptRun | str:
    """Return what a run gave while its files are as they were, or why it gives nothing."""
    try:
        check(place)
        return collect(place)
    except NearmetalError as error:
        return error.message
    except OSError as error:
        return f"a file is missing: {error.strerror}"
