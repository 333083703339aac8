"""Collectives take as long as the same messages sent by the program itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nearmetal.predict import _sim
from nearmetal.predict.models import MPIS, Distribution, Machine, MpiName
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Schedule
from nearmetal.predict.simulate import simulate_launches
from nearmetal.predict.trace import DoCall, DoGap, Step

from .simulated import MACHINE, NS, US, path, program, recv, run_ns, send

NEAR = replace(MACHINE, inter=path(latency=50))
SIZES = (1, 10, 5000, 300_000, 1 << 20)


def collective(of: Collective, ranks: int, size: int, *, root: int = 0, computes_ns: int | None = None) -> Schedule:
    """Return a blocking collective, or a non-blocking one with this much computing before its wait."""
    op = Op(OpKind.COLLECTIVE, collective=of, peer=root, message_bytes=size, nonblocking=computes_ns is not None)
    if computes_ns is None:
        return Schedule(ranks, (program([op], ranks=ranks),) * ranks)
    steps: list[Step] = [DoCall(0), DoGap(0), DoCall(1)]
    ops = [op, Op(OpKind.WAIT, slots=0)]
    one = program(ops, steps, ranks=ranks, gaps=(0,), slot_sets=((0,),), slots=1)
    return Schedule(ranks, (one,) * ranks, (Distribution((0.0,), (computes_ns * NS,)),))


def by_hand(
    mpi: MpiName,
    of: Collective,
    ranks: int,
    size: int,
    *,
    root: int = 0,
    computes_ns: int = 0,
    nonblocking: bool = False,
    nodes: Sequence[int] = (),
) -> Schedule:
    """Return the same messages as MPI_Irecv, MPI_Isend and MPI_Waitall; computing goes before the first wait."""
    programs = []
    for rank in range(ranks):
        ops: list[Op] = []
        sets: list[tuple[int, ...]] = []
        pending: list[int] = []
        rounds = _sim.expand_collective(
            MPIS.index(mpi), int(of), ranks, rank, root, size, nonblocking=nonblocking, nodes=nodes
        )
        slots = 0
        for number, (to, send_bytes, source, is_open) in enumerate(rounds):
            posted = [recv(source, 0, nonblocking=True, slot=slots)] if source >= 0 else []
            posted += [send(to, send_bytes, nonblocking=True, slot=slots + len(posted))] if to >= 0 else []
            pending += range(slots, slots + len(posted))
            slots += len(posted)
            ops += posted
            if not is_open or number == len(rounds) - 1:
                ops.append(Op(OpKind.WAIT, slots=len(sets)))
                sets.append(tuple(pending))
                pending = []
        first = next(at for at, op in enumerate(ops) if op.kind is OpKind.WAIT)
        steps: list[Step] = [DoCall(at) for at in range(len(ops))]
        steps[first:first] = [DoGap(0)] * (computes_ns > 0)
        gaps = (0,) * (computes_ns > 0)
        programs.append(program(ops, steps, ranks=ranks, slot_sets=tuple(sets), slots=slots, gaps=gaps))
    table = (Distribution((0.0,), (computes_ns * NS,)),) * (computes_ns > 0)
    return Schedule(ranks, tuple(programs), table)


def test_a_linear_alltoall_sends_everything_before_handling_arrivals() -> None:
    # Sends leave at 100, 200 and 300 ns and arrive 60 ns later; two have arrived by 300, the last arrives at 360.
    assert run_ns(collective(Collective.ALLTOALL, 4, 10), NEAR) == 300 + 3 * 200


@pytest.mark.parametrize(
    ("of", "sends", "receives"),
    [(Collective.ALLTOALL, 2, 2), (Collective.SCATTER, 0, 1), (Collective.BCAST, 0, 1), (Collective.GATHER, 0, 2)],
)
def test_a_nonblocking_collective_sends_what_it_can_before_its_process_computes(
    of: Collective, sends: int, receives: int
) -> None:
    # All messages have arrived when the 50 us of computing end. Ranks that only send finish before the others.
    found = run_ns(collective(of, 3, 1000, computes_ns=50_000))
    assert found == sends * 100 + 50_000 + receives * 200


def test_arrivals_while_a_process_computed_are_handled_while_it_waits_for_the_rest() -> None:
    early = collective(Collective.ALLTOALL, 4, 10, computes_ns=50_000)
    late = replace(early, gaps=(*early.gaps, Distribution((0.0,), (60 * US,))))
    first = replace(late.programs[0], gaps=(1,), steps=(DoGap(0), *(DoCall(i) for i in range(2))))
    schedule = replace(late, programs=(first, *late.programs[1:]))
    # Rank 0 computes 60 us first: its last message leaves at 60.3 us and takes 1010 and o_r.
    assert run_ns(schedule) == 60_300 + 1010 + 200


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 13])
@pytest.mark.parametrize("of", list(Collective)[: Collective.NEIGHBOR_ALLGATHER])
def test_a_collective_takes_as_long_as_its_messages(of: Collective, ranks: int, mpi: MpiName) -> None:
    machines: list[Machine] = [
        replace(NEAR, inter=path(latency, o_s, o_r, gap, bytes_fs), collectives=mpi)
        for latency, o_s, o_r, gap, bytes_fs in (
            (10, 3000, 200, 50, 0),
            (10, 100, 2000, 0, 80_000),
            (9000, 100, 200, 5000, 1_000_000),
        )
    ]
    if of in {Collective.SCATTER, Collective.GATHER}:  # in others a rank has requests and grants in two orders
        machines += [replace(one, inter=replace(one.inter, eager_up_to_bytes=64)) for one in machines]
    for size in SIZES:
        for machine in machines:
            root = ranks - 1
            same = run_ns(by_hand(mpi, of, ranks, size, root=root), machine)
            assert run_ns(collective(of, ranks, size, root=root), machine) == same
            same = run_ns(by_hand(mpi, of, ranks, size, root=root, nonblocking=True), machine)
            assert run_ns(collective(of, ranks, size, root=root, computes_ns=0), machine) == same


DIVIDED = (
    *(Collective.BARRIER, Collective.BCAST, Collective.REDUCE, Collective.ALLREDUCE),
    *(Collective.GATHER, Collective.SCATTER, Collective.ALLGATHER, Collective.SCAN),
)


@pytest.mark.parametrize(("ranks", "of_node"), [(4, 2), (8, 4), (10, 2), (6, 2), (5, 2), (7, 3)])
@pytest.mark.parametrize("of", DIVIDED)
@pytest.mark.parametrize("mpi", MPIS)
def test_a_divided_collective_takes_as_long_as_its_messages(
    mpi: MpiName, of: Collective, ranks: int, of_node: int
) -> None:
    nodes = [rank // of_node for rank in range(ranks)]
    eager = replace(NEAR, by_nodes=True, collectives=mpi)
    waiting = replace(eager, inter=replace(eager.inter, eager_up_to_bytes=4096))
    for size in (*SIZES, 200_000):
        for root in (0, ranks - 1):
            by_messages = by_hand(mpi, of, ranks, size, root=root, nodes=nodes)
            assert run_ns(collective(of, ranks, size, root=root), eager, of_node) == run_ns(by_messages, eager, of_node)
            assert run_ns(collective(of, ranks, size, root=root), waiting, of_node) > 0  # it ends
            later = by_hand(mpi, of, ranks, size, root=root, nonblocking=True, nodes=nodes)
            at_once = collective(of, ranks, size, root=root, computes_ns=0)
            assert run_ns(at_once, eager, of_node) == run_ns(later, eager, of_node)


@pytest.mark.parametrize(("by_nodes", "between_nodes"), [(False, 4), (True, 2)])
def test_an_allreduce_that_is_divided_crosses_once_in_each_direction(by_nodes: bool, between_nodes: int) -> None:
    schedule, placement = collective(Collective.ALLREDUCE, 4, 8), Placement.block(4, 2)
    found = simulate_launches([schedule], [replace(NEAR, by_nodes=by_nodes)], placement)
    assert found.inter_messages == between_nodes


def test_only_what_is_among_several_nodes_and_several_ranks_of_one_is_divided() -> None:
    for nodes in ([0, 0, 0, 0], [0, 1, 2, 3]):
        for of in DIVIDED:
            for rank in range(4):
                for mpi, name in enumerate(MPIS):
                    if (name, of) == ("openmpi", Collective.ALLGATHER) and len(set(nodes)) > 1:
                        continue  # it looks each time
                    sent = _sim.expand_collective(mpi, int(of), 4, rank, 0, 5000, nodes=nodes)
                    assert sent == _sim.expand_collective(mpi, int(of), 4, rank, 0, 5000)


@pytest.mark.parametrize("ranks", [3, 4, 7, 13])
def test_a_linear_alltoall_overlaps_with_computing_like_its_messages(ranks: int) -> None:
    for computes_ns in (200, 5000, 60_000):
        for size in (1, 10, 5000):
            machine = replace(NEAR, collectives="mpich")
            same = run_ns(by_hand("mpich", Collective.ALLTOALL, ranks, size, computes_ns=computes_ns), machine)
            if ranks < 8 or size > 256:  # otherwise Bruck's, whose later rounds wait for earlier ones
                assert run_ns(collective(Collective.ALLTOALL, ranks, size, computes_ns=computes_ns), machine) == same


def test_one_rank_that_is_its_own_neighbour_sends_to_itself() -> None:
    """A periodic grid of one rank sent nothing, where one of several ranks sends along a dimension of extent 1."""
    ring = Comm(0, size=1, dims=(1,), periods=(1,))
    halo = Op(OpKind.COLLECTIVE, collective=Collective.NEIGHBOR_ALLTOALL, message_bytes=10)
    one = Schedule(1, (replace(program([halo], ranks=1), comms=(ring,)),))
    itself = [recv(0, 0, nonblocking=True, slot=slot) for slot in range(2)]
    itself += [send(0, 10, nonblocking=True, slot=slot) for slot in (2, 3)]
    alone = program([*itself, Op(OpKind.WAIT, slots=0)], ranks=1, slot_sets=((0, 1, 2, 3),), slots=4)
    assert run_ns(one) == run_ns(Schedule(1, (alone,))) > 0
    assert run_ns(Schedule(1, (replace(one.programs[0], comms=(replace(ring, periods=(0,)),)),))) == 0
