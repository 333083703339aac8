"""`nearmetal predict` and `nearmetal place` on a pattern and a model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from nearmetal.cli.main import run as cli
from nearmetal.cli.place import command as place
from nearmetal.cli.place import parse_hosts
from nearmetal.cli.predict import command as predict
from nearmetal.errors import BadInputError, NearmetalError
from nearmetal.predict.fit_run import fit_run
from nearmetal.predict.models import UNBOUNDED, Machine, ModelFile, NamedMachine, PathModel, Segment, write_model
from nearmetal.predict.schedule import Comm, Op, OpKind, Program, Schedule
from nearmetal.predict.trace import DoCall
from nearmetal.store.rundir import RunDir

if TYPE_CHECKING:
    from click import Command

PATTERN = """
[pattern]
kind = "halo"
ranks = 8
steps = 4
message_bytes = 4096
dims = [2, 2, 2]
periodic = false
"""


def path(latency_us: int) -> PathModel:
    return PathModel((Segment(UNBOUNDED, latency_us * 1_000_000, 300_000, 300_000, 0, 100_000, 100_000),))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "halo.toml").write_text(PATTERN)
    machines = (
        NamedMachine("veth", "as-found", "polling", Machine(path(5), path(5))),
        NamedMachine("vf", "as-found", "polling", Machine(path(1), path(21))),
    )
    write_model(ModelFile("nearmetal-model", 1, "run", machines), tmp_path / "model.json")
    return str(tmp_path / "halo.toml"), str(tmp_path / "model.json")


def run(command: Command, *argv: str) -> tuple[str, str]:
    result = CliRunner().invoke(command, list(argv), catch_exceptions=False, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def test_predict_lists_paths_by_time(files: tuple[str, str]) -> None:
    out, _ = run(predict, files[0], "--on", files[1], "--per-node", "4", "--replicas", "3", "--format", "json")
    rows = json.loads(out)
    assert [row["path"] for row in rows] == ["veth", "vf"]
    assert rows[0]["quantiles"][0]["ns"] < rows[1]["quantiles"][0]["ns"]
    assert rows[0]["messages"] == 8 * 3 * 4


def test_predict_in_words(files: tuple[str, str]) -> None:
    out, _ = run(predict, files[0], "--on", files[1], "--path", "vf", "--replicas", "2", "--sensitivity")
    assert "do not contain the error of the models" in out.replace("\n", " ").replace("  ", " ")
    assert "inter.latency" in out


def test_place_writes_the_file_of_the_launcher(files: tuple[str, str], tmp_path: Path) -> None:
    target = tmp_path / "ranks"
    argv = ("--hosts", "a:4,b:4", "--replicas", "1", "--tries", "0", "-o", str(target))
    _, err = run(place, files[0], "--on", files[1], *argv, "--break-even", "veth", "vf")
    assert target.read_text().startswith("rank 0=a slot=0\n")
    assert "vf is faster below 20% of messages between nodes, veth above" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--hosts", "a:4"), "8 ranks on 4 slots"),
        (("--hosts", "a:x"), "'a:x' is not a host"),
        (("--hosts", "a:8", "--path", "tap"), "no path tap"),
        (("--hosts", "a:8", "--dims", "2xx"), "'2xx' is not a process grid"),
    ],
)
def test_bad_input_is_told_and_nothing_is_written(
    files: tuple[str, str], tmp_path: Path, argv: tuple[str, ...], told: str
) -> None:
    target = tmp_path / "ranks"
    with pytest.raises(NearmetalError, match=told):
        run(place, files[0], "--on", files[1], "-o", str(target), *argv)
    assert not target.exists()


def test_hosts_have_one_slot_unless_told() -> None:
    assert parse_hosts("a, b:2").counts == (1, 2)
    with pytest.raises(BadInputError, match="named twice"):
        parse_hosts("a,a")


GOLDEN_TRACE = Path(__file__).parents[1] / "golden" / "trace-v1.nmtrace"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (GOLDEN_TRACE.read_bytes()[:-20], "rank-000000"),
        (b"PK\x03\x04 this is no trace", "rank-000000"),
        (b"", "rank-000000"),
        (None, "holds no trace"),
    ],
)
def test_a_torn_or_foreign_trace_is_told_and_nothing_is_written(
    files: tuple[str, str], tmp_path: Path, content: bytes | None, told: str
) -> None:
    trace, saved, ranks = tmp_path / "trace", tmp_path / "saved.json", tmp_path / "ranks"
    trace.mkdir()
    if content is not None:
        (trace / "rank-000000.nmtrace").write_bytes(content)
    with pytest.raises(NearmetalError, match=told):
        run(predict, str(trace), "--on", files[1], "--save-model", str(saved))
    with pytest.raises(NearmetalError, match=told):
        run(place, str(trace), "--on", files[1], "--hosts", "a:8", "-o", str(ranks))
    assert not saved.exists()
    assert not ranks.exists()


def test_what_cannot_be_replayed_is_told_and_nothing_is_written(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "saved.json"
    alone = Machine(None, path(1))
    write_model(
        ModelFile("nearmetal-model", 1, "run", (NamedMachine("veth", "as-found", "polling", alone),)),
        tmp_path / "without-intra.json",
    )
    on = ("--on", str(tmp_path / "without-intra.json"), "--save-model", str(saved))
    with pytest.raises(BadInputError, match="the model has no path for that"):
        run(predict, files[0], *on, "--per-node", "4")
    with pytest.raises(BadInputError, match="no path tap in the model"):
        run(predict, files[0], *on, "--path", "tap")
    lonely = Program((DoCall(0),), (Op(OpKind.RECV, peer=1, tag=5),), (Comm(0, size=2),))
    silent = Program((), (), (Comm(0, size=2),))
    monkeypatch.setattr("nearmetal.cli.predict.load_schedule", lambda *_: Schedule(2, (lonely, silent)))
    with pytest.raises(NearmetalError, match="deadlock: 1 of 2 ranks cannot go on: rank 0 in recv with 1, tag 5"):
        run(predict, files[0], *on, "--per-node", "1")
    sender = Program((DoCall(0),), (Op(OpKind.SEND, peer=1, tag=6),), (Comm(0, size=2),))
    monkeypatch.setattr("nearmetal.cli.predict.load_schedule", lambda *_: Schedule(2, (sender, silent)))
    with pytest.raises(NearmetalError, match="1 messages or receives have no partner"):
        run(predict, files[0], *on, "--per-node", "1")
    assert not saved.exists()


def test_means_of_a_suite_are_no_samples_to_fit(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'name = "suite"\nbaseline = "veth"\nhost = { kind = "fake" }\npath = [{ name = "veth" }]\n'
        'workload = [{ name = "osu", kind = "omb", operation = "latency", sizes = [8], iterations = 30 }]\n'
        "trials = { min_blocks = 3, max_blocks = 3 }\n"
    )
    assert cli(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "run")]) == 0
    with pytest.raises(BadInputError, match="no ping-pong samples"):
        fit_run(RunDir.open(tmp_path / "run"))
