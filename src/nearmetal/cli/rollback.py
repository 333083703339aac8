"""`nearmetal rollback [HOST]`: replay every journal that did not end well, the newest first."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from functools import partial
from pathlib import Path

import click

from nearmetal.cli.reach import open_as_before, open_shell
from nearmetal.cli.values import PATH, read_option, refuse_beside
from nearmetal.errors import BadInputError, ExitCode, ForeignFileError, NearmetalError, QuarantinedError
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell, is_far
from nearmetal.knobs import places, registry
from nearmetal.knobs.folder import age, expire, forget_scripts, open_journals, set_aside, survey, undo_scripts
from nearmetal.knobs.rollback import UnfinishedError, forget, roll_back
from nearmetal.knobs.trust import trusted_bytes
from nearmetal.knobs.undo import NAMED, RollbackResult


@click.command(name="rollback")
@click.argument("host", default=places.LOCAL)
@click.option("--journals", type=PATH, help="Where the journals are, if not in the default place.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the kind of host that HOST was reached by [default: ssh].",
)
@click.option("--script", is_flag=True, help="Print the undo scripts instead of running them.")
@click.option("--force", is_flag=True, help="Also replay journals that do not say which machine they belong to.")
@click.option(
    "--forget",
    "forgotten",
    type=PATH,
    help="Discard a JOURNAL whose machine or namespace no longer exists; nothing is restored.",
)
def command(
    host: str, journals: Path | None, *, options: Sequence[str], script: bool, force: bool, forgotten: Path | None
) -> int:
    """Restore every knob of HOST that an interrupted session left changed.

    HOST is this machine, `[USER@]HOST[:PORT]`, or a study's name for a far machine on which a trial did not end: it
    is reached as the trial reached it. Starts with the newest session. Exits with 0 only if every value was read back
    as it was before. Values that another program has changed since, that belong to another machine, boot or namespace,
    or that cannot be read are listed. Journals of finished sessions are kept for 30 days.
    """
    _refuse_idle(host, options, script=script, forgotten=forgotten)
    folder = journals or places.folder_of(host)
    if journals and not journals.is_dir():
        raise BadInputError(f"there is no directory of journals {str(journals)!r}", hint="leave --journals out")
    if forgotten or script:  # nothing is done on the host, which may not exist any more
        with open_shell(places.LOCAL) as here, places.host_locks(here, host, folder, unlocked=_warn_unlocked):
            return _forget(host, folder, forgotten) if forgotten else _print_scripts(host, folder)
    home = folder if journals else places.folder_of(places.LOCAL)
    given = dict(map(read_option, options))
    ways = [] if host == places.LOCAL else survey(home).ways_to(host)
    opened = [partial(open_as_before, way, given) for way in ways] or [partial(open_shell, host, given)]
    worst = max(_put_back_there(one, host, folder, home, others=one is not opened[-1], force=force) for one in opened)
    if host == places.LOCAL and (others := places.open_elsewhere(folder)):
        click.echo(f"sessions on far machines did not end: {', '.join(others)}", err=True)
        command_of_first = next(iter(others.values()))
        click.echo(f"hint: their watchdogs restore the settings; check with: {command_of_first}", err=True)
    return worst


def _refuse_idle(host: str, options: Sequence[str], *, script: bool, forgotten: Path | None) -> None:
    """Raise BadInputError for an option that would have no effect."""
    if forgotten:
        refuse_beside("--forget", "forgotten", "journals")
    elif script:
        refuse_beside("--script", "script", "journals")
    elif options and host == places.LOCAL:
        raise BadInputError("--option has no effect on this machine", hint="name the HOST that it is for")


def _put_back_there(
    opened: Callable[[], AbstractContextManager[Shell]],
    host: str,
    folder: Path,
    home: Path,
    *,
    others: bool,
    force: bool,
) -> int:
    """Put back what is left changed on one of the machines that have the name; return the exit code.

    Where `others` follow, what is not this machine's is theirs to judge, and an error does not keep them from that.
    """
    try:
        with opened() as shell, places.host_locks(shell, host, folder, unlocked=_warn_unlocked) as held:
            left = _left_changed(shell, host, folder, home, held, force=force)
    except NearmetalError as error:
        if not others:
            raise
        click.echo(error.render(), err=True)
        return error.exit_code
    return ExitCode.FAILED if left > (_Left.ELSEWHERE if others else _Left.NOTHING) else ExitCode.OK


def _warn_unlocked(why: str) -> None:
    click.echo(f"warning: not locked, {why.partition(';')[0]}", err=True)


def _forget(host: str, folder: Path, forgotten: Path) -> int:
    """End a journal of the host's, or what the machine knows of one that is gone, and tell what is given up."""
    folders = places.folders_of_the_host(host, folder)
    path = next((one / forgotten for one in folders if (one / forgotten).is_file()), folder / forgotten)
    lost = [one for one, _ in places.lost_sessions() if host == places.LOCAL and one.journal.name == forgotten.name]
    if path.parent.resolve() not in {one.resolve() for one in folders} and not lost:
        raise BadInputError(f"{forgotten} is not one of the journals in {folder}")
    if not path.is_file() and not lost:
        waiting = ", ".join(journal.name for one in folders for journal in open_journals(one)) or "none is open"
        raise BadInputError(f"there is no journal {forgotten} in {folder}", hint=f"open journals: {waiting}")
    for name in forget(path) if not lost else [name for one in lost for name in one.changed]:
        click.echo(f"given up: {name}")
    for one in lost:
        registry.forget(one.journal)
    return ExitCode.OK


def put_everything_back(
    shell: Shell, host: str, folder: Path, home: Path, held: Sequence[Path], *, force: bool = False
) -> bool:
    """Replay the journals of a host and report each value; return whether all are what they were.

    See `places.interrupted_on`; the caller holds the locks of `held`.
    """
    return _left_changed(shell, host, folder, home, held, force=force) == _Left.NOTHING


class _Left(IntEnum):
    """How far a host's values are from what they were; ELSEWHERE have not been looked at, because others' they are."""

    NOTHING = 0
    ELSEWHERE = 1
    SOMETHING = 2


def _left_changed(
    shell: Shell, host: str, folder: Path, home: Path, held: Sequence[Path], *, force: bool = False
) -> _Left:
    expire(folder)
    with places.interrupted_on(shell, host, folder, home, held) as found:
        # All of them: one that is damaged or stuck must not keep the others from being put back.
        refused = [one for own in places.folders_of_the_host(host, folder) for one in survey(own).refused]
        failed = [path for path, error in refused if not _set_aside(path, error)]
        for path, error in found.damaged:
            _name(path, error)
            where = places.LOCAL if path.parent == home else path.parent.name
            click.echo(f"hint: `nearmetal rollback {where}` on this side sets it aside", err=True)
            failed.append(path)
        left = [_put_back(shell, path, machine, force=force) for path, machine in found.journals]
    unknown = places.unknown_on(shell, host, folder, home) if is_far(shell) else places.lost_sessions()
    failed += [_name_lost(one, why, host) for one, why in unknown if one.journal not in failed]
    if not found.journals and not failed:
        click.echo("nothing to restore", err=True)
    return _Left.SOMETHING if failed else max(left, default=_Left.NOTHING)


def settle(shell: Shell, host: str, folder: Path, held: Sequence[Path]) -> None:
    """Refuse to go on after an interrupted session; on a terminal, offer to put back first what it left changed.

    The caller holds the locks of the folders `held`, of which the host's own `folder` is one.
    """
    try:
        places.refuse_unfinished_on(shell, held=held)
    except UnfinishedError as error:
        if not sys.stdin.isatty():
            raise
        click.echo(error.render(), err=True)
        if not click.confirm("restore them now?", err=True):
            raise
        if not put_everything_back(shell, host, folder, places.folder_of(places.LOCAL), held):
            raise
        places.refuse_unfinished_on(shell, held=held)


def offer_rollback() -> None:
    """On a terminal, offer to put back what an interrupted session left changed here; without one, opening refuses."""
    if sys.stdin.isatty():
        try:
            places.refuse_unfinished_here()
        except UnfinishedError:
            folder = places.folder_of(places.LOCAL)
            with open_shell(places.LOCAL) as shell, places.host_locks(shell, places.LOCAL, folder) as held:
                settle(shell, places.LOCAL, folder, held)


def settle_far(shell: FarShell, *, measuring: bool) -> None:
    """Refuse to measure on a far machine after an interrupted session; on a terminal, offer the roll-back first."""
    try:
        places.refuse_unfinished_on(shell, measuring=measuring)
    except UnfinishedError:
        name = shell.machine_name(HYPERVISOR)
        with places.host_locks(shell, name, places.folder_of(name)) as held:
            settle(shell, name, places.folder_of(name), held)


def _name_lost(one: registry.OpenSession, why: str, host: str) -> Path:
    """Name a session of root's that did not end and whose journal cannot be read; return the journal's path."""
    click.echo(f"error: a session of root's did not end, and its journal cannot be read: {why}", err=True)
    for name in one.changed:
        click.echo(f"unknown: {name}")
    if host != places.LOCAL:
        click.echo(f"hint: run `nearmetal rollback` where its journal is, or read {one.script} on {host}", err=True)
    elif os.geteuid() != 0:
        click.echo("hint: run `nearmetal rollback` as root", err=True)
    else:
        given_up = f"`nearmetal rollback --forget {one.journal.name}`"
        click.echo(f"hint: read {one.script}, then run it with sh; {given_up} discards it", err=True)
    return one.journal


def _name(path: Path, error: NearmetalError) -> None:
    """Name a journal that cannot be read, and what its undo scripts know."""
    click.echo(error.render(), err=True)
    for script in undo_scripts(path):
        try:
            lines = trusted_bytes(script).decode(errors="replace").splitlines()
        except NearmetalError as unreadable:
            click.echo(unreadable.render(), err=True)
            continue
        for line in lines:
            if line.startswith(NAMED):
                click.echo(f"unknown: {line.removeprefix(NAMED)}")
        click.echo(f"hint: read {script}, then run it with sh on its machine", err=True)


def _set_aside(path: Path, error: NearmetalError) -> bool:
    """Name a journal of this host's that cannot be read, and keep it from coming up again. Never well."""
    _name(path, error)
    if isinstance(error, ForeignFileError):
        try:
            click.echo(f"set aside as {set_aside(path)}", err=True)
        except NearmetalError as stays:
            click.echo(stays.render(), err=True)
    return False


def _put_back(shell: Shell, path: Path, machine: str, *, force: bool) -> _Left:
    """Replay one journal, report what it did, and return what is not as it was."""
    try:
        undone = roll_back(shell, path, machine, force=force, tell=lambda done: _print_result(path, done))
    except NearmetalError as error:
        click.echo(error.render(), err=True)
        if isinstance(error, QuarantinedError):
            click.echo(error.undo_script)
        return _Left.SOMETHING
    if undone.elsewhere:
        click.echo(
            f"{path} stays open\nhint: run `nearmetal rollback` there; if the journal names no machine, "
            f"`--force` replays it here; `--forget {path.name}` discards it",
            err=True,
        )
    elif not is_far(shell):  # a session from elsewhere, under another name, left scripts on this side, too
        forget_scripts(places.folder_of(places.LOCAL) / path.name)
    if not undone.unproven:
        return _Left.NOTHING
    return _Left.ELSEWHERE if undone.unproven == undone.elsewhere else _Left.SOMETHING


def _print_result(path: Path, undone: RollbackResult) -> None:
    results = (
        ("put back", undone.put_back),
        ("past", undone.past),
        ("left", undone.foreign),
        ("gone", undone.gone),
        ("not here", undone.elsewhere),
    )
    for verb, names in results:
        for name in names:
            click.echo(f"{verb}: {name}")
    if not undone.stuck and not any(names for _, names in results):
        click.echo(f"{path.name}: nothing was left changed", err=True)


def _print_scripts(host: str, folder: Path) -> int:
    """Print the undo scripts next to the journals, newest session first, and those whose journals cannot be read."""
    found = [survey(one) for one in places.folders_of_the_host(host, folder)]
    lost = places.lost_sessions() if host == places.LOCAL else []
    waiting = dict.fromkeys(path for one in found for path, name, _ in one.waiting() if not name)
    scripts = [script for path in sorted(waiting, key=age, reverse=True) for script in undo_scripts(path)]
    for script in [*scripts, *(one.script for one, _ in lost if not one.unreadable)]:
        click.echo(trusted_bytes(script).decode(), nl=False)
    refused = [error.render() for one in found for _, error in one.refused]
    refused += [f"error: {why}" for _, why in lost]
    if not waiting and not refused:
        click.echo("nothing to restore, so there is no script", err=True)
    for text in refused:
        click.echo(text, err=True)
    return ExitCode.FAILED if refused else ExitCode.OK
