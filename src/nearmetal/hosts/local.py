"""This machine as a host: every trial gets fresh namespaces, which vanish with it."""

from collections.abc import Callable

from nearmetal.hosts.host import Shell
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.study.order import Order, Outcome


class LocalHost:
    """Carries trials out in network namespaces of this machine, as root or without."""

    kind = "local"
    label = "network namespaces of one machine: real kernel data paths, no wire and no NIC hardware between nodes"
    slots = 1

    def carry_out(self, order: Order, body: Callable[[Shell, Order], Outcome]) -> Outcome:
        """Make a shell with namespaces for this trial alone and hand it to the body."""
        with NamespaceShell() as shell:
            return body(shell, order)

    def close(self) -> None:
        """Nothing outlives a trial."""
