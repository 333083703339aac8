"""Placement: partitions, improvement by simulated time, the break-even share, and the launchers' files."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.doubts import find_doubts
from nearmetal.predict.launcher_files import WRITERS, cautions_of
from nearmetal.predict.models import (
    UNBOUNDED,
    Cores,
    Distribution,
    FitQuality,
    Machine,
    MeasuredCollective,
    NamedMachine,
    PathModel,
    Segment,
)
from nearmetal.predict.native import Placement
from nearmetal.predict.patterns import Pattern, schedule_from_pattern
from nearmetal.predict.place import (
    Judge,
    Slots,
    break_even,
    recommend,
    share_schedule,
)
from nearmetal.predict.schedule import Collective, Comm, Op, OpKind, Peer, Program, Schedule, exchange
from nearmetal.predict.schedule_from_trace import words_of
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.predict.traffic import messages_of, traffic

US, NS = 1_000_000, 1000


def path(latency_us: float, fs_per_byte: int = 100_000, overhead_ns: int = 300) -> PathModel:
    segment = Segment(
        UNBOUNDED, round(latency_us * US), overhead_ns * NS, overhead_ns * NS, 0, fs_per_byte, fs_per_byte
    )
    return PathModel((segment,))


MACHINE = Machine(intra=path(0.5), inter=path(20), port_fs_per_byte=100_000)


def hosts(count: int, slots: int) -> Slots:
    return Slots(tuple(f"n{i}" for i in range(count)), (slots,) * count)


def halo(ranks: int, dims: tuple[int, ...], **rest: object) -> Schedule:
    return schedule_from_pattern(
        Pattern(kind="halo", ranks=ranks, dims=dims, steps=3, message_bytes=8192, **rest)  # type: ignore[arg-type]
    )


def test_a_sample_of_ranks_gives_the_sizes_of_all() -> None:
    shared = halo(64, (4, 4, 4))
    traced = Schedule(64, (shared.programs[0],) * 64)
    for schedule in (shared, traced):
        whole, sample = messages_of(schedule, MACHINE), messages_of(schedule, MACHINE, max_ranks=16)
        assert np.unique(whole.source).size == 64
        assert np.unique(sample.source).tolist() == list(range(0, 64, 4))
        assert set(whole.message_bytes) == set(sample.message_bytes) == {8192}
        assert whole.count.sum() == 64 * 6 * 3


def test_traffic_counts_every_message_once() -> None:
    graph = traffic(messages_of(halo(8, (2, 2, 2)), MACHINE), 8)
    assert graph.sum() == 8 * 6 * 3 * (8192 + 4096)
    pattern = Pattern(kind="cg", ranks=16, steps=1, message_bytes=1000)
    cg = traffic(messages_of(schedule_from_pattern(pattern), MACHINE), 16)
    assert (cg != cg.T).nnz == 0
    assert cg[1, 4] > 0  # the transpose of a 4 x 4 grid


def test_the_traffic_of_a_collective_follows_its_algorithm() -> None:
    barrier = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
    schedule = Schedule(8, (Program((DoCall(0),), (barrier,), (Comm(0, size=8),)),))
    graph = traffic(messages_of(schedule, MACHINE), 8)
    assert graph.nnz == 8 * 3
    assert graph[0, 1] == graph[7, 6] == graph[5, 1] == 4096


def test_a_sample_covers_the_collectives_of_very_many_ranks() -> None:
    """Collectives of more than 1,024 ranks were not counted, so no doubt was reported about what they send."""
    ranks = 2048
    reduce = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    schedule = Schedule(ranks, (Program((DoCall(0),), (reduce,), (Comm(0, size=ranks),)),))
    sample = messages_of(schedule, MACHINE, max_ranks=512)
    assert (int(sample.count.sum()), set(sample.message_bytes)) == (512 * 11, {8})
    assert messages_of(schedule, MACHINE).count.size == 0  # in the graph to partition those edges would be nearly all


@pytest.mark.parametrize(
    ("ranks", "most", "sent"),
    [
        (1024, None, 1024 * 10),  # a barrier takes the logarithm of the ranks in rounds
        (1025, None, 0),
        (1025, 1, 11),
        (1 << 18, 1, 18),
        ((1 << 18) + 1, 1, 0),
    ],
)
def test_collectives_are_expanded_up_to_a_number_of_ranks(ranks: int, most: int | None, sent: int) -> None:
    barrier = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
    schedule = Schedule(ranks, (Program((DoCall(0),), (barrier,), (Comm(0, size=ranks),)),))
    assert int(messages_of(schedule, MACHINE, most).count.sum()) == sent


def test_a_sample_of_few_ranks_is_all_of_them() -> None:
    sends = Op(OpKind.SEND, rule=Peer.SHIFT, peer=1, message_bytes=8)
    schedule = Schedule(4, (Program((DoCall(0),), (sends,), (Comm(0, size=4),)),))
    for most in (None, 3, 4, 512):
        assert messages_of(schedule, MACHINE, most).source.tolist() == [0, 1, 2, 3]


def test_messages_to_oneself_tie_a_rank_to_nobody() -> None:
    own = Op(OpKind.SEND, rule=Peer.SHIFT, peer=0, message_bytes=8)
    graph = traffic(messages_of(Schedule(2, (Program((DoCall(0),), (own,), (Comm(0, size=2),)),)), MACHINE), 2)
    assert graph.nnz == 0


@pytest.mark.parametrize(("by_nodes", "share"), [(False, 4 / 8), (True, 2 / 6)])
def test_a_placement_is_told_with_the_messages_that_it_leads_to(by_nodes: bool, share: float) -> None:
    reduce = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    schedule = Schedule(4, (Program((DoCall(0),), (reduce,), (Comm(0, size=4),)),))
    judge = Judge((schedule,), (replace(MACHINE, by_nodes=by_nodes),), replicas=1)
    found = {one.method: one.inter_share for one in recommend(judge, hosts(2, 2), tries=0)}
    assert found["in-order"] == pytest.approx(share)


@pytest.mark.parametrize(("members", "known"), [((), True), ((*range(1, 16), 0), False)])
def test_the_grid_that_a_traced_program_made_is_cut_into_blocks(members: tuple[int, ...], known: bool) -> None:
    """Only --dims and patterns told the grid, although a trace has that of MPI_Cart_create."""
    comms = (Comm(0, size=16), Comm(1, size=16, dims=(16,), periods=(0,)))
    own = [members.index(rank) if members else 0 for rank in range(16)]
    grids = (Comm(2, members, rank, size=16, dims=(2, 8), periods=(0, 0)) for rank in own)
    barrier = Op(OpKind.COLLECTIVE, collective=Collective.BARRIER)
    programs = tuple(Program((DoCall(0),), (barrier,), (*comms, grid)) for grid in grids)
    judge = Judge((Schedule(16, programs),), (MACHINE,), replicas=1)
    found = {one.method: one.host_of.tolist() for one in recommend(judge, hosts(4, 4), tries=0)}
    assert found.get("geometric") == ([0, 0, 1, 1, 2, 2, 3, 3] * 2 if known else None)


def test_the_recommended_placement_is_the_fastest_found() -> None:
    found = recommend(Judge((halo(64, (4, 4, 4)),), (MACHINE,), replicas=1), hosts(4, 16), tries=3)
    methods = {candidate.method for candidate in found}
    assert {"in-order", "round-robin"} <= methods
    assert len({tuple(candidate.host_of.tolist()) for candidate in found}) == len(found)  # no placement is listed twice
    assert [c.median_ns for c in found] == sorted(c.median_ns for c in found)
    slowest = next(candidate for candidate in found if candidate.method == "round-robin")
    assert found[0].median_ns < slowest.median_ns
    assert np.bincount(found[0].host_of).tolist() == [16] * 4


def test_a_placement_is_sought_for_the_messages_of_all_launches() -> None:
    """It was that of the first launch alone, so no candidate kept together the ranks that talk in the others."""

    def launch(times: int, partner: int) -> Schedule:
        steps = (Repeat(times, (DoCall(0),)),)
        return Schedule(4, (Program(steps, (exchange(Peer.XOR, partner, 8192),), (Comm(0, size=4),)),))

    judge = Judge((launch(4, 1), launch(98, 3), launch(98, 3)), (MACHINE,), replicas=3)
    best = recommend(judge, hosts(2, 2), tries=0)[0]
    assert best.host_of.tolist() in ([0, 1, 1, 0], [1, 0, 0, 1])
    assert best.inter_share == pytest.approx(0.02)


def test_what_ranks_of_a_share_schedule_compute_is_added() -> None:
    took = Distribution((0.0,), (7 * US,))
    times = [simulate(share_schedule(0.5, compute=one), MACHINE, Placement.block(4, 2)) for one in (None, took)]
    assert times[1].makespan_ns[0] - times[0].makespan_ns[0] == 7000
    sent = messages_of(share_schedule(0.25, message_bytes=9), MACHINE)
    assert set(sent.message_bytes.tolist()) == {9}
    assert sent.target[sent.source == 0].tolist() == [1, 2]
    assert int(sent.count.sum()) == 4 * 100


@pytest.mark.parametrize(("slower", "differ"), [(3, True), (2, False)])
def test_machines_that_differ_in_three_quarters_of_replicas_differ(
    monkeypatch: pytest.MonkeyPatch, slower: int, differ: bool
) -> None:
    """What is left may be the luck of the draws."""
    second = np.where(np.arange(4) < slower, 110, 95)
    times = iter((*[np.full(4, 100)] * 2, *[second] * 2))
    monkeypatch.setattr("nearmetal.predict.place.simulate", lambda *_, **__: SimpleNamespace(makespan_ns=next(times)))
    found = break_even(MACHINE, MACHINE, points=2)
    assert (found.differ, found.first_faster_below) == (differ, differ)
    assert (found.shares, found.first_ns) == ((0.0, 1.0), (100.0, 100.0))
    assert found.second_ns == ((110.0, 110.0) if differ else (102.5, 102.5))


def test_more_ranks_than_slots_is_an_error() -> None:
    with pytest.raises(BadInputError, match="64 ranks on 32 slots of 2 hosts"):
        recommend(Judge((halo(64, (4, 4, 4)),), (MACHINE,)), hosts(2, 16))
    with pytest.raises(BadInputError, match="named twice"):
        Slots(("a", "a"), (1, 1))


def test_a_path_that_is_equal_within_nodes_and_slower_between_them_is_slower() -> None:
    near, far = Machine(intra=path(1), inter=path(5)), Machine(intra=path(1), inter=path(40))
    assert break_even(near, far, replicas=1).first_faster_below
    assert not break_even(far, near, replicas=1).first_faster_below


def test_break_even_is_where_the_paths_cost_the_same() -> None:
    # First: every message takes 5 us. Second: 1 us inside, 21 us between nodes: equal at a share of 20 %.
    first = Machine(intra=path(5), inter=path(5))
    second = Machine(intra=path(1), inter=path(21))
    found = break_even(first, second, replicas=1)
    assert found.share == pytest.approx(0.2, abs=0.01)
    assert not found.first_faster_below
    assert found.second_ns == tuple(sorted(found.second_ns))
    assert break_even(first, first, replicas=1).share is None
    assert found.crossings == 1


def test_curves_differ_where_errors_of_ratios_leave_a_difference() -> None:
    first, second = Machine(intra=path(5), inter=path(5)), Machine(intra=path(1), inter=path(21))
    found = break_even(first, second, replicas=1)
    for errors in ((0.4, 1.5), (1.1, 1.2)):
        doubtful = break_even(first, second, replicas=1, errors=errors)
        assert doubtful.share == pytest.approx(found.share or 0), "between the shares on either side that differ"
    slower_alone = break_even(first, second, replicas=1, errors=(0.3, 5.5))
    assert (slower_alone.share, slower_alone.differ, slower_alone.first_faster_below) == (None, True, True)
    faster_alone = break_even(first, second, replicas=1, errors=(0.2, 2.0))
    assert (faster_alone.share, faster_alone.differ, faster_alone.first_faster_below) == (None, True, False)
    assert not break_even(first, second, replicas=1, errors=(0.2, 5.5)).differ


def test_curves_that_differ_only_by_chance_do_not_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five replays of two paths 3 % apart crossed twice, because a median of few is noise."""
    rng = np.random.default_rng(1)
    drawn = iter(rng.normal(100, 5, (14, 40)))

    def replay(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(makespan_ns=next(drawn))

    monkeypatch.setattr("nearmetal.predict.place.simulate", replay)
    found = break_even(MACHINE, MACHINE, points=7, replicas=40)
    assert (found.crossings, found.share, found.differ) == (0, None, False)


def test_two_crossings_are_counted_and_touching_points_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((5, 5, 4, 6, 5, 6, 4) + (5,) * 7)  # equal at two shares, which is not a crossing

    def next_time(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(makespan_ns=np.array([next(times)]))

    monkeypatch.setattr("nearmetal.predict.place.simulate", next_time)
    found = break_even(MACHINE, MACHINE, points=7)
    assert (found.crossings, found.first_faster_below) == (2, True)
    assert found.share == pytest.approx(2.5 / 6)


def test_a_crossing_is_where_the_curves_meet_between_shares_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(((100,) * 5) + (50, 95, 98, 101, 200))
    monkeypatch.setattr(
        "nearmetal.predict.place.simulate", lambda *_, **__: SimpleNamespace(makespan_ns=np.array([next(times)]))
    )
    found = break_even(MACHINE, MACHINE, points=5, errors=(0.8, 1.25))
    assert (found.share, found.crossings) == (pytest.approx((2 + 2 / 3) / 4), 1)


def test_a_share_schedule_has_the_requested_share() -> None:
    for share in (0.0, 0.25, 1.0):
        assert simulate(share_schedule(share), MACHINE, Placement.block(4, 2)).inter_share == share
    with pytest.raises(BadInputError, match=r"share of 1\.5"):
        share_schedule(1.5)


HOST_OF = np.array([0, 1, 1, 0], dtype=np.uint32)


@pytest.mark.parametrize(
    ("launcher", "text"),
    [
        ("openmpi", "rank 0=n0 slot=0\nrank 1=n1 slot=0\nrank 2=n1 slot=1\nrank 3=n0 slot=1\n"),
        ("mpich", "n0:1\nn1:2\nn0:1\n"),
        ("slurm", "n0\nn1\nn1\nn0\n"),
        ("reorder", "0\n3\n1\n2\n"),
    ],
)
def test_each_launcher_gets_its_file(launcher: str, text: str) -> None:
    assert WRITERS[launcher](HOST_OF, hosts(2, 2)) == text
    with pytest.raises(BadInputError, match="slots"):
        WRITERS[launcher](HOST_OF, hosts(2, 1))


def test_keys_for_other_numbers_of_processes_than_the_launcher_starts_are_refused() -> None:
    """Of hosts with a slot to spare the file put ranks 0, 1 and 2 on the first, where 0 and 3 were to run."""
    with pytest.raises(BadInputError, match=r"starts \[3, 1\] ranks on them, the placement has \[2, 2\]") as refused:
        WRITERS["reorder"](HOST_OF, hosts(2, 3))
    assert "--hosts n0:2,n1:2, there and to the launcher" in refused.value.hint
    assert WRITERS["reorder"](HOST_OF, hosts(3, 2)) == "0\n3\n1\n2\n"


def test_a_host_file_of_mpich_that_splits_hosts_says_so() -> None:
    """Each of its lines is a node to MPICH: ranks 0 and 3 of one host met over the loopback."""
    (said,) = cautions_of("mpich", HOST_OF, hosts(3, 2))
    assert said.endswith("start it with MPICH 5 by -hosts n0:2,n1:2 -rankmap 0,1,1,0 instead of -f")
    (skipping,) = cautions_of("mpich", np.array([0, 2, 0, 2], dtype=np.uint32), hosts(3, 2))
    assert "-hosts n0:2,n2:2 -rankmap 0,1,0,1 " in skipping
    assert cautions_of("mpich", np.sort(HOST_OF), hosts(2, 2)) == []
    assert cautions_of("openmpi", HOST_OF, hosts(2, 2)) == []


@pytest.mark.parametrize(
    ("size", "changed", "reported"),
    [
        (4096, {}, False),
        (4096, {"nonblocking": True}, True),
        (1 << 20, {}, True),  # larger than the measured sizes of the collective
        (4096, {"comm": 1}, True),
    ],
)
def test_collectives_replayed_as_measured_raise_no_doubts_about_their_messages(
    size: int, changed: dict[str, object], reported: bool
) -> None:
    """Their rounds counted as messages larger than every ping-pong, and the prediction was refused."""
    ping = PathModel(path(20).segments, measured_bytes=(8, 1024), fit=FitQuality("test", 100, 0, 0))
    took = Distribution((0.0,), (US,))
    measured = MeasuredCollective("allreduce", (0, 1), ((1024, took), (8192, took)))
    machine = Machine(None, ping, measured=(measured,))
    named = NamedMachine("vf", "as-found", "polling", machine, launches=(machine,) * 3)
    op = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=size, **changed)  # type: ignore[arg-type]
    programs = tuple(
        Program((DoCall(0),), (op,), (Comm(0, size=2), Comm(1, (0, 1), rank)), slots=1) for rank in range(2)
    )  # fmt: skip
    schedule = Schedule(2, programs)
    assert bool(find_doubts([schedule], named, Placement.block(2, 1))) == reported
    if op.message_bytes == 4096 and not op.nonblocking:  # as the replay does
        found = simulate(schedule, named.machine, Placement.block(2, 1))
        assert bool(found.collectives_as_measured) != reported
        assert bool(found.messages) == reported


@pytest.mark.parametrize(("messages", "refused"), [(10, False), (200, True)])
def test_traces_of_different_programs_are_reported(messages: int, refused: bool) -> None:
    """Their times were silently mixed."""

    def launch(command: tuple[str, ...], times: int) -> Schedule:
        op = Op(OpKind.SEND, peer=1, message_bytes=8)
        both = tuple(Program((Repeat(times, (DoCall(0),)),), (op,), (Comm(0, size=2),)) for _ in range(2))
        return Schedule(2, both, command=command)

    named, apart = NamedMachine("vf", "as-found", "polling", MACHINE), Placement.block(2, 1)
    launches = [launch(("nmapps", "ep", "W"), 10), launch(("nmapps", "ep", "S"), messages)]
    (doubt,) = find_doubts(launches, named, apart)
    assert "2 command lines ('nmapps ep S', 'nmapps ep W')" in doubt.said
    assert doubt.refuse == refused
    assert not find_doubts([launches[0], launch(("nmapps", "ep", "W"), messages)], named, apart)
    builds = [replace(launches[0], build="1" * 40), replace(launch(launches[0].command, messages), build="2" * 40)]
    (doubt,) = find_doubts(builds, named, apart)
    assert "2 builds of one program ('111111111111', '222222222222')" in doubt.said
    assert doubt.refuse == refused
    assert not find_doubts([builds[0], replace(builds[0], build="")], named, apart)
    machines = [replace(launches[0], processor="EPYC"), replace(launches[0], processor="Xeon")]
    (doubt,) = find_doubts(machines, named, apart)
    assert "2 models of processors ('EPYC', 'Xeon') with 20 to 20 messages: their times are mixed" in doubt.said
    assert not doubt.refuse
    assert not find_doubts([machines[0], launches[0]], named, apart)


@pytest.mark.parametrize(
    ("command", "other", "same"),
    [
        ("/a/app 8 /a/in", "/b/app 8 /b/in", True),
        ("python3 /a/one.py", "python3 /a/other.py", False),
        ("app /a/mesh-1", "app /a/mesh-2", False),
        ("app --out=/a/x/", "app --out=/b/x", True),
    ],
)
def test_programs_are_distinguished_by_their_file_names(command: str, other: str, same: bool) -> None:
    """Arguments with a slash were left out, so two scripts of one interpreter counted as one program."""
    assert (words_of(command.split()) == words_of(other.split())) == same


def test_messages_between_nodes_over_a_path_inside_one_are_refused() -> None:
    named = NamedMachine("shm", "as-found", "polling", MACHINE, kind="shm")
    (doubt,) = find_doubts([halo(8, (2, 2, 2))], named, Placement.block(8, 4))
    assert (doubt.refuse, doubt.said) == (True, "33 % of messages go between nodes, but shm was measured inside one")
    assert not find_doubts([halo(8, (2, 2, 2))], named, Placement.block(8, 8))


def test_more_ranks_per_node_than_streamed_or_than_known_processors_are_reported() -> None:
    def doubts_of(per_node: int, **about: object) -> list[str]:
        named = NamedMachine("vf", "as-found", "polling", MACHINE, host="ssh", **about)  # type: ignore[arg-type]
        return [doubt.said for doubt in find_doubts([halo(8, (2, 2, 2))], named, Placement.block(8, per_node))]

    (pairs, processors) = doubts_of(4, pairs=1)
    assert "up to 4 ranks of a node share its port, but only 1 at once did when it was measured" in pairs
    assert "how many processors a node has: assumed to be enough for its 4 ranks" in processors
    assert doubts_of(4, pairs=4) == doubts_of(4) == [processors]
    assert not doubts_of(1, pairs=1)
    assert doubts_of(8, pairs=1) == [processors.replace("4", "8")]  # nothing goes between nodes


@pytest.mark.parametrize("kind", ["vf", "guest-vf", "tap"])
def test_ranks_that_share_processors_are_reported_on_every_path(kind: str) -> None:
    """Guests and relays have path classes of their own, which were left out."""
    machine = replace(MACHINE, cores=Cores(1))
    named = NamedMachine(kind, "as-found", "polling", machine, kind=kind, host="lab")
    doubts = [[doubt.said for doubt in find_doubts([halo(2, (2, 1, 1))], named, Placement.block(2, n))] for n in (1, 2)]
    assert [any("2 ranks of a computer share 1 processor:" in one for one in found) for found in doubts] == [
        False,
        True,
    ]


def test_an_iteration_of_cg_reduces_a_row_transposes_and_takes_two_dot_products() -> None:
    ops = schedule_from_pattern(Pattern(kind="cg", ranks=16, steps=1, message_bytes=1000)).programs[0].ops
    steps = [(op.recv_rule.name, op.recv_peer, op.message_bytes, op.tag, op.recv_tag, op.comm) for op in ops]
    row = [("XOR", 1, 1000, 1, 1, 1), ("XOR", 2, 1000, 1, 1, 1)]
    dots = [("XOR", 1, 8, 3, 3, 1), ("XOR", 2, 8, 3, 3, 1)]
    assert steps == [*row, ("TRANSPOSE", 4, 1000, 2, 2, 0), *dots, *dots]
    halves = schedule_from_pattern(Pattern(kind="cg", ranks=8, steps=1, message_bytes=1000)).programs[0].ops
    assert (halves[2].rule.name, halves[2].peer, halves[2].recv_peer) == ("XOR", 2, 2)
