"""What an MPI program did, as the profiler recorded it and as the simulator replays it.

A trace holds one `RankTrace` a rank. A rank's program is a tree: calls, compute gaps and repeats of them. Calls,
gaps, communicators and integer lists live in tables and the program refers to them by index, so a loop of any
length costs a few bytes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

NONE = 0xFFFF_FFFF
"""An absent index."""

_DIGITS = 20
"""Of the largest number that the profiler writes."""

BY_NODE, BY_PART = 1, 2
"""Tags of a COMM_SPLIT that made communicators of the ranks of each node, or of each part of one."""
WORLD, SELF = 0, 1
"""Positions of MPI_COMM_WORLD and MPI_COMM_SELF in every communicator table."""
_RUN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_QUOTA = re.compile(r"(\d{1,20}) ([^,]+)")
_WITH_REQUEST = re.compile(r"I(?!probe)[a-z]\w+|R(?:put|get|accumulate|get_accumulate)|\w+_init|File_i\w+")
"""Calls that give a request, which any later wait may be for."""
_NAMED = 4
"""Calls that a sentence names; of more it gives the number."""


class CallKind(IntEnum):
    """MPI calls that matter for time. Values are part of the file format."""

    SEND = 1
    RECV = 2
    SENDRECV = 3
    WAIT = 4
    PROBE = 5
    MARK = 6
    BARRIER = 16
    BCAST = 17
    REDUCE = 18
    ALLREDUCE = 19
    GATHER = 20
    ALLGATHER = 21
    SCATTER = 22
    ALLTOALL = 23
    REDUCE_SCATTER = 24
    SCAN = 25
    EXSCAN = 26
    NEIGHBOR_ALLGATHER = 27
    NEIGHBOR_ALLTOALL = 28
    COMM_DUP = 48
    COMM_SPLIT = 49
    COMM_CREATE = 50
    CART_CREATE = 51
    COMM_FREE = 52
    INIT = 64
    FINALIZE = 65

    @property
    def is_collective(self) -> bool:
        """Whether every member of the communicator takes part."""
        return CallKind.BARRIER <= self < CallKind.COMM_FREE

    @property
    def creates(self) -> bool:
        """Whether it makes a communicator, the call's `request`."""
        return CallKind.COMM_DUP <= self <= CallKind.CART_CREATE


class CallFlag(IntFlag):
    """Properties of a call. Values are part of the file format."""

    NONE = 0
    NONBLOCKING = 1 << 0
    PERSISTENT = 1 << 1
    ANY_SOURCE = 1 << 2
    ANY_TAG = 1 << 3
    SYNCHRONOUS = 1 << 4
    BUFFERED = 1 << 5
    READY = 1 << 6
    IN_PLACE = 1 << 7
    VECTOR = 1 << 8
    POLLED = 1 << 9
    CANCELLED = 1 << 10


class CommKind(IntEnum):
    """How a communicator came to be. Values are part of the file format."""

    WORLD = 0
    SELF = 1
    DUP = 2
    SPLIT = 3
    CREATE = 4
    CART = 5
    INTER = 6


@dataclass(frozen=True, slots=True)
class Call:
    """One distinct MPI call (see docs/reference/trace-file.md for what each field means for each kind).

    `peer` and `recv_peer` are ranks of the communicator, -1 for a wildcard or where there is none.
    """

    kind: CallKind
    flags: CallFlag = CallFlag.NONE
    comm: int = WORLD
    peer: int = -1
    tag: int = 0
    message_bytes: int = 0
    recv_peer: int = -1
    recv_tag: int = 0
    recv_bytes: int = 0
    request: int = NONE
    list_a: int = NONE
    list_b: int = NONE
    type_bytes: int = 1


@dataclass(frozen=True, slots=True)
class CallTime:
    """How often a distinct call ran and how long it took inside MPI."""

    calls: int = 0
    total_ns: int = 0
    max_ns: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Compute time between two calls: a distribution over the visits of one site.

    `quantiles_ns` has one entry for each probability of `RankTrace.gap_probabilities`. `order` holds the first
    visits in the order in which they came, 16 bits each (docs/reference/trace-file.md); empty in files of version 1.
    """

    visits: int
    total_ns: int
    quantiles_ns: tuple[int, ...]
    order: bytes = b""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator as one rank sees it; `uid` is the same number on all members.

    `members` are the world ranks in communicator order; `dims` and `periods` are empty unless Cartesian. In a `Trace`
    an inter-communicator has those of both groups (`inter.join_groups`).
    """

    uid: int
    kind: CommKind
    parent: int
    members: tuple[int, ...]
    my_rank: int
    dims: tuple[int, ...] = ()
    periods: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DoCall:
    """Run call number `index` of the call table."""

    index: int


@dataclass(frozen=True, slots=True)
class DoGap:
    """Compute for a duration drawn from gap number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run `body` `count` times."""

    count: int
    body: tuple[Step, ...]


Step = DoCall | DoGap | Repeat


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All that one rank recorded."""

    rank: int
    world_ranks: int
    trace_id: int
    elapsed_ns: int
    meta: dict[str, str]
    lists: tuple[tuple[int, ...], ...]
    communicators: tuple[Communicator, ...]
    calls: tuple[Call, ...]
    times: tuple[CallTime, ...]
    gap_probabilities: tuple[float, ...]
    gaps: tuple[Gap, ...]
    program: tuple[Step, ...]

    @property
    def node(self) -> str:
        """Return the host name the rank ran on, empty if the profiler could not find out."""
        return self.meta.get("node", "")

    def number(self, key: str) -> int:
        """Return a count that the profiler told, 0 where it is absent or none."""
        text = self.meta.get(key, "0")
        return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


@dataclass(frozen=True, slots=True)
class Trace:
    """The traces of all ranks of one run, in rank order."""

    ranks: tuple[RankTrace, ...]
    source: str = field(default="", compare=False)
    digest: str = field(default="", compare=False)
    """Of its files: that of a copy is the same."""
    first_of_several: bool = field(default=False, compare=False)
    """Its launch ran further MPI programs after this one, which began traces that were not kept."""

    @property
    def world_ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    @property
    def processor(self) -> str:
        """Return the models of the processors that the ranks computed on; empty if no rank's file contains one."""
        return ", ".join(sorted({rank.meta.get("processor", "") for rank in self.ranks} - {""}))

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the command line of each program of the launch, in rank order: that of its first rank."""
        found: dict[str, str] = {}
        for command in (rank.meta.get("command", "") for rank in self.ranks):
            found.setdefault(command.partition(" ")[0], command)
        return tuple(command for command in found.values() if command)

    @property
    def build(self) -> str:
        """Return the build id of the program, or the beginnings of those of several; empty if there is none."""
        found = dict.fromkeys(build for rank in self.ranks if (build := rank.meta.get("build", "")))
        return next(iter(found), "") if len(found) < 2 else "+".join(build[:12] for build in found)

    @property
    def crowd(self) -> int:
        """Return how many ranks of a node waited for its fewer processors while their computing was timed, or 0."""
        timed: dict[str, list[RankTrace]] = defaultdict(list)
        for rank in self.ranks:
            if rank.meta.get("gaps") == "elapsed":
                timed[rank.node].append(rank)
        return max(map(_crowd_of, timed.values()), default=0)

    @property
    def opaque_calls(self) -> int:
        """Return how many calls were seen but not recorded: one-sided, MPI-IO, some on inter-communicators."""
        return sum(rank.number("unsupported") for rank in self.ranks)

    @property
    def opaque_names(self) -> tuple[str, ...]:
        """Return which calls those are, without `MPI_`, most frequent first; () if the trace lacks them."""
        return tuple(name for name, _ in self._opaque().most_common())

    def _opaque(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for rank in self.ranks:
            for told in rank.meta.get("unsupported_calls", "").split(","):
                name, _, calls = told.partition(" ")
                if name.isidentifier() and calls.isdecimal():
                    found[name] += int(calls)
        return found

    @property
    def opaque_ns(self) -> int:
        """Return how long ranks were in those calls, or waited for their requests; 0 in older traces."""
        return sum(rank.number("unsupported_ns") for rank in self.ranks)

    @property
    def opaque_time_share(self) -> float:
        """Return the share of ranks' time that this is."""
        return self._share_of("unsupported_ns")

    @property
    def opaque_wait_share(self) -> float:
        """Return the share of ranks' time in waits for recorded requests and, at once, for those of other calls.

        Of older traces, which do not tell which waits had both, the largest share that it may be.
        """
        told = any("mixed_ns" in rank.meta for rank in self.ranks)
        return self._share_of("mixed_ns") if told else self._opaque_wait_share_at_most()

    def _opaque_wait_share_at_most(self) -> float:
        """Return it as if each such call's request was in a wait; persistent ones may have been in every wait."""
        made = {name: calls for name, calls in self._opaque().items() if _WITH_REQUEST.fullmatch(name)}
        if not made:
            return 0.0
        timed = (pair for rank in self.ranks for pair in zip(rank.calls, rank.times, strict=True))
        waits = [time for call, time in timed if call.kind is CallKind.WAIT]
        most = (
            1.0
            if any(name.endswith("_init") for name in made)
            else sum(made.values()) / max(1, sum(w.calls for w in waits))
        )
        return min(1.0, most) * min(1.0, sum(wait.total_ns for wait in waits) / max(1, self.elapsed_ns))

    def _share_of(self, key: str) -> float:
        """Return the share of ranks' time that the profiler told; times of threads add up, to more than all of it."""
        return min(1.0, sum(rank.number(key) for rank in self.ranks) / max(1, self.elapsed_ns))

    @property
    def paused_share(self) -> float:
        """Return the share of ranks' time in pauses between polls that is taken for waiting; 0 in older traces."""
        return self._share_of("paused_ns")

    @property
    def first_come_share(self) -> float:
        """Return the share of receives that were waited for with others, of other ranks, and came first."""
        counts: Counter[bool] = Counter()
        for rank in self.ranks:
            for call, time in zip(rank.calls, rank.times, strict=True):
                if call.kind in {CallKind.RECV, CallKind.SENDRECV}:
                    counts[False] += time.calls
                elif call.kind is CallKind.WAIT and call.flags & CallFlag.ANY_SOURCE:
                    counts[True] += time.calls
        return min(1.0, counts[True] / max(1, counts[False]))

    @property
    def worked_share(self) -> float:
        """Return the share of ranks' time in computing after a poll that found nothing; 0 in older traces."""
        return self._share_of("worked_ns")

    @property
    def blocked_share(self) -> float:
        """Return the share of ranks' time that processor time leaves out although they waited for no processor."""
        return self._share_of("blocked_ns")

    @property
    def elapsed_ns(self) -> int:
        """Return the time of all ranks together."""
        return sum(rank.elapsed_ns for rank in self.ranks)

    @property
    def calling_threads(self) -> int:
        """Return how many threads of a rank called MPI at most; 0 where only one may, and in older traces."""
        return max(rank.number("calling_threads") for rank in self.ranks)

    @property
    def rounded_calls(self) -> int:
        """Return how many calls have sizes of three significant bits, for there were too many distinct ones."""
        return sum(rank.number("rounded") for rank in self.ranks)


def _listed(text: str) -> frozenset[int]:
    """Return the numbers in an increasing list such as `0-3,8`; none where the text is no such list."""
    found: set[int] = set()
    last = -1
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None or int(match[1]) <= last:
            return frozenset()
        last = int(match[2] or match[1])
        found.update(range(int(match[1]), last + 1))
    return frozenset(found)


def _crowd_of(ranks: Sequence[RankTrace]) -> int:
    """Return how many ranks of a node had fewer processors that they might use, or a quota of fewer, or 0."""
    told = (_QUOTA.findall(rank.meta.get("quotas", "")) for rank in ranks)
    held = Counter((group, int(count)) for quotas in told for count, group in dict.fromkeys(quotas))
    most = max((ranks_inside for (_, count), ranks_inside in held.items() if ranks_inside > count), default=0)
    return max(most, _crowd_by_affinity(ranks))


def _crowd_by_affinity(ranks: Sequence[RankTrace]) -> int:
    usable = [_listed(rank.meta.get("affinity", "")) for rank in ranks]
    if not all(usable):  # older traces know how many the node has
        known = (told for rank in ranks if (told := rank.number("processors")))
        return len(ranks) if any(len(ranks) > count for count in known) else 0
    inside = {one: sum(other <= one for other in usable) for one in {*usable, frozenset().union(*usable)}}
    return max((count for one, count in inside.items() if count > len(one)), default=0)


def named_calls(names: Sequence[str]) -> str:
    """Return in words which calls a trace lacks; a trace of an older profiler does not name them."""
    if not names:
        return "such as one-sided communication and MPI-IO"
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([f"MPI_{name}" for name in names[:_NAMED]] + more)


def walk(program: tuple[Step, ...], times: int = 1) -> Iterator[tuple[DoCall | DoGap, int]]:
    """Yield every call and gap step once, with how often the loops around it run it."""
    for step in program:
        if isinstance(step, Repeat):
            yield from walk(step.body, times * step.count)
        else:
            yield step, times


def call_count(trace: RankTrace) -> int:
    """Return the number of MPI calls with all repeats expanded."""
    return sum(times for step, times in walk(trace.program) if isinstance(step, DoCall))
