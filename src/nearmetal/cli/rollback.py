"""`nearmetal rollback [HOST]`: replay every journal that did not end well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nearmetal.errors import ExitCode, QuarantinedError
from nearmetal.knobs import places
from nearmetal.knobs.journal import far_machines, open_journals, read_story
from nearmetal.knobs.session import roll_back, scripts_of

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell


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
        own = [(path, "") for path in open_journals(folder)]
        if host != places.LOCAL:
            # Trials on several machines keep one journal, beside those of this machine.
            trials = journals or places.folder_of(places.LOCAL)
            own += [(path, host) for path in open_journals(trials, host)]
        if script:
            for path, machine in own:
                story = read_story(path)
                cells = (story.on(machine) if machine else story).cells
                click.echo("\n".join(scripts_of(cells.values()).values()))
            return ExitCode.OK
        # All of them: one that is stuck must not keep the others from being put back.
        stuck = [path for path, machine in own if not _put_back(shell, path, machine)]
        if not own:
            click.echo("there is nothing to put back", err=True)
    if host == places.LOCAL and (others := far_machines(folder)):
        click.echo(f"trials on far machines did not end: {', '.join(others)}", err=True)
        click.echo(f"hint: their watchdogs put values back; `nearmetal rollback {others[0]}` looks", err=True)
    return ExitCode.FAILED if stuck else ExitCode.OK


def _put_back(shell: Shell, path: Path, machine: str) -> bool:
    """Replay one journal and say what it did; tell whether nothing is stuck."""
    try:
        undone = roll_back(shell, path, machine)
    except QuarantinedError as error:
        click.echo(error.render(), err=True)
        click.echo(error.undo_script)
        return False
    for verb, names in (("put back", undone.put_back), ("left", undone.foreign), ("gone", undone.gone)):
        for name in names:
            click.echo(f"{verb}: {name}")
    return True
