"""From a run directory to what a history keeps of it."""

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path

from nearmetal.errors import BadInputError, command_line
from nearmetal.history.records import KeptRun, RunEntry
from nearmetal.reading import parse_json, read_text
from nearmetal.results.series import RunSeries, read_series
from nearmetal.stats.summary import HEADLINE, Metric
from nearmetal.store.record import TrialRecord, trial_name
from nearmetal.store.rundir import RunDir, RunInfo
from nearmetal.study.facts import scope_of


def collect(root: Path, *, allow_mixed: bool = False) -> KeptRun:
    """Read a run; raise BadInputError when it has no valid trial, or trials of mixed provenance."""
    run = RunDir.open(root)
    by_metric = {metric: read_series(run, metric, allow_mixed=allow_mixed) for metric in Metric}
    headline = by_metric[HEADLINE]
    if not headline.cells:
        raise BadInputError(f"{root} has no valid trial", hint=command_line("show", root))
    entry = RunEntry(
        run_id=_identity(run, headline),
        **asdict(run.info),
        root=str(root.absolute()),
        trials=len(headline.records),
        blocks=len({record.order.block for record in headline.records}),
    )
    cells = {metric: tuple(one for one in series.cells.values() if one.ns) for metric, series in by_metric.items()}
    return KeptRun(entry, _facts(headline.records), cells)


def _identity(run: RunDir, series: RunSeries) -> str:
    """Return the SHA-256 of what a run is and of its first trial: both are written once and never changed."""
    first = min(series.run.trials(), key=lambda record: (record.order.block, record.order.trial, record.attempt))
    record = run.root / "trials" / f"{trial_name(first.order.trial, first.attempt)}.json"
    raw = parse_json(read_text(run.root / run.MARKER))
    what = json.dumps({one.name: raw[one.name] for one in fields(RunInfo)}, sort_keys=True).encode()
    return hashlib.sha256(what + b"\0" + record.read_bytes()).hexdigest()


def _facts(records: tuple[TrialRecord, ...]) -> dict[str, str]:
    """Return the facts that decide what may be compared, over all trials; several values stand in alphabetic order.

    An interface's facts carry its path, because the same node and interface name stand for different devices on
    different paths.
    """
    found: dict[str, set[str]] = {}
    for record in records:
        for key, value in record.outcome.facts.items():
            name = _kept_name(key, record.order.path.label)
            if name:
                found.setdefault(name, set()).add(str(value))
    return {name: " | ".join(sorted(values)) for name, values in sorted(found.items())}


def _kept_name(key: str, path: str) -> str:
    scope = scope_of(key.removeprefix("guest."))  # of a guest are kept the same kinds of facts
    if scope == "interface":
        return f"{path}: {key}"
    return "" if scope == "free" else key
