"""What a run's launches measured, and how predictions of them are judged: figures by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearmetal.errors import BadInputError
from nearmetal.predict.calibration import OWN, errors_of, run_errors
from nearmetal.predict.model_file import ModelFile
from nearmetal.predict.models import NamedMachine
from nearmetal.predict.schedule import Op, OpKind, Schedule
from nearmetal.predict.trace import DoCall, Repeat
from nearmetal.predict.validate import (
    MeasuredLaunches,
    Replays,
    marked_iterations,
    measured_launches,
    oracle_error,
    orders,
    validate,
    wrong_orders,
)
from nearmetal.store.rundir import RunDir
from nearmetal.store.samples import CellSamples
from tests.fake_runs import make_run
from tests.unit.simulated import MACHINE, ping, program, run_ns
from tests.unit.test_validate import STUDY, case

if TYPE_CHECKING:
    from pathlib import Path

    from nearmetal.store.rundir import TrialRecord


def mark(level: int) -> Op:
    return Op(OpKind.MARK, tag=level)


@pytest.mark.parametrize(("begins", "ends", "marks"), [(1001, 1002, 6), (3, 4, 6), (1002, 1001, 6), (1002, 7, 0)])
def test_iterations_are_marked_by_levels_known_for_it(begins: int, ends: int, marks: int) -> None:
    own = program([mark(begins), mark(ends)], [Repeat(3, (DoCall(0), DoCall(1)))])
    assert marked_iterations(Schedule(2, (own, own))) == marks
    assert marked_iterations(Schedule(2, (own,))) == marks  # of a program that both share


def stored(tmp_path: Path, changed: dict[str, object], cells: list[CellSamples]) -> MeasuredLaunches:
    """Return what a run measured that has a single launch of a program."""
    there = RunDir.open(make_run(tmp_path / "made", STUDY))
    record: TrialRecord = next(one for one in there.trials() if one.order.workload.label == "app")
    order = replace(record.order, workload=replace(record.order.workload, **changed))  # type: ignore[arg-type]
    with RunDir.create(tmp_path / "run", there.info, there.study_text()) as run:
        run.append(order, replace(record.outcome, files={}), cells, attempt=1, started_utc=record.started_utc)
    (found,) = measured_launches(RunDir.open(tmp_path / "run"))
    return found


def rows(operation: str, *of_ranks: list[int]) -> CellSamples:
    ns = np.array(of_ranks, np.int64)
    return CellSamples(operation, 0, 0, tuple(range(len(of_ranks))), ns, ns, np.zeros(ns.shape, np.uint8))


def test_a_command_took_the_median_of_its_figures(tmp_path: Path) -> None:
    options = {"argv": ["/a/app", "--size", "8"], "figure": "regex", "pattern": "(.*)", "unit": "s"}
    found = stored(tmp_path, {"options": options}, [rows("app", [5, 7, 100])])
    assert (found.ns.tolist(), found.timed_part, found.p99_ns, found.figures) == ([7.0], False, (), 3)
    assert (found.command, found.wall) == (("app", "--size", "8"), False)


def test_an_application_took_its_timed_part_on_the_slowest_rank(tmp_path: Path) -> None:
    changed = {"kind": "application", "options": {"operation": "ep", "class": "S"}}
    iterations = rows("ep.S", list(range(1, 102)), list(range(2, 103)))
    found = stored(tmp_path, changed, [iterations, rows("ep.S.total", [300], [400])])
    assert (found.ns.tolist(), found.timed_part, found.wall) == ([400.0], True, False)
    assert (found.p99_ns, found.figures) == ((101.0,), 1)
    assert found.command[1:] == ("ep", "--class", "S")


def test_one_of_several_programs_must_be_named(tmp_path: Path) -> None:
    other = '{ name = "other", kind = "command", options = { argv = ["./other"] } },'
    run = RunDir.open(make_run(tmp_path / "run", STUDY.replace("workload = [", f"workload = [{other}")))
    with pytest.raises(BadInputError, match="has 2 workloads that are programs\n") as error:
        measured_launches(run)
    assert error.value.hint == "name one with --workload: app, other"
    assert {one.command for one in measured_launches(run, "other")} == {("other",)}
    none = [one for one in STUDY.splitlines() if "command" not in one]
    alone = RunDir.open(make_run(tmp_path / "alone", "\n".join(none)))
    with pytest.raises(BadInputError, match="has 0 workloads that are programs") as error:
        measured_launches(alone)
    assert error.value.hint == "launch one: kind = 'command'"


NAMED = NamedMachine("vf", "tuned", "polling", MACHINE)
LAUNCHES = MeasuredLaunches("vf", "tuned", "polling", (0, 1), False, np.array([1000.0, 2000.0, 4000.0, 4000.0]))


def replays(**errors: tuple[float, ...]) -> Replays:
    validated = {name.replace("_", " "): of for name, of in errors.items()}
    return Replays(ModelFile("nearmetal-model", 2, "run", (NAMED,), validated), replicas=3, seed=0)


def test_a_case_has_the_interval_of_its_class() -> None:
    (found,) = validate([ping(8)], [NAMED], [LAUNCHES], replays(own_cores=(math.log(2),) * 19))
    took = run_ns(ping(8))
    assert (found.predicted_ns, found.case_class, found.predicted_p99_ns) == (took, OWN, None)
    assert found.interval_ns == pytest.approx((2 * took, 2 * took))
    assert found.measured_ns == 3000
    assert found.error == took / 3000 - 1
    (shipped,) = validate([ping(8)], [NAMED], [LAUNCHES], replays())
    assert shipped.interval_ns == pytest.approx(errors_of(run_errors(), OWN).interval(np.array([took])))


def test_an_application_is_compared_by_its_timed_part() -> None:
    """Of an iteration that takes what a message does, and work before it that does not count."""
    before, iteration = ping(8), ping(1000)
    own = [
        program([one.ops[0], mark(1001), other.ops[0], mark(1002)])
        for one, other in zip(before.programs, iteration.programs, strict=True)
    ]
    (found,) = validate([Schedule(2, tuple(own))], [NAMED], [replace(LAUNCHES, timed_part=True)], replays())
    assert found.predicted_p99_ns == pytest.approx(found.predicted_ns)
    assert 0 < found.predicted_ns < run_ns(Schedule(2, tuple(own)))


def test_cases_are_those_of_paths_that_the_model_has() -> None:
    slower = replace(NAMED, machine=replace(MACHINE, inter=MACHINE.intra or MACHINE.inter))
    other = replace(LAUNCHES, path="tap")
    (found,) = validate([ping(8)], [NAMED, slower], [other, LAUNCHES], replays())
    assert (found.launches.path, found.predicted_ns) == ("vf", run_ns(ping(8))), "the first of that name"
    with pytest.raises(BadInputError, match="no measured case has a path") as error:
        validate([ping(8)], [NAMED], [other], replays())
    assert error.value.hint == "it has tap / tuned / polling"


def test_an_oracle_needs_two_launches_for_each_half() -> None:
    assert oracle_error(np.full(4, 5.0)) == 0
    assert math.isnan(oracle_error(np.full(3, 5.0)))
    assert oracle_error(np.array([10.0, 10.0, 10.0, 10.0, 20.0])) == 0


def test_pairs_are_ordered_only_beyond_their_noise() -> None:
    noisy = case(9, 75, 100, 125)  # its launches range over a half of their median
    assert orders([noisy, case(10, 150)]) == (0, 0)
    assert orders([noisy, case(10, 151)]) == (1, 0)
    assert orders([case(10, 100), case(10, 200)]) == (1, 1), "predicted alike, measured apart"
    assert orders([case(1, 100), case(2, 200), case(3, 150)]) == (3, 1)
    assert wrong_orders([("ep", 100, 0, 2), ("cg", 200, 0, 1), ("ep", 150, 0, 1)]) == (1, 1), "jobs are not compared"
