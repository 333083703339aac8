"""One far machine by its ssh name, for verbs that work on a machine and not on a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nearmetal.hosts.far.host import site_of
from nearmetal.hosts.far.machine import FarMachine
from nearmetal.hosts.far.shell import MachinesShell, Memory
from nearmetal.hosts.ssh import parse_login
from nearmetal.hosts.ssh.connect import Connector, SshAddress, SshCarrier, SshReach


@contextmanager
def machine_shell(name: str) -> Iterator[MachinesShell]:
    """Give a shell on `[USER@]HOST[:PORT]`, an alias of ~/.ssh/config or an address.

    The machine itself is its only node, HYPERVISOR. Raises BadInputError for another name, UnavailableError when
    it does not answer.
    """
    connector = Connector(SshReach())
    try:
        machine = FarMachine(SshCarrier(connector, SshAddress(name, parse_login(name))))
        machine.connect()
        with MachinesShell([machine], [name], site_of(machine.home, {}), Memory()) as shell:
            yield shell
    finally:
        connector.close()
