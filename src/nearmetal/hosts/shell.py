"""What every shell does alike, whatever carries its commands and wherever its nodes are.

A subclass says how a command gets to a node (`_ended`, `_started`) and how its nodes are made; reading, writing and
ending are programs there, unless it knows a shorter way. Standard library only: it also runs inside the lab.
"""

import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkstemp
from typing import Generic, TypeVar

from nearmetal import process
from nearmetal.closing import Closing
from nearmetal.errors import NearmetalError, TrialError
from nearmetal.hosts.host import HYPERVISOR, Helper
from nearmetal.process import Finished

# ---- reading many small files with one program
# Each start of a program costs more than any of the reads, so none is started for a file that is not there.
#
# Standard library only: it also runs in the lab's guest.


# A constant; the mark and the paths reach it as positional parameters.
_SCRIPT = """mark=$1
shift
for path; do
    test -e "$path" && cat -- "$path"
    printf '\\n%s %d\\n' "$mark" $?
done 2>/dev/null
"""


def split(printed: bytes, paths: Sequence[str], mark: str) -> dict[str, bytes]:
    """Return the content of each file that could be read; raise NearmetalError when the reader was cut short."""
    *contents, rest = printed.split(f"\n{mark} ".encode())
    if len(contents) != len(paths):
        raise NearmetalError(f"reading {len(paths)} files broke off after {len(contents)}")
    # What follows a mark is the status of the file before it, a newline, and the next file.
    parts = [part.partition(b"\n") for part in [*contents[1:], rest]] if paths else []
    bodies = [*contents[:1], *(following for _, _, following in parts[:-1])]
    return {path: body for path, body, part in zip(paths, bodies, parts, strict=True) if part[0] == b"0"}


def read_each(read: Callable[[str], bytes], paths: Sequence[str]) -> dict[str, bytes]:
    """Return the content of those files that `read` can read, one by one, where a read costs no program."""
    found: dict[str, bytes] = {}
    for path in paths:
        with contextlib.suppress(NearmetalError):
            found[path] = read(path)
    return found


# ---- shell


H = TypeVar("H", bound=Helper)


class CommandShell(Closing, ABC, Generic[H]):
    """A `Shell` whose every deed is a program on a node; a context manager. `H` is what its programs are that stay."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        """A private directory of this shell, of the same name on every node."""
        self._helpers: list[H] = []

    @property
    def agent(self) -> str:
        """The program that reaches from node to node."""
        return f"{self.scratch}/agent"

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

    def start(self, argv: Sequence[str], *, node: str = HYPERVISOR) -> H:
        """Start a program that stays until `stop`, until this shell is closed, or until the machine is lost."""
        helper = self._started(argv, node)
        self._helpers.append(helper)
        return helper

    def read(self, path: str, *, node: str = HYPERVISOR) -> bytes:
        """Return a file's content as that node sees it."""
        finished = self.run(["cat", "--", path], node=node, check=False)
        if not finished.ok:
            reason = finished.stderr.decode(errors="replace").strip()
            raise NearmetalError(f"cannot read {path} on {self._called(node)}: {reason}")
        return finished.stdout

    def read_all(self, paths: Sequence[str], *, node: str = HYPERVISOR) -> dict[str, bytes]:
        """Return the content of those files that the node can read; one program reads them all."""
        mark = secrets.token_hex(16)  # no file holds it by chance
        return split(self.run(["sh", "-c", _SCRIPT, "sh", mark, *paths], node=node).stdout, paths, mark)

    def _stop_helpers(self) -> None:
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.stop()

    def _environment(self, node: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        """Return what is added to the environment of a program on a node."""
        return {"TMPDIR": f"{self.scratch}/{node}" if node else self.scratch, **(extra or {})}

    def _called(self, node: str) -> str:
        """Return what errors call a node."""
        return node or "the hypervisor"

    @abstractmethod
    def _ended(
        self, argv: Sequence[str], node: str, env: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Finished:
        """Run a program on a node to its end or to the timeout."""

    @abstractmethod
    def _started(self, argv: Sequence[str], node: str) -> H:
        """Start a program on a node that stays."""


class LocalHelper:
    """A program of this machine that stays; what it says goes to a file, so that it can never block on a full pipe."""

    def __init__(
        self, shown: Sequence[str], argv: Sequence[str], scratch: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._shown = tuple(shown)
        self._log = Path(mkstemp(prefix="helper-", dir=scratch)[1])
        self._started_ns = time.monotonic_ns()
        with self._log.open("wb") as log:
            self._process = process.spawn(argv, env=env, stdout=log.fileno(), stderr=log.fileno())

    def ended(self) -> Finished | None:
        """Return how it ended, or None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        return Finished(self._shown, status, self._log.read_bytes(), b"", time.monotonic_ns() - self._started_ns)

    def stop(self) -> None:
        """End it and its children."""
        process.end_session(self._process)
