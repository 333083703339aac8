"""The proof that a trial's traffic took its path, from the interface counters around the launch.

A host name proves nothing: MPI libraries quietly use shared memory between network namespaces of one machine.
"""

from collections.abc import Mapping

from nearmetal.errors import TrialError
from nearmetal.hosts.lab.machine import MANAGEMENT, MANAGEMENT_TAP
from nearmetal.paths.path import Endpoints
from nearmetal.study.order import Proof

STRAY_SHARE = 0.1
"""Packets elsewhere, as a share of those on the path, above which a trial is not believed."""
STRAY_ALLOWANCE = 3_000
"""Packets that a launcher's own daemons may exchange at start and end, where they do."""
_LAUNCHERS = (".lo", f".{MANAGEMENT}", f".{MANAGEMENT_TAP}")
"""Where a launcher's daemons talk: loopback, and what commands a cluster's nodes."""


def of_counters(counted: Mapping[str, int], endpoints: Endpoints) -> Proof:
    """Sort the packets that were counted on the nodes into the path's interfaces and all others.

    Packets of an RDMA device count for its interface, which does not see them, or sees the same (soft-RoCE).
    """
    own = {f"{end.node}.{end.interface}" for end in endpoints.ends if end.interface}
    beneath = {f"{end.node}.{end.interface}" for end in endpoints.beneath}
    moved = dict.fromkeys(sorted(own), 0)
    stray: dict[str, int] = {}
    seen: dict[str, dict[str, int]] = {"link": {}, "rdma": {}}
    for name, count in counted.items():
        kind, _, rest = name.partition(".")
        if kind in seen and rest.endswith("_packets"):
            interface = rest.rsplit(".", 1)[0]
            seen[kind][interface] = seen[kind].get(interface, 0) + count
    for interface in dict.fromkeys([*seen["link"], *seen["rdma"]]):
        if interface not in beneath:
            side = moved if interface in own else stray
            side[interface] = max(one.get(interface, 0) for one in seen.values())
    return Proof(moved, stray)


def check(proof: Proof, endpoints: Endpoints, least_packets: int) -> None:
    """Raise TrialError unless every end of the path carried at least `least_packets` and nothing else did.

    Loopback and the management port may carry what a launcher needs.
    On a path without a network (`least_packets` is not looked at) no interface may carry traffic. Machines that are
    not nearmetal's alone may carry as much elsewhere as loopback may.
    """
    strays = {name: count for name, count in proof.stray_packets.items() if not name.endswith(_LAUNCHERS)}
    loopback = sum(count for name, count in proof.stray_packets.items() if name.endswith(_LAUNCHERS))
    elsewhere = sum(strays.values())
    if endpoints.networked:
        for interface, moved in proof.moved_packets.items():
            if moved < least_packets:
                raise TrialError(
                    f"only {moved} packets crossed {interface}, the workload needs at least {least_packets}: "
                    "the traffic did not take the path",
                    hint="the MPI used a shortcut (shared memory, loopback); see its launch line in the trial's record",
                )
        allowed = STRAY_ALLOWANCE + STRAY_SHARE * sum(proof.moved_packets.values())
    else:
        allowed = STRAY_ALLOWANCE
    if loopback + (0 if endpoints.alone else elsewhere) > allowed or (strays and endpoints.alone):
        raise TrialError(
            f"{loopback} packets crossed loopback or management and {elsewhere} crossed "
            f"{', '.join(sorted(strays)) or 'no other interface'}: the traffic did not keep to the path",
            hint="the MPI also used another route (see its launch line in the trial's record), or answers come back by "
            "another interface: `ip route get ADDRESS` on each node shows by which",
        )
