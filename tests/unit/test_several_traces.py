"""Several traces as launches of one program."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError
from nearmetal.predict.model_file import ModelFile, write_model
from nearmetal.predict.models import Machine, NamedMachine
from nearmetal.predict.schedule_from_trace import schedule_from_trace
from nearmetal.predict.trace import Trace
from nearmetal.predict.trace_file import read_trace
from tests.trace_writer import write_trace
from tests.unit.simulated import computing, ping
from tests.unit.test_predict_verbs import path, run
from tests.unit.test_trace_view import RANKS, ring_rank

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


@pytest.mark.parametrize(("replicas", "told"), [("2", True), ("3", False)])
def test_launches_that_no_replica_replays_are_told(
    monkeypatch: pytest.MonkeyPatch, model: str, replicas: str, told: bool
) -> None:
    """The title was of three launches, and the answer that of two."""
    monkeypatch.setattr("nearmetal.cli.replay.load_schedules", lambda *_: [ping()])
    _, said = run(predict, "one", "two", "three", "--on", model, "--replicas", replicas)
    assert ("only 2 of 3 launches are replayed" in said) is told


@pytest.mark.parametrize("again", ["trace", "other/../trace", "link", "copy"])
def test_a_trace_and_its_copy_do_not_count_as_two_launches(tmp_path: Path, model: str, again: str) -> None:
    """By another spelling, by a link, or as a copy it did."""
    (tmp_path / "trace").mkdir()
    write_trace(Trace(tuple(ring_rank(rank) for rank in range(RANKS))), tmp_path / "trace")
    shutil.copytree(tmp_path / "trace", tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "trace")
    (tmp_path / "other").mkdir()
    with pytest.raises(BadInputError, match=f"trace and .*{again} hold the same launch, which would count as two"):
        run(predict, str(tmp_path / "trace"), str(tmp_path / again), "--on", model)


def test_launches_that_do_the_same_are_two_launches(tmp_path: Path) -> None:
    for launch in (1, 2):
        (tmp_path / f"{launch}").mkdir()
        ranks = (replace(ring_rank(rank), trace_id=launch) for rank in range(RANKS))
        write_trace(Trace(tuple(ranks)), tmp_path / f"{launch}")
    one, other = (schedule_from_trace(read_trace(tmp_path / launch)) for launch in "12")
    assert one == other
    assert one.digest != other.digest
