"""`nearmetal clean`: what killed processes left in the temporary folder, and its removal."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from nearmetal.scratch import Folder, Owner, find

_SAID = {
    Owner.HERE: "in use by process {pid}",
    Owner.GONE: "left behind: process {pid} is gone",
    Owner.ELSEWHERE: "made by process {pid} of another boot or container",
    Owner.UNKNOWN: "its name does not say whose it is",
}


@click.command(name="clean")
@click.option("--remove", is_flag=True, help="Remove what processes that are gone left behind.")
@click.option("--all", "everything", is_flag=True, help="Also what nobody here can be asked about; needs --remove.")
def command(*, remove: bool, everything: bool) -> None:
    """Show the folders that nearmetal made in the temporary folder (TMPDIR), and whose they are.

    Each run and lab removes what dead ones left when it starts, so this is for looking, and for the last one. What a
    living process uses is never removed. Images of the lab are another matter: `nearmetal lab clean`.
    """
    if everything and not remove:
        raise click.UsageError("--all says what to remove, so it needs --remove")
    found = find(Path(tempfile.gettempdir()))
    removable = {Owner.GONE, Owner.ELSEWHERE, Owner.UNKNOWN} if everything else {Owner.GONE}
    for one in found:
        size = f"{one.size_bytes() / 1e6:.1f} MB"
        gone = remove and one.owner in removable and _removed(one)
        click.echo(f"{'removed ' if gone else ''}{one.path}: {size}, {_SAID[one.owner].format(pid=one.pid)}")
    left = sum(one.owner is Owner.GONE for one in found)
    if not found:
        click.echo(f"nothing of nearmetal is in {tempfile.gettempdir()}")
    elif left and not remove:
        click.echo(f"{left} left behind: `nearmetal clean --remove` removes {'it' if left == 1 else 'them'}")


def _removed(one: Folder) -> bool:
    one.remove()
    return not one.path.exists()
