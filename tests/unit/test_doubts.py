"""Where doubts about a program, its MPI and its processors begin, each at its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.predict.doubts import find_doubts, of_mixed_trials, same_condition
from nearmetal.predict.models import Cores, FitQuality, NamedMachine
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, NodeGroup, Op, OpKind, Schedule
from tests.unit.simulated import MACHINE, path, ping, program, send

if TYPE_CHECKING:
    from nearmetal.predict.doubt import Doubt

NAMED = NamedMachine("vf", "tuned", "polling", MACHINE, (MACHINE,) * 3, mpi="openmpi 4.1.4")
REDUCE = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
APART = Placement.block(2, 1)


def doubts(schedule: Schedule, named: NamedMachine = NAMED, where: Placement = APART) -> list[Doubt]:
    return find_doubts([schedule], named, where)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"paused_share": 0.01}, 0.01),
        ({"paused_share": 0.0099}, None),
        ({"worked_share": 0.01}, 0.01),
        ({"worked_share": 0.0099}, None),
        ({"blocked_share": 0.01}, 0.01),
        ({"blocked_share": 0.0099}, None),
        ({"first_come_share": 0.01}, 0.01),
        ({"first_come_share": 0.0099}, None),
        ({"first_come_share": 1.5}, 1.0),
        ({"rounded_share": 1e-9}, 1e-9),
        ({"opaque_share": 0.0005, "opaque_time_share": 0.0001}, 0.0005),
        ({"opaque_share": 0.0004, "opaque_time_share": 0.0001}, None),
        ({"opaque_share": 0.0004, "opaque_time_share": 0.0005}, 0.0005),
        ({"opaque_share": 0.0001}, 0.0001),  # an older profiler does not say how long they took
        ({"opaque_wait_share": 0.0005}, 0.0005),
        ({"calling_threads": 1}, None),
        ({"calling_threads": 2}, 1.0),
        ({"crowd": 1}, 1.0),
        ({"given_dims": (3,)}, 1.0),
        ({"traced_ranks": 4}, 1.0),
        ({"traced_ranks": 4, "traced_before": 3}, 1.0),
    ],
)
def test_what_a_trace_leaves_open_is_told_with_its_share(shares: dict[str, float], told: float | None) -> None:
    found = doubts(replace(ping(8), **shares))  # type: ignore[arg-type]
    assert [one.share for one in found] == ([] if told is None else [told])
    assert all(("are waits for their requests" in one.said) == ("opaque_wait_share" in shares) for one in found)


@pytest.mark.parametrize(
    ("time", "waits", "refused"),
    [(0.1, 0.0, True), (0.0999, 0.0, False), (0.06, 0.04, True), (0.06, 0.039, False), (0.0, 0.1, True)],
)
def test_a_tenth_of_the_time_in_calls_that_are_only_counted_is_refused(
    time: float, waits: float, refused: bool
) -> None:
    (doubt,) = doubts(replace(ping(8), opaque_share=0.5, opaque_time_share=time, opaque_wait_share=waits))
    assert (doubt.share, doubt.refuse) == (0.5, refused)


@pytest.mark.parametrize(
    ("traced", "mpi", "share"),
    [
        ("Open MPI v4.1.4, package", "openmpi 4.1.4", None),
        ("Open MPI v4.1.4, package", "openmpi", None),  # of an older file, that does not know more
        ("Open MPI v4.1.5, package", "openmpi 4.1.4", 0.5),
        ("Open MPI", "openmpi 4.1.4", 0.5),
        ("MPICH Version: 4.3.0", "openmpi 4.1.4", 1),
        ("MPICH Version: 4.3.0", "mpich 4.3.0", None),
        ("MPICH Version: 4.3.0", "", 1),  # the machine has the collectives of Open MPI
        ("Another MPI 1", "openmpi 4.1.4", 1),
    ],
)
def test_a_trace_of_another_mpi_is_told(traced: str, mpi: str, share: float | None) -> None:
    (*found,) = doubts(replace(ping(8), mpi=traced, processor=""), replace(NAMED, mpi=mpi))
    assert [one.share for one in found] == ([] if share is None else [share])
    assert all(("whose collectives, eager limits" in one.said) == (share == 1) for one in found)


@pytest.mark.parametrize(
    ("mpi", "told"),
    [
        ("openmpi 4.0.7", True),
        ("openmpi 3.9.1", True),
        ("openmpi 4.1.0", False),
        ("openmpi 5.0.0", False),
        ("mpich 3.0", False),
    ],
)
def test_rules_of_an_older_open_mpi_are_told_for_collectives(mpi: str, told: bool) -> None:
    reduces = Schedule(2, (program([REDUCE]), program([REDUCE])))
    assert [one.share for one in doubts(reduces, replace(NAMED, mpi=mpi))] == [0.5] * told
    assert doubts(ping(8), replace(NAMED, mpi=mpi)) == []


@pytest.mark.parametrize(("others", "told"), [(99, True), (100, False)])
def test_collectives_by_nodes_matter_from_a_hundredth_of_calls_on(others: int, told: bool) -> None:
    own = program([REDUCE, *[Op(OpKind.MARK)] * others], ranks=4)
    found = doubts(Schedule(4, (own,) * 4), replace(NAMED, mpi="mpich 4.3.0"), Placement.block(4, 2))
    assert [one.share for one in found] == [0.01] * told
    assert not any("han" in one.hint for one in found)


@pytest.mark.parametrize(
    ("scale", "traced", "measured", "told"),
    [
        (1.0, "EPYC", "Xeon", True),
        (1.0, "EPYC", "EPYC", False),
        (2.0, "EPYC", "Xeon", False),  # the user gave its speed
        (0.5, "EPYC", "Xeon", True),  # strong scaling from 2 to 4 ranks
        (0.7, "EPYC", "Xeon", True),  # as two traces show
        (1.0, "", "Xeon", False),
        (1.0, "EPYC", "", False),
    ],
)
def test_computing_by_another_clock_is_told(scale: float, traced: str, measured: str, told: bool) -> None:
    schedule = Schedule(4, (program([send(1)], ranks=4), *[program([], ranks=4)] * 3), mpi="Open MPI v4.1.4")
    schedule = replace(schedule, traced_ranks=2, compute_scale=0.7, processor=traced)
    machine = replace(MACHINE, compute_scale=scale)
    named = replace(NAMED, machine=machine, conditions=(("on a processor", measured),))
    found = [one for one in doubts(schedule, named, Placement.block(4, 1)) if "clock or instructions" in one.said]
    assert [one.share for one in found] == [1.0] * told
    assert not any(
        "computing is assumed" in one.said for one in doubts(replace(schedule, mpi=""), named, Placement.block(4, 1))
    )


@pytest.mark.parametrize(("few", "many", "refused"), [(10, 11, False), (10, 12, True)])
def test_programs_whose_messages_differ_by_more_than_launches_do_are_refused(
    few: int, many: int, refused: bool
) -> None:
    launches = [
        Schedule(2, (program([send(1)] * times), program([])), command=("app", str(times))) for times in (few, many)
    ]
    (doubt,) = find_doubts(launches, NAMED, APART)
    assert (doubt.refuse, doubt.share) == (refused, 1.0)
    assert f"with {few} to {many} messages" in doubt.said


@pytest.mark.parametrize(("launches", "told"), [(2, True), (3, False)])
def test_fewer_launches_than_show_how_they_differ_are_told(launches: int, told: bool) -> None:
    inter = replace(path(eager=4096), fit=FitQuality("test", 1, 0, 0), measured_bytes=(8,), crossing_ps=((8, 0),))
    fitted = replace(MACHINE, inter=inter)
    found = doubts(ping(8), replace(NAMED, machine=fitted, launches=(fitted,) * launches))
    assert [(one.share, "only 2 launches measured" in one.said) for one in found] == [(1.0, True)] * told
    single = doubts(ping(8), replace(NAMED, machine=fitted, launches=(fitted,)))
    assert "only 1 launch measured" in single[0].said


@pytest.mark.parametrize(
    ("cores", "per_node", "host", "share"),
    [
        (Cores(1), 1, "ssh", None),
        (Cores(1), 2, "ssh", 1.0),
        (Cores(2), 2, "ssh", None),
        (Cores(1, one_computer=True), 1, "lab", 1.0),
        (None, 2, "ssh", 0.0),
        (None, 1, "ssh", None),
        (None, 2, "", None),
    ],
)
def test_ranks_without_a_processor_each_are_told(
    cores: Cores | None, per_node: int, host: str, share: float | None
) -> None:
    named = replace(NAMED, machine=replace(MACHINE, cores=cores), host=host)
    found = doubts(ping(8), named, Placement.block(2, per_node))
    assert [one.share for one in found] == ([] if share is None else [share])


@pytest.mark.parametrize(
    ("host", "shared", "told"), [("ssh", False, True), ("lab", False, False), ("", False, False), ("ssh", True, False)]
)
def test_virtual_nodes_that_may_share_processors_are_told(host: str, shared: bool, told: bool) -> None:
    machine = replace(MACHINE, cores=Cores(8, shared_by_node=shared))
    found = doubts(ping(8), replace(NAMED, machine=machine, host=host, virtual=True))
    assert [one.share for one in found] == [0.0] * told
    assert doubts(ping(8), replace(NAMED, machine=machine, host=host)) == []


def test_a_communicator_of_a_node_is_told_with_the_ranks_that_it_would_have() -> None:
    own = Schedule(4, (program([], ranks=4),) * 4, node_groups=(NodeGroup((0, 1, 2, 3), (0, 1), True),))
    (doubt,) = doubts(own, NAMED, Placement.of_hosts(np.array([0, 1, 0, 0], np.uint32)))
    assert "a communicator of 2 ranks of a node; here 1 of these and 2 others are on rank 0's node" in doubt.said
    part = replace(own, node_groups=(NodeGroup((0, 1, 2, 3), (2, 3), False),))
    (doubt,) = doubts(part, NAMED, Placement.of_hosts(np.array([0, 0, 1, 0], np.uint32)))
    assert "2 ranks of a part of a node; here 1 of these and 0 others are on rank 2's node" in doubt.said


def test_doubts_that_refuse_come_first_then_those_that_concern_most() -> None:
    schedule = replace(
        ping(8), opaque_share=0.2, opaque_time_share=0.15, paused_share=0.3, worked_share=0.9, calling_threads=2
    )
    found = doubts(schedule)
    assert [(one.refuse, one.share) for one in found] == [(True, 0.2), (False, 1.0), (False, 0.9), (False, 0.3)]


def test_conditions_that_differ_among_trials_are_told_once_each() -> None:
    conditions = (("with kernel", "6.1"), ("on a processor", "EPYC"), ("with kernel", ""), ("over", "veth"))
    (doubt,) = of_mixed_trials(conditions, "the launches")
    assert doubt.said == "the launches ran with kernel 6.1 and as found: their times are mixed"
    (doubt,) = of_mixed_trials((("on a processor", "EPYC"), ("on a processor", "Xeon")), "the launches")
    assert doubt.said == "the launches ran on EPYC and Xeon: their times are mixed"
    assert same_condition("an emulated EPYC", "an emulated processor of the lab")
    assert not same_condition("EPYC", "an emulated processor of the lab")
    assert not same_condition("an emulated EPYC", "an emulated Xeon")
