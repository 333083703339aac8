"""`nearmetal unarchive FILE DIR`: the run that an archive holds."""

from pathlib import Path

import click

from nearmetal.cli.values import PATH
from nearmetal.store.archive import unarchive


@click.command(name="unarchive")
@click.argument("file", type=PATH)
@click.argument("run", type=PATH, metavar="DIR")
def command(file: Path, run: Path) -> None:
    """Unpack the archive FILE into a new run directory DIR.

    An archive that is damaged, or contains anything but a run, is refused and leaves nothing behind.
    """
    click.echo(f"{run}: {unarchive(file, run)} files, all match their checksums")
