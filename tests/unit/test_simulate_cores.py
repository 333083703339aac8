"""Ranks that share processors: what each gets, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearmetal.predict.models import Cores, Distribution, Machine, PathModel
from nearmetal.predict.native import Placement
from nearmetal.predict.patterns import Pattern, schedule_from_pattern
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.simulate import simulate, simulate_launches
from nearmetal.predict.trace import DoCall, DoGap, Repeat

from .simulated import MACHINE, US, computing, path, program, recv, run_ns, send


def shared(cores: int, **rest: float) -> Machine:
    given = Cores(cores, one_computer=True, slice_ps=4000 * US, switch_ps=2 * US)
    return replace(MACHINE, cores=replace(given, **rest))  # type: ignore[arg-type]


def test_ranks_that_share_a_core_take_turns() -> None:
    # 10 ms each in slices of 4 ms: 4 4 4 4 2 2, with five switches in between.
    assert run_ns(computing(10, 10), shared(1)) == 20_000_000 + 5 * 2000
    assert run_ns(computing(10, 10), shared(2)) == 10_000_000
    assert run_ns(computing(10, 10), replace(shared(1), cores=Cores(1))) == 10_000_000  # a computer each
    assert run_ns(computing(3, 3, 3, 3), shared(2)) == 6_000_000 + 2000


def test_a_waiting_rank_yields_its_core_and_returns_at_the_end_of_a_slice() -> None:
    ring = (Op(OpKind.COLLECTIVE, collective=Collective.BARRIER),)
    # Rank 0 waits at 1 ms; rank 1 computes from 1 ms + 2 us for 10 ms; the barrier's messages follow.
    found = run_ns(computing(1, 10, ops=ring), shared(1))
    assert 11_000_000 < found < 11_000_000 + 20_000
    # A message that arrives while the other rank computes is seen at the end of its slice.
    receiver = program([recv(0)], ranks=3)
    hog = Program((DoGap(0),), (), (Comm(0, size=3),), (0,))
    sender = Program((DoGap(0), DoCall(0)), (send(1),), (Comm(0, size=3),), (1,))
    gaps = (Distribution((0.0,), (10_000 * US,)), Distribution((0.0,), (1000 * US,)))
    schedule = Schedule(3, (sender, receiver, hog), gaps)
    alone = simulate(schedule, shared(3), Placement.block(3, 1))
    assert int(alone.makespan_ns[0]) == 10_000_000
    crowded = simulate(schedule, shared(1), Placement.block(3, 1), replicas=8)
    assert 11_000_000 <= crowded.makespan_ns.min() <= crowded.makespan_ns.max() < 11_000_000 + 50_000


def test_a_polling_node_uses_up_its_share_of_a_core() -> None:
    """Rank 0 computes for 10 ms, rank 1 waits for it: on one core it takes twice as long, unless yielding lets rank 0
    run.
    """
    sender = Program((DoGap(0), DoCall(0)), (send(1),), (Comm(0, size=2),), (0,))
    schedule = Schedule(2, (sender, program([recv(0)])), (Distribution((0.0,), (10_000 * US,)),))
    by_node = shared(1, shared_by_node=True)
    assert run_ns(schedule, by_node, per_host=1) == pytest.approx(20_000_000, rel=1e-3)
    assert run_ns(schedule, by_node, per_host=2) == pytest.approx(10_000_000, rel=1e-3)
    assert run_ns(schedule, shared(1), per_host=1) == pytest.approx(10_000_000, rel=1e-3)


def test_a_polling_guest_uses_up_its_share_of_its_host() -> None:
    """All guests counted as one: a guest that polled for a message yielded its host's only processor to the sender."""
    sender = Program((DoGap(0), DoCall(0)), (send(1),), (Comm(0, size=2),), (0,))
    schedule = Schedule(2, (sender, program([recv(0)])), (Distribution((0.0,), (10_000 * US,)),))
    host = replace(MACHINE, cores=Cores(1, shared_by_node=True))

    def took_ns(guests: int) -> int:
        return int(simulate(schedule, host, Placement.block(2, 2, guests)).makespan_ns[0])

    assert took_ns(2) == pytest.approx(20_000_000, rel=1e-3)
    assert took_ns(1) == pytest.approx(10_000_000, rel=1e-3)
    uneven = replace(host, cores=Cores(2, shared_by_node=True))  # a guest of one rank, and one of two
    placement = Placement(np.zeros(3, np.uint32), np.array([0, 1, 1], np.uint32))
    assert int(simulate(computing(10, 10, 10), uneven, placement).makespan_ns[0]) == 20_000_000


def test_the_lead_of_one_of_two_ranks_is_used_up_by_the_others_polling() -> None:
    """Rank 0 computes for 10 ms in slices of 4 ms, rank 1 waits for it: it polls for 3 ms, then for 4 ms."""
    sender = Program((DoGap(0), DoCall(0)), (send(1),), (Comm(0, size=2),), (0,))
    schedule = Schedule(2, (sender, program([recv(0)])), (Distribution((0.0,), (10_000 * US,)),))
    assert run_ns(schedule, shared(1, lead_ps=1000 * US), per_host=2) == pytest.approx(17_000_000, rel=1e-3)
    assert run_ns(schedule, shared(1, lead_ps=10_000 * US), per_host=2) == pytest.approx(10_000_000, rel=1e-3)
    assert run_ns(schedule, shared(2, lead_ps=0), per_host=2) == pytest.approx(10_000_000, rel=1e-3)
    # The rule applies to two ranks: three are unaffected.
    assert run_ns(computing(10, 10, 10), shared(1, lead_ps=0)) == run_ns(computing(10, 10, 10), shared(1))


@pytest.mark.parametrize(("before_ms", "end_ms"), [(0, 67), (3, 68)])
@pytest.mark.parametrize("hog", [0, 1])
@pytest.mark.parametrize("both", [False, True])
def test_two_ranks_that_both_wait_poll_in_turn(hog: int, before_ms: int, end_ms: int, both: bool) -> None:
    """They poll until a third rank sends at 50 ms, to one or to both; then one computes for 10 ms while the other's
    polling takes 3 and 4 ms.

    Of the 3 ms that it had computed before, 1 ms is left then, which polling uses up, too.
    """
    cores = Cores(1, slice_ps=4000 * US, switch_ps=2 * US, lead_ps=1000 * US)
    comms = (Comm(0, size=3),)
    computes = Program((DoGap(1), DoCall(0), DoGap(0), DoCall(1)), (recv(2), send(1 - hog)), comms, (1, 2))
    waits = program([*[recv(2)] * both, recv(hog)], ranks=3)
    messages = [send(hog), *[send(1 - hog)] * both]
    third = Program((DoGap(0), *map(DoCall, range(len(messages)))), tuple(messages), comms, (0,))
    gaps = tuple(Distribution((0.0,), (ms * 1000 * US,)) for ms in (50, 10, before_ms))
    schedule = Schedule(3, (*((computes, waits) if hog == 0 else (waits, computes)), third), gaps)
    placement = Placement.of_hosts(np.array([0, 0, 1], np.uint32))
    found = simulate(schedule, replace(MACHINE, cores=cores), placement)
    assert int(found.makespan_ns[0]) == pytest.approx(end_ms * 1_000_000, rel=3e-3)


def test_a_rank_that_polls_because_it_is_behind_sees_a_message_at_once() -> None:
    """Beside a rank that computes for 20 ms it polls from 4 to 7 ms; a message at 5 ms was once seen only at 8 ms."""
    hog = Program((DoGap(0),), (), (Comm(0, size=3),), (0,))
    answers = program([recv(2), send(2)], ranks=3)
    ops = (send(1), recv(1), Op(OpKind.MARK, tag=7))
    asks = Program((DoGap(0), *map(DoCall, range(3))), ops, (Comm(0, size=3),), (1,))
    gaps = tuple(Distribution((0.0,), (ms * 1000 * US,)) for ms in (20, 5))
    schedule = Schedule(3, (hog, answers, asks), gaps)

    def answered_us(lead_ps: int | None) -> float:
        cores = Cores(1, slice_ps=4000 * US, switch_ps=2 * US, lead_ps=lead_ps)
        placement = Placement.of_hosts(np.array([0, 0, 1], np.uint32))
        found = simulate_launches([schedule], [replace(MACHINE, cores=cores)], placement, keep_marks=True)
        return float(found.marks[0][0, 2]) / US

    assert answered_us(1000 * US) == pytest.approx(5000, abs=20)
    assert answered_us(None) == pytest.approx(8000, abs=20)


@pytest.mark.parametrize("by_node", [False, True])
def test_ranks_are_balanced_over_cores(by_node: bool) -> None:
    """Three equal ranks on two cores take 1.5 times as long as one, not twice as long, as on fixed cores."""
    quick = shared(2, slice_ps=1000 * US, switch_ps=0, shared_by_node=by_node)
    assert run_ns(computing(10, 10, 10), quick) == 15_000_000
    assert run_ns(computing(10, 10, 10, 10), quick) == 20_000_000
    assert run_ns(computing(10, 10, 10, 10, 10), quick) == pytest.approx(25_000_000, rel=1e-9)
    usual = shared(2, shared_by_node=by_node)  # slices of 4 ms: the last rank may run alone for one
    assert 150_000_000 <= run_ns(computing(100, 100, 100), usual) <= 154_200_000


@pytest.mark.parametrize(("ranks", "cores"), [(3, 2), (4, 3), (5, 3), (5, 4), (9, 8)])
def test_ranks_whose_slices_end_together_all_wait_in_turn(ranks: int, cores: int) -> None:
    """Two ranks alternated on one core and the others never waited: five on four took 152 ms instead of 125."""
    found = run_ns(computing(*[100] * ranks), shared(cores))
    assert found / 1e6 <= 100 * ranks / cores + 4.2  # a slice, and the time of the switches


def test_ranks_take_longer_while_one_core_has_a_rank_too_many() -> None:
    """Four namespaces on two cores: 5 ms become 10 where two share one, 15 where three do, and more for weaker ones."""

    def took_ns(share: float) -> list[int]:
        machine = shared(2, slice_ps=1000 * US, switch_ps=0, shared_by_node=True, uneven_share=share)
        return simulate(computing(5, 5, 5, 5), machine, Placement.block(4, 1), replicas=400).makespan_ns.tolist()

    assert set(took_ns(0.0)) == {10_000_000}
    crowded = took_ns(1.0)
    assert set(crowded) == {15_000_000, 25_000_000, 35_000_000}
    assert crowded.count(15_000_000) / 400 == pytest.approx(0.8**3 + 0.2**3, abs=0.07), "equal weights"
    mixed = took_ns(0.45)
    even = {10_000_000, 20_000_000}
    assert set(mixed) == {*even, *crowded}
    assert sum(time in even for time in mixed) / 400 == pytest.approx(0.55, abs=0.07)


def test_load_that_starting_left_counts_for_a_twentieth_of_a_second() -> None:
    machine = shared(2, slice_ps=1000 * US, switch_ps=0, shared_by_node=True, uneven_share=1e-9)
    found = simulate(computing(*[100] * 4), machine, Placement.block(4, 1), replicas=100).makespan_ns
    assert set((found / 1e6).round(1).tolist()) == {200.0, 225.0}, "a quarter of a core for 50 ms, then a half"


def test_the_rank_that_is_left_alone_has_its_core_to_itself() -> None:
    machine = shared(2, slice_ps=1000 * US, switch_ps=0, shared_by_node=True, uneven_share=1.0)
    schedule = computing(5, 5, 5, 5, ops=(Op(OpKind.MARK, tag=1),))
    found = simulate_launches([schedule], [machine], Placement.block(4, 1), replicas=50, keep_marks=True)
    for marks in found.marks:
        alone, *three = sorted(marks[:, 2] // 10**9)
        assert alone == 5
        assert max(three) in {15, 25, 35}
    assert len({int(marks[np.argmin(marks[:, 2]), 0]) for marks in found.marks}) == 4, "any rank can be the one"


def test_what_starting_left_on_a_core_weighs_against_a_domain_elsewhere() -> None:
    """Two ranks of 10 ms on each of two cores and nodes: any two on a core had half of it, from the start."""

    def took_ms(share: float) -> list[set[float]]:
        cores = shared(2, slice_ps=1000 * US, switch_ps=0, one_computer=True, shared_by_node=True, uneven_share=share)
        schedule = computing(10, 10, 10, 10, ops=(Op(OpKind.MARK, tag=1),))
        placement = Placement.of_hosts(np.array([0, 0, 1, 1], np.uint32))
        found = simulate_launches([schedule], [cores], placement, replicas=400, keep_marks=True)
        return [{round(int(time) / 1e9, 1) for time in marks[:, 2]} for marks in found.marks]

    seldom = took_ms(1e-9)
    # A node that left two ranks' load on a core has 3/4 of its weight there and 1/4 on the other; else a half on each.
    one, both, none = {16.7, 25.0, 15.0, 30.0}, {13.3, 40.0}, {19.0, 20.0}
    assert {time for times in seldom for time in times} == one | both | none
    apart = [times for times in seldom if times & {30.0, 40.0}]
    assert len(apart) / 400 == pytest.approx(2 / 3 * (1 - 0.6**2 - 0.4**2 / 2), abs=0.07), "where nodes share cores"
    crowded = took_ms(1.0)
    single = {max(times) for times in crowded}
    assert {30.0, 35.0, 50.0} <= single, "a rank has a half, three quarters or a quarter of a pair's weight"
    assert {10.0, 30.0} in crowded, "where it has a half each of the three has a third"


def test_the_division_of_ranks_changes_within_a_launch() -> None:
    """It lasted to the end of a launch: 69 % of launches took 20 ms of 10, whatever their length, 31 % took 30."""
    machine = shared(2, slice_ps=1000 * US, switch_ps=0, shared_by_node=True, uneven_share=0.9)  # later 0.3
    long = computing(*[4000] * 4)
    apart = simulate(long, machine, Placement.block(4, 1), replicas=20).makespan_ns / 8e9
    assert (apart > 1).all(), "no rank gains all the time"
    assert np.median(apart) == pytest.approx(1.04, abs=0.03), "in the end each has had its share"
    ends = simulate_launches(
        [computing(*[150] * 4, ops=(Op(OpKind.MARK, tag=1),))],
        [replace(machine, cores=replace(machine.cores, uneven_share=1.0))],
        Placement.block(4, 1),
        replicas=200,
        keep_marks=True,
    )
    undivided = sum(int(marks[:, 2].min()) == 150 * 10**9 for marks in ends.marks)
    assert undivided / 200 == pytest.approx(1 / 3 / 4, abs=0.06), "alone for 0.1 s, and then only by chance again"
    steps = (Repeat(800, (DoGap(0), DoCall(0))),)
    barrier = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
    together = computing(5, 5, 5, 5, ops=(barrier,), steps=steps)
    took = simulate(together, machine, Placement.block(4, 1), replicas=20).makespan_ns / 8e9
    assert np.median(took) == pytest.approx(1 / (0.69 + 0.31 * 2 / 3), abs=0.04), "the slowest is waited for"


def test_where_the_kernel_carries_messages_their_way_takes_longer_on_a_shared_core() -> None:
    """Only overheads did: programs that send much took up to twice as long as predicted."""

    def took_ns(messages: int, *, work: bool, receiver: bool = True, inter: PathModel = MACHINE.inter) -> int:
        cores = shared(2, switch_ps=0, one_computer=True, shared_by_node=True, way_is_work=work)
        idle = program([], ranks=4)
        sends = program([*[send(1)] * messages, Op(OpKind.MARK)], ranks=4)
        receives = program([*[recv(0)] * messages, Op(OpKind.MARK)], ranks=4)
        schedule = Schedule(4, (sends, receives, idle, idle))
        found = simulate_launches([schedule], [replace(cores, inter=inter)], Placement.block(4, 1), keep_marks=True)
        return int(next(time for rank, _, time in found.marks[0].tolist() if rank == receiver)) // 1000

    # 1,000 B: overheads of 100 and 200 ns, a way of 1,000 ns and 1 ns/B, messages 50 ns and 1 ns/B apart.
    assert took_ns(1, work=False) == 2 * 300 + 2000
    assert took_ns(1, work=True) == 2 * (300 + 2000)
    assert took_ns(5, work=False) - took_ns(1, work=False) == 4 * 1050
    assert took_ns(5, work=True) - took_ns(1, work=True) == 4 * 2 * 1050
    copied = replace(MACHINE.inter, copy_fs_per_byte=5_000_000)
    assert took_ns(5, work=False, inter=copied) - took_ns(1, work=False, inter=copied) == 4 * 5000
    assert took_ns(5, work=True, inter=copied) - took_ns(1, work=True, inter=copied) == 4 * 2 * 5000
    # A sender copies one message after the other, whoever receives them: 5 us each, and then the way of the third.
    to_each = Schedule(4, (program([send(1), send(2), send(3)], ranks=4), *[program([recv(0)], ranks=4)] * 3))
    for work, end_ns in ((False, 2 * 5000 + 200 + 2000 + 400), (True, 2 * 10_000 + 200 + 4000 + 400)):
        machine = shared(2, switch_ps=0, shared_by_node=True, way_is_work=work)
        assert run_ns(to_each, replace(machine, inter=copied)) == end_ns
    # Above the eager limit the sender is free when its bytes have left: request, grant, bytes.
    large = path(eager=100)
    for work, end_ns in ((False, 4000), (True, 7000)):
        assert took_ns(1, work=work, receiver=False, inter=large) == end_ns


def test_a_node_with_few_ranks_leaves_its_spare_share_to_the_others() -> None:
    """On 3 cores a node of one rank has one of its own; the four ranks of the other node share two."""
    machine = shared(3, shared_by_node=True)
    placement = Placement.of_hosts(np.array([0, 1, 1, 1, 1], np.uint32))
    found = simulate_launches([computing(10, 10, 10, 10, 10)], [machine], placement, keep_marks=True)
    assert int(found.makespan_ns[0]) == 20_000_000
    alone = simulate(computing(30, 10, 10, 10, 10), machine, placement)
    assert int(alone.makespan_ns[0]) == 30_000_000


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_shared_cores_change_the_times_but_not_the_messages(cores: int) -> None:
    pattern = Pattern(
        kind="halo", ranks=8, steps=20, message_bytes=4096, compute="3 ms", compute_spread=0.5, allreduce_bytes=8
    )
    schedule = schedule_from_pattern(pattern)
    for path_model in (MACHINE, Machine(intra=path(100, eager=1000), inter=path(eager=1000))):
        machine = replace(path_model, cores=shared(cores).cores)
        crowded = simulate_launches([schedule], [machine], Placement.block(8, 2), replicas=4, threads=1)
        free = simulate(schedule, path_model, Placement.block(8, 2), replicas=4)
        assert (crowded.messages, crowded.message_bytes) == (free.messages, free.message_bytes)
        assert (crowded.makespan_ns > free.makespan_ns).all()
        # No core does more than its share, and none of the work is lost.
        assert crowded.makespan_ns[0] * cores >= crowded.compute_ns
        again = simulate_launches([schedule], [machine], Placement.block(8, 2), replicas=4, threads=2)
        assert (again.makespan_ns == crowded.makespan_ns).all()
