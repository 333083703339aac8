"""`nearmetal rollback [HOST]`: replay every journal that did not end well."""

from __future__ import annotations

from pathlib import Path

import click

from nearmetal.errors import ExitCode, QuarantinedError
from nearmetal.knobs import places
from nearmetal.knobs.journal import open_journals, read_story
from nearmetal.knobs.session import roll_back, scripts_of


@click.command(name="rollback")
@click.argument("host", default=places.LOCAL)
@click.option("--journals", type=click.Path(path_type=Path), help="Where the journals are, if not in the usual place.")
@click.option("--script", is_flag=True, help="Print the undo script instead of running it.")
def command(host: str, journals: Path | None, *, script: bool) -> int:
    """Put every knob of HOST back that an interrupted session has left changed.

    Values that somebody else has changed since are left as they are, and named. Doing it twice does nothing more.
    """
    folder = journals or places.folder_of(host)
    with places.open_shell(host) as shell, places.host_locks(shell, host, folder):
        paths = open_journals(folder)
        if script:
            for path in paths:
                click.echo("\n".join(scripts_of(read_story(path).cells.values()).values()))
            return ExitCode.OK
        stuck = False
        for path in paths:
            try:
                undone = roll_back(shell, path)
            except QuarantinedError as error:
                click.echo(error.render(), err=True)
                click.echo(error.undo_script)
                stuck = True
                continue
            for verb, names in (("put back", undone.put_back), ("left", undone.foreign), ("gone", undone.gone)):
                for name in names:
                    click.echo(f"{verb}: {name}")
        if not paths:
            click.echo("there is nothing to put back", err=True)
    return ExitCode.FAILED if stuck else ExitCode.OK
