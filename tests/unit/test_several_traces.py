"""Several traces as launches of one program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.predict import command as predict
from nearmetal.predict.model_file import ModelFile, write_model
from nearmetal.predict.models import Machine, NamedMachine
from tests.unit.simulated import computing, ping
from tests.unit.test_predict_verbs import path, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> str:
    named = NamedMachine("veth", "as-found", "polling", Machine(path(1), path(20)))
    write_model(ModelFile("nearmetal-model", 1, "run", (named,)), tmp_path / "model.json")
    return str(tmp_path / "model.json")


@pytest.mark.parametrize("replicas", ["1", "100"])
def test_what_the_time_depends_on_is_that_of_all_launches(
    monkeypatch: pytest.MonkeyPatch, model: str, replicas: str
) -> None:
    """It was that of the first: of one launch that computed and two that did not, computing was all that mattered."""
    launches = iter((computing(50, 50), ping(), ping()))
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [next(launches)])
    argv = ("one", "two", "three", "--on", model, "--replicas", replicas, "--sensitivity", "--format", "json")
    (row,) = json.loads(run(predict, *argv)[0])
    assert row["sensitivity"]["compute"] == 0
    assert row["sensitivity"]["inter.latency"] > 0.5
