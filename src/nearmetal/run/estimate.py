"""How long a study will take, before anything has run: a rough answer to 'coffee or lunch?'."""

from nearmetal.hosts.host import whole_number
from nearmetal.hosts.lab.cluster import Cluster, nodes_of
from nearmetal.hosts.table import find_host
from nearmetal.study.order import PathOrder
from nearmetal.study.plan import block, by_launch, longest_pause_ns
from nearmetal.study.spec import HostSpec, Study, WorkloadSpec
from nearmetal.units import NS_PER_S
from nearmetal.workloads.engine import of_size
from nearmetal.workloads.figures import of_pairs
from nearmetal.workloads.parallel import GUEST_KINDS

# Orders of magnitude of a small machine, for an estimate that is labelled "about": one small message through two
# network stacks, bytes through a software path, and a program of one's own, of which nothing is known beforehand.
MESSAGE_NS = 30_000
BYTES_PER_US = 1_000
PROGRAM_S = {"application": 0.5, "command": 3.0}
CLIENT_S = 2.0
"""How long a client of a pair runs, size after size, where the study does not say."""

GUEST_S = 20.0
"""A core's time for booting one guest in the lab: 9 trials of 4 guests each took 1,050 s with the boots of machines."""


def estimate(study: Study) -> tuple[int, int]:
    """Return about how many ns the fewest and the most blocks take."""
    pace = find_host(study.host.kind).pace(study.host)
    workloads = {workload.name: workload for workload in study.workload}
    per_launch_s = (
        pace.trial_s
        + _guests_s(study.host, launch.path, workloads[launch.workload.label])
        + pace.slowdown * sum(_measured_s(study, workloads[order.workload.label]) for order in launch.of_launch)
        for launch in by_launch(study, block(study, 0))
    )
    per_block_s = sum(per_launch_s) / pace.side_by_side
    per_block_ns = int(per_block_s * NS_PER_S)
    return per_block_ns * study.trials.min_blocks, per_block_ns * study.trials.max_blocks


def _guests_s(host: HostSpec, path: PathOrder, workload: WorkloadSpec) -> float:
    """Return what a trial's share of booting guests takes; of those in the snapshot of their machines nothing."""
    if host.kind != "lab" or path.kind not in GUEST_KINDS:
        return 0.0
    nodes = len(set(workload.placed))
    machines = nodes_of(host.options)
    if not machines:
        return GUEST_S * (nodes - 1)
    if Cluster(machines, {}, host.options.get("standing_guests") is not False).has_guests(path):
        return 0.0
    booted = nodes if path.options.get("ends", "both") == "both" else nodes - 1
    return GUEST_S * booted / whole_number(host.options, "launches", 1)


def _measured_s(study: Study, workload: WorkloadSpec) -> float:
    """Return about how long the measuring itself takes: as long as a tool was told to, else message by message."""
    if workload.kind in PROGRAM_S:
        return PROGRAM_S[workload.kind]
    if of_pairs(workload.kind) and workload.kind != "perftest":  # which is told iterations
        seconds, runs = workload.options.get("seconds", CLIENT_S), workload.options.get("runs", 1)
        if isinstance(seconds, int | float) and isinstance(runs, int):
            return seconds * runs * max(1, len(workload.sizes))
    message_ns = MESSAGE_NS + longest_pause_ns(study, workload) // 2
    return (
        sum(_iterations(workload, size) * (message_ns + size * 1_000 // BYTES_PER_US) for size in workload.sizes or [0])
        / NS_PER_S
    )


def _iterations(workload: WorkloadSpec, size: int) -> int:
    made = (("iterations", workload.iterations), ("warmup", workload.warmup))
    return sum(of_size(size, workload.options, name, usual) for name, usual in made)
