"""`nearmetal compare RUN`: verdicts, levels and ratios of a finished or running run."""

from pathlib import Path

import click

from nearmetal.cli.values import PATH, format_option, single_option
from nearmetal.errors import BadInputError, NearmetalError, command_line
from nearmetal.gate import many
from nearmetal.report import as_csv, as_json, as_latex, as_markdown, as_table, published, words
from nearmetal.report.published import tables
from nearmetal.report.terminal import Console
from nearmetal.results.between import judge_runs
from nearmetal.results.paths import build_view
from nearmetal.results.published import shape
from nearmetal.results.published_tables import Published, load, published_named
from nearmetal.results.records import View
from nearmetal.store.rundir import RunDir

_LINES = 40
_RENDER = {"json": as_json.render, "csv": as_csv.render, "markdown": as_markdown.render, "latex": as_latex.render}


@click.command(name="compare")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@single_option("--against", "base", type=PATH, help="Compare any number of runs with this one, path by path.")
@format_option("table", "json", "csv", "markdown", "latex")
@click.option("--all", "everything", is_flag=True, help="Print every table: levels, intervals, counters, facts.")
@click.option(
    "--published", default="", help="Print our figures next to a published table, and whether the trends agree."
)
@click.option(
    "--map",
    "named",
    multiple=True,
    metavar="COLUMN=PATH[/SETTING]",
    help="With --published: the path that corresponds to this column.",
)
@click.option("--allow-mixed", is_flag=True, help="Compare trials even if kernel, MPI, NIC or code differ.")
def command(
    runs: tuple[Path, ...],
    base: Path | None,
    form: str,
    published: str,
    named: tuple[str, ...],
    *,
    everything: bool,
    allow_mixed: bool,
) -> None:
    """Compare the paths of RUN, a run directory: the answer first, then the ratios behind it.

    The table has at most 40 lines; --all and the other formats add levels, intervals, counters and facts. With
    --against, runs are compared with another run instead, the worst first.
    """
    if base is not None:
        if form != "table" or published or everything or named:
            text = "--against prints one table: it cannot be combined with --format, --all, --published or --map"
            raise BadInputError(
                text, hint=f"one run in full: {command_line('gate', runs[0], '--against', base)} --format json"
            )
        _with_base(runs, base, allow_mixed=allow_mixed)
        return
    _refuse_idle(form, published, named, everything=everything)
    if len(runs) > 1:
        raise BadInputError(f"{len(runs)} runs are given, but none to compare them with", hint="add --against RUN")
    run = runs[0]
    table = published_named(published) if published else None
    view = build_view(RunDir.open(run), allow_mixed=allow_mixed, distributions=False)
    if table is not None:
        _beside(view, table, named, form)
        return
    if form == "table":
        console = Console()
        if everything:
            as_table.render(view, console)
            return
        as_table.answer(view, console, lines=_LINES - 1, run=str(run))
        click.echo(f"levels, intervals, counters, facts: {command_line('compare', run, '--all')}")
        return
    if form in {"csv", "latex"}:  # the others say it themselves
        for line in (*words.warnings(view), *words.lost(view.failures, str(run))):
            click.echo(line, err=True)
    click.echo(_RENDER[form](view).rstrip("\n"))


def _refuse_idle(form: str, published: str, named: tuple[str, ...], *, everything: bool) -> None:
    """Raise BadInputError for an option that would have no effect."""
    if named and not published:
        raise BadInputError("--map has no effect without --published", hint="name the table: --published TABLE")
    if everything and (form != "table" or published):
        other = "--published" if published else f"--format {form}, which has every table"
        raise BadInputError(f"--all has no effect with {other}", hint="leave one of the two out")


def _with_base(runs: tuple[Path, ...], base: Path, *, allow_mixed: bool) -> None:
    """Print runs against one base; one that cannot be compared is named on stderr and does not hide the others."""
    against, gates = RunDir.open(base).held(), []
    for run in dict.fromkeys(runs):
        if run.resolve() == base.resolve():
            continue
        try:
            gates.append(judge_runs(RunDir.open(run).held(), against, allow_mixed=allow_mixed))
        except NearmetalError as error:
            click.echo(f"left out: {run}: {error.message}", err=True)
    if not gates:
        raise BadInputError(f"no run can be compared with {base}", hint=f"name other runs of the same study as {base}")
    console, gates = Console(), many.ranked(gates)
    for standing, which in many.standings(gates):
        console.print(f"{standing}: {which}")
    for line in many.warnings(gates):
        console.print(line, style="yellow")
    for label in dict.fromkeys(side.host_label for gate in gates for side in (gate.run, gate.base)):
        console.print(f"Figures from {label}.")
    as_table.draw(console, [many.table(gates)])


def _beside(view: View, table: Published, named: tuple[str, ...], form: str) -> None:
    """Print our figures next to a published table."""
    chosen: dict[str, tuple[str, str]] = {}
    for word in named:
        column, given, target = word.partition("=")
        if not given or column not in [one.name for one in table.columns]:
            known = ", ".join(one.name for one in table.columns)
            raise BadInputError(f"--map {word!r} names no column of {table.name}", hint=f"its columns: {known}")
        if column in chosen:
            raise BadInputError(f"--map names the column {column} twice", hint="leave one of the two out")
        path, _, setting = target.partition("/")
        chosen[column] = (path, setting)
    for line in words.warnings(view):
        click.echo(line, err=True)
    found = shape(view, load(table), chosen)
    if form == "table":
        console = Console()
        console.print(f"Ours: {view.host_label}.")
        as_table.draw(console, tables(found))
    elif form == "markdown":
        click.echo("\n\n".join([f"Ours: {view.host_label}.", *filter(None, map(as_markdown.table, tables(found)))]))
    elif form == "latex":
        drawn = (as_latex.table(one, f"Ours: {view.host_label}") for one in tables(found))
        click.echo("\n\n".join(filter(None, drawn)))
    else:
        render = {"json": published.as_json, "csv": published.as_csv}[form]
        click.echo(render(found).rstrip("\n"))
