"""`nearmetal show RUN`: what is in a run, down to a trial's launch line and its raw samples."""

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import click
import pyarrow.csv

from nearmetal.cli.progress import lacks_of
from nearmetal.cli.values import PATH
from nearmetal.errors import BadInputError, command_line
from nearmetal.report import as_json, as_osu, words
from nearmetal.report.as_table import say_unfinished
from nearmetal.report.schema import SummaryJson
from nearmetal.report.terminal import Console, plain_table
from nearmetal.results.evidence import cautions_of_levels
from nearmetal.results.osu import rank_means
from nearmetal.results.paths import failed
from nearmetal.results.series import cell_id, sized, summary_of, typical_ns
from nearmetal.results.shown import DisplayScale, shown_for
from nearmetal.stats.summary import Metric
from nearmetal.store.query import disagreements, valid
from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.store.samples import StoredCell
from nearmetal.store.searchdir import open_either
from nearmetal.typed import adapter
from nearmetal.units import counted, format_duration, format_size

_COLUMNS = ("trial", "block", "path", "workload", "setting", "took", "status")


@click.command(name="show")
@click.argument("run", type=PATH)
@click.option("--trial", type=int, help="Show one trial: launch line, facts, counters, and why it failed.")
@click.option("--as", "form", type=click.Choice(["osu"]), help="Print all trials in the format of another benchmark.")
@click.option("--format", "written", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option("--samples", is_flag=True, help="With --trial: print its raw samples as CSV.")
def command(run: Path, trial: int | None, form: str | None, written: str, *, samples: bool) -> None:
    """Show the trials of RUN, or one of them."""
    if form is not None and (trial is not None or samples or written == "json"):
        raise BadInputError("--as shows all trials of a run", hint=command_line("show", run, "--as", form))
    if samples and (trial is None or written == "json"):
        text = "--samples needs a trial, and is CSV"
        raise BadInputError(text, hint=command_line("show", run, "--trial", trial or 0, "--samples"))
    opened = open_either(run)
    if form is not None:
        for line in _doubts(opened, opened.trials()):
            click.echo(line, err=True)
        click.echo(as_osu.render(opened).rstrip("\n"))
    elif samples:
        _samples(opened, _attempts(opened, trial)[-1])
    elif written == "json":
        click.echo(json.dumps(_for_programs(opened, trial), indent=1, allow_nan=False))
    elif trial is None:
        _list(opened, opened.trials())
    else:
        for record in _attempts(opened, trial):
            _one(opened, record)


def _attempts(run: RunDir, trial: int | None) -> list[TrialRecord]:
    """Return a trial's attempts; raise BadInputError where it has none."""
    records = run.trials()
    chosen = [record for record in records if record.order.trial == trial]
    if not chosen:
        known = f"0 to {max(r.order.trial for r in records)}" if records else "none yet"
        raise BadInputError(f"{run.root} has no finished trial {trial}", hint=f"its trials: {known}")
    return chosen


def _list(run: RunDir, records: list[TrialRecord]) -> None:
    console = Console()
    console.print(f"{run.info.study_name} on {run.info.host_kind}: {run.info.host_label}")
    say_unfinished(lacks_of(run, records), console)
    table = plain_table(*_COLUMNS, right=("trial", "block", "took"))
    for record in records:
        order = record.order
        status = "valid" if record.valid else f"failed: {record.outcome.reason.splitlines()[0]}"
        again = f" (attempt {record.attempt})" if record.attempt > 1 else ""
        asked = (f"{order.trial}", f"{order.block + 1}", order.path.label, order.workload.label, order.setting)
        took_ns = record.outcome.elapsed_ns  # 0 where the launch failed, or files do not say
        table.add_row(*asked, format_duration(took_ns) if took_ns else words.NOTHING, status + again)
    console.print(table)
    if run.of_fabric:
        click.echo(
            f"this run measured all pairs of a fabric in one launch; results: {command_line('fabric', run.root)}"
        )


def _doubts(run: RunDir, records: list[TrialRecord]) -> list[str]:
    """Return why figures over all trials are not to be relied on, for an output that has no place for it."""
    good = valid(records)
    return [
        *words.unfinished(lacks_of(run, records)),
        *(f"MIXED PROVENANCE: {one}" for one in disagreements(good)),
        *(f"CAUTION: {one}" for one in cautions_of_levels(good, run.info.host_kind)),
        *words.lost(failed(records), str(run.root)),
    ]


def _one(run: RunDir, record: TrialRecord) -> None:
    outcome = record.outcome
    started, block = words.moment(record.started_utc, seconds=True), record.order.block + 1
    click.echo(f"trial {record.order.trial} of block {block}, attempt {record.attempt}, {started}: {outcome.status}")
    if outcome.reason:
        click.echo(f"reason: {outcome.reason}" + (f"\nhint: {outcome.hint}" if outcome.hint else ""))
    click.echo(f"launch: {shlex.join(outcome.launch_argv)}")
    typical = typical_ns(run, run.trials()) if record.cells else {}
    for cell in record.cells:
        of = typical.get((record.order.workload.label, cell.operation), 0.0)
        shown = shown_for(record.order.workload, cell.operation, cell.message_bytes, of)
        click.echo(_cell(run, record, cell, shown))
    for title, rows in (("order", json.loads(record.order.to_json())), ("facts", outcome.facts)):
        click.echo(f"{title}:")
        for key, value in rows.items():
            click.echo(f"  {key} = {json.dumps(value)}")
    click.echo("counted during the launch:")
    for name, count in sorted(outcome.counters.items()):
        click.echo(f"  {name} = {count}")
    if outcome.said:
        click.echo(f"said:\n{outcome.said}")


def _for_programs(run: RunDir, trial: int | None) -> dict[str, object]:
    """Return the trials of a run, or all of one but its samples: docs/reference/report-json.md."""
    records = run.trials()
    whole = trial is not None
    trials = [_whole(run, one) for one in _attempts(run, trial)] if whole else [_brief(one) for one in records]
    lacks = lacks_of(run, records)
    return {
        "show_format": 1,
        "study": run.info.study_name,
        "host": {"kind": run.info.host_kind, "label": run.info.host_label},
        "unfinished": asdict(lacks) if lacks else None,
        "trials": trials,
    }


def _brief(record: TrialRecord) -> dict[str, object]:
    return {**asdict(as_json.attempt(record)), "hint": record.outcome.hint}


def _whole(run: RunDir, record: TrialRecord) -> dict[str, object]:
    return {
        **_brief(record),
        "cells": [_shown(run, record, cell) for cell in record.cells],
        "order": json.loads(record.order.to_json()),
        "outcome": json.loads(record.outcome.to_json()),
    }


def _shown(run: RunDir, record: TrialRecord, cell: StoredCell) -> dict[str, object]:
    """Return a launch's part of a cell; `n` alone of its summary where no sample is good."""
    where = {"operation": cell.operation, "message_bytes": cell.message_bytes, "warmup": cell.warmup}
    summary = summary_of(run, record, cell)
    if summary is None:
        return {**where, "n": 0}
    return {**adapter(SummaryJson).dump_python(as_json.summary(summary), mode="json"), **where}


def _cell(run: RunDir, record: TrialRecord, cell: StoredCell, shown: DisplayScale) -> str:
    """Return a cell in one line: the figures that `compare` compares, refused where it refuses them."""
    has_size = cell.message_bytes or cell_id(record, cell).what in sized(cell_id(record, one) for one in record.cells)
    start = f"cell: {cell.operation}" + (f" {format_size(cell.message_bytes)}" if has_size else "")
    summary = summary_of(run, record, cell)
    if summary is None:
        return f"{start}: no valid iteration, {cell.warmup} warm-up"
    margin = run.study().margin
    found = {words.metric(one, shown): summary.figure(one, margin) for one in Metric}
    figures = ", ".join(
        f"no {name} ({why})" if ns is None else f"{name} {words.figure(shown.value(ns))} {shown.unit}"
        for name, (ns, why) in found.items()
        if ns is not None or why
    )
    if len(cell.value_ranks) > 1:  # the value of an iteration is its slowest rank's; other suites print the mean
        mean_ns = fmean(rank_means(run, record, cell))
        figures += f"; mean over ranks, untrimmed: {words.figure(shown.value(mean_ns))} {shown.unit}"
    return f"{start}: {counted(summary.n, 'value')}, {cell.warmup} warm-up; {shown.name}: {figures}"


def _samples(run: RunDir, record: TrialRecord) -> None:
    if not record.cells:
        raise BadInputError(f"trial {record.order.trial} has no samples: it {record.outcome.status}")
    pyarrow.csv.write_csv(run.samples(record), sys.stdout.buffer)
