"""A guest under KVM on a machine of the lab: its command line, and waiting until it serves.

It has the machine's root file system over 9p, so every program is there. Standard library only: this runs inside the
lab.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.lab.guest_root import GUEST_INITRD
from nearmetal.hosts.lab.remote import READY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nearmetal.hosts.host import Helper, Shell

BOOT_TIMEOUT_S = 20.0
_DEVICE = Path("/dev/kvm")
_POLL_S = 0.1
_MEMORY_MIB = 224
_KERNEL_OPTIONS = "console=ttyS0 quiet panic=1 tsc=reliable"
_CONSOLE_LINES = 12


@dataclass(frozen=True, slots=True)
class Booting:
    """A guest that was started on the machine of `shell`."""

    shell: Shell
    name: str
    console: str
    helper: Helper
    deadline_s: float

    def wait(self, answers: Callable[[], bool]) -> None:
        """Wait until it serves and `answers`; raise TrialError with its last words when it does not come up."""
        # A look at the console costs the guest nothing; a call would take its processor from it.
        while READY not in self._said() or not answers():
            ended = self.helper.ended()
            if ended is not None or time.monotonic() > self.deadline_s:
                how = ended.complaint() if ended else f"it did not answer within {BOOT_TIMEOUT_S:.0f} s"
                tail = " | ".join(self._said().strip().splitlines()[-_CONSOLE_LINES:]) or "empty"
                raise TrialError(f"guest {self.name} did not come up: {how}; its console: {tail}")
            time.sleep(_POLL_S)

    def _said(self) -> str:
        try:
            return self.shell.read(self.console).decode(errors="backslashreplace")
        except NearmetalError:
            return ""


def start(shell: Shell, name: str, devices: Sequence[str], words: Mapping[str, str]) -> Booting:
    """Start a guest with these devices (QEMU's words) on the machine of `shell`; its small root is told `words`.

    Raises UnavailableError when that machine has no KVM.
    """
    if not _DEVICE.exists():
        raise UnavailableError(
            f"node {name} must be a guest, and this machine of the lab has no KVM",
            hint='ask for the machine that has: `[host.options] machine = "kvm"`',
        )
    console = f"{shell.scratch}/{name}.console"
    told = {"name": name, "scratch": shell.scratch, **words}
    options = " ".join((_KERNEL_OPTIONS, *(f"lab.{key}={value}" for key, value in told.items())))
    helper = shell.start(
        [
            *("qemu-system-x86_64", "-enable-kvm", "-cpu", "host", "-m", str(_MEMORY_MIB), "-no-reboot"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-serial", f"file:{console}"),
            *("-kernel", f"/boot/vmlinuz-{os.uname().release}", "-initrd", GUEST_INITRD, "-append", options),
            *("-virtfs", "local,path=/,mount_tag=root,security_model=none,multidevs=remap"),
            *devices,
        ]
    )
    return Booting(shell, name, console, helper, time.monotonic() + BOOT_TIMEOUT_S)
