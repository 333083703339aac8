"""The emulated machine: a frozen description, and the emulator's arguments that follow from it.

The guest's clock counts instructions (`-icount shift=0,sleep=off`: one instruction, one nanosecond; idle time is
skipped), so nothing that the host does shows in a figure. What must hold for that:

- the root is an initramfs: a block device completes on the host's clock and shows;
- `-seed` feeds the guest's RDRAND and its boot seed, `-rtc clock=vm` ties its wall clock to the virtual one;
- orders come by fw_cfg and answers leave by a serial line to a file: both complete within the instruction.
"""

from dataclasses import dataclass
from pathlib import Path

from nearmetal import native
from nearmetal.errors import named

ORDER_ITEM = "opt/lab/order"
"""The fw_cfg item that holds the order."""

FREEZE_PORT = 0x505
"""The pvpanic port: the guest writes 1 to it when it is ready to be frozen."""

MEASURED, MANAGEMENT = "eth0", "mgmt0"
"""What a cluster's node, machine or guest, calls its first port, the measured one, and its second."""

MANAGEMENT_TAP = "mgmt1"
"""What a cluster's machine calls its end of its guest's card for management."""

STANDING_PATHS = frozenset({"e1000", "virtio", "vhost", "guest-vf", "passthrough"})
"""The paths whose guests were seen to take their card while they run."""

CALLER = native.Recipe(name="nmremote", room="remote", extra_flags=("-static", "-s"), libraries=("-lpthread",))
"""What runs a command on another machine of the lab, as ssh does; `remote.py` serves it there.

Static, for it is built outside the image; without debugging information, which would name the folder of its source.
"""

_PORTS = 2
_KERNEL_OPTIONS = ("console=ttyS0", "quiet", "tsc=reliable", "panic=1", "oops=panic")


@dataclass(frozen=True, slots=True)
class LabMachine:
    """One configuration of the lab.

    `tick_us` makes a periodic event in virtual time, so that virtual CPUs, which take turns until the next event,
    take turns that short. `modules` are loaded before the snapshot. For planning, as seen on two 2.6 GHz cores:
    a trial takes `trial_s` of a core, and `slowdown` times the virtual time that its program measures for.
    A machine that is a `node` of a cluster has its two ports on two wires: the measured one and the one for management.
    One with a `guest` was restored from the one without, started it without a measured card, and was frozen again.
    """

    name: str
    about: str
    vcpus: int = 1
    trial_s: float = 9.0
    slowdown: float = 10.0
    memory_mib: int = 1024
    cpu: str = "max"
    iommu: bool = False
    tick_us: int = 0
    node: bool = False
    guest: bool = False
    modules: tuple[str, ...] = ()
    kernel_options: tuple[str, ...] = ()

    @property
    def command_line(self) -> str:
        """Return the guest kernel's command line."""
        modules = (f"lab.modules={','.join(self.modules)}",) if self.modules else ()
        management = (f"lab.management={MANAGEMENT}",) if self.node else ()
        return " ".join((*_KERNEL_OPTIONS, *self.kernel_options, *modules, *management))


_NET = ("qemu_fw_cfg", "igb", "igbvf", "veth", "bridge", "macvlan", "tun", "sch_netem", "sch_tbf", "rdma_cm")
"""What paths need, and `rdma_cm`: UCX, under MPICH, asks the kernel for it, which took 0.44 s of the first launch."""

_ROWS = (
    LabMachine("base", "one virtual CPU", modules=_NET),
    LabMachine(
        "smp2", "two virtual CPUs that take turns every 2 us", 2, trial_s=45.0, slowdown=15.0, tick_us=4, modules=_NET
    ),
    LabMachine(
        "kvm",
        "one virtual CPU with AMD SVM and an IOMMU, for guests of its own",
        trial_s=20.0,
        # All memory must lie below 4 GiB: above it, QEMU 10.0 maps a VF's 64-bit BAR without its upper half.
        memory_mib=2048,
        cpu="EPYC-v1,+svm,+npt",
        iommu=True,
        modules=(*_NET, "kvm_amd", "vfio-pci", "vfio_iommu_type1", "vhost_net", "vhost_vsock"),
        kernel_options=("intel_iommu=on", "iommu=pt", "kvm_amd.nested=0"),
    ),
)
MACHINES = {machine.name: machine for machine in _ROWS}


def machine_named(name: str) -> LabMachine:
    """Return a configuration by name; raise BadInputError for a name that is none."""
    return named(MACHINES, name, f"{name!r} is not a configuration of the lab")


@dataclass(frozen=True, slots=True)
class Boot:
    """What an emulated machine starts from: the emulator, the configuration, the kernel and the root."""

    emulator: str
    machine: LabMachine
    kernel: Path
    initrd: Path
    wire: Path
    """The shared object that mends the emulator, and couples machines."""
    memory: Path | None = None
    """The snapshot's file with the machine's memory: read, a page when it is needed, by every machine that is restored.

    Without it, all memory moves with the snapshot.
    """
    lasting: bool = False
    """Whether that snapshot is being made: its file takes what the machine writes to its memory."""
    terminal: Path | None = None
    """The listening socket that the console of node 0 is connected to, in the place of its file."""


ORDER_FILE, CONSOLE_FILE, ANSWER_FILE, CONTROL_SOCKET = "order", "console", "answer", "qmp"
"""What is in the folder of a running emulator."""


def emulator_argv(boot: Boot, folder: Path, *, seed: int, restore: bool, plugin: str = "") -> tuple[str, ...]:
    """Return the command that starts the machine, paused, with its files and its control socket in a folder.

    With `restore` it waits for a snapshot; the tick is armed only then, because booting under it is slow. `plugin` is
    what couples it to other machines, in the emulator's words.
    """
    machine = boot.machine
    return (
        boot.emulator,
        *("-nodefaults", "-no-user-config", "-display", "none", "-S", "-no-reboot", "-action", "panic=pause"),
        *("-M", "q35,kernel-irqchip=split" if machine.iommu else "q35"),
        *("-cpu", machine.cpu, "-smp", str(machine.vcpus), "-m", str(machine.memory_mib)),
        *("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"),
        *("-rtc", "base=2026-01-01T00:00:00,clock=vm", "-seed", str(seed)),
        *("-kernel", str(boot.kernel), "-initrd", str(boot.initrd), "-append", machine.command_line),
        *("-serial", f"unix:{boot.terminal},server=off" if boot.terminal else f"file:{folder / CONSOLE_FILE}"),
        *("-serial", f"file:{folder / ANSWER_FILE}", "-device", "pvpanic"),
        *("-fw_cfg", f"name={ORDER_ITEM},file={folder / ORDER_FILE}"),
        *("-qmp", f"unix:{folder / CONTROL_SOCKET},server=off"),
        *_devices(machine),
        *(_tick(machine) if restore else ()),
        *(("-incoming", "defer") if restore else ()),
        *_memory(boot),
        *(("-plugin", plugin) if plugin else ()),
    )


def _memory(boot: Boot) -> tuple[str, ...]:
    """Return what makes a file the machine's memory; a restored one writes to its own copy of pages."""
    if boot.memory is None:
        return ()
    mode = "share=on" if boot.lasting else "share=off,readonly=on,rom=off"
    size_mib, path = boot.machine.memory_mib, str(boot.memory).replace(",", ",,")
    memory = f"memory-backend-file,id=memory,size={size_mib}M,mem-path={path},{mode}"
    return ("-object", memory, "-machine", "memory-backend=memory")


def _devices(machine: LabMachine) -> tuple[str, ...]:
    """Return two SR-IOV ports, each behind its own root port, as VFs need: on one wire, or on two in a cluster."""
    iommu = ("-device", "intel-iommu,intremap=on,caching-mode=on") if machine.iommu else ()
    ports: list[str] = []
    for port in range(_PORTS):
        ports += ["-netdev", f"hubport,id=h{port},hubid={port if machine.node else 0}"]
        ports += ["-device", f"pcie-root-port,id=rp{port},slot={port + 1}"]
        ports += ["-device", f"igb,netdev=h{port},bus=rp{port},mac=52:54:00:00:00:{port + 1:02x}"]
    return (*iommu, *ports)


def _tick(machine: LabMachine) -> tuple[str, ...]:
    """Return a packet filter on an idle hub: the emulator's only device that is nothing but a periodic timer."""
    if not machine.tick_us:
        return ()
    return (
        *("-netdev", "hubport,id=tick,hubid=9"),
        *("-object", f"filter-buffer,id=ticker,netdev=tick,interval={machine.tick_us}"),
    )
