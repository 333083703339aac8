"""Nodes as network namespaces of one far machine: path recipes build there what they build here.

The cradle is the one of `hosts/namespaces.py`; it hangs on the far program's standard input, so a connection that
drops takes nodes, links and processes with it.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nearmetal.errors import NearmetalError, UnavailableError
from nearmetal.hosts.far.machine import FarMachine, KeptProgram, require_ok
from nearmetal.hosts.far.shell import Memory
from nearmetal.hosts.host import HYPERVISOR, Site, Way
from nearmetal.hosts.namespaces import HINT_USERNS, CradleShell, cradle_argv
from nearmetal.process import Finished

T = TypeVar("T")

_START_S = 15.0
_CRADLE_PID = 'echo $$; exec "$@"'


class FarNamespaceShell(CradleShell[KeptProgram]):
    """Commands in namespaces of a far machine."""

    def __init__(self, machine: FarMachine, site: Site, memory: Memory, *, own_network: bool = True) -> None:
        super().__init__(f"{site.scratch}/nm-{secrets.token_hex(12)}")  # made with mkdir -m 700
        self._machine = machine
        self.site = site
        self._memory = memory
        try:
            machine.remove_at_end(self.scratch)
            require_ok(machine.run(["mkdir", "-m", "700", "--", self.scratch]))
            self._write_scratch()
            self._rootless = require_ok(machine.run(["id", "-u"])).text.strip() != "0"
            self._cradle_pid = self._make_cradle(own_network=own_network)
        except BaseException:
            self.close()
            raise

    def _make_cradle(self, *, own_network: bool) -> str:
        argv = cradle_argv(rootless=self._rootless, own_network=own_network)
        outer, _ = self._anchor(["sh", "-c", _CRADLE_PID, "sh", *argv], lines=2)
        path = f"/proc/{outer}/task/{outer}/children"
        children = require_ok(self._machine.run(["cat", "--", path])).text.split()
        if not children:
            message = f"cannot find the child of process {outer} on {self._machine.name}"
            raise UnavailableError(message, hint="the far kernel needs CONFIG_PROC_CHILDREN")
        return children[0]

    def _anchor(self, argv: Sequence[str], *, lines: int = 1) -> list[str]:
        """Start a program that holds namespaces open for as long as its input is; return the first lines it says."""
        kept = self._machine.hold(argv)
        self._helpers.append(kept)
        printed = kept.first_lines(lines, _START_S)
        if len(printed) < lines:
            ended = kept.ended()
            words = ended.stderr.decode(errors="replace").strip() if ended else f"no answer in {_START_S:.0f} s"
            raise UnavailableError(
                f"{self._machine.name} does not allow nearmetal to create namespaces: {words}", hint=HINT_USERNS
            )
        return printed

    @property
    def machines(self) -> tuple[str, ...]:
        """The nodes share the one machine."""
        return (HYPERVISOR,)

    def machine_name(self, node: str) -> str:  # noqa: ARG002 - all nodes are on one
        """Return the machine's name."""
        return self._machine.name

    def way(self, node: str) -> Way:  # noqa: ARG002 - all nodes are on one
        """Return how the machine is reached."""
        return self._machine.way

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

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; what goes to /proc and /sys goes out as one write."""
        if node == HYPERVISOR and not path.startswith("/proc/"):
            self._machine.write(path, data)
            return
        copy = f"{self.scratch}/written"
        self._machine.write(copy, data)
        script = ["sh", "-c", 'exec dd bs=1M "if=$1" "of=$2" conv=notrunc 2>&1', "sh", copy, path]
        finished = self.run(script, node=node, check=False)
        if not finished.ok:
            raise NearmetalError(f"cannot write {path} on {self._called(node)}: {finished.text.strip()}")

    def close(self) -> None:
        """End every process, then remove the scratch directory; calling twice does nothing more."""
        begun = bool(self._helpers)
        self._stop_helpers()
        self._nodes.clear()
        if begun:
            self._machine.remove(self.scratch)

    def _called(self, node: str) -> str:
        return f"{self._machine.name} {node}"

    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        return self._machine.run(argv, prefix=self._enter(node), env=env, stdin=stdin, timeout_s=timeout_s)

    def _started(self, argv: Sequence[str], node: str) -> KeptProgram:
        return self._machine.keep(argv, prefix=self._enter(node))

    def _hold(self, name: str, argv: Sequence[str]) -> str:
        del name  # it ends with the connection, and all at once
        (pid,) = self._anchor(argv)
        return pid

    def _make_folder(self, path: str) -> None:
        require_ok(self._machine.run(["mkdir", "--", path]))

    def _put(self, path: str, text: str) -> None:
        self._machine.write(path, text.encode())
        if path == self.agent:
            require_ok(self._machine.run(["chmod", "755", path]))
