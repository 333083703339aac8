"""Open MPI 4 and 5.

The point-to-point layer is ob1 over the byte-transfer layers `tcp`, `self` and shared memory, named explicitly:
left to itself Open MPI would weigh UCX and OFI too, and which one a figure is of would depend on the machine.

Ranks that wait poll. From version 5 on they can sleep instead (`threads_pthreads_yield_strategy nanosleep`, see
opal/mca/threads/pthreads); version 4 only has sched_yield, which keeps the core busy unless the program takes that call
itself, as nearmetal's own do (native/common/yield.c): they sleep until something comes over a connection.
"""

import ipaddress
import re

from nearmetal.errors import UnavailableError
from nearmetal.workloads.mpi.mpi import Flavour, Job, Mpi, MpiLaunch, check_job


def launch(mpi: Mpi, job: Job) -> MpiLaunch:
    """Return the command line that starts `job`; pure."""
    check_job(job)
    shared = ["--bind-to", job.bind, *_agent(mpi, job), *_transport(mpi, job), *_progress(mpi, job)]
    if mpi.major < 5:
        shared += [*(["--map-by", job.map_by] if job.map_by else []), "--oversubscribe"]
    else:
        shared += ["--map-by", f"{job.map_by}:OVERSUBSCRIBE"]
    argv = [mpi.mpirun, *shared]
    for index, (node, ranks) in enumerate(job.groups):
        argv += [":"] if index else []
        argv += ["-n", str(ranks)]
        argv += [] if job.one_node else ["--host", f"{node}:{ranks}"]
        for name, value in {**dict(job.environment), **_waiting(mpi, job)}.items():
            argv += ["-x", f"{name}={value}"]
        argv += job.program
    # Open MPI refuses to run as root, which every process is inside its own user namespace.
    return MpiLaunch(tuple(argv), {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})


def _agent(mpi: Mpi, job: Job) -> list[str]:
    # A daemon's own choice is /tmp: version 4 leaves its folder there when it is killed, version 5 ends with status 213
    # when another container's daemon has the same PID.
    # Version 4 looks for ssh even where all ranks are on one node, and ends where there is none.
    if job.remote_shell and mpi.major < 5:
        daemons = ["--mca", "oob_tcp_if_include", job.management] if job.management else []
        own = ["--mca", "orte_tmpdir_base", job.scratch] if job.scratch and not job.one_node else []
        return ["--mca", "plm_rsh_agent", job.remote_shell, *own, *daemons]
    if job.one_node:
        return []
    daemons = ["--prtemca", "prte_if_include", job.management] if job.management else []
    own = ["--prtemca", "prte_tmpdir_base", job.scratch] if job.scratch else []
    return ["--prtemca", "plm_ssh_agent", job.remote_shell, *own, *daemons]


def _transport(mpi: Mpi, job: Job) -> list[str]:
    memory = "vader" if mpi.major < 5 else "sm"
    layers = ["self", memory] if job.one_node else ["self", memory, "tcp"]
    chosen = ["--mca", "pml", "ob1", "--mca", "btl", ",".join(layers)]
    return chosen if job.one_node else [*chosen, "--mca", "btl_tcp_if_include", _included(job.subnet)]


def _included(subnets: str) -> str:
    """Return subnets as Open MPI can be told them.

    A single address is told as the two of its /31: opal_net_prefix2netmask shifts by all 32 bits and makes a netmask of
    0 of /32, which every interface matches, the loopback too; ranks then wait for each other for ever.
    """
    networks = [ipaddress.ip_network(one, strict=False) for one in subnets.split(",")]
    told = [one.supernet() if one.prefixlen == one.max_prefixlen else one for one in networks]
    return ",".join(dict.fromkeys(map(str, told)))


def _progress(mpi: Mpi, job: Job) -> list[str]:
    if job.progress == "polling":
        return ["--mca", "mpi_yield_when_idle", "1" if job.oversubscribed else "0"]
    if mpi.major < 5 and job.sleeps:
        return ["--mca", "mpi_yield_when_idle", "1"]
    if mpi.major < 5:
        message = f"{mpi.label} has no blocking progress for programs that are not nearmetal's own: waiting ranks poll"
        raise UnavailableError(message, hint='use Open MPI 5 or newer, or progress = "polling"')
    return ["--mca", "mpi_yield_when_idle", "1", "--mca", "threads_pthreads_yield_strategy", "nanosleep"]


def _waiting(mpi: Mpi, job: Job) -> dict[str, str]:
    """Return what makes nearmetal's own programs sleep until a message comes: libevent must wait in an epoll."""
    if mpi.major >= 5 or job.progress == "polling" or job.one_node:
        return {}
    return {"NEARMETAL_YIELD": "events", "OMPI_MCA_opal_event_include": "epoll"}


OPENMPI = Flavour(
    name="openmpi",
    launchers=("mpirun.openmpi", "mpirun"),
    compilers=("mpicc.openmpi", "mpicc"),
    launcher_version=re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+(?:\.\d+)+)"),
    compiler_flag="--showme:version",
    compiler_version=re.compile(r"Open MPI (\d+(?:\.\d+)+)"),
    yields_from=1,
    launch=launch,
)
