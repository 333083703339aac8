"""This machine itself as a shell: no namespaces, what is written stays."""

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError, UnavailableError, os_errors_as
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.shell import CommandShell, LocalHelper, read_each
from nearmetal.process import Finished

_ADMINISTRATORS = ("/usr/sbin", "/sbin")


class MachineShell(CommandShell[LocalHelper]):
    """Commands on this machine, for knobs that are meant to be turned on it; a context manager."""

    def __init__(self) -> None:
        super().__init__("")
        del self.scratch

    @cached_property
    def scratch(self) -> str:  # type: ignore[override]  # a cached property can be set
        """A private directory, made when it is asked for: a roll-back needs none, and may find no room for one."""
        return str(scratch.make("nm"))

    @property
    def agent(self) -> str:
        """There is no other node to reach."""
        raise UnavailableError("this machine alone has no nodes")

    def add_node(self, name: str) -> None:
        """Refuse: nodes are what namespaces are for."""
        raise UnavailableError(f"cannot make node {name!r}: this machine alone has no nodes")

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Refuse: there is no node to give it to."""
        raise UnavailableError(f"cannot give {interface} to node {node!r} as {name}: this machine alone has no nodes")

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content."""
        _only_here(node)
        with os_errors_as(NearmetalError, f"cannot read {path}"):
            return Path(path).read_bytes()

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that can be read."""
        return read_each(lambda path: self.read(path, node=node), paths)

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file with a single write, as sysfs and procfs need it."""
        _only_here(node)
        with os_errors_as(NearmetalError, f"cannot write {path}"), Path(path).open("wb", buffering=0) as file:
            file.write(data)

    def close(self) -> None:
        """End what was started and remove the scratch directory; calling twice does nothing more."""
        self._stop_helpers()
        if "scratch" in vars(self):
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _environment(self, node: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        _only_here(node)
        return {**os.environ, "PATH": _path(), **(extra or {})}

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        _only_here(node)
        return process.run(argv, timeout_s=timeout_s, env=env, stdin=stdin)

    def _started(self, argv: Sequence[str], node: str) -> LocalHelper:
        _only_here(node)
        return LocalHelper(argv, argv, self.scratch)


def _path() -> str:
    """Return where programs are looked for: with the administrator's, which cron and `su` leave out."""
    known = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*known, *(place for place in _ADMINISTRATORS if place not in known)])


def _only_here(node: str) -> None:
    if node != HYPERVISOR:
        raise UnavailableError(f"there is no node {node!r}: this is the machine itself")
