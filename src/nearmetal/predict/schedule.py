"""What the simulator replays: programs over tables, made from a trace or from a pattern.

A program that many ranks share names its peers by rule (`Peer`), so its size does not depend on their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from nearmetal.errors import BadInputError
from nearmetal.predict.models import Distribution, Recorded
from nearmetal.predict.trace import NONE, DoCall, Repeat, Step

_MOST_REPEATS = (1 << 30) - 1
"""What a code word has room for."""


class OpKind(IntEnum):
    """Operations; numbers are those of the C++ `OpKind`."""

    SEND = 0
    RECV = 1
    SENDRECV = 2
    WAIT = 3
    PROBE = 4
    COLLECTIVE = 5
    MARK = 6
    CANCEL = 7


class Peer(IntEnum):
    """How a peer is given; numbers are those of the C++ `Peer`.

    RANK: a rank of the communicator. CART: 2 x dimension + (1 for the upper neighbour) in the program's grid. XOR:
    own rank xor the number. SHIFT: own rank plus the number, around the end. TRANSPOSE: the mirror of the own rank
    in a square grid with that many columns.
    """

    RANK = 0
    CART = 1
    XOR = 2
    SHIFT = 3
    TRANSPOSE = 4


class Collective(IntEnum):
    """Collectives; numbers are those of the C++ `Collective`."""

    BARRIER = 0
    BCAST = 1
    REDUCE = 2
    ALLREDUCE = 3
    GATHER = 4
    ALLGATHER = 5
    SCATTER = 6
    ALLTOALL = 7
    REDUCE_SCATTER = 8
    SCAN = 9
    EXSCAN = 10
    ALLTOALL_IN_PLACE = 11
    NEW_COMMUNICATOR = 12
    NEIGHBOR_ALLGATHER = 13
    NEIGHBOR_ALLTOALL = 14


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `slot` is the request of a non-blocking one, `slots` what a wait waits for.

    `vector`: a collective whose blocks may differ, with `message_bytes` as their mean. `sizes` (what goes to each rank,
    or in each direction of a grid) and `recv_sizes` are positions in `Program.size_lists`, NONE where it knows none.
    """

    kind: OpKind
    nonblocking: bool = False
    synchronous: bool = False
    comm: int = 0
    rule: Peer = Peer.RANK
    peer: int = -1
    tag: int = 0
    message_bytes: int = 0
    recv_rule: Peer = Peer.RANK
    recv_peer: int = -1
    recv_tag: int = 0
    slot: int = 0
    slots: int = 0
    collective: Collective = Collective.BARRIER
    vector: bool = False
    sizes: int = NONE
    recv_sizes: int = NONE


def exchange(rule: Peer, peer: int, message_bytes: int, *, tag: int = 0, comm: int = 0) -> Op:
    """Return the exchange of two messages alike with a peer that is given by rule."""
    op = Op(OpKind.SENDRECV, comm=comm, rule=rule, peer=peer, tag=tag, message_bytes=message_bytes)
    return replace(op, recv_rule=rule, recv_peer=peer, recv_tag=tag)


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator: explicit `members`, or (empty) the rule of blocks of `stride` x `size` ranks."""

    context: int
    members: tuple[int, ...] = ()
    my_rank: int = 0
    stride: int = 1
    size: int = 1
    dims: tuple[int, ...] = ()
    periods: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Ranks of `parent` that were on one node when traced, which the program made a communicator of.

    `whole`: all of them that were there; else those of a part of the node, such as a socket.
    """

    parent: tuple[int, ...]
    members: tuple[int, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Program:
    """Steps over tables: `DoCall` refers to `ops`, `DoGap` to `gaps`, which are positions in `Schedule.gaps`."""

    steps: tuple[Step, ...]
    ops: tuple[Op, ...]
    comms: tuple[Comm, ...]
    gaps: tuple[int, ...] = ()
    slot_sets: tuple[tuple[int, ...], ...] = ()
    size_lists: tuple[tuple[int, ...], ...] = ()
    dims: tuple[int, ...] = ()
    periods: tuple[int, ...] = ()
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What all ranks do; every rank runs `programs[0]`, or rank r runs `programs[r]`."""

    ranks: int
    programs: tuple[Program, ...]
    gaps: tuple[Distribution | Recorded, ...] = ()
    name: str = field(default="", compare=False)
    mpi: str = field(default="", compare=False)
    """Of a trace, what its MPI called itself."""
    command: tuple[str, ...] = field(default=(), compare=False)
    """Of a trace, the words of its command line, files by their names: what the program is and what it was told."""
    build: str = field(default="", compare=False)
    """Of a trace, the build id of the program; empty where there is none."""
    digest: str = field(default="", compare=False)
    """Of a trace, that of its files: a launch and its copy have the same."""
    first_of_several: bool = field(default=False, compare=False)
    """Of a trace, that further programs ran in its launch."""
    processor: str = field(default="", compare=False)
    """Of a trace, the model of the processor that it computed on."""
    crowd: int = field(default=0, compare=False)
    """Of a trace, how many ranks of a node waited for its fewer processors while their computing was timed."""
    traced_ranks: int = field(default=0, compare=False)
    """Of a trace that was scaled to another number of ranks, how many were traced."""
    traced_before: int = field(default=0, compare=False)
    """Of a trace that was scaled together with one of fewer ranks, how many those were."""
    compute_scale: float = field(default=1.0, compare=False)
    """By how much computing changes where two traces show it; the machine applies it."""
    opaque_share: float = field(default=0.0, compare=False)
    """Share of calls that a trace lacks (one-sided, MPI-IO ...): their time is in the gaps, as it was then."""
    opaque_time_share: float = field(default=0.0, compare=False)
    """Share of the ranks' time that they were in those calls, or waited for their requests."""
    opaque_wait_share: float = field(default=0.0, compare=False)
    """At most this share of their time they waited for requests of those calls and recorded ones at once."""
    opaque_names: tuple[str, ...] = field(default=(), compare=False)
    """Which calls those are."""
    calling_threads: int = field(default=0, compare=False)
    """Of a trace, how many threads of a rank called MPI at most: a replay runs their calls in one order."""
    rounded_share: float = field(default=0.0, compare=False)
    """Share of a trace's calls of which the profiler rounded the sizes."""
    paused_share: float = field(default=0.0, compare=False)
    """Share of the ranks' time in pauses between polls that was taken for waiting."""
    first_come_share: float = field(default=0.0, compare=False)
    """Share of a trace's receives that were waited for with others, of other ranks, and came first."""
    worked_share: float = field(default=0.0, compare=False)
    """Share of the ranks' time that they computed after a poll that found nothing."""
    blocked_share: float = field(default=0.0, compare=False)
    """Share of the ranks' time that computing in processor time left out although no rank waited for a processor."""
    node_groups: tuple[NodeGroup, ...] = field(default=(), compare=False)
    """Of a trace, communicators that would have other ranks on other nodes."""
    given_dims: tuple[int, ...] = field(default=(), compare=False)
    """Of a pattern on other ranks than its own, the process grid that it names for those."""

    @property
    def shared(self) -> bool:
        """Whether all ranks run one program."""
        return len(self.programs) == 1 and self.ranks > 1

    def program(self, rank: int) -> Program:
        """Return the program of a rank."""
        return self.programs[0] if self.shared else self.programs[rank]


def encode_steps(steps: Sequence[Step]) -> list[int]:
    """Return the code words of the simulator: argument << 2 | token (0 call, 1 gap, 2 repeat, 3 end)."""
    words: list[int] = []
    for step in steps:
        if isinstance(step, Repeat):
            if not 1 <= step.count <= _MOST_REPEATS or not step.body:
                text = f"a repeat of {step.count} times {len(step.body)} steps"
                raise BadInputError(text, hint=f"a replay repeats 1 to {_MOST_REPEATS} times; trace a shorter run")
            words += [step.count << 2 | 2, *encode_steps(step.body), 3]
        else:
            words.append(step.index << 2 | (0 if isinstance(step, DoCall) else 1))
    return words
