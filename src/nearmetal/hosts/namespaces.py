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
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearmetal import process, scratch
from nearmetal.errors import NearmetalError, TrialError, UnavailableError, os_errors_as
from nearmetal.hosts import plain_files
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.inside import NamespaceThread
from nearmetal.hosts.shell import CommandShell, H, LocalHelper
from nearmetal.process import Finished

_ANCHOR_TIMEOUT_S = 60.0  # a machine that forbids namespaces refuses at once; a loaded one is only late
NODE_NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")
_FIRST_PID = 1
"""The first process of the cradle."""
_OF_NODE = ("--net", "--uts", "--ipc", "--mount")
"""The namespaces that a node has for itself; that of processes is the cradle's."""

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
AGENT_HEAD = """#!/bin/sh
# Stands for ssh between nodes: agent [OPTIONS] NODE COMMAND...; the command is evaluated there, as ssh does.
while [ "${1#-}" != "$1" ]; do shift; done
here=${0%/*}
node=$1
shift
export TMPDIR=$here/$node
"""
AGENT_ENTER = """pid=$(cat "$here/nodes/$node") || exit 255
exec nsenter --target "$pid" --net --uts --ipc --mount --wd="$PWD" -- sh -c "$*"
"""
HINT_USERNS = (
    "run as root, or allow unprivileged user namespaces (Ubuntu 24.04: "
    "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; others: `sysctl user.max_user_namespaces`)"
)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A process that holds namespaces open for as long as its stdin is open."""

    process: subprocess.Popen[bytes]
    first_line: str

    @staticmethod
    def start(argv: Sequence[str]) -> _Anchor:
        """Start it and wait for its first line; raise UnavailableError when it does not come."""
        child = process.spawn(argv, stdin=subprocess.PIPE)
        assert child.stdout is not None
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(child.stdout, select.POLLIN)
        in_time = poll.poll(_ANCHOR_TIMEOUT_S * 1000)
        line = child.stdout.readline().decode() if in_time else ""
        if not line:
            process.end_session(child)
            with child:
                reason = child.stderr.read().decode(errors="replace").strip() if child.stderr else ""
            late = f"{argv[0]} did not answer within {_ANCHOR_TIMEOUT_S:g} s"
            reason = reason or (f"{argv[0]} ended without a word" if in_time else late)
            raise UnavailableError(
                f"this machine does not allow nearmetal to create namespaces: {reason}", hint=HINT_USERNS
            )
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


class CradleShell(CommandShell[H]):
    """Nodes are namespaces below one cradle; where it hangs, on this machine or on a far one, is the subclass's."""

    def __init__(self, scratch: str) -> None:
        super().__init__(scratch)
        self._rootless = False
        self._cradle_pid = ""
        self._nodes: dict[str, str] = {}

    def _write_scratch(self) -> None:
        self._make_folder(f"{self.scratch}/nodes")
        self._put(f"{self.scratch}/hosts", "127.0.0.1 localhost\n")
        self._put(self.agent, AGENT_HEAD + AGENT_ENTER)

    def add_node(self, name: str) -> None:
        """Make a node; raise TrialError when its name is unusable or taken."""
        if not NODE_NAME.fullmatch(name) or name in self._nodes:
            raise TrialError(f"{name!r} cannot be the name of a new node")
        self._make_folder(f"{self.scratch}/{name}")
        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "--"]
        script = ["sh", "-c", NODE_SCRIPT, "node", name, f"{self.scratch}/hosts"]
        self._nodes[name] = self._hold(name, [*self._enter(), *unshare, *script])
        self._put(f"{self.scratch}/nodes/{name}", f"{self._nodes[name]}\n")

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Move an interface of the machine, or of its cradle, into a node."""
        self.run(["ip", "link", "set", interface, "netns", self._nodes[node], "name", name])

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        """Return the argv prefix that enters the cradle and, from there, the node."""
        cradle = self._step(self._cradle_pid, ("--pid", "--mount", "--net"), outside=True)
        return cradle if node == HYPERVISOR else [*cradle, *self._step(self._process_of(node, self._nodes), _OF_NODE)]

    def _step(self, target: str, namespaces: Sequence[str], *, outside: bool = False) -> list[str]:
        """Return the argv prefix that enters namespaces of a process; from outside the cradle, as its user too."""
        user = ["--user", "--preserve-credentials"] if outside and self._rootless else []
        return ["nsenter", "--target", target, *user, *namespaces, *self._folder(), "--"]

    @staticmethod
    def _process_of(node: str, processes: Mapping[str, str]) -> str:
        if node not in processes:
            raise TrialError(f"there is no node {node!r}")
        return processes[node]

    def _folder(self) -> list[str]:
        """Return the option that names the folder in which programs start."""
        return []

    @abstractmethod
    def _hold(self, name: str, argv: Sequence[str]) -> str:
        """Start the program that holds a node's namespaces open; return the process number that it says."""

    @abstractmethod
    def _make_folder(self, path: str) -> None:
        """Make a folder on the machine."""

    @abstractmethod
    def _put(self, path: str, text: str) -> None:
        """Write a file on the machine; the agent's is to be a program."""


class NamespaceShell(CradleShell[LocalHelper]):
    """Commands in namespaces of this machine.

    With `own_network` (the default) the hypervisor side has its own network namespace, so that bridges
    and links never touch the machine's. Inside the lab's guest it is off: there the machine's ports are the point.
    """

    def __init__(self, *, own_network: bool = True) -> None:
        super().__init__(str(scratch.make("nm")))
        self.own_network = own_network
        self._rootless = os.geteuid() != 0
        self._entered: dict[str, NamespaceThread] = {}
        self._anchors: dict[str, _Anchor] = {}
        self._holders: dict[str, str] = {}
        """The number, seen from outside the cradle, of the process that holds each node's namespaces."""
        try:
            self._write_scratch()
            self._cradle = _Anchor.start(cradle_argv(rootless=self._rootless, own_network=own_network))
            self._cradle_pid = str(only_child(self._cradle.process.pid))
        except BaseException:
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content as that node sees it."""
        if self._rootless:
            return super().read(path, node=node)
        seen = self._seen_by_thread(path, node)
        with os_errors_as(NearmetalError, f"cannot read {path} on {self._called(node)}"):
            return self._inside(node).do(lambda: plain_files.read(seen))

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read."""
        if self._rootless:
            return super().read_all(paths, node=node)
        seen = {path: self._seen_by_thread(path, node) for path in paths}
        with os_errors_as(NearmetalError, f"cannot read files on {self._called(node)}"):  # when the node has ended
            found = self._inside(node).do(lambda: plain_files.read_all([*seen.values()]))
        return {path: found[name] for path, name in seen.items() if name in found}

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; writes to /proc and /sys go out as one write."""
        if not self._rootless:
            with os_errors_as(NearmetalError, f"cannot write {path} on {self._called(node)}"):
                self._inside(node).do(lambda: plain_files.write(path, data))
            return
        words = ["dd", f"of={path}", "bs=1M", *(["conv=notrunc"] if path.startswith(("/proc/", "/sys/")) else [])]
        finished = self.run(words, node=node, stdin=data, check=False)
        if not finished.ok:
            reason = finished.stderr.decode(errors="replace").strip()
            raise NearmetalError(f"cannot write {path} on {self._called(node)}: {reason}")

    def _inside(self, node: str) -> NamespaceThread:
        """Return the thread that lives in a node; only root may move one there (user_namespaces(7))."""
        if node not in self._entered:
            pid = self._process_of(node, self._holders) if node else self._cradle_pid
            self._entered[node] = NamespaceThread(int(pid), ("pid", "net", "uts", "ipc", "mnt"))
        return self._entered[node]

    def _seen_by_thread(self, path: str, node: str) -> str:
        """Return the name of a file for the thread in a node, which has no number in the node's /proc.

        What is there of a program that reads itself is read of the node's first process, which is alike.
        """
        own = f"/proc/{self._nodes.get(node, _FIRST_PID)}/"
        for link, meant in (("/proc/self/", own), ("/proc/net/", f"{own}net/")):
            if path.startswith(link):
                return meant + path.removeprefix(link)
        return path

    def close(self) -> None:
        """Let the threads go, end every process, remove the scratch directory; calling twice does nothing more."""
        while self._entered:
            self._entered.popitem()[1].close()
        self._cradle.end()
        for anchor in self._anchors.values():
            anchor.end()
        self._anchors.clear()
        self._holders.clear()
        self._nodes.clear()
        self._stop_helpers()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _environment(self, node: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, **super()._environment(node, extra)}

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        finished = process.run([*self._enter(node), *argv], timeout_s=timeout_s, env=env, stdin=stdin)
        return replace(finished, argv=tuple(argv))

    def _started(self, argv: Sequence[str], node: str) -> LocalHelper:
        return LocalHelper(argv, [*self._enter(node), *argv], self.scratch, self._environment(node, None))

    def _folder(self) -> list[str]:
        return [f"--wd={Path.cwd()}"]

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        """Enter a node at once: by way of the cradle each command would start a program more."""
        if node == HYPERVISOR:
            return super()._enter()
        return self._step(self._process_of(node, self._holders), ("--pid", *_OF_NODE), outside=True)

    def _hold(self, name: str, argv: Sequence[str]) -> str:
        self._anchors[name] = _Anchor.start(argv)
        self._holders[name] = str(only_child(self._anchors[name].process.pid))
        return self._anchors[name].first_line

    def _make_folder(self, path: str) -> None:
        Path(path).mkdir()

    def _put(self, path: str, text: str) -> None:
        Path(path).write_text(text)
        if path == self.agent:
            Path(path).chmod(0o755)


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
