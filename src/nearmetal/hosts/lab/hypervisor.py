"""The shell inside the lab: nodes are namespaces, or guests of the lab's own hypervisor under KVM.

A guest has the hypervisor's root file system over 9p, so every program is there, and a service that runs programs
over vsock. Neither crosses the measured path. Standard library only: this runs inside the lab.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nearmetal.errors import TrialError, UnavailableError
from nearmetal.hosts.host import HYPERVISOR
from nearmetal.hosts.lab import remote
from nearmetal.hosts.lab.cpio import Node, with_parents, write_archive
from nearmetal.hosts.namespaces import NamespaceShell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GUEST_INITRD = "/run/guest.cpio"
_FIRST_CID = 3
_BOOT_TIMEOUT_S = 20.0
_POLL_S = 0.1
_MEMORY_MIB = 224
_TOOLS = ("/bin/sh", "/bin/mount", "/sbin/insmod", "/sbin/switch_root", "/bin/mkdir", "/bin/hostname")
_GUEST_MODULES = (
    "9pnet_virtio",
    "9p",
    "vmw_vsock_virtio_transport",
    "virtio_pci",
    "virtio_net",
    "e1000",
    "igbvf",
    "igb",
)

# Under the instruction-counting emulator guests hang in two runs of three: it looks as if an interrupt came although
# the guest had interrupts off, for its handler spins for a lock that the interrupted code holds. With KVM's
# paravirtual features hidden and one CPU's interrupt routing they still stall; see docs/explanation/lab-stalls.md.
_CPU = "host,kvm=off"
_KERNEL_OPTIONS = "console=ttyS0 quiet panic=1 nosmp tsc=reliable"

_READY = "lab: guest is up"

_GUEST_INIT = """#!/bin/sh
ready="lab: guest is up"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for word in $(while read -r line; do echo "$line"; done </proc/cmdline); do
    case $word in lab.*=*) eval "${word#lab.}" ;; esac
done
while read -r module; do insmod "$module" || echo "insmod $module failed"; done </modules
mkdir -p /newroot
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,access=any root /newroot || exec sh
mount -t proc proc /newroot/proc
mount -t sysfs sys /newroot/sys
mount -t devtmpfs dev /newroot/dev
mkdir -p /newroot/dev/pts /newroot/dev/shm
mount -t devpts devpts /newroot/dev/pts
mount -t tmpfs shm /newroot/dev/shm
mount -t tmpfs run /newroot/run
mount -t tmpfs tmp "/newroot$scratch/$name"
: >/newroot/run/hosts
mount --bind /newroot/run/hosts /newroot/etc/hosts
hostname "$name"
export PYTHONPATH=/opt/nearmetal PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
echo "$ready"
exec switch_root /newroot /usr/bin/python3 -S -m nearmetal.hosts.lab.remote serve
"""

_AGENT_SCRIPT = """#!/bin/sh
# Stands for ssh between nodes: agent [OPTIONS] NODE COMMAND...; the command is evaluated there, as ssh does.
while [ "${1#-}" != "$1" ]; do shift; done
here=${0%/*}
node=$1
shift
export TMPDIR=$here/$node
if [ -e "$here/guests/$node" ]; then
    read -r cid <"$here/guests/$node"
    exec python3 -S -m nearmetal.hosts.lab.remote "$cid" -- sh -c "$*"
fi
pid=$(cat "$here/nodes/$node") || exit 255
exec nsenter --target "$pid" --net --uts --ipc --mount --wd="$PWD" -- sh -c "$*"
"""


class LabShell(NamespaceShell):
    """Namespaces on the lab's own network, and guests beside them."""

    def __init__(self) -> None:
        """Start on the machine's own network, where its ports are."""
        self._guests: dict[str, int] = {}
        super().__init__(own_network=False)

    def _write_scratch(self) -> None:
        super()._write_scratch()
        Path(self._scratch, "guests").mkdir()
        Path(self.agent).write_text(_AGENT_SCRIPT)

    def boot_guest(self, node: str, devices: Sequence[str]) -> None:
        """Make a node a guest with these devices (QEMU's words) and wait until it runs programs.

        Raises UnavailableError when this machine has no KVM, TrialError with the guest's last words when it does
        not come up.
        """
        if not Path("/dev/kvm").exists():
            raise UnavailableError(
                f"node {node} must be a guest, and this machine of the lab has no KVM",
                hint='ask for the machine that has: `[host.options] machine = "kvm"`',
            )
        cid = _FIRST_CID + len(self._guests)
        console = f"{self._scratch}/{node}/console"
        options = f"{_KERNEL_OPTIONS} lab.name={node} lab.scratch={self._scratch}"
        helper = self.start(
            [
                *("qemu-system-x86_64", "-enable-kvm", "-cpu", _CPU, "-m", str(_MEMORY_MIB), "-no-reboot"),
                *("-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-serial", f"file:{console}"),
                *("-kernel", _kernel(), "-initrd", GUEST_INITRD, "-append", options),
                *("-virtfs", "local,path=/,mount_tag=root,security_model=none,multidevs=remap"),
                *("-device", f"vhost-vsock-pci,guest-cid={cid}"),
                *devices,
            ]
        )
        deadline = time.monotonic() + _BOOT_TIMEOUT_S
        self._guests[node] = cid
        Path(self._scratch, "guests", node).write_text(f"{cid}\n")
        # A look at the console costs the guest nothing; a call would take the one CPU from it.
        while _READY not in _read(console) or not self.run(["true"], node=node, check=False).ok:
            ended = helper.ended()
            if ended is not None or time.monotonic() > deadline:
                said = ended.complaint() if ended else f"it did not answer within {_BOOT_TIMEOUT_S:.0f} s"
                raise TrialError(f"guest {node} did not come up: {said}; its console: {_tail(console)}")
            time.sleep(_POLL_S)
        self.run(["ip", "link", "set", "lo", "up"], node=node)

    def write(self, path: str, data: bytes, *, node: str = HYPERVISOR) -> None:
        """Write a file as that node sees it; guests have the names of nodes in a file of their own."""
        super().write(path, data, node=node)
        if path == f"{self._scratch}/hosts":
            for guest in self._guests:
                super().write("/etc/hosts", data, node=guest)

    def give_interface(self, interface: str, node: str, name: str) -> None:
        """Move an interface into a node; a guest has its own, whatever the host calls it."""
        if node in self._guests:
            self.run(["ip", "link", "show", name], node=node)
        else:
            super().give_interface(interface, node, name)

    def _enter(self, node: str = HYPERVISOR) -> list[str]:
        if node not in self._guests:
            return super()._enter(node)
        return [*super()._enter(), "python3", "-S", "-m", remote.__name__, str(self._guests[node]), "--"]


def _read(console: str) -> str:
    path = Path(console)
    return path.read_text(errors="backslashreplace") if path.exists() else ""


def _tail(console: str) -> str:
    return " | ".join(_read(console).strip().splitlines()[-12:]) or "empty"


def _kernel() -> str:
    return f"/boot/vmlinuz-{os.uname().release}"


def write_guest_initrd() -> None:
    """Write the guests' small root from this machine's own files: a shell, a few tools, and the drivers.

    Done once before the lab is frozen, so no trial pays for it.
    """
    modules = _module_files(_GUEST_MODULES)
    nodes = [Node.file("init", _GUEST_INIT.encode(), executable=True)]
    nodes += [Node.directory(name) for name in ("proc", "sys", "dev", "root", "run", "tmp")]
    nodes += [Node.link(name, f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")]
    nodes += [_copied(path) for path in sorted({*map(_usr, _TOOLS), *map(_usr, _libraries(_TOOLS))})]
    nodes += [Node.file(f"lib-modules/{Path(path).name}", Path(path).read_bytes()) for path in modules]
    names = "".join(f"/lib-modules/{Path(path).name}\n" for path in modules)
    nodes.append(Node.file("modules", names.encode()))
    with Path(GUEST_INITRD).open("wb") as stream:
        write_archive(stream, with_parents(nodes), mtime_s=0)


def _usr(path: str) -> str:
    """Return a path below the merged /usr: `/bin/sh` -> `/usr/bin/sh`."""
    return path if path.startswith("/usr/") else f"/usr{path}"


def _copied(path: str) -> Node:
    return Node(path.lstrip("/"), stat.S_IFREG | 0o755, Path(path).read_bytes())


def _libraries(programs: Iterable[str]) -> list[str]:
    """Return the shared libraries of programs, the loader included, as the loader itself tells."""
    found = set()
    for program in programs:
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        found |= {word for word in said.split() if word.startswith("/")}
    return sorted(found)


def _module_files(names: Sequence[str]) -> list[str]:
    """Return the files of modules and of what they depend on, in the order in which they load."""
    files: dict[str, None] = {}
    for name in names:
        said = subprocess.run(["modprobe", "--show-depends", name], capture_output=True, text=True, check=True).stdout
        files.update(dict.fromkeys(line.split()[1] for line in said.splitlines() if line.startswith("insmod")))
    return list(files)
