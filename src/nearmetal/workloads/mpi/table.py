"""The flavours of MPI that nearmetal launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError
from nearmetal.workloads.mpi.mpi import Flavour, Job, Mpi, MpiLaunch, find
from nearmetal.workloads.mpi.mpich import MPICH
from nearmetal.workloads.mpi.openmpi import OPENMPI

if TYPE_CHECKING:
    from pathlib import Path

FLAVOURS: dict[str, Flavour] = {flavour.name: flavour for flavour in (OPENMPI, MPICH)}


def flavour_named(name: str) -> Flavour:
    """Return a flavour; raise BadInputError for a name that is not in the table."""
    if name not in FLAVOURS:
        raise BadInputError(f"{name!r} is not an MPI that nearmetal launches", hint=f"known: {', '.join(FLAVOURS)}")
    return FLAVOURS[name]


def find_mpi(flavour: str, prefix: Path | None = None) -> Mpi:
    """Return an installation of a flavour, below `prefix` or anywhere; raise UnavailableError without one."""
    return find(flavour_named(flavour), prefix)


def launch(mpi: Mpi, job: Job) -> MpiLaunch:
    """Return the command line that starts a job with this MPI; pure, raises UnavailableError or BadInputError."""
    return flavour_named(mpi.flavour).launch(mpi, job)
