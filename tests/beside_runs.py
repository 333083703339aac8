"""What lies beside runs in a directory that is served: a trace, a prediction and a placement, made by their verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from nearmetal.cli.place import command as place
from nearmetal.cli.predict import command as predict
from nearmetal.predict.models import UNBOUNDED, Machine, ModelFile, NamedMachine, PathModel, Segment, write_model
from nearmetal.predict.trace import Trace
from tests.trace_writer import write_trace
from tests.unit.test_trace_view import RANKS, ring_rank

if TYPE_CHECKING:
    from pathlib import Path

    from click import Command

PATTERN = """
[pattern]
kind = "halo"
ranks = 8
steps = 20
message_bytes = 4096
dims = [2, 2, 2]
periodic = false
compute = "60 us"
"""


def make_beside(folder: Path, command: str = "ring") -> None:
    """Put a trace `ring`, a prediction and a placement `halo` into a folder."""
    (folder / "ring").mkdir()
    write_trace(Trace(tuple(ring_rank(rank, command=command) for rank in range(RANKS))), folder / "ring")
    (folder / "halo.toml").write_text(PATTERN)
    machines = tuple(
        NamedMachine(name, "as-found", "polling", Machine(_path(1), _path(latency_us)))
        for name, latency_us in (("native", 4), ("vf", 9), ("virtio", 40))
    )
    write_model(ModelFile("nearmetal-model", 1, "ladder", machines), folder / "model.json")
    both = (str(folder / "halo.toml"), "--on", str(folder / "model.json"), "--replicas", "20")
    _run(predict, *both, "--per-node", "2", "--decide", "--sensitivity", "--save", f"{folder}/halo.prediction.json")
    even = ("--break-even", "native", "virtio", "--dims", "2x2x2", "--tries", "0")
    _run(place, *both, "--hosts", "n0:4,n1:4", *even, "--save", f"{folder}/halo.placement.json")


def _path(latency_us: int) -> PathModel:
    return PathModel((Segment(UNBOUNDED, latency_us * 1_000_000, 300_000, 300_000, 0, 100_000, 100_000),))


def _run(command: Command, *argv: str) -> None:
    CliRunner().invoke(command, list(argv), catch_exceptions=False, standalone_mode=False)
