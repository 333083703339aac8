"""What the packages of a program are called, and the command that installs them."""

import shutil
from dataclasses import dataclass

_COMMANDS = {
    "apt": ("apt-get", "sudo apt-get install --no-install-recommends"),
    "dnf": ("dnf", "sudo dnf install"),
    "zypper": ("zypper", "sudo zypper install"),
}
"""Each family's program, and how it installs: Debian and Ubuntu, Fedora and RHEL, SUSE."""


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages of one program in each family, separated by blanks; empty where a family has none."""

    apt: str
    dnf: str
    zypper: str

    def __str__(self) -> str:
        """Return all names, each with the families that use it."""
        families: dict[str, list[str]] = {}
        for family in _COMMANDS:
            families.setdefault(getattr(self, family), []).append(family)
        return " or ".join(f"{names} ({', '.join(known)})" for names, known in families.items() if names)


def _alike(names: str) -> Packages:
    return Packages(names, names, names)


PACKAGES = {
    "ip": Packages("iproute2", "iproute", "iproute2"),
    "ping": Packages("iputils-ping", "iputils", "iputils"),
    "unshare": _alike("util-linux"),
    "nsenter": _alike("util-linux"),
    "ethtool": _alike("ethtool"),
    "cc": Packages("gcc libc6-dev", "gcc glibc-devel", "gcc glibc-devel"),
    "openmpi": Packages("openmpi-bin libopenmpi-dev", "openmpi-devel", "openmpi4-devel"),
    "mpich": Packages("mpich libmpich-dev", "mpich-devel", "mpich-devel"),
    "sockperf": _alike("sockperf"),
    "qperf": _alike("qperf"),
    "perftest": _alike("perftest"),
    "nuttcp": _alike("nuttcp"),
    "iperf3": Packages("iperf3", "iperf3", "iperf"),
    "netperf": Packages("netperf", "", "netperf"),
    "virsh": Packages("libvirt-clients", "libvirt-client", "libvirt-client"),
    "cairo": Packages("libcairo2", "cairo", "libcairo2"),
}
"""Program, suite or library -> its packages."""


def packages_of(what: str) -> str:
    """Return which packages to install on a machine of any family."""
    return f"install {PACKAGES[what]}"


def fix_here(what: str) -> str:
    """Return the command that installs something on this machine; the packages where it has no known installer."""
    for family, (program, command) in _COMMANDS.items():
        names = getattr(PACKAGES[what], family)
        if names and shutil.which(program):
            return f"{command} {names}"
    return packages_of(what)
