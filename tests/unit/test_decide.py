"""Ratios of paths, and the cheapest of them: what they must not depend on."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from nearmetal.cli.predict import command as predict
from nearmetal.predict.calibration import OWN, RELAY, JobCase
from nearmetal.predict.model_file import MODEL_VERSION, ModelFile, write_model
from nearmetal.predict.models import Machine, NamedMachine
from nearmetal.report.prediction_json import CaseJson, ValidationFile, save
from tests.unit.test_predict_verbs import PATTERN, path, run


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    (tmp_path / "halo.toml").write_text(PATTERN)
    return str(tmp_path / "halo.toml")


def model(tmp_path: Path, *machines: NamedMachine) -> str:
    write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "model.json")
    return str(tmp_path / "model.json")


def test_an_interval_of_two_paths_does_not_depend_on_a_third(tmp_path: Path, pattern: str) -> None:
    """All drew from one generator in turn, so each further path changed the intervals of those behind it."""
    launches = tuple(Machine(path(1), path(us)) for us in (15, 20, 22, 60))
    machines = [
        NamedMachine(name, "as-found", "polling", launches[1], launches=launches) for name in ("native", "tap", "vf")
    ]
    argv = (pattern, "--on", model(tmp_path, *machines), "--replicas", "20", "--decide", "--format", "json")

    def of_vf(*paths: str) -> object:
        rows = json.loads(run(predict, *argv, "--path", ",".join(paths))[0])
        return next((row["ratio"], row["loss"]) for row in rows if row["path"] == "vf")

    alone = of_vf("vf", "native")
    assert all(of_vf(*paths) == alone for paths in permutations(("native", "tap", "vf")))


def test_a_path_costs_what_its_kind_does_whatever_it_is_called(tmp_path: Path, pattern: str) -> None:
    """A whole port by the name of an emulated card was the cheapest path."""
    named = (("base", "native"), ("virtio", "native-roce"), ("mine", "vf"))
    machines = (
        NamedMachine(name, "as-found", "polling", Machine(path(1), path(20)), kind=kind) for name, kind in named
    )
    argv = (pattern, "--on", model(tmp_path, *machines), "--replicas", "1", "--decide", "--loss", "900%")
    assert "mine / as-found / polling is the cheapest" in " ".join(run(predict, *argv)[0].split())
    rows = json.loads(run(predict, *argv, "--format", "json")[0])  # did not tell which
    assert {row["path"]: row["loss"]["chosen"] for row in rows} == {"base": False, "virtio": False, "mine": True}
    out = " ".join(run(predict, *argv, "--path", "virtio,mine,base")[0].split())
    assert "virtio / as-found / polling is the cheapest" in out
    # Whoever only meant to choose paths was told that nothing is cheaper than the port.
    order = "So it is in the order of --path, cheapest first; by their kinds mine / as-found / polling is cheaper."
    assert out.endswith(order)
    out = " ".join(run(predict, *argv, "--path", "base,mine")[0].split())
    assert "Nothing cheaper than base / as-found / polling itself stays" in out
    assert out.endswith(order)
    assert "in the order of --path" not in run(predict, *argv, "--path", "mine,virtio,base")[0]
    unknown = (NamedMachine(name, "as-found", "polling", Machine(path(1), path(20))) for name in ("a", "b"))
    argv = (pattern, "--on", model(tmp_path, *unknown), *argv[3:])
    assert "in the order of --path" not in run(predict, *argv, "--path", "b,a")[0]


def test_newer_errors_of_one_class_leave_those_of_ratios_of_others(tmp_path: Path, pattern: str) -> None:
    """A model's jobs with a case of a renewed class were dropped whole: ratios of other paths took shipped errors."""
    keys = {name: (name, "as-found", "polling") for name in ("native", "veth", "tap")}
    job = (JobCase(OWN, keys["native"], 0.0), JobCase(OWN, keys["veth"], 0.5), JobCase(RELAY, keys["tap"], 0.7))
    machines = tuple(NamedMachine(*key, Machine(path(1), path(20))) for key in keys.values())
    source, newer = tmp_path / "model.json", tmp_path / "newer.validation.json"
    model = ModelFile("nearmetal-model", MODEL_VERSION, "run", machines, jobs=(job,) * 20)
    write_model(model, source)
    cases = tuple(
        CaseJson(
            **dict(zip(("path", "setting", "progress"), keys["tap"], strict=True)),
            case_class=RELAY,
            nodes=(0, 1),
            predicted_ns=1.0,
            launches_ns=(float(number),),
            predicted_p99_ns=None,
            p99_ns=(),
        )
        for number in range(1, 21)
    )
    save(newer, ValidationFile, "app", model, cases=cases)

    def said(*argv: str) -> str:
        return " ".join(run(predict, pattern, "--on", str(source), "--replicas", "1", *argv)[0].split())

    own = "of validated pairs of paths (own cores) were 1.65 to 1.65 times the predicted ratio"
    relays = "of validated pairs of paths (relay) were 2.01 to 2.01 times the predicted ratio"
    assert own in said()
    assert relays in said()
    renewed = said("--errors", str(newer))
    assert own in renewed
    assert relays not in renewed
    assert "20 validated cases (relay): 90 % took 1.00 to 20.00 times" in renewed
    argv = (pattern, "--on", str(source), "--replicas", "1", "--errors", str(newer))
    unused = "warning: --errors changes no interval of run times: its cases are of relay, the paths are of own cores\n"
    assert unused in run(predict, *argv, "--path", "native,veth")[1], "the answer is that without them"
    assert "changes no interval" not in run(predict, *argv)[1]
