"""After a trial that lost a far machine: the watchdogs there put its setting back, and this side closes its journal.

An open journal keeps later trials from setting anything on its machines. Only journals of this process are closed, and
only once every value is as it was: all else waits for a person (`nearmetal rollback`).
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nearmetal.errors import NearmetalError
from nearmetal.hosts.far.host import FarHost
from nearmetal.hosts.far.shell import MachinesShell
from nearmetal.hosts.far.stream import LostError
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell
from nearmetal.knobs import places
from nearmetal.knobs.folder import host_lock, open_journals
from nearmetal.knobs.rollback import UnfinishedError, roll_back
from nearmetal.study.order import Order, Outcome

WATCHDOG_S = 15.0
"""How long a watchdog may take: it looks every second whether its connection lives, and then puts everything back."""
_PAUSE_S = 0.2


def settle(host: FarHost) -> str:
    """Close what this process's trials left open on a host's machines; return what became of it, '' for nothing open.

    What cannot be closed stays open, and later trials are refused with its values.
    """
    settled = False
    try:
        for shell in host.shells():
            settled |= _settle_on(shell)
    except NearmetalError as error:
        return f"its settings could not be looked at: {error.message}"
    return "its settings are back as they were" if settled else ""


def settled_first(body: Callable[[Shell, Order], Outcome]) -> Callable[[Shell, Order], Outcome]:
    """Return the body of a trial that first closes what this process's trials left open on its machines.

    A trial whose allocation was lost may begin again on the same nodes before their watchdogs are done.
    """

    def settled(shell: Shell, order: Order) -> Outcome:
        try:
            for one in shell.each() if isinstance(shell, MachinesShell) else ():
                _settle_on(one)
        except LostError:
            raise
        except NearmetalError as error:
            return Outcome.of_error(error)
        return body(shell, order)

    return settled


def _settle_on(shell: FarShell) -> bool:
    """Close the journals of one machine when its values are back; return whether there were any."""
    name, home = shell.machine_name(HYPERVISOR), places.folder_of(places.LOCAL)
    if not _own(home, name):
        return False
    _await_watchdogs(shell)
    with ExitStack() as stack:
        held = stack.enter_context(places.host_locks(shell, name, places.folder_of(name)))
        if home not in held:
            stack.enter_context(host_lock(home))
        for path in _own(home, name):
            roll_back(shell, path, name)
    return True


def _own(home: Path, machine: str) -> list[Path]:
    """Return the open journals of this process that wait for a machine."""
    mine = f"-{os.getpid()}.journal"
    return [path for path in open_journals(home, machine) if path.name.endswith(mine)] if home.is_dir() else []


def _await_watchdogs(shell: FarShell) -> None:
    """Wait until every value is as it was; raise UnfinishedError with those that are not after `WATCHDOG_S`."""
    deadline = time.monotonic() + WATCHDOG_S
    while True:
        try:
            places.refuse_unfinished_on(shell, measuring=True)
        except UnfinishedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
