"""Collectives that a run measured: of which ranks and sizes, and that replays of such ranks take their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.predict.fit_run import fit_records, fit_run
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule import Collective, Op, OpKind, Schedule
from nearmetal.predict.simulate import simulate
from nearmetal.store.rundir import RunDir
from tests.fake_runs import make_run
from tests.unit.simulated import program
from tests.unit.test_fit_run import STUDY, of_veth

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("further", "nodes"), [([0, 1, 2], [(0, 1), (0, 1, 2)]), ([1, 0], [(0, 1)])])
def test_collectives_of_other_placements_stop_no_prediction(
    tmp_path: Path, further: list[int], nodes: list[tuple[int, ...]]
) -> None:
    """Three nodes: `zip() argument 2 is longer`. The same nodes in another order: `the model file is damaged`."""
    other = f'{{ name = "other", operation = "allreduce", sizes = [8, 1024], iterations = 30, placement = {further} }}'
    run = RunDir.open(make_run(tmp_path / "run", STUDY.replace("workload = [", f"workload = [ {other},")))
    named = of_veth(fit_run(run))
    assert [one.nodes for one in named.machine.measured] == nodes
    assert {tuple(size for size, _ in one.times_ps) for one in named.machine.measured} == {(1, 8, 1024)}
    op = Op(OpKind.COLLECTIVE, collective=Collective.ALLREDUCE, message_bytes=8)
    job = Schedule(2, (program([op]),))
    assert simulate(job, named.machine, Placement.block(2, 1)).collectives_as_measured == 1


def test_collectives_of_a_path_inside_a_node_are_those_of_one_node(tmp_path: Path) -> None:
    """Their ranks were looked for on two nodes, so that no prediction took the measured time."""
    run = RunDir.open(make_run(tmp_path / "run", STUDY))
    (named,) = fit_records(run, [one for one in run.trials() if one.order.path.label == "shm"]).machines
    assert [one.nodes for one in named.machine.measured] == [(0, 0)]


def test_fewer_bytes_than_a_packet_take_as_long_as_the_smallest_measured(tmp_path: Path) -> None:
    further = "".join(
        f'{{ name = "{name}", sizes = [{size}, 4096], iterations = 30 }},'
        for name, size in (("alltoall", 64), ("allgather", 65))
    )
    run = RunDir.open(make_run(tmp_path / "run", STUDY.replace("workload = [", f"workload = [ {further}")))
    found = {one.collective: one.times_ps for one in of_veth(fit_run(run)).machine.measured}
    sizes = {name: [size for size, _ in times] for name, times in found.items()}
    assert sizes == {"allreduce": [1, 8, 1024], "alltoall": [1, 64, 4096], "allgather": [65, 4096]}
    assert found["alltoall"][0][1] == found["alltoall"][1][1]
