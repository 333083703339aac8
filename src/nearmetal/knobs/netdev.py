"""Busy polling and the packet budget of a machine: `/proc/sys/net/core`.

`busy_poll` and `busy_read` are global. 50 us in both made MPI over TCP three to five times slower where the library
waits in poll() (open-mpi/ompi#10929), although two stock tuned profiles set exactly this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.knobs.access import Access, file_access
from nearmetal.knobs.knob import PlainKnob, Scope, Stage, Whole

if TYPE_CHECKING:
    from nearmetal.hosts.host import Shell
    from nearmetal.knobs.knob import Kind, Locate, Target


def machine_file(path: str) -> Locate:
    """Return what locates one file of the machine."""

    def locate(_shell: Shell, target: Target) -> tuple[Access, ...]:
        return (file_access(target.node, path),)

    return locate


def sysctl_knob(name: str, path: str, kind: Kind, about: str, scope: Scope = Scope.MACHINE) -> PlainKnob:
    """Return the knob of one file under `/proc/sys`."""
    return PlainKnob(f"host.{name}", about, scope, Stage.HOST, kind, machine_file(f"/proc/sys/{path}"))


def _core(name: str, kind: Kind, about: str) -> PlainKnob:
    return sysctl_knob(name, f"net/core/{name}", kind, about)


_COUNT = Whole(1, 2**31 - 1, "packets")

KNOBS = (
    _core("busy_read", Whole(0, 1_000_000, "us"), "how long a blocking receive polls the queue before it sleeps"),
    _core("busy_poll", Whole(0, 1_000_000, "us"), "how long poll() and select() poll the queue before they sleep"),
    _core("netdev_budget", _COUNT, "packets that one softirq may process"),
    _core("netdev_budget_usecs", Whole(1, 10_000_000, "us"), "how long one softirq may process packets"),
    _core("dev_weight", _COUNT, "packets that the backlog of one processor may process in a turn"),
    _core("netdev_max_backlog", _COUNT, "packets that wait for one processor before some are dropped"),
)
