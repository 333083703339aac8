"""Native programs that need an MPI: built with that MPI's own compiler at first use. Standard library only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearmetal import native, process
from nearmetal.errors import UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.workloads.mpi.mpi import Mpi

_VERSION_TIMEOUT_S = 30.0

# MPI_STATUSES_IGNORE is a null or one-element pointer for a parameter that headers declare as an array: GCC takes
# that for an overflow (MPICH 4.0 with GCC 12).
_FLAGS = ("-D_GNU_SOURCE", "-Wno-stringop-overflow")


def build_program(
    mpi: Mpi,
    room: str,
    name: str,
    *,
    files: tuple[str, ...] = (),
    include_rooms: tuple[str, ...] = (),
    extra_flags: tuple[str, ...] = (),
) -> Path:
    """Return the program `name` of native/`room` for an MPI, building it when it is not in the cache.

    The cache is keyed by the flavour, its version and place, the compiler behind it, flags and sources. Raise
    UnavailableError when that MPI has no compiler, NearmetalError with the compiler's last words when it fails.
    """
    return native.build(
        native.Recipe(
            name=name,
            room=room,
            files=files,
            include_rooms=include_rooms,
            compiler=(mpi.mpicc,),
            compiler_id=mpi.label,
            toolchain=_toolchain(mpi),
            extra_flags=(*_FLAGS, *extra_flags),
        )
    )


def build_engine(mpi: Mpi) -> Path:
    """Return the measuring engine built for an MPI."""
    return build_program(mpi, "bench", "nmbench")


def _toolchain(mpi: Mpi) -> str:
    """Return the first line that the compiler behind mpicc says of itself; nothing is compiled from prebuilt."""
    if os.environ.get("NEARMETAL_PREBUILT"):
        return ""
    if not mpi.mpicc:
        raise UnavailableError(
            f"{mpi.label} at {mpi.mpirun} comes without mpicc",
            hint="install its development package, or name ready programs in NEARMETAL_PREBUILT",
        )
    return process.run([mpi.mpicc, "--version"], timeout_s=_VERSION_TIMEOUT_S, check=True).text.splitlines()[0]
