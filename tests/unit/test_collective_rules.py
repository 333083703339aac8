"""Which messages a collective is simulated as: the algorithm that Open MPI 4.1 and later choose by ranks and bytes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from itertools import product

import pytest

from nearmetal.predict import _sim
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.models import MPIS, Distribution, MpiName, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import Call, CallFlag, CallKind, CommKind, Communicator, DoCall, DoGap, Step, Trace
from tests.trace_writer import made_rank

from .simulated import MACHINE, US, computing, path, ping, run_ns

KI = 1024
Sizes = tuple[int, ...]
OPENMPI = 0


def rounds(collective: Collective, ranks: int, size: int, rank: int = 0) -> list[tuple[int, int, int, bool]]:
    return _sim.expand_collective(OPENMPI, int(collective), ranks, rank, 0, size)


@pytest.mark.parametrize(
    ("collective", "ranks", "size", "messages"),
    [
        (Collective.ALLTOALL, 31, 3, 30),
        (Collective.ALLTOALL, 31, 4, 5),  # Bruck
        (Collective.ALLTOALL, 15, 4, 14),
        (Collective.ALLTOALL, 31, 512, 30),
        (Collective.ALLTOALL, 64, KI - 1, 6),
        (Collective.ALLTOALL, 1000, 600, 999),
        (Collective.ALLTOALL, 4096, 2 * KI - 1, 12),
        (Collective.ALLREDUCE, 4, 8 * KI - 1, 2),  # recursive doubling
        (Collective.ALLREDUCE, 4, 8 * KI, 4),  # Rabenseifner
        (Collective.ALLREDUCE, 3, 4 * KI, 4),  # a ring
        (Collective.ALLREDUCE, 32, 127, 5),
        (Collective.ALLREDUCE, 32, 128, 10),
        (Collective.ALLREDUCE, 128, 255 * KI, 7),
        (Collective.ALLREDUCE, 2048, 3 * KI, 2 * 2047),
        (Collective.ALLREDUCE, 4096, 20 * KI, 12),
        (Collective.ALLGATHER, 16, 1 << 20, 4),
        (Collective.ALLGATHER, 6, 1 << 20, 3),  # Bruck
        (Collective.ALLGATHER, 32, KI - 1, 5),
        (Collective.ALLGATHER, 32, KI, 31),
        (Collective.BCAST, 4, 8 * KI - 1, 2),
        (Collective.BCAST, 4, 8 * KI, 3),
        (Collective.BCAST, 15, 32 * KI, 14),
        (Collective.BCAST, 16, 32 * KI, 4),
        (Collective.BARRIER, 3, 0, 2),
        (Collective.BARRIER, 7, 0, 6),
        (Collective.BARRIER, 8, 0, 3),
    ],
)
def test_open_mpi_chooses_by_ranks_and_bytes(collective: Collective, ranks: int, size: int, messages: int) -> None:
    assert sum(to >= 0 for to, *_ in rounds(collective, ranks, size)) == messages


@pytest.mark.parametrize(
    ("mpi", "collective", "ranks", "size", "counted"),
    [
        ("openmpi", Collective.REDUCE, 6, 8 * KI, "0 8192 8192 8192 8192 8192"),
        ("openmpi", Collective.ALLREDUCE, 5, 8 * KI, "24576/6 8192/2 12288/4 12288/4 12288/4"),
        ("openmpi", Collective.BARRIER, 9, 0, "0/4 0/3 0/3 0/3 0/3 0/3 0/3 0/3 0/1"),
        ("openmpi", Collective.BCAST, 9, 64, "320/5 0/0 0/0 0/0 192/3 0/0 0/0 0/0 0/0"),
        ("openmpi", Collective.GATHER, 4, 256 * KI, "0/3 262144/2 262144/2 262144/2"),
        ("openmpi", Collective.REDUCE_SCATTER, 4, KI * KI, "3145728/3 4194304/1 4194304/1 4194304/1"),
        ("mpich", Collective.REDUCE, 2, 2 * KI, "0 2048"),
        ("mpich", Collective.REDUCE, 2, 4 * KI, "2048/1 4096/2"),
        ("mpich", Collective.REDUCE, 6, 8 * KI, "6144/2 8192/1 10240/3 8192/1 8192/3 8192/3"),
        ("mpich", Collective.ALLREDUCE, 2, 16, "16/2 16/2"),
        ("mpich", Collective.ALLREDUCE, 4, 24, "48/2 48/2 48/2 48/2"),
        ("mpich", Collective.BCAST, 8, 12 * KI, "36864/3 0/0 12288/1 0/0 24576/2 0/0 12288/1 0/0"),
        ("mpich", Collective.ALLTOALL, 8, 8, " ".join(["56/7"] * 8)),
        ("mpich", Collective.REDUCE_SCATTER, 3, 8, "24/1 16/2 16/1"),
    ],
)
def test_each_rank_sends_what_was_counted(
    mpi: MpiName, collective: Collective, ranks: int, size: int, counted: str
) -> None:
    """Bytes, and messages where told: of Open MPI 5.0.11 by its monitoring, of MPICH 5.0.2 at UCX."""
    for rank, told in enumerate(counted.split()):
        rounds = _sim.expand_collective(MPIS.index(mpi), int(collective), ranks, rank, 0, size)
        sent = [size for to, size, *_ in rounds if to >= 0]
        assert told in {f"{sum(sent)}", f"{sum(sent)}/{len(sent)}"}


@pytest.mark.parametrize(
    ("ranks", "size", "at_once"),
    [
        (2, 16 * KI, False),
        (4, 16 * KI, True),
        (4, 512 * KI, False),
        (4, KI * KI, True),
        (128, 255 * KI, True),
        (128, 256 * KI, False),
        (511, 32 * KI, False),
        (1024, 256 * KI, True),
    ],
)
def test_an_alltoall_sends_all_at_once_or_in_pairs(ranks: int, size: int, at_once: bool) -> None:
    assert {is_open for *_, is_open in rounds(Collective.ALLTOALL, ranks, size)} == {at_once}


def test_a_barrier_of_a_few_ranks_goes_through_the_first() -> None:
    assert [(to, source) for to, _, source, _ in rounds(Collective.BARRIER, 4, 0, rank=2)] == [(0, -1), (-1, 0)]
    received = rounds(Collective.BARRIER, 4, 0)
    assert [source for _, _, source, _ in received] == [1, 2, 3, -1, -1, -1]
    assert [is_open for *_, is_open in received][:3] == [
        True,
        True,
        False,
    ]  # no rank is released before all have arrived


def duration_ns(collective: Collective, ranks: int, size: int, *, vector: bool = False) -> int:
    op = Op(OpKind.COLLECTIVE, collective=collective, message_bytes=size, peer=0)
    if vector:
        op = replace(op, vector=True, sizes=0, recv_sizes=0)
    own = Program((DoCall(0),), (op,), (Comm(0, size=ranks),), size_lists=((size,) * ranks,) if vector else ())
    return run_ns(Schedule(ranks, (own,) * ranks))


def test_a_waiting_rank_handles_messages_that_arrived_before_its_collective_at_once() -> None:
    """The early rank's message is received while waiting for the late ones, not after them."""
    barrier = (Op(OpKind.COLLECTIVE, collective=Collective.BARRIER),)
    slow = path(latency=1000, o_s=100, o_r=100_000)
    # The last late message is received 2 o_r after both arrived; then rank 0 sends three.
    end_ns = 10_000_000 + 100 + 1000 + 2 * 100_000 + 3 * 100 + 1000 + 100_000
    assert run_ns(computing(1, 10, 10, 0, ops=barrier), replace(MACHINE, inter=slow)) == end_ns


def test_an_alltoallv_of_four_ranks_sends_all_at_once() -> None:
    """It was simulated in pairs, as before 4.1: IS on two nodes of two ranks came out 9 to 11 points too short."""
    alltoallv = [duration_ns(Collective.ALLTOALL, ranks, 600_000, vector=True) for ranks in (3, 4)]
    pairs = [duration_ns(Collective.ALLTOALL, ranks, 600_000) for ranks in (3, 4)]
    assert alltoallv[0] == pairs[0]
    assert alltoallv[1] < pairs[1]


def expanded(mpi: str, of: Collective, rank: int, size: int, sizes: Sizes = (), back: Sizes = ()) -> list[int]:
    """Return whom a rank of four sends to (positive, rank + 1) and waits for (negative), in the order of the rounds."""
    rounds = _sim.expand_collective(MPIS.index(mpi), int(of), 4, rank, 0, size, bool(sizes or back), sizes, back)
    return [one for to, _, source, _ in rounds for one in (to + 1, -source - 1) if one]


def test_an_alltoall_in_place_exchanges_with_one_rank_after_the_other() -> None:
    """It was replayed as one with two buffers, whose messages are all under way at once."""
    of = Collective.ALLTOALL_IN_PLACE
    assert [expanded("openmpi", of, rank, 600) for rank in (0, 2)] == [[2, -4, 3, -3, 4, -2], [4, -2, 1, -1, 2, -4]]
    assert [expanded("mpich", of, rank, 600) for rank in (0, 2)] == [[2, -2, 3, -3, 4, -4], [1, -1, 2, -2, 4, -4]]
    for mpi in MPIS:
        rounds = _sim.expand_collective(MPIS.index(mpi), int(of), 4, 0, 0, 600)
        assert [(size, is_open) for _, size, _, is_open in rounds] == [(600, False)] * 3
        assert expanded(mpi, of, 0, 0) == []
    parts = (0, 8, 0, 4)  # Open MPI leaves out what is empty
    assert expanded("openmpi", of, 0, 3, parts, parts) == [2, -4, 4, -2]
    assert expanded("mpich", of, 0, 3, parts, parts) == [2, -2, 3, -3, 4, -4]
    call = Call(CallKind.ALLTOALL, CallFlag.IN_PLACE, message_bytes=600)
    found = schedule_from_trace(Trace((made_rank(0, 2, (call,)), made_rank(1, 2, (call,)))))
    assert [program.ops[0].collective for program in found.programs] == [of, of]


@pytest.mark.parametrize(
    ("mpi", "messages"), [("openmpi", {4: 3 * 2 * 7}), ("mpich", {130: 2 * 8, 65: 2 * 8, 33: 2 * 8, 4: 7})]
)
def test_a_new_communicator_takes_the_agreements_of_its_mpi(mpi: str, messages: dict[int, int]) -> None:
    """It was one exchange of 8 B among all, and a program that makes thousands seemed fast."""
    of = int(Collective.NEW_COMMUNICATOR)
    rounds = [one for rank in range(8) for one in _sim.expand_collective(MPIS.index(mpi), of, 8, rank, 0, 0)]
    assert Counter(size for to, size, _, _ in rounds if to >= 0) == messages
    halves = (Communicator(9, CommKind.SPLIT, 0, (0, 1), rank) for rank in range(2))
    split, dup = (Call(kind, request=2) for kind in (CallKind.COMM_SPLIT, CallKind.COMM_DUP))
    ranks = (made_rank(rank, 2, (split, dup), half) for rank, half in enumerate(halves))
    (one, _) = schedule_from_trace(Trace(tuple(ranks))).programs
    told = [(op.collective, op.message_bytes) for op in one.ops]
    assert told == [(Collective.ALLGATHER, 8), (Collective.NEW_COMMUNICATOR, 0), (Collective.NEW_COMMUNICATOR, 0)]
    assert one.steps == tuple(map(DoCall, range(3)))


@pytest.mark.parametrize("mpi", MPIS)
def test_an_empty_part_of_a_vector_collective_is_no_message(mpi: str) -> None:
    """It was one: 64 ranks of which each gives its neighbours something sent 63 messages each."""
    nothing = (0, 0, 0, 0)
    # Ranks 0 and 1 exchange, rank 2 gives rank 0 something, rank 3 nobody.
    sent = ((0, 8, 0, 0), (8, 0, 0, 0), (8, 0, 0, 0), nothing)
    taken = tuple(zip(*sent, strict=True))
    found = [sorted(expanded(mpi, Collective.ALLTOALL, rank, 2, sent[rank], taken[rank])) for rank in range(4)]
    assert found == [[-3, -2, 2], [-1, 1], [1], []]
    # To and from rank 0; the others know their own part alone, as in a trace.
    assert expanded(mpi, Collective.GATHER, 0, 6, (), (8, 0, 8, 8)) == [-3, -4]
    assert expanded(mpi, Collective.SCATTER, 0, 6, (8, 0, 8, 8)) == [3, 4]
    for of in (Collective.GATHER, Collective.SCATTER):
        rounds = [_sim.expand_collective(MPIS.index(mpi), int(of), 4, 1, 0, size, vector=True) for size in (0, 8)]
        assert [len(one) for one in rounds] == [0, 1], of
    for of in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
        assert expanded(mpi, of, 1, 0, (), nothing) == []
        assert expanded(mpi, of, 1, 0, (), (0, 0, 0, 1)) != []


@pytest.mark.parametrize("mpi", MPIS)
def test_nobody_waits_for_a_late_rank_that_has_nothing_to_give(mpi: MpiName) -> None:
    machine = replace(MACHINE, collectives=mpi)
    lists = ((0, 8, 8, 0), (8, 0, 8, 0), (8, 8, 0, 0), (0, 0, 0, 0))
    late = (Distribution((0.0,), (US * 1000,)),)
    marks = Op(OpKind.MARK, tag=1)

    def one(rank: int) -> Program:
        op = Op(OpKind.COLLECTIVE, collective=Collective.ALLTOALL, vector=True, sizes=rank, recv_sizes=rank)
        steps: tuple[Step, ...] = (DoCall(0), DoCall(1))
        own = Program(steps, (op, marks), (Comm(0, size=4),), gaps=(0,), size_lists=lists)
        return replace(own, steps=(DoGap(0), *steps)) if rank == 3 else own

    schedule = Schedule(4, tuple(map(one, range(4))), late)
    found = simulate_launches([schedule], [machine], Placement.block(4, 1), threads=1, keep_marks=True)
    ended_ps = {rank: ps for rank, _, ps in found.marks[0].tolist()}
    assert found.messages == 6
    assert max(ended_ps[rank] for rank in range(3)) < 10 * US < ended_ps[3] == 1000 * US


@pytest.mark.parametrize(
    ("mpi", "warned"), [("openmpi 4.0.7", True), ("openmpi 4.1.4", False), ("openmpi 5.0.11", False)]
)
def test_the_other_rules_of_an_older_open_mpi_are_reported(mpi: str, warned: bool) -> None:
    named = NamedMachine("vf", "as-found", "polling", MACHINE, mpi=mpi)
    barrier = Program((DoCall(0),), (Op(OpKind.COLLECTIVE),), (Comm(0, size=2),))
    schedule = Schedule(2, (barrier, barrier))
    doubts = [doubt.said for doubt in find_doubts([schedule], named, Placement.block(2, 1))]
    assert any(f"{mpi} chooses algorithms for collectives by older rules" in one for one in doubts) is warned
    assert not any("by older rules" in one.said for one in find_doubts([ping()], named, Placement.block(2, 1)))


def sources_at_the_end(library: int, collective: Collective, ranks: int, root: int, size: int) -> list[set[int]]:
    """Return for each rank the ranks whose data can have reached it over the messages of all rounds."""
    left = [deque(_sim.expand_collective(library, int(collective), ranks, rank, root, size)) for rank in range(ranks)]
    known = [{rank} for rank in range(ranks)]
    waited: list[list[int]] = [[] for _ in range(ranks)]
    may_continue = [True] * ranks
    on_the_way: defaultdict[tuple[int, int], deque[set[int]]] = defaultdict(deque)
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            for source in list(waited[rank]):
                if on_the_way[source, rank]:
                    known[rank] |= on_the_way[source, rank].popleft()
                    waited[rank].remove(source)
                    moved = True
            if left[rank] and (may_continue[rank] or not waited[rank]):
                to, _, source, may_continue[rank] = left[rank].popleft()
                waited[rank] += [source] if source >= 0 else []
                if to >= 0:
                    on_the_way[rank, to].append(set(known[rank]))
                moved = True
    assert not any((*left, *waited, *on_the_way.values()))
    return known


@pytest.mark.parametrize("library", range(len(MPIS)))
@pytest.mark.parametrize("collective", [one for one in Collective if not one.name.startswith("NEIGHBOR")])
def test_a_collective_delivers_the_data_it_is_for(collective: Collective, library: int) -> None:
    to_root, from_root = {Collective.REDUCE, Collective.GATHER}, {Collective.BCAST, Collective.SCATTER}
    for ranks, size in product((1, 2, 3, 4, 5, 7, 8, 9, 16, 33), (1, 100, 3000, 70_000, 3_000_000)):
        for root in {0, ranks - 1, ranks // 2} if collective in to_root | from_root else {0}:
            known = sources_at_the_end(library, collective, ranks, root, size)
            if collective in to_root:
                assert known[root] == set(range(ranks))
            elif collective in from_root:
                assert all(root in one for one in known)
            else:
                of_lower = collective in {Collective.SCAN, Collective.EXSCAN}
                assert all(set(range(rank if of_lower else ranks)) <= one for rank, one in enumerate(known))
