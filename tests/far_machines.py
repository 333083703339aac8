"""Machines for tests of far hosts: namespaces of this machine that are reached only over ssh."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kube_api
from kube_api import KubeApi
from nearmetal.errors import UnavailableError
from nearmetal.hosts.kubectl import KubectlHost
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.paths.table import find_path
from nearmetal.study.order import PathOrder
from nearmetal.study.spec import NodeSpec
from nearmetal.workloads.mpi.table import find_mpi
from sshd import SSHD, Sshd, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nearmetal.hosts.ssh.host import SshHost
    from nearmetal.paths.path import Endpoint

BETWEEN_PORT = 2222


@dataclass(frozen=True, slots=True)
class Far:
    """Two machines: the host, their sshd, and the namespaces as seen from this side."""

    host: SshHost
    sshd: Sshd
    inside: NamespaceShell


def need_ssh() -> None:
    """Skip the test if ssh cannot be tested."""
    pytest.importorskip("asyncssh", reason="asyncssh is not installed (pip install 'nearmetal[ssh]')")
    if why_not():
        pytest.skip(why_not())


def far_options(sshd: Sshd, mpi: str = "openmpi") -> dict[str, str | int | float | bool]:
    """Return host options: this machine's MPI, and the cache of this run's far machines, which is empty at first."""
    try:
        prefix = Path(find_mpi(mpi).mpirun).parents[1]
    except UnavailableError as error:
        pytest.skip(error.render())
    return sshd.options | {"mpi_prefix": str(prefix), "cache": os.environ["NEARMETAL_FAR_CACHE"]}


@contextlib.contextmanager
def hypervisor(folder: Path) -> Iterator[SshHost]:
    """Yield an ssh host that is this machine over loopback; recipes build namespaces there."""
    need_ssh()
    from nearmetal.hosts.ssh.host import SshHost

    with Sshd(folder) as sshd:
        port = sshd.serve([])
        yield SshHost([NodeSpec(name="far", address="127.0.0.1", port=port)], far_options(sshd))


@contextlib.contextmanager
def cabled(folder: Path, cables: int = 1) -> Iterator[tuple[NamespaceShell, Sshd, Sequence[Endpoint]]]:
    """Yield two namespaces on each cable, each with an sshd that the other reaches through `between`, a file in
    `folder`.
    """
    need_ssh()
    pairs = [[f"n{2 * number}", f"n{2 * number + 1}"] for number in range(cables)]
    try:
        namespaces = NamespaceShell()
    except UnavailableError as error:
        pytest.skip(error.render())
    with namespaces as shell, Sshd(folder) as sshd:
        ends: list[Endpoint] = []
        for nodes in pairs:
            for node in nodes:
                shell.add_node(node)
            ends += find_path("veth").up(shell, PathOrder("veth", "veth"), nodes).ends
        assert SSHD
        (folder / "between").write_text(
            f"Port {BETWEEN_PORT}\nIdentityFile {folder}/user\nUserKnownHostsFile {folder}/between_hosts\n"
            "GlobalKnownHostsFile none\nBatchMode yes\n"
        )
        host_key = (folder / "host.pub").read_text()
        (folder / "between_hosts").write_text("".join(f"[{end.address}]:{BETWEEN_PORT} {host_key}" for end in ends))
        for end in ends:
            shell.start([SSHD, "-D", "-p", str(BETWEEN_PORT), "-f", str(sshd.config)], node=end.node)
        yield shell, sshd, ends


@contextlib.contextmanager
def two_machines(folder: Path, mpi: str = "openmpi", cables: int = 1) -> Iterator[Far]:
    """Yield an ssh host with two machines on each cable, each in namespaces of its own."""
    with cabled(folder, cables) as (shell, sshd, ends):
        from nearmetal.hosts.ssh.host import SshHost

        specs = [
            NodeSpec(
                name=f"m{number}",
                address="127.0.0.1",
                port=sshd.serve(shell._enter(end.node)),
                reach=end.address,
                interface=end.interface,
            )
            for number, end in enumerate(ends)
        ]
        options = far_options(sshd, mpi) | {"remote_shell": f"ssh -F {folder / 'between'}"}
        host = SshHost(specs, options)
        try:
            yield Far(host, sshd, shell)
        finally:
            host.close()


_KUBECTL = """#!/bin/sh
# Stands for kubectl: takes the words that nearmetal uses, in the order in which the real one wants them.
[ "$1" = --context=test ] && [ "$2" = --namespace=hpc ] || {{ echo "error: no context" >&2; exit 1; }}
shift 2
if [ "$1 $2 $4" = "get pods --output=json" ]; then cat {folder}/pods.json; exit; fi
[ "$1 $2 $3 $5 $6" = "exec --stdin --container=mpi -- /bin/sh" ] || {{ echo "error: unknown command" >&2; exit 1; }}
[ -f "{folder}/pod-$4" ] || {{ echo "Error from server (NotFound): pods \\"$4\\" not found" >&2; exit 1; }}
exec {folder}/pod-"$4" /bin/sh
"""


@dataclass(frozen=True, slots=True)
class _Pods:
    """Two pods on one cable, another that no longer runs, and a script that enters each: `pod-NAME PROGRAM` in
    `folder`.
    """

    folder: Path
    items: list[dict[str, Any]]
    options: dict[str, str | int | float | bool]

    @property
    def entered(self) -> dict[str, list[str]]:
        """Return the command that starts a program in each running pod."""
        names = [one["metadata"]["name"] for one in self.items if one["status"]["phase"] == "Running"]
        return {name: [str(self.folder / f"pod-{name}")] for name in names}


@contextlib.contextmanager
def _two_pods(folder: Path) -> Iterator[_Pods]:
    with cabled(folder) as (shell, sshd, ends):
        items = [_pod("mpi-gone", "Succeeded", "")]
        for number, end in enumerate(ends):
            enter = folder / f"pod-mpi-{number}"
            enter.write_text(f'#!/bin/sh\nexport HOME={folder}/home\nexec {shlex.join(shell._enter(end.node))} "$@"\n')
            enter.chmod(0o755)
            items.append(_pod(f"mpi-{number}", "Running", end.address))
        ours = {key: value for key, value in far_options(sshd).items() if key in {"mpi_prefix", "cache"}}
        named = {"context": "test", "namespace": "hpc", "container": "mpi", "selector": "job-name=mpi"}
        reach = {"interface": ends[0].interface, "remote_shell": f"ssh -F {folder / 'between'}"}
        yield _Pods(folder, items, ours | named | reach)


def _pod(name: str, phase: str, address: str) -> dict[str, Any]:
    labels = {"name": name, "namespace": "hpc", "labels": {"job-name": "mpi"}}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": labels, "status": {"phase": phase, "podIP": address}}


@contextlib.contextmanager
def pods(folder: Path) -> Iterator[KubectlHost]:
    """Yield a kubectl host of two pods selected by a label: with the real kubectl if present, else with a script."""
    with _two_pods(folder) as two, contextlib.ExitStack() as opened:
        if kube_api.why_not():
            (folder / "kubectl").write_text(_KUBECTL.format(folder=folder))
            (folder / "kubectl").chmod(0o755)
            (folder / "pods.json").write_text(json.dumps({"items": two.items}))
            two.options["kubectl"] = str(folder / "kubectl")
        else:
            opened.enter_context(kube_api.reached(KubeApi(two.items, two.entered), folder / "kubeconfig"))
        yield opened.enter_context(contextlib.closing(KubectlHost([], two.options)))
