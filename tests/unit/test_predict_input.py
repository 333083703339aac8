"""The errors of `predict` and `place` for wrong names, placements and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fake_runs import STUDY, list_anew, make_run
from nearmetal.cli.main import run as cli
from nearmetal.cli.place import command as place
from nearmetal.cli.place import parse_hosts
from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, StoreError
from nearmetal.predict.model_file import ModelFile, read_model, write_model
from nearmetal.predict.models import Machine, NamedMachine
from nearmetal.predict.place import Slots
from nearmetal.store.rundir import RunDir
from tests.unit.simulated import ping
from tests.unit.test_predict_verbs import measured, run

if TYPE_CHECKING:
    import click

BARRIER = {"collective": "barrier", "nodes": [0, 1]}
HOSTS = ("--hosts", "a:1,b:1", "--tries", "0")


@pytest.fixture
def model(tmp_path: Path) -> str:
    machine = Machine(None, measured(5, 8, 1024))
    named = (NamedMachine(name, "as-found", "polling", machine) for name in ("bridge", "veth"))
    write_model(ModelFile("nearmetal-model", 1, "run", tuple(named)), tmp_path / "model.json")
    return str(tmp_path / "model.json")


def refused(command: click.Command, *argv: str) -> NearmetalError:
    with pytest.raises(NearmetalError) as error:
        run(command, *argv)
    return error.value


def test_errors_tell_a_path_that_is_not_a_trace_from_a_trace_without_ranks(tmp_path: Path, model: str) -> None:
    """All of them gave the error of a directory without a trace."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "rank-000000.nmtrace.part").touch()
    for name, message, hint in (
        ("nowhere", "there is no trace 'nowhere'", "nearmetal trace -- mpirun"),
        ("file", "file is a file", "the directory that"),
        ("run", "run is a run", "run:WORKLOAD"),
        ("killed", "killed holds no trace", "only .part files"),
    ):
        error = refused(predict, str(tmp_path / name), "--on", model)
        assert message in error.message.replace(f"{tmp_path}/", "")
        assert hint in error.hint


def test_a_workload_traced_in_a_run_is_not_launched_again_to_check(tmp_path: Path, model: str) -> None:
    """RUN:WORKLOAD was reported as missing."""
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "fitted").mkdir()
    argv = (f"{tmp_path}:cg", "--on", str(tmp_path / "fitted"), "--hosts", "a:1,b:1", "--check")
    assert "was traced by a run, whose applications --check does not launch" in refused(place, *argv).message


def test_a_model_file_is_not_accepted_as_a_file_of_errors(tmp_path: Path, model: str) -> None:
    (tmp_path / "p.toml").write_text('[pattern]\nkind = "cg"\nranks = 4\nsteps = 1\nmessage_bytes = 8\n')
    error = refused(predict, str(tmp_path / "p.toml"), "--on", model, "--errors", model)
    assert "predict --validate RUN --save NAME.validation.json" in error.hint


@pytest.mark.parametrize("line", ["dims = [2, 2]", "periodic = false"])
@pytest.mark.parametrize("kind", ["cg", "alltoall"])
def test_keys_of_a_halo_are_refused_in_other_patterns(tmp_path: Path, model: str, line: str, kind: str) -> None:
    """They were silently ignored."""
    text = f'[pattern]\nkind = "{kind}"\nranks = 4\nsteps = 1\nmessage_bytes = 8\n{line}\n'
    (tmp_path / "p.toml").write_text(text)
    error = refused(predict, str(tmp_path / "p.toml"), "--on", model)
    assert f"{line.split(maxsplit=1)[0]} belongs to a halo, but the pattern is {kind}" in error.message


def test_a_missing_model_is_refused_with_the_available_ones(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[pattern]\nkind = "cg"\nranks = 4\nsteps = 1\nmessage_bytes = 8\n')
    error = refused(predict, str(tmp_path / "p.toml"), "--on", str(tmp_path / "nowhere"))
    assert "a run directory, or a file that --save-model wrote" in error.hint


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"measured": [{**BARRIER, "times_ps": [[0, {"probabilities": [0], "values_ps": [-5]}]]}]}, "took -5 ps"),
        ({"measured": [{**BARRIER, "times_ps": []}]}, "the sizes of the measured barrier do not increase"),
        ({"cores": {"count": 0}}, "a computer with 0 cores"),
        ({"cores": {"count": 2, "uneven_share": 1.5}}, "1.5 of the time cannot be uneven"),
        ({"inter": {"measured_bytes": [64, 8]}}, "the measured sizes do not increase"),
    ],
)
def test_a_model_file_of_impossible_numbers_is_refused(
    tmp_path: Path, model: str, changed: dict[str, Any], message: str
) -> None:
    """They were replayed as given, or silently left out."""
    file = json.loads(Path(model).read_text())
    machine = file["machines"][0]["machine"]
    for key, value in changed.items():
        machine[key] = {**machine[key], **value} if key == "inter" else value
    (tmp_path / "changed.json").write_text(json.dumps(file))
    with pytest.raises(ForeignFileError, match=message):
        read_model(tmp_path / "changed.json")


def test_a_model_file_with_a_machine_twice_or_unsorted_errors_is_refused(tmp_path: Path, model: str) -> None:
    file = json.loads(Path(model).read_text())
    for changed, message in (
        ({"machines": 2 * file["machines"]}, "it has bridge / as-found / polling twice"),
        ({"validated": {"own cores": [0.3, 0.1]}}, "the errors of the class 'own cores' are not sorted"),
    ):
        (tmp_path / "changed.json").write_text(json.dumps(file | changed))
        with pytest.raises(ForeignFileError, match=message):
            read_model(tmp_path / "changed.json")


def test_the_path_inside_a_node_of_an_older_model_file_joins_no_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kind it was replayed between nodes, as the fastest of the paths."""
    machine = Machine(None, measured(5, 8, 1024))
    named = tuple(NamedMachine(name, "as-found", "polling", machine) for name in ("veth", "shm"))
    write_model(ModelFile("nearmetal-model", 1, "run", named), tmp_path / "old.json")
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [ping(8)])
    argv = ("mine", "--on", str(tmp_path / "old.json"), "--replicas", "1")
    assert [row["path"] for row in json.loads(run(predict, *argv, "--format", "json")[0])] == ["veth"]
    assert "go between nodes, but shm was measured inside one" in refused(predict, *argv, "--path", "shm").message


@pytest.mark.parametrize(
    "argv", [("--path", "vteh"), ("--path", "veth,brigde"), ("--setting", "as-fond"), ("--baseline", "bridg")]
)
def test_a_typo_gets_a_suggestion(model: str, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]) -> None:
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [ping(8)])
    assert "did you mean '" in refused(predict, "mine", "--on", model, *argv).hint


PATTERN = '[pattern]\nkind = "halo"\nranks = 4\nsteps = 1\nmessage_bytes = 8\n'


@pytest.mark.parametrize("other", ["cg.toml", "trace"])
def test_a_pattern_does_not_count_as_a_launch_of_another_program(tmp_path: Path, model: str, other: str) -> None:
    """Two programs were replayed alternately: a median between both, and an interval from one to the other."""
    (tmp_path / "halo.toml").write_text(PATTERN)
    (tmp_path / "cg.toml").write_text(PATTERN.replace("halo", "cg"))
    error = refused(predict, str(tmp_path / other), str(tmp_path / "halo.toml"), "--on", model)
    assert "toml is a pattern, a program by itself, and 2 programs are named" in error.message
    assert "only traces can be launches of one program" in error.hint


@pytest.mark.parametrize(
    ("ranks", "message"),
    [((), "the traces have 2 and 4 ranks"), (("--ranks", "4"), ", and --ranks 4 is not more than both")],
)
def test_traces_of_two_sizes_need_a_third(
    model: str, monkeypatch: pytest.MonkeyPatch, ranks: tuple[str, ...], message: str
) -> None:
    """The errors were `of [2, 4] ranks on 6 machines` and `the trace has 2, 4 ranks, not 4`."""
    sizes = iter((2, 4))
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [replace(ping(8), ranks=next(sizes))])
    error = refused(predict, "few", "many", "--on", model, *ranks)
    assert error.message.endswith(message)
    assert "a larger --ranks" in error.hint


def test_empty_files_are_reported(tmp_path: Path, model: str) -> None:
    (tmp_path / "empty.toml").touch()
    (tmp_path / "p.toml").write_text(PATTERN)
    pattern, empty = str(tmp_path / "p.toml"), str(tmp_path / "empty.toml")
    assert refused(predict, empty, "--on", model).message == f"{empty} has no table"
    error = refused(predict, pattern, "--on", model, "--machine", empty)
    assert error.message == f"{empty} sets nothing that differs from the measured machine"
    assert "vms_per_host" in error.hint
    assert "a file that --save-model" in refused(predict, pattern, "--on", pattern).hint


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ('compute = "50"', (), "p.toml: compute: '50' is not a duration"),
        ("dims = [3, 2]", (), "p.toml: dims [3, 2] hold 6 ranks, not 4"),
        ("", ("--topology", "fat-tree:2:2", "--hop", "300"), "--hop: '300' is not a duration"),
        ("", ("--interrupts", "igbvf:usecs=3", "--delivery", "2"), "--delivery: '2' is not a duration"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key(
    tmp_path: Path, model: str, key: str, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "p.toml").write_text(f"{PATTERN}{key}\n")
    error = refused(predict, str(tmp_path / "p.toml"), "--on", model, *options)
    assert error.message.replace(f"{tmp_path}/", "") == message


def test_a_host_with_a_colon_needs_a_number() -> None:
    """`n1:` was accepted as one slot, like `n1`."""
    with pytest.raises(BadInputError, match="'n1:' is not a host"):
        parse_hosts("n0:2,n1:")
    assert parse_hosts("n0:2,n1").counts == (2, 1)


@pytest.mark.parametrize("paths", ["veth,,bridge", "veth, "])
def test_an_empty_path_name_is_refused(model: str, monkeypatch: pytest.MonkeyPatch, paths: str) -> None:
    """The error was that there is `no path in the model`."""
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [ping(8)])
    error = refused(predict, "mine", "--on", model, "--path", paths)
    assert error.message == f"--path {paths!r} has an empty name"
    assert "--path native,vf" in error.hint
    run(predict, "mine", "--on", model, "--path", "veth, bridge", "--replicas", "1")


@pytest.mark.parametrize("option", ["--on", "--machine", "--moderated", "--validate", "--against"])
def test_a_second_run_of_an_option_that_takes_one_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last was taken without a word, although --path, --setting and --errors may be repeated."""
    argv = ("compare", "run") if option == "--against" else ("predict", "p.toml")
    assert cli([*argv, option, "one", option, "other"]) == 2
    assert f"error: Invalid value for '{option}': it takes one, not one and other.\n" in capsys.readouterr().err


def test_an_unmeasured_combination_is_refused_with_the_measured_ones(tmp_path: Path, model: str) -> None:
    tuned, polled = (replace(named, setting=named.path) for named in read_model(Path(model)).machines)
    write_model(ModelFile("nearmetal-model", 1, "run", (tuned, polled)), tmp_path / "two.json")
    (tmp_path / "p.toml").write_text('[pattern]\nkind = "cg"\nranks = 4\nsteps = 1\nmessage_bytes = 8\n')
    argv = (str(tmp_path / "p.toml"), "--on", str(tmp_path / "two.json"), "--path", "veth", "--setting", "bridge")
    error = refused(predict, *argv)
    assert error.message == "no path was measured under that setting and progress mode"
    assert error.hint == "there are veth / veth / polling"


def test_several_launches_are_named_as_requested(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of two runs were named after the first launch of the first run: `cg of a, trial 0`."""
    launches = [replace(ping(8), name=f"cg of a, trial {trial}") for trial in range(2)]
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: launches)
    argv = ("--on", model, "--path", "veth", "--replicas", "1")
    for programs, name in (
        (("a:cg", "b:cg"), "4 launches of a:cg, b:cg"),
        (("a:cg", "b:cg", "c:cg"), "6 launches of a:cg, b:cg and 1 more"),
        (("a:cg",), "2 launches of a:cg"),
    ):
        out, _ = run(predict, *programs, *argv)
        assert out.lstrip().startswith(f"Predicted run time of {name} on 2 ranks, 2 nodes\n")
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: launches[1:])
    assert "run time of cg of a, trial 1 on 2 ranks" in run(predict, "a:cg", *argv)[0]


@pytest.mark.parametrize(
    ("command", "argv"),
    [(place, (*HOSTS, "-o")), (place, (*HOSTS, "--save")), (predict, ("--save-model",)), (predict, ("--save",))],
)
def test_an_output_that_cannot_be_written_is_reported(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, command: click.Command, argv: tuple[str, ...]
) -> None:
    """A missing folder, or a folder in place of the file, ended in a traceback."""
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [ping(8)])
    name = f"x.{'placement' if command is place else 'prediction'}.json"
    (tmp_path / name).mkdir()
    for where in (tmp_path / name, tmp_path / "nowhere" / name):
        with pytest.raises(StoreError, match="cannot write"):
            run(command, "mine", "--on", model, "--replicas", "1", *argv, str(where))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.json", name]


def test_hosts_without_slots_are_refused_with_an_example() -> None:
    with pytest.raises(BadInputError) as error:
        Slots(("a", "b"), (0, 4))
    assert error.value.hint


def test_a_run_that_ended_early_is_not_predicted_from_in_silence(tmp_path: Path) -> None:
    """Of a run that was stopped before its first launch on a path, the answer had one path and said nothing."""
    (tmp_path / "p.toml").write_text('[pattern]\nkind = "cg"\nranks = 2\nsteps = 2\nmessage_bytes = 1024\n')
    root = make_run(tmp_path / "run", STUDY)
    argv = (str(tmp_path / "p.toml"), "--on", str(root), "--replicas", "1", "--extrapolate")
    assert "not finished" not in run(predict, *argv)[1]
    for record in RunDir.open(root).trials():
        if record.order.block or record.order.path.label == "tap":
            (root / "trials" / f"{record.name}.json").unlink()
    list_anew(root)
    for command, more in ((predict, ()), (place, HOSTS)):
        err = run(command, *argv, *more)[1]
        assert f"warning: {root} is not finished: it ended within block 1, 1 trial short of it" in err
        assert f"hint: measure the rest: nearmetal run --resume {root}\n" in err
