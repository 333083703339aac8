"""A guest under KVM on a machine of the lab: its command line, and waiting until it serves.

It has the machine's root file system (see `guest_root`), so every program is there. A guest that was started before the
machine's snapshot stands in every machine that is restored from it: what is left then is to name it and to plug its
measured card in. Standard library only: this runs inside the lab.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nearmetal import native
from nearmetal.errors import NearmetalError, TrialError, UnavailableError
from nearmetal.hosts.host import Shell
from nearmetal.hosts.lab.guest_root import GUEST_INITRD
from nearmetal.hosts.lab.machine import CALLER, MANAGEMENT, MANAGEMENT_TAP
from nearmetal.hosts.lab.remote import READY
from nearmetal.hosts.machine import MachineShell
from nearmetal.process import Finished

BOOT_TIMEOUT_S = 20.0
_DEVICE = Path("/dev/kvm")
_POLL_S = 0.1
_MEMORY_MIB = 224
_KERNEL_OPTIONS = "console=ttyS0 quiet panic=1 tsc=reliable"
_CONSOLE_LINES = 12
_SETTLING_S = 1.0
_STANDING = "standing"
_FOLDER = Path("/run", _STANDING)
"""What a standing guest says, and its emulator's monitor."""
_MONITOR = _FOLDER / "monitor"
_ANSWERS = _FOLDER / "monitor.answers"
_NEAR, _FIRST = "192.0.2.1", "192.0.2.2"
"""The machine's and the guest's address between the two, until the guest is named."""
_FIRST_MAC = "52:54:00:0c:00:00"
_TAP = """set -e
ip tuntap add $1 mode tap
ip link set $1 up
"""
_NEIGHBOUR = """ip addr add $2/32 dev $1
ip route add $3/32 dev $1
"""
_ROUTE = """cd /proc/sys/net/ipv4
echo 1 >ip_forward
for card in $1 $4; do echo 1 >conf/$card/proxy_arp; echo 0 >neigh/$card/proxy_delay; done
"""
_NAME = """hostname $1
mkdir -p $3/$1
mount -t tmpfs tmp $3/$1
ip addr add $2/24 dev $4
"""
_TOOLS = ("/bin/sh", "/bin/ip", "/bin/hostname", "/bin/mkdir", "/bin/mount", "/bin/ping", "/usr/sbin/ethtool")
_COPY_ONCE = """{
    for program in /opt/nearmetal-programs/*-openmpi-* /usr/bin/mpirun.openmpi /usr/bin/orted "$@"; do
        echo "$program"
        ldd "$program" | grep -o '/[^ ]*'
    done
    find /etc/ld.so.cache /etc/nsswitch.conf /etc/passwd /etc/openmpi /usr/share/openmpi /usr/share/pmix*
    find /usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi* /usr/lib/x86_64-linux-gnu/pmix*
} 2>/dev/null | sort -u >/run/wanted
xargs touch -c </run/wanted
xargs touch -c -h /bin /sbin /lib /lib64 </run/wanted
"""


class _Ends(Protocol):
    """A program that may have ended."""

    def ended(self) -> Finished | None: ...


@dataclass(frozen=True, slots=True)
class BootingGuest:
    """A guest that was started on the machine of `shell`."""

    shell: Shell
    name: str
    console: str
    helper: _Ends
    deadline_s: float

    def wait(self, answers: Callable[[], bool]) -> None:
        """Wait until it serves and `answers`; raise TrialError with its last words when it does not come up."""
        # A look at the console costs the guest nothing; a call would take its processor from it.
        while READY not in self._output() or not answers():
            ended = self.helper.ended()
            if ended is not None or time.monotonic() > self.deadline_s:
                how = ended.complaint() if ended else f"it did not answer within {BOOT_TIMEOUT_S:.0f} s"
                tail = " | ".join(self._output().strip().splitlines()[-_CONSOLE_LINES:]) or "empty"
                raise TrialError(f"guest {self.name} did not come up: {how}; its console: {tail}")
            time.sleep(_POLL_S)

    def _output(self) -> str:
        try:
            return self.shell.read(self.console).decode(errors="backslashreplace")
        except NearmetalError:
            return ""


def managed(shell: Shell, name: str, devices: Sequence[str], near: str, address: str) -> BootingGuest:
    """Start a guest with these devices, or plug them into the one that stands, on a machine of a cluster.

    It is behind the machine, whose address is `near`, on the management network. Raises as `start` does, and TrialError
    when a standing guest cannot be named.
    """
    places = ["lab", MANAGEMENT_TAP, near, address, MANAGEMENT]
    if not stands():
        shell.run(["sh", "-c", _TAP + _NEIGHBOUR + _ROUTE, *places])
        return start(shell, name, [*devices, *_card(_FIRST_MAC)], {"address": address, "mac": _FIRST_MAC})
    shell.run(["sh", "-c", "set -e\n" + _NEIGHBOUR + _ROUTE, *places])
    named = ["sh", "-c", "set -e\n" + _NAME, "lab", name, address, shell.scratch, MANAGEMENT]
    shell.run([str(native.build(CALLER)), _FIRST, "--", *named])
    for flag, words in zip(devices[::2], devices[1::2], strict=True):
        line = f"{flag.removeprefix('-')}_add {words}"
        order = {"execute": "human-monitor-command", "arguments": {"command-line": line}}
        shell.write(f"{_MONITOR}.in", json.dumps(order).encode())
    return BootingGuest(
        shell, name, f"{_FOLDER}/{_STANDING}.console", _PluggedCard(shell), time.monotonic() + BOOT_TIMEOUT_S
    )


def stand() -> Shell:
    """Start a guest that stands in every machine restored from this one's snapshot; return the shell that holds it.

    It has its card for management and no other. Raises as `start` and `BootingGuest.wait` do.
    """
    shell = MachineShell()
    _FOLDER.mkdir()
    for end in ("in", "out"):
        os.mkfifo(f"{_MONITOR}.{end}")
    shell.run(["sh", "-c", _TAP + _NEIGHBOUR, "lab", MANAGEMENT_TAP, _NEAR, _FIRST])
    shell.start(["sh", "-c", 'exec cat "$1" >"$2"', "monitor", f"{_MONITOR}.out", str(_ANSWERS)])
    monitor = ["-chardev", f"pipe,id=monitor,path={_MONITOR}", "-mon", "chardev=monitor,mode=control"]
    # vfio pins all of a guest's memory: what the guest never used would be cleared for it in every trial.
    devices = [*monitor, "-mem-prealloc", *_card(_FIRST_MAC)]
    booting = start(shell, _STANDING, devices, {"address": _FIRST, "mac": _FIRST_MAC}, folder=str(_FOLDER))
    shell.write(f"{_MONITOR}.in", b'{"execute": "qmp_capabilities"}')
    booting.wait(lambda: True)
    # A machine has what a launch reads in its memory. Over 9p it would take the guest 0.5 ms to open each file, and
    # 0.1 ms to look for one that is not there: a file that is touched becomes the guest's own.
    shell.run([str(native.build(CALLER)), _FIRST, "--", "sh", "-c", _COPY_ONCE, "lab", *_TOOLS], timeout_s=60)
    time.sleep(_SETTLING_S)
    return shell


def stands() -> bool:
    """Return whether machines of this one's snapshot, and so all of a cluster, have a guest that stands."""
    return _FOLDER.exists()


def _card(mac: str) -> list[str]:
    """Return a guest's card for management."""
    network = f"tap,id=management,ifname={MANAGEMENT_TAP},script=no,downscript=no,vhost=on"
    return ["-netdev", network, "-device", f"virtio-net-pci,netdev=management,mac={mac},romfile="]


@dataclass(frozen=True, slots=True)
class _PluggedCard:
    """What a standing guest's emulator was told to plug in."""

    shell: Shell

    def ended(self) -> Finished | None:
        """Return what the emulator refused, or None."""
        refused = [answer for answer in self._answers() if answer.strip()]
        return Finished(("plugging", "in"), 1, b"", "".join(refused).encode(), 0) if refused else None

    def _answers(self) -> Iterator[str]:
        for line in self.shell.read(str(_ANSWERS)).decode().splitlines():
            with contextlib.suppress(ValueError):  # its last line may be incomplete
                answer = json.loads(line)
                yield str(answer.get("return") or answer.get("error", {}).get("desc", ""))


def start(
    shell: Shell, name: str, devices: Sequence[str], words: Mapping[str, str], *, folder: str = ""
) -> BootingGuest:
    """Start a guest with these devices (QEMU's words) on the machine of `shell`; its small root gets `words`.

    Its console and temporary files are in `folder`, or the shell's. Raises UnavailableError where there is no KVM.
    """
    if not _DEVICE.exists():
        message = f"node {name} must be a guest, but this machine of the lab has no KVM"
        raise UnavailableError(message, hint='use the machine that has it: `[host.options] machine = "kvm"`')
    folder = folder or shell.scratch
    console = f"{folder}/{name}.console"
    told = {"name": name, "scratch": folder, **words}
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
    return BootingGuest(shell, name, console, helper, time.monotonic() + BOOT_TIMEOUT_S)
