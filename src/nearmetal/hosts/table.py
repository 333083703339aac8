"""Every kind of host: a new one is one file and one row."""

import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from nearmetal.errors import UnavailableError, named, refuse_unknown
from nearmetal.hosts import fake, kubectl, ssh
from nearmetal.hosts.batch import host as batch
from nearmetal.hosts.batch.allocations import REACHING
from nearmetal.hosts.batch.slurm import NodeShells, Slurm
from nearmetal.hosts.far.host import PATH_OPTIONS, FarHost
from nearmetal.hosts.host import Host, whole_number
from nearmetal.hosts.kind import HostKind, Pace
from nearmetal.hosts.lab import lab
from nearmetal.hosts.local import LocalHost
from nearmetal.study.spec import HostSpec, Study


def _ssh(spec: HostSpec) -> FarHost:
    """Load asyncssh only for a study that needs it."""
    try:
        from nearmetal.hosts.ssh.host import open_ssh  # noqa: PLC0415
    except ImportError as error:
        raise UnavailableError(f"the ssh host needs asyncssh: {error}", hint="pip install 'nearmetal[ssh]'") from error
    return open_ssh(spec)


def _slurm_machine(spec: HostSpec) -> FarHost:
    """Return a node that a trial was on."""
    choices = {name: value for name, value in spec.options.items() if name != "job"}
    refuse_unknown(choices, dict.fromkeys(REACHING, ""), "the way to a node of Slurm")
    job = str(spec.options.get("job", ""))
    shells = [NodeShells(Slurm(), job, node.name, choices) for node in spec.node]
    return FarHost(spec.node, shells, {}, label="nodes of Slurm")


def _machines_of_a_study(about: str, open_host: Callable[[HostSpec], FarHost], options: Mapping[str, str]) -> HostKind:
    """Return a kind of host whose machines the study names one by one."""
    return HostKind(
        about=f"{about} ([how](../how-to/real-cluster.md)).",
        open=lambda study: open_host(study.host),
        machine=open_host,
        pace=lambda _: Pace(2.0),
        options=options,
        path_options=PATH_OPTIONS,
        named_nodes=True,
    )


def _refuse() -> NoReturn:
    message = "this run was imported from files: there is no host to measure on"
    raise UnavailableError(message, hint="import the new files together with the old ones into another run")


def _say(text: str) -> None:
    sys.stderr.write(f"lab: {text}\n")


HOSTS: dict[str, HostKind] = {
    "local": HostKind(
        about="Network namespaces of this machine, with or without root.",
        open=lambda _: LocalHost(),
        pace=lambda _: Pace(0.6),
    ),
    "lab": HostKind(
        about="An emulated SR-IOV cluster in virtual time ([how](../how-to/lab.md)).",
        open=lambda study: lab.open_lab(study.host.options, _say),
        pace=lab.pace_of,
        options=lab.OPTIONS,
        rehearsed=False,  # a look into the lab costs as much as a trial there, and its parts are known before
    ),
    "ssh": _machines_of_a_study("Machines named in the study", _ssh, ssh.OPTIONS),
    "kubectl": _machines_of_a_study(
        "Pods of a Kubernetes cluster",
        lambda spec: kubectl.KubectlHost(spec.node, spec.options),
        kubectl.OPTIONS,
    ),
    "slurm": HostKind(
        about="Allocations of a batch system ([how](../how-to/real-cluster.md)).",
        machine=_slurm_machine,
        open=lambda study: batch.BatchHost(Slurm(str(study.host.options.get("mpi", ""))), study.host.options),
        pace=lambda host: Pace(2.0, side_by_side=whole_number(host.options, "allocations", 1)),
        options=batch.OPTIONS,
        path_options=PATH_OPTIONS | batch.OF_ALLOCATION,
    ),
    "fake": HostKind(
        about="Figures from a formula, for experiments and tests.",
        open=lambda study: fake.FakeHost(study.host.options),
        pace=lambda _: Pace(0.0, 0.0),
        options=fake.OPTIONS,
        rehearsed=False,
    ),
    "import": HostKind(
        about="No host: marks a run whose figures were imported from files ([how](../how-to/import.md)).",
        open=lambda _: _refuse(),
        pace=lambda _: Pace(0.0, 0.0),
        rehearsed=False,
    ),
}


def refuse_imported(kind: str) -> None:
    """Raise UnavailableError for the mark of a run whose figures were read from files."""
    if kind == "import":
        _refuse()


def find_host(kind: str) -> HostKind:
    """Return what a study's `host.kind` stands for; raise BadInputError with the known kinds otherwise."""
    return named(HOSTS, kind, f"there is no host {kind!r}")


def open_host(study: Study) -> Host:
    """Return the host of a study, ready to carry trials out; raise UnavailableError when it cannot work here."""
    return find_host(study.host.kind).open(study)
