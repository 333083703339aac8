"""The same trial, inside a machine that got its order from outside: the lab's guest starts this.

The machine's own ports are the point there, so the hypervisor side keeps the machine's network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.hosts.lab.guest import serve
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.run.trial import carry_out

if TYPE_CHECKING:
    from nearmetal.study.order import Order, Outcome


def carry_out_here(order: Order) -> Outcome:
    """Carry one order out on this machine's own network."""
    with NamespaceShell(own_network=False) as shell:
        return carry_out(shell, order)


if __name__ == "__main__":
    serve(carry_out_here)
