"""Native programs that need an MPI: built with that MPI's own compiler at first use. Standard library only."""

import os
import re
from pathlib import Path

from nearmetal import native, process
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.far.build import program
from nearmetal.hosts.host import FarShell, Shell, is_far
from nearmetal.process import Finished
from nearmetal.workloads.mpi.far import find_there
from nearmetal.workloads.mpi.mpi import Mpi
from nearmetal.workloads.mpi.table import find_mpi, flavour_named

PROFILER = "libnearmetal-trace.so"
_SHARED_LIBRARY = ("-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
_VERSION_TIMEOUT_S = 30.0

# MPI_STATUSES_IGNORE is a null or one-element pointer for a parameter that headers declare as an array: GCC takes
# that for an overflow (MPICH 4.0 with GCC 12). Exported symbols are for native/common/yield.c.
_FLAGS = ("-D_GNU_SOURCE", "-Wno-stringop-overflow", "-rdynamic")


def mpi_for(shell: Shell, flavour: str, prefix: Path | None = None) -> Mpi:
    """Return the MPI of that flavour where the shell's programs run; raise UnavailableError without one.

    `prefix` is the directory it must be in; far machines have theirs from the host's option `mpi_prefix`.
    """
    if not is_far(shell):
        return find_mpi(flavour, prefix)
    far = shell
    return far.once(f"mpi {flavour}", lambda: find_there(far, flavour_named(flavour)))


def build_program(
    mpi: Mpi,
    room: str,
    name: str,
    *,
    shares: tuple[str, ...] = (),
    extra_flags: tuple[str, ...] = (),
    shell: Shell | None = None,
) -> Path:
    """Return the program `name` of native/`room` (and of what it `shares`) for an MPI, built when not in the cache.

    With a `shell` to far machines it is built there, for all of them. The cache is keyed by the flavour, its version
    and place, the compiler behind it, flags and sources. Raise UnavailableError when that MPI has no compiler,
    NearmetalError with the compiler's last words when it fails.
    """
    far = shell if is_far(shell) else None
    recipe = native.Recipe(
        name=name,
        room=room,
        shares=shares,
        compiler=(mpi.mpicc,),
        compiler_id=mpi.label,
        toolchain=_toolchain(mpi, far),
        extra_flags=(*_FLAGS, *extra_flags),
    )
    return program(far, recipe) if far is not None else native.build(recipe)


def build_engine(mpi: Mpi, extra_flags: tuple[str, ...] = (), shell: Shell | None = None) -> Path:
    """Return the measuring engine built for an MPI."""
    return build_program(mpi, "bench", "nmbench", shares=("common",), extra_flags=extra_flags, shell=shell)


def build_profiler(mpi: Mpi, shell: Shell | None = None) -> Path:
    """Return the library that records what an MPI program does, built for an MPI; `profiled` puts it in front."""
    return build_program(mpi, "trace", PROFILER, extra_flags=_SHARED_LIBRARY, shell=shell)


def refuse_unloadable(folder: Path) -> None:
    """Raise UnavailableError for a folder whose libraries LD_PRELOAD cannot name: blanks and colons end names there."""
    if re.search(r"[\s:]", str(folder)):
        text = f"the profiler's library cannot be loaded from {folder}, whose path has a blank or a colon"
        raise UnavailableError(text, hint="name another cache directory with XDG_CACHE_HOME, such as /var/tmp/cache")


def profiled(profiler: Path, folder: str, trace_id: int, preload: str = "") -> dict[str, str]:
    """Return the variables that make ranks record into a folder; `trace_id` is the launch's, `preload` what was set."""
    return {
        "LD_PRELOAD": f"{profiler}:{preload}" if preload else str(profiler),
        "NEARMETAL_TRACE_DIR": folder,
        "NEARMETAL_TRACE_ID": f"{trace_id:x}",
    }


def _toolchain(mpi: Mpi, far: FarShell | None) -> str:
    """Return the first line that the compiler behind mpicc says of itself; nothing is compiled from prebuilt."""
    if os.environ.get("NEARMETAL_PREBUILT") and far is None:
        return ""
    refuse_without_compiler(mpi)
    argv = [mpi.mpicc, "--version"]
    if far is not None:
        return far.once(f"toolchain {mpi.mpicc}", lambda: _first_line(far.run(argv, timeout_s=_VERSION_TIMEOUT_S)))
    finished = process.version_of(argv, timeout_s=_VERSION_TIMEOUT_S)
    if not finished.ok:
        raise NearmetalError(finished.complaint())
    return _first_line(finished)


def refuse_without_compiler(mpi: Mpi) -> None:
    """Raise UnavailableError for an MPI with which nothing can be built."""
    if not mpi.mpicc:
        raise UnavailableError(
            f"{mpi.label} at {mpi.mpirun} comes without mpicc",
            hint="install its development package, or name ready programs in NEARMETAL_PREBUILT",
        )


def _first_line(finished: Finished) -> str:
    return finished.text.splitlines()[0]
