"""Where a host's knobs are reached from, and where their journals are kept."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import BadInputError, NearmetalError, StoreError, TrialError
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell, is_far
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import registry
from nearmetal.knobs.folder import age, host_lock, journal_folder, measured, refuse_measured_far, survey
from nearmetal.knobs.journal import read_state
from nearmetal.knobs.knob import Target
from nearmetal.knobs.nic import listing
from nearmetal.knobs.presence import measuring_from_here, refuse_measured_from_here
from nearmetal.knobs.rollback import OVER, UnfinishedError, changed_by_journals, journals_of, refuse_unfinished
from nearmetal.knobs.trust import UntrustedError
from nearmetal.process import Finished

LOCAL = "local"
_LOCK_PATIENCE_S = 10.0
_HELD_BY_ANOTHER = 1
"""How flock(1) ends where a lock is taken."""
# Holds the lock at $1 and, as root, that of the machine's own sessions. Prints `held`, or why the one at $1 is not.
_HOLD_SCRIPT = r"""
machine=${NEARMETAL_MACHINE_STATE:-/run/nearmetal} root=
if [ "$(id -u)" = 0 ] && (umask 022; mkdir -p -- "$machine") && (: >> "$machine/lock"); then
    exec 8>> "$machine/lock"
    root=yes
fi 2> /dev/null
[ -z "$root" ] || flock --nonblock 8 || exit $?
said=$({ mkdir -p -m 700 -- "${1%/*}" && : >> "$1"; } 2>&1) && {
    exec 9>> "$1"
    flock --nonblock 9 || exit $?
    said=$({ echo "$0" > "$1.holder"; } 2>&1) && said=held
}
printf '%s\n' "$said"
exec sleep 86400
"""


@contextmanager
def host_locks(
    shell: Shell, host: str, folder: Path, *, unlocked: Callable[[str], object] | None = None
) -> Iterator[list[Path]]:
    """Hold the locks of a host's knobs, here and on a far machine itself; raise TrialError when another holds one.

    Give the folders of journals that are locked: two for a machine that shares this one's home. `unlocked` hears of a
    lock that cannot be made, which is passed over then: without it, StoreError is raised.
    """
    with (
        _locks([*lock_of_the_machine(shell), folder], unlocked),
        _far_lock(shell, host, unlocked) if is_far(shell) else nullcontext("") as token,
    ):
        shared = token and _holder(folder_of(LOCAL)) == token
        yield [folder, folder_of(LOCAL)] if shared else [folder]


@contextmanager
def _locks(folders: Iterable[Path], unlocked: Callable[[str], object] | None) -> Iterator[None]:
    with ExitStack() as stack:
        for folder in folders:
            try:
                stack.enter_context(host_lock(folder))
            except StoreError as error:
                # Where no lock can be made no session can begin, either.
                if unlocked is None or isinstance(error, UntrustedError):
                    raise
                if folder.is_dir():
                    unlocked(error.message)
        yield


def lock_of_the_machine(*shells: Shell) -> list[Path]:
    """Return the folder whose lock is that of the machine itself, where one of the shells is its root's."""
    return [registry.machine_folder()] if any(map(registry.is_of_the_machine, shells)) else []


def _holder(folder: Path) -> str:
    try:
        return (folder / "lock.holder").read_text().strip()
    except (OSError, ValueError):
        return ""


@contextmanager
def _far_lock(shell: FarShell, host: str, unlocked: Callable[[str], object] | None) -> Iterator[str]:
    """Hold the lock on a far machine; give what its holder has written there, '' where it cannot be made."""
    place = f"{shell.site.state}/journal/lock"
    token = secrets.token_hex(8)
    # The lock goes with its process, and the process with the connection.
    holder = shell.start(["sh", "-c", _HOLD_SCRIPT, token, place])
    try:
        said = "".join(holder.first_lines(1, _LOCK_PATIENCE_S))
        if not said:
            raise _not_taken(holder.ended(), host, place)
        if said != "held":
            why = f"the knobs of {host} cannot be locked ({place} there): {said}"
            if unlocked is None:
                raise StoreError(why, hint="free some space there, or make that place writable")
            unlocked(why)
            token = ""
        yield token
    finally:
        holder.stop()


def _not_taken(ended: Finished | None, host: str, place: str) -> TrialError:
    """Return the error for a lock whose holder has said nothing."""
    if ended is None:
        return TrialError(
            f"{host} did not lock its knobs within {_LOCK_PATIENCE_S:.0f} s ({place} there)",
            hint="see what keeps it from starting a program, then try again",
        )
    if ended.exit_status == _HELD_BY_ANOTHER:
        return TrialError(f"another session holds the knobs of {host} ({place} there)", hint="wait until that ends")
    return TrialError(f"the knobs of {host} cannot be locked ({place} there): {ended.complaint()}")


def folder_of(host: str) -> Path:
    """Return where the journals of a host's knobs are kept; those of this machine are where trials keep theirs."""
    if not host or "/" in host or host.startswith("."):
        raise BadInputError(f"{host!r} is not the name of a host")
    return journal_folder() if host == LOCAL else journal_folder() / host


@contextmanager
def measuring(machines: Iterable[str]) -> Iterator[None]:
    """Let `apply` see for the length of a `with` that these machines are measured on: `LOCAL`, or far ones by name."""
    with ExitStack() as stack:
        for name in machines:
            if name == LOCAL:
                stack.enter_context(measuring_from_here())
            elif "/" not in name:
                stack.enter_context(measured(folder_of(name)))
                stack.enter_context(measuring_from_here(name))
        yield


def refuse_measured(host: str, called: str) -> None:
    """Raise TrialError while a process here measures on a host: anybody's, and elsewhere one of this home's user."""
    if host == LOCAL:
        refuse_measured_from_here()
    else:
        refuse_measured_far(folder_of(host), called)
        refuse_measured_from_here(host, called)


def refuse_unfinished_here() -> None:
    """Raise UnfinishedError when an earlier session has left settings of this machine changed."""
    if folder_of(LOCAL).is_dir() or registry.sessions():
        with MachineShell() as here:
            refuse_unfinished_on(here)


def changed_here_for_now() -> list[str]:
    """Return what sessions that are alive have changed on this machine, as sentences for who is about to measure."""
    found = []
    for folder in filter(Path.is_dir, folders_of_the_host(LOCAL, folder_of(LOCAL))):
        with MachineShell() as here, _unless_in_use(folder, ()) as locked:
            found += [] if locked else [text for text, *_ in changed_by_journals(here, folder, measuring=True)]
    changed = "; ".join(found)
    told = [f"another session has changed {changed}; it is measured under that until that ends"] if found else []
    if roots := [str(one.script) for one in registry.sessions() if one.unreadable and one.script.is_file()]:
        told.append(f"root has not ended a session that changes settings of this machine: {', '.join(roots)}")
    return told


def folders_for(shell: Shell, home: Path) -> list[Path]:
    """Return where journals about a shell's machines are: `home`, and a folder in it for each far machine, by name."""
    names = {shell.machine_name(node) for node in shell.machines} if is_far(shell) else set()
    return [home, *(home / name for name in sorted(names) if "/" not in name)]


def refuse_unfinished_on(
    shell: Shell, home: Path | None = None, *, held: Sequence[Path] = (), measuring: bool = False
) -> None:
    """Raise UnfinishedError when an earlier session has left settings of a shell's machines changed.

    A session that holds the lock of a folder is alive, and may have changed something for now; but for the folders
    `held`, whose locks are the caller's. See `refuse_unfinished`.
    """
    home = home or folder_of(LOCAL)
    of_others = registry.folders()
    for folder in _all_folders(home):
        with _unless_in_use(folder, held) as locked:
            if locked:
                called = "" if folder == home or folder in of_others else folder.name
                refuse_unfinished(shell, folder, called, measuring=measuring)
    if registry.is_of_the_machine(shell) and (lost := lost_sessions()):
        named = "; ".join(f"{', '.join(one.changed)} ({why})" for one, why in lost)
        raise UnfinishedError(
            f"an earlier session may have left settings changed: {named}",
            hint="`nearmetal rollback` says what to do; nothing was changed now",
        )


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The open journals of a host, newest first, each with the name that it gives the host.

    `damaged` are journals that cannot be read, in folders of other names: their machine is unknown.
    """

    journals: tuple[tuple[Path, str], ...]
    damaged: tuple[tuple[Path, NearmetalError], ...]


@contextmanager
def interrupted_on(shell: Shell, host: str, folder: Path, home: Path, held: Sequence[Path]) -> Iterator[Interrupted]:
    """Give what waits for a roll-back of a host, and hold the locks.

    `folder` is the host's own, `home` keeps those of trials and, in folders of their names, of other hosts: of the same
    machine under another name. A folder that another session has locked is left out, but for what has the host's name.
    """
    with ExitStack() as stack:
        found: list[tuple[Path, str]] = []
        damaged: list[tuple[Path, NearmetalError]] = []
        own = folders_of_the_host(host, folder)
        for one in dict.fromkeys((folder, *_all_folders(home))):
            locked = stack.enter_context(_unless_in_use(one, held))
            there = survey(one)
            told = journals_of(shell, HYPERVISOR, host, there, named=one in own)
            found += [(path, name) for path, name, _ in told if locked or name == host]
            damaged += there.refused if one not in own else ()
        found.sort(key=lambda one: age(one[0]), reverse=True)
        yield Interrupted(tuple(found), tuple(damaged))


def folders_of_the_host(host: str, folder: Path) -> list[Path]:
    """Return where journals of a host's own are: its folder, and for this machine those of root's other homes."""
    return [folder, *(one for one in registry.folders() if host == LOCAL and one != folder)]


def open_elsewhere(home: Path) -> dict[str, str]:
    """Return the far machines on which a session of this user did not end, each with the command that rolls it back."""
    found = survey(home).far_machines()
    for folder in (one for one in _all_folders(home) if one.parent == home):
        with _unless_in_use(folder, ()) as locked:
            waiting = [state for _, name, state in survey(folder).waiting() if locked and not name]
        found |= {state.host: state.rolled_back_by(state.host) for state in waiting if state.host == folder.name}
    return found


def lost_sessions() -> list[tuple[registry.OpenSession, str]]:
    """Return root's open sessions on this machine whose journals cannot be read, with the reason."""
    return [(one, why) for one in registry.sessions() if (why := _why_lost(one))]


def unknown_on(shell: FarShell, host: str, folder: Path, home: Path) -> list[tuple[registry.OpenSession, str]]:
    """Return root's open sessions on a far machine that no journal of this user's tells of, with where theirs are."""
    known = {path.name for one in (folder, *_all_folders(home)) for path in one.glob("*.journal*")}
    there = registry.sessions_on(shell, HYPERVISOR)
    return [
        (one, one.unreadable or f"{one.journal} is on {one.host}, this is {host}")
        for one in there
        if one.journal.name not in known
    ]


def _why_lost(one: registry.OpenSession) -> str:
    """Return why nothing is known of an open session; forget one whose journal says that it has ended."""
    if why := one.unreadable or registry.why_unusable(one.journal.parent):
        return one.away or why
    if not one.journal.exists():
        return one.away or f"{one.journal} is gone"
    try:
        if read_state(one.journal).end in OVER:
            registry.forget(one.journal)
    except NearmetalError as error:
        return error.message
    return ""


def _all_folders(home: Path) -> Iterator[Path]:
    """Yield where this user's journals are: `home`, the folders in it of far machines' names, other homes of root's."""
    if home.is_dir():
        yield home
        # Others' are not acted upon; see `trust`.
        own = sorted(one for one in home.iterdir() if one.is_dir() and one.stat().st_uid == os.geteuid())
        yield from own
    yield from (one for one in registry.folders() if home not in {one, one.parent})


@contextmanager
def _unless_in_use(folder: Path, held: Sequence[Path]) -> Iterator[bool]:
    """Hold the lock of a folder that is not `held` already; return whether it is, or another session's.

    Where none can be made, no other session holds one.
    """
    with ExitStack() as stack:
        try:
            if folder not in held:
                stack.enter_context(host_lock(folder))
        except TrialError:
            yield False
        except UntrustedError:
            raise
        except StoreError:
            yield True
        else:
            yield True


def interfaces(shell: Shell) -> list[Target]:
    """Return the network interfaces of the machine but for the loopback."""
    names = listing(shell, "", "/sys/class/net")
    return [Target("", name) for name in names if name not in {"lo", "bonding_masters"}]
