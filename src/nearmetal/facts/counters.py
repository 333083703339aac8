"""What happened during a trial: kernel counters read before and after, as flat names and integers.

Names are `irq.<line>`, `softirq.<name>`, `cpu.<state>` (USER_HZ ticks), `sched.context_switches`,
`kvm.<statistic>` (a hypervisor's exits, injected interrupts, halts of its guests), `tcp.<node>.<counter>`,
`link.<node>.<interface>.<counter>` and `rdma.<node>.<interface>.<counter>`; `sched.migrations` is counted by the
engine's ranks themselves. Parsing is pure; reading goes through a shell.
Formats: the kernel's Documentation/filesystems/proc.rst and net/ipv4/proc.c, net/core/net-procfs.c.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearmetal.errors import NearmetalError
from nearmetal.hosts.host import Shell, machines_of

# ---- what RDMA devices count
# Their packets pass by the interface's own counters. Standard library only.
#
# Counters of InfiniBand ports (`port_xmit_packets` ...) are those of Documentation/ABI/stable/sysfs-class-infiniband;
# the hardware's own stand in `hw_counters` and differ between drivers: mlx5 (drivers/infiniband/hw/mlx5/counters.c) and
# soft-RoCE (drivers/infiniband/sw/rxe/rxe_hw_counters.c) are known here.


HAS_RDMA = "/sys/class/infiniband_verbs/abi_version"
"""A file that is there where the kernel offers verbs to programs."""
_PACKETS = {
    "port_rcv_packets": "rx_packets",
    "rcvd_pkts": "rx_packets",
    "port_xmit_packets": "tx_packets",
    "sent_pkts": "tx_packets",
}
_OTHERS = (
    *("port_rcv_errors", "port_xmit_discards", "port_xmit_wait", "symbol_error"),
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err"),
    *("np_cnp_sent", "rp_cnp_handled", "out_of_seq_request", "duplicate_request", "retry_exceeded_err"),
)
_SCRIPT = Path(__file__).with_suffix(".sh").read_text()


def parse_rdma(node: str, text: str) -> dict[str, int]:
    """Add up the script's output, lines of `INTERFACE COUNTER VALUE`; other lines are skipped."""
    counts: dict[str, int] = {}
    for words in map(str.split, text.splitlines()):
        if len(words) == 3 and words[2].isdecimal():
            name = f"rdma.{node}.{words[0]}.{_PACKETS.get(words[1], words[1])}"
            counts[name] = counts.get(name, 0) + int(words[2])
    return counts


# ---- counters


_CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_TCP_COUNTERS = (
    *("RetransSegs", "InErrs", "TCPTimeouts", "TCPLostRetransmit", "TCPFastRetrans", "TCPSpuriousRTOs"),
    "TCPAutoCorking",  # segments held back until the port has reported what was sent before
)
_KVM_COUNTERS = ("exits", "io_exits", "mmio_exits", "halt_exits", "irq_exits", "irq_injections", "halt_wakeup")
_KVM_FILES = tuple(f"/sys/kernel/debug/kvm/{name}" for name in _KVM_COUNTERS)
_MACHINE_FILES = ("/proc/interrupts", "/proc/softirqs", "/proc/stat")
_NODE_FILES = ("/proc/net/snmp", "/proc/net/netstat", "/proc/net/dev")
_LINK_COUNTERS = ("bytes", "packets", "errors", "dropped")
_LINK_COLUMNS = 16
"""Columns of /proc/net/dev: eight received, eight sent, both beginning with `_LINK_COUNTERS`."""


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
    """Read /proc/net/dev: `<interface>.<rx|tx>_<counter>` -> count; raise ValueError when it is none."""
    counts: dict[str, int] = {}
    for line in text.splitlines()[2:]:
        interface, colon, rest = line.rpartition(":")
        values = [int(word) for word in rest.split()]
        if not colon or len(values) < _LINK_COLUMNS:
            raise ValueError(f"not a line of /proc/net/dev: {line!r}")
        for way, first in (("rx", 0), ("tx", _LINK_COLUMNS // 2)):
            own = zip(_LINK_COUNTERS, values[first:], strict=False)
            counts |= {f"{interface.strip()}.{way}_{name}": value for name, value in own}
    return counts


def read_counters(shell: Shell, nodes: Sequence[str]) -> dict[str, int]:
    """Read every counter of the machines, summed, and of each node; raise NearmetalError when one cannot be read."""
    machines = machines_of(shell)
    counts: dict[str, int] = {}
    for place in dict.fromkeys([*machines, *nodes]):
        wanted = (*_MACHINE_FILES, *_KVM_FILES, HAS_RDMA) if place in machines else ()
        wanted += _NODE_FILES if place in nodes else ()
        files = _Files(place, shell.read_all(wanted, node=place))
        if place in machines:
            for name, value in _machine_counters(files).items():
                counts[name] = counts.get(name, 0) + value
        if HAS_RDMA in files.content:
            printed = shell.run(["sh", "-c", _SCRIPT, "sh", *_PACKETS, *_OTHERS], node=place)
            counts |= parse_rdma(place, printed.text)
        if place in nodes:
            counts |= _node_counters(files)
    return counts


@dataclass(frozen=True, slots=True)
class _Files:
    """What one place's files held."""

    place: str
    content: Mapping[str, bytes]

    def text(self, path: str) -> str:
        if path not in self.content:
            raise NearmetalError(f"cannot read {path} on {self.place or 'the machine'}")
        return self.content[path].decode(errors="replace")


def _machine_counters(files: _Files) -> dict[str, int]:
    interrupts, softirqs, stat = map(files.text, _MACHINE_FILES)
    counts = parse_interrupts(interrupts) | parse_softirqs(softirqs) | parse_stat(stat)
    # Only a hypervisor has these, and only for root.
    told = {name: files.text(path).strip() for name, path in zip(_KVM_COUNTERS, _KVM_FILES, strict=True)
            if path in files.content}  # fmt: skip
    return counts | {f"kvm.{name}": int(value) for name, value in told.items() if value.isdigit()}


def _node_counters(files: _Files) -> dict[str, int]:
    snmp, netstat, links = map(files.text, _NODE_FILES)
    tcp = parse_snmp(snmp) | parse_snmp(netstat)
    counts = {f"tcp.{files.place}.{name}": tcp[name] for name in _TCP_COUNTERS if name in tcp}
    try:
        return counts | {f"link.{files.place}.{name}": value for name, value in parse_links(links).items()}
    except ValueError as error:
        raise NearmetalError(f"cannot read the interface counters of {files.place}: {error}") from error


_WRAPPING = ("irq.", "softirq.")
"""Kept by the kernel in 32 bits for each processor."""
_RESTARTING = ("irq.", "link.", "rdma.")
"""Begin from 0 again where a driver makes its interface anew."""


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return what was added to each counter; counters that did not move are left out."""
    added = {name: _added(name, before.get(name, 0), value) for name, value in after.items()}
    return {name: count for name, count in added.items() if count}


def _added(name: str, before: int, after: int) -> int:
    """Return what was added, also to a counter that has passed its end or begun anew."""
    if after < before and before >= 2**31 and name.startswith(_WRAPPING):
        return (after - before) % 2**32
    return after if after < before and name.startswith(_RESTARTING) else after - before
