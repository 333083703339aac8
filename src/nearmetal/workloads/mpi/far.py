"""Finding an MPI on far machines."""

import re
from collections.abc import Sequence
from functools import partial

from nearmetal.errors import UnavailableError
from nearmetal.hosts.host import FarShell
from nearmetal.workloads.mpi.mpi import VERSION_TIMEOUT_S, Flavour, Mpi, answering

_WHICH = 'for name do command -v -- "$name"; done; true'


def find_there(shell: FarShell, flavour: Flavour) -> Mpi:
    """Return a flavour's installation below the site's prefix, or on the far PATH.

    The first machine is asked; the others must have the same in the same place. Raise UnavailableError with what was
    looked for when there is none, and where another machine has another version there.
    """
    failed: dict[str, list[str]] = {"mpirun": [], "mpicc": []}
    mpirun, version = _first(shell, flavour.launchers, "--version", flavour.launcher_version, failed["mpirun"])
    ask_compiler = flavour.compilers, flavour.compiler_flag, flavour.compiler_version
    mpicc, compiler_version = _first(shell, *ask_compiler, failed["mpicc"])
    where = f"{shell.site.mpi_prefix}/bin" if shell.site.mpi_prefix else "the PATH of a plain ssh command"
    if not mpicc or not (mpirun or shell.site.starter):
        lacking = "mpicc" if mpirun or shell.site.starter else "mpirun"
        raise UnavailableError(
            "; ".join([f"the far machine has no {lacking} of {flavour.name} in {where}", *failed[lacking]]),
            hint="name the MPI's directory in the host's option `mpi_prefix`; on a node, `module show` prints it",
        )
    if mpirun and version != compiler_version:
        raise UnavailableError(
            f"on the far machine {mpirun} is version {version}, but {mpicc} is {compiler_version}",
            hint="name the directory of one complete installation in the host's option `mpi_prefix`",
        )
    found = Mpi(flavour.name, compiler_version, mpirun, mpicc)
    for node in shell.machines[1:]:
        _refuse_other_version(shell, node, flavour, found)
    return found


def _refuse_other_version(shell: FarShell, node: str, flavour: Flavour, mpi: Mpi) -> None:
    """Raise UnavailableError where the first machine's MPI is of another version on this one; a build asks for it."""
    ask = partial(shell.run, node=node, timeout_s=VERSION_TIMEOUT_S, check=False)
    asked = ((mpi.mpirun, "--version", flavour.launcher_version),) if mpi.mpirun else ()
    for program, flag, pattern in (*asked, (mpi.mpicc, flavour.compiler_flag, flavour.compiler_version)):
        _, version = answering([program], ask, flag, pattern)
        if version not in {"", mpi.version}:
            first = shell.machine_name(shell.machines[0])
            raise UnavailableError(
                f"{program} is version {version} on {shell.machine_name(node)}, but {mpi.version} on {first}",
                hint="install one version everywhere, or name where it is in the host's option `mpi_prefix`",
            )


def _first(
    shell: FarShell, names: Sequence[str], flag: str, pattern: re.Pattern[str], failed: list[str]
) -> tuple[str, str]:
    """Return the first program that answers as the flavour does, and its version; empty when there is none."""
    prefix = f"{shell.site.mpi_prefix}/bin/" if shell.site.mpi_prefix else ""
    found = shell.run(["sh", "-c", _WHICH, "sh", *(f"{prefix}{name}" for name in names)]).text.split("\n")
    ask = partial(shell.run, timeout_s=VERSION_TIMEOUT_S, check=False)
    return answering(filter(None, found), ask, flag, pattern, failed)
