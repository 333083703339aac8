"""This machine itself as a shell: no namespaces, what is written stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.process import Finished

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from types import TracebackType


class MachineShell:
    """Commands on this machine, for knobs that are meant to be turned on it; a context manager."""

    def __init__(self) -> None:
        self._scratch = str(scratch.make("nm"))
        self._helpers: list[_Helper] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def scratch(self) -> str:
        """A private directory of this shell."""
        return self._scratch

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

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str = HYPERVISOR,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 20.0,
        check: bool = True,
    ) -> Finished:
        """Run a program to its end."""
        _only_here(node)
        return process.run(argv, timeout_s=timeout_s, env={**os.environ, **(env or {})}, stdin=stdin, check=check)

    def start(self, argv: Sequence[str], *, node: str = HYPERVISOR) -> _Helper:
        """Start a program that stays until `stop` or until this shell is closed."""
        _only_here(node)
        helper = _Helper(tuple(argv), Path(tempfile.mkstemp(prefix="helper-", dir=self._scratch)[1]))
        self._helpers.append(helper)
        return helper

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content."""
        _only_here(node)
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise NearmetalError(f"cannot read {path}: {error.strerror}") from error

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that can be read."""
        _only_here(node)
        found: dict[str, bytes] = {}
        for path in paths:
            with contextlib.suppress(NearmetalError):
                found[path] = self.read(path, node=node)
        return found

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file with a single write, as sysfs and procfs need it."""
        _only_here(node)
        try:
            with Path(path).open("wb", buffering=0) as file:
                file.write(data)
        except OSError as error:
            raise NearmetalError(f"cannot write {path}: {error.strerror}") from error

    def close(self) -> None:
        """End what was started and remove the scratch directory; calling twice does nothing more."""
        for helper in self._helpers:
            helper.stop()
        self._helpers.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)


class _Helper:
    """A program that stays; what it says goes to a file."""

    def __init__(self, argv: tuple[str, ...], log: Path) -> None:
        self._argv = argv
        self._log = log
        self._started_ns = time.monotonic_ns()
        with log.open("wb") as stream:
            self._process: subprocess.Popen[bytes] = process.spawn(argv, stdout=stream.fileno(), stderr=stream.fileno())

    def ended(self) -> Finished | None:
        """Return how it ended, or None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        return Finished(self._argv, status, self._log.read_bytes(), b"", time.monotonic_ns() - self._started_ns)

    def stop(self) -> None:
        """End it and its children."""
        process.end_session(self._process)


def _only_here(node: str) -> None:
    if node != HYPERVISOR:
        raise UnavailableError(f"there is no node {node!r}: this is the machine itself")
