"""`nearmetal report RUN`: the run as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nearmetal.cli.main import FilePath
from nearmetal.report import as_html
from nearmetal.results.paths import build_view
from nearmetal.store.disk import Disk
from nearmetal.store.rundir import RunDir

if TYPE_CHECKING:
    from nearmetal.results.waterfalls import Waterfall


_PATH = FilePath(path_type=Path)
"""Not from `cli.values`: a report loads few modules."""


@click.command(name="report")
@click.argument("run", type=_PATH)
@click.option("--out", type=_PATH, help="The file to write [default: RUN/report.html].")
@click.option("--allow-mixed", is_flag=True, help="Compare trials even if kernel, MPI, NIC or code differ.")
def command(run: Path, out: Path | None, *, allow_mixed: bool) -> None:
    """Write the HTML report of RUN, a run directory, and print the path of the file."""
    opened = RunDir.open(run)
    view = build_view(opened, allow_mixed=allow_mixed)
    page = as_html.render(view, _waterfalls(opened) if view.traced else ())
    target = out or run / "report.html"
    Disk().put_bytes(target, page.encode())
    click.echo(target)


def _waterfalls(run: RunDir) -> list[Waterfall]:
    from nearmetal.results.waterfalls import waterfalls  # noqa: PLC0415 (half of all modules, for traced runs alone)

    return waterfalls(run)
