"""`nearmetal unarchive FILE DIR`: the run that an archive holds."""

from __future__ import annotations

from pathlib import Path

import click

from nearmetal.store.archive import unarchive


@click.command(name="unarchive")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("run", type=click.Path(path_type=Path), metavar="DIR")
def command(file: Path, run: Path) -> None:
    """Make a new run directory DIR of the archive FILE.

    An archive that is damaged, or holds anything that no run holds, is refused, and nothing is left of it.
    """
    click.echo(f"{run}: {unarchive(file, run)} files, all as they were recorded")
