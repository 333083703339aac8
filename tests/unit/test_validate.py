"""`predict --validate`: a program's measured times beside the predicted ones."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from fake_runs import make_run, rewrite
from nearmetal.cli.main import run as cli
from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.hosts.fake import FakeHost
from nearmetal.predict.conditions import conditions_of, mpi_of
from nearmetal.predict.fit_run import fit_run
from nearmetal.predict.model_file import ModelFile, read_model, write_model
from nearmetal.predict.models import UNBOUNDED, Machine, NamedMachine, PathModel, Segment
from nearmetal.predict.native import Placement
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.simulate import simulate
from nearmetal.predict.trace import Call, CallKind, DoCall, RankTrace, Trace
from nearmetal.predict.validate import (
    MeasuredLaunches,
    MeasuredParts,
    Replays,
    Validated,
    doubts_of_launches,
    measured_launches,
    measured_parts,
    oracle_error,
    orders,
    p99_iterations_ns,
    timed_part_ns,
    validate,
)
from nearmetal.report.prediction_json import CaseJson, ValidationFile, errors_by_class, read, save
from nearmetal.run.trial import carry_out
from nearmetal.store.rundir import RunDir
from nearmetal.store.samples import CellSamples
from nearmetal.study import plan
from nearmetal.study.spec import parse_study
from nearmetal.workloads.samples import decode
from tests.trace_writer import encode_rank, made_rank, rank_file_name
from tests.unit import simulated
from tests.unit.simulated import MACHINE, computing, ping

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STUDY = """
name = "truth"
baseline = "veth"
host = { kind = "fake" }
path = [{ name = "veth" }, { name = "bridge" }]
workload = [
  { name = "app", kind = "command", placement = [0, 1], options = { argv = ["./app"], mpi = true } },
  { name = "latency", sizes = [8], iterations = 30 },
]
trials = { min_blocks = 3, max_blocks = 3 }
"""
PATTERN = """
[pattern]
kind = "halo"
ranks = {ranks}
steps = 1
message_bytes = 8
dims = [{ranks}]
periodic = false
"""


def machine(name: str, latency_us: int) -> NamedMachine:
    path = PathModel((Segment(UNBOUNDED, latency_us * 1_000_000),))
    return NamedMachine(name, "as-found", "polling", Machine(path, path))


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("truth")
    (folder / "s.toml").write_text(STUDY)
    assert cli(["run", str(folder / "s.toml"), "--out", str(folder / "run")]) == 0
    for ranks in (2, 3):
        (folder / f"{ranks}.toml").write_text(PATTERN.format(ranks=ranks))
    model = ModelFile("nearmetal-model", 1, "run", (machine("veth", 10), machine("bridge", 5), machine("tap", 1)))
    write_model(model, folder / "model.json")
    return folder


def one_message(rank: int) -> RankTrace:
    """Return the trace of one of two ranks; the first sends the second a byte."""
    calls = (Call(CallKind.SEND, peer=1, message_bytes=1), Call(CallKind.RECV, peer=0, message_bytes=1))
    return made_rank(rank, 2, calls[rank : rank + 1])


def output_of(*argv: str) -> str:
    result = CliRunner().invoke(predict, list(argv), catch_exceptions=False, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_launches_of_a_run_are_compared_with_predictions(truth: Path) -> None:
    argv = (str(truth / "2.toml"), "--on", str(truth / "model.json"), "--validate", str(truth / "run"))
    cases = {case["path"]: case for case in json.loads(output_of(*argv, "--replicas", "2", "--format", "json"))}
    assert set(cases) == {"veth", "bridge"}
    assert len(cases["veth"]["launches_ns"]) == 6  # the baseline's two labels are one path
    for name, us in (("veth", 10), ("bridge", 5)):
        case = cases[name]
        assert case["predicted_ns"] == us * 1000
        assert case["figures_from"] == ""  # a model file of version 1 does not say
        assert case["measured_ns"] == np.median(case["launches_ns"])
        assert case["error"] == pytest.approx(us * 1000 / case["measured_ns"] - 1)
    assert cases["bridge"]["oracle_error"] is None  # of three launches
    output = " ".join(output_of(*argv, "--replicas", "2").split())
    assert "Median absolute error" in output
    assert "A case has 3 launches; below 20 oracle and order are mostly noise." in output


def test_a_path_whose_launches_failed_is_reported(truth: Path, tmp_path: Path) -> None:
    """The answer had the other paths and said nothing, also where the program to compare with had failed everywhere."""
    host = '{ kind = "fake", options = { "fail.bridge" = "it broke" } }'
    run = make_run(tmp_path / "run", STUDY.replace('{ kind = "fake" }', host))
    on = (str(truth / "2.toml"), "--on", str(truth / "model.json"), "--replicas", "1", "--format", "json")
    found = CliRunner().invoke(predict, [*on, "--validate", str(run)])
    assert {case["path"] for case in json.loads(found.stdout)} == {"veth"}
    left_out = "bridge / as-found / polling is left out: the program failed in 2 trials, first because: it broke"
    assert f"warning: {left_out}\n" in found.stderr
    both = '"fail.veth" = "no", "fail.veth-again" = "no", "fail.bridge"'
    every = STUDY.replace('{ kind = "fake" }', host.replace('"fail.bridge"', both))
    failed = make_run(tmp_path / "failed", every)
    with pytest.raises(BadInputError, match="no measured case") as error:
        output_of(*on, "--validate", str(failed), "--workload", "app")
    assert error.value.hint == "it has no valid launch"


def test_a_part_of_a_launch_is_not_said_to_lack_connections(truth: Path) -> None:
    """An application opens them before its clock starts; of other programs, `doubts_of_launches` says it."""
    on = (str(truth / "2.toml"), "--on", str(truth / "model.json"), "--replicas", "1")
    for more, said in (((), True), (("--validate", str(truth / "run")), False)):
        assert ("open a connection" in CliRunner().invoke(predict, [*on, *more]).stderr.replace("\n", " ")) is said


def test_launches_on_paths_that_are_not_predicted_are_named(truth: Path, tmp_path: Path) -> None:
    """They were left out, and the summary was of the other cases."""
    write_model(ModelFile("nearmetal-model", 1, "mine", (machine("veth", 10), machine("tap", 1))), tmp_path / "m.json")
    argv = (str(truth / "2.toml"), "--validate", str(truth / "run"), "--replicas", "1")
    for on, paths, named in (("m", (), True), ("m", ("veth",), True), ("model", ("veth",), False)):
        asked = [f"--path={path}" for path in paths]
        source = tmp_path / "m.json" if on == "m" else truth / "model.json"
        said = " ".join(CliRunner().invoke(predict, [*argv, "--on", str(source), *asked]).stderr.split())
        assert ("launches on bridge / as-found / polling are not compared: mine has no such path" in said) is named


def test_incomparable_launches_are_reported(truth: Path) -> None:
    on = ("--on", str(truth / "model.json"), "--validate", str(truth / "run"))
    with pytest.raises(BadInputError, match="the trace has 3 ranks, the measured launches 2"):
        output_of(str(truth / "3.toml"), *on)
    with pytest.raises(BadInputError, match="no measured case has a path"):
        output_of(str(truth / "2.toml"), *on, "--path", "tap")
    with pytest.raises(BadInputError, match="1 workloads that are programs, not 'latency'") as error:
        output_of(str(truth / "2.toml"), *on, "--workload", "latency")
    assert error.value.hint == "name one with --workload: app"


def test_a_program_can_be_a_traced_workload_of_a_run(truth: Path, tmp_path: Path) -> None:
    there = RunDir.open(truth / "run")
    record = next(one for one in there.trials() if one.order.workload.label == "app")
    order = replace(record.order, workload=replace(record.order.workload, label="traced", options={"trace": True}))
    files = {f"mpi/{rank_file_name(rank)}": encode_rank(one_message(rank)) for rank in range(2)}
    with RunDir.create(tmp_path / "run", there.info, there.study_text()) as run:
        run.append(order, replace(record.outcome, files=files), (), attempt=1, started_utc=record.started_utc)
    on = ("--on", str(truth / "model.json"), "--path", "veth", "--replicas", "1")
    (case,) = json.loads(output_of(f"{tmp_path / 'run'}:traced", *on, "--format", "json"))
    assert case["quantiles"][0]["ns"] == 10_000
    with pytest.raises(BadInputError, match="no traces of a workload 'app'") as error:
        output_of(f"{tmp_path / 'run'}:app", *on)
    assert error.value.hint == "it has traces of traced"
    with pytest.raises(BadInputError, match="no traces of a workload 'app'") as error:
        output_of(f"{truth / 'run'}:app", *on)
    assert "trace = true" in str(error.value.hint)


def test_traces_of_several_paths_are_not_taken_for_launches_of_one(truth: Path, tmp_path: Path) -> None:
    """They were replayed in turn, without a word: ranks of one may compute, or wait, otherwise than on the baseline."""
    there = RunDir.open(truth / "run")
    record = next(one for one in there.trials() if one.order.workload.label == "app")
    work = replace(record.order.workload, label="traced", options={"trace": True})
    ways = [("bridge", "as-found", 7), ("veth", "a", 5), ("veth-again", "as-found", 1), ("veth", "as-found", 1)]
    with RunDir.create(tmp_path / "run", there.info, there.study_text()) as run:
        for trial, (label, setting, messages) in enumerate(ways):
            ranks = (replace(one_message(rank), program=(DoCall(0),) * messages, trace_id=trial) for rank in range(2))
            files = {f"mpi/{rank_file_name(one.rank)}": encode_rank(one) for one in ranks}
            path = replace(record.order.path, label=label)
            order = replace(record.order, workload=work, path=path, setting=setting, trial=trial)
            outcome = replace(record.outcome, files=files)
            run.append(order, outcome, (), attempt=1, started_utc=record.started_utc)
    on = ("--on", str(truth / "model.json"), "--path", "veth", "--replicas", "4")
    result = CliRunner().invoke(predict, [f"{tmp_path / 'run'}:traced", *on, "--format", "json"])
    (case,) = json.loads(result.stdout)
    assert case["messages"] == 1
    assert [one["ns"] for one in case["quantiles"]] == [10_000] * 3
    expected = "traced on veth / as-found / polling and on veth / a / polling, bridge / as-found / polling, where ranks"
    assert expected in " ".join(result.stderr.split())


def test_parts_are_replaced_one_at_a_time_by_their_measurement(truth: Path, tmp_path: Path) -> None:
    """Launches over veth left traces, and every path has ping-pong: each replaces only its own part."""
    study = parse_study(STUDY.replace("sizes = [8]", "sizes = [8, 1024]"), "truth")
    left = {f"mpi/{rank_file_name(rank)}": encode_rank(one_message(rank)) for rank in range(2)}
    host = FakeHost(study.host.options)
    with RunDir.create(tmp_path / "run", RunDir.open(truth / "run").info, STUDY) as run:
        for order in plan.block(study, 0):
            outcome = host.carry_out(order, carry_out)
            samples = decode(outcome)
            if (order.path.label, order.workload.label) == ("veth", "app"):
                outcome = replace(outcome, files={**outcome.files, **left})
            run.append(order, outcome, samples, attempt=1, started_utc="2026-11-22T00:00:00Z")
    argv = (str(truth / "twice.toml"), "--on", str(truth / "model.json"), "--validate", str(tmp_path / "run"))
    (truth / "twice.toml").write_text(PATTERN.format(ranks=2).replace("steps = 1", "steps = 2"))
    cases = {case["path"]: case for case in json.loads(output_of(*argv, "--replicas", "1", "--format", "json"))}
    own = {one.path: one for one in fit_run(RunDir.open(tmp_path / "run")).machines}
    for name, latency_us in (("veth", 10), ("bridge", 5)):
        case = cases[name]
        predicted = {part: (error + 1) * case["measured_ns"] for part, error in case["error_with_measured"].items()}
        assert case["predicted_ns"] == pytest.approx(2 * latency_us * 1000)
        one_way_ns = own[name].machine.inter.segment(8).one_way_ps(8) / 1000
        assert predicted.pop("messages") == pytest.approx(2 * one_way_ns, rel=0.5)
        assert predicted == pytest.approx({"computing": latency_us * 1000} if name == "veth" else {})
    output = " ".join(output_of(*argv, "--replicas", "1").split())
    assert "computing: the error with traces of the measured launches themselves." in output
    assert "messages: the error with paths fitted from the run of the launches." in output


@pytest.mark.parametrize("changed", [{"kind": "omb"}, {"options": {"pace_us": 500}}])
def test_ping_pong_that_cannot_be_fitted_beside_launches_is_left_out(
    truth: Path, tmp_path: Path, changed: dict[str, object]
) -> None:
    """Launches beside OSU's `latency` could not be compared with predictions: there was no ping-pong to fit."""
    study = parse_study(STUDY.replace("sizes = [8]", "sizes = [8, 1024]"), "truth")
    host = FakeHost(study.host.options)
    with RunDir.create(tmp_path / "run", RunDir.open(truth / "run").info, STUDY) as run:
        for order in plan.block(study, 0):
            outcome = host.carry_out(order, carry_out)
            samples = decode(outcome)
            if order.workload.label == "latency":
                order = replace(order, workload=replace(order.workload, **changed))  # type: ignore[arg-type]  # noqa: PLW2901
            run.append(order, outcome, samples, attempt=1, started_utc="2026-11-22T00:00:00Z")
    argv = (str(truth / "2.toml"), "--on", str(truth / "model.json"), "--validate", str(tmp_path / "run"))
    cases = json.loads(output_of(*argv, "--replicas", "1", "--format", "json"))
    assert [case["error_with_measured"] for case in cases] == [{}, {}]


def test_a_part_as_measured_keeps_what_holds_for_the_other_part() -> None:
    """`--compute-scale` scaled the launches' own traces, and not the computing beside the launches' own ping-pong."""
    launches = MeasuredLaunches("vf", "tuned", "polling", (0, 1), False, np.array([1e6] * 3))
    named = NamedMachine("vf", "tuned", "polling", replace(MACHINE, compute_scale=3.0))
    other = replace(named, machine=replace(MACHINE, inter=simulated.path(latency=7000)), launches=())
    parts = MeasuredParts({launches.key: [computing(5, 5)]}, {launches.key: other})
    replays = Replays(ModelFile("nearmetal-model", 2, "run", (named,)), 1, 0, parts)
    (found,) = validate([computing(2, 2)], [named], [launches], replays)
    assert found.predicted_ns == 3 * 2_000_000
    assert found.parts_ns == {"computing": 5_000_000, "messages": 3 * 2_000_000}


@pytest.mark.parametrize(("mpi", "limit"), [("the run's", 100), ("mpich 9.9", 65536 - 64)])
def test_ping_pong_beside_launches_has_the_eager_limit_that_is_predicted_with(
    truth: Path, tmp_path: Path, mpi: str, limit: int
) -> None:
    """Column `messages` of MPICH, whose limit the user had given, was of messages that never wait for a receiver."""
    study = STUDY.replace("sizes = [8]", "sizes = [8, 1024]")
    run = RunDir.open(make_run(tmp_path / "run", study))
    label = mpi_of(run.trials()[0]) if mpi == "the run's" else mpi
    inter = replace(machine("veth", 10).machine.inter, eager_up_to_bytes=100)
    named = replace(machine("veth", 10), mpi=label, machine=Machine(inter, inter))
    own = measured_parts(run, "app", [replace(machine("shm", 1), kind="shm", mpi=label), named]).messages
    assert own[named.key].machine.inter.eager_up_to_bytes == limit


def test_the_figure_of_a_command_is_its_time(truth: Path) -> None:
    found = measured_launches(RunDir.open(truth / "run"))
    assert [(one.path, one.placement, one.timed_part, one.ns.size) for one in found] == [
        ("bridge", (0, 1), False, 3),
        ("veth", (0, 1), False, 6),
    ]


def test_launches_that_took_no_time_are_refused(truth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose figure is `took 0.00 s` ended --validate in a traceback, a division by zero."""
    rows = RunDir.rows
    nothing = {"ns": pa.array([0], pa.int64())}
    monkeypatch.setattr(RunDir, "rows", lambda *of: rows(*of) and pa.table(nothing))
    argv = (str(truth / "2.toml"), "--on", str(truth / "model.json"), "--validate", str(truth / "run"))
    with pytest.raises(BadInputError, match=r"a launch of app on (veth|bridge) took 0 s"):
        output_of(*argv)


def test_the_timed_part_is_between_the_marks_of_any_version() -> None:
    for begin, end in ((1001, 1002), (3, 4)):
        rows = [(0, begin, 100), (0, end, 300), (0, begin, 400), (0, end, 900), (1, begin, 50), (1, end, 350)]
        rows += [(1, begin, 420), (1, end, 800), (1, 7, 5)]
        total, iterations = timed_part_ns(np.array([(rank, level, time * 1000) for rank, level, time in rows]))
        assert total == 800
        assert iterations.tolist() == [300, 500]
    with pytest.raises(BadInputError, match="does not mark iterations"):
        timed_part_ns(np.array([(0, 7, 5)]))


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 3, 1), (0, 3, 2)],
        [(0, 4, 1), (0, 3, 2)],
        [(0, 3, 1), (0, 4, 2), (0, 3, 3), (0, 4, 4), (1, 3, 1), (1, 4, 2)],
        [(0, 3, 1), (0, 4, 5), (0, 3, 7)],
    ],
)
def test_pcontrol_levels_with_another_meaning_are_not_iterations(rows: list[tuple[int, int, int]]) -> None:
    """They ended in a traceback, or in iterations of negative duration."""
    marks = np.array(rows)
    found = replace(simulate(ping(8), MACHINE, Placement.block(2, 1)), marks=(marks,))
    assert p99_iterations_ns(found) is None
    with pytest.raises(BadInputError, match="does not mark iterations"):
        timed_part_ns(marks)
    beside = np.array([(0, 1001, 0), (0, 1002, 5000), (1, 7, 1)])  # a rank that uses only another level
    assert p99_iterations_ns(replace(found, marks=(beside,))) == [5]


def test_the_p99_is_that_of_each_replayed_launch() -> None:
    """One of eight replays is slow: with pooling its iterations were the p99 of all."""
    begins = np.arange(20) * 10_000_000
    marks = tuple(
        np.array([row for at in begins for row in ((0, 1001, at), (0, 1002, at + 1000 * ns))])
        for ns in (2500, *[1000] * 7)
    )
    found = replace(simulate(ping(8), MACHINE, Placement.block(2, 1), replicas=8), marks=marks)
    assert p99_iterations_ns(found) == pytest.approx([2500, *[1000] * 7])
    assert p99_iterations_ns(replace(found, marks=())) is None


def test_an_oracle_is_no_better_than_the_agreement_of_launches() -> None:
    assert oracle_error(np.full(20, 5.0)) == 0
    assert oracle_error(np.random.default_rng(1).normal(100, 10, 40)) == pytest.approx(0.027, abs=0.012)
    assert math.isnan(oracle_error(np.full(3, 5.0)))


def case(predicted: float, *measured: float) -> Validated:
    launches = MeasuredLaunches("p", "s", "polling", (0, 1), timed_part=False, ns=np.array(measured))
    return Validated(launches, predicted, None, "own cores", 0.0)


def test_an_interval_contains_the_launches_at_its_ends() -> None:
    assert math.isnan(case(10, 99).inside)
    assert replace(case(10, 98, 99, 100, 101, 102), interval_ns=(99, 101)).inside == 0.6
    assert case(12, 9, 10, 11).error == pytest.approx(0.2)


def test_only_pairs_that_measurements_distinguish_are_ordered() -> None:
    assert orders([case(10, 99, 100, 101), case(12, 119, 120, 121)]) == (1, 0)
    assert orders([case(12, 99, 100, 101), case(10, 119, 120, 121)]) == (1, 1)
    assert orders([case(12, 99, 100, 101), case(10, 100, 120, 140)]) == (0, 0)
    assert orders([case(12, 100), case(10, 105)]) == (0, 0)


@pytest.mark.parametrize(
    "argv",
    [
        ("--decide",),
        ("--sensitivity",),
        ("--baseline", "veth"),
        ("--save-model", "x"),
        ("--per-node", "2"),
        ("--vms-per-host", "2"),
    ],
)
def test_an_option_that_validation_ignores_is_refused(truth: Path, argv: tuple[str, ...]) -> None:
    on = (str(truth / "2.toml"), "--on", str(truth / "model.json"))
    with pytest.raises(BadInputError, match=f"{argv[0]} has no effect with --validate"):
        output_of(*on, "--validate", str(truth / "run"), *argv)
    with pytest.raises(BadInputError, match="--workload has no effect without --validate"):
        output_of(*on, "--workload", "app")
    machine = truth / "machine.toml"
    machine.write_text("vms_per_host = 2\ncores = 4\n")  # changed the processors of the launches' nodes
    with pytest.raises(BadInputError, match="vms_per_host in the machine file has no effect with --validate"):
        output_of(*on, "--validate", str(truth / "run"), "--machine", str(machine))
    with pytest.raises(BadInputError, match="--eager has no effect on"):
        output_of(*on, "--eager", "4 KiB")


def test_launches_unlike_the_predicted_ones_are_reported(truth: Path) -> None:
    (launches, *_) = measured_launches(RunDir.open(truth / "run"))
    assert (launches.path, launches.command, launches.wall) == ("bridge", ("app",), True)
    path = replace(machine("bridge", 5), host="lab", mpi="mpich 4.0", knobs="nic.rx-usecs = 3")
    schedule = replace(schedule_from_trace(Trace((one_message(0), one_message(1)))), command=("other", "4"))
    doubts = [doubt.said for doubt in doubts_of_launches([schedule], path, launches)]
    assert doubts[:3] == [
        "the paths were measured on the host lab, the launches on the host fake",
        f"the paths were measured with mpich 4.0, the launches with {dict(launches.conditions)['with']}",
        "the paths were measured under the setting nic.rx-usecs = 3, the launches under the setting as found",
    ]
    assert doubts[3] == "the trace is of 'other 4', the launches are of 'app'"
    assert "wall clock" in doubts[4]
    same = replace(path, conditions=launches.conditions)
    several = replace(launches, figures=20, wall=False)
    *_, figures, opened = doubts_of_launches([schedule], replace(path, conditions=launches.conditions), several)
    assert figures.said == "a launch has up to 20 figures, and its time is taken to be their median"
    assert opened.said.startswith("the first message between two ranks opens a connection, which the program's own")
    for command in ((), ("app",), ("app", "8")):  # for a pattern, and for an application without its class
        doubts = [doubt.said for doubt in doubts_of_launches([replace(schedule, command=command)], same, launches)]
        assert len(doubts) == 1


def test_launches_of_a_run_continued_on_a_changed_machine_are_reported(truth: Path, tmp_path: Path) -> None:
    """The last launch represented all of them, and hid the change if it matched the paths."""
    root = tmp_path / "run"
    shutil.copytree(truth / "run", root)
    records = sorted((root / "trials").glob("*.json"))
    for path in records[: len(records) // 2]:
        rewrite(path, lambda raw: raw["outcome"]["facts"].update({"kernel.release": "6.1"}))
    launches = next(one for one in measured_launches(RunDir.open(root)) if len(one.ns) > 1)
    kernels = [words for how, words in launches.conditions if how == "with kernel"]
    assert len(kernels) == 2
    schedule = schedule_from_trace(Trace((one_message(0), one_message(1))))
    for kernel in kernels:
        named = replace(machine("bridge", 5), conditions=(("with kernel", kernel),))
        doubts = [doubt.said for doubt in doubts_of_launches([schedule], named, launches)]
        assert doubts[0] == f"the launches ran with kernel {' and '.join(kernels)}: their times are mixed"


def test_launches_on_another_number_of_processors_are_reported(truth: Path) -> None:
    """Four ranks of a quota of two processors were held against a prediction with one for each, without a word."""
    run = RunDir.open(truth / "run")
    (record, *_) = run.trials()
    facts = {**record.outcome.facts, "nodes.processors": 4}
    four = conditions_of(run, replace(record, outcome=replace(record.outcome, facts=facts)))
    named = replace(machine("bridge", 5), conditions=tuple(four.items()))
    facts["nodes.processors"] = 1
    one = conditions_of(run, replace(record, outcome=replace(record.outcome, facts=facts)))
    launches = replace(measured_launches(run)[0], conditions=tuple(one.items()))
    launches = replace(launches, wall=False, timed_part=True, figures=1)
    schedule = schedule_from_trace(Trace((one_message(0), one_message(1))))
    assert [doubt.said for doubt in doubts_of_launches([schedule], named, launches)] == [
        "the paths were measured on nodes with 4 processors, the launches on nodes with 1 processor"
    ]
    both = replace(launches, conditions=(*launches.conditions, ("on nodes with", "4 processors")))
    (mixed,) = doubts_of_launches([schedule], named, both)
    assert mixed.said == "the launches ran on nodes with 1 processor and 4 processors: their times are mixed"


def test_paths_of_one_name_with_other_options_are_reported(truth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.open(truth / "run")
    (launches, *_) = measured_launches(run)
    facts = {"lab.wire_delay_us": 2.0, "lab.wire_rate_mbit": 1000.0, "cpu.model": "EPYC"}
    (record, *_) = run.trials()
    order = replace(record.order, path=replace(record.order.path, options={"mtu": 9000}))
    other = conditions_of(run, replace(record, order=order, outcome=replace(record.outcome, facts=facts)))
    named = replace(
        machine("bridge", 5), conditions=(("over", other["over"]), ("with", dict(launches.conditions)["with"]))
    )
    (doubt, _) = doubts_of_launches([schedule_from_trace(Trace((one_message(0), one_message(1))))], named, launches)
    assert doubt.said == "the paths were measured over bridge, mtu = 9000, the launches over bridge"
    assert other["on the wire"] == "delay_us = 2.0, rate_mbit = 1000.0"
    assert other["on a processor"] == "EPYC"
    run.info = replace(run.info, host_kind="lab")  # one instruction per nanosecond, but each model has its own
    in_lab = conditions_of(run, replace(record, outcome=replace(record.outcome, facts=facts)))
    assert in_lab["on a processor"] == "an emulated EPYC"


@pytest.mark.parametrize(
    ("paths", "launches", "differ"),
    [
        ("an emulated QEMU TCG CPU", "an emulated EPYC", True),  # machines `base` and `kvm` of the lab
        ("an emulated processor of the lab", "an emulated EPYC", False),  # a model file of an older version
        ("an emulated processor of the lab", "EPYC", True),
        ("an emulated EPYC", "EPYC", True),
    ],
)
def test_lab_processors_are_distinguished_by_their_model(
    *, truth: Path, paths: str, launches: str, differ: bool
) -> None:
    """The kernel of `base` took 100 us more to copy 64 KiB than that of `kvm`, and `predict` did not report it."""
    (measured, *_) = measured_launches(RunDir.open(truth / "run"))
    measured = replace(measured, conditions=(("on a processor", launches),), wall=False, timed_part=True, figures=1)
    named = replace(machine("bridge", 5), conditions=(("on a processor", paths),))
    found = doubts_of_launches([schedule_from_trace(Trace((one_message(0), one_message(1))))], named, measured)
    assert [one.said for one in found] == [f"the paths were measured on {paths}, the launches on {launches}"] * differ


def test_a_rate_cannot_be_compared_with_predicted_times(truth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.open(truth / "run")
    records = [
        replace(one, order=replace(one.order, workload=replace(one.order.workload, options=options)))
        for one in run.trials()
        for options in [one.order.workload.options | {"unit": "MB/s"}]
    ]
    monkeypatch.setattr(RunDir, "trials", lambda _: records)
    with pytest.raises(BadInputError, match="measures a rate, MB/s"):
        measured_launches(run)


def test_a_path_inside_a_node_is_compared_with_ranks_of_one_node() -> None:
    inside = MeasuredLaunches("shm", "as-found", "polling", (0, 1), False, np.array([1.0]))
    assert inside.placed(replace(machine("shm", 1), kind="shm")).host_of.max() == 0
    assert inside.placed(machine("veth", 1)).host_of.max() == 1


def _assert_a_saved_model_answers_alike(on: tuple[str, ...], errors: Sequence[str], saved: Path) -> None:
    """Its intervals of run times were those of the user's errors, and its ratios had the shipped ones."""
    asked = ("--decide", "--path", "bridge,veth", "--baseline", "veth", "--format", "json")
    answer = output_of(*on, *errors, *asked, "--save-model", str(saved))
    of_saved = (on[0], "--on", str(saved), *on[3:])
    assert json.loads(output_of(*of_saved, *asked)) == json.loads(answer)
    assert json.loads(output_of(*on, *asked)) != json.loads(answer)
    assert output_of(*of_saved, *errors[:2], *asked) == output_of(*on, *errors[:2], *asked), "they replace saved ones"


def times_as_long(case: CaseJson, times: int) -> CaseJson:
    """Return other launches with the same error."""
    launches_ns = tuple(ns * times for ns in case.launches_ns)
    return replace(case, predicted_ns=case.predicted_ns * times, launches_ns=launches_ns)


def test_validated_launches_are_saved_and_give_intervals(truth: Path, tmp_path: Path) -> None:
    """Each launch is a case; the next prediction of their class takes its interval from them."""
    on = (str(truth / "2.toml"), "--on", str(truth / "model.json"), "--replicas", "1")
    kept = tmp_path / "mine.validation.json"
    with pytest.raises(BadInputError, match=r"does not end in \.validation\.json"):
        output_of(
            *on, "--validate", str(truth / "run"), "--workload", "app", "--save", str(tmp_path / "x.prediction.json")
        )
    output_of(*on, "--validate", str(truth / "run"), "--workload", "app", "--save", str(kept))
    file, model = read(kept, ValidationFile), read_model(truth / "model.json")
    launches = {one.key: one.ns.tolist() for one in measured_launches(RunDir.open(truth / "run"), "app")}
    assert {one.key: list(one.launches_ns) for one in file.cases} == launches
    with pytest.raises(BadInputError, match=r"--errors has those of the launches of .*/run on bridge / as-found"):
        output_of(*on, "--validate", str(truth / "run"), "--workload", "app", "--errors", str(kept))
    save(kept, ValidationFile, file.program, model, cases=file.cases * 2)  # of one file they counted twice
    with pytest.raises(BadInputError, match=r"mine.validation.json holds twice the same launches on bridge / "):
        output_of(*on, "--errors", str(kept))
    many = replace(file, cases=tuple(times_as_long(one, times) for times in range(1, 11) for one in file.cases))
    save(kept, ValidationFile, file.program, model, cases=many.cases)
    rows = {row["path"]: row for row in json.loads(output_of(*on, "--errors", str(kept), "--format", "json"))}
    row = rows["veth"]
    logs = sorted(math.log(np.median(one.launches_ns) / one.predicted_ns) for one in many.cases)
    assert row["validated"]["cases"] == len(many.cases)
    assert row["validated"]["factors"] == pytest.approx([math.exp(logs[0]), math.exp(logs[-1])])
    assert rows["tap"]["validated"]["cases"] == 60  # a class without the user's own cases uses the shipped ones
    save(kept, ValidationFile, file.program, model, cases=file.cases)
    few = " ".join(output_of(*on, "--errors", str(kept), "--decide").split())
    assert "Only 2 validated cases (own cores): an interval needs 19; those that ship make one." in few
    assert "of validated pairs of paths (own cores) were 0.93 to 1.10 times" in few  # from the shipped pairs
    ratios = {case.path: math.exp(case.error) for case in file.cases}
    with pytest.raises(BadInputError, match=r"hold the same launches on bridge / .*, which would then count twice"):
        output_of(
            *on, *("--errors", str(kept)) * 20, "--decide", "--baseline", "veth"
        )  # they gave an interval from one case
    again = tmp_path / "again.validation.json"  # validated with another seed or other paths, they counted twice
    cases = tuple(replace(one, predicted_ns=one.predicted_ns * 1.01) for one in file.cases)
    save(again, ValidationFile, file.program, model, cases=cases)
    with pytest.raises(BadInputError, match=r"again.validation.json hold the same launches on bridge / "):
        output_of(*on, "--errors", str(kept), "--errors", str(again))
    argv: list[str] = []
    for times in range(1, 21):
        other = tmp_path / f"{times}.validation.json"
        argv += ["--errors", str(other)]
        cases = tuple(times_as_long(one, times) for one in file.cases)
        save(other, ValidationFile, file.program, model, cases=cases)
    table = output_of(*on, *argv, "--decide", "--baseline", "veth")
    factor = f"{ratios['bridge'] / ratios['veth']:.2f}"  # of the user's own pairs, all alike
    assert f"of validated pairs of paths (own cores) were {factor} to {factor} times" in " ".join(table.split())
    _assert_a_saved_model_answers_alike(on, argv, tmp_path / "saved.json")
    kept.write_text(kept.read_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(ForeignFileError, match="not a file of this kind in version 2"):
        output_of(*on, "--errors", str(kept))


def test_the_p99_of_each_launch_counts_for_the_errors_of_its_class(truth: Path, tmp_path: Path) -> None:
    there = RunDir.open(truth / "run")
    record = next(one for one in there.trials() if one.order.workload.label == "app")
    work = replace(record.order.workload, label="ep", kind="application", options={"operation": "ep", "class": "S"})
    ns = np.arange(1, 201, dtype=np.int64).reshape(2, 100)  # the slower rank's are 101 to 200
    total = ns.sum(axis=1, keepdims=True)
    cells = [
        CellSamples(name, 0, 0, (0, 1), one, one, np.zeros(one.shape, np.uint8))
        for name, one in (("ep.S", ns), ("ep.S.total", total))
    ]
    with RunDir.create(tmp_path / "run", there.info, there.study_text()) as run:
        order = replace(record.order, workload=work)
        run.append(order, replace(record.outcome, files={}), cells, attempt=1, started_utc=record.started_utc)
    (launches,) = measured_launches(RunDir.open(tmp_path / "run"))
    assert launches.p99_ns == pytest.approx((np.quantile(ns[1], 0.99),))
    entry = {"setting": "a", "progress": "polling", "nodes": (0, 1), "path": "vf", "predicted_ns": 1.0}
    case = CaseJson(
        case_class="guest", launches_ns=(1.0, 2.0, 9.0), predicted_p99_ns=2.0, p99_ns=(4.0, 1.0), **entry
    )  # fmt: skip
    file = ValidationFile(
        format="nearmetal-validation", version=2, nearmetal_version="", created_utc="", program="", model="",
        cases=(case, replace(case, predicted_p99_ns=None)),
    )  # fmt: skip
    of_run, of_p99 = errors_by_class([file])
    assert of_run["guest"] == pytest.approx((math.log(2), math.log(2)))
    assert of_p99["guest"] == pytest.approx((math.log(0.5), math.log(2)))
