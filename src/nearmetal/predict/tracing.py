"""Run an MPI program under the profiler and report the result.

The profiler is a library in front of the program's MPI (LD_PRELOAD), built with the `mpicc` that belongs to the
launcher. The launcher itself is not traced: it is told to pass three variables to the ranks.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal import native, process
from nearmetal.errors import (
    BadInputError,
    ForeignFileError,
    NearmetalError,
    UnavailableError,
    command_line,
    os_errors_as,
)
from nearmetal.predict.elf import Executable, read_executable
from nearmetal.predict.trace import Trace
from nearmetal.predict.trace_file import SUFFIX, read_trace
from nearmetal.workloads.build import build_profiler, profiled, refuse_unloadable
from nearmetal.workloads.mpi.mpi import VERSION_TIMEOUT_S, Mpi
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")
_FLAVOUR_OF_LIBRARY = {"libmpi.so.40": "openmpi", "libmpi.so.12": "mpich", "libmpich.so.12": "mpich"}


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A launch line, its launcher by path where PATH has none: where it is, and the program if its options show one."""

    argv: tuple[str, ...]
    launcher: Path
    program: Path | None
    executable: Executable | None

    @property
    def by_slurm(self) -> bool:
        """Return whether Slurm starts the ranks."""
        return self.launcher.name == "srun"


def understand(argv: Sequence[str]) -> LaunchLine:
    """Return what a launch line is; raise BadInputError for one that cannot be traced."""
    if not argv:
        raise BadInputError("there is nothing to trace", hint="nearmetal trace -- mpirun -n 4 PROGRAM")
    name = Path(argv[0]).name
    if name.split(".")[0] not in LAUNCHERS:
        raise BadInputError(
            f"the command starts with {argv[0]!r}, not with an MPI launcher ({', '.join(LAUNCHERS)})",
            hint=command_line("trace", *(["show"] if Path(argv[0]).is_dir() else ["--", "mpirun", "-n", "1"]), argv[0]),
        )
    program, executable = _find_program(argv[1:])
    found = shutil.which(argv[0])
    launcher = Path(found) if found else _off_path(argv[0], executable)
    if launcher is None:
        raise UnavailableError(f"there is no launcher {argv[0]!r} here", hint="load the MPI module, or give its path")
    if executable is not None and executable.has_mpi_inside:
        text = f"{program} has MPI linked in statically, so no profiler can be put in front of it"
        raise BadInputError(text, hint="link it with the shared MPI library (no -static, no libmpi.a)")
    return LaunchLine((argv[0] if found else str(launcher), *argv[1:]), launcher, program, executable)


def _off_path(name: str, executable: Executable | None) -> Path | None:
    """Return the launcher of this name in an MPI that studies use: the program's, else the first that has one."""
    if Path(name).name != name:
        return None
    of_program = _FLAVOUR_OF_LIBRARY.get(executable.mpi_library, "") if executable else ""
    for flavour in [of_program] if of_program else FLAVOURS:
        with contextlib.suppress(UnavailableError):
            launcher = Path(find_mpi(flavour).mpirun).with_name(name)
            if launcher.is_file():
                return launcher
    return None


def _find_program(arguments: Sequence[str]) -> tuple[Path | None, Executable | None]:
    """Return the first argument that is an executable file: launchers' options take numbers and names."""
    for argument in arguments:
        found = None if argument.startswith("-") else shutil.which(argument)
        if found:
            return Path(found), read_executable(Path(found))
    return None, None


def mpi_of(launch: LaunchLine) -> Mpi:
    """Return the MPI of a launch line; raise UnavailableError or BadInputError when program and launcher differ."""
    library = launch.executable.mpi_library if launch.executable else ""
    if library.startswith("libmpi_abi"):
        text = f"{launch.program} is built for MPI's standard ABI ({library}), which the profiler does not know"
        raise BadInputError(text, hint="build it with mpicc instead of mpicc_abi to trace it")
    of_program = _FLAVOUR_OF_LIBRARY.get(library, "")
    flavour = of_program if launch.by_slurm else _flavour_of_launcher(launch.launcher)
    if not flavour:
        raise UnavailableError(
            f"cannot determine which MPI {launch.launcher} and {launch.program or 'the program'} use",
            hint=f"known: {', '.join(FLAVOURS)}; put the MPI's own mpirun first in the command",
        )
    if of_program and of_program != flavour:
        text = f"{launch.program} is linked with {library} ({of_program}), but {launch.launcher} is {flavour}'s"
        raise BadInputError(text, hint=f"start it with {of_program}'s launcher, or build it with {flavour}'s mpicc")
    folder = launch.launcher.parent
    if launch.by_slurm or folder.name != "bin":
        return find_mpi(flavour)
    return find_mpi(flavour, folder.parent)


def _flavour_of_launcher(launcher: Path) -> str:
    finished = process.run([str(launcher), "--version"], timeout_s=VERSION_TIMEOUT_S)
    text = (finished.stdout + finished.stderr).decode(errors="replace")
    return next((name for name, flavour in FLAVOURS.items() if flavour.launcher_version.search(text)), "")


def traced_command(launch: LaunchLine, mpi: Mpi, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the launch line that hands `variables` to the ranks; pure.

    Open MPI takes `-x` in each part of a line with `:`; MPICH's `-genv` and Slurm's `--export` hold for all parts.
    """
    first, *rest = launch.argv
    if launch.by_slurm:
        exported = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        return (first, f"--export={exported}", *rest)
    if mpi.flavour == "mpich":
        return (first, *(part for name, value in variables.items() for part in ("-genv", name, value)), *rest)
    given = [part for name, value in variables.items() for part in ("-x", f"{name}={value}")]
    argv = [first, *given]
    for argument in rest:
        argv += [argument, *(given if argument == ":" else ())]
    return tuple(argv)


def new_trace_directory(path: Path) -> Path:
    """Make the directory of a run; raise BadInputError when it holds something already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInputError(f"{path} already exists and is not empty", hint="choose another directory with -o DIR")
    with os_errors_as(NearmetalError, f"cannot make {path}", hint="choose another one with -o DIR"):
        path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def run_traced(argv: Sequence[str], directory: Path, *, processor_time: bool = False) -> tuple[Trace, int]:
    """Run a launch line under the profiler; return its trace and the launcher's exit status.

    With `processor_time` gaps leave out the time in which a rank had no processor.
    Raise BadInputError or UnavailableError for what cannot be traced (nothing is started) and NearmetalError, saying
    which ranks are missing and why, when the program leaves no whole trace.
    """
    launch = understand(argv)
    mpi = mpi_of(launch)
    refuse_unloadable(native.cache_dir())  # before it is built, which takes seconds
    profiler = build_profiler(mpi)
    folder = new_trace_directory(directory)
    variables = profiled(profiler, str(folder), secrets.randbits(63) | 1, os.environ.get("LD_PRELOAD", ""))
    if processor_time:
        variables["NEARMETAL_TRACE_CLOCK"] = "processor"
    status = _run_in_front(traced_command(launch, mpi, variables))
    try:
        return read_trace(folder), status
    except ForeignFileError as error:
        raise _incomplete(launch, folder, status, error) from error


def _run_in_front(argv: Sequence[str]) -> int:
    """Run the launcher with our own output; it ends with us. A traced program may take as long as it likes."""
    # The launcher is in its own session, from which a terminal cannot be read.
    stdin = subprocess.DEVNULL if os.isatty(0) else 0
    child = process.spawn(argv, stdin=stdin, stdout=1, stderr=2)
    try:
        return child.wait()
    except BaseException:
        process.end_session(child)
        raise


def _incomplete(launch: LaunchLine, folder: Path, status: int, refused: ForeignFileError) -> NearmetalError:
    """Return the error that says what a run without a whole trace left behind, and the likely reason.

    `refused` is what a reader says of its files, of which none may be missing.
    """
    whole = len(list(folder.glob(f"rank-*{SUFFIX}")))
    begun = len(list(folder.glob(f"rank-*{SUFFIX}.part")))
    ended = f"the launcher ended with status {status}"
    if whole and not begun:
        return refused
    if begun:
        return NearmetalError(
            f"{begun} of the {whole + begun} ranks that began a trace in {folder} did not finish it; {ended}",
            hint="the program died before MPI_Finalize, or the disk is full: see its messages above. "
            "Partial traces are refused by every reader",
        )
    if launch.executable is not None and not launch.executable.dynamic:
        hint = f"{launch.program} is statically linked, so the profiler cannot be loaded into it"
    elif status:
        hint = "the program did not get as far as MPI_Init: see its messages above"
    else:
        hint = (
            "no rank called MPI_Init through this MPI: is it an MPI program, and is its MPI linked dynamically and the "
            "same as the launcher's? One that starts MPI by MPI_Session_init alone is not traced"
        )
    return NearmetalError(f"no rank recorded anything in {folder}; {ended}", hint=hint)
