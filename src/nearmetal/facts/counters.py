"""What happened during a trial: kernel counters read before and after, as flat names and integers.

Names are `irq.<line>`, `softirq.<name>`, `cpu.<state>` (USER_HZ ticks), `sched.context_switches`,
`kvm.<statistic>` (a hypervisor's exits, injected interrupts, halts of its guests), `tcp.<node>.<counter>` and
`link.<node>.<interface>.<counter>`. Parsing is pure; reading goes through a shell.
Formats: the kernel's Documentation/filesystems/proc.rst and net/ipv4/proc.c.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import machines_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearmetal.hosts.host import Shell

_CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_TCP_COUNTERS = ("RetransSegs", "InErrs", "TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSpuriousRTOs")
_KVM_FILES = tuple(
    f"/sys/kernel/debug/kvm/{name}"
    for name in ("exits", "io_exits", "mmio_exits", "halt_exits", "irq_exits", "irq_injections", "halt_wakeup")
)
_LINK_COUNTERS = ("packets", "bytes", "errors", "dropped")


def parse_interrupts(text: str) -> dict[str, int]:
    """Sum /proc/interrupts over CPUs: `irq.<number or name>[.<device>]` -> count."""
    lines = text.splitlines()
    cpus = len(lines[0].split()) if lines else 0
    counts: dict[str, int] = {}
    for line in lines[1:]:
        label, _, rest = line.partition(":")
        words = rest.split()
        values = [int(word) for word in words[:cpus] if word.isdigit()]
        device = words[-1] if label.strip().isdigit() and len(words) > cpus else ""
        counts[f"irq.{label.strip()}{'.' + device if device else ''}"] = sum(values)
    return counts


def parse_softirqs(text: str) -> dict[str, int]:
    """Sum /proc/softirqs over CPUs: `softirq.<name>` -> count."""
    rows = (line.partition(":") for line in text.splitlines()[1:])
    return {f"softirq.{name.strip()}": sum(map(int, values.split())) for name, _, values in rows}


def parse_stat(text: str) -> dict[str, int]:
    """Read /proc/stat: `cpu.<state>` of all CPUs together, in ticks, and `sched.context_switches`."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        key, *values = line.split()
        if key == "cpu":
            counts |= {f"cpu.{state}": int(value) for state, value in zip(_CPU_STATES, values, strict=False)}
        elif key == "ctxt":
            counts["sched.context_switches"] = int(values[0])
    return counts


def parse_snmp(text: str) -> dict[str, int]:
    """Read /proc/net/snmp or /proc/net/netstat: pairs of a line of names and a line of values."""
    lines = text.splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=False)
    return {
        name: int(value)
        for names, values in pairs
        for name, value in zip(names.split()[1:], values.split()[1:], strict=False)
    }


def parse_links(text: str) -> dict[str, int]:
    """Read `ip -json -statistics link`: `<interface>.<rx|tx>_<counter>` -> count."""
    counts: dict[str, int] = {}
    for link in json.loads(text):
        for way in ("rx", "tx"):
            stats = link.get("stats64", {}).get(way, {})
            counts |= {f"{link['ifname']}.{way}_{name}": int(stats.get(name, 0)) for name in _LINK_COUNTERS}
    return counts


def parse_kvm(text: str) -> dict[str, int]:
    """Read `path:value` lines of KVM's statistics in debugfs: `kvm.<statistic>` -> count."""
    pairs = (line.rpartition(":") for line in text.splitlines())
    return {f"kvm.{path.rpartition('/')[2]}": int(value) for path, _, value in pairs if value.strip().isdigit()}


def read_counters(shell: Shell, nodes: Sequence[str]) -> dict[str, int]:
    """Read every counter of the machines, summed, and of each node; raise NearmetalError when one cannot be read."""
    counts: dict[str, int] = {}
    for machine in machines_of(shell):
        for name, value in _machine_counters(shell, machine).items():
            counts[name] = counts.get(name, 0) + value
    # Only a hypervisor has these, and only for root.
    counts |= parse_kvm(shell.run(["grep", "-H", "", *_KVM_FILES], check=False).text)
    for node in nodes:
        tables = shell.run(["cat", "/proc/net/snmp", "/proc/net/netstat"], node=node).text
        tcp = parse_snmp(tables)
        counts |= {f"tcp.{node}.{name}": tcp[name] for name in _TCP_COUNTERS if name in tcp}
        try:
            links = parse_links(shell.run(["ip", "-json", "-statistics", "link"], node=node).text)
        except (ValueError, KeyError, TypeError) as error:
            raise NearmetalError(f"cannot read the interface counters of {node}: {error}") from error
        counts |= {f"link.{node}.{name}": value for name, value in links.items()}
    return counts


def _machine_counters(shell: Shell, machine: str) -> dict[str, int]:
    counts = parse_interrupts(shell.read("/proc/interrupts", node=machine).decode())
    counts |= parse_softirqs(shell.read("/proc/softirqs", node=machine).decode())
    return counts | parse_stat(shell.read("/proc/stat", node=machine).decode())


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return what was added to each counter; counters that did not move are left out."""
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
