"""What a machine does to messages: path models, the host side, the network.

LogGP (Culler et al., PPoPP 1993; Alexandrov et al., SPAA 1995) for each range of message sizes, and the residual
distribution: what a message takes longer (or shorter) than the parameters say. Durations are integer picoseconds, the
gap per byte is in femtoseconds, so that 400 Gbit/s (20,000 fs) is an exact number.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nearmetal.errors import BadInputError
from nearmetal.predict.moderation import StageSetting

PS_PER_NS, FS_PER_NS = 1000, 1_000_000
UNBOUNDED = (1 << 63) - 1
"""As `up_to_bytes` of the last segment, and as the eager limit of a path without rendezvous."""
INTRA_KIND = "shm"
"""The recipe whose two ranks share a node."""
BARE_METAL = ("native", "native-roce")
"""Recipes of whole ports, without guests or functions."""
VIRTUAL_ANYWAY = frozenset({"", "local", "lab", "fake"})
"""Hosts whose nodes are on one computer, or on machines of the lab, however virtual their processors are."""
SMALL_BYTES = 64
"""Up to here a message takes as long as the smallest that was measured: one packet, one cache line."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """An inverse distribution function, linear between points.

    `probabilities` rise strictly from 0 and stay below or at 1; `values_ps` never fall.
    """

    probabilities: tuple[float, ...]
    values_ps: tuple[int, ...]

    def __post_init__(self) -> None:
        p, v = self.probabilities, self.values_ps
        if not p or len(p) != len(v) or p[0] != 0.0 or p[-1] > 1.0:
            raise BadInputError(f"a distribution with {len(p)} probabilities and {len(v)} values")
        if any(a >= b for a, b in pairwise(p)) or any(a > b for a, b in pairwise(v)):
            raise BadInputError("the points of a distribution do not increase")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Durations in the order in which they came, as a trace file holds them: 16 bits each."""

    order: bytes

    def values_ps(self) -> NDArray[np.int64]:
        """Return them, shape (n,): up to 4095 ns as they are, else shift and step (native/trace/gaps.c)."""
        code = np.frombuffer(self.order, "<u2").astype(np.int64)
        shift = np.maximum(code // 2048 - 1, 0)
        values: NDArray[np.int64] = (code - 2048 * shift << shift) * 1000
        return values


@dataclass(frozen=True, slots=True)
class Segment:
    """LogGP parameters for messages of at most `up_to_bytes` (and more than the segment before).

    LogGP has one gap per byte G. A path that copies, or that cuts messages into packets, delays one message more
    for each byte than it delays the next message, so there are two: `latency_fs_per_byte` for a message's own way,
    and `fs_per_byte` (G) for how long it keeps the sender from the next. `overhead_fs_per_byte` is the O of LogGOPS
    (Hoefler et al., HPDC 2010): what the processor of either end needs for each byte.
    """

    up_to_bytes: int
    latency_ps: int
    send_overhead_ps: int = 0
    recv_overhead_ps: int = 0
    gap_ps: int = 0
    latency_fs_per_byte: int = 0
    fs_per_byte: int = 0
    residual: Distribution | None = None
    overhead_fs_per_byte: int = 0

    def one_way_ps(self, message_bytes: int) -> int:
        """Return o_s + L + s G_latency + o_r + 2 s O, the time of one message without its residual."""
        wire = message_bytes * (self.latency_fs_per_byte + 2 * self.overhead_fs_per_byte) // 1000
        return self.send_overhead_ps + self.latency_ps + wire + self.recv_overhead_ps

    def meets_timer(self, message_bytes: int) -> bool:
        """Return whether a tenth of messages of this size take less than half the usual time: others met a timer."""
        if self.residual is None:
            return False
        fast_ps = float(np.interp(0.1, self.residual.probabilities, self.residual.values_ps))
        return fast_ps < -self.one_way_ps(message_bytes) / 2


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How a path model came to be: method, samples, and the error of the fitted curve at the measured sizes."""

    method: str
    samples: int
    median_error: float
    worst_error: float


def _increase(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


@dataclass(frozen=True, slots=True)
class PathModel:
    """One data path: segments by rising size, and the largest message sent eagerly.

    `copy_fs_per_byte` is the time that a process needs for each byte that it sends or receives, where one process must
    do both: a path that copies slows down when messages go both ways. 0: both ways at once cost nothing.
    `single_copy` is (bytes, fs per byte): so many first bytes of a message take only that, as streams keep processors
    busy with more than single messages do; (0, 0) where that is not known.
    `measured_bytes` are the sizes that it was fitted from; () where that is not known. `cold` says what sending costs a
    process, and receiving likewise, beyond the back-to-back message once it has computed since it last did so:
    (ps computed, ps more), both rising, on lines from (0, 0) and constant beyond the last; () where not measured.
    `work_ps` is what a message takes of either end's processor while its process computes, overhead and all: (bytes,
    ps), both rising, on lines between and beyond the last by the byte. Some of it otherwise passes while the process
    waits for the wire; on cores that ranks share none does (`Cores.way_is_work`). (): the overhead alone.
    `send_work_ps` and `receive_work_ps` are that of single messages that nobody answers, where each rank has a core to
    itself, likewise; () where not measured.
    `interrupt_fs_per_byte` tells it by the byte, in a file of an older version. `moderated_copy_fs_per_byte` is what
    copying takes where an interrupt stage is added, whose interrupts find many packets; 0 where that is not known.
    `fetched`: inside a node, the receiver alone copies messages above the eager limit and does the work of both ends,
    while the sender has only to ask. `crossing_ps` is what it takes a receiver beyond that of a message that crosses
    one of its own on the way, whose acknowledgements have nothing to ride on: (bytes, ps), sizes rising, on lines and
    constant beyond the ends; () where not measured. `trailing_ps` is what such a message, up to the eager limit, leaves
    its receiver to do while it computes next, likewise; () where not measured. `one_processor`: both ends shared a
    single one when it was measured. `timers` are sizes whose ping-pong took the time of a timer of the kernel, and
    which: (bytes, name).
    """

    segments: tuple[Segment, ...]
    eager_up_to_bytes: int = UNBOUNDED
    copy_fs_per_byte: int = 0
    fit: FitQuality | None = None
    measured_bytes: tuple[int, ...] = ()
    cold: tuple[tuple[int, int], ...] = ()
    interrupt_fs_per_byte: int = 0
    work_ps: tuple[tuple[int, int], ...] = ()
    send_work_ps: tuple[tuple[int, int], ...] = ()
    receive_work_ps: tuple[tuple[int, int], ...] = ()
    fetched: bool = False
    crossing_ps: tuple[tuple[int, int], ...] = ()
    trailing_ps: tuple[tuple[int, int], ...] = ()
    one_processor: bool = False
    timers: tuple[tuple[int, str], ...] = ()
    single_copy: tuple[int, int] = (0, 0)
    moderated_copy_fs_per_byte: int = 0

    def __post_init__(self) -> None:
        bounds = [segment.up_to_bytes for segment in self.segments]
        if not bounds or not _increase(bounds) or bounds[-1] != UNBOUNDED:
            raise BadInputError(
                f"segments of a path end at {bounds} bytes; they must increase, and the last must have no bound"
            )
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(((0, 0), *self.cold))):
            raise BadInputError(f"the time that computing adds to a message does not increase: {self.cold} ps")
        for points in (self.work_ps, self.send_work_ps, self.receive_work_ps):
            if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(points)):
                raise BadInputError(f"the processor time of messages does not increase: {points} (bytes, ps)")
        for points in (self.crossing_ps, self.trailing_ps):
            if not _increase([size for size, _ in points]) or any(ps < 0 for _, ps in points):
                text = f"the times of crossing messages are not in order of increasing size: {points} (bytes, ps)"
                raise BadInputError(text)
        if min(self.single_copy) < 0 or self.single_copy[1] > self.copy_fs_per_byte:
            text = f"single messages are copied at {self.single_copy[1]} fs a byte, streams at {self.copy_fs_per_byte}"
            raise BadInputError(f"{text}: the first must be from 0 up and not more than the second")
        if not _increase(self.measured_bytes):
            raise BadInputError(f"the measured sizes do not increase: {self.measured_bytes}")

    def works(self) -> tuple[tuple[int, int], ...]:
        """Return `work_ps`, or what an older file has instead."""
        by_byte = ((0, 0), (1_000_000, self.interrupt_fs_per_byte * 1000)) if self.interrupt_fs_per_byte else ()
        return self.work_ps or by_byte

    @property
    def meets_timer(self) -> bool:
        """Return whether messages of any size met a timer, such as that of interrupt moderation, when measured."""
        ends = (0, *(segment.up_to_bytes for segment in self.segments))
        return any(segment.meets_timer(above) for above, segment in zip(ends, self.segments, strict=False))

    def segment(self, message_bytes: int) -> Segment:
        """Return the segment that holds for a size."""
        return next(segment for segment in self.segments if message_bytes <= segment.up_to_bytes)


class Topology(IntEnum):
    """How switches are wired; numbers are those of the C++ `Topology`."""

    FLAT = 0
    FAT_TREE = 1
    DRAGONFLY = 2


@dataclass(frozen=True, slots=True)
class Network:
    """Switches between nodes; `hop_ps` is added for each switch beyond the one that the measured nodes share."""

    topology: Topology = Topology.FLAT
    nodes_per_leaf: int = 1
    leaves_per_group: int = 1
    hop_ps: int = 0


@dataclass(frozen=True, slots=True)
class SharedReceiveQueue:
    """A queue of `buffers` receives that is refilled `refill_ps` after it fell to `low`; empty, it refuses."""

    buffers: int
    low: int
    refill_ps: int
    retry_ps: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How a waiting process learns of a message.

    `blocking`: after `spin_ps` without one it sleeps, and waking it takes `wakeup_ps`. `asynchronous`: the library
    continues rendezvous and collectives while the process computes.
    """

    blocking: bool = False
    spin_ps: int = 0
    wakeup_ps: int = 0
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores that ranks share, for each computer; they matter where ranks outnumber them.

    `one_computer`: all nodes are namespaces of one. A rank computes for `slice_ps` before it gives way to another; one
    that waits gives way at once, and the other looks after its messages `switch_ps` later. `shared_by_node`: a core is
    shared between nodes, whatever their ranks. `lead_ps`: whoever has used more of a core than another, by more than
    this, waits until the other has caught up, polling if it has nothing to do; of nodes, or of two ranks on a single
    core. None: a rank gives way when it polls, and a node whose ranks poll uses up an even share. `look_ps`: how long
    passes, for each rank that polls on a core, between looks of one of them for messages from outside its node.
    `uneven_share`: of the first 100 ms, and a third of it later, in which one core serves a rank more than another
    could take from it (`shared_by_node`). Where it is above 0, nodes do not share cores evenly in the first 100 ms.
    `way_is_work`: a message's way is work of its sender's core, as where the kernel carries it between namespaces.
    """

    count: int
    one_computer: bool = False
    shared_by_node: bool = False
    slice_ps: int = 4_000_000_000
    switch_ps: int = 3_000_000
    look_ps: int = 0
    lead_ps: int | None = None
    uneven_share: float = 0.0
    way_is_work: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInputError(f"a computer with {self.count} cores")
        if not 0 <= self.uneven_share <= 1:
            raise BadInputError(f"{self.uneven_share} of the time cannot be uneven")
        if self.lead_ps is None and (self.uneven_share or self.look_ps):
            raise BadInputError("uneven shares and looks need `lead_ps`: else what ranks use is not counted")


MpiName = Literal["openmpi", "mpich"]
MPIS: tuple[MpiName, ...] = get_args(MpiName)
"""MPIs whose rules for collectives are known; positions are the numbers of the C++ `CollectiveChoice`."""
BY_NODES: Mapping[str, int] = {"openmpi": 5, "mpich": 4}
"""The version since which an MPI divides collectives by nodes; Open MPI unless it is told not to use `han`."""
REPLAYED_BY_NODES: Mapping[str, int] = {"openmpi": 5, "mpich": 5}
"""The version since which it divides them as they are replayed."""
MeasuredName = Literal["barrier", "allreduce", "allgather", "alltoall"]


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """How long a collective takes all ranks together: from the call of the last to the end of the slowest.

    `nodes` is the node of each rank when it was measured, `times_ps` what it took at each size, by rising bytes (as in
    `schedule.Op`). Only of collectives that no rank leaves before the last has come.
    """

    collective: MeasuredName
    nodes: tuple[int, ...]
    times_ps: tuple[tuple[int, Distribution], ...]

    def __post_init__(self) -> None:
        if not self.times_ps or not _increase([size for size, _ in self.times_ps]):
            raise BadInputError(f"the sizes of the measured {self.collective} do not increase, or there are none")
        least = min(times.values_ps[0] for _, times in self.times_ps)
        if least < 0:
            raise BadInputError(f"the measured {self.collective} took {least} ps")


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything the simulator needs to know of a cluster.

    `intra` joins ranks of one domain (a guest, or a bare node; None when it was not measured), `inter` nodes, `host`
    two guests of one host (None: like `inter`). `port_fs_per_byte` is the wire that all virtual functions of a node
    share. `cores` is None when every rank has a core of its own. `stage` describes interrupts that are not
    in the path models; None when those were measured with theirs. `measured` holds where ranks are placed as they were
    for it; other collectives are played as their messages. Those are of the MPI `collectives`, which divides them
    where nodes have several ranks if `by_nodes`.
    """

    intra: PathModel | None
    inter: PathModel
    host: PathModel | None = None
    port_fs_per_byte: int = 0
    port_gap_ps: int = 0
    network: Network = field(default_factory=Network)
    stage: StageSetting | None = None
    stage_delivery: Distribution | None = None
    packet_bytes: int = 0
    receive_queue: SharedReceiveQueue | None = None
    progress: Progress = field(default_factory=Progress)
    reduce_fs_per_byte: int = 0
    collectives: MpiName = "openmpi"
    by_nodes: bool = False
    compute_scale: float = 1.0
    cores: Cores | None = None
    measured: tuple[MeasuredCollective, ...] = ()


def divides_by_nodes(mpi: str, since: Mapping[str, int] = BY_NODES) -> bool:
    """Return whether an MPI, as its flavour and version, divides collectives: in each node, and between nodes."""
    version = re.match(r"(openmpi|mpich) (\d+)\.", mpi)
    return version is not None and int(version[2]) >= since[version[1]]


MachineKey = tuple[str, str, str]
"""The path, setting and progress mode that a machine was fitted from."""


@dataclass(frozen=True, slots=True)
class MachineName:
    """What tells a run's machines apart, and what was measured or predicted on them."""

    path: str
    setting: str
    progress: str

    @property
    def key(self) -> MachineKey:
        """Return path, setting and progress."""
        return self.path, self.setting, self.progress

    @property
    def name(self) -> str:
        """Return what tables and messages call it."""
        return " / ".join(self.key)


@dataclass(frozen=True, slots=True)
class NamedMachine(MachineName):
    """A fitted machine and what it was fitted from.

    `machine` is fitted from all launches together, `launches` are fitted from one block of launches each. `kind` is the
    path's recipe, `mpi` the flavour and version, `host` the kind of host; empty where a file of an older version lacks
    it. `virtual` says that the measured nodes ran on virtual processors, `knobs` what the setting sets in a file of an
    older version, `pairs` by how many pairs of ranks at once the path was streamed at most, `held` whether TCP held
    messages of those streams back (autocorking), `busy` how many launches met a busy machine, if most did, `conditions`
    what else its times depend on (`conditions.conditions_of`), several of a kind where the trials differ in it.
    """

    machine: Machine
    launches: tuple[Machine, ...] = ()
    kind: str = ""
    mpi: str = ""
    host: str = ""
    virtual: bool = False
    knobs: str = ""
    pairs: int = 0
    held: bool = False
    busy: str = ""
    conditions: tuple[tuple[str, str], ...] = ()

    @property
    def bare(self) -> bool:
        """Return whether its nodes are bare metal, or stand for it."""
        return (self.kind or self.path) in BARE_METAL and (self.host in VIRTUAL_ANYWAY or not self.virtual)

    @property
    def replayed(self) -> tuple[Machine, ...]:
        """The machines that replicas take in turn."""
        return self.launches or (self.machine,)
