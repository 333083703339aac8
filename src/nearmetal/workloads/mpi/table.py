"""The flavours of MPI that nearmetal launches."""

from collections.abc import Sequence
from pathlib import Path

from nearmetal.errors import BadInputError, named
from nearmetal.hosts.host import Shell, is_far
from nearmetal.workloads.mpi import starter
from nearmetal.workloads.mpi.mpi import Flavour, Job, Mpi, MpiLaunch, find
from nearmetal.workloads.mpi.mpich import MPICH
from nearmetal.workloads.mpi.openmpi import OPENMPI

FLAVOURS: dict[str, Flavour] = {flavour.name: flavour for flavour in (OPENMPI, MPICH)}


def flavour_named(name: str) -> Flavour:
    """Return a flavour; raise BadInputError for a name that is not in the table."""
    return named(FLAVOURS, name, f"{name!r} is not an MPI that nearmetal launches")


def find_mpi(flavour: str, prefix: Path | None = None) -> Mpi:
    """Return an installation of a flavour, below `prefix` or anywhere; raise UnavailableError without one."""
    return find(flavour_named(flavour), prefix)


def job_nodes(shell: Shell, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes by the names that a launcher there knows; raise BadInputError for an IPv6 address."""
    names = tuple(map(shell.launch_name, nodes)) if is_far(shell) else tuple(nodes)
    if wrong := next((name for name in names if ":" in name), ""):
        message = f"launchers of MPI take no IPv6 address for a host's name: {wrong}"
        raise BadInputError(message, hint="give the machine an IPv4 address or a host name as `reach`")
    return names


def launch(mpi: Mpi, job: Job, shell: Shell | None = None) -> MpiLaunch:
    """Return the command line that starts a job with this MPI; raises UnavailableError or BadInputError.

    Where the shell's site has its own starter (a batch system's `srun`), that one starts the ranks.
    """
    if is_far(shell) and shell.site.starter:
        return starter.launch(mpi, job, shell, flavour_named(mpi.flavour))
    return flavour_named(mpi.flavour).launch(mpi, job)
