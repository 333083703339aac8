"""The hosts whose knobs verbs change: this machine, and those that ssh knows by a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from nearmetal.errors import BadInputError, ExitCode, NearmetalError, UnavailableError, meant
from nearmetal.hosts.host import Shell
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs.guards import identify
from nearmetal.knobs.knob import Target
from nearmetal.knobs.places import LOCAL, interfaces


@contextmanager
def open_shell(host: str) -> Iterator[Shell]:
    """Give a shell on a host whose knobs stay as they are set: this machine, or one that ssh knows by that name."""
    if host == LOCAL:
        with MachineShell() as here:
            yield here
        return
    try:
        from nearmetal.hosts.ssh.host import machine_shell  # noqa: PLC0415 (asyncssh is an extra)
    except ImportError as error:
        raise UnavailableError(f"{host} is reached over ssh: {error}", hint="pip install 'nearmetal[ssh]'") from error
    with machine_shell(host) as there:
        yield there


def refuse_unknown_interfaces(shell: Shell, targets: Iterable[Target]) -> None:
    """Raise BadInputError for an interface that the host does not have, by any of its names."""
    for target in targets:
        try:
            identify(shell, target)
        except NearmetalError as error:
            if error.exit_code != ExitCode.FAILED:
                raise
            known = [one.interface for one in interfaces(shell)]
            raise BadInputError(error.message, hint=meant(target.interface, known, error.hint)) from error
