"""The guests' small root: what a guest of the lab's hypervisor boots from, before the hypervisor's own root takes over.

A guest sees that root over 9p, under an overlay in its own memory, which holds what it changes and every file that it
once touched.

Standard library only: this runs inside the lab.
"""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from nearmetal.hosts.lab.cpio import Node, with_parents, write_archive
from nearmetal.hosts.lab.machine import MANAGEMENT, MEASURED

GUEST_INITRD = "/run/guest.cpio"

_TOOLS = ("/bin/sh", "/bin/cat", "/bin/mount", "/sbin/insmod", "/sbin/switch_root", "/bin/mkdir", "/bin/hostname")
_GUEST_MODULES = (
    *("9pnet_virtio", "9p", "overlay", "vmw_vsock_virtio_transport"),
    *("virtio_pci", "virtio_net", "e1000", "igbvf", "igb"),
    "rdma_cm",  # as in machines: UCX, under MPICH, asks the kernel for it
)

_GUEST_INIT = Path(__file__).with_suffix(".sh").read_bytes()
_GUEST_NETWORK = f"""# network ADDRESS MAC: the card with that MAC is for management, the other one is measured.
cd /sys/class/net
for card in *; do
    read -r mac <"$card/address"
    test "$mac" != "$2" || ip link set "$card" name {MANAGEMENT}
done
for card in *; do
    case $card in lo|{MANAGEMENT}|{MEASURED}) ;; *) ip link set "$card" name {MEASURED} ;; esac
done
cd /proc/sys/net
for setting in ipv6/conf/all/disable_ipv6 ipv6/conf/default/disable_ipv6; do echo 1 >"$setting"; done
ip addr add "$1/24" dev {MANAGEMENT}
for card in lo {MANAGEMENT}; do ip link set "$card" up; done
ip route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1 quickack 1  # as in lab/init
cd /
"""


def write_guest_initrd() -> None:
    """Write the guests' small root from this machine's own files: a shell, a few tools, and the drivers.

    Done once before the lab is frozen, so no trial pays for it.
    """
    modules = _module_files(_GUEST_MODULES)
    nodes = [Node.file("init", _GUEST_INIT, executable=True)]
    nodes += [Node.directory(name) for name in ("proc", "sys", "dev", "run", "tmp")]
    nodes += [Node.link(name, f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")]
    programs = sorted({*map(_usr, _TOOLS), *map(_usr, _libraries(_TOOLS))})
    nodes += [Node.file(path.lstrip("/"), Path(path).read_bytes(), executable=True) for path in programs]
    nodes += [Node.file(f"lib-modules/{Path(path).name}", Path(path).read_bytes()) for path in modules]
    names = "".join(f"/lib-modules/{Path(path).name}\n" for path in modules)
    nodes.append(Node.file("modules", names.encode()))
    nodes.append(Node.file("network", _GUEST_NETWORK.encode()))
    with Path(GUEST_INITRD).open("wb") as stream:
        write_archive(stream, with_parents(nodes), mtime_s=0)


def _usr(path: str) -> str:
    """Return a path below the merged /usr: `/bin/sh` -> `/usr/bin/sh`."""
    return path if path.startswith("/usr/") else f"/usr{path}"


def _libraries(programs: Iterable[str]) -> list[str]:
    """Return the shared libraries of programs, including the loader, as the loader itself reports them."""
    found = set()
    for program in programs:
        printed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        found |= {word for word in printed.split() if word.startswith("/")}
    return sorted(found)


def _module_files(names: Sequence[str]) -> list[str]:
    """Return the files of modules and of what they depend on, in the order in which they load."""
    files: dict[str, None] = {}
    for name in names:
        argv = ["modprobe", "--show-depends", name]
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        files.update(dict.fromkeys(line.split()[1] for line in printed.splitlines() if line.startswith("insmod")))
    return list(files)
