"""Does the wire fit this machine's emulator? Asked once per build of either, by running a small cluster twice.

Its machines have no disk, no kernel and 32 MB: their firmware (native/wire/selftest) calls code that changes, works,
halts, and sends and takes frames as a seed says. The second time visits and breaks fall elsewhere, and QEMU finds all
blocks of code itself, which must not show in a single bit.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nearmetal import native, process, scratch
from nearmetal.errors import UnavailableError
from nearmetal.hosts.lab.wire import RECIPE, Link, WirePlace, check, plugin_argument, shared_memory

GUEST = native.Recipe(
    name="wire-guest",
    room="wire/selftest",
    extra_flags=(
        *("-m32", "-march=i686", "-mno-sse", "-ffreestanding", "-fno-pic", "-no-pie", "-nostdlib", "-static"),
        *("-fno-asynchronous-unwind-tables", "-fcf-protection=none", "-fno-stack-protector"),
        "-Wl,--build-id=none,--oformat=binary,--section-start=.start=0xf0000,-Ttext=0xf0100",
        "-Wl,-Tbss=0x100000,--section-start=.reset=0xffff0,-e,begin",
    ),
    libraries=(),
)
WIRE_FITS = "two runs of a small cluster with this emulator gave identical results, bit for bit"
"""What `fitting_wire` has shown."""

_LINK = Link(delay_ns=1500, rate_mbps=1000)
_TIMEOUT_S = 200.0


@dataclass(frozen=True, slots=True)
class Transcript:
    """One small machine's output on its serial line, and the frames that left and reached it."""

    serial: str
    trace: str

    @property
    def stale_calls(self) -> int:
        """How many calls did not run the code that was at their address: its first line."""
        return int(self.serial.split()[0], 16)


@cache
def fitting_wire(emulator: str, version: str) -> Path:
    """Return the shared object, built, and shown once to work with this emulator.

    Raises UnavailableError where it does not.
    """
    library = native.build(RECIPE)
    check(Path(emulator), version, library)
    digest = hashlib.sha256(Path(emulator).read_bytes() + library.name.encode()).hexdigest()[:16]
    shown = native.cache_dir() / "wire" / f"fits-{digest}"
    if not shown.exists():
        self_test(emulator, version, library)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"QEMU {version}, {library.name}\n")
    return library


def self_test(emulator: str, version: str, library: Path) -> None:
    """Run a small cluster twice; raise UnavailableError when it fails, or when its outcomes differ."""
    first = small_cluster(emulator, library, 2)
    second = small_cluster(emulator, library, 2, "fuzz=1", "jumps=0")
    stale = max(one.stale_calls for one in (*first, *second))
    if stale:
        raise UnavailableError(
            f"the wire's self-test failed: under QEMU {version}, {stale} calls ran code that was no longer there",
            hint="machines would go astray; use the QEMU of Debian's qemu-system-x86 package",
        )
    if first != second or not all("rx" in one.trace for one in first):
        raise UnavailableError(
            f"the wire's self-test failed: two runs of one cluster under QEMU {version} differ",
            hint="figures of a cluster would not be reproducible; use the QEMU of Debian's qemu-system-x86 package",
        )


def small_cluster(emulator: str, library: Path, nodes: int, *options: str) -> tuple[Transcript, ...]:
    """Run small machines to their end and return what each saw; raise UnavailableError when one fails.

    `options` are further arguments of the wire.
    """
    guest = native.build(GUEST)
    with scratch.folder("nearmetal-wire") as folder, shared_memory() as memory:
        places = [WirePlace(memory, node, nodes) for node in range(nodes)]
        argvs = [small_machine_argv(emulator, guest, library, place, folder, *options) for place in places]
        with ThreadPoolExecutor(nodes) as pool:
            ended = list(pool.map(lambda argv: process.run(argv, timeout_s=_TIMEOUT_S), argvs))
        for one in ended:
            if not one.ok:
                message = f"the wire's self-test failed: {one.complaint()}"
                raise UnavailableError(message, hint="this QEMU cannot be coupled into clusters")
        files = [(folder / f"serial{node}", folder / f"trace{node}") for node in range(nodes)]
        return tuple(Transcript(serial.read_text(), trace.read_text()) for serial, trace in files)


def small_machine_argv(
    emulator: str, guest: Path, library: Path, place: WirePlace, folder: Path, *options: str
) -> tuple[str, ...]:
    """Return the command of one small machine that writes `serial<node>` and `trace<node>` into a folder."""
    plugin = plugin_argument(library, place, seed=1, trace=folder / f"trace{place.node}", measured=_LINK)
    return (
        emulator,
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-m", "32"),
        *("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-bios", str(guest)),
        *("-serial", f"file:{folder / f'serial{place.node}'}", "-netdev", "hubport,id=h0,hubid=0"),
        *("-device", f"e1000,netdev=h0,mac=52:54:00:00:00:{place.node + 1:02x},romfile="),
        *("-plugin", ",".join((plugin, *options))),
    )
