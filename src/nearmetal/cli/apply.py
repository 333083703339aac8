"""`nearmetal apply PROFILE --confirm 60`: put a profile on this machine, and take it back unless it is confirmed."""

import contextlib
import os
import select
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from nearmetal.cli.reach import open_shell, refuse_unknown_interfaces
from nearmetal.cli.rollback import settle
from nearmetal.cli.values import PATH, refuse_beside
from nearmetal.errors import BadInputError, ExitCode, TrialError
from nearmetal.hosts.host import Shell
from nearmetal.knobs import mpi, places, waiting
from nearmetal.knobs.access import run_c
from nearmetal.knobs.effect import verified
from nearmetal.knobs.folder import expire
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.knobs.presence import refuse_measured_there
from nearmetal.knobs.session import Session, begin
from nearmetal.knobs.trust import caller, trusted_bytes
from nearmetal.knobs.undo import RollbackResult
from nearmetal.knobs.watchdog import WatchLimits
from nearmetal.tune.profile import Profile

_SPARE_S = 5
"""The watchdog acts this much after the verb itself should have."""
_LOOK_S = 0.2
_READ_BYTES = 4096
_WATCHDOG_LOOK_S = 1.0


@click.command(name="apply")
@click.argument("profile", type=PATH)
@click.option("--host", default=places.LOCAL, show_default=True, help="`local`, or an ssh host name.")
@click.option(
    "--interface",
    "-i",
    "chosen",
    multiple=True,
    help="Apply to this interface instead of those named in PROFILE (repeatable).",
)
@click.option(
    "--confirm",
    "confirm_s",
    default=60,
    show_default=True,
    type=click.IntRange(1, 3600),
    help="Seconds you have to confirm.",
)
@click.option("--probe", default="", help="Roll back if this address stops answering, such as the gateway.")
@click.option(
    "--verify",
    "peer",
    default="",
    help="Ping this neighbour for 2 s to verify the interrupt rate of a tuned interface.",
)
@click.option(
    "--storm", type=click.IntRange(min=0), default=0, help="Roll back above this many interrupts per second; 0 is off."
)
@click.option(
    "--allow-management", is_flag=True, help="Allow changes to the interface that you may be logged in through."
)
@click.option("--accept", is_flag=True, help="Confirm an `apply` that is waiting in another terminal.")
def command(
    profile: Path,
    host: str,
    chosen: tuple[str, ...],
    *,
    confirm_s: int,
    probe: str,
    peer: str,
    storm: int,
    allow_management: bool,
    accept: bool,
) -> int:
    """Apply PROFILE; unless you type `yes` in time, every setting is rolled back, after a `no` at once.

    A separate watchdog process rolls everything back even if this process, its terminal or the network link dies. Exit
    codes: 0 confirmed, 4 not confirmed and everything restored, 1 refused or not restored.
    """
    if not profile.exists():
        raise BadInputError(f"there is no profile {str(profile)!r}", hint="`nearmetal tune` writes profiles")
    wanted = Profile.read(profile, lambda path: trusted_bytes(path, owners=caller()).decode())
    folder = places.folder_of(host)
    call = waiting.ConfirmationPoint(folder, wanted.name, wanted.to_json())
    if accept:
        refuse_beside("--accept", "accept", "host")
        call.accept(host)
        return ExitCode.OK
    knobs, targets = _asked(profile, wanted, chosen or wanted.interfaces)
    guard = WatchLimits(confirm_s + _SPARE_S, probe=probe, storm_per_s=storm, own_links=True)
    _warn_of_launches(profile, wanted)
    with (
        _unmeasured(host, knobs) as shell,
        places.host_locks(shell, host, folder) as held,
        contextlib.ExitStack() as confirming,
    ):
        expire(folder)
        settle(shell, host, folder, held)
        refuse_unknown_interfaces(shell, targets)
        _check_probe(shell, probe)
        intended = plan(shell, knobs, targets, allow_management=allow_management)
        for rival in intended.rivals:
            click.echo(f"warning: {rival}", err=True)
        session = begin(shell, intended, folder, host=host, guard=guard)
        try:
            session.apply()
            for name, value in session.facts().items():
                click.echo(f"{name.removeprefix('knob.')} = {value}")
            _warn_of_side_effects(session, peer)
            with call.open() as called:
                kept = _confirmed(session, called, confirm_s, wanted.name, _accepting(profile, host))
                if kept:
                    confirming.enter_context(_no_ctrl_c())
                    session.confirm()
                    called.answer()
        except BaseException:
            _restore(session)
            raise
        if kept:
            click.echo("CONFIRMED: the profile stays until the next boot; `nearmetal export` makes it permanent")
            return ExitCode.OK
        return _taken_back(session)


@contextlib.contextmanager
def _unmeasured(host: str, knobs: Iterable[str]) -> Iterator[Shell]:
    """Open a host; raise TrialError while somebody measures on it."""
    _refuse_measured(host, knobs)
    with open_shell(host) as shell:
        if host != places.LOCAL and not all(name.startswith("nic.") for name in knobs):
            refuse_measured_there(shell, host)
        yield shell


def _refuse_measured(host: str, knobs: Iterable[str]) -> None:
    """Raise TrialError while a run or a search measures on the host, by any name that it may have there.

    What namespaces of a machine measure has interfaces of its own. A job on it, whose user has one home everywhere,
    has its ports.
    """
    if host == places.LOCAL:
        if any(not name.startswith("nic.") for name in knobs):
            places.refuse_measured(host, "this machine")
        own = socket.gethostname()
        names, called = (own, own.partition(".")[0]), "this machine"
    else:
        names, called = (host, host.rpartition("@")[2]), host
        click.echo(f"note: runs that others measure on {host} from other machines are not seen", err=True)
    for name in dict.fromkeys(names):
        if name != places.LOCAL:
            places.refuse_measured(name, called)


def _asked(profile: Path, wanted: Profile, interfaces: Sequence[str]) -> tuple[dict[str, str], list[Target]]:
    """Return the knobs of machines and interfaces, and where to set them; raise BadInputError where that is nowhere."""
    knobs = {name: value for name, value in wanted.setting.items() if not name.startswith(mpi.PREFIX)}
    if not knobs:
        text = f"{profile} sets nothing on a machine: {', '.join(wanted.setting) or 'it is empty'}"
        raise BadInputError(text, hint="`nearmetal export PROFILE --to module` writes what belongs to launches of MPI")
    if not all(interfaces):
        text = "'' is not the name of an interface"
        raise BadInputError(text, hint="`nearmetal knobs` lists the interfaces of a host")
    if not interfaces and any(name.startswith("nic.") for name in knobs):
        raise BadInputError(f"{profile} sets knobs of interfaces but names none", hint="name them with --interface")
    return knobs, [Target("", interface) for interface in interfaces] or [Target("")]


def _warn_of_launches(profile: Path, wanted: Profile) -> None:
    if of_launches := [name for name in wanted.setting if name.startswith(mpi.PREFIX)]:
        left = f"warning: {', '.join(of_launches)} cannot be set on a machine; "
        click.echo(f"{left}`nearmetal export {profile} --to module` writes what belongs to launches", err=True)


def _check_probe(shell: Shell, probe: str) -> None:
    """Raise BadInputError for an address that does not answer before the first write: that would be no sign of one."""
    if not probe:
        return
    found = None if probe.startswith("-") else run_c(shell, ("ping", "-c", "3", "-W", "1", probe), "")
    if found is None or not found.ok:
        why = f": {found.complaint()}" if found else ""
        text = f"the address of --probe, {probe}, does not answer a ping, so nothing was changed{why}"
        raise BadInputError(text, hint="name an address that answers, such as the gateway of the interface")


@contextlib.contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """Let ctrl-C do nothing: after `yes` it comes too late, and half a confirmation is neither kept nor undone."""
    if threading.current_thread() is not threading.main_thread():  # Python interrupts no other
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _warn_of_side_effects(session: Session, peer: str) -> None:
    """Warn of side effects of the writes and of read-backs that prove nothing; verify moderation where possible."""
    for what, how in session.disturbed().items():
        click.echo(f"warning: {what} changed as well: {how}", err=True)
    for knob, reason in session.readback_doubts().items():
        click.echo(f"warning: the read-back of {knob} is unreliable: {reason}", err=True)
    effects = verified(session.shell, session.plan, peer) if peer else {}
    if peer and not effects:
        click.echo("warning: --verify has verified nothing: no interface's nic.rx-usecs was set", err=True)
    for what, effect in effects.items():
        lead = "warning: " if effect.agreement == "contradicts" else ""
        click.echo(f"{lead}{what}, judged by its interrupt rate: {effect.agreement}: {effect.reason}", err=True)


@dataclass(slots=True)
class _TypedLines:
    """The lines of standard input as they come: of a pipe, a part of one may come first, or several at once."""

    _part: bytes = b""
    _open: bool = True

    def within(self, patience_s: float) -> list[bytes]:
        """Return what is whole by then; the last line needs no end."""
        if not select.select([sys.stdin] if self._open else [], [], [], patience_s)[0]:
            return []
        came = os.read(sys.stdin.fileno(), _READ_BYTES)
        self._open = bool(came)
        *lines, part = (self._part + came).split(b"\n")
        self._part = part[-_READ_BYTES:]  # longer ones are no answer
        return lines if came else [part]


def _accepting(profile: Path, host: str) -> str:
    """Return the command that confirms from another terminal, in whatever directory that is."""
    there = [] if host == places.LOCAL else ["--host", host]
    return shlex.join(["nearmetal", "apply", str(profile.absolute()), *there, "--accept"])


def _confirmed(session: Session, called: waiting.Waiting, confirm_s: int, name: str, accepting: str) -> bool:
    """Wait for `yes` on stdin or for the command `accepting` from elsewhere; False after `no`, or when the time is up.

    So also when a watchdog acts or is gone: then nobody would put values back if this process died as well.
    """
    session.renew()
    click.echo(
        f"applied {name}; type yes within {confirm_s} s to keep it (no: undo now), or elsewhere: {accepting}", err=True
    )
    deadline = time.monotonic() + confirm_s
    looked = time.monotonic()
    typed = _TypedLines()
    while (left := deadline - time.monotonic()) > 0:
        if called.accepted():
            return True
        for line in typed.within(min(left, _LOOK_S)):
            if (answer := line.strip().lower()) in {b"yes", b"no"}:
                return answer == b"yes"
        if time.monotonic() - looked > _WATCHDOG_LOOK_S:
            looked = time.monotonic()
            if session.unguarded():
                return False
    return False


def _taken_back(session: Session) -> int:
    """Put everything back and return the code, as `_restore`; raise TrialError for a watchdog that did not act."""
    unguarded = session.unguarded()
    code, report = _restore(session)
    if unguarded and not report:
        text = "the watchdog is gone, so the profile was rolled back"
        raise TrialError(text, hint="find out what killed it, then try again")
    return code


def _print_unrestored(undone: RollbackResult) -> None:
    for sentence in undone.unproven:
        click.echo(f"left: {sentence}")


def _restore(session: Session) -> tuple[int, str]:
    """Put everything back; return the code that says that nothing was kept, or that something is not restored.

    And the watchdog's report.
    """
    undone, report = session.restore(_print_unrestored)
    if undone.unproven:
        click.echo("NOT RESTORED: the settings listed above are not back to their old values; all others are", err=True)
        return ExitCode.FAILED, report
    click.echo("RESTORED: every setting is back to its old value" + (f" ({report})" if report else ""))
    return ExitCode.PARTIAL, report
