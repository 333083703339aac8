"""The histories of `knob_histories.py` over ssh: the machine is reached through a real sshd, which is cut at times."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knob_histories import History, quick_trials
from knob_world import Boot, Fault, enter
from nearmetal.cli.main import run as run_verb
from nearmetal.hosts.ssh.host import SshHost
from nearmetal.run import trial
from nearmetal.study.order import Order, PathOrder, TrialStatus, WorkloadOrder
from nearmetal.study.spec import NodeSpec
from sshd import Sshd, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearmetal.hosts.host import Host
    from nearmetal.study.order import Scalar

_CONFIG = """Host {alias}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {keys}/user
  UserKnownHostsFile {keys}/known_hosts
"""


class SshHistory(History):
    """A history whose verbs reach the machine as `far`."""

    faults = ("", "", "", "kill", "kill", "cut", "cut", "cut", "ENOSPC", "EDQUOT", "EROFS", "EIO")
    answers = ("yes", "no", "kill", "both", "cut", "cut")
    reboots = 0.0
    tunes = 0.1
    placement = "[0, 0]"
    to = ("--host", "far")
    host = ("far",)

    def __init__(self, seed: int, other: tuple[int, int], *, sshd: Sshd, alias: str = "far") -> None:
        super().__init__(seed, other)
        self.home = sshd.folder / "home"
        for left in (".local", "../machine"):
            shutil.rmtree(self.home / left, ignore_errors=True)
        for name, port in zip(("here", "away"), sshd.ports, strict=True):
            (self.root / name / ".ssh").mkdir(parents=True)
            (self.root / name / ".ssh/config").write_text(_CONFIG.format(alias=alias, port=port, keys=sshd.folder))
        self.boot = Boot(boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())

    def reach(self, boot: Boot, *, away: bool) -> None:
        os.environ["HOME"] = str(self.root / ("away" if away else "here"))

    def trials(self) -> Host:
        """Return the host on which `tune` would carry out trials."""
        return SshHost([NodeSpec(name="far")], {})

    def trial(self, device: str, words: dict[str, Scalar], *, hanging: bool, fails: bool) -> int:
        """Carry out a trial that does nothing, on the real host."""
        quick_trials(hanging=hanging)
        workload = WorkloadOrder("w", "command", {"argv": ["false" if fails else "true"]}, (0, 0))
        path = PathOrder("p", "declared", {"interface": device})
        with contextlib.closing(self.trials()) as host:
            outcome = host.carry_out(Order(0, 0, path, workload, knobs=words, timeout_s=600.0), trial.carry_out)
        sys.stderr.write(outcome.reason)
        return outcome.status is not TrialStatus.VALID

    def roll_back_by_hand(self, fault: Fault, *, away: bool = False) -> int:
        """Roll back on the machine itself, not over ssh."""

        def on_the_machine() -> int:
            if away:
                enter(self.other)
            return run_verb(["rollback"])

        self.note("rollback", f"of the machine itself {fault} away={away}")
        self.counts["another namespace"] += away
        return self.finish(self.start(on_the_machine, fault))

    def final_roll_back(self) -> int:
        self.roll_back_by_hand(Fault())  # sets aside damaged journals of trials, which `far` only names
        return self.roll_back()

    def tuned(self, device: str) -> str:
        path = f'[[path]]\nname = "p"\nkind = "declared"\noptions = {{ interface = "{device}" }}\n'
        return f'[host]\nkind = "ssh"\n[[host.node]]\nname = "far"\n{path}'

    def marks(self, line: bytes) -> bool:
        return b"nearmetal-watchdog" in line and str(self.home).encode() in line


@contextlib.contextmanager
def over_ssh(other: tuple[int, int], kind: type[SshHistory] = SshHistory) -> Iterator[Any]:
    """Serve this namespace and the other one; yield a constructor of histories."""
    if missing := why_not():  # sshd cuts every connection then, and every history fails by that
        raise SystemExit(missing)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as keys, Sshd(Path(keys)) as sshd:
        sshd.serve([])
        net, mount = (f"/proc/{os.getpid()}/fd/{handle}" for handle in other)
        sshd.serve(["nsenter", f"--net={net}", f"--mount={mount}"])
        signal.signal(signal.SIGUSR1, lambda *_: sshd.drop())
        yield partial(kind, sshd=sshd)
