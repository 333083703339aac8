"""A schedule made from a trace: what each rank did, as the simulator replays it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nearmetal.predict.models import PS_PER_NS, Distribution, Recorded
from nearmetal.predict.schedule import Collective, Comm, NodeGroup, Op, OpKind, Program, Schedule
from nearmetal.predict.trace import (
    BY_NODE,
    BY_PART,
    NONE,
    Call,
    CallFlag,
    CallKind,
    CommKind,
    Communicator,
    DoCall,
    DoGap,
    Gap,
    RankTrace,
    Repeat,
    Step,
    Trace,
    call_count,
)

SPLIT_BYTES = 8
"""What each rank tells all others before a communicator is split: a colour and a key."""
FEW_VISITS = 256
"""A gap is replayed in the order in which it was recorded when all of its visits were kept, or at least so many."""

_POINT_TO_POINT = {
    CallKind.SEND: OpKind.SEND,
    CallKind.RECV: OpKind.RECV,
    CallKind.SENDRECV: OpKind.SENDRECV,
    CallKind.WAIT: OpKind.WAIT,
    CallKind.PROBE: OpKind.PROBE,
}
_OF_NEIGHBOURS = {CallKind.NEIGHBOR_ALLGATHER, CallKind.NEIGHBOR_ALLTOALL}
_SILENT = {CallKind.COMM_FREE, CallKind.INIT, CallKind.FINALIZE}


def schedule_from_trace(trace: Trace) -> Schedule:
    """Turn a trace into a schedule.

    The time of calls that the profiler saw but could not record is in the gaps (`Schedule.opaque_share`).
    """
    contexts: dict[int, int] = {}
    gaps: dict[Distribution | Recorded, int] = {}
    # Where sizes were rounded one rank may lack the list that tells another that nothing comes: every part is sent.
    least = 1 if trace.rounded_calls else 0
    programs = tuple(_RankReader(rank, contexts, gaps, least).program() for rank in trace.ranks)
    library = trace.ranks[0].meta.get("library", "")
    opaque, recorded = trace.opaque_calls, sum(map(call_count, trace.ranks))
    command = words_of(" : ".join(trace.commands).split())
    return Schedule(
        trace.world_ranks,
        programs,
        tuple(gaps),
        trace.source,
        library,
        command,
        build=trace.build,
        digest=trace.digest,
        first_of_several=trace.first_of_several,
        processor=trace.processor,
        crowd=trace.crowd,
        opaque_share=opaque / max(1, opaque + recorded),
        opaque_time_share=trace.opaque_time_share,
        opaque_wait_share=trace.opaque_wait_share,
        opaque_names=trace.opaque_names,
        calling_threads=trace.calling_threads,
        paused_share=trace.paused_share,
        first_come_share=trace.first_come_share,
        worked_share=trace.worked_share,
        blocked_share=trace.blocked_share,
        rounded_share=trace.rounded_calls / max(1, recorded),
        node_groups=tuple(dict.fromkeys(group for rank in trace.ranks for group in _node_groups(rank))),
    )


def _node_groups(trace: RankTrace) -> Iterator[NodeGroup]:
    for call in trace.calls:
        if call.kind is CallKind.COMM_SPLIT and call.tag in {BY_NODE, BY_PART} and call.request != NONE:
            parent, made = (trace.communicators[at].members for at in (call.comm, call.request))
            yield NodeGroup(tuple(sorted(parent)), tuple(sorted(made)), call.tag == BY_NODE)


def words_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line, of files their names alone: their folders differ between launches."""
    return tuple(word.rstrip("/").rpartition("/")[2] for word in command)


class _RankReader:
    def __init__(
        self, trace: RankTrace, contexts: dict[int, int], gaps: dict[Distribution | Recorded, int], least: int
    ) -> None:
        self.trace, self.contexts, self.gaps, self.least = trace, contexts, gaps, least
        self.slot_sets: dict[tuple[int, ...], int] = {}
        self.kept: dict[int, range] = {}
        self.ops: list[Op] = []
        # Requests are numbered anew, densely: a file may give them any number of 32 bits.
        self.slots: dict[int, int] = {
            request: slot
            for slot, request in enumerate(
                sorted({call.request for call in trace.calls if call.flags & CallFlag.NONBLOCKING})
            )
        }

    def program(self) -> Program:
        trace = self.trace
        for index, call in enumerate(trace.calls):
            if call.kind not in _SILENT:
                before = len(self.ops)
                self.ops += self._ops(call)
                self.kept[index] = range(before, len(self.ops))
        gaps = tuple(map(self._gap, trace.gaps))
        return Program(
            steps=self._steps(trace.program),
            ops=tuple(self.ops),
            comms=tuple(self._comm(comm) for comm in trace.communicators),
            gaps=gaps,
            slot_sets=tuple(self.slot_sets),
            size_lists=tuple(tuple(max(size, self.least) for size in one) for one in trace.lists),
            slots=len(self.slots) + any(call.flags & CallFlag.BUFFERED for call in trace.calls),
        )

    def _steps(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        kept: list[Step] = []
        for step in steps:
            if isinstance(step, Repeat):
                body = self._steps(step.body)
                if body:
                    kept.append(Repeat(step.count, body))
            elif isinstance(step, DoGap):
                kept.append(step)
            elif step.index in self.kept:
                kept += map(DoCall, self.kept[step.index])
        return tuple(kept)

    def _comm(self, comm: Communicator) -> Comm:
        context = self.contexts.setdefault(comm.uid, len(self.contexts))
        if comm.members == tuple(range(self.trace.world_ranks)):
            return Comm(context, size=len(comm.members), dims=comm.dims, periods=comm.periods)
        return Comm(context, comm.members, comm.my_rank, dims=comm.dims, periods=comm.periods)

    def _gap(self, gap: Gap) -> int:
        kept = len(gap.order) // 2
        if kept and kept >= min(gap.visits, FEW_VISITS):
            return self.gaps.setdefault(Recorded(gap.order), len(self.gaps))
        table = Distribution(self.trace.gap_probabilities, tuple(ns * PS_PER_NS for ns in gap.quantiles_ns))
        return self.gaps.setdefault(table, len(self.gaps))

    def _ops(self, call: Call) -> list[Op]:
        if call.kind.creates:
            return self._creation(call)
        return [self._collective(call) if call.kind.is_collective else self._point_to_point(call)]

    def _creation(self, call: Call) -> list[Op]:
        to_both = self._is_inter(call.request) and not self._is_inter(call.comm)  # MPI_Intercomm_create
        comm = call.request if to_both else call.comm
        agree = Op(OpKind.COLLECTIVE, comm=comm, collective=Collective.NEW_COMMUNICATOR)
        tell = replace(agree, message_bytes=SPLIT_BYTES, collective=Collective.ALLGATHER)
        return [tell, agree] if call.kind is CallKind.COMM_SPLIT else [agree]

    def _is_inter(self, comm: int) -> bool:
        return comm != NONE and self.trace.communicators[comm].kind is CommKind.INTER

    def _point_to_point(self, call: Call) -> Op:
        if call.kind is CallKind.MARK:
            return Op(OpKind.MARK, tag=call.tag)
        kind = _POINT_TO_POINT[call.kind]
        nonblocking, buffered = bool(call.flags & CallFlag.NONBLOCKING), bool(call.flags & CallFlag.BUFFERED)
        any_tag = bool(call.flags & CallFlag.ANY_TAG)
        if kind is OpKind.WAIT:
            requests = self.trace.lists[call.request] if call.request != NONE else ()
            slots = tuple(self.slots[request] for request in requests if request in self.slots)
            kind = OpKind.CANCEL if call.flags & CallFlag.CANCELLED else kind
            return Op(kind, slots=self.slot_sets.setdefault(slots, len(self.slot_sets)))
        if kind is OpKind.SENDRECV:
            return Op(
                kind,
                comm=call.comm,
                peer=call.peer,
                tag=call.tag,
                message_bytes=call.message_bytes,
                recv_peer=-1 if call.flags & CallFlag.ANY_SOURCE else call.recv_peer,
                recv_tag=-1 if any_tag else call.recv_tag,
            )
        # A buffered send is over for its rank at once, whatever becomes of it: its request is one nobody waits for.
        slot = len(self.slots) if buffered else self.slots[call.request] if nonblocking else 0
        return Op(
            kind,
            nonblocking=nonblocking or buffered,
            synchronous=bool(call.flags & CallFlag.SYNCHRONOUS),
            comm=call.comm,
            peer=-1 if call.flags & CallFlag.ANY_SOURCE else call.peer,
            tag=-1 if any_tag else call.tag,
            message_bytes=call.message_bytes,
            slot=slot,
        )

    def _collective(self, call: Call) -> Op:
        comm = self.trace.communicators[call.comm]
        peers = 2 * len(comm.dims) if call.kind in _OF_NEIGHBOURS else len(comm.members)
        vector = bool(call.flags & CallFlag.VECTOR)

        def sizes(index: int) -> int:
            return index if vector and index != NONE and len(self.trace.lists[index]) == peers else NONE

        each = max(self._part(call, peers), self.least) if vector else call.message_bytes
        return Op(
            OpKind.COLLECTIVE,
            nonblocking=bool(call.flags & CallFlag.NONBLOCKING),
            comm=call.comm,
            peer=call.peer,
            message_bytes=each,
            slot=self.slots[call.request] if call.flags & CallFlag.NONBLOCKING else 0,
            collective=_collective_of(call),
            vector=vector,
            sizes=sizes(call.list_a),
            recv_sizes=sizes(call.list_b),
        )

    def _part(self, call: Call, peers: int) -> int:
        """Return the bytes for one peer: the mean of a total, or what a rank away from the root gives or takes."""
        comm = self.trace.communicators[call.comm]
        if call.kind in {CallKind.GATHER, CallKind.SCATTER} and call.peer != comm.my_rank:
            return call.message_bytes
        if call.kind in _OF_NEIGHBOURS:
            # Traces from before the profiler left out absent neighbours list parts for those too.
            there = _neighbours_there(comm)
            listed = call.list_a if call.list_a != NONE else call.list_b
            parts = self.trace.lists[listed] if listed != NONE else ()
            whole = sum(parts[at] for at in there) if len(parts) == peers else call.message_bytes
            return whole // max(1, len(there))
        return call.message_bytes // max(1, peers)


def _collective_of(call: Call) -> Collective:
    in_place = call.kind is CallKind.ALLTOALL and call.flags & CallFlag.IN_PLACE
    return Collective.ALLTOALL_IN_PLACE if in_place else Collective[call.kind.name]


def _neighbours_there(comm: Communicator) -> list[int]:
    """Return the directions (below and above, by dimension) in which a rank of a grid has a neighbour."""
    found, at = [], comm.my_rank
    for dimension in reversed(range(len(comm.dims))):
        at, place = divmod(at, max(1, comm.dims[dimension]))
        ends = (0, comm.dims[dimension] - 1)
        found += [2 * dimension + up for up in (0, 1) if comm.periods[dimension] or place != ends[up]]
    return found
