"""Ranks started by a batch system instead of the MPI's own launcher; the transport stays the flavour's choice."""

from itertools import pairwise

from nearmetal.errors import UnavailableError
from nearmetal.hosts.host import FarShell
from nearmetal.workloads.mpi.mpi import Flavour, Job, Mpi, MpiLaunch

_MCA, _EXPORT = "--mca", "-x"


def launch(mpi: Mpi, job: Job, shell: FarShell, flavour: Flavour) -> MpiLaunch:
    """Return the command line of the site's starter; the file with each rank's node is written through the shell.

    The flavour's own command line has the transport and progress that it would set; options that Open MPI takes as
    `--mca NAME VALUE` become `OMPI_MCA_NAME`, which its ranks read whoever starts them, and `-x NAME=VALUE` is set.
    """
    starter = shell.site.starter
    if starter is None:
        raise UnavailableError("this site has no launcher of its own")
    own = flavour.launch(mpi, job)
    lengths = range(len(own.argv) - len(job.program) + 1)
    before_program = own.argv[: next(at for at in lengths if own.argv[at : at + len(job.program)] == job.program)]
    triples = zip(before_program, pairwise(before_program[1:]), strict=False)
    settings = {f"OMPI_MCA_{name}": value for word, (name, value) in triples if word == _MCA}
    exported = dict(value.split("=", 1) for word, value in pairwise(before_program) if word == _EXPORT)
    hostfile = f"{shell.scratch}/ranks"
    shell.write(hostfile, "".join(f"{node}\n" for node in job.nodes).encode())
    argv, env = starter.command(flavour.name, job.nodes, hostfile)
    return MpiLaunch((*argv, *job.program), {**own.env, **settings, **dict(job.environment), **exported, **env})
