"""`nearmetal history`: many runs in one file, and when their figures changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from nearmetal.cli.values import PATH, format_option
from nearmetal.errors import BadInputError, command_line
from nearmetal.history import as_html, as_json, words
from nearmetal.history.collect import collect
from nearmetal.history.database import Database
from nearmetal.history.view import build_history
from nearmetal.report import words as report_words
from nearmetal.report.terminal import Console
from nearmetal.results.evidence import cautions_of_levels
from nearmetal.results.paths import failed
from nearmetal.results.series import CellId
from nearmetal.results.stopping import unfinished
from nearmetal.stats.summary import Metric
from nearmetal.store.disk import Disk
from nearmetal.store.query import valid
from nearmetal.store.rundir import RunDir


@click.group(name="history")
def command() -> None:
    """Track many runs in one file, and see when their results changed."""


@command.command(name="add")
@click.argument("history", type=PATH)
@click.argument("runs", type=PATH, nargs=-1, required=True)
@click.option("--allow-mixed", is_flag=True, help="Accept a run whose own trials differ in kernel, MPI, NIC or code.")
def add(history: Path, runs: tuple[Path, ...], *, allow_mixed: bool) -> None:
    """Add RUNS (run directories) to the file HISTORY.

    The file is created if it does not exist. A run that is already in it is skipped, unless it has more trials or other
    figures now; then it is read again.
    """
    for root in runs:
        kept = collect(root, allow_mixed=allow_mixed)
        with Database(history, write=True) as database:
            click.echo(f"{database.add(kept)}: {root}")
        run = RunDir.open(root)
        records = run.trials()
        if (lacks := unfinished(run, records)) and lacks.premature:
            for line in report_words.unfinished(lacks):
                click.echo(line, err=True)
        for line in cautions_of_levels(valid(records), run.info.host_kind):
            click.echo(f"CAUTION: {line}", err=True)
        for line in report_words.lost(failed(records), str(root)):
            click.echo(line, err=True)


@command.command(name="show")
@click.argument("history", type=PATH)
@click.option(
    "--metric",
    type=click.Choice([str(one) for one in Metric]),
    default="mean",
    show_default=True,
    help="The figure of each launch to show.",
)
@click.option("--path", default="", help="Only this path.")
@click.option("--workload", default="", help="Only this workload.")
@format_option("text", "json")
@click.option("--out", type=PATH, help="Also write it as an HTML page.")
def show(history: Path, *, metric: str, path: str, workload: str, form: str, out: Path | None) -> None:
    """Show each cell of HISTORY over the runs, and where it changed."""
    with Database(history, write=False) as database:
        kept = database.kept()
    whole = form == "json" or out is not None
    found = build_history(str(history), kept, Metric(metric), path=path, workload=workload, every_interval=whole)
    if not found.series:
        known = [cell.cell for one in kept for cell in one.cells[Metric(metric)]]
        others = [f"--metric {other}" for other in Metric if any(one.cells[other] for one in kept)]
        if others and not known:
            raise BadInputError(f"no launch in {history} supports a {metric}", hint=f"it holds {', '.join(others)}")
        raise _nothing(f"{history} holds no {metric}", history, known, {"path": path, "workload": workload})
    if out is not None:
        Disk().put_bytes(out, as_html.render(found).encode())
    if form == "json":
        click.echo(as_json.render(found))
    else:
        words.as_text(found, Console())
    if out is not None:
        click.echo(f"page: {out}", err=True)


def _nothing(text: str, history: Path, known: Sequence[CellId], wanted: Mapping[str, str]) -> BadInputError:
    """Return the error for a history of which nothing is shown: it has no such figure, or of other names."""
    if not known:
        return BadInputError(text, hint=f"{command_line('history', 'add', history)} RUN")
    given = " and ".join(f"{what} {name!r}" for what, name in wanted.items() if name)
    has = "; ".join(f"its {what}s: {', '.join(dict.fromkeys(getattr(one, what) for one in known))}" for what in wanted)
    return BadInputError(f"{text} of {given}", hint=has)
