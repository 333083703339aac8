"""`nearmetal plot RUN WHAT -o FILE`: one chart of a run for a paper, and its data."""

from dataclasses import replace
from pathlib import Path
from shlex import quote

import click

from nearmetal.cli.values import PATH
from nearmetal.errors import BadInputError
from nearmetal.report import figure
from nearmetal.report.words import warnings
from nearmetal.results.paths import build_view, cautions_of
from nearmetal.results.records import GroupId
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir

_SUFFIXES = (".svg", ".pdf", ".png", ".tex")


@click.command(name="plot")
@click.argument("run", type=PATH)
@click.argument("what", type=click.Choice(figure.KINDS), metavar="WHAT")
@click.option("-o", "--out", type=PATH, required=True, help="FILE.svg, .pdf, .png, .tex (pgfplots).")
@click.option("--workload", default="", help="The workload, if the run has several.")
@click.option("--operation", default="", help="The operation, if the workload has several.")
@click.option("--setting", default="", help="The setting, if the run has several.")
@click.option("--wide", is_flag=True, help="Full page width of a two-column paper, 7 in instead of 3.5 in.")
@click.option("--allow-mixed", is_flag=True, help="Compare trials even if kernel, MPI, NIC or code differ.")
def command(
    run: Path, what: str, *, out: Path, workload: str, operation: str, setting: str, wide: bool, allow_mixed: bool
) -> None:
    """Draw one chart of RUN by message size into a file, and write its data as CSV next to it.

    WHAT is `cost` (relative to the baseline; above 1 is worse) or a figure of each path: `mean`, `median` or `p99`.
    All have 95 % intervals.
    """
    if out.suffix not in _SUFFIXES:
        instead = out / "chart.svg" if out.is_dir() else out.with_suffix(".svg")
        raise BadInputError(f"{out} is none of {', '.join(_SUFFIXES)}", hint=f"-o {quote(str(instead))}")
    opened = RunDir.open(run)
    view = build_view(opened, allow_mixed=allow_mixed, distributions=False)
    chosen = figure.choose(view, what, GroupId(workload, operation, setting))
    view = replace(view, cautions=cautions_of(opened, view, chosen.group))
    rows = figure.data(chosen)
    width_in = figure.PAGE_IN if wide else figure.COLUMN_IN
    text = figure.as_tex(chosen, rows, width_in) if out.suffix == ".tex" else figure.as_svg(chosen, width_in)
    drawn = figure.convert(text, out.suffix) if out.suffix in {".pdf", ".png"} else text.encode()
    table = out.with_suffix(".csv")
    disk = Disk()
    disk.put_bytes(table, figure.as_csv(rows).encode())
    disk.put_bytes(out, drawn)
    click.echo(out)
    click.echo(
        "\n".join(
            [f"data: {table}", f"figures from {view.host_label}", *figure.left_out(chosen, rows), *warnings(view)]
        ),
        err=True,
    )
