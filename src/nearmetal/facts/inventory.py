"""What a machine is: the facts that decide whether two trials may be compared at all.

Standard library only: it also runs in the lab's guest.
"""

import re
import time
from collections.abc import Sequence

from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import HYPERVISOR, Shell, is_disposable, is_far, machines_of
from nearmetal.paths.path import Endpoints
from nearmetal.reading import parse_json
from nearmetal.study.facts import CLOCK, COMPUTERS, PROCESSORS, TICK
from nearmetal.study.order import Scalar
from nearmetal.workloads.processors import usable_processors

_CLOCK_MONOTONIC_COARSE = 6  # include/uapi/linux/time.h; it advances once a tick
_CPUINFO = "/proc/cpuinfo"
_CPU_DIR = "/sys/devices/system/cpu"
_BOOT, _NAME = "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"
_EVENTS = "/proc/vmstat"
_ONE_LINERS = {
    "cpu.governor": f"{_CPU_DIR}/cpu0/cpufreq/scaling_governor",
    "cpu.idle_driver": f"{_CPU_DIR}/cpuidle/current_driver",
    "kernel.release": "/proc/sys/kernel/osrelease",
    "kernel.version": "/proc/sys/kernel/version",
    "kernel.autogroup": "/proc/sys/kernel/sched_autogroup_enabled",
    CLOCK: "/sys/devices/system/clocksource/clocksource0/current_clocksource",
}
"""Facts that are one line of one file each."""


def machine_facts(shell: Shell) -> dict[str, Scalar]:
    """Return the machine's identity: CPU, kernel, governor, clock source, virtualization.

    A fact that this machine does not offer is the string `not offered`, never a guess.
    """
    files = shell.read_all([_CPUINFO, *_ONE_LINERS.values()])
    if _CPUINFO not in files:
        raise NearmetalError(f"cannot read {_CPUINFO}: this is not a Linux machine with /proc mounted")
    cpuinfo = files[_CPUINFO].decode(errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return {
        "cpu.model": model[1].strip() if model else "not offered",
        "cpu.count": len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)),
        "cpu.hypervisor": bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE)),
        **{
            name: files[path].decode(errors="replace").strip() if path in files else "not offered"
            for name, path in _ONE_LINERS.items()
        },
        **({} if is_far(shell) else {TICK: round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e9)}),
    }


def sharing_facts(shell: Shell, nodes: Sequence[str]) -> dict[str, Scalar]:
    """Return how nodes share processors: on how many computers they run, and how many processors each may use there.

    A computer is a running kernel, told by its boot id; namespaces and guests run on the one that holds them. Machines
    restored from one snapshot may have one boot id, but have other names. So have containers of one kernel, which share
    its page faults (`_kernels`). The smallest number of processors counts. Virtual machines that are nodes themselves
    cannot see what they share.
    """
    held = machines_of(shell) == (HYPERVISOR,)
    boots: dict[bytes, dict[bytes, str]] = {}
    counts: list[int] = []
    for node in [HYPERVISOR] if held else nodes:
        files, usable = shell.read_all([_BOOT, _NAME], node=node), usable_processors(shell, node)
        if _BOOT not in files or not usable:
            return {COMPUTERS: "not offered", PROCESSORS: "not offered"}
        boots.setdefault(files[_BOOT].strip(), {}).setdefault(files.get(_NAME, b"").strip(), node)
        counts.append(usable)
    kernels = [_kernels(shell, list(named.values())) for named in boots.values()]
    return {COMPUTERS: sum(kernels) if all(kernels) else "not offered", PROCESSORS: min(counts)}


def _kernels(shell: Shell, nodes: Sequence[str]) -> int:
    """Return how many kernels nodes of one boot id but different names have; 0 where a kernel does not tell.

    Containers of one kernel share its count of page faults (fs/proc/vmstat.c), which grows with each reading: a second
    round of readings encloses the first. Copies of a snapshot count apart, but the lab's by too little to show it, so
    there names suffice.
    """
    if len(nodes) == 1 or not is_far(shell):
        return len(nodes)
    first, second = ([_page_faults(shell, node) for node in nodes] for _ in range(2))
    if 0 in first:
        return 0
    kernels: list[int] = []
    for at, faults in enumerate(first):
        if not any(first[one] <= faults <= second[one] for one in kernels):
            kernels.append(at)
    return len(kernels)


def _page_faults(shell: Shell, node: str) -> int:
    """Return the page faults since a node's kernel booted, 0 where they are not counted."""
    text = shell.read_all([_EVENTS], node=node).get(_EVENTS, b"")
    found = re.search(rb"^pgfault (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def path_facts(shell: Shell, endpoints: Endpoints) -> dict[str, Scalar]:
    """Return the settings of each end's interface, `<node>.<interface>.<setting>`, and what cards machines have there.

    Those of the lab are known by the path's name. What an end is built on may be a card as well, as below a bond.
    """
    facts: dict[str, Scalar] = {}
    for end in endpoints.ends:
        if not end.interface:
            continue
        text = shell.run(["ip", "-json", "-details", "link", "show", "dev", end.interface], node=end.node).text
        facts |= {f"{end.node}.{end.interface}.{k}": v for k, v in parse_link(text).items()}
    for end in (*endpoints.ends, *endpoints.beneath) if is_far(shell) and not is_disposable(shell) else ():
        text = shell.run(["sh", "-c", _CARD, "card", end.interface], node=end.node, check=False).text
        facts |= {f"{end.node}.{end.interface}.{k}": v for k, v in parse_card(text).items()}
    return facts


# Prints what drives an interface, where it is a card; ethtool may not be there, as in a container.
_CARD = """cd "/sys/class/net/$1" && [ -e device ] || exit 0
sed -n 's/^DRIVER=/driver: /p' device/uevent
sed 's/^/speed: /' speed
ethtool -i "$1"
"""


def parse_card(text: str) -> dict[str, Scalar]:
    """Read what the script prints: driver with version, firmware, and speed where there is one."""
    lines = (line.partition(":") for line in text.splitlines())
    about = {key: value.strip() for key, _, value in lines if value.strip() != "N/A"}
    speed = about.get("speed", "")
    facts: dict[str, Scalar] = {
        "driver": f"{about.get('driver', '')} {about.get('version', '')}".strip(),
        "firmware": about.get("firmware-version", ""),
        "speed_mbit": int(speed) if speed.isdecimal() else 0,
    }
    return {name: value for name, value in facts.items() if value}


def parse_link(text: str) -> dict[str, Scalar]:
    """Read `ip -json -details link show dev X`: kind, mtu, queueing discipline, offload limits, queue counts."""
    link = parse_json(text)[0]
    info = link.get("linkinfo", {})
    facts: dict[str, Scalar] = {"kind": info.get("info_kind", "physical")}
    for key in ("mtu", "qdisc", "txqlen", "num_tx_queues", "num_rx_queues", "gso_max_size", "gro_max_size"):
        if key in link:
            facts[key] = link[key]
    return facts
