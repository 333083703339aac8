"""The wire: a shared object in each emulator that joins machines into one cluster in one virtual time.

Its source is native/wire. It lives inside QEMU's process and uses QEMU's internals, so it is a separate work under
GPL-2.0-or-later; it is compiled here at first use, and started with `-plugin`. Two networks: hub 0 is the measured one,
hub 1 the one for management.

A machine that the wire ends says `wire: node I: REASON` on stderr and exits with `EXIT_STATUS`.
"""

import contextlib
import ctypes
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nearmetal import native
from nearmetal.errors import ForeignFileError, UnavailableError

EXIT_STATUS = 70
"""The exit status of an emulator that the wire has ended."""

NODES_MAX = 16
RECIPE = native.Recipe(
    name="wire.so",
    room="wire",
    extra_flags=("-D_GNU_SOURCE", "-shared", "-fPIC", "-fvisibility=hidden"),
    libraries=("-lpthread",),
)
_MAGIC, _NODES_AT, _NODE_BYTES = 0x77697232, 256, 256
"""Where native/wire/cluster.h keeps the promises of nodes: each is the first field of a node."""
_NEVER_NS = ((1 << 63) - 1) // 4
_NEWER_THAN_KNOWN = (12, 0)
_SHOWN_SYMBOLS = 3


@dataclass(frozen=True, slots=True)
class Link:
    """One network: how long a frame is on its way, and what becomes of frames in a crowd.

    `rate_mbps` 0 stands for a line on which frames take no time. `queue_bytes` is what may wait at a port of the
    switch; `loss_ppm` of a million frames get lost, decided by the seed.
    """

    delay_ns: int = 2000
    rate_mbps: int = 0
    queue_bytes: int = 1 << 20
    loss_ppm: int = 0

    def arguments(self, suffix: str) -> tuple[str, ...]:
        """Return the wire's arguments for it."""
        values = {"delay": self.delay_ns, "rate": self.rate_mbps, "queue": self.queue_bytes, "loss": self.loss_ppm}
        return tuple(f"{name}{suffix}={value}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class WirePlace:
    """A machine's place in its cluster: the memory that all of it share, which node it is, and of how many."""

    memory: str
    node: int
    nodes: int


def plugin_argument(
    library: Path,
    place: WirePlace,
    *,
    seed: int,
    guests: bool = False,
    person: bool = False,
    counts: Path | None = None,
    trace: Path | None = None,
    measured: Link | None = None,
    management: Link | None = None,
) -> str:
    """Return what follows `-plugin` for one machine of a cluster.

    `guests` says that it has its own guests under KVM, `person` that a person uses its console. `counts` is
    where the machine writes, as JSON, how often it waited and what it sent; `trace` takes a line for each frame. All
    machines of a cluster must be given the same links and seed.
    """
    options = [f"file={_escaped(library)}", f"shm={_escaped(place.memory)}", f"node={place.node}"]
    options += [f"nodes={place.nodes}", f"seed={seed}", *(["guests=1"] if guests else [])]
    options += ["person=1"] if person else []
    options += [f"stat={_escaped(counts)}"] if counts else []
    options += [f"trace={_escaped(trace)}"] if trace else []
    return ",".join((*options, *(measured or Link()).arguments(""), *(management or Link()).arguments("1")))


def alone_argument(library: Path, guests: bool) -> str:
    """Return what follows `-plugin` for a single machine: the workarounds, for one with or without `guests`."""
    return f"file={_escaped(library)}" + (",guests=1" if guests else "")


def _escaped(path: Path | str) -> str:
    return str(path).replace(",", ",,")  # QEMU's own way (qemu-options)


@contextlib.contextmanager
def shared_memory() -> Iterator[str]:
    """Give the path of memory for one cluster; it has no name in any file system, so nothing can be left behind."""
    descriptor = os.memfd_create("nearmetal-wire")
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def reached_ns(memory: str) -> int:
    """Return the virtual time that all machines sharing this memory have reached since they began, in ns.

    0 until all have joined, and when none is left.
    """
    with open(memory, "rb") as shared:  # noqa: PTH123 - a path into /proc, which may go at any moment
        head = shared.read(_NODES_AT + NODES_MAX * _NODE_BYTES)
    if len(head) < _NODES_AT:
        return 0
    magic, nodes = struct.unpack_from("<II", head)
    if magic != _MAGIC:
        return 0
    least = min(struct.unpack_from("<q", head, _NODES_AT + node * _NODE_BYTES)[0] for node in range(nodes))
    return int(least) if least < _NEVER_NS else 0


def check(emulator: Path, version: str, library: Path) -> None:
    """Raise UnavailableError unless this emulator has all that the wire needs by name."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) >= _NEWER_THAN_KNOWN:
        message = f"the lab's wire is not known to fit QEMU {version}"
        raise UnavailableError(message, hint="QEMU 10.0 and 11.1 fit: Debian's qemu-system-x86 package")
    own = ctypes.CDLL(None)
    wanted = [name for name, defined in symbols(library).items() if not defined and not hasattr(own, name)]
    exported = symbols(emulator)
    missing = sorted(name for name in wanted if not exported.get(name))
    if missing:
        shown = ", ".join(missing[:_SHOWN_SYMBOLS]) + (", ..." if len(missing) > _SHOWN_SYMBOLS else "")
        raise UnavailableError(
            f"{emulator} exports {len(wanted) - len(missing)} functions of the {len(wanted)} that the wire needs, not "
            f"{shown}",
            hint="QEMU must be built with plugins and with loadable modules, as Debian's and Ubuntu's packages are",
        )


def symbols(program: Path) -> dict[str, bool]:
    """Return the strong dynamic symbols of an ELF file, and whether it defines them (System V ABI, chapters 4 and 5).

    Raises ForeignFileError for anything but a 64-bit little-endian ELF file.
    """
    data = program.read_bytes()
    try:
        return _symbols(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ForeignFileError(f"{program} is not a 64-bit ELF file: {error}") from error


_SECTION_DYNSYM = 11
_BIND_WEAK = 2


def _symbols(data: bytes) -> dict[str, bool]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("its first bytes are different")
    table_at, entry_bytes, count = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table_at + i * entry_bytes) for i in range(count)]
    found: dict[str, bool] = {}
    for _, kind, _, _, at, size, link, _, _, each in sections:
        if kind != _SECTION_DYNSYM:
            continue
        names_at = sections[link][4]
        for place in range(at + each, at + size, each):
            name_at, info, _, section = struct.unpack_from("<IBBH", data, place)
            name = data[names_at + name_at : data.index(b"\0", names_at + name_at)].decode(errors="replace")
            if info >> 4 != _BIND_WEAK:
                found[name] = bool(section)
    return found
