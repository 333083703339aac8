"""Environment modules (Tcl, also read by Lmod) for the MPI knobs of a profile."""

from nearmetal.knobs import mpi
from nearmetal.tune.export.common import Exported, banner, left_out
from nearmetal.tune.profile import Profile


def export(profile: Profile) -> Exported:
    """Return the module file `nearmetal/NAME`."""
    settings = {knob: value for knob, value in profile.setting.items() if knob.startswith(mpi.PREFIX)}
    given = mpi.mpi_environment(settings, profile.mpi_flavour)
    lines = "".join(f"setenv {name} {{{value}}}\n" for name, value in sorted(given.env.items()))
    if given.argv:
        lines += f"setenv NEARMETAL_MPIRUN_ARGS {{{' '.join(given.argv)}}}\n"
    text = (
        f"#%Module1.0\n{banner(profile)}module-whatis {{nearmetal {profile.name}: {profile.mpi_flavour} for"
        f" {profile.workload_class} workloads}}\n{lines}"
    )
    where = "a directory of MODULEPATH; then `module load nearmetal/" + profile.name + "`"
    if given.argv:
        where += " and `mpirun $NEARMETAL_MPIRUN_ARGS ...`"
    missed = left_out(profile, settings, "a module only sets the environment of MPI")
    return Exported({f"nearmetal/{profile.name}": text} if settings else {}, where, missed)
