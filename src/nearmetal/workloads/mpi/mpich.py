"""MPICH 4 and 5 (ch4 device).

Between nodes UCX must be told to use TCP on the measured interface: ranks in two network namespaces of one machine
would otherwise find each other's shared memory. A build with libfabric first gets the same orders through FI_*.
Inside a node ch4 uses its own shared memory, which goes by host name.

Ranks that wait poll, and yield every `MPIR_CVAR_POLLS_BEFORE_YIELD` polls. From version 5 on
`MPIR_CVAR_ENABLE_HEAVY_YIELD` makes that yield a nanosleep (`mpivars` lists both); in 4.0 it has no effect. The
shared-memory collectives (`release_gather`) spin without ever yielding, so ranks that must give way use the general
ones: four ranks on two cores then take 15 us for an allreduce of 8 bytes instead of 12 ms.
"""

import re
from collections import Counter

from nearmetal.errors import UnavailableError
from nearmetal.workloads.mpi.mpi import Flavour, Job, Mpi, MpiLaunch, check_job

_UNNOTICED = (
    "MPICH waits for ever for a rank that ended by itself before MPI_Finalize (a file is missing, say): look "
    "for its last words; otherwise raise `trials.timeout` or ask for less"
)
"""On several nodes, whatever its status, and on one before MPI_Init; a signal or MPI_Abort ends all ranks (5.0.2)."""
_FINALIZE = (
    "MPICH before 4.2 may hang in MPI_Finalize over UCX, after all is done (pmodels/mpich, pull request 6596): use a "
    "newer one or Open MPI. Else "
)
"""Our own programs end all ranks at one moment, which avoids it (native/common/sync.c)."""
_SPINNING_COLLECTIVES = ("BARRIER", "BCAST", "REDUCE", "ALLREDUCE")
_GIVE_WAY = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
    **{f"MPIR_CVAR_{name}_POSIX_INTRA_ALGORITHM": "mpir" for name in _SPINNING_COLLECTIVES},
}


def launch(mpi: Mpi, job: Job) -> MpiLaunch:
    """Return the command line that starts `job`; pure."""
    check_job(job)
    argv = [mpi.mpirun, "-bind-to", job.bind, *(["-map-by", job.map_by] if job.map_by else [])]
    if not job.one_node:
        argv += ["-launcher", "ssh", "-launcher-exec", job.remote_shell, *_hosts(mpi, job)]
    for name, value in job.environment:
        argv += ["-genv", name, value]
    argv += ["-n", str(len(job.nodes)), *job.program]
    known = "" if job.one_node or not mpi.is_before(4, 2) else _FINALIZE
    return MpiLaunch(tuple(argv), {**_transport(job), **_progress(mpi, job)}, known + _UNNOTICED)


def _hosts(mpi: Mpi, job: Job) -> list[str]:
    """Return the words that put each rank on its node.

    A node that stood twice in the list would be two nodes to hydra, and its ranks would meet over the loopback. So each
    stands there once, and where ranks of one do not follow each other a map says which rank is where (MPICH 5).
    """
    ranks = Counter(job.nodes)
    hosts = ["-hosts", ",".join(f"{node}:{count}" for node, count in ranks.items())]
    if len(job.groups) == len(ranks):
        return hosts
    if mpi.major < 5:
        message = f"{mpi.label} cannot put ranks {', '.join(job.nodes)}: those of one node must follow each other"
        raise UnavailableError(message, hint="give `placement` node by node, such as [0, 0, 1, 1], or use MPICH 5")
    at = {node: index for index, node in enumerate(ranks)}
    return [*hosts, "-rankmap", ",".join(str(at[node]) for node in job.nodes)]


def _transport(job: Job) -> dict[str, str]:
    if job.one_node:
        return {"UCX_TLS": "self,sm", "FI_PROVIDER": "shm"}
    return {
        "UCX_TLS": "self,tcp",
        "UCX_NET_DEVICES": job.interface,
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": job.interface,
    }


def _progress(mpi: Mpi, job: Job) -> dict[str, str]:
    if job.progress == "polling":
        return _GIVE_WAY if job.oversubscribed else {}
    if mpi.major < 5:
        message = f"{mpi.label} has no blocking progress: its waiting ranks poll"
        raise UnavailableError(message, hint='use MPICH 5 or newer, or progress = "polling"')
    return {**_GIVE_WAY, "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


MPICH = Flavour(
    name="mpich",
    launchers=("mpirun.mpich", "mpiexec.hydra", "mpirun"),
    compilers=("mpicc.mpich", "mpicc"),
    launcher_version=re.compile(r"HYDRA build details:\s+Version:\s+(\d+(?:\.\d+)+)"),
    compiler_flag="-v",
    compiler_version=re.compile(r"mpicc for MPICH version (\d+(?:\.\d+)+)"),
    yields_from=5,
    launch=launch,
)
