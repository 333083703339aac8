"""Machines for tests of far hosts: namespaces of this one that are reached over ssh alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import UnavailableError
from nearmetal.hosts.namespaces import NamespaceShell
from nearmetal.paths.table import find_path
from nearmetal.study.order import PathOrder
from nearmetal.study.spec import NodeSpec
from nearmetal.workloads.mpi.table import find_mpi
from sshd import SSHD, Sshd, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.ssh.host import SshHost

BETWEEN_PORT = 2222


@dataclass(frozen=True, slots=True)
class Far:
    """Two machines: the host, their sshd, and the namespaces as only this side sees them."""

    host: SshHost
    sshd: Sshd
    inside: NamespaceShell


def need_ssh() -> None:
    """Skip the test where ssh cannot be tested."""
    pytest.importorskip("asyncssh", reason="asyncssh is not installed (pip install 'nearmetal[ssh]')")
    if why_not():
        pytest.skip(why_not())


def far_options(sshd: Sshd, mpi: str = "openmpi") -> dict[str, str | int | float | bool]:
    """Return host options: this machine's MPI, and a cache that no other test has filled."""
    try:
        prefix = Path(find_mpi(mpi).mpirun).parents[1]
    except UnavailableError as error:
        pytest.skip(error.render())
    return sshd.options | {"mpi_prefix": str(prefix), "cache": str(sshd.folder / "cache")}


@contextlib.contextmanager
def hypervisor(folder: Path) -> Iterator[SshHost]:
    """Give an ssh host that is this machine over loopback; recipes build namespaces there."""
    need_ssh()
    from nearmetal.hosts.ssh.host import SshHost

    with Sshd(folder) as sshd:
        port = sshd.serve([])
        yield SshHost([NodeSpec(name="far", address="127.0.0.1", port=port)], far_options(sshd))


@contextlib.contextmanager
def two_machines(folder: Path, mpi: str = "openmpi") -> Iterator[Far]:
    """Give an ssh host of two machines on one cable, each in namespaces of its own."""
    need_ssh()
    from nearmetal.hosts.ssh.host import SshHost

    nodes = ["n0", "n1"]
    try:
        namespaces = NamespaceShell()
    except UnavailableError as error:
        pytest.skip(error.render())
    with namespaces as shell, Sshd(folder) as sshd:
        for node in nodes:
            shell.add_node(node)
        ends = find_path("veth").up(shell, PathOrder("veth", "veth"), nodes).ends
        assert SSHD
        between = folder / "between"
        between.write_text(
            f"Port {BETWEEN_PORT}\nIdentityFile {folder}/user\nUserKnownHostsFile {folder}/between_hosts\n"
            "GlobalKnownHostsFile none\nBatchMode yes\n"
        )
        host_key = (folder / "host.pub").read_text()
        (folder / "between_hosts").write_text("".join(f"[{end.address}]:{BETWEEN_PORT} {host_key}" for end in ends))
        specs = []
        for number, end in enumerate(ends):
            shell.start([SSHD, "-D", "-p", str(BETWEEN_PORT), "-f", str(sshd.config)], node=end.node)
            port = sshd.serve(shell._enter(end.node))
            specs.append(
                NodeSpec(name=f"m{number}", address="127.0.0.1", port=port, reach=end.address, interface=end.interface)
            )
        options = far_options(sshd, mpi) | {"remote_shell": f"ssh -F {between}"}
        host = SshHost(specs, options)
        try:
            yield Far(host, sshd, shell)
        finally:
            host.close()
