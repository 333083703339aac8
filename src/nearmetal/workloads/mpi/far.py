"""Finding an MPI on far machines, and how many ranks their cores can hold."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

from nearmetal.errors import UnavailableError
from nearmetal.hosts.host import HYPERVISOR, FarShell, Shell, is_far, machines_of
from nearmetal.knobs.knob import allowed_in, parse_cpus
from nearmetal.workloads.mpi.mpi import VERSION_TIMEOUT_S, Flavour, Mpi, answering

_WHICH = 'for name do command -v -- "$name"; done; true'


def find_there(shell: FarShell, flavour: Flavour) -> Mpi:
    """Return a flavour's installation below the site's prefix, or on the far PATH.

    The first machine is asked; the others must have the same in the same place. Raise UnavailableError with what was
    looked for when there is none.
    """
    mpirun, version = _first(shell, flavour.launchers, "--version", flavour.launcher_version)
    mpicc, compiler_version = _first(shell, flavour.compilers, flavour.compiler_flag, flavour.compiler_version)
    where = f"{shell.site.mpi_prefix}/bin" if shell.site.mpi_prefix else "the PATH of a plain ssh command"
    if not mpicc or not (mpirun or shell.site.starter):
        lacking = "mpicc" if mpirun or shell.site.starter else "mpirun"
        raise UnavailableError(
            f"the far machine has no {lacking} of {flavour.name} in {where}",
            hint="name the MPI's directory in the host's option `mpi_prefix`; on a node, `module show` prints it",
        )
    if mpirun and version != compiler_version:
        raise UnavailableError(
            f"on the far machine {mpirun} is version {version}, but {mpicc} is {compiler_version}",
            hint="name the directory of one complete installation in the host's option `mpi_prefix`",
        )
    return Mpi(flavour.name, compiler_version, mpirun, mpicc)


def _first(shell: FarShell, names: Sequence[str], flag: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    """Return the first program that answers as the flavour does, and its version; empty when there is none."""
    prefix = f"{shell.site.mpi_prefix}/bin/" if shell.site.mpi_prefix else ""
    found = shell.run(["sh", "-c", _WHICH, "sh", *(f"{prefix}{name}" for name in names)]).text.split("\n")
    ask = partial(shell.run, timeout_s=VERSION_TIMEOUT_S, check=False)
    return answering(filter(None, found), ask, flag, pattern)


def processors(shell: Shell, nodes: Sequence[str]) -> int:
    """Return how many processors the ranks on these nodes have; 0 where each machine has one for each of its ranks.

    Namespaces of one machine share its processors.
    """
    if machines_of(shell) == (HYPERVISOR,):
        return cores(shell, HYPERVISOR)
    crowded = {node: cores(shell, node) for node, ranks in Counter(nodes).items() if ranks > cores(shell, node)}
    return min(crowded.values(), default=0)


def own_processors() -> int:
    """Return how many processors this process may run on: a container or `taskset` may have taken some away."""
    return len(os.sched_getaffinity(0))


def cores(shell: Shell, node: str) -> int:
    """Return how many processors a node's programs may run on; machines of a cluster of the lab are all like this one.

    A container, a batch system's step or `taskset` may have taken some of the machine's away.
    """
    if not is_far(shell):
        return own_processors()
    # By machine: the nodes of another path may be the same machines in another order.
    return shell.once(f"cores {shell.machine_name(node)}", lambda: _allowed_processors(shell, node))


def _allowed_processors(shell: FarShell, node: str) -> int:
    status = shell.read("/proc/self/status", node=node).decode(errors="replace")
    allowed = allowed_in(status)
    if not allowed:
        raise UnavailableError(
            f"/proc/self/status on {shell.machine_name(node)} does not say which processors are allowed"
        )
    return len(parse_cpus(allowed))
