"""The same trial, inside a machine that got its order from outside: the lab's guest starts this.

A machine alone keeps its network on the hypervisor side, because its ports are the point there. In a cluster node 0
carries the order out and the others serve it.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nearmetal.errors import QuarantinedError, StoreError, UnavailableError
from nearmetal.facts import counters, inventory
from nearmetal.hosts.host import HYPERVISOR, Shell
from nearmetal.hosts.lab import kvm
from nearmetal.hosts.lab.frames import NodeId
from nearmetal.hosts.lab.guest import serve
from nearmetal.hosts.lab.guest_root import write_guest_initrd
from nearmetal.hosts.lab.hypervisor import LabShell
from nearmetal.hosts.lab.nodes import ClusterShell, take
from nearmetal.knobs.knob import Target
from nearmetal.knobs.plan import plan
from nearmetal.paths.path import Endpoint, Endpoints
from nearmetal.paths.ports import find_ports
from nearmetal.run import session
from nearmetal.run.trial import StandingPath, carry_out
from nearmetal.study.order import Order, Outcome, TrialStatus
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi


def carry_out_here(orders: Sequence[Order], node_id: NodeId, begin: Callable[[Order], None]) -> Iterator[Outcome]:
    """Carry orders out on this machine's own network; a machine that is thrown away needs no quarantine."""
    begin(orders[0])
    if not node_id.alone:
        take(node_id)
    while node_id.node:  # it ends with node 0
        time.sleep(3600)
    try:
        if orders[0].workload.kind == session.SESSION:
            yield session.hold(ClusterShell(node_id), orders[0])
            return
        with LabShell() if node_id.alone else ClusterShell(node_id) as shell:
            standing = StandingPath()
            for number, order in enumerate(orders):
                if number:
                    begin(order)
                standing.following = orders[number + 1 :]
                yield carry_out(shell, order, standing)
    except (QuarantinedError, StoreError) as error:
        yield Outcome(TrialStatus.FAILED, reason=error.message)


def read_ahead() -> None:
    """Do what a first launch does with a port, facts, counters and MPI; nothing is changed.

    Patterns that are compiled, names that are looked up and versions that are asked for once are in the snapshot then.
    """
    with LabShell() as shell:
        port, *_ = find_ports(shell)
        plan(shell, {"nic.rx-usecs": 0}, [Target(HYPERVISOR, port)])
        inventory.machine_facts(shell)
        inventory.sharing_facts(shell, [HYPERVISOR])
        inventory.path_facts(shell, Endpoints((Endpoint(HYPERVISOR, port),)))
        counters.read_counters(shell, [HYPERVISOR])
    for flavour in FLAVOURS:
        with contextlib.suppress(UnavailableError):
            find_mpi(flavour)
    socket.getaddrinfo("localhost", None)


if __name__ == "__main__":
    if Path("/dev/kvm").exists():
        write_guest_initrd()
    read_ahead()
    standing: list[Shell] = []  # kept, for its end would be the guest's
    serve(carry_out_here, lambda: standing.append(kvm.stand()))
