"""`nearmetal clean`: what killed processes left in the temporary folder and in shared memory, and its removal."""

from __future__ import annotations

import tempfile

import click

from nearmetal.errors import ExitCode
from nearmetal.scratch import Folder, Owner, left_behind

_SAID = {
    Owner.HERE: "in use by process {pid}",
    Owner.GONE: "left behind: process {pid} is gone",
    Owner.ELSEWHERE: "made by process {pid} of another boot or container",
    Owner.UNKNOWN: "its name does not say whose it is",
    Owner.NOBODY: "shared memory of an MPI program, which no process has open",
}


@click.command(name="clean")
@click.option("--remove", is_flag=True, help="Remove what processes that are gone left behind.")
@click.option("--all", "everything", is_flag=True, help="Also what nobody here can be asked about; needs --remove.")
def command(*, remove: bool, everything: bool) -> int:
    """Show what nearmetal and its programs made in the temporary folder (TMPDIR) and in /dev/shm, and whose it is.

    Each run and lab removes what dead ones left when it starts, so this is for looking, and for the last one. What a
    living process uses is never removed. Where a killed build left something mounted, that is named, and unmounted
    before anything is removed. Images of the lab are another matter: `nearmetal lab clean`.
    """
    if everything and not remove:
        raise click.UsageError("--all says what to remove, so it needs --remove")
    found = left_behind()
    removable = {Owner.GONE, *([Owner.ELSEWHERE, Owner.UNKNOWN, Owner.NOBODY] if everything else [])}
    done = [_deal_with(one, remove=remove and one.owner in removable) for one in found]
    left = sum(one.owner is Owner.GONE for one in found)
    if not found:
        click.echo(f"nothing of nearmetal is in {tempfile.gettempdir()}")
    elif left and not remove:
        click.echo(f"{left} left behind: `nearmetal clean --remove` removes {'it' if left == 1 else 'them'}")
    return ExitCode.OK if all(done) else ExitCode.FAILED


def _deal_with(one: Folder, *, remove: bool) -> bool:
    """Say what something is, and remove it where that is asked for; tell whether that could be done."""
    size, mounted = f"{one.size_bytes() / 1e6:.1f} MB", one.mounts()
    done = ""
    if remove:
        mounted = one.unmount()
        one.remove()
        done = "cannot remove " if one.path.exists() else "removed "
    click.echo(f"{done}{one.path}: {size}, {_SAID[one.owner].format(pid=one.pid)}")
    for point in mounted:
        click.echo(f"  {'busy, still ' if remove else ''}mounted in it: {point}")
    return not done.startswith("cannot")
