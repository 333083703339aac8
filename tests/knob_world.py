"""The environment of `knob_histories.py`: real devices in two namespaces, commands in children, and faults.

Machine id, boot id and uptime are made up by the player, because the real ones cannot be changed. Values are read and
written through sysfs and procfs instead of `ip`, for speed; the watchdogs use `ip` and the shell as always.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knob_lab import coalesce
from nearmetal.hosts.machine import MachineShell
from nearmetal.knobs import session, undo
from nearmetal.process import Finished

if TYPE_CHECKING:
    from collections.abc import Iterator

NET = "/sys/class/net"
KNOBS = {
    "nic.mtu of v0": (f"{NET}/v0/mtu", ["1400", "1300", "1200"], "1111"),
    "nic.mtu of d0": (f"{NET}/d0/mtu", ["1450", "1350"], "1222"),
    "nic.txqueuelen of d0": (f"{NET}/d0/tx_queue_len", ["500", "600"], "777"),
    "nic.gro-flush-timeout-ns of v0": (f"{NET}/v0/gro_flush_timeout", ["20000", "30000"], "77777"),
    "nic.napi-defer-hard-irqs of d0": (f"{NET}/d0/napi_defer_hard_irqs", ["2", "3"], "7"),
    "host.tcp_limit_output_bytes of machine": (
        "/proc/sys/net/ipv4/tcp_limit_output_bytes",
        ["65536", "99999"],
        "77777",
    ),
}
"""Setting -> its file, values for sessions, and the value that somebody else writes."""
_NAMESPACES = {"net": 0x40000000, "mnt": 0x00020000}
"""Kinds of namespaces, and the flags of setns(2)."""
_LOOK_S = 0.04
_PAUSE = "34"
"""The number of pause(2) on x86-64: how a fault hangs."""


def state() -> dict[str, str]:
    return {name: _value(path) for name, (path, _, _) in KNOBS.items()}


def _value(path: str) -> str:
    kind, _, device = path.partition(":")
    return str(coalesce(device)) if kind == "coalesce" else Path(path).read_text().strip()


def of_this_machine(text: str) -> str:
    """Return a text with a trial's only node, n0, replaced by the machine itself."""
    return text.replace(" of n0/", " of ").replace(" of n0", " of machine")


def set_value(name: str, value: str) -> None:
    kind, _, device = KNOBS[name][0].partition(":")
    if kind == "coalesce":
        coalesce(device, int(value))
    else:
        Path(KNOBS[name][0]).write_text(f"{value}\n")


@dataclass
class Boot:
    """The identity of a machine."""

    machine: str = "machine-1"
    boot: str = "boot-1"
    up_s: float = 0.0


class QuickShell(MachineShell):
    """This machine without starting a program for each value; the identity of the machine is made up by the player."""

    boot = Boot()

    def run(self, argv: Any, **options: Any) -> Finished:
        answer = self._answer(list(argv))
        if answer is None:
            return super().run(argv, **options)
        out, err = answer
        return Finished(tuple(argv), 1 if err else 0, out.encode(), err.encode(), 1)

    def read(self, path: str, *, node: str = "") -> bytes:
        if path.endswith("/boot_id"):
            return f"{self.boot.boot}\n".encode()
        return super().read(path, node=node)

    def _answer(self, argv: list[str]) -> tuple[str, str] | None:  # noqa: C901, PLR0911 - one case a program
        match argv:
            case ["cat", "--", path]:
                return _text(path)
            case ["grep", "-sH", "", *paths]:
                return "".join(f"{path}:{_text(path)[0]}" for path in paths if _text(path)[0]), ""
            case ["sh", "-c", script, *_] if "machine-id" in script:
                spaces = [_link(f"/proc/self/ns/{kind}") for kind in _NAMESPACES]
                return "\n".join([self.boot.machine, "host", self.boot.boot, *spaces, f"{self.boot.up_s} 0", ""]), ""
            case ["sh", "-c", script, *_] if "comm" in script:
                return "", ""
            case ["ip", "-o", "route", *_] | ["ip", "-o", "-6", *_]:
                return "", ""
            case ["readlink", path]:
                return f"{_link(path)}\n", ""
            case ["ethtool", "-i", device]:
                return (f"driver: {device}\n", "") if Path(f"{NET}/{device}").exists() else ("", "No such device")
            case ["ip", *_, "link", "show", "dev", device]:
                facts = [_text(f"{NET}/{device}/{name}")[0].strip() for name in ("ifindex", "mtu", "tx_queue_len")]
                line = "{}: {}: <UP> mtu {} qdisc noop qlen {} minmtu 68 maxmtu 65535 x\n".format(
                    facts[0], device, *facts[1:]
                )
                return (line, "") if facts[0] else ("", f'Device "{device}" does not exist.')
            case ["ip", "link", "set", "dev", device, name, value]:
                file = {"mtu": "mtu", "txqueuelen": "tx_queue_len"}[name]
                try:
                    Path(f"{NET}/{device}/{file}").write_text(value)
                except OSError as error:
                    return "", os.strerror(error.errno or 0)
                return "", ""
        return None


def _link(path: str) -> str:
    return os.readlink(path)  # noqa: PTH115 - it leads to no file


def _text(path: str) -> tuple[str, str]:
    try:
        return Path(path).read_text(), ""
    except OSError as error:
        return "", f"cat: {path}: {error.strerror}"


class Steps:
    """Counts the steps of a command, and causes a fault at one of them."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self._fault = fault
        self._folder = str(folder)
        self._left = fault.step

    def before(self, target: object) -> None:
        """Count a step of the disk (a file or descriptor), or with None one of the kernel."""
        disk = target is not None
        if disk and not self._concerns(target):
            return
        if not disk and self._fault.of_disk:
            return
        self._left -= 1
        if self._left == -1 or (self._fault.lasting and self._left < 0):
            self._fault.act()

    def _concerns(self, target: object) -> bool:
        try:
            name = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)  # noqa: PTH115
        except OSError:
            return False
        return name.startswith(self._folder)

    def wrap(self, owner: Any, name: str, *, disk: bool) -> None:
        """Count each call of a function of the disk before it, of one that writes to the kernel before and after it."""
        real = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            self.before(given[0] if disk else None)
            done = real(*given, **named)
            if not disk:
                self.before(None)
            return done

        setattr(owner, name, wrapped)


@dataclass(frozen=True)
class Fault:
    """What happens at one step of a command: `kill`, `hang`, `interrupt` (ctrl-C), `cut`, an action of the batch system
    (`OF_SLURM`), or an errno of the disk, once or from then on.

    `cut` asks the player to cut the connection to the far machine.

    `acted` is created when the fault happens: a command may end before the step.
    """

    kind: str = ""
    step: int = 0
    lasting: bool = False
    acted: Path | None = field(default=None, repr=False)

    def happened(self) -> bool:
        return self.acted is not None and self.acted.exists()

    @property
    def of_disk(self) -> bool:
        return self.kind.isupper()

    def install(self, folder: Path) -> None:
        """Wrap the functions that write records to the disk and values to the kernel; called in the child."""
        if self.kind:
            steps = Steps(self, folder)
            for name in ("write", "fsync", "open", "rename", "ftruncate", "unlink"):
                steps.wrap(os, name, disk=True)
            for owner in (session, undo):
                steps.wrap(owner, "write_one", disk=False)

    def act(self) -> None:
        assert self.acted is not None
        self.acted.mkdir(exist_ok=True)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif self.kind == "hang":
            signal.pause()
        elif self.kind == "cut":
            os.kill(os.getppid(), signal.SIGUSR1)
        elif self.kind in OF_SLURM:
            slurm_does(self.kind)
        else:
            number = getattr(errno, self.kind)
            raise OSError(number, os.strerror(number))


OF_SLURM = {
    "scancel": 'scancel "$job"',
    "requeue": 'scontrol requeue "$job"',
    "node lost": "scontrol update nodename=n1 state=down reason=lost; scontrol update nodename=n1 state=resume",
    "time limit": 'scontrol update jobid="$job" timelimit=0',
}
"""What a batch system, or who rules it, does to a running `$job`."""


def slurm_does(kind: str) -> None:
    """Do this to every running job; a time limit is waited for, because Slurm checks it only twice a minute."""
    wait = "while squeue -h -t R -o %A | grep -q .; do sleep 0.2; done" if kind == "time limit" else ""
    script = f"for job in $(squeue -h -t R -o %A); do {OF_SLURM[kind]}; done; {wait}"
    subprocess.run(["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


@dataclass
class Command:
    """A verb in a forked child; in a job the child is `srun`, and `inside` is a file that names the verb's process."""

    pid: int
    output: Path
    answer: int
    fault: Fault
    knobs: dict[str, str] = field(default_factory=dict)
    inside: Path | None = None

    @property
    def process(self) -> int:
        """Return the process that runs the verb, if known."""
        recorded = self.inside.read_text() if self.inside and self.inside.exists() else ""
        return int(recorded or self.pid)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # a job may have ended meanwhile
            os.kill(self.process, number)

    def text(self) -> str:
        return of_this_machine(self.output.read_text(errors="replace"))

    def pause(self) -> None:
        """Wait until it ends, or until the next check is due."""
        watched = os.pidfd_open(self.pid)
        select.select([watched], [], [], _LOOK_S)
        os.close(watched)

    def ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


def enter(namespaces: tuple[int, int]) -> None:
    """Enter a network and a mount namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    for handle, kind in zip(namespaces, _NAMESPACES.values(), strict=True):
        if libc.setns(handle, kind):
            raise OSError(ctypes.get_errno(), "setns")


def hangs(pid: int) -> bool:
    """Return whether a process waits in pause(2), as a hanging fault does."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/syscall").read_text().split()[0] == _PAUSE
    return False


def runs(pid: int) -> bool:
    """Return whether a process runs: one that has ended but has not been reaped has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def elsewhere(other: tuple[int, int]) -> str:
    argv = ["nsenter", f"--net=/proc/self/fd/{other[0]}", f"--mount=/proc/self/fd/{other[1]}", "cat"]
    paths = [path for path, _, _ in KNOBS.values() if path.startswith("/")]
    return subprocess.run([*argv, *paths], capture_output=True, text=True, check=True, pass_fds=other).stdout


DEVICES = """
mount -t sysfs sysfs /sys 2> /dev/null
ip link add v0 type veth peer name v1
# Not every kernel has dummy devices.
ip link add d0 type dummy 2> /dev/null || ip link add d0 type veth peer name d1
for device in v0 v1 d0; do ip link set $device up; done
ip addr add 10.9.0.1/24 dev v0
ip addr add 10.9.1.1/24 dev d0
"""
ELSEWHERE = f"{DEVICES}ip link set v0 mtu 1400"
"""What makes devices of the same names in another namespace."""


@contextlib.contextmanager
def other_namespace() -> Iterator[tuple[int, int]]:
    """Make a second namespace with devices of the same names; yield the descriptors for setns."""
    argv = ["unshare", "--net", "--mount", "--", "sh", "-c", f"{ELSEWHERE}; echo ready; exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as there:
        assert there.stdout is not None
        assert there.stdout.readline() == b"ready\n"
        handles = tuple(os.open(f"/proc/{there.pid}/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES)
        try:
            yield handles  # type: ignore[misc]
        finally:
            for handle in handles:
                os.close(handle)
            assert there.stdin is not None
            there.stdin.close()
