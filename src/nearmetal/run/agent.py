"""The same trial, inside a machine that got its order from outside: the lab's guest starts this.

The machine's own ports are the point there, so the hypervisor side keeps the machine's network.
"""

from __future__ import annotations

from pathlib import Path

from nearmetal.errors import QuarantinedError
from nearmetal.hosts.lab.guest import serve
from nearmetal.hosts.lab.guest_root import write_guest_initrd
from nearmetal.hosts.lab.hypervisor import LabShell
from nearmetal.run.trial import carry_out
from nearmetal.study.order import Order, Outcome, TrialStatus


def carry_out_here(order: Order) -> Outcome:
    """Carry one order out on this machine's own network; a machine that is thrown away needs no quarantine."""
    try:
        with LabShell() as shell:
            return carry_out(shell, order)
    except QuarantinedError as error:
        return Outcome(TrialStatus.FAILED, reason=error.message)


if __name__ == "__main__":
    if Path("/dev/kvm").exists():
        write_guest_initrd()
    serve(carry_out_here)
