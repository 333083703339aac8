"""What a libvirt domain gives its guest: vCPUs and their pins, memory and its pages, NICs and what is behind them.

Reading is pure: from the domain's XML (https://libvirt.org/formatdomain.html) to facts, and from facts to warnings.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from nearmetal.errors import ForeignFileError
from nearmetal.hosts.host import Shell
from nearmetal.knobs.knob import parse_cpus
from nearmetal.reading import timed
from nearmetal.study.order import Scalar

_UNITS: dict[str, int] = {
    "b": 1,
    "bytes": 1,
    **{name: 1024 ** (power + 1) for power, prefix in enumerate("kmgt") for name in (prefix, f"{prefix}ib")},
    **{f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate("kmgt")},
}


@dataclass(frozen=True, slots=True)
class GuestNic:
    """One NIC of a guest.

    `kind` is `vf` (a PCI function handed through), `virtio`, `e1000` or another emulated model. `backend` is who moves
    the packets: `vhost` (the kernel), `vhost-user` (a program such as a switch of DPDK), `qemu` (a thread of the
    emulator), `hardware`. `source` is the bridge, network, device or PCI address behind it, `target` the host's end.
    `mtu` is 0 where the domain leaves it open.
    """

    kind: str
    backend: str
    source: str
    target: str = ""
    mac: str = ""
    queues: int = 1
    mtu: int = 0


@dataclass(frozen=True, slots=True)
class Guest:
    """One domain; `pins` maps a vCPU to the host CPUs it may run on, `page_bytes` is 0 for ordinary pages.

    `runs` says that it was up when libvirt described it.
    """

    name: str
    virtualization: str
    vcpus: int
    memory_bytes: int
    cpu_mode: str = ""
    pins: Mapping[int, str] = field(default_factory=dict)
    emulator_pin: str = ""
    hugepages: bool = False
    page_bytes: int = 0
    locked: bool = False
    nics: tuple[GuestNic, ...] = ()
    runs: bool = False

    def facts(self) -> dict[str, Scalar]:
        """Return the guest as flat facts: `guest.<name>.<what>`."""
        own: dict[str, Scalar] = {
            "virtualization": self.virtualization,
            "vcpus": self.vcpus,
            "vcpus_pinned": len(self.pins),
            "emulator_pin": self.emulator_pin or "none",
            "cpu_mode": self.cpu_mode or "default",
            "memory_bytes": self.memory_bytes,
            "hugepages": self.hugepages,
            "page_bytes": self.page_bytes,
            "memory_locked": self.locked,
        }
        for vcpu, cpus in sorted(self.pins.items()):
            own[f"vcpu{vcpu}.pin"] = cpus
        for number, nic in enumerate(self.nics):
            for name in ("kind", "backend", "source", "target", "mac", "queues", "mtu"):
                own[f"nic{number}.{name}"] = getattr(nic, name)
        return {f"guest.{self.name}.{name}": value for name, value in own.items()}


@dataclass(frozen=True, slots=True)
class HypervisorFacts:
    """What matters on the machine below: the MTU of its interfaces, irqbalance, and the idle states that may be used.

    `deep_idle` maps the name of an idle state that is enabled to its exit latency in microseconds.
    """

    mtus: Mapping[str, int] = field(default_factory=dict)
    irqbalance: bool = False
    deep_idle: Mapping[str, int] = field(default_factory=dict)


DEEP_IDLE_US = 10
"""Exit latencies from here on are of the size of what is measured."""


@timed
def parse_domain(text: str) -> Guest:
    """Read `virsh dumpxml`; raise ForeignFileError for anything but a domain."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ForeignFileError("this XML declares entities, which no domain of libvirt does")
    try:
        root = ET.fromstring(text)  # noqa: S314 - entities are refused above
    except ET.ParseError as error:
        raise ForeignFileError(f"this is not XML: {error}") from error
    if root.tag != "domain" or not root.findtext("name"):
        message = f"this is a <{root.tag}>, not a <domain> with a name"
        raise ForeignFileError(message, hint="give what `virsh dumpxml` prints")
    try:
        return _guest(root)
    except (ValueError, KeyError, AttributeError) as error:
        raise ForeignFileError(f"cannot read the domain {root.findtext('name')!r}: {error}") from error


def _guest(root: ET.Element) -> Guest:
    page = root.find("memoryBacking/hugepages/page")
    cpu, vcpu = root.find("cpu"), root.find("vcpu")
    # Of more that could be added while it runs, the `current` ones are there.
    vcpus = 1 if vcpu is None else int(vcpu.get("current") or vcpu.text or "1")
    pins = {int(pin.attrib["vcpu"]): pin.attrib["cpuset"] for pin in root.findall("cputune/vcpupin")}
    found = root.find("cputune/emulatorpin")
    emulator = "" if found is None else found.get("cpuset", "")
    for cpus in (*pins.values(), emulator):
        _cpus(cpus)  # what cannot be read is refused here
    return Guest(
        name=root.findtext("name", "").strip(),
        virtualization=root.get("type", ""),
        vcpus=vcpus,
        memory_bytes=_bytes(root.find("memory")),
        cpu_mode="" if cpu is None else cpu.get("mode", "custom"),
        pins={number: cpus for number, cpus in pins.items() if number < vcpus},
        emulator_pin=emulator,
        hugepages=root.find("memoryBacking/hugepages") is not None,
        page_bytes=0 if page is None else int(page.attrib["size"]) * _UNITS[page.get("unit", "KiB").lower()],
        locked=root.find("memoryBacking/locked") is not None,
        nics=(*map(_nic, root.findall("devices/interface")), *_functions(root)),
        runs="id" in root.attrib,
    )


def _bytes(element: ET.Element | None) -> int:
    if element is None or not element.text:
        return 0
    unit_bytes: int = _UNITS[element.get("unit", "KiB").lower()]
    return int(element.text) * unit_bytes


_BACKENDS = {"vdpa": "hardware", "vhostuser": "vhost-user"}
"""Who moves the packets, where the type of an interface shows it."""


def _nic(element: ET.Element) -> GuestNic:
    told: dict[str, dict[str, str]] = {child.tag: child.attrib for child in reversed(element)}
    mac = told.get("mac", {}).get("address", "")
    if element.get("type") == "hostdev":
        return GuestNic("vf", "hardware", _pci(element.find("source/address")), mac=mac)
    source, driver = told.get("source", {}), told.get("driver", {})
    named = (source[key] for key in ("bridge", "dev", "network", "path") if source.get(key))
    where = next(named, element.get("type", ""))
    kind = told.get("model", {}).get("type", "default")
    # libvirt takes vhost for virtio by itself where the kernel has it; user-mode networking never has it.
    usual = "vhost" if _is_virtio(kind) and element.get("type") != "user" else "qemu"
    backend = _BACKENDS.get(element.get("type", "")) or driver.get("name", usual)
    mtu = int(told["mtu"]["size"]) if "mtu" in told else 0
    target = told.get("target", {}).get("dev", "")
    return GuestNic(kind, backend, where, target, mac, int(driver.get("queues", 1)), mtu)


def _is_virtio(kind: str) -> bool:
    """Return whether a NIC is of virtio: there are `virtio-transitional` and `virtio-non-transitional`, too."""
    return kind.partition("-")[0] == "virtio"


def _functions(root: ET.Element) -> Iterable[GuestNic]:
    """Return the PCI functions that are handed through without being declared as interfaces; some may be no NICs."""
    for device in root.findall("devices/hostdev[@type='pci']"):
        yield GuestNic("pci", "hardware", _pci(device.find("source/address")))


def _pci(address: ET.Element | None) -> str:
    if address is None:
        return ""
    parts = [int(address.get(name, "0"), 16) for name in ("domain", "bus", "slot", "function")]
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)


def warnings(guests: Iterable[Guest], below: HypervisorFacts) -> list[str]:
    """Return the known confounders as sentences, each with the figures seen and the remedy."""
    guests = list(guests)
    found = [warning for guest in guests for warning in (*_of_guest(guest), *_of_nics(guest, below))]
    found += _of_shared_cpus(guests)
    if below.irqbalance:
        found.append("irqbalance is running and moves interrupts while you measure: stop it, or ban the measured ones")
    if below.deep_idle:
        states = ", ".join(f"{name} ({latency_us} us)" for name, latency_us in below.deep_idle.items())
        found.append(
            f"idle states that take long to leave are enabled: {states}; `cpupower idle-set -D {DEEP_IDLE_US}`"
        )
    return found


def _of_guest(guest: Guest) -> Iterable[str]:
    if guest.virtualization == "qemu":
        yield f"{guest.name}: it is emulated (TCG), not virtualized; its timing says nothing about KVM"
    free = guest.vcpus - len(guest.pins)
    if free:
        yield f"{guest.name}: {free} of {guest.vcpus} vCPUs are not pinned: `virsh vcpupin {guest.name} VCPU CPU`"
    if not guest.hugepages:
        yield f"{guest.name}: its memory has no huge pages: <memoryBacking><hugepages/></memoryBacking>"
    own = {cpu for cpus in guest.pins.values() for cpu in _cpus(cpus)}
    if guest.pins and (not guest.emulator_pin or own & _cpus(guest.emulator_pin)):
        yield f"{guest.name}: the emulator's threads may run on the vCPUs' cores: `virsh emulatorpin {guest.name} CPUS`"


def _of_shared_cpus(guests: Sequence[Guest]) -> Iterable[str]:
    """Yield what several vCPUs are pinned to, within a guest and between guests that run at the same time."""
    owners: dict[int, list[tuple[Guest, int]]] = {}
    for guest in guests:
        for vcpu, cpus in sorted(guest.pins.items()):
            for cpu in _cpus(cpus):
                owners.setdefault(cpu, []).append((guest, vcpu))
    shared: dict[tuple[str, ...], list[int]] = {}
    for cpu, there in sorted(owners.items()):
        names = tuple(
            f"{guest.name} vCPU {vcpu}"
            for guest, vcpu in there
            if sum(one is guest or (one.runs and guest.runs) for one, _ in there) > 1
        )
        if names:
            shared.setdefault(names, []).append(cpu)
    for names, numbers in shared.items():
        yield f"{', '.join(names)} may meet on CPU {', '.join(map(str, numbers))}: pin each vCPU to a CPU of its own"


def _cpus(cpuset: str) -> set[int]:
    """Return the CPUs of a set as libvirt writes it, such as `0-3,^2,8`; raise ValueError for anything else."""
    cpus: set[int] = set()
    for part in cpuset.split(",") if cpuset else ():
        named = parse_cpus(part.strip().removeprefix("^"))
        cpus = cpus.difference(named) if part.strip().startswith("^") else cpus.union(named)
    return cpus


def _of_nics(guest: Guest, below: HypervisorFacts) -> Iterable[str]:
    for number, nic in enumerate(guest.nics):
        where = f"{guest.name}: nic{number} ({nic.kind})"
        if _is_virtio(nic.kind) and nic.backend == "qemu":
            yield f"{where} is served by the emulator, not by vhost: <driver name='vhost'/>"
        if _is_virtio(nic.kind) and nic.queues < guest.vcpus:
            yield f"{where} has {nic.queues} queues for {guest.vcpus} vCPUs: <driver queues='{guest.vcpus}'/>"
        mtus = {name: below.mtus[name] for name in (nic.source, nic.target) if name in below.mtus}
        if nic.mtu:
            mtus["guest"] = nic.mtu
        if len(set(mtus.values())) > 1:
            told = ", ".join(f"{name} {mtu}" for name, mtu in mtus.items())
            yield f"{where} joins different MTUs: {told}; large frames are dropped or fragmented"


# ---- the machine below the guests, as far as it confounds a measurement; read through a shell


def look_below(shell: Shell) -> HypervisorFacts:
    """Return what the machine itself says; what it does not offer (idle states in a guest, say) is left out."""
    return parse_look(shell.run(["sh", "-c", (files("nearmetal.facts") / "hypervisor.sh").read_text()]).text)


def parse_look(text: str) -> HypervisorFacts:
    """Read what the look prints; pure."""
    rows = [words for line in text.splitlines() if len(words := line.split()) == 3 and words[2].isdecimal()]
    idle = {name: int(value) for kind, name, value in rows if kind == "idle" and int(value) >= DEEP_IDLE_US}
    return HypervisorFacts(
        mtus={name: int(value) for kind, name, value in rows if kind == "mtu"},
        irqbalance=any(kind == "running" for kind, _, _ in rows),
        deep_idle=idle,
    )
