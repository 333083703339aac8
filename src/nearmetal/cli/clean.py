"""`nearmetal clean`: what killed processes left in the temporary folder and in shared memory, and its removal."""

import tempfile
from collections.abc import Sequence

import click

from nearmetal.errors import ExitCode
from nearmetal.scratch import Folder, left_behind

_SAID = {
    "here": "in use by process {pid}",
    "gone": "left behind: process {pid} is gone",
    "elsewhere": "made by process {pid} of another boot or container",
    "unknown": "unknown owner",
}
_MOST_NAMED = 3


@click.command(name="clean")
@click.option("--remove", is_flag=True, help="Remove what dead processes left behind.")
@click.option("--all", "everything", is_flag=True, help="With --remove: also what belongs to unknown owners.")
def command(*, remove: bool, everything: bool) -> int:
    """Show what nearmetal and its programs left in the temporary folder (TMPDIR) and in /dev/shm, and who owns it.

    Each run and lab removes the leftovers of dead processes when it starts, so this is rarely needed. Nothing that a
    running process uses is ever removed. Mounts left by a killed build are listed, and unmounted before anything is
    removed. Images of the lab are kept elsewhere: see `nearmetal lab clean`.
    """
    if everything and not remove:
        raise click.UsageError("--all only goes with --remove")
    found = left_behind()
    removable = {"gone", *(["elsewhere", "unknown"] if everything else [])}
    unused = [one for one in found if one.owner == "nobody"]
    others = [one for one in found if one.owner != "nobody"]
    done = [_list_or_remove(one, remove=remove and one.owner in removable) for one in others]
    if unused:
        done.append(_list_or_remove_unused(unused, remove=everything))
    left = sum(one.owner == "gone" for one in found)
    if not found:
        click.echo(f"no files of nearmetal in {tempfile.gettempdir()}")
    elif left and not remove:
        click.echo(f"{left} left behind: `nearmetal clean --remove` removes {'it' if left == 1 else 'them'}")
    return ExitCode.OK if all(done) else ExitCode.FAILED


def _list_or_remove_unused(segments: Sequence[Folder], *, remove: bool) -> bool:
    """Print what MPI programs left in shared memory, and remove it if asked to; see `_list_or_remove`."""
    size, names = sum(one.size_bytes() for one in segments) / 1e6, [str(one.path) for one in segments]
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    for one in segments if remove else ():
        one.remove()
    left = remove and any(one.path.exists() for one in segments)
    done = "cannot remove " if left else "removed " if remove else ""
    click.echo(f"{done}{size:.1f} MB of shared memory of MPI programs that no process has open:")
    click.echo("\n".join(f"  {name}" for name in names[:_MOST_NAMED] + more))
    if not remove:
        click.echo("`nearmetal clean --remove --all` removes it")
    return not left


def _list_or_remove(one: Folder, *, remove: bool) -> bool:
    """Print what something is, and remove it if asked to; return False if it could not be removed."""
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
