"""Ranks that share processors: what each gets, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.models import Cores, Distribution, Machine, PathModel, Progress
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


def namespaces(cores: int = 2, **rest: float) -> Machine:
    given = {"slice_ps": 1000 * US, "switch_ps": 0, "lead_ps": 0} | rest
    return shared(cores, shared_by_node=True, **given)


def ends_ms(schedule: Schedule, machine: Machine, placement: Placement, replicas: int = 400) -> list[list[float]]:
    """Return when each rank marks its end, rank by rank, in every replica."""
    found = simulate_launches([schedule], [machine], placement, replicas=replicas, keep_marks=True)
    return [[round(int(time) / 1e9, 3) for _, _, time in sorted(marks.tolist())] for marks in found.marks]


def marked(*compute_ms: float) -> Schedule:
    return computing(*compute_ms, ops=(Op(OpKind.MARK, tag=1),))


def test_a_namespace_that_polls_gets_no_more_of_a_core_than_the_one_that_computes() -> None:
    """Rank 0 computes for 10 ms in slices of 4 ms; rank 1, which waits for it, polls for as long after each slice."""
    sender = Program((DoGap(0), DoCall(0)), (send(1),), (Comm(0, size=2),), (0,))
    schedule = Schedule(2, (sender, program([recv(0)])), (Distribution((0.0,), (10_000 * US,)),))
    assert run_ns(schedule, namespaces(1, slice_ps=4000 * US), per_host=1) == pytest.approx(18_000_000, rel=1e-3)
    assert run_ns(schedule, namespaces(1, slice_ps=4000 * US), per_host=2) == pytest.approx(10_000_000, rel=1e-3)


def test_namespaces_that_compute_in_turn_do_not_slow_each_other() -> None:
    """LU was predicted 41 % too slow: each had half of a core, though the other only waited."""
    rounds = 200
    steps = ((DoGap(0), DoCall(0), DoCall(1)), (DoCall(1), DoGap(0), DoCall(0)))
    programs = tuple(
        Program((Repeat(rounds, steps[me]),), (send(1 - me), recv(1 - me)), (Comm(0, size=2),), (0,)) for me in (0, 1)
    )
    schedule = Schedule(2, programs, (Distribution((0.0,), (20 * US,)),))
    alone_ns = run_ns(schedule, replace(MACHINE, cores=None), per_host=1)
    assert alone_ns >= rounds * 40_000
    assert run_ns(schedule, namespaces(1), per_host=1) == pytest.approx(alone_ns, rel=0.02)


def test_a_namespace_catches_up_before_the_other_continues() -> None:
    """Rank 0 has computed for 3 ms when rank 2's message comes at 5; rank 1, which only waits, polls for 3 ms first."""
    comms = (Comm(0, size=3),)
    computes = Program((DoGap(0), DoCall(0), DoGap(0), DoCall(1)), (recv(2), Op(OpKind.MARK)), comms, (0,))
    sends = Program((DoGap(0), DoCall(0), DoGap(1), DoCall(1)), (send(0), send(1)), comms, (1, 2))
    gaps = tuple(Distribution((0.0,), (ms * 1000 * US,)) for ms in (3, 5, 20))
    schedule = Schedule(3, (computes, program([recv(2)], ranks=3), sends), gaps)
    placement = Placement(np.array([0, 0, 1], np.uint32), np.array([0, 1, 2], np.uint32))
    machine = namespaces(1, one_computer=False, slice_ps=4000 * US)
    found = simulate_launches([schedule], [machine], placement, keep_marks=True)
    assert int(found.marks[0][0, 2]) / 1e9 == pytest.approx(9, abs=0.05), "from 3 to 6 ms rank 1 polls"


def test_a_namespace_that_has_polled_less_has_the_core_before_one_that_waits_again() -> None:
    """Both poll until a message comes at 1 ms. Rank 0 computes for 3 ms; the next one, of 5 ms, it sees at 7."""
    comms = (Comm(0, size=3),)
    ops = (recv(2), Op(OpKind.MARK))
    waits = Program((DoCall(0), DoGap(0), DoCall(0), DoCall(1)), ops, comms, (0,))
    steps = (DoGap(0), DoCall(0), DoGap(1), DoCall(0), DoGap(2), DoCall(1))
    sends = Program(steps, (send(0), send(1)), comms, (1, 2, 3))
    gaps = tuple(Distribution((0.0,), (ms * 1000 * US,)) for ms in (3, 1, 4, 20))
    schedule = Schedule(3, (waits, program([recv(2)], ranks=3), sends), gaps)
    placement = Placement(np.array([0, 0, 1], np.uint32), np.array([0, 1, 2], np.uint32))
    machine = namespaces(1, one_computer=False, slice_ps=4000 * US)
    found = simulate_launches([schedule], [machine], placement, keep_marks=True)
    assert int(found.marks[0][0, 2]) / 1e9 == pytest.approx(7, abs=0.05)


@pytest.mark.parametrize("wakes", [False, True])
def test_what_came_or_happened_while_a_rank_did_not_look_gives_it_no_lead(wakes: bool) -> None:
    """Polling: a message that came while it computed for 5 ms waits until the other has polled for 5. Blocking: a rank
    that slept for 5 ms then has every second slice, not the next five.
    """
    comms = (Comm(0, size=3),)
    computes = Program((DoGap(0), DoCall(0), DoCall(1)), (recv(2), Op(OpKind.MARK)), comms, (0,))
    waits = Program((DoCall(0), DoGap(0), DoCall(1)), (recv(2), Op(OpKind.MARK)), comms, (2,))
    sends = Program((DoGap(0), DoCall(0), DoGap(1), DoCall(1)), (send(0), send(1)), comms, (1, 1 if wakes else 2))
    gaps = tuple(
        Distribution((0.0,), (us * US,)) for us in (20_000 if wakes else 5000, 2500, 3000 if wakes else 40_000)
    )
    schedule = Schedule(3, (computes, waits, sends), gaps)
    placement = Placement(np.array([0, 0, 1], np.uint32), np.array([0, 1, 2], np.uint32))
    machine = namespaces(1, one_computer=False, look_ps=US, slice_ps=(1000 if wakes else 9000) * US)
    found = simulate_launches(
        [schedule], [replace(machine, progress=Progress(blocking=wakes))], placement, keep_marks=True
    )
    ends_ms = {int(rank): int(time) / 1e9 for rank, _, time in found.marks[0]}
    assert ends_ms[1 if wakes else 0] == pytest.approx(11 if wakes else 10, abs=1.1 if wakes else 0.1)


def test_a_rank_that_waits_keeps_its_core_until_what_it_sent_is_there() -> None:
    """1,000 B: 100 ns of its sender, then a way of 2 us, which the kernel works off on the sender's processor."""
    comms = (Comm(0, size=3),)
    sends = Program((DoCall(0), DoCall(1)), (send(2), recv(2)), comms, ())
    computes = Program((DoGap(0), DoCall(0)), (Op(OpKind.MARK),), comms, (0,))
    receives = Program((DoCall(0), DoGap(0), DoCall(1)), (recv(0), send(0)), comms, (1,))
    gaps = tuple(Distribution((0.0,), (us * US,)) for us in (500, 5000))
    schedule = Schedule(3, (sends, computes, receives), gaps)
    placement = Placement(np.array([0, 0, 1], np.uint32), np.array([0, 1, 2], np.uint32))

    def last_us(work: bool) -> float:
        machine = namespaces(1, one_computer=False, way_is_work=work)
        found = simulate_launches([schedule], [machine], placement, replicas=20, keep_marks=True)
        return max(int(marks[0, 2]) for marks in found.marks) / US

    assert last_us(work=True) - last_us(work=False) == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize(("outside", "to"), [(False, 0), (True, 0), (True, 1)])
def test_ranks_that_poll_in_turn_look_outside_their_node_seldom(outside: bool, to: int) -> None:
    """A message from outside waits for one of the looks, 24 us apart for each rank on the core; others do not."""
    comms = (Comm(0, size=4),)
    waits = program([recv(2), Op(OpKind.MARK), recv(3)], ranks=4)
    polls = program([recv(3)], ranks=4)
    sends = Program((DoGap(0), DoCall(0)), (send(to),), comms, (0,))
    ends = Program((DoGap(0), DoCall(0), DoCall(1)), (send(0), send(1)), comms, (1,))
    gaps = tuple(Distribution((0.0,), (us * US,)) for us in (500, 5000))
    schedule = Schedule(4, (*((waits, polls) if to == 0 else (polls, waits)), sends, ends), gaps)
    hosts, nodes = ([0, 0, 1, 2], [0, 1, 2, 3]) if outside else ([0, 0, 0, 1], [0, 1, 0, 2])
    placement = Placement(np.array(hosts, np.uint32), np.array(nodes, np.uint32))
    machine = namespaces(1, one_computer=False, look_ps=24 * US)
    found = simulate_launches([schedule], [machine], placement, replicas=400, keep_marks=True)
    seen_us = np.array([int(marks[0, 2]) for marks in found.marks]) / US
    if not outside:
        assert np.ptp(seen_us) == 0
        return
    assert 500 < seen_us.min() < seen_us.max() < 500 + 48 + 4
    assert seen_us.mean() == pytest.approx(500 + 24, abs=4)


def test_ranks_take_longer_while_one_core_has_a_rank_too_many() -> None:
    """Four namespaces on two cores: 5 ms become 10 where two share one, 15 where three do."""

    def took_ms(share: float) -> list[float]:
        machine = namespaces(uneven_share=share)
        return [max(ends) for ends in ends_ms(marked(5, 5, 5, 5), machine, Placement.block(4, 1))]

    assert set(took_ms(0.0)) == {10.0}
    assert set(took_ms(1.0)) == {15.0}
    mixed = took_ms(0.45)
    assert set(mixed) == {10.0, 15.0}
    assert mixed.count(10.0) / 400 == pytest.approx(0.55, abs=0.07)


def test_the_rank_that_is_left_alone_has_its_core_to_itself() -> None:
    found = ends_ms(marked(5, 5, 5, 5), namespaces(uneven_share=1.0), Placement.block(4, 1), replicas=50)
    assert {min(ends) for ends in found} == {5.0}
    assert {max(ends) for ends in found} == {15.0}
    assert len({int(np.argmin(ends)) for ends in found}) == 4, "any rank can be the one"


def test_ranks_of_a_node_often_share_a_core() -> None:
    """In 60 % of launches; by chance they would in a third."""
    placement = Placement.of_hosts(np.array([0, 0, 1, 1], np.uint32))
    found = ends_ms(marked(9, 9, 1, 1), namespaces(), placement, replicas=1000)
    together = sum(max(ends) == 18 for ends in found)
    assert together / 1000 == pytest.approx(0.4 + 0.6 / 3, abs=0.05)
    across = ends_ms(marked(9, 1, 9, 1), namespaces(), placement, replicas=1000)
    assert sum(max(ends) == 18 for ends in across) / 1000 == pytest.approx(0.6 / 3, abs=0.05)


@pytest.mark.parametrize("nodes", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_load_that_starting_left_elsewhere_takes_from_a_rank_for_a_tenth_of_a_second(nodes: list[int]) -> None:
    """What a node's other threads left on a core counts in its weight there: up to one rank's load."""
    placement = Placement.of_hosts(np.array(nodes, np.uint32))
    none = ends_ms(marked(45, 45, 45, 45), namespaces(), placement)
    assert min(min(ends) for ends in none) >= 88, "even shares"
    some = ends_ms(marked(45, 45, 45, 45), namespaces(uneven_share=1e-9), placement)
    assert {max(ends) for ends in some} == {90.0}, "no core is idle"
    # The first on a core ends when it has had 45 ms: its share is 45 / end.
    shares = np.array([45 / min(ends) for ends in some])
    ratios = shares / (1 - shares)
    assert 1.8 < ratios.max() <= 2.0 + 0.1
    assert 1.2 < np.quantile(ratios, 0.8) < 1.95
    long = ends_ms(marked(1000, 1000, 1000, 1000), namespaces(uneven_share=1e-9), placement, replicas=50)
    assert min(min(ends) for ends in long) >= 1900, "for 0.1 s only"


def test_two_nodes_start_side_by_side_so_each_has_more_of_another_core() -> None:
    """What a node has less of one core, it has more of the other: each of two that share both is ahead on one."""
    placement = Placement.of_hosts(np.array([0, 0, 1, 1], np.uint32))
    machine = namespaces(uneven_share=1e-9, slice_ps=10 * US)
    found = np.array(ends_ms(marked(20, 20, 20, 20), machine, placement, replicas=300))
    apart = found[[len({round(end) for end in ends[:2]}) == 2 for ends in found]]
    first = apart[:, :2].argmin(axis=1)  # the node's rank that has more of its core
    other = apart[:, 2:].argmin(axis=1)
    assert len(apart) > 60
    assert set(first) == {0, 1}
    ahead = [ends[mine] < 39 and ends[2 + its] < 39 for ends, mine, its in zip(apart, first, other, strict=True)]
    assert np.mean(ahead) > 0.9


def test_the_division_of_ranks_changes_within_a_launch() -> None:
    """It lasted to the end of a launch: 69 % of launches took 20 ms of 10, whatever their length, 31 % took 30."""
    machine = namespaces(uneven_share=0.9)  # later 0.3
    long = computing(*[4000] * 4)
    apart = simulate(long, machine, Placement.block(4, 1), replicas=20).makespan_ns / 8e9
    assert (apart >= 1).all(), "no rank gains all the time"
    assert np.median(apart) == pytest.approx(1.03, abs=0.03), "in the end each has had its share"
    always = ends_ms(marked(*[150] * 4), namespaces(uneven_share=1.0), Placement.block(4, 1), replicas=200)
    undivided = sum(min(ends) == 150 for ends in always)
    assert undivided / 200 == pytest.approx(1 / 3 / 4, abs=0.06), "alone for 0.1 s, and then only by chance again"
    steps = (Repeat(800, (DoGap(0), DoCall(0))),)
    barrier = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
    together = computing(5, 5, 5, 5, ops=(barrier,), steps=steps)
    took = simulate(together, machine, Placement.block(4, 1), replicas=20).makespan_ns / 8e9
    assert np.median(took) == pytest.approx(1 / (0.69 + 0.31 * 2 / 3), abs=0.04), "the slowest is waited for"


def test_uneven_shares_without_counting_what_was_used_are_refused() -> None:
    with pytest.raises(BadInputError, match="need `lead_ps`"):
        Cores(2, shared_by_node=True, uneven_share=0.1)


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


@pytest.mark.parametrize(
    ("cores", "size", "copy_fs", "work", "left_ns"),
    [
        (1, 1000, 200_000, True, 3900),
        (1, 1000, 200_000, False, 5900),
        (1, 3000, 200_000, True, 600),
        (1, 3000, 0, True, 6000 - 100 - 1000 - 3000),  # it is not known what copying takes
        (2, 1000, 200_000, True, 5900),
    ],
)
def test_a_receiver_does_what_the_sender_left_of_both_ends_work(
    cores: int, size: int, copy_fs: int, work: bool, left_ns: int
) -> None:
    """Streams both ways need 3 us of each end: on two processors some of that overlaps a wait, on one nothing does."""
    inter = replace(path(eager=2000), work_ps=((0, 3 * US),), copy_fs_per_byte=copy_fs)
    machine = replace(namespaces(cores, switch_ps=0, one_computer=True, way_is_work=work), inter=inter)
    sender = Program((DoCall(0), DoGap(0)), (send(1, size),), (Comm(0, size=2),), (0,))
    receiver = Program((DoGap(0), DoCall(0)), (recv(0, size),), (Comm(0, size=2),), (0,))
    schedule = Schedule(2, (sender, receiver), (Distribution((0.0,), (10 * US,)),))
    found = simulate_launches([schedule], [machine], Placement.block(2, 1))
    handshake_ns = 0 if size < 2000 else 100 + 2 * 200  # a request and a grant
    assert int(found.rank_overhead_ns * 2) == 100 + left_ns + handshake_ns


def test_a_receiver_that_waits_on_its_core_does_its_share_meanwhile() -> None:
    inter = replace(MACHINE.inter, work_ps=((0, 3 * US),))
    machine = replace(namespaces(2, switch_ps=0, one_computer=True, way_is_work=True), inter=inter)
    idle = program([], ranks=4)
    sender = Program((DoGap(0), DoCall(0)), (send(1),), (Comm(0, size=4),), (0,))
    schedule = Schedule(4, (sender, program([recv(0)], ranks=4), idle, idle), (Distribution((0.0,), (10 * US,)),))
    ends_ns = simulate_launches([schedule], [machine], Placement.block(4, 1), replicas=100).makespan_ns
    waited_ns = 10_000 + 100 + 2000 + 200
    assert ends_ns.min() == waited_ns
    assert 40 < sum(ends_ns == waited_ns) < 90, "where they share a core, it does not wait there"


def test_messages_inside_a_node_keep_nobody_from_a_core() -> None:
    computes = Program((DoGap(0), DoCall(0), DoCall(1)), (recv(0), send(0)), (Comm(0, size=2),), (0,))
    schedule = Schedule(2, (program([send(1), recv(1)]), computes), (Distribution((0.0,), (10 * US,)),))
    placement = Placement.block(2, 2)
    took_ns = [
        simulate_launches([schedule], [namespaces(1, way_is_work=work)], placement, replicas=20).makespan_ns.tolist()
        for work in (False, True)
    ]
    assert took_ns[0] == took_ns[1]


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


@pytest.mark.parametrize("seed", range(40))
def test_namespaces_that_share_cores_end_with_the_messages_of_free_ones(seed: int) -> None:
    """A rank that followed a new division was run twice, and one of its collectives waited for ever."""
    draw = np.random.default_rng(seed)
    ranks, per_node = int(draw.choice([4, 8, 12])), int(draw.choice([1, 2, 4]))
    pattern = Pattern(
        kind="halo",
        ranks=ranks,
        steps=20,
        message_bytes=int(draw.choice([8, 4096])),
        compute=str(draw.choice(["20 us", "3 ms", "20 ms"])),
        compute_spread=0.5,
        allreduce_bytes=8,
    )
    machine = Machine(intra=path(100, eager=1000), inter=path(eager=1000))
    cores = namespaces(
        int(draw.choice([1, 2, 4])),
        lead_ps=int(draw.choice([0, 1000 * US])),
        look_ps=int(draw.choice([0, 12 * US])),
        uneven_share=float(draw.choice([0.0, 0.4, 1.0])),
        way_is_work=bool(draw.integers(2)),
    ).cores
    schedule, placement = schedule_from_pattern(pattern), Placement.block(ranks, per_node)
    free = simulate(schedule, machine, placement, replicas=4)
    found = simulate(schedule, replace(machine, cores=cores), placement, replicas=4)
    assert (found.messages, found.message_bytes) == (free.messages, free.message_bytes)
    again = simulate_launches([schedule], [replace(machine, cores=cores)], placement, replicas=4, threads=2)
    assert (again.makespan_ns == found.makespan_ns).all()
