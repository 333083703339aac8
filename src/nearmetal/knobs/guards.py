"""What is looked at before a knob is touched: the device, the management interface, and rival daemons."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import BadInputError, NearmetalError
from nearmetal.hosts.host import Shell, is_disposable, is_far
from nearmetal.knobs.access import run_c
from nearmetal.knobs.drivers import VIRTIO_PLAIN
from nearmetal.knobs.journal import Device
from nearmetal.knobs.knob import Target
from nearmetal.paths.links import LOWER_SCRIPT

_RIVALS: dict[str, tuple[str, ...]] = {
    "irqbalance": ("nic.irq-affinity",),
    "tuned": ("host.", "nic.adaptive", "nic.rx-", "nic.tx-", "nic.pause", "nic.ring", "nic.channels"),
    "NetworkManager": ("nic.",),
    "bpftune": ("host.",),
    "power-profiles-daemon": ("host.cpu-governor", "host.cpu-energy-preference", "host.idle-latency-us"),
    "systemd-networkd": ("nic.mtu",),
}
"""Programs that change knobs by themselves, and the beginnings of the names of those knobs."""

_NOTF_COAL = 53
_CONNECTION = b"SSH_CONNECTION="

# Prints an interface and all that is built on it: bridges, bonds, VLANs. Open vSwitch has a port below its datapath
# alone; only flows show which of the datapath's own interfaces it serves, so all of them are printed.
UPPER_SCRIPT = r"""
switch=$(ip -o link show type openvswitch 2> /dev/null | sed 's/^[0-9]*: \([^:@]*\).*/\1/')
upper() {
    echo "$1"
    for link in "/sys/class/net/$1"/upper_*; do
        [ ! -e "$link" ] || upper "${link##*/upper_}"
    done
}
found=$(upper "$1")
echo "$found"
for one in $switch; do
    case " $(echo $found) " in *" $one "*) echo "$switch"; break ;; esac
done
"""

# Other network namespaces, those of processes and those with a name.
NAMESPACES = r"""
own=$(stat -L -c %i /proc/self/ns/net)
others() {
    stat -L -c '%i %n' /run/netns/* /run/docker/netns/* /proc/[0-9]*/ns/net 2> /dev/null |
        awk -v own="$own" '$1 != own && !seen[$1]++ { print $2 }'
}
there() { nsenter --net="$place" "$@" 2> /dev/null; }
"""

# Prints where an interface of address $1 and a driver that begins with $2 is in other network namespaces, and its name.
_MOVED_SCRIPT = (
    NAMESPACES
    + r"""
others | while read -r place; do
    there ip -o link show | sed -n "s/^[0-9]*: \([^:@]*\).* link\/[^ ]* $1 .*/\1/p" |
        while read -r name; do
            driver=$(there ethtool -i "$name" | sed -n 's/^driver: //p')
            [ "${driver%% *}" != "$2" ] || echo "$place $name"
        done
done
"""
)

# One shell for all processes: a `cat` each would take longer than everything else together.
_NAMES_SCRIPT = 'for f in /proc/[0-9]*/comm; do read -r name < "$f" && echo "$name"; done 2>/dev/null'


@dataclass(frozen=True, slots=True)
class RivalProgram:
    """A running program that would fight over knobs."""

    program: str
    knobs: tuple[str, ...]

    def __str__(self) -> str:
        """Return the warning."""
        return f"{self.program} is running and may change {', '.join(self.knobs)}; stop it while you measure"


def rivals(shell: Shell, node: str, knobs: Iterable[str]) -> tuple[RivalProgram, ...]:
    """Return the running programs that would fight over these knobs."""
    running = set(run_c(shell, ("sh", "-c", _NAMES_SCRIPT), node).text.split())
    names = list(knobs)
    found = []
    for program, prefixes in _RIVALS.items():
        # The kernel cuts names of processes to 15 characters.
        contested = tuple(name for name in names if name.startswith(prefixes))
        if program[:15] in running and contested:
            found.append(RivalProgram(program, contested))
    return tuple(found)


def refuse_management(shell: Shell, target: Target) -> None:
    """Raise BadInputError when the interface, or one that it is part of, has the default route or the way to the user.

    A bridge, a bond or a VLAN loses its link with the port below it.
    """
    names = (target.interface, *above(shell, target))
    for family in ("-4", "-6"):
        if name := _device_of(_ip(shell, target, family, "route", "show", "default"), names):
            _refuse(target, name, "carries the default route")
    if is_far(shell):
        connection = run_c(shell, ("printenv", "SSH_CONNECTION"), target.node).text
    else:
        connection = os.environ.get("SSH_CONNECTION", "") or _connection_of_parents()
    user, _, here, *_ = [*connection.split(), "", "", ""]
    peer, _, zone = user.partition("%")
    own = here.partition("%")[0]
    # The zone of a link-local address is its interface. Policy routes go by the address that answers.
    ways = f"dev {zone} " if zone else _ip(shell, target, "route", "get", peer) if peer else ""
    if not zone and peer and own:
        ways += _ip(shell, target, "route", "get", peer, "from", own)
    if name := _device_of(ways, names):
        _refuse(target, name, f"leads to {peer}, which you are logged in from")
    if own and (name := _device_of(_with_address(shell, target, own), names)):
        _refuse(target, name, f"has {own}, which you are logged in to")


def above(shell: Shell, target: Target) -> tuple[str, ...]:
    """Return the interfaces that are built on one, such as its bridge, bond, VLANs and macvlans, those below first."""
    found = run_c(shell, ("sh", "-c", UPPER_SCRIPT, "upper", target.interface), target.node).text.split()
    return tuple(dict.fromkeys(name for name in found if name != target.interface))


def below(shell: Shell, target: Target) -> tuple[str, ...]:
    """Return the interfaces that one is built on, as far as they are in its network namespace."""
    found = run_c(shell, ("sh", "-c", LOWER_SCRIPT, "lower", target.interface), target.node).text.split()
    return tuple(dict.fromkeys(found))


def _ip(shell: Shell, target: Target, *words: str) -> str:
    return run_c(shell, ("ip", "-o", *words), target.node).text


def _with_address(shell: Shell, target: Target, address: str) -> str:
    """Return the interfaces that have an address, each as `dev NAME`."""
    lines = _ip(shell, target, "address", "show", "to", address).splitlines()
    return " ".join(f"dev {line.split()[1]}" for line in lines if len(line.split()) > 1)


def _device_of(routes: str, names: Iterable[str]) -> str:
    """Return which of some interfaces a text of routes names, or an empty text."""
    words = f"{routes} ".replace("\n", " ")
    return next((name for name in names if f"dev {name} " in words), "")


def _connection_of_parents() -> str:
    """Return SSH_CONNECTION of the nearest process above this one that had it: sudo and su do not hand it on."""
    process = os.getppid()
    while process > 0:
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
        except OSError:  # another user's process; who may not look at it has the variable from it
            return ""
        if found := next((one for one in environment if one.startswith(_CONNECTION)), b""):
            return found.removeprefix(_CONNECTION).decode(errors="replace")
        process = int(stat.rpartition(")")[2].split()[1])
    return ""


def _refuse(target: Target, name: str, why: str) -> None:
    what = "it" if name == target.interface else f"it is below {name}, which"
    raise BadInputError(
        f"{target} is the management interface: {what} {why}",
        hint="use another interface; if you can reach the machine another way, "
        "`nearmetal apply PROFILE --allow-management` changes this one",
    )


def identify(shell: Shell, target: Target) -> Device:
    """Return which device a target is; raise NearmetalError when there is none.

    Its driver alone on a machine that ends with the trial, for no journal is read there later.
    """
    if not target.interface:
        return Device(str(target), "", "")
    about = _driver(shell, target)
    driver = about.get("driver", "")
    if driver == "virtio_net" and not _virtio_coalesces(shell, target):
        driver = VIRTIO_PLAIN
    return Device(str(target), driver, "" if is_disposable(shell) else _identity(shell, target, about, driver))


def _identity(shell: Shell, target: Target, about: Mapping[str, str], driver: str) -> str:
    link = run_c(shell, ("ip", "-o", "link", "show", "dev", target.interface), target.node)
    if not link.ok:
        raise NearmetalError(f"there is no interface {target}", hint="`nearmetal knobs` lists the interfaces of a host")
    namespace = run_c(shell, ("readlink", "/proc/self/ns/net"), target.node).text.strip()
    index = link.text.partition(":")[0]
    found = re.search(r"link/\S+ ([0-9a-f:]{11,})", link.text)
    address = f"address {found[1]}" if found and found[1].strip("0:") else ""
    words = (
        namespace,
        f"ifindex {index}",
        address,
        driver,
        about.get("bus-info", ""),
        about.get("firmware-version", ""),
    )
    return ", ".join(word for word in words if word)


def refuse_without_files(shell: Shell, target: Target) -> None:
    """Raise BadInputError for another name of an interface, and where sysfs is another network namespace's.

    Below /sys nothing has the former name; the interfaces of the latter may have the same names as those here.
    """
    link = run_c(shell, ("ip", "-o", "link", "show", "dev", target.interface), target.node).text
    index, _, rest = link.partition(": ")
    name = rest.partition(":")[0].partition("@")[0]
    if name != target.interface:
        raise BadInputError(f"{target} is another name of the interface {name}", hint=f"name it {name}")
    folder = f"/sys/class/net/{target.interface}"
    shown = run_c(shell, ("cat", "--", f"{folder}/ifindex", f"{folder}/address"), target.node).text.split()
    address = re.search(r"link/\S+ ([0-9a-f:]{11,})", link)
    if shown[:1] != [index] or (address and shown[1:] != [address[1]]):
        raise BadInputError(
            f"/sys shows the interfaces of another network namespace than that of {target}, so nothing is touched",
            hint="enter the namespace by `ip netns exec`, or mount its sysfs: `mount -t sysfs sysfs /sys`",
        )


def moved_to(shell: Shell, node: str, device: Device) -> list[tuple[str, str]]:
    """Return the other network namespaces where a device may be now, each with its name there: same address and driver.

    None where this user may not look into them, or the device has no address.
    """
    if not device.address:
        return []
    argv = ("sh", "-c", _MOVED_SCRIPT, "moved", device.address, device.driver.partition(" ")[0])
    lines = run_c(shell, argv, node).text.splitlines()
    return [(place, name) for place, _, name in (line.partition(" ") for line in lines)]


def index_of(shell: Shell, node: str, interface: str) -> str:
    """Return the index of an interface, empty where there is none of that name."""
    link = run_c(shell, ("ip", "-o", "link", "show", "dev", interface), node)
    return link.text.partition(":")[0] if link.ok else ""


def _driver(shell: Shell, target: Target) -> dict[str, str]:
    try:
        shown = run_c(shell, ("ethtool", "-i", target.interface), target.node)
    except NearmetalError:
        return {}
    pairs = (line.partition(":") for line in shown.text.splitlines())
    return {name: value.strip() for name, _, value in pairs} if shown.ok else {}


def _virtio_coalesces(shell: Shell, target: Target) -> bool:
    """Return whether a virtio NIC offers coalescing: feature bit 53 (virtio 1.2, section 5.1.3)."""
    shown = run_c(shell, ("cat", "--", f"/sys/class/net/{target.interface}/device/features"), target.node)
    return shown.text.strip()[_NOTF_COAL : _NOTF_COAL + 1] == "1"
