"""Where doubts about messages begin, each at its limit, with shares by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.predict.doubts_of_messages import doubts_of_messages, of_connections
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
from nearmetal.predict.moderation import StageSetting
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Op, OpKind, Schedule
from nearmetal.units import format_size
from tests.unit.simulated import path, program, recv, send

if TYPE_CHECKING:
    from nearmetal.predict.doubt import Doubt

EAGER = 1 << 16
APART = Placement.block(2, 1)
TOGETHER = Placement.block(2, 2)
BESIDE = Placement(np.zeros(2, np.uint32), np.arange(2, dtype=np.uint32))
"""Two guests of a host."""


def fitted(*sizes: int, **about: object) -> PathModel:
    made = replace(path(eager=EAGER), fit=FitQuality("test", 100, 0, 0), measured_bytes=sizes, crossing_ps=((8, 0),))
    return replace(made, **about)  # type: ignore[arg-type]


def named(inter: PathModel, intra: PathModel | None = None, **about: object) -> NamedMachine:
    machine = Machine(intra, inter, **{key: about.pop(key) for key in list(about) if key in OF_MACHINE})  # type: ignore[arg-type]
    return NamedMachine("vf", "tuned", "polling", machine, **about)  # type: ignore[arg-type]


OF_MACHINE = {"host", "cores", "stage", "port_fs_per_byte"}


def sends(*messages: tuple[int, int], to: int = 1) -> Schedule:
    """Return two ranks of which the first sends so many messages of so many bytes, each with an answer to wait for."""
    ops = [op for count, size in messages for _ in range(count) for op in (send(to, size), recv(to, 0))]
    return Schedule(2, (program(ops), program([])))


def doubts(schedule: Schedule, of: NamedMachine, where: Placement = APART) -> list[Doubt]:
    return list(doubts_of_messages(schedule, of, where))


def only(schedule: Schedule, of: NamedMachine, where: Placement = APART) -> Doubt:
    (doubt,) = doubts(schedule, of, where)
    return doubt


def test_what_was_measured_is_not_doubted() -> None:
    assert doubts(sends((9, 8), (1, 1000)), named(fitted(8, 1000))) == []
    assert doubts(sends((1, 1 << 30)), named(path())) == []  # a path by hand


@pytest.mark.parametrize(
    ("count", "where", "told"),
    [(2000, APART, ["0.05 % of messages are the first"]), (2001, APART, []), (1, TOGETHER, []), (0, APART, [])],
)
def test_connections_that_few_messages_use_are_told(count: int, where: Placement, told: list[str]) -> None:
    """The first message between two ranks takes as long as hundreds of others."""
    found = of_connections(sends((count, 8)), Machine(path(), path()), where)
    assert [doubt.said.partition(" between")[0] for doubt in found] == told


def test_messages_both_ways_open_one_connection() -> None:
    both = Schedule(2, (program([send(1), recv(1)]), program([recv(0), send(0)])))
    (doubt,) = of_connections(both, Machine(path(), path()), APART)
    assert doubt.share == 0.5


def test_sizes_beyond_the_measured_are_told_with_their_share() -> None:
    doubt = only(sends((9, 100), (1, 1100)), named(fitted(64, 500, 1000)))
    assert doubt.said == (
        "10 % of messages and 55 % of bytes between nodes are larger than the largest measured: up to 1100 B against "
        "1000 B, 1.1 times"
    )
    assert (doubt.hint, doubt.share, doubt.refuse) == ('measure sizes = [64, 500, 1000, "2 KiB"]', 1100 / 2000, False)


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        (((1, 2000),), False),  # twice as large
        (((1, 2001),), True),
        (((1, 3000), (27, 1000)), True),  # a tenth of the bytes
        (((1, 3000), (28, 1000)), False),
        (((1, 3000), (9, 0)), True),
        (((1, 1500), (1, 0)), False),
    ],
)
def test_much_far_beyond_the_measured_is_refused(messages: tuple[tuple[int, int], ...], refused: bool) -> None:
    assert only(sends(*messages), named(fitted(8, 1000))).refuse is refused


@pytest.mark.parametrize(("nodes", "told"), [(4, False), (5, True)])
def test_more_nodes_than_any_prediction_was_compared_on_are_told(nodes: int, told: bool) -> None:
    """512 nodes had the interval of launches on two to four, and not a word."""
    schedule = Schedule(nodes, (program([send(1, 8), recv(1, 0)]), *(program([]),) * (nodes - 1)))
    found = doubts(schedule, named(fitted(8, 1000)), Placement.block(nodes, 1))
    assert [doubt.said for doubt in found] == [
        f"the program runs on {nodes} nodes, but paths are measured between two, and predictions were compared with "
        "launches on at most 4: messages of other nodes are assumed to hold none up on its way"
    ] * told
    assert doubts(schedule, named(path()), Placement.block(nodes, 1)) == []  # a path by hand
    assert doubts(schedule, named(fitted(8, 1000), fitted(8, 1000)), Placement.block(nodes, 2)) == []


@pytest.mark.parametrize(
    ("measured", "size", "said"),
    [
        ((544, 1000), 8, ""),  # up to 8.5 times 64 B
        ((545, 1000), 8, "far smaller than the smallest measured: down to 8 B against 545 B"),
        ((850, 1000), 100, ""),
        ((851, 1000), 100, "far smaller than the smallest measured: down to 100 B against 851 B"),
        ((8, 544), 100, ""),
        ((8, 545), 100, "far from every measured size: between 8 B and 545 B"),
        ((100, 850), 200, ""),
        ((100, 851), 200, "far from every measured size: between 100 B and 851 B"),
        ((100, 851), 851, ""),
        ((100, 851), 100, ""),
    ],
)
def test_sizes_far_from_the_measured_are_told(measured: tuple[int, ...], size: int, said: str) -> None:
    found = doubts(sends((1, size)), named(fitted(*measured)))
    assert [one.said.partition(" are ")[2] for one in found] == ([said] if said else [])
    assert not any(one.refuse for one in found)


@pytest.mark.parametrize(
    ("measured", "used", "wanted"),
    [
        ((8, 1000), (2048,), '8, 1000, "2 KiB"'),
        ((8, 1000), (2049,), '8, 1000, "4 KiB"'),
        ((8, 65_536), (4096,), '8, "2 KiB", "16 KiB", "64 KiB"'),
        ((8, 65_536), (100,), '8, 512, "2 KiB", "64 KiB"'),
        ((65_536, 131_072), (7000,), '"4 KiB", "16 KiB", "64 KiB", "128 KiB"'),
        ((65_536, 131_072), (100,), '64, 512, "2 KiB", "64 KiB", "128 KiB"'),
        ((1000, 2000), (0,), "8, 1000, 2000"),
    ],
)
def test_the_sizes_to_measure_surround_those_sent(
    measured: tuple[int, ...], used: tuple[int, ...], wanted: str
) -> None:
    schedule = sends(*((1, size) for size in used))
    eager = fitted(*measured, eager_up_to_bytes=1 << 20)
    assert [one.hint for one in doubts(schedule, named(eager))] == [f"measure sizes = [{wanted}]"]


def test_a_model_that_does_not_know_its_sizes_says_so() -> None:
    doubt = only(sends((1, 8), (1, 9)), named(fitted()))
    assert (doubt.said, doubt.share) == ("the model file does not say which sizes were measured", 1.0)


@pytest.mark.parametrize(("small", "told"), [(99, True), (100, False)])
def test_an_unknown_eager_limit_matters_from_a_hundredth_of_messages_on(small: int, told: bool) -> None:
    unknown = fitted(8, 8192, eager_up_to_bytes=UNBOUNDED)
    spoken = replace(unknown, measured_bytes=(8, 64, 512, 4096, 8192))
    found = doubts(sends((small, 8), (1, 4097)), named(spoken))
    assert [one.share for one in found] == [0.01] * told
    assert all("in the run's MPI is not known" in one.said for one in found)
    assert doubts(sends((1, 4096)), named(spoken)) == []
    assert doubts(sends((1, 4097)), named(replace(spoken, fit=None))) == []
    assert "in mpich 4.3.0 is not known" in only(sends((1, 4097)), named(spoken, mpi="mpich 4.3.0")).said


@pytest.mark.parametrize(
    ("pairs", "port", "told"), [(0, 1, False), (1, 1, True), (1, 0, False), (2, 1, False), (3, 1, False)]
)
def test_a_port_that_more_ranks_share_than_streamed_is_told(pairs: int, port: int, told: bool) -> None:
    ops = [send(2, 8), recv(2, 0), send(1, 8), recv(1, 0)]
    schedule = Schedule(4, (program(ops, ranks=4), *[program([], ranks=4)] * 3))
    machine = named(path(), path(), pairs=pairs, port_fs_per_byte=port)
    found = doubts(schedule, machine, Placement.block(4, 2))
    assert [(one.hint, one.share) for one in found] == [
        ("measure `message_rate` with placement = [0, 0, 1, 1]", 0.5)
    ] * told
    assert doubts(sends((1, 8)), machine, TOGETHER) == []  # nothing goes between nodes


def test_an_interrupt_stage_is_doubted_for_what_goes_between_nodes() -> None:
    stage = named(path(), path(), stage=StageSetting())
    (rule,) = doubts(sends((1, 14_480)), stage)
    assert ("simulated by a rule" in rule.said, rule.share) == (True, 1.0)
    (_, packets) = doubts(sends((3, 14_480), (1, 14_481)), stage)
    assert packets.said.startswith("25 % of messages are larger than 14,480 B")
    assert packets.share == 0.25
    assert doubts(sends((1, 14_481)), stage, TOGETHER) == []


def test_messages_to_oneself_are_doubted_where_no_path_inside_a_node_was_measured() -> None:
    both = Schedule(2, (program([send(0, 8), send(1, 8), recv(1, 0), send(1, 8)]), program([])))
    doubt = only(both, named(path()))
    assert doubt.said.startswith("33 % of messages go from a rank to itself")
    assert doubt.share == pytest.approx(1 / 3)
    assert doubts(both, named(path(), path())) == []


@pytest.mark.parametrize(
    ("shared", "cores", "said"),
    [
        (True, Cores(2), "inside a node of 2 processors"),
        (True, None, "inside a node of more processors"),
        (True, Cores(1), ""),
        (False, Cores(2), ""),
    ],
)
def test_waits_for_one_processor_are_doubted_where_there_are_more(shared: bool, cores: Cores | None, said: str) -> None:
    of = named(path(), replace(path(), one_processor=shared), cores=cores)
    found = doubts(sends((1, 8)), of, TOGETHER)
    assert [(said in one.said, one.share) for one in found] == ([(True, 1.0)] if said else [])
    assert doubts(sends((1, 8)), of, APART) == []


def test_a_path_inside_a_node_is_none_between_them() -> None:
    doubt = only(sends((1, 8)), named(path(), path(), kind="shm"))
    assert (doubt.share, doubt.refuse) == (1.0, True)
    assert doubts(sends((1, 8)), named(path(), path(), kind="shm"), TOGETHER) == []


def test_guests_of_a_host_are_told_where_no_path_between_them_was_measured() -> None:
    doubt = only(sends((1, 8)), named(path(), path()), BESIDE)
    assert doubt.said.startswith("100 % of messages are between guests of one host: assumed")
    assert (doubt.share, doubt.refuse) == (1.0, False)
    bare = only(sends((1, 8)), named(path(), kind="native"), BESIDE)
    assert "inside a host, which on bare metal is one node" in bare.said
    assert doubts(sends((1, 8)), named(path(), host=path()), BESIDE) == []
    (beyond,) = doubts(sends((1, 2001)), named(path(), host=fitted(8, 1000)), BESIDE)
    assert "of bytes between guests of a host are larger" in beyond.said
    (_, alike) = doubts(sends((1, 2001)), named(fitted(8, 1000)), BESIDE)  # as between nodes
    assert "of bytes between nodes are larger" in alike.said


def test_a_timer_of_the_kernel_is_told_for_the_sizes_nearest_to_it() -> None:
    timed = fitted(8, 64, 512, 4096, timers=((512, "a timer of 4 ms"), (4096, "another")))
    doubt = only(sends((6, 64), (1, 200), (2, 600), (1, 1400)), named(timed))  # 181 B and 1448 B are as near
    assert doubt.said == (
        "40 % of messages between nodes take the time of a ping-pong that shows a timer, not the path, in a launch or "
        "more: of 512 B, a timer of 4 ms"
    )
    assert doubt.share == 0.4
    assert doubts(sends((1, 64), (1, 180)), named(timed)) == []
    assert "of 4 KiB, another" in only(sends((1, 1500), (1, 8)), named(timed)).said


def test_messages_that_cross_are_doubted_where_no_exchange_was_measured() -> None:
    """Such messages took 1 to 4 us longer between namespaces, and a run without `exchange` does not show it."""
    without = fitted(8, 1000, crossing_ps=())
    doubt = only(sends((1, 8)), named(without))
    assert doubt.said.startswith("no exchange of messages was measured between nodes: messages that cross, and")
    assert (doubt.share, doubt.refuse) == (1.0, False)
    assert doubts(sends((1, 8)), named(replace(without, one_processor=True))) == []
    assert doubts(sends((1, 8)), named(fitted(8), without), TOGETHER) == []  # no ping-pong inside a node tells more
    assert doubts(sends((1, 8)), named(without, without, kind="shm"), TOGETHER) == []


def test_paths_that_were_not_streamed_are_told() -> None:
    still = replace(fitted(8), segments=(Segment(UNBOUNDED, 1),))
    doubt = only(sends((1, 8)), named(still))
    assert (doubt.hint, doubt.share) == ("measure the operations `bw` and `bibw` too", 1.0)
    inside = only(sends((1, 8)), named(path(), still), TOGETHER)
    assert "was measured inside a node" in inside.said
    assert inside.hint == "measure the operations `bw` and `bibw` on `shm` too"
    for part in ({"gap_ps": 1}, {"send_overhead_ps": 1}):
        assert doubts(sends((1, 8)), named(replace(still, segments=(Segment(UNBOUNDED, 1, **part),)))) == []


@pytest.mark.parametrize(("fast_ps", "told"), [(-501, True), (-500, False)])
def test_a_tenth_of_messages_below_half_of_the_time_met_no_timer(fast_ps: int, told: bool) -> None:
    """One way takes 1000 ps: what is faster by more than half of that belongs to another mode."""
    modes = Distribution((0.0, 0.1, 0.9), (fast_ps, fast_ps, 500))
    twice = PathModel((Segment(64, 1000, residual=modes), Segment(UNBOUNDED, 1000)), EAGER)
    found = doubts(sends((1, 8), (2, 64), (1, 65)), named(twice))
    assert [one.share for one in found] == [0.75] * told
    assert all(one.said.startswith("a tenth of the messages of 64 B took less than half") for one in found)
    assert all("--as tuned " in one.hint and "interrupt moderation" in one.said for one in found)
    here = doubts(sends((1, 8), (2, 64), (1, 65)), replace(named(twice), host="local"))
    assert [one.share for one in here] == [0.75] * told
    assert not any("interrupt" in one.said + one.hint for one in here), "namespaces have no card"


@pytest.mark.parametrize(
    ("measured", "told"),
    [((8, 1 << 20), True), ((8, 1 << 16, 1 << 20), False), ((1 << 13, 1 << 17), True), ((1 << 14, 1 << 17), False)],
)
def test_collectives_far_from_every_measured_size_are_told(measured: tuple[int, ...], told: bool) -> None:
    """They took a time on the line through two sizes, however far apart: 64 KiB between 8 B and 1 MiB."""
    times = tuple((size, Distribution((0.0,), (size * 1000,))) for size in measured)
    of = replace(
        named(fitted(8)), machine=Machine(None, fitted(8), measured=(MeasuredCollective("allreduce", (0, 1), times),))
    )
    ops = [Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=1 << 16), recv(1, 8), send(1, 8)]
    schedule = Schedule(2, (program(ops), program([ops[0], *(replace(op, peer=0) for op in ops[:0:-1])])))
    found = [doubt for doubt in doubts(schedule, of) if "collectives of sizes" in doubt.said]
    assert [doubt.share for doubt in found] == ([pytest.approx(1 / 3)] if told else [])
    if told:
        ends = " and ".join(map(format_size, measured))
        assert found[0].said.endswith(f"on the line through both: allreduce between {ends}")
    elsewhere = replace(of, machine=replace(of.machine, measured=(replace(of.machine.measured[0], nodes=(0, 0)),)))
    assert all("collectives of sizes" not in doubt.said for doubt in doubts(schedule, elsewhere))


@pytest.mark.parametrize(("answered", "told"), [(98, True), (99, False)])
def test_messages_in_a_row_matter_from_a_hundredth_on(answered: int, told: bool) -> None:
    ops = [send(1, 8), send(1, 8), recv(1, 0), *[send(1, 8), recv(1, 0)] * answered]
    schedule = Schedule(2, (program(ops), program([])))
    found = doubts(schedule, named(path(), held=True))
    assert [one.share for one in found] == [0.01] * told
    assert doubts(schedule, named(path())) == []
