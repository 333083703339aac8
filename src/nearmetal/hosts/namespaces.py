"""Nodes as network namespaces, with a clean-up that the kernel itself carries out.

Everything lives in a *cradle*: one process tree in its own PID and mount namespace (and user namespace when
nearmetal does not run as root). Its first process waits on a pipe that nearmetal holds open. When nearmetal
ends, by whatever means, the pipe closes, that process exits, and the kernel kills every process of the cradle;
with the last process go the network namespaces, links and mounts. Nothing is ever named in `/run/netns`.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.hosts import many_files
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.process import Finished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_ANCHOR_TIMEOUT_S = 10.0
NODE_NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")

# Scripts are constants; whatever varies reaches them as positional parameters.
CRADLE_SCRIPT = """set -e
mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm
test "$1" = shared || ip link set lo up
echo ready
exec cat >/dev/null
"""
NODE_SCRIPT = """set -e
hostname "$1"
mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm
mount --bind "$2" /etc/hosts
mount -t sysfs sysfs /sys 2>/dev/null || true
ip link set lo up
echo $$
exec cat >/dev/null
"""
AGENT_SCRIPT = """#!/bin/sh
# Stands for ssh between nodes: agent [OPTIONS] NODE COMMAND...; the command is evaluated there, as ssh does.
while [ "${1#-}" != "$1" ]; do shift; done
here=${0%/*}
node=$1
shift
pid=$(cat "$here/nodes/$node") || exit 255
TMPDIR=$here/$node exec nsenter --target "$pid" --net --uts --ipc --mount --wd="$PWD" -- sh -c "$*"
"""
HINT_USERNS = (
    "run as root, or allow unprivileged user namespaces (Ubuntu 24.04: "
    "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; others: `sysctl user.max_user_namespaces`)"
)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A process that holds namespaces open for as long as its stdin is open."""

    process: subprocess.Popen[bytes]
    said: str

    @staticmethod
    def start(argv: Sequence[str]) -> _Anchor:
        """Start it and wait for its first line; raise UnavailableError when it does not come."""
        child = process.spawn(argv, stdin=subprocess.PIPE)
        assert child.stdout is not None
        ready, _, _ = select.select([child.stdout], [], [], _ANCHOR_TIMEOUT_S)
        line = child.stdout.readline().decode() if ready else ""
        if not line:
            process.end_session(child)
            said = child.stderr.read().decode(errors="replace").strip() if child.stderr else ""
            raise UnavailableError(f"this machine does not let nearmetal make namespaces: {said}", hint=HINT_USERNS)
        return _Anchor(child, line.strip())

    def end(self) -> None:
        """Close the pipe that keeps it alive; the kernel does the rest."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ANCHOR_TIMEOUT_S)
        process.end_session(self.process)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class NamespaceShell:
    """Commands in namespaces of this machine; a context manager.

    With `own_network` (the default) the hypervisor side has a network namespace of its own, so that bridges
    and links never touch the machine's. Inside the lab's guest it is off: there the machine's ports are the point.
    """

    def __init__(self, *, own_network: bool = True) -> None:
        self.own_network = own_network
        self._scratch = str(scratch.make("nm"))
        self._rootless = os.geteuid() != 0
        self._nodes: dict[str, _Anchor] = {}
        self._helpers: list[_Helper] = []
        try:
            self._write_scratch()
            self._cradle = _Anchor.start(cradle_argv(rootless=self._rootless, own_network=own_network))
            self._cradle_pid = only_child(self._cradle.process.pid)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_scratch(self) -> None:
        root = Path(self._scratch)
        (root / "nodes").mkdir()
        (root / "hosts").write_text("127.0.0.1 localhost\n")
        agent = Path(self.agent)
        agent.write_text(AGENT_SCRIPT)
        agent.chmod(0o755)

    @property
    def scratch(self) -> str:
        """A private directory of this shell."""
        return self._scratch

    @property
    def agent(self) -> str:
        """The program that stands for ssh."""
        return f"{self._scratch}/agent"

    def add_node(self, name: str) -> None:
        """Make a node; raise TrialError when its name is unusable or taken."""
        if not NODE_NAME.fullmatch(name) or name in self._nodes:
            raise TrialError(f"{name!r} cannot be the name of a new node")
        Path(self._scratch, name).mkdir()
        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "--"]
        script = ["sh", "-c", NODE_SCRIPT, "node", name, f"{self._scratch}/hosts"]
        anchor = _Anchor.start([*self._enter(), *unshare, *script])
        self._nodes[name] = anchor
        Path(self._scratch, "nodes", name).write_text(anchor.said)

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Move an interface of the hypervisor into a node."""
        pid = self._nodes[node].said
        self.run(["ip", "link", "set", interface, "netns", pid, "name", name])

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
        """Run a program on a node to its end."""
        finished = self._ended(argv, node, self._environment(node, env), stdin, timeout_s)
        if check and not finished.ok:
            raise TrialError(finished.complaint())
        return finished

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        finished = process.run([*self._enter(node), *argv], timeout_s=timeout_s, env=env, stdin=stdin)
        return replace(finished, argv=tuple(argv))

    def start(self, argv: Sequence[str], *, node: str = HYPERVISOR) -> _Helper:
        """Start a program that stays until `stop` or until this shell is closed."""
        helper = _Helper(tuple(argv), [*self._enter(node), *argv], self._environment(node, None), self._scratch)
        self._helpers.append(helper)
        return helper

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content as that node sees it."""
        finished = self.run(["cat", "--", path], node=node, check=False)
        if not finished.ok:
            where = node or "the hypervisor"
            raise NearmetalError(f"cannot read {path} on {where}: {finished.stderr.decode(errors='replace').strip()}")
        return finished.stdout

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read; one program reads them all."""
        mark = many_files.new_mark()
        return many_files.split(self.run(many_files.reader_argv(paths, mark), node=node).stdout, paths, mark)

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; writes to /proc and /sys go out as one write."""
        finished = self.run(
            ["dd", f"of={path}", "bs=1M", "conv=notrunc" if path.startswith(("/proc/", "/sys/")) else "conv=fsync"],
            node=node,
            stdin=data,
            check=False,
        )
        if not finished.ok:
            where = node or "the hypervisor"
            raise NearmetalError(f"cannot write {path} on {where}: {finished.stderr.decode(errors='replace').strip()}")

    def close(self) -> None:
        """End every process, then remove the scratch directory; calling twice does nothing more."""
        self._cradle.end()
        for anchor in self._nodes.values():
            anchor.end()
        self._nodes.clear()
        for helper in self._helpers:
            helper.stop()
        self._helpers.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        """Return the argv prefix that enters the cradle and, from there, the node."""
        user = ["--user", "--preserve-credentials"] if self._rootless else []
        cradle = ["nsenter", "--target", str(self._cradle_pid), *user, "--pid", "--mount", "--net"]
        cradle += [f"--wd={Path.cwd()}", "--"]
        if node == HYPERVISOR:
            return cradle
        if node not in self._nodes:
            raise TrialError(f"there is no node {node!r}")
        target = ["--target", self._nodes[node].said]
        return [*cradle, "nsenter", *target, "--net", "--uts", "--ipc", "--mount", f"--wd={Path.cwd()}", "--"]

    def _environment(self, node: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        tmpdir = f"{self._scratch}/{node}" if node else self._scratch
        return {**os.environ, "TMPDIR": tmpdir, **(extra or {})}


class _Helper:
    """A program that stays; what it says goes to a file, so that it can never block on a full pipe."""

    def __init__(self, shown: tuple[str, ...], argv: Sequence[str], env: Mapping[str, str], scratch: str) -> None:
        self._shown = shown
        self._log = Path(tempfile.mkstemp(prefix="helper-", dir=scratch)[1])
        self._started_ns = time.monotonic_ns()
        with self._log.open("wb") as log:
            self._process = process.spawn(argv, env=env, stdout=log.fileno(), stderr=log.fileno())

    def ended(self) -> Finished | None:
        """Return how it ended, or None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        said = self._log.read_bytes()
        return Finished(self._shown, status, said, b"", time.monotonic_ns() - self._started_ns)

    def stop(self) -> None:
        """End it and its children."""
        process.end_session(self._process)


def cradle_argv(*, rootless: bool, own_network: bool) -> list[str]:
    """Return the command that makes a cradle; it says `ready` and lives for as long as its standard input is open."""
    user = ["--user", "--map-root-user"] if rootless else []
    network = ["--net"] if own_network else []
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    script = ["sh", "-c", CRADLE_SCRIPT, "cradle", "own" if own_network else "shared"]
    return ["unshare", *user, *network, *namespaces, "--", *script]


def only_child(pid: int) -> int:
    """Return the PID, as this process sees it, of the one child of a process that entered a PID namespace."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return int(children.read_text().split()[0])
    except (OSError, IndexError) as error:
        raise UnavailableError(
            f"cannot find the child of process {pid} in {children}",
            hint=f"the kernel needs CONFIG_PROC_CHILDREN; this is {sys.platform} {os.uname().release}",
        ) from error
