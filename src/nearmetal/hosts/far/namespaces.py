"""Nodes as network namespaces of one far machine: path recipes build there what they build here.

The cradle is the one of `hosts/namespaces.py`; it hangs on the far program's standard input, so a connection that
drops takes nodes, links and processes with it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self, TypeVar

from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.hosts import many_files
from nearmetal.hosts.far.machine import SHORT_S, require_ok
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.namespaces import AGENT_SCRIPT, HINT_USERNS, NODE_NAME, NODE_SCRIPT, cradle_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from nearmetal.hosts.far.machine import Kept, Machine
    from nearmetal.hosts.far.shell import Memory
    from nearmetal.hosts.host import Site
    from nearmetal.process import Finished

T = TypeVar("T")

_START_S = 15.0
_CRADLE_PID = 'echo $$; exec "$@"'


class FarNamespaceShell:
    """Commands in namespaces of a far machine; a context manager."""

    def __init__(self, machine: Machine, site: Site, memory: Memory, *, own_network: bool = True) -> None:
        self._machine = machine
        self._site = site
        self._memory = memory
        self._nodes: dict[str, str] = {}
        self._kept: list[Kept] = []
        self._scratch = f"/tmp/nm-{secrets.token_hex(12)}"  # noqa: S108 - made with mkdir -m 700, the name is random
        try:
            self._make_scratch()
            self._rootless = require_ok(machine.run(["id", "-u"])).text.strip() != "0"
            self._pid = self._make_cradle(own_network=own_network)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_scratch(self) -> None:
        require_ok(self._machine.run(["mkdir", "-m", "700", "--", self._scratch]))
        require_ok(self._machine.run(["mkdir", "--", f"{self._scratch}/nodes"]))
        self._machine.write(f"{self._scratch}/hosts", b"127.0.0.1 localhost\n")
        self._machine.write(self.agent, AGENT_SCRIPT.encode())
        require_ok(self._machine.run(["chmod", "755", self.agent]))

    def _make_cradle(self, *, own_network: bool) -> str:
        argv = cradle_argv(rootless=self._rootless, own_network=own_network)
        outer, _ = self._anchor(["sh", "-c", _CRADLE_PID, "sh", *argv], lines=2)
        path = f"/proc/{outer}/task/{outer}/children"
        children = require_ok(self._machine.run(["cat", "--", path])).text.split()
        if not children:
            raise UnavailableError(
                f"cannot find the child of process {outer} on {self._machine.name}",
                hint="the far kernel needs CONFIG_PROC_CHILDREN",
            )
        return children[0]

    def _anchor(self, argv: Sequence[str], *, lines: int = 1) -> list[str]:
        """Start a program that holds namespaces open for as long as its input is; return the first lines it says."""
        kept = self._machine.hold(argv)
        self._kept.append(kept)
        said = kept.first_lines(lines, _START_S)
        if len(said) < lines:
            ended = kept.ended()
            words = ended.stderr.decode(errors="replace").strip() if ended else f"no answer in {_START_S:.0f} s"
            raise UnavailableError(
                f"{self._machine.name} does not let nearmetal make namespaces: {words}", hint=HINT_USERNS
            )
        return said

    @property
    def scratch(self) -> str:
        """A private directory that the far machine and its nodes see."""
        return self._scratch

    @property
    def agent(self) -> str:
        """The program that stands for ssh between the nodes."""
        return f"{self._scratch}/agent"

    @property
    def machines(self) -> tuple[str, ...]:
        """The nodes share the one machine."""
        return (HYPERVISOR,)

    @property
    def site(self) -> Site:
        """Where things are on the far side."""
        return self._site

    def machine_name(self, node: str) -> str:  # noqa: ARG002 - all nodes are on one
        """Return the machine's name."""
        return self._machine.name

    def launch_name(self, node: str) -> str:
        """Return the node's own name, which its hosts file knows."""
        return node

    def lifeline(self, node: str) -> str:
        """Return the far shell's process for the machine itself; nodes vanish with the connection."""
        self._machine.connect()
        return "" if node else self._machine.process

    def once(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time."""
        return self._memory.once(f"{self._machine.name} {key}", make)

    def add_node(self, name: str) -> None:
        """Make a node; raise TrialError when its name is unusable or taken."""
        if not NODE_NAME.fullmatch(name) or name in self._nodes:
            raise TrialError(f"{name!r} cannot be the name of a new node")
        require_ok(self._machine.run(["mkdir", "--", f"{self._scratch}/{name}"]))
        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "--"]
        script = ["sh", "-c", NODE_SCRIPT, "node", name, f"{self._scratch}/hosts"]
        (pid,) = self._anchor([*self._enter(), *unshare, *script])
        self._nodes[name] = pid
        self._machine.write(f"{self._scratch}/nodes/{name}", f"{pid}\n".encode())

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Move an interface of the machine, or of its cradle, into a node."""
        self.run(["ip", "link", "set", interface, "netns", self._nodes[node], "name", name])

    def run(
        self,
        argv: Sequence[str],
        *,
        node: str = HYPERVISOR,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = SHORT_S,
        check: bool = True,
    ) -> Finished:
        """Run a program on a node to its end."""
        env = {"TMPDIR": f"{self._scratch}/{node}" if node else self._scratch, **(env or {})}
        finished = self._machine.run(argv, prefix=self._enter(node), env=env, stdin=stdin, timeout_s=timeout_s)
        return require_ok(finished) if check else finished

    def start(self, argv: Sequence[str], *, node: str = HYPERVISOR) -> Kept:
        """Start a program that stays until `stop`, until this shell is closed, or until the connection drops."""
        helper = self._machine.keep(argv, prefix=self._enter(node))
        self._kept.append(helper)
        return helper

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content as that node sees it."""
        finished = self.run(["cat", "--", path], node=node, check=False)
        if not finished.ok:
            said = finished.stderr.decode(errors="replace").strip()
            raise NearmetalError(f"cannot read {path} on {self._machine.name} {node}: {said}")
        return finished.stdout

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read; one program reads them all."""
        mark = many_files.new_mark()
        return many_files.split(self.run(many_files.reader_argv(paths, mark), node=node).stdout, paths, mark)

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; what goes to /proc and /sys goes out as one write."""
        if node == HYPERVISOR and not path.startswith("/proc/"):
            self._machine.write(path, data)
            return
        copy = f"{self._scratch}/written"
        self._machine.write(copy, data)
        script = ["sh", "-c", 'exec dd bs=1M "if=$1" "of=$2" conv=notrunc 2>&1', "sh", copy, path]
        finished = self.run(script, node=node, check=False)
        if not finished.ok:
            raise NearmetalError(f"cannot write {path} on {self._machine.name} {node}: {finished.text.strip()}")

    def close(self) -> None:
        """End every process, then remove the scratch directory; calling twice does nothing more."""
        kept, self._kept = self._kept, []
        for one in kept:
            one.stop()
        self._nodes.clear()
        if kept:
            self._machine.run(["rm", "-rf", "--", self._scratch])

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        """Return the argv prefix that enters the cradle and, from there, the node."""
        user = ["--user", "--preserve-credentials"] if self._rootless else []
        cradle = ["nsenter", "--target", self._pid, *user, "--pid", "--mount", "--net", "--"]
        if node == HYPERVISOR:
            return cradle
        if node not in self._nodes:
            raise TrialError(f"there is no node {node!r}")
        return [*cradle, "nsenter", "--target", self._nodes[node], "--net", "--uts", "--ipc", "--mount", "--"]

    def _text(self, path: str) -> str:
        return require_ok(self._machine.run(["cat", "--", path])).text.strip()
