"""`nearmetal compare RUN`: verdicts, levels and ratios of a finished or running run."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from nearmetal.report import as_csv, as_json, as_markdown, as_table
from nearmetal.report.view import build_view
from nearmetal.store.rundir import RunDir


@click.command(name="compare")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv", "markdown"]),
    default="table",
    help="What to print on stdout.",
)
@click.option("--allow-mixed", is_flag=True, help="Compare trials although kernel, MPI, NIC or code differ.")
def command(run: Path, form: str, *, allow_mixed: bool) -> None:
    """Compare the paths of RUN, a run directory."""
    view = build_view(RunDir.open(run), allow_mixed=allow_mixed)
    if form == "table":
        as_table.render(view, Console(highlight=False))
        return
    render = {"json": as_json.render, "csv": as_csv.render, "markdown": as_markdown.render}[form]
    click.echo(render(view).rstrip("\n"))
