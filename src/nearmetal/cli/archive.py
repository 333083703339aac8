"""`nearmetal archive DIR FILE`: a run as one file, for an artefact or a colleague."""

from pathlib import Path

import click

from nearmetal.cli.values import PATH
from nearmetal.store.archive import archive


@click.command(name="archive")
@click.argument("run", type=PATH, metavar="DIR")
@click.argument("file", type=PATH)
def command(run: Path, file: Path) -> None:
    """Pack the run or search DIR into one new FILE, with the SHA-256 of every file in it.

    DIR is verified first. The same run always gives the same bytes. `nearmetal unarchive` unpacks it.
    """
    count = archive(run, file)
    click.echo(f"{file}: {count} files, {file.stat().st_size / 1e6:.1f} MB")
